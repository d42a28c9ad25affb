"""What a monitoring system may scrape: plain numbers in, Prometheus exposition out.

Other modules describe a number as a `Metric`; only this file knows the library that writes the
page. Names start with ``uprmc_``, but for those of the process and of Python, which every exporter
calls ``process_...`` and ``python_...``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder

PREFIX = "uprmc_"

#: How a page in the form of OpenMetrics ends, and how its content type begins.
_END = b"# EOF\n"
_OPENMETRICS = "application/openmetrics-text"

#: Labels and value of each sample of a metric.
Samples = Iterator[tuple[Mapping[str, str], float]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number, or one for each combination of label values.

    Attributes:
        name: without the prefix; a counter's ends in ``_total``.
        kind: a counter only grows, until a restart or ``stats reset``; a gauge goes both ways. A
            histogram has a sample for each class, with its upper end as the label ``le``, which
            counts all up to it, the last being ``+Inf``; and one whose ``le`` is ``sum``.
        help: a sentence that says what is counted.
        samples: labels and value; all samples of a metric use the same label names.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]


Metrics = Callable[[], Iterable[Metric | None]]

_NOT_YET = Family("not_yet", "", "unknown")


class _Collector:
    """Reads the metrics at every scrape; nothing is kept in between."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        for metric in self._metrics():
            yield _NOT_YET if metric is None else _family(metric)


def _family(metric: Metric) -> Family:
    name = PREFIX + metric.name
    family = Family(name.removesuffix("_total"), metric.help, metric.kind)
    for labels, value in metric.samples:
        if metric.kind == "histogram":
            _add_class(family, name, dict(labels), value)
        else:
            family.add_sample(name, dict(labels), value)
    return family


def _add_class(family: Family, name: str, labels: dict[str, str], value: float) -> None:
    end = labels.pop("le")
    if end == "sum":
        family.add_sample(f"{name}_sum", labels, value)
        return
    family.add_sample(f"{name}_bucket", {**labels, "le": end}, value)
    if end == "+Inf":
        family.add_sample(f"{name}_count", labels, value)


class Exposition:
    """The page for one node, with the process's own CPU, memory and file counts added.

    Args:
        metrics: yields ``None`` where the next one takes long: others have their turn then.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(metrics))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type, in the form that the Accept header prefers."""
        steps = self.steps(accept)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                page, content_type = end.value
                return page, content_type

    def steps(self, accept: str) -> Generator[None, None, tuple[bytes, str]]:
        """Return the same, a metric at each step."""
        encode, content_type = choose_encoder(accept)
        pieces: list[bytes] = []
        for family in self._registry.collect():
            if family is _NOT_YET:
                yield
                continue
            pieces.append(encode(cast(CollectorRegistry, _One(family))).removesuffix(_END))
            yield
        if content_type.startswith(_OPENMETRICS):
            pieces.append(_END)
        return b"".join(pieces), content_type


class _One:
    """What an encoder needs of a registry, with a single metric in it."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> list[Family]:
        return [self._family]
