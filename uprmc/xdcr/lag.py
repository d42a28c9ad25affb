"""How many seconds a link is behind: the age of the oldest change that has not arrived.

The sum of all high seqnos is noted with its time a few times a second. What has arrived, summed in
the same way, was the high then: so the newest note that has been passed says how old the next
change is at most.
"""

from __future__ import annotations

from collections import deque

#: Notes that are kept; a link that is further behind is as far behind as the oldest one.
_NOTES = 4_096


class Lag:
    """The lag of one link."""

    def __init__(self, now: float) -> None:
        """Begin at this monotonic time: nothing is known of before."""
        self._notes: deque[tuple[float, int]] = deque()
        self._level_at = now

    def note(self, now: float, high: int, through: int) -> None:
        """Take note of the sums at this monotonic time."""
        notes = self._notes
        while notes and notes[0][1] <= through:
            self._level_at = notes.popleft()[0]
        if high <= through:
            notes.clear()
            self._level_at = now
        elif not notes or notes[-1][1] < high:
            if len(notes) == _NOTES:
                self._notes = notes = deque(list(notes)[::2])  # half as fine, twice as far back
            notes.append((now, high))

    def seconds(self, now: float) -> float:
        """Return how long ago everything that had happened by then has arrived."""
        return max(0.0, now - self._level_at) if self._notes else 0.0
