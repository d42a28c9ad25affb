"""``uprmc bench``: how many requests a node answers, and how fast. The load: `bench_load`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random

import click

from uprmc.cli.arguments import NAMES, SIZE, Read, count_option, seconds, whole
from uprmc.cli.bench_load import (
    DEL,
    GET,
    INCR,
    PING,
    TESTS,
    TOUCH,
    BenchOutcome,
    Frames,
    Plan,
    frames_for,
    passed,
    run_all,
)
from uprmc.cli.documents import expiry_of
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.errors import ConfigError
from uprmc.protocol.opcodes import KEY_MAX_BYTES
from uprmc.units import nearest

# --- the report -----------------------------------------------------------------------------------


#: How to tell it; else it is a table.
FORMS = ("json", "csv", "quiet")

#: A generator that worked for this share of the time may have been slower than the node.
_BUSY = 0.9

_WIDTHS = {"count": 11, "per_s": 10}
_TIME_WIDTH = 9

_Row = dict[str, float]


class BenchReport:
    """Adds runs up, and tells of them.

    Args:
        plan: what each run is made of.
        form: one of `FORMS`, or empty.
    """

    def __init__(self, plan: Plan, form: str) -> None:
        self.error = ""  # why the last run ended early, empty = it did not
        self.refused: Counter[str] = Counter()  # how often the node refused, by its reason
        self._plan, self._form = plan, form
        self._rows: dict[str, _Row] = {}
        self._misses = self._done = 0
        self._elapsed_s = self._waited_s = 0.0

    def add(self, outcome: BenchOutcome) -> None:
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


# --- the verb -------------------------------------------------------------------------------------


_REQUESTS = 100_000
_CONNECTIONS_MAX, _DEPTH_MAX, _PROCESSES_MAX, _KEYS_MAX = 10_000, 10_000, 64, 10_000_000

#: A batch of more bytes than this is refused: each connection keeps one in memory.
_BATCH_MAX_BYTES = 64 * 1024 * 1024

#: Commands that find something only if documents are there.
_NEED_DOCUMENTS = {GET, TOUCH, DEL}

#: Digits of a key's number.
_NUMBER_BYTES = 10


def _share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise ValueError("a share such as 0, 0.1 or 1")
    return found


@click.command()
@count_option(
    "-c",
    "--connections",
    "--clients",
    default="50",
    most=_CONNECTIONS_MAX,
    help="How many connections.",
)
@count_option(
    "-n",
    "--requests",
    help=f"How many requests in all.  [default: {_REQUESTS}, with --seconds no limit]",
)
@click.option("--seconds", "duration_s", type=seconds(0.001), help="End after this time.")
@count_option(
    "-P",
    "--pipeline",
    default="1",
    most=_DEPTH_MAX,
    help="Requests that a connection sends before it waits for replies.",
)
@click.option(
    "-t",
    "--tests",
    type=NAMES,
    help=f"Measure these commands, one after the other: {', '.join(TESTS)}.  "
    "[default: a mixture of gets and sets]",
)
@click.option(
    "--ratio",
    "sets",
    type=Read(_share, "SHARE"),
    default="0.1",
    show_default=True,
    help="Share of sets in the mixture, 0 to 1; the rest are gets.",
)
@count_option(
    "-r",
    "--keys",
    default="10000",
    most=_KEYS_MAX,
    help="How many different keys; they are chosen at random.",
)
@click.option(
    "-d", "--size", type=SIZE, default="100", show_default=True, help="Bytes of each value."
)
@click.option("--ttl", "ttl_s", type=seconds(), default="0", help="Documents expire after this.")
@click.option(
    "--prefix", default="uprmc-bench:", show_default=True, help="What all keys begin with."
)
@click.option(
    "--fill/--no-fill", default=True, help="First store each key once.  [default: --fill]"
)
@click.option("--cleanup", is_flag=True, help="Delete the documents at the end.")
@click.option("--seed", type=whole(), default="1", help="Choose keys and commands by this number.")
@count_option(
    "--processes",
    default="1",
    most=_PROCESSES_MAX,
    help="Processes that generate load; each uses one core.",
)
@click.option(
    "--text", is_flag=True, help="Use the text protocol, and the node's memcached listener."
)
@click.option("-q", "--quiet", is_flag=True, help="Print one short line for each command.")
@click.option("--csv", is_flag=True, help="Print a line of CSV for each command.")
@talks_to_a_node("Print one JSON object at the end.")
def bench(
    connections: int,
    requests: int | None,
    duration_s: float | None,
    pipeline: int,
    tests: list[str] | None,
    sets: float,
    keys: int,
    size: int,
    ttl_s: float,
    prefix: str,
    fill: bool,
    cleanup: bool,
    seed: int,
    processes: int,
    text: bool,
    quiet: bool,
    csv: bool,
    node: NodeAccess,
    as_json: bool,
) -> int:
    """Measure how many requests a node answers per second.

    It writes documents whose keys begin with --prefix, and leaves them there unless you say
    --cleanup. All other documents stay as they are. Press Ctrl-C to end early.
    """
    wanted = requests or (0 if duration_s else _REQUESTS)
    plan = Plan(
        connections,
        pipeline,
        wanted,
        duration_s or 0.0,
        sets,
        _prefix(prefix),
        keys,
        Random(seed).randbytes(_size(size, pipeline)),
        expiry_of(ttl_s),
        seed,
    )
    named = _tests(tests)
    report = BenchReport(plan, _form(json=as_json, csv=csv, quiet=quiet))
    fill = fill and (not named or not _NEED_DOCUMENTS.isdisjoint(named))
    writes = fill or (bool({*named} - {GET, PING}) if named else sets > 0)
    with node.connected() as connection:
        frames = frames_for(connection, plan, text=text)
        if writes:
            _say_what_is_there(connection, plan)
    if fill:
        _fill(node, frames)
    count = min(processes, connections, wanted or connections)
    for test in named or [""]:
        outcome = run_all(node, list(_shared(replace(plan, test=test), count)), frames)
        report.add(outcome)
        if outcome.error or outcome.interrupted:
            break
    report.end()
    if cleanup:
        passed(node, frames, frames.deleted(counters=INCR in named))
    elif writes and not plan.expiry:
        _say_what_stays(len(frames.numbers) * (2 if INCR in named else 1))
    if report.error:
        raise NodeError(report.error)
    return 1 if report.refused else 0


def _tests(names: list[str] | None) -> list[str]:
    for name in names or ():
        if name not in TESTS:
            meant = nearest(name, list(TESTS))
            hint = f"did you mean {meant}?" if meant else f"say some of {', '.join(TESTS)}"
            raise ConfigError(f"--tests {name}: there is no such test: {hint}")
    return list(dict.fromkeys(names or ()))


def _form(**given: bool) -> str:
    wanted = [form for form in FORMS if given.get(form)]
    if len(wanted) > 1:
        raise ConfigError(f"{' and '.join(f'--{form}' for form in wanted)} exclude each other")
    return wanted[0] if wanted else ""


def _prefix(text: str) -> bytes:
    found, most = os.fsencode(text), KEY_MAX_BYTES - _NUMBER_BYTES
    if not 1 <= len(found) <= most:
        raise ConfigError(f"--prefix has 1 to {most} bytes, this one {len(found)}")
    return found


def _size(size: int, depth: int) -> int:
    if size * depth > _BATCH_MAX_BYTES:
        raise ConfigError(
            f"--pipeline {depth} of --size {size} is more than {_BATCH_MAX_BYTES >> 20} MiB "
            "for each connection: choose less of either"
        )
    return size


def _shared(plan: Plan, processes: int) -> Iterator[Plan]:
    """Yield what each process does of a plan."""
    for number in range(processes):
        yield replace(
            plan,
            connections=_part(plan.connections, processes, number),
            requests=_part(plan.requests, processes, number),
            seed=plan.seed + number,
        )


def _part(total: int, parts: int, number: int) -> int:
    return total // parts + (number < total % parts)


def _say_what_is_there(connection: NodeConnection, plan: Plan) -> None:
    """Warn of a node that is in use; not all users may ask for its statistics."""
    with suppress(NodeError, ValueError):
        items = int(connection.statistics("").get("curr_items", 0))
        if items:
            prefix = plan.prefix.decode("utf-8", "backslashreplace")
            some = f"{items:,} document{'s' if items > 1 else ''}"
            click.echo(
                f"uprmc: the node has {some}; only those whose keys begin with {prefix} are "
                "written",
                err=True,
            )


def _fill(node: NodeAccess, frames: Frames) -> None:
    refused = passed(node, frames, frames.stored()).refused
    if refused:
        reason, times = refused.most_common(1)[0]
        raise NodeError(
            f"the node at {node.place} refused {times:,} of {len(frames.numbers):,} "
            f"documents: {reason}"
        )


def _say_what_stays(number: int) -> None:
    click.echo(
        f"uprmc: up to {number:,} documents stay; --cleanup deletes them",
        err=True,
    )
