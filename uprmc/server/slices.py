"""Long work in slices of time, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from uprmc.server.log import Log

#: How long one piece of work may keep the reactor from its sockets at a time.
SLICE_S = 0.001

_log = Log("slices")


class InSlices:
    """Does a piece of work whenever it is asked to: a slice of it in each turn of the reactor.

    Args:
        reactor: with a clock and timers.
        begin: begins the work; it goes on from step to step, each of which should be short.
    """

    def __init__(self, reactor: Any, begin: Callable[[], Iterator[object]]) -> None:
        self._reactor = reactor
        self._begin = begin
        self._steps: Iterator[object] | None = None
        self._timer: Any = None

    def start(self) -> None:
        """Have it done from the next turn on; harmless while it goes on."""
        if self._timer is None:
            self._timer = self._reactor.callLater(0, self._go_on)

    def stop(self) -> None:
        """Do no more of it; harmless when nothing is going on."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._steps = None

    def _go_on(self) -> None:
        self._timer = None
        until = self._reactor.seconds() + SLICE_S
        try:
            if self._steps is None:
                self._steps = self._begin()
            for _ in self._steps:
                if self._reactor.seconds() >= until:
                    self.start()
                    return
        except Exception:  # a bug of ours must not end what comes by again and again
            _log.failure("failed")
        self._steps = None
