"""How long commands take, sampled: one piece of input in `SAMPLED_EVERY` is timed.

A piece is what a connection receives at once; it may have hundreds of commands, which the compiled
core carries out in one call. So the piece is timed, and each command of it counts with that time:
this is how long the node kept its client waiting. What the commands were is seen from the counters
that they change. A piece that is not timed costs one subtraction.

The number is prime, so that connections that take turns are all looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

from uprmc.engine.stats import Stats
from uprmc.engine.timings import Histogram

SAMPLED_EVERY = 61

#: Operation -> the counters of `Stats` that show how many there were.
_COUNTERS = {
    "get": ("cmd_get",),
    "set": ("cmd_set",),
    "delete": ("delete_hits", "delete_misses"),
    "arithmetic": ("incr_hits", "incr_misses", "decr_hits", "decr_misses"),
    "touch": ("cmd_touch",),
    "with_meta": ("ops_set_meta", "ops_del_meta", "ops_set_meta_res_fail"),
}
_MIXED, _OTHER = "mixed", "other"

T = TypeVar("T")


class OpTimes:
    """The times of one node.

    Attributes:
        left: pieces until the next one that is timed; who reads a piece counts down.
        by_op: operation -> its histogram.
    """

    __slots__ = ("_heard", "_stats", "by_op", "left")

    def __init__(self, stats: Stats, heard: Callable[[], int]) -> None:
        """Make empty histograms; `heard` returns how many pieces have been received."""
        self.left = SAMPLED_EVERY
        self.by_op = {op: Histogram() for op in (*_COUNTERS, _MIXED, _OTHER)}
        self._stats, self._heard = stats, heard

    def measure(self, read: Callable[[], T]) -> T:
        """Have a piece read, and time it."""
        self.left = SAMPLED_EVERY + 1  # `read` counts down, too
        before, heard = self._counts(), self._heard()
        began = perf_counter()
        result = read()
        seconds = perf_counter() - began
        if self._heard() == heard:
            self.left = 1  # nothing had come: the next one
        else:
            self._add(seconds, before)
        return result

    def _add(self, seconds: float, before: list[int]) -> None:
        counts = zip(_COUNTERS, before, self._counts(), strict=True)
        done = {op: now - then for op, then, now in counts if now > then}
        op = next(iter(done)) if len(done) == 1 else _MIXED if done else _OTHER
        self.by_op[op].add(seconds, sum(done.values()) or 1)

    def _counts(self) -> list[int]:
        stats = self._stats
        return [sum(getattr(stats, name) for name in names) for names in _COUNTERS.values()]
