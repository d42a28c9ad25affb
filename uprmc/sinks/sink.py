"""What all sinks have in common: who keeps positions, how waiting ends, and their errors."""

from __future__ import annotations

import threading

from uprmc.client.handler import Handler
from uprmc.client.state import StateStore
from uprmc.errors import UprmcError

#: A target that takes nothing for this long is given up.
PATIENCE_S = 300.0


class SinkError(UprmcError):
    """A sink cannot take what it is given; the text says why and what to do."""


class SinkRefused(SinkError):
    """A sink cannot be what its arguments say: a path, a URL, a setting. Nothing was changed."""


class SinkStopped(SinkError):
    """It was told to stop while it waited for another attempt; nothing is lost."""


class Sink(Handler):
    """A handler that brings changes somewhere else.

    Attributes:
        state: positions that are written together with what it is given: each change takes effect
            exactly once. ``None`` = give the client a state of its own: at least once.
    """

    state: StateStore | None = None

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def stop(self) -> None:
        """Wait for nothing any more; may be called by a signal handler or another thread."""
        self.stopping.set()

    def close(self) -> None:
        """Let go of files and connections. Closing twice is no error."""

    def wait(self, seconds: float) -> None:
        """Wait before another attempt; raises `SinkStopped` when it is told to stop."""
        if self.stopping.wait(seconds):
            raise SinkStopped("stopped while the sink was waited for")
