"""The numbers of ``/metrics``, each declared once: name, what it counts, where it is read.

Names follow Prometheus' conventions: base units, counters end in ``_total``, a label where several
numbers are one thing seen in several ways. ``tools/reference.py`` makes the page about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from uprmc.engine.timings import Histogram
from uprmc.metrics import Metric, Samples
from uprmc.server import metrics_kv, metrics_streams, metrics_times
from uprmc.server.metric_info import MetricInfo, Scrape
from uprmc.server.observed import ObservedNode

#: Histograms are told by powers of two of a microsecond, from 16 us to 17 s.
_SHORTEST_BITS, _LONGEST_BITS = 4, 24

METRICS = (
    *metrics_kv.COMMANDS,
    *metrics_kv.MEMORY_AND_DISK,
    *metrics_kv.CONNECTIONS,
    *metrics_times.TIMES,
    *metrics_streams.STREAMS,
    *metrics_streams.CONSUMERS,
    *metrics_streams.REPLICATION,
    *metrics_streams.WATERMARKS,
    *metrics_streams.LINKS,
    *metrics_streams.INDEX,
)


def metrics(node: ObservedNode) -> Iterator[Metric | None]:
    """Read every metric of a node; ``None`` = the next one is not worked out yet."""
    scrape = Scrape(node)
    yield from scrape.steps()
    for info in METRICS:
        yield Metric(info.name, info.kind, info.help, list(_samples(info, scrape)))


def _samples(info: MetricInfo, scrape: Scrape) -> Samples:
    reading = info.read(scrape)
    by_values = reading if isinstance(reading, Mapping) else {(): reading}
    for values, value in by_values.items():
        labels = dict(zip(info.labels, values, strict=True))
        if isinstance(value, Histogram):
            yield from _classes(labels, value)
        else:
            yield labels, value


def _classes(labels: dict[str, str], histogram: Histogram) -> Samples:
    """Yield a histogram's classes by their ends in seconds, and its sum; see `Metric`."""
    for end_us, below in histogram.below(_SHORTEST_BITS, _LONGEST_BITS):
        yield {**labels, "le": repr(end_us / 1e6)}, below
    yield {**labels, "le": "+Inf"}, histogram.total
    yield {**labels, "le": "sum"}, histogram.sum_s
