"""``uprmc ping``: whether a node answers, and how fast."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Sequence

import click

from uprmc.cli.arguments import seconds, whole
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeConnection, NodeError
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode

_COUNT_MAX = 1_000_000


@click.command()
@click.option(
    "-c",
    "--count",
    type=whole(least=1, most=_COUNT_MAX),
    default="4",
    show_default=True,
    help="How many requests.",
)
@click.option(
    "--every", "every_s", type=seconds(), default="0.2", show_default=True, help="Time in between."
)
@talks_to_a_node("Print one JSON object at the end.")
def ping(count: int, every_s: float, node: NodeAccess, as_json: bool) -> int:
    """Measure how fast a node answers.

    The exit code is 1 if it does not. Press Ctrl-C to end early.
    """
    times_s: list[float] = []
    with node.connected() as connection:
        version = _version(connection)
        with contextlib.suppress(KeyboardInterrupt):
            for number in range(1, count + 1):
                took_s = _round_trip(connection)
                times_s.append(took_s)
                if not as_json:
                    click.echo(f"{node.place}  {number}  {took_s * 1e3:.3f} ms")
                if number < count:
                    time.sleep(every_s)
    _sum_up(node, version, times_s, as_json)
    return 0


def _version(connection: NodeConnection) -> str:
    answer = connection.ask(RequestFrame(Opcode.VERSION))
    if answer.status:
        raise NodeError(f"the node at {connection.place} refuses VERSION: {answer.reason}")
    return answer.value.decode("latin-1")


def _round_trip(connection: NodeConnection) -> float:
    began = time.perf_counter()
    connection.ask(RequestFrame(Opcode.NOOP))
    return time.perf_counter() - began


def _sum_up(node: NodeAccess, version: str, times_s: Sequence[float], as_json: bool) -> None:
    if not times_s:
        return
    ordered = sorted(times_s)
    found = {
        "min_ms": ordered[0] * 1e3,
        "avg_ms": sum(ordered) / len(ordered) * 1e3,
        "p99_ms": ordered[math.ceil(len(ordered) * 0.99) - 1] * 1e3,
        "max_ms": ordered[-1] * 1e3,
    }
    if as_json:
        rounded = {name: round(value, 3) for name, value in found.items()}
        about = {"node": node.place, "version": version, "tls": node.tls is not None}
        click.echo(json.dumps({**about, "count": len(ordered), **rounded}))
        return
    words = ", ".join(f"{name[:3]} {value:.3f}" for name, value in found.items())
    click.echo(f"{len(ordered)} answers of {version}{', TLS' if node.tls else ''}: {words} ms")
