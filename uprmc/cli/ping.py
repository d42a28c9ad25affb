"""``uprmc ping``: what answers at a place, and how fast."""

from __future__ import annotations

import contextlib
import json
import math
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import click

from uprmc.cli.arguments import count_option, seconds
from uprmc.cli.node_access import NodeAccess, talks_to_a_node
from uprmc.client.connection import LoginWanted, NodeConnection, NodeError
from uprmc.connecting import connected
from uprmc.places import WITH_TLS, Place, parsed, stranger
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode

# --- what a node tells ----------------------------------------------------------------------------


#: The first two may be asked for without a role; the others may not.
_GROUPS = ("settings", "index", "", "settings-uprmc")

#: A statistic that only a node of ours has, and that every user may see.
_OURS = "views_tls"

_ANY_PORT = 0


class AboutNode(NamedTuple):
    """What a node tells about itself."""

    version: str  # of memcached, as whose kind it presents itself
    uprmc_version: str  # its own, empty = it is another server, or the user may not know
    is_ours: bool  # whether it is a node of uprmc
    listener: str  # ``upr`` or ``memcached``, empty = not known, for example behind a proxy
    memcached: str  # where its listener for memcached's clients is, empty = nowhere, or not known


def about(connection: NodeConnection) -> AboutNode:
    """Ask a node; raises `NodeError`."""
    answer = connection.ask(RequestFrame(Opcode.VERSION))
    if answer.status:
        raise NodeError(f"the node at {connection.place} refuses VERSION: {answer.reason}")
    told: dict[str, str] = {}
    for group in _GROUPS:
        try:
            told.update(connection.statistics(group))
        except LoginWanted:
            raise
        except NodeError:  # another server, or the user may not know
            continue
    here = parsed(connection.place)
    memcached = _memcached(told, here)
    return AboutNode(
        answer.value.decode("latin-1"),
        told.get("uprmc_version", ""),
        _OURS in told,
        "memcached" if connection.place == memcached else "upr" if _is_upr(told, here) else "",
        memcached,
    )


def _memcached(told: dict[str, str], here: Place) -> str:
    port, path = told.get("tcpport", "0"), told.get("domain_socket", "NULL")
    if path != "NULL":
        return f"unix:{path}"
    if port == "0":
        return ""
    host = here.host or "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_upr(told: dict[str, str], here: Place) -> bool:
    try:
        upr = parsed(told.get("server.upr", ""), least_port=_ANY_PORT)
    except ValueError:
        return False
    return upr.path == here.path and upr.port in (_ANY_PORT, here.port)


# --- the verb -------------------------------------------------------------------------------------


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


# --- what answers instead -------------------------------------------------------------------------


#: A look takes no longer; there are three at most.
_LOOK_S = 1.0

_ANSWER_BYTES = 4_096
_QUESTION = b"GET / HTTP/1.0\r\n\r\n"

#: A node's HTTP listener answers to this which the upr listener is.
_NO_REQUEST = RequestFrame(Opcode.NOOP).encode(0)

#: Statistics of a TAP adapter begin so.
_OF_TAP_ADAPTER = "uprmc_tap_upstream"

#: Only memcached has this, which hangs up on a line of HTTP.
_OF_MEMCACHED = "libevent"


def listener_at(place: str) -> str:
    """Return what answers at a place that was asked without TLS, or that does not speak it.

    Empty = an upr listener, or it is not known.
    """
    try:
        words = stranger(place, _answer(place, None))
    except (OSError, UnicodeError, ValueError):  # nobody says anything at all
        return ""
    if words:
        return words
    with suppress(OSError, UnicodeError, ValueError):
        words = stranger(place, _answer(place, _unverified()))
        return words or f"the listener at {place} speaks TLS: {WITH_TLS}"
    with suppress(NodeError, ValueError), NodeConnection(place, _LOOK_S) as connection:
        for name, value in connection.statistics("").items():
            if name == _OF_TAP_ADAPTER:
                return (
                    f"a TAP adapter answers at {place}, which speaks no UPR: name its upstream "
                    f"{value}"
                )
            if name == _OF_MEMCACHED:
                return stranger(place, b"ERROR\r\n")
    return ""


def _answer(place: str, tls: ssl.SSLContext | None) -> bytes:
    said = b""
    for question in (_QUESTION, _NO_REQUEST):
        plain = connected(parsed(place), _LOOK_S)
        with plain if tls is None else tls.wrap_socket(plain) as found:
            said += _said(found, question)
        if not said.startswith(b"HTTP/"):
            break
    return said


def _said(found: Any, question: bytes) -> bytes:
    """Return what a listener says to a question, empty = it hangs up.

    Raises:
        TimeoutError: it says nothing.
    """
    found.sendall(question)
    said = b""
    with suppress(ConnectionError, ssl.SSLError):
        while len(said) < _ANSWER_BYTES and b"\n" not in said:
            piece = found.recv(_ANSWER_BYTES)
            if not piece:
                break
            said += piece
    return said


def _unverified() -> ssl.SSLContext:
    """Return how to look at any certificate: nothing is sent that anyone may not know."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
