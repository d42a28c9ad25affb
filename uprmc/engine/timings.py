"""How long things took, as counts in powers of two of microseconds.

The rules have no clock, so nothing is measured here: code that does the work and has a clock
(drivers, the statistics themselves) reports how long it took. Commands on documents are not timed,
because each would pay for two readings of the clock.

Source: UPR reference 6.1, group ``timings``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

#: The last class holds everything from 2**39 microseconds (six days) on.
_CLASSES = 41


class Histogram:
    """Durations by class: below 1 us, then from each power of two to the next."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * _CLASSES

    def add(self, seconds: float) -> None:
        """Count one duration; a clock that was set back counts as no time at all."""
        micros = max(int(seconds * 1_000_000), 0)
        self._counts[min(micros.bit_length(), _CLASSES - 1)] += 1

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """Yield (from, below, count) in microseconds, rising, of every class that has any."""
        for place, count in enumerate(self._counts):
            if count:
                yield (1 << place) >> 1, 1 << place, count

    def reset(self) -> None:
        """Forget everything."""
        self._counts = [0] * _CLASSES


@dataclass(slots=True)
class Timings:
    """What is measured, by the names that tools know.

    Attributes:
        bg_wait: a round of reading ejected values waits until it begins.
        bg_load: that round, until its values are in memory.
        disk_commit: one commit in the worker thread, growing the store's map included.
        get_stats_cmd: making one group of statistics.
    """

    bg_wait: Histogram = field(default_factory=Histogram)
    bg_load: Histogram = field(default_factory=Histogram)
    disk_commit: Histogram = field(default_factory=Histogram)
    get_stats_cmd: Histogram = field(default_factory=Histogram)

    def items(self) -> Iterator[tuple[str, Histogram]]:
        """Yield (name, histogram) of everything that is measured."""
        for item in fields(self):
            yield item.name, getattr(self, item.name)

    def reset(self) -> None:
        """Forget everything."""
        for item in fields(self):
            getattr(self, item.name).reset()
