"""Nothing of a connection outlives it, although Python's cycle collector is off while a node runs.

Each test keeps its connections open over a `system.collect_young`, after which even a collection
could not free a cycle, and then looks for survivors.
"""

from __future__ import annotations

import gc
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import tcp, unix
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.web.http import HTTPChannel, Request

from interop.wire import GET, NOOP, SET, frame, store
from tests.server.certificates import make_certificate
from tests.server.support import Loop
from tests.system.support import node_here
from uprmc.kv.session import Negotiation
from uprmc.kv.text import TextSession
from uprmc.kv.upr_session import ClientSession
from uprmc.server import system
from uprmc.server.net.adapter import SessionProtocol, _Rejection
from uprmc.server.node import Node

KINDS = (
    *(Negotiation, ClientSession, TextSession, SessionProtocol, _Rejection),
    *(tcp.Server, unix.Server, TLSMemoryBIOProtocol, HTTPChannel, Request),
)
AT_A_TIME = 50


#: What earlier tests left: log events that nobody took hold their failures, and those the rest.
#: The list keeps it alive, so that it is not counted as missing when it goes.
_before: list[object] = []


def alive() -> Counter[str]:
    """Count what belongs to this test's connections, without freeing anything."""
    earlier = {id(thing) for thing in _before}
    found = [thing for thing in _listed() if id(thing) not in earlier]
    return Counter(type(thing).__name__ for thing in found)


def _listed() -> list[object]:
    gc.unfreeze()  # frozen objects are not listed
    found = [thing for thing in gc.get_objects() if isinstance(thing, KINDS)]
    gc.freeze()
    return found


@contextmanager
def quiet_node(data: Path, **changes: Any) -> Iterator[tuple[Node, Loop]]:
    """A node whose collector does nothing unless a test says so."""
    gc.collect()
    _before[:] = _listed()
    with node_here(data, **changes) as (node, loop):
        node._work.collect = lambda: None  # it would free young cycles
        yield node, loop


Talk = Callable[[Loop, str], socket.socket]


def say(data: bytes, expected: bytes) -> Talk:
    def talk(loop: Loop, address: str) -> socket.socket:
        client = loop.client(address)
        client.socket.send(data)
        if expected:
            loop.until(lambda: client.poll() or client.closed or expected in client.received)
        return client.socket

    return talk


CONVERSATIONS = [
    say(b"", b""),
    say(frame(NOOP), b"\x81\x0a"),
    say(frame(NOOP)[:7], b""),
    say(store(SET, b"k", b"v") + frame(GET, b"k"), b"v"),
    say(store(SET, b"k", b"v") + frame(GET, b"")[:10], b"\x81\x01"),
    say(frame(GET, b""), b"Invalid arguments"),
    say(frame(0x07), b"\x81\x07"),
    say(frame(NOOP) + b"\x00" * 24, b"\x81\x0a"),
    say(frame(0x08), b"\x81\x08"),
    say(frame(0x10), b"pid"),
    say(b"set t 0 0 1\r\nv\r\nget t\r\n", b"END"),
    say(b"stats\r\n", b"END"),
    say(b"quit\r\n", b""),
    say(b"set t 0 0 100\r\nhalf", b""),
]


def rounds(node: Node, loop: Loop, listener: str, count: int, talks: list[Talk]) -> None:
    """Open and close connections, keeping each a while."""
    address = node.addresses()[listener]
    for start in range(0, count, AT_A_TIME):
        numbers = range(start, start + AT_A_TIME)
        opened = [talks[number % len(talks)](loop, address) for number in numbers]
        loop.reactor.iterate(0)
        system.collect_young()
        for client in opened:
            loop._sockets.remove(client)
            client.close()
        opened.clear()
        loop.until(lambda: node.connections.current == 0)
    for _ in range(3):
        loop.reactor.iterate(0)


@pytest.mark.acceptance("D32")
def test_a_thousand_connections_leave_nothing(tmp_path: Path) -> None:
    with quiet_node(tmp_path) as (node, loop):
        rounds(node, loop, "memcached", 1_000, CONVERSATIONS)
        assert node.connections.total == 1_000
        assert alive() == Counter()


def test_connections_over_unix_sockets_leave_nothing(tmp_path: Path) -> None:
    place = f"unix:{tmp_path / 'socket'}"
    with quiet_node(tmp_path / "data", server__memcached=place) as (node, loop):
        rounds(node, loop, "memcached", 200, CONVERSATIONS)
        assert alive() == Counter()


def test_those_who_are_turned_away_leave_nothing(tmp_path: Path) -> None:
    with quiet_node(tmp_path, server__max_connections=1) as (node, loop):
        place = node.addresses()["upr"]
        first = loop.client(place)
        first.socket.send(frame(NOOP))
        first.read(24)
        for _ in range(100):
            client = loop.client(place)
            assert client.read_all().startswith(b"ERROR Too many")
            loop._sockets.remove(client.socket)
            client.socket.close()
        loop.until(lambda: sum(alive().values()) <= 3)
        assert alive() == Counter(SessionProtocol=1, DirectServer=1, ClientSession=1)


def states(node: Node) -> list[str]:
    return [info.state for info in node.connections.infos()]


def test_those_who_are_cut_off_in_mid_reply_leave_nothing(tmp_path: Path) -> None:
    with quiet_node(tmp_path) as (node, loop):
        place = node.addresses()["memcached"]
        setter = loop.client(place)
        setter.socket.send(store(SET, b"large", b"v" * 900_000))
        loop.until(lambda: setter.poll() or setter.received)
        for _ in range(20):
            client = loop.client(place, receive_buffer=4_096)
            client.socket.send(frame(GET, b"large") * 100)
            loop.until(lambda: "output-full" in states(node))
            system.collect_young()
            loop._sockets.remove(client.socket)
            client.socket.close()
            loop.until(lambda: node.connections.current == 1)
        assert alive() == Counter(SessionProtocol=1, DirectServer=1, ClientSession=1)


def test_connections_over_tls_leave_nothing(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def talk(loop: Loop, address: str, data: bytes = frame(NOOP)) -> socket.socket:
        client = loop.client(address)
        loop._sockets.remove(client.socket)
        wrapped = context.wrap_socket(client.socket, do_handshake_on_connect=False)
        loop._sockets.append(wrapped)

        def done(step: Callable[[], object]) -> Callable[[], bool]:
            def attempt() -> bool:
                try:
                    step()
                except ssl.SSLWantReadError:
                    return False
                return True

            return attempt

        loop.until(done(wrapped.do_handshake))
        wrapped.send(data)
        loop.until(done(lambda: wrapped.recv(24)))
        return wrapped

    tls = {"server__tls_cert": certificate, "server__tls_key": key}
    with quiet_node(tmp_path / "data", **tls) as (node, loop):
        rounds(node, loop, "memcached", 200, [talk, say(b"no TLS at all\r\n" * 9, b"")])
        ask = partial(talk, data=b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        visit(loop, node.addresses()["http"], [ask, say(b"GET / HTTP/1.1\r\n\r\n", b"https")])
        system.collect_young()  # a TLS connection's end is an exception in a young cycle of its own
        assert alive() == Counter()


@pytest.mark.parametrize(
    "talk",
    [
        say(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n", b"listeners"),
        say(b"GET /metrics HTTP/1.0\r\n\r\n", b"uprmc_ready"),
        say(
            b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n", b"413"
        ),
        say(b"GET /healthz HT", b""),
    ],
)
def test_probes_of_the_http_pages_leave_nothing(tmp_path: Path, talk: Talk) -> None:
    with quiet_node(tmp_path) as (node, loop):
        visit(loop, node.addresses()["http"], [talk])
        assert alive() == Counter()


def visit(loop: Loop, address: str, talks: list[Talk]) -> None:
    """Open and close connections to the pages, keeping each a while."""
    for _ in range(4):
        opened = [talks[number % len(talks)](loop, address) for number in range(25)]
        loop.reactor.iterate(0)
        system.collect_young()
        for client in opened:
            loop._sockets.remove(client)
            client.close()
        for _ in range(100):
            loop.reactor.iterate(0)
