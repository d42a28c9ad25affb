"""What ends the lives of an index: told once when it begins and once when it is over."""

from __future__ import annotations

from typing import Any

from uprmc.index.errors import Damaged, GivenUp, RolledBack
from uprmc.index.news import OnEvent
from uprmc.remote.retry import Backoff

#: The next life begins after this long, then twice as long each time, up to this.
_RETRY_S, _RETRY_MAX_S = 0.1, 5.0


class Fault:
    """What has ended the last life of an index, until a header could be written.

    Attributes:
        text: of the error, empty = nothing is wrong.
        count: how many lives have ended by an error.
    """

    def __init__(self, design: str, on_event: OnEvent) -> None:
        self.text = ""
        self.count = 0
        self._design, self._on_event = design, on_event
        self._kind: tuple[Any, ...] = ()
        self._backoff = Backoff(_RETRY_S, _RETRY_MAX_S)

    def note(self, error: BaseException) -> None:
        """Keep an error for whoever asks, and tell it if it is another one than before."""
        if isinstance(error, GivenUp):
            return
        kind = (type(error), getattr(error, "errno", None))
        self.text = f"{type(error).__name__}: {error}"
        self.count += 1
        if kind != self._kind:
            self._on_event("index_failed", {"design": self._design, "reason": self.text})
        self._kind = kind

    def next_pause_s(self) -> float:
        """Return for how long the next life waits."""
        return self._backoff.next()

    def is_over(self) -> None:
        """A header was written."""
        if self.text:
            self._on_event("index_works_again", {"design": self._design})
        self.text, self._kind = "", ()
        self._backoff.good()

    def needs_new_file(self, error: BaseException) -> bool:
        """Return whether this error is damage, which no other attempt mends, and tell it."""
        if not isinstance(error, Damaged) or isinstance(error, RolledBack):
            return False
        self._on_event("index_damaged", {"design": self._design, "reason": str(error)})
        return True
