"""Metrics of how long things take, as histograms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from uprmc.engine.timings import Histogram
from uprmc.server.metric_info import MetricInfo, Scrape, histogram
from uprmc.server.op_times import SAMPLED_EVERY


def _timing(name: str, help: str, attribute: str) -> MetricInfo:
    """Declare one of `Timings`."""
    read: Callable[[object], Histogram] = attrgetter(attribute)
    return histogram(name, help, lambda scrape: {(): read(scrape.bucket.timings)})


def _ops(scrape: Scrape) -> Mapping[tuple[str, ...], Histogram]:
    return {(op,): found for op, found in scrape.connections.op_times.by_op.items()}


TIMES = (
    histogram(
        "op_seconds",
        "Time from reading a piece of input to handing over its replies, by what the commands in"
        f" it did, for one piece in {SAMPLED_EVERY}; `mixed`: several kinds in one piece.",
        _ops,
        "op",
    ),
    _timing("commit_seconds", "Commits, including growth of the store's map.", "disk_commit"),
    _timing("fetch_wait_seconds", "Waits of evicted values for a disk thread.", "bg_wait"),
    _timing("fetch_seconds", "Reads of a batch of evicted values.", "bg_load"),
    _timing("backfill_seconds", "Readings of the disk by streams, begin to end.", "backfill"),
    _timing("barrier_seconds", "Barrier cookies, from their arrival to their return.", "barrier"),
    _timing("statistics_seconds", "Computation of one group for `stats`.", "get_stats_cmd"),
)
