"""What happened to data that an operator may want to look up: in the log, and at ``/events``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from uprmc.server.log import Log, time_text
from uprmc.server.log_events import EVENTS

#: Events that are kept for ``/events``.
KEPT_EVENTS = 4_096

_SECTION = "event"
_logger = Log(_SECTION)


class Events:
    """The newest events, oldest first; `tell` is a bucket's `on_event`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: deque[dict[str, object]] = deque(maxlen=KEPT_EVENTS)

    def tell(self, name: str, fields: dict[str, object]) -> None:
        """Log an event and keep it."""
        self._kept.append({"time": time_text(self._now()), "event": name, **fields})
        emit = getattr(_logger, EVENTS[f"{_SECTION}.{name}"].level)
        emit(name, **fields)

    def newest(self) -> list[dict[str, object]]:
        """Return what is kept."""
        return list(self._kept)
