"""Pieces of a burst are handed over together, so that they are one commit of the consumer."""

from __future__ import annotations

from uprmc.client.events import Event
from uprmc.remote.batch import Batch

#: Events wait for more up to this size, if each piece comes this soon after the one before, and for
#: no longer than this in all.
_GATHER_MAX_BYTES = 1024 * 1024
GATHER_GAP_S = 0.005
GATHER_MAX_S = 0.020

#: A piece with this many snapshots is probably a part of a burst, whose rest is on its way.
_BURST_SNAPSHOTS = 32


class Bursts:
    """Holds events of one connection back while more of their burst is expected.

    Attributes:
        until: until when events wait, in monotonic seconds; ``None`` = none do.
    """

    def __init__(self) -> None:
        self.until: float | None = None
        self._end = 0.0
        self._events: list[Event] = []

    def complete(
        self, events: list[Event], size: int, buffer_bytes: int, now: float, *, more_follows: bool
    ) -> list[Event]:
        """Return events with those that came before, or nothing if they wait for more.

        Args:
            events: what has come now.
            size: bytes that were received and not handed over, with these.
            buffer_bytes: what the node may send before it waits for us; 0 = any amount. A quarter
                of that may wait here.
            now: monotonic seconds.
            more_follows: the node says that it goes on at once, or that is likely.
        """
        gathered = self._events
        if not gathered and not more_follows:
            return events
        gathered += events
        limit = min(buffer_bytes // 4 or _GATHER_MAX_BYTES, _GATHER_MAX_BYTES)
        if gathered and more_follows and size < limit:
            if self.until is None:
                self._end = now + GATHER_MAX_S
            self.until = min(self._end, now + GATHER_GAP_S)
            if now < self._end:
                return []
        self._events, self.until = [], None
        return gathered

    def is_overdue(self, now: float) -> bool:
        """Tell whether the events that wait have waited for long enough."""
        return self.until is not None and now >= self.until


def is_burst(events: list[Event]) -> bool:
    """Tell whether many snapshots have come, and nothing behind them that may be waited for."""
    last = events[-1] if events else None
    if type(last) is not Batch:
        return False
    if len(events) == 1:
        return len(last.runs) >= _BURST_SNAPSHOTS
    return sum([len(event.runs) for event in events if type(event) is Batch]) >= _BURST_SNAPSHOTS
