"""``uprmc bench``: how many requests a node answers, and how fast."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random

import click

from uprmc.cli.arguments import NAMES, SIZE, Read, count_option, seconds, whole
from uprmc.cli.bench_load import Frames, Plan, frames_for, passed
from uprmc.cli.bench_processes import run_all
from uprmc.cli.bench_report import FORMS, Report
from uprmc.cli.bench_wire import DEL, GET, INCR, PING, TESTS, TOUCH
from uprmc.cli.documents import expiry_of
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.errors import ConfigError
from uprmc.protocol.opcodes import KEY_MAX_BYTES
from uprmc.units import nearest

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
    report = Report(plan, _form(json=as_json, csv=csv, quiet=quiet))
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
        items = int(dict(connection.statistics("")).get("curr_items", 0))
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
