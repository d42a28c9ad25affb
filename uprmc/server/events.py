"""What happened to data that an operator may want to look up: in the log, and at ``/events``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from uprmc.server.log import Log, time_text
from uprmc.server.log_events import EVENTS

#: Events that are kept for ``/events``.
KEPT_EVENTS = 4_096

_SECTION = "event"
_logger = Log(_SECTION)


class Events:
    """The newest events, oldest first; `tell` is a bucket's `on_event`.

    Attributes:
        told: events since the start; the first has number 0.
        on_event: called after each.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: deque[dict[str, object]] = deque(maxlen=KEPT_EVENTS)
        self.told = 0
        self.on_event: Callable[[], None] = lambda: None

    def tell(self, name: str, fields: dict[str, object]) -> None:
        """Log an event and keep it."""
        self._kept.append({"time": time_text(self._now()), "event": name, **fields})
        emit = getattr(_logger, EVENTS[f"{_SECTION}.{name}"].level)
        emit(name, **fields)
        self.told += 1
        self.on_event()

    def newest(self) -> list[dict[str, object]]:
        """Return what is kept."""
        return list(self._kept)

    def since(self, number: int, most: int) -> list[tuple[int, dict[str, object]]]:
        """Return the oldest kept events from a number on, each with its number."""
        first = self.told - len(self._kept)
        begin = max(number, first)
        found = islice(self._kept, begin - first, begin - first + most)
        return list(enumerate(found, begin))
