"""``uprmc bench``: how many gets and sets a node answers, and how fast."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random

import click

from uprmc.cli.arguments import SIZE, Read, seconds, whole
from uprmc.cli.bench_load import GET, SET, Frames, Outcome, Plan, frames_for, passed
from uprmc.cli.bench_processes import run_all
from uprmc.cli.documents import expiry_of
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.errors import ConfigError
from uprmc.protocol.opcodes import KEY_MAX_BYTES, status_text

_NAMES = {GET: "get", SET: "set"}

_REQUESTS = 100_000
_CONNECTIONS_MAX, _DEPTH_MAX, _PROCESSES_MAX, _KEYS_MAX = 10_000, 10_000, 64, 10_000_000

#: A batch of more bytes than this is refused: each connection keeps one in memory.
_BATCH_MAX_BYTES = 64 * 1024 * 1024

#: A generator that worked for this share of the time may have been slower than the node.
_BUSY = 0.9

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
@click.option(
    "-c",
    "--connections",
    type=whole(least=1, most=_CONNECTIONS_MAX),
    default="50",
    show_default=True,
    help="How many connections.",
)
@click.option(
    "-n",
    "--requests",
    type=whole(least=1),
    help=f"How many requests in all.  [default: {_REQUESTS}, with --seconds no limit]",
)
@click.option("--seconds", "duration_s", type=seconds(0.001), help="End after this time.")
@click.option(
    "-P",
    "--pipeline",
    type=whole(least=1, most=_DEPTH_MAX),
    default="1",
    show_default=True,
    help="Requests that a connection sends before it waits for replies.",
)
@click.option(
    "--ratio",
    "sets",
    type=Read(_share, "SHARE"),
    default="0.1",
    show_default=True,
    help="Share of sets, 0 to 1; the rest are gets.",
)
@click.option(
    "--keys",
    type=whole(least=1, most=_KEYS_MAX),
    default="10000",
    show_default=True,
    help="How many different keys.",
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
@click.option(
    "--processes",
    type=whole(least=1, most=_PROCESSES_MAX),
    default="1",
    show_default=True,
    help="Processes that generate load; each uses one core.",
)
@talks_to_a_node("Print one JSON object at the end.")
def bench(
    connections: int,
    requests: int | None,
    duration_s: float | None,
    pipeline: int,
    sets: float,
    keys: int,
    size: int,
    ttl_s: float,
    prefix: str,
    fill: bool,
    cleanup: bool,
    seed: int,
    processes: int,
    node: NodeAccess,
    as_json: bool,
) -> int:
    """Measure how many gets and sets a node answers per second.

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
    with node.connected() as connection:
        frames = frames_for(connection, plan)
        writes = fill or sets > 0
        if writes:
            _say_what_is_there(connection, plan)
        if fill:
            _fill(connection, frames)
    outcome = run_all(
        node, list(_shared(plan, min(processes, connections, wanted or connections))), frames
    )
    _report(plan, outcome, as_json)
    _clean_up(node, plan, frames, wanted=cleanup, writes=writes)
    if outcome.error:
        raise NodeError(outcome.error)
    return 1 if outcome.refused else 0


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
            click.echo(
                f"uprmc: the node has {items:,} documents; only those whose keys begin with "
                f"{prefix} are written",
                err=True,
            )


def _fill(connection: NodeConnection, frames: Frames) -> None:
    refused = passed(connection, frames.stored()).refused
    if refused:
        status, times = refused.most_common(1)[0]
        raise NodeError(
            f"the node at {connection.place} refused {times:,} of {len(frames.numbers):,} "
            f"documents: {status_text(status)}"
        )


def _clean_up(node: NodeAccess, plan: Plan, frames: Frames, *, wanted: bool, writes: bool) -> None:
    if wanted:
        with node.connected() as connection:
            passed(connection, frames.deleted())
    elif writes and not plan.expiry:
        click.echo(
            f"uprmc: up to {len(frames.numbers):,} documents stay; --cleanup deletes them", err=True
        )


# --- the report ---------------------------------------------------------------------------------


def _report(plan: Plan, outcome: Outcome, as_json: bool) -> None:
    commands = {
        _NAMES[opcode]: {"count": each.count, **each.summary_ms()}
        for opcode, each in sorted(outcome.latencies.items())
        if opcode in _NAMES
    }
    done = sum(each.count for each in outcome.latencies.values())
    busy = 1 - outcome.waited_s / outcome.elapsed_s if outcome.elapsed_s else 0.0
    per_s = done / outcome.elapsed_s if outcome.elapsed_s else 0.0
    if as_json:
        found = {
            "requests": done,
            "seconds": round(outcome.elapsed_s, 6),
            "requests_per_s": round(per_s, 1),
            "connections": plan.connections,
            "pipeline": plan.depth,
            "size": len(plan.value),
            "misses": outcome.misses,
            "refused": {status_text(each): times for each, times in outcome.refused.items()},
            "generator_busy": round(busy, 3),
            "commands": {name: _rounded(each) for name, each in commands.items()},
        }
        click.echo(json.dumps(found))
    else:
        click.echo(
            f"{done:,} requests in {outcome.elapsed_s:.2f} s: {per_s:,.0f} per second"
            f" ({plan.connections} connections, pipeline {plan.depth}, {len(plan.value)} bytes)"
        )
        click.echo("\n".join(_table(commands)))
        _echo_exceptions(outcome)
    if busy >= _BUSY:
        click.echo(
            f"uprmc: the generator was busy for {busy:.0%} of the time: the node may be "
            "faster than that; use --processes if there are more cores",
            err=True,
        )


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _table(commands: dict[str, dict[str, float]]) -> Iterator[str]:
    if not commands:
        return
    names = list(next(iter(commands.values())))
    heads = [name.replace("p99_9", "p99.9").replace("_", " ") for name in names]
    yield "     " + "".join(f"{head:>12}" for head in heads)
    for command, values in commands.items():
        cells = (
            f"{values[name]:>12,}" if name == "count" else f"{values[name]:>12.3f}"
            for name in names
        )
        yield f"{command:<5}" + "".join(cells)


def _echo_exceptions(outcome: Outcome) -> None:
    if outcome.misses:
        click.echo(f"{outcome.misses:,} gets found no document")
    for status, times in outcome.refused.most_common():
        click.echo(f"{times:,} requests were refused: {status_text(status)}")
