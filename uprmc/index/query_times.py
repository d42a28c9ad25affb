"""How long queries took, by what they asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from uprmc.index.query_options import Query
from uprmc.metrics import Metric

#: Upper ends of the classes, in seconds.
CLASSES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

_HELP = "Queries by what they ask for and by how many seconds it took to send the answer."


def kind_of(query: Query) -> tuple[str, str]:
    """Return what makes queries comparable: rows or reductions, and how fresh."""
    rows = "rows" if not query.reduce else "groups" if query.group_level != 0 else "reduction"
    if query.keys is not None:
        rows = "keys"
    fresh = "at" if query.at else query.stale.value
    return rows, fresh


class QueryTimes:
    """Histograms of answers that were sent in full, and counts of those that were not."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}
        self._refused: dict[str, int] = {}
        self.unread = 0
        self.failed = 0

    def add(self, kind: tuple[str, str], seconds: float) -> None:
        """Count an answer."""
        counts = self._counts.setdefault(kind, [0] * (len(CLASSES_S) + 1))
        counts[bisect_left(CLASSES_S, seconds)] += 1
        self._sums[kind] = self._sums.get(kind, 0.0) + max(seconds, 0.0)

    def refuse(self, error: str) -> None:
        """Count a request that was refused, by the word for programs."""
        self._refused[error] = self._refused.get(error, 0) + 1

    def metrics(self) -> Iterator[Metric]:
        """Yield all of it."""
        yield Metric("index_query_seconds", "histogram", _HELP, [*self._samples()])
        yield Metric(
            "index_requests_refused_total",
            "counter",
            "Requests that were answered with an error, by the error's word.",
            [({"error": error}, count) for error, count in sorted(self._refused.items())],
        )
        yield Metric(
            "index_answers_unread_total",
            "counter",
            "Answers whose reader went away, or read nothing for too long.",
            [({}, self.unread)],
        )
        yield Metric(
            "index_answers_failed_total",
            "counter",
            "Answers that were cut off because of an error.",
            [({}, self.failed)],
        )

    def _samples(self) -> Iterator[tuple[dict[str, str], float]]:
        for kind, counts in sorted(self._counts.items()):
            labels = {"rows": kind[0], "stale": kind[1]}
            below = 0
            for end, count in zip((*map(str, CLASSES_S), "+Inf"), counts, strict=True):
                below += count
                yield {**labels, "le": end}, below
            yield {**labels, "le": "sum"}, self._sums[kind]
