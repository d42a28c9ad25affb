"""Counters and times of one bucket, with the names that memcached's users know.

Counters are plain integer attributes: the hot path adds to them once per received chunk, not per
command. Times are counts in powers of two of microseconds. The rules have no clock, so nothing is
measured here: code that does the work and has a clock (drivers, the statistics themselves) reports
how long it took. Commands on documents are timed by samples, see `server.op_times`: each would pay
for two readings of the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

# --- counters -----------------------------------------------------------------------------------


#: Counters that memcached has, too, by the same names.
MEMCACHEDS = frozenset(
    {
        *("cmd_get", "cmd_set", "cmd_flush", "cmd_touch", "cmd_meta", "auth_cmds", "auth_errors"),
        *("get_hits", "get_misses", "get_expired", "delete_hits", "delete_misses"),
        *("incr_hits", "incr_misses", "decr_hits", "decr_misses"),
        *("cas_hits", "cas_misses", "cas_badval", "touch_hits", "touch_misses"),
        *("total_items", "store_too_large"),
    }
)


@dataclass(slots=True)
class Stats:
    """Counters since the start or the last ``stats reset``."""

    cmd_get: int = 0
    cmd_set: int = 0
    cmd_flush: int = 0
    cmd_touch: int = 0
    cmd_meta: int = 0
    auth_cmds: int = 0
    auth_errors: int = 0
    auth_denied: int = 0
    get_hits: int = 0
    get_misses: int = 0
    get_expired: int = 0
    delete_hits: int = 0
    delete_misses: int = 0
    incr_hits: int = 0
    incr_misses: int = 0
    decr_hits: int = 0
    decr_misses: int = 0
    cas_hits: int = 0
    cas_misses: int = 0
    cas_badval: int = 0
    touch_hits: int = 0
    touch_misses: int = 0
    total_items: int = 0
    store_too_large: int = 0
    expired_access: int = 0
    expired_pager: int = 0
    value_ejects: int = 0
    pager_runs: int = 0
    bg_fetched: int = 0
    bg_fetch_failures: int = 0
    bg_meta_fetched: int = 0
    ops_get_meta: int = 0
    ops_set_meta: int = 0
    ops_del_meta: int = 0
    ops_set_meta_res_fail: int = 0
    ops_del_meta_res_fail: int = 0
    cas_ahead: int = 0
    cas_behind: int = 0
    ops_set_ret_meta: int = 0
    ops_del_ret_meta: int = 0
    commits: int = 0
    commit_failures: int = 0
    items_flushed: int = 0
    damaged_records: int = 0
    healed_records: int = 0
    protocol_errors: int = 0
    upr_dead: int = 0
    vbuckets_deposed: int = 0

    def reset(self) -> None:
        """Set every counter to 0."""
        for item in fields(self):
            setattr(self, item.name, 0)

    def items(self) -> list[tuple[str, int]]:
        """Return (name, value) of every counter."""
        return [(item.name, getattr(self, item.name)) for item in fields(self)]


# --- times --------------------------------------------------------------------------------------


#: The last class holds everything from 2**39 microseconds (six days) on.
_CLASSES = 41


class Histogram:
    """Durations by class: below 1 us, then from each power of two to the next."""

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
        self.total = 0  # how many were counted
        self.sum_s = 0.0  # how long they took together


@dataclass(slots=True)
class Timings:
    """What is measured, by the names that tools know."""

    # a round of reading ejected values waits until it begins.
    bg_wait: Histogram = field(default_factory=Histogram)
    # that round, until its values are in memory.
    bg_load: Histogram = field(default_factory=Histogram)
    # one commit in the worker thread, growing the store's map included.
    disk_commit: Histogram = field(default_factory=Histogram)
    # one reading of the disk by a stream, begin to end.
    backfill: Histogram = field(default_factory=Histogram)
    # a barrier cookie, from its arrival to its return.
    barrier: Histogram = field(default_factory=Histogram)
    get_stats_cmd: Histogram = field(default_factory=Histogram)  # making one group of statistics

    def items(self) -> Iterator[tuple[str, Histogram]]:
        """Yield (name, histogram) of everything that is measured."""
        for item in fields(self):
            yield item.name, getattr(self, item.name)

    def reset(self) -> None:
        """Forget everything."""
        for item in fields(self):
            getattr(self, item.name).reset()
