"""Listener settings: what is understood, what is refused and how, what is bound in the end."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from tests.server.certificates import make_certificate
from tests.server.support import EchoSession, FloodSession, Loop, Node, pattern
from uprmc.errors import ConfigError, UprmcError
from uprmc.places import Place
from uprmc.server.net.listener import (
    CannotListen,
    EndpointPlace,
    Listener,
    UnixPlace,
    parse_place,
    several,
    who_has_path,
    who_has_port,
)
from uprmc.server.net.listener import listen as listen_for
from uprmc.server.net.transport import DirectServer


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:11211", Place("127.0.0.1", 11211)),
        ("0.0.0.0:0", Place("0.0.0.0", 0)),
        ("localhost:65535", Place("localhost", 65535)),
        ("cache-1.example:80", Place("cache-1.example", 80)),
        ("[::1]:11211", Place("::1", 11211)),
        ("[fe80::1%eth0]:1", Place("fe80::1%eth0", 1)),
        ("unix:/run/uprmc.sock", UnixPlace("/run/uprmc.sock")),
        ("unix:relative:mode=660", UnixPlace("relative", 0o660)),
        ("unix:/a\\:b:backlog=7:mode=0777", UnixPlace("/a:b", 0o777, 7)),
        ("tcp:0:interface=127.0.0.1", EndpointPlace("tcp:0:interface=127.0.0.1")),
        ("tcp6:0", EndpointPlace("tcp6:0")),
        ("systemd:domain=INET:index=0", EndpointPlace("systemd:domain=INET:index=0")),
        ("onion:80:privateKey=x", EndpointPlace("onion:80:privateKey=x")),
    ],
)
def test_places_are_told_apart(text: str, place: object) -> None:
    assert parse_place(text, "server.upr") == place


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (":11211", "names no address: say 127.0.0.1:11211, or 0.0.0.0 for all"),
        ("*:11211", "names no address"),
        ("[]:11211", "names no address"),
        ("tcp:11211", "names no address: add interface=ADDRESS"),
        ("ssl:11211:privateKey=k", "names no address: add interface=ADDRESS"),
        ("127.0.0.1:65536", "is no listener"),
        ("", "is no listener: say HOST:PORT"),
        ("11211", "is no listener"),
        ("127.0.0.1", "is no listener"),
        ("127.0.0.1:", "is no listener"),
        ("127.0.0.1:x", "is no listener"),
        ("127.0.0.1:-1", "is no listener"),
        ("::1:11211", "is no listener"),
        ("/run/socket", "is no listener"),
        ("unix:", "is no listener: say unix:/path, or unix:/path:mode=660"),
        ("unix:/x:lockfile=0", "is no listener: say unix:/path"),
        ("unix:/x:mode=888", "'888' are no permissions in octal"),
        ("unix:/x:mode", "'' are no permissions in octal"),
        ("unix:/x:backlog=many", "is no listener"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason_and_the_name(
    text: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_place(text, "server.upr")
    message = str(caught.value)
    assert message.startswith("server.upr: ")
    assert reason in message
    assert "\n" not in message


class Served:
    """A node of echo sessions listening in a loop."""

    def __init__(self, loop: Loop, text: str, node: Node | None = None) -> None:
        self.loop = loop
        self.node = node or Node(EchoSession)
        self.listener: Listener = loop.result(open_at(loop, text, self.node))

    def stop(self) -> None:
        self.loop.result(self.listener.stop())


def open_at(loop: Loop, text: str, node: Node):
    return listen_for(loop.reactor, text, node.factory, setting="server.upr", backlog=5)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_port_0_picks_a_free_port_and_says_which(loop: Loop, host: str) -> None:
    try:
        served = Served(loop, f"{host}:0")
    except CannotListen:
        pytest.skip(f"this machine has no {host}")
    assert served.listener.address.startswith(f"{host}:")
    assert not served.listener.address.endswith(":0")
    client = loop.client(served.listener.address)
    client.socket.send(b"hello")
    assert client.read(5) == b"hello"
    served.stop()


def test_a_name_is_looked_up(loop: Loop) -> None:
    served = Served(loop, "localhost:0")
    assert served.listener.address.startswith("127.0.0.1:")
    served.stop()


def test_connections_of_a_host_and_port_send_directly(loop: Loop) -> None:
    for text in ("127.0.0.1:0", "tcp:0:interface=127.0.0.1"):
        served = Served(loop, text)
        loop.client(served.listener.address)
        loop.until(lambda served=served: served.node.connections.current)
        (protocol,) = served.node.connections
        assert type(protocol.transport) is DirectServer
        served.stop()


def test_a_unix_socket_serves_and_is_gone_after_stop(loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    served = Served(loop, f"unix:{path}")
    assert served.listener.address == f"unix:{path}"
    client = loop.client(served.listener.address)
    client.socket.send(b"hello")
    assert client.read(5) == b"hello"
    assert [info.peer for info in served.node.connections.infos()] == ["unix"]
    served.stop()
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:1", ["127.0.0.1:1"]),
        ("127.0.0.1:1, [::1]:1,127.0.0.1:1", ["127.0.0.1:1", "[::1]:1"]),
        ("unix:/a,b", ["unix:/a,b"]),
        ("tcp:1:interface=h,x", ["tcp:1:interface=h,x"]),
    ],
)
def test_a_setting_may_name_several_addresses(text: str, found: list[str]) -> None:
    assert several(text) == found


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_all_addresses_of_both_families_share_a_port(loop: Loop) -> None:
    first = Served(loop, "0.0.0.0:0")
    port = first.listener.address.rpartition(":")[2]
    both = f"[::]:{port}"
    assert "Address already in use" in refusal(loop, both)
    node = Node(EchoSession)
    second = loop.result(
        listen_for(loop.reactor, both, node.factory, setting="server.upr", backlog=5, alone=False)
    )
    assert second.address == both
    first.stop()
    loop.result(second.stop())


@pytest.mark.parametrize(("more", "mode"), [("", 0o700), (":mode=660", 0o660)])
def test_a_unix_socket_is_for_its_user_unless_it_says_otherwise(
    loop: Loop, tmp_path: Path, more: str, mode: int
) -> None:
    path = tmp_path / "socket"
    served = Served(loop, f"unix:{path}{more}")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    served.stop()
    assert list(tmp_path.iterdir()) == []


def left_by_a_killed_node(path: Path) -> None:
    """Leave a socket at which nobody listens."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()


@pytest.mark.parametrize("lock", ["", "file", "link", "dangling"])
def test_a_socket_that_was_left_behind_is_taken_whoever_its_lock_names(
    loop: Loop, tmp_path: Path, lock: str
) -> None:
    path = tmp_path / "socket"
    left_by_a_killed_node(path)
    beside = tmp_path / "socket.lock"
    if lock == "file":
        beside.write_text(f"{os.getpid()}\n")
    elif lock:
        beside.symlink_to(str(os.getpid() if lock == "link" else 2**22))
    served = Served(loop, f"unix:{path}")
    client = loop.client(served.listener.address)
    client.socket.send(b"hello")
    assert client.read(5) == b"hello"
    served.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_unix_socket_in_use_is_left_alone(loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    served = Served(loop, f"unix:{path}")
    before = path.stat().st_ino
    assert "Address already in use" in refusal(loop, f"unix:{path}")
    assert path.stat().st_ino == before
    client = loop.client(served.listener.address)
    client.socket.send(b"hello")
    assert client.read(5) == b"hello"
    served.stop()


def test_a_stranger_at_a_unix_socket_is_told_by_its_answer(loop: Loop, tmp_path: Path) -> None:
    """It knows nothing of our lock."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        said = refusal(loop, f"unix:{path}")
        assert f"(pid {os.getpid()}); say --upr with another path" in said
        assert path.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["socket"]


def test_what_is_no_socket_is_not_removed(loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    assert "Address already in use" in refusal(loop, f"unix:{path}")
    assert path.read_text() == "precious"


def test_who_stops_removes_no_socket_of_another_one(loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    served = Served(loop, f"unix:{path}")
    path.unlink()
    left_by_a_killed_node(path)
    served.stop()
    assert path.exists()


def test_an_ssl_endpoint_serves(loop: Loop, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    served = Served(loop, f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={cert}")
    assert served.listener.address.startswith("127.0.0.1:")
    served.stop()


def refusal(loop: Loop, text: str) -> str:
    with pytest.raises(UprmcError) as caught:
        loop.result(open_at(loop, text, Node(EchoSession)))
    assert isinstance(caught.value, ConfigError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_address_in_use_is_one_clear_line(loop: Loop) -> None:
    first = Served(loop, "127.0.0.1:0")
    taken = first.listener.address
    said = refusal(loop, taken)
    assert said.startswith(f"server.upr: cannot listen on {taken}: Address already in use by ")
    assert said.endswith(f" (pid {os.getpid()}); say --upr with another port")
    endpoint = f"tcp:{taken.partition(':')[2]}:interface=127.0.0.1"
    assert refusal(loop, endpoint).endswith("in use; say --upr with another address")
    first.stop()


@pytest.mark.parametrize(
    ("family", "bound", "asked"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "127.0.0.1", "0.0.0.0"),
        (socket.AF_INET, "0.0.0.0", "127.0.0.1"),
        (socket.AF_INET, "127.0.0.1", "localhost"),
        (socket.AF_INET6, "::1", "::1"),
    ],
)
def test_who_has_a_port_is_known(family: int, bound: str, asked: str) -> None:
    with socket.socket(family) as taken:
        taken.bind((bound, 0))
        port = taken.getsockname()[1]
        assert who_has_port(asked, port) == "", "it does not listen"
        taken.listen()
        assert f"(pid {os.getpid()})" in who_has_port(asked, port)
    assert who_has_port(asked, port) == ""


def test_who_has_a_unix_socket_is_known(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(path)
        taken.listen()
        assert f"(pid {os.getpid()})" in who_has_path(path)
    assert who_has_path(path) == ""


def test_what_the_system_does_not_tell_is_said_to_be_unknown(tmp_path: Path) -> None:
    assert who_has_port("127.0.0.1", 1, tmp_path) == ""
    (tmp_path / "net").mkdir()
    row = "0: 0100007F:0001 00000000:0000 0A 0:0 0:0 0 0 0 4242"
    (tmp_path / "net" / "tcp").write_text(f"head\n{row}\n")
    assert who_has_port("127.0.0.1", 1, tmp_path) == "a process of another user"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("192.0.2.1:0", "Cannot assign requested address"),
        ("no-such-host.invalid:0", "cannot listen on no-such-host.invalid:0: "),
        ("x" * 70 + ".example:0", "cannot listen on"),
        ("unix:/no/such/directory/socket", "cannot listen on unix:/no/such/directory/socket: "),
        ("ssl:0:interface=127.0.0.1:privateKey=/no/key", "is no usable endpoint: "),
        ("nonsense:a=b", "is no usable endpoint: "),
        ("tcp:port=x:interface=127.0.0.1", "is no usable endpoint: "),
        (":1", "names no address"),
    ],
)
def test_what_cannot_be_bound_is_one_clear_line(loop: Loop, text: str, reason: str) -> None:
    assert reason in refusal(loop, text)


def test_a_stopped_listener_frees_its_address_and_keeps_its_connections(loop: Loop) -> None:
    served = Served(loop, "127.0.0.1:0")
    client = loop.client(served.listener.address)
    loop.until(lambda: served.node.connections.current)
    served.stop()
    again = Served(loop, served.listener.address)
    client.socket.send(b"still here")
    assert client.read(10) == b"still here"
    again.stop()


# --- the whole way through real sockets -----------------------------------------------------------


def test_one_past_the_limit_reads_why_and_is_closed(loop: Loop) -> None:
    served = Served(loop, "127.0.0.1:0", Node(EchoSession, limit=1))
    first = loop.client(served.listener.address)
    loop.until(lambda: served.node.connections.current == 1)
    second = loop.client(served.listener.address)
    assert second.read_all() == b"ERROR Too many open connections\r\n"
    first.socket.close()
    loop.until(lambda: served.node.connections.current == 0)
    third = loop.client(served.listener.address)
    third.socket.send(b"in")
    assert third.read(2) == b"in"
    served.stop()


def test_a_peer_that_never_reads_holds_back_a_flood_and_gets_all_once_it_reads(loop: Loop) -> None:
    total = 20_000_000
    node = Node(lambda wake: FloodSession(wake, total))
    served = Served(loop, "127.0.0.1:0", node)
    client = loop.client(served.listener.address, receive_buffer=4_096)
    client.socket.send(b"go")
    loop.until(lambda: node.turn() or node.states() == ["output-full"])
    assert node.connections.bytes_written < total / 2
    loop.until(lambda: client.poll() or node.turn() or len(client.received) == total)
    assert client.received == pattern(0, total)
    served.stop()


def test_a_client_that_closes_its_half_gets_the_whole_answer(loop: Loop) -> None:
    total = 5_000_000
    node = Node(lambda wake: FloodSession(wake, total))
    served = Served(loop, "127.0.0.1:0", node)
    client = loop.client(served.listener.address, receive_buffer=4_096)
    client.socket.send(b"go")
    client.socket.shutdown(socket.SHUT_WR)
    loop.until(lambda: client.poll() or node.turn() or client.closed)
    assert client.received == pattern(0, total)
    loop.until(lambda: node.connections.current == 0)
    served.stop()


def test_quit_closes_after_the_answer(loop: Loop) -> None:
    served = Served(loop, "127.0.0.1:0")
    client = loop.client(served.listener.address)
    client.socket.send(b"bye quit")
    assert client.read_all() == b"bye quit"
    loop.until(lambda: served.node.connections.current == 0)
    served.stop()


def test_a_reset_connection_is_forgotten(loop: Loop) -> None:
    served = Served(loop, "127.0.0.1:0")
    client = loop.client(served.listener.address)
    loop.until(lambda: served.node.connections.current == 1)
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.socket.close()
    loop.until(lambda: served.node.connections.current == 0)
    assert served.node.connections.session_errors == 0
    served.stop()
