"""What the load generator tells of its runs: a table, short lines, CSV or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import click

from uprmc.cli.bench_load import Outcome, Plan

#: How to tell it; else it is a table.
FORMS = ("json", "csv", "quiet")

#: A generator that worked for this share of the time may have been slower than the node.
_BUSY = 0.9

_WIDTHS = {"count": 11, "per_s": 10}
_TIME_WIDTH = 9

_Row = dict[str, float]


class Report:
    """Adds runs up, and tells of them.

    Attributes:
        error: why the last run ended early, empty = it did not.
        refused: how often the node refused, by its reason.

    Args:
        plan: what each run is made of.
        form: one of `FORMS`, or empty.
    """

    def __init__(self, plan: Plan, form: str) -> None:
        self.error = ""
        self.refused: Counter[str] = Counter()
        self._plan, self._form = plan, form
        self._rows: dict[str, _Row] = {}
        self._misses = self._done = 0
        self._elapsed_s = self._waited_s = 0.0

    def add(self, outcome: Outcome) -> None:
        """Take in a run."""
        for test, each in sorted(outcome.latencies.items()):
            per_s = each.count / outcome.elapsed_s if outcome.elapsed_s else 0.0
            row = {"count": each.count, "per_s": per_s, **each.summary_ms()}
            self._rows[test] = row
            self._done += each.count
            if self._form == "quiet":
                click.echo(f"{test}: {per_s:,.0f} per second, p50 {row['p50_ms']:.3f} ms")
        self._misses += outcome.misses
        self.refused += outcome.refused
        self._elapsed_s += outcome.elapsed_s
        self._waited_s += outcome.waited_s
        self.error = outcome.error

    def end(self) -> None:
        """Tell what the runs came to."""
        if self._form == "json":
            click.echo(json.dumps(self._document()))
        elif self._form == "csv":
            click.echo("\n".join(self._csv()))
        elif not self._form:
            click.echo(self._headline())
            click.echo("\n".join(self._table()))
        if self._form in ("", "quiet"):
            self._echo_exceptions()
        if self._busy >= _BUSY:
            click.echo(
                f"uprmc: the generator was busy for {self._busy:.0%} of the time: the node may be "
                "faster than that; use --processes if there are more cores",
                err=True,
            )

    @property
    def _busy(self) -> float:
        return 1 - self._waited_s / self._elapsed_s if self._elapsed_s else 0.0

    @property
    def _per_s(self) -> float:
        return self._done / self._elapsed_s if self._elapsed_s else 0.0

    def _document(self) -> dict[str, object]:
        return {
            "requests": self._done,
            "seconds": round(self._elapsed_s, 6),
            "requests_per_s": round(self._per_s, 1),
            "connections": self._plan.connections,
            "pipeline": self._plan.depth,
            "size": len(self._plan.value),
            "misses": self._misses,
            "refused": dict(self.refused),
            "generator_busy": round(self._busy, 3),
            "commands": {
                test: {name: round(value, 4) for name, value in row.items()}
                for test, row in self._rows.items()
            },
        }

    def _headline(self) -> str:
        plan = self._plan
        return (
            f"{self._done:,} requests in {self._elapsed_s:.2f} s: {self._per_s:,.0f} per second"
            f" ({plan.connections} connections, pipeline {plan.depth}, {len(plan.value)} bytes)"
        )

    def _csv(self) -> Iterator[str]:
        names = self._names()
        yield ",".join(["test", *names])
        for test, row in self._rows.items():
            yield ",".join([test, *(f"{row[name]:.10g}" for name in names)])

    def _table(self) -> Iterator[str]:
        names = self._names()
        if names:
            heads = [name.replace("p99_9", "p99.9").replace("_", " ") for name in names]
            yield "     " + "".join(map(_cell, heads, names))
        for test, row in self._rows.items():
            yield f"{test:<5}" + "".join(
                _cell(f"{row[name]:.3f}" if name.endswith("_ms") else f"{row[name]:,.0f}", name)
                for name in names
            )

    def _names(self) -> list[str]:
        return list(next(iter(self._rows.values()), ()))

    def _echo_exceptions(self) -> None:
        if self._misses:
            click.echo(f"{self._misses:,} requests found no document")
        for reason, times in self.refused.most_common():
            click.echo(f"{times:,} requests were refused: {reason}")


def _cell(text: str, name: str) -> str:
    """Return a cell of the table; 80 columns have room for all of them."""
    return text.rjust(_WIDTHS.get(name, _TIME_WIDTH))
