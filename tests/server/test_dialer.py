"""Connections that a node opens, on loopback: what goes well, and what is said of what does not."""

from __future__ import annotations

import datetime
import gc
import ipaddress
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from twisted.internet import tcp

from tests.server.certificates import make_certificate
from tests.server.support import EchoSession, Loop
from uprmc.config import ServerSettings, UprSettings
from uprmc.errors import ConfigError
from uprmc.ports import Session
from uprmc.server.net.adapter import SessionFactory
from uprmc.server.net.connections import Connections
from uprmc.server.net.dialer import Call, Dialer, DialledProtocol, trust_root
from uprmc.server.net.listener import Listener, listen, tls_options
from uprmc.server.work.turns import WakeList


def certificate_for(directory: Path, host: str) -> tuple[str, str]:
    """Write a self-signed certificate that names a host, and its key; return the two paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(directory)[-60:])])
    now = datetime.datetime.now(datetime.UTC)
    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    paths = directory / f"{host}.crt", directory / f"{host}.key"
    paths[0].write_bytes(made.public_bytes(pem))
    paths[1].write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(paths[0]), str(paths[1])


class SpeakingSession(EchoSession):
    """Speaks first, as a link does."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__(wake)
        self.out.append(b"hello")
        self.received: list[bytes] = []

    def receive_data(self, data: bytes) -> None:
        self.received.append(data)


class World:
    """A dialler, and what became of each of its calls."""

    def __init__(self, loop: Loop, ca: str = "", timeout_s: float = 5.0) -> None:
        self.loop = loop
        self.connections = Connections(10, loop.reactor.seconds)
        self.wake_list = WakeList(loop.reactor)
        trust = trust_root(UprSettings(dial_ca=ca))
        self.dialer = Dialer(loop.reactor, self.connections, self.wake_list, timeout_s, trust)
        self.sessions: list[SpeakingSession] = []
        self.failures: list[str] = []

    def dial(self, place: str) -> Call:
        return self.dialer(place, self._make, self.failures.append)

    def _make(self, wake: Callable[[], None]) -> Session:
        self.sessions.append(SpeakingSession(wake))
        return self.sessions[-1]

    def failure(self, place: str) -> str:
        """Dial and return what is said of it."""
        self.dial(place)
        self.loop.until(lambda: self.failures)
        self.loop.until(lambda: self.connections.current == 0)
        assert len(self.failures) == 1
        return self.failures[0]


@pytest.fixture
def world(loop: Loop) -> World:
    return World(loop)


def listener(loop: Loop, tls: tuple[str, str] | None = None, host: str = "127.0.0.1") -> Listener:
    """Accept connections for echo sessions."""
    connections = Connections(10, loop.reactor.seconds)
    factory = SessionFactory(
        lambda peer, wake: EchoSession(wake), connections, WakeList(loop.reactor), "upr"
    )
    options = tls_options(ServerSettings(tls_cert=tls[0], tls_key=tls[1])) if tls else None
    opened = listen(
        loop.reactor, f"{host}:0", factory, setting="server.upr", backlog=10, tls=options
    )
    return loop.result(opened)


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """A listener that accepts, and never reads."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def place_of(made: socket.socket) -> str:
    return f"127.0.0.1:{made.getsockname()[1]}"


# --- what goes well -----------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_session_speaks_first_and_hears_the_answer(world: World, loop: Loop, host: str) -> None:
    there = listener(loop, host=host)
    world.dial(there.address)
    loop.until(lambda: world.sessions and world.sessions[0].received)
    assert world.sessions[0].received == [b"hello"]
    (info,) = world.connections.infos()
    assert (info.peer, info.listener, info.state) == (there.address, "replication", "open")
    loop.result(there.stop())


def test_a_connection_is_told_the_time_like_any_other(world: World, loop: Loop) -> None:
    there = listener(loop)
    world.dial(there.address)
    loop.until(lambda: world.sessions)
    world.connections.tick()
    assert len(world.sessions[0].ticks) == 1
    loop.result(there.stop())


def test_one_that_is_abandoned_sends_what_it_has_and_tells_nothing(
    world: World, deaf: socket.socket, loop: Loop
) -> None:
    call = world.dial(place_of(deaf))
    loop.until(lambda: world.sessions)
    accepted, _ = deaf.accept()
    with accepted:
        accepted.sendall(b"x")
        loop.until(lambda: world.sessions[0].received)
        call.abandon()
        loop.until(lambda: world.sessions[0].lost)
        assert accepted.recv(100) == b"hello"
        assert accepted.recv(100) == b""
    assert world.failures == []


def test_one_that_is_abandoned_before_it_is_connected_never_gets_a_session(
    world: World, deaf: socket.socket, loop: Loop
) -> None:
    world.dial(place_of(deaf)).abandon()
    later = world.dial(place_of(deaf))
    loop.until(lambda: later._connector is not None)
    later.abandon()
    for _ in range(20):
        loop.reactor.iterate(0.001)
    assert (world.sessions, world.failures) == ([], [])
    assert world.connections.total == 0


# --- what goes wrong ----------------------------------------------------------------------------


def test_a_port_where_nobody_listens(world: World, deaf: socket.socket) -> None:
    place = place_of(deaf)
    deaf.close()
    assert world.failure(place).startswith("connection refused: is the node running")
    assert world.sessions == []


def test_a_host_that_does_not_answer(loop: Loop, unanswering: str) -> None:
    world = World(loop, timeout_s=0.05)
    assert world.failure(unanswering) == "no answer for 0.05 s: host down, or port blocked?"


def test_a_name_that_nobody_knows(world: World, loop: Loop) -> None:
    class Resolver:
        def resolveHostName(self, receiver: Any, name: str, port: int) -> None:  # noqa: N802
            assert (name, port) == ("nowhere.example", 11210)
            receiver.resolutionBegan(self)
            receiver.resolutionComplete()

    loop.reactor.installNameResolver(Resolver())
    assert world.failure("nowhere.example:11210") == "host nowhere.example is not known"


def test_the_addresses_of_a_name_are_tried_one_after_the_other(
    world: World, loop: Loop, deaf: socket.socket
) -> None:
    there = listener(loop)
    port = int(there.address.rpartition(":")[2])

    class Address:
        def __init__(self, host: str) -> None:
            self.host = host

    class Resolver:
        def resolveHostName(self, receiver: Any, name: str, port: int) -> None:  # noqa: N802
            receiver.resolutionBegan(self)
            for host in ("::1", "127.0.0.1"):
                receiver.addressResolved(Address(host))
            receiver.resolutionComplete()

    loop.reactor.installNameResolver(Resolver())
    world.dial(f"node.example:{port}")
    loop.until(lambda: world.sessions and world.sessions[0].received)
    assert world.failures == []
    loop.result(there.stop())


def test_one_that_hangs_up_without_a_word(world: World, loop: Loop, deaf: socket.socket) -> None:
    world.dial(place_of(deaf))
    loop.until(lambda: world.sessions)
    accepted, _ = deaf.accept()
    accepted.close()
    loop.until(lambda: world.failures)
    assert world.failures[0].startswith("it hung up without an answer")
    assert world.sessions[0].lost == 1


def test_one_that_hangs_up_later(world: World, loop: Loop, deaf: socket.socket) -> None:
    world.dial(place_of(deaf))
    loop.until(lambda: world.sessions)
    accepted, _ = deaf.accept()
    loop.until(lambda: select.select([accepted], [], [], 0)[0])
    assert accepted.recv(100) == b"hello"
    accepted.sendall(b"x")
    loop.until(lambda: world.sessions[0].received)
    accepted.close()
    loop.until(lambda: world.failures)
    assert world.failures == ["it closed the connection"]


def test_a_session_that_has_had_enough_says_itself_why(
    world: World, loop: Loop, deaf: socket.socket
) -> None:
    world.dial(place_of(deaf))
    loop.until(lambda: world.sessions)
    world.sessions[0].closing = True
    world.sessions[0].wake()
    loop.until(lambda: world.sessions[0].lost)
    assert world.failures == []


# --- TLS ----------------------------------------------------------------------------------------


def test_over_tls_with_the_right_certificate(loop: Loop, tmp_path: Path) -> None:
    pair = certificate_for(tmp_path, "127.0.0.1")
    there = listener(loop, pair)
    world = World(loop, pair[0])
    world.dial(there.address)
    loop.until(lambda: world.sessions and world.sessions[0].received)
    assert world.failures == []
    loop.result(there.stop())


def test_a_session_that_is_woken_during_the_handshake_hears_the_answer(
    loop: Loop, tmp_path: Path
) -> None:
    pair = certificate_for(tmp_path, "127.0.0.1")
    there = listener(loop, pair)
    world = World(loop, pair[0])
    world.dial(there.address)
    loop.until(lambda: world.sessions)

    def hears() -> bool:
        world.sessions[0].wake()
        return bool(world.sessions[0].received)

    loop.until(hears)
    assert world.sessions[0].received == [b"hello"]
    loop.result(there.stop())


def test_a_certificate_of_another_authority(loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = certificate_for(tmp_path / "other", "127.0.0.1")
    there = listener(loop, certificate_for(tmp_path, "127.0.0.1"))
    world = World(loop, other[0])
    assert world.failure(there.address).startswith(
        "its certificate is not certified by upr.dial_ca"
    )
    loop.result(there.stop())


def test_a_certificate_of_another_host(loop: Loop, tmp_path: Path) -> None:
    pair = certificate_for(tmp_path, "10.9.8.7")
    there = listener(loop, pair)
    world = World(loop, pair[0])
    assert world.failure(there.address).startswith("its certificate is not for 127.0.0.1")
    loop.result(there.stop())


def test_a_plain_listener_dialled_with_tls(loop: Loop, tmp_path: Path, deaf: socket.socket) -> None:
    world = World(loop, certificate_for(tmp_path, "127.0.0.1")[0])
    world.dial(place_of(deaf))
    loop.until(lambda: world.connections.current)
    accepted, _ = deaf.accept()
    with accepted:
        accepted.sendall(b"ERROR\r\n")
        loop.until(lambda: world.failures)
    assert world.failures[0].startswith("it does not speak TLS: leave upr.dial_ca out")


def test_a_tls_listener_dialled_without(world: World, loop: Loop, tmp_path: Path) -> None:
    there = listener(loop, certificate_for(tmp_path, "127.0.0.1"))
    why = world.failure(there.address)
    assert "TLS" in why
    assert "upr.dial_ca" in why
    loop.result(there.stop())


def test_a_complaint_of_tls_is_understood_and_not_given_to_the_session(
    world: World, loop: Loop, deaf: socket.socket
) -> None:
    world.dial(place_of(deaf))
    loop.until(lambda: world.sessions)
    accepted, _ = deaf.accept()
    with accepted:
        accepted.sendall(bytes.fromhex("15 03 01 0002 02 46"))
        loop.until(lambda: world.failures)
    assert world.failures[0].startswith("it speaks TLS: set upr.dial_ca")
    assert world.sessions[0].received == []
    loop.until(lambda: world.connections.current == 0)


def test_several_authorities_in_one_file_are_all_trusted(loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    pair = certificate_for(tmp_path, "127.0.0.1")
    other = certificate_for(tmp_path / "other", "127.0.0.1")
    both = tmp_path / "both.pem"
    both.write_bytes(b"# two\n" + Path(other[0]).read_bytes() + Path(pair[0]).read_bytes())
    there = listener(loop, pair)
    world = World(loop, str(both))
    world.dial(there.address)
    loop.until(lambda: world.sessions and world.sessions[0].received)
    loop.result(there.stop())


def test_an_authority_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"upr\.dial_ca: .*: No such file"):
        trust_root(UprSettings(dial_ca=str(tmp_path / "absent")))
    for content in (b"", b"\xff\x00", b"-----END CERTIFICATE-----", Path(__file__).read_bytes()):
        (tmp_path / "ca.pem").write_bytes(content)
        with pytest.raises(ConfigError, match="holds no PEM certificate"):
            trust_root(UprSettings(dial_ca=str(tmp_path / "ca.pem")))
    key = make_certificate(tmp_path)[1]
    with pytest.raises(ConfigError, match="holds no PEM certificate"):
        trust_root(UprSettings(dial_ca=key))


# --- leaks --------------------------------------------------------------------------------------

KINDS = (Call, DialledProtocol, SpeakingSession, tcp.Client, tcp.Connector)


def _alive() -> list[str]:
    return sorted(type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS))


@pytest.fixture
def unanswering() -> Iterator[str]:
    """A place whose accept queue is full: one more gets no answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        others = [socket.socket() for _ in range(4)]
        for each in others:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        yield place_of(full)
        for each in others:
            each.close()


def _call_and_abandon(world: World, place: str) -> None:
    call = world.dial(place)
    for _ in range(20):
        world.loop.reactor.iterate(0.001)
    gc.collect(0)  # from now on this does not free what is here
    call.abandon()
    world.loop.until(lambda: world.connections.current == 0)
    world.sessions.clear()
    world.failures.clear()


@pytest.mark.parametrize("secretly", [False, True], ids=["plain", "tls"])
def test_nothing_of_a_call_outlives_it_without_the_collector(
    loop: Loop, tmp_path: Path, deaf: socket.socket, unanswering: str, secretly: bool
) -> None:
    """Abandoned, refused, without an answer; each lives through a look of the collector."""
    pair = certificate_for(tmp_path, "127.0.0.1")
    plain, secret = listener(loop), listener(loop, pair)
    gone = socket.create_server(("127.0.0.1", 0))
    nobody = place_of(gone)
    gone.close()
    world = World(loop, pair[0] if secretly else "")
    gc.collect()
    gc.disable()
    before = _alive()  # of other tests
    try:
        alive = []
        for _ in range(3):
            for place in (plain.address, secret.address, nobody, unanswering, place_of(deaf)):
                _call_and_abandon(world, place)
            loop.reactor.iterate(0)
            loop.reactor.iterate(0)
            gc.collect(0)  # TLS: a failure's frames are in a young cycle of their own
            alive.append(_alive())
    finally:
        gc.enable()
    assert alive == [before] * 3
    for there in (plain, secret):
        loop.result(there.stop())
