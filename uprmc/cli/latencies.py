"""How long many things took: few numbers, from which percentiles come out within one percent."""

from __future__ import annotations

from typing import Self

_NANOS = 1_000_000_000

#: Binary digits that a time keeps: 128 steps for each doubling.
_DIGITS = 8

#: Name of a percentile -> its share.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}


class Latencies:
    """Times by how often they were met.

    Attributes:
        count: how many there are.
        counts: by nanoseconds, rounded down to `_DIGITS` binary digits.
    """

    __slots__ = ("count", "counts", "max_ns", "sum_ns")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0
        self.counts: dict[int, int] = {}

    def add(self, time_ns: int, times: int = 1) -> None:
        """Count a time, met once or several times."""
        shift = max(0, time_ns.bit_length() - _DIGITS)
        step = time_ns >> shift << shift
        self.counts[step] = self.counts.get(step, 0) + times
        self.count += times
        self.sum_ns += time_ns * times
        self.max_ns = max(self.max_ns, time_ns)

    def merge(self, other: Self) -> None:
        """Count what another has counted."""
        for step, times in other.counts.items():
            self.counts[step] = self.counts.get(step, 0) + times
        self.count += other.count
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    def at(self, share: float) -> float:
        """Return the seconds within which this share was done, 0 if there is nothing."""
        left = share * self.count
        for step in sorted(self.counts):
            left -= self.counts[step]
            if left <= 0:
                return step / _NANOS
        return self.max_ns / _NANOS

    def summary_ms(self) -> dict[str, float]:
        """Return mean, percentiles and maximum in milliseconds."""
        mean_ms = self.sum_ns / max(1, self.count) / 1e6
        some = {name: self.at(share) * 1e3 for name, share in PERCENTILES.items()}
        return {"avg_ms": mean_ms, **_named(some), "max_ms": self.max_ns / 1e6}


def _named(values: dict[str, float]) -> dict[str, float]:
    return {f"{name}_ms": value for name, value in values.items()}
