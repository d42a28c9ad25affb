"""What a monitoring system may scrape: plain numbers in, Prometheus exposition out.

Whoever knows a number describes it as a `Metric`; only this file knows the library that writes
them down. Every name starts with ``uprmc_``; units are base units and end the name (seconds,
bytes); counters end in ``_total``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder

PREFIX = "uprmc_"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number, or one for each combination of label values.

    Attributes:
        name: without the prefix, and without the ``_total`` that counters get.
        kind: a counter only grows, until a restart or ``stats reset``; a gauge goes both ways.
        help: one line for whoever reads the page.
        samples: labels and value; all samples of a metric use the same label names.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def single(name: str, kind: Literal["counter", "gauge"], help: str, value: float) -> Metric:
    """Make a metric without labels."""
    return Metric(name, kind, help, (({}, value),))


class _Collector:
    """Asks for the metrics anew at every scrape; nothing is kept in between."""

    def __init__(self, metrics: Callable[[], Iterable[Metric]]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        for metric in self._metrics():
            yield _family(metric)


def _family(metric: Metric) -> Family:
    name = PREFIX + metric.name.removesuffix("_total")
    family = Family(name, metric.help, metric.kind)
    sample = f"{name}_total" if metric.kind == "counter" else name
    for labels, value in metric.samples:
        family.add_sample(sample, dict(labels), value)
    return family


class Exposition:
    """The page for one node, with the process's own CPU, memory and file counts added."""

    def __init__(self, metrics: Callable[[], Iterable[Metric]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(metrics))
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type, in the form that the Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
