"""How long things took, as counts in powers of two of microseconds.

The rules have no clock, so nothing is measured here: code that does the work and has a clock
(drivers, the statistics themselves) reports how long it took. Commands on documents are timed by
samples, see `server.op_times`: each would pay for two readings of the clock.

Source: UPR reference 6.1, group ``timings``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

#: The last class holds everything from 2**39 microseconds (six days) on.
_CLASSES = 41


class Histogram:
    """Durations by class: below 1 us, then from each power of two to the next.

    Attributes:
        total: how many were counted.
        sum_s: how long they took together.
    """

    __slots__ = ("_counts", "sum_s", "total")

    def __init__(self) -> None:
        self.reset()

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration; a clock that was set back counts as no time at all."""
        micros = max(int(seconds * 1_000_000), 0)
        self._counts[min(micros.bit_length(), _CLASSES - 1)] += times
        self.total += times
        self.sum_s += max(seconds, 0.0) * times

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """Yield (from, below, count) in microseconds, rising, of every class that has any."""
        for place, count in enumerate(self._counts):
            if count:
                yield (1 << place) >> 1, 1 << place, count

    def below(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield (end in microseconds, how many are below it) of the classes of these bits."""
        total = sum(self._counts[:first])
        for bits in range(first, last + 1):
            total += self._counts[bits]
            yield 1 << bits, total

    def reset(self) -> None:
        """Forget everything."""
        self._counts = [0] * _CLASSES
        self.total = 0
        self.sum_s = 0.0


@dataclass(slots=True)
class Timings:
    """What is measured, by the names that tools know.

    Attributes:
        bg_wait: a round of reading ejected values waits until it begins.
        bg_load: that round, until its values are in memory.
        disk_commit: one commit in the worker thread, growing the store's map included.
        backfill: one reading of the disk by a stream, begin to end.
        barrier: a barrier cookie, from its arrival to its return.
        get_stats_cmd: making one group of statistics.
    """

    bg_wait: Histogram = field(default_factory=Histogram)
    bg_load: Histogram = field(default_factory=Histogram)
    disk_commit: Histogram = field(default_factory=Histogram)
    backfill: Histogram = field(default_factory=Histogram)
    barrier: Histogram = field(default_factory=Histogram)
    get_stats_cmd: Histogram = field(default_factory=Histogram)

    def items(self) -> Iterator[tuple[str, Histogram]]:
        """Yield (name, histogram) of everything that is measured."""
        for item in fields(self):
            yield item.name, getattr(self, item.name)

    def reset(self) -> None:
        """Forget everything."""
        for item in fields(self):
            getattr(self, item.name).reset()
