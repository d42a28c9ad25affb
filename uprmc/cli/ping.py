"""``uprmc ping``: what answers at a place, and how fast."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence

import click

from uprmc.cli.about_node import AboutNode, about
from uprmc.cli.arguments import count_option, seconds
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import NodeConnection
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode

_COUNT_MAX = 1_000_000


@click.command()
@count_option("-c", "--count", default="4", most=_COUNT_MAX, help="How many requests.")
@click.option(
    "--every", "every_s", type=seconds(), default="0.2", show_default=True, help="Time in between."
)
@talks_to_a_node("Print one JSON object at the end.")
def ping(count: int, every_s: float, node: NodeAccess, as_json: bool) -> int:
    """Print what answers at a place, and how fast.

    The first line names the listener, versions, and TLS if it is used. If no node answers, the
    exit code is 1. Press Ctrl-C to end early.
    """
    times_s: list[float] = []
    began_s = time.perf_counter()
    with node.connected() as connection:
        connected_ms = (time.perf_counter() - began_s) * 1e3
        found, tls = about(connection), connection.tls
        if not as_json:
            click.echo(f"{_introduced(node, found, tls)}; connected in {connected_ms:.3f} ms")
        with contextlib.suppress(KeyboardInterrupt):
            for number in range(1, count + 1):
                took_s = _round_trip(connection)
                times_s.append(took_s)
                if not as_json:
                    click.echo(f"{number:>3}  {took_s * 1e3:.3f} ms")
                if number < count:
                    time.sleep(every_s)
    words = {
        "node": node.place,
        "listener": found.listener or None,
        "version": found.version,
        "uprmc_version": found.uprmc_version or None,
        "tls": tls is not None,
        "tls_version": tls[0] if tls else None,
        "tls_cipher": tls[1] if tls else None,
        "connected_ms": round(connected_ms, 3),
    }
    _sum_up(words, times_s, as_json)
    return 0


def _introduced(node: NodeAccess, found: AboutNode, tls: tuple[str, str] | None) -> str:
    server = f"memcached {found.version}"
    if found.is_ours:
        server = f"uprmc {found.uprmc_version or '(its version needs monitor)'} (as {server})"
    kind = f"the {found.listener} listener of {server}" if found.listener else server
    secured = f", {tls[0]} with {tls[1]}" if tls else ""
    user = f", logged in as {node.credentials.username}" if node.credentials else ""
    return f"{node.place} is {kind}{secured}{user}"


def _round_trip(connection: NodeConnection) -> float:
    began = time.perf_counter()
    connection.ask(RequestFrame(Opcode.NOOP))
    return time.perf_counter() - began


def _sum_up(about_it: Mapping[str, object], times_s: Sequence[float], as_json: bool) -> None:
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
        click.echo(json.dumps({**about_it, "count": len(ordered), **rounded}))
        return
    words = ", ".join(f"{name[:3]} {value:.3f}" for name, value in found.items())
    click.echo(f"{len(ordered)} answer{'s' if len(ordered) > 1 else ''}: {words} ms")
