"""Certificate and key are checked before anybody connects, and serve when they are good."""

from __future__ import annotations

import io
import ssl
from itertools import product
from pathlib import Path

import pytest

from tests.server.certificates import make_certificate
from tests.server.support import PEER, Client, FloodSession, Loop, Node, SlowTransport, pattern
from tests.server.test_http import FakeNode
from uprmc.config import ServerSettings
from uprmc.errors import ConfigError
from uprmc.server.http.site import node_site
from uprmc.server.net.listener import ServedTls, listen, over_tls, tls_options
from uprmc.web import SPARE_CLIENTS


def settings(cert: str, key: str) -> ServerSettings:
    return ServerSettings(tls_cert=cert, tls_key=key)


def refusal(cert: str, key: str) -> str:
    with pytest.raises(ConfigError) as caught:
        tls_options(settings(cert, key))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_settings_there_is_no_tls() -> None:
    assert tls_options(ServerSettings()) is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    absent = str(tmp_path / "absent")
    assert refusal(absent, key) == (
        f"server.tls_cert: {absent} cannot be read: No such file or directory"
    )
    assert refusal(cert, absent).startswith(f"server.tls_key: {absent} cannot be read")


def test_one_setting_without_the_other_is_refused(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    assert "server.tls_key is missing" in refusal(cert, "")
    assert "server.tls_cert is missing" in refusal("", key)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    cert, _ = make_certificate(tmp_path)
    assert "Is a directory" in refusal(cert, str(tmp_path))


def test_rubbish_is_no_pem(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("hello")
    assert refusal(str(rubbish), key).endswith("holds no PEM certificate")
    assert "holds no PEM private key" in refusal(cert, str(rubbish))
    assert refusal(key, cert).endswith("holds no PEM certificate")


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    cert, _ = make_certificate(tmp_path, "a")
    _, key = make_certificate(tmp_path, "b")
    assert "does not belong to the certificate" in refusal(cert, key)


def test_an_encrypted_key_is_refused_without_asking_for_the_password(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, password=b"secret")
    assert "is encrypted" in refusal(cert, key)


class TlsClient(Client):
    """A client that speaks TLS without trusting anybody's word on it."""

    def __init__(self, client: Client, loop: Loop) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        wrapped = context.wrap_socket(client.socket, do_handshake_on_connect=False)
        loop._sockets.append(wrapped)
        super().__init__(loop, wrapped)
        loop.until(self._shaken)

    def _shaken(self) -> bool:
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def poll(self) -> None:
        try:
            super().poll()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLEOFError:
            self.closed = True


@pytest.mark.parametrize("place", ["127.0.0.1:0", "unix:{directory}/socket"])
def test_a_session_is_served_over_tls_with_backpressure(
    loop: Loop, tmp_path: Path, place: str
) -> None:
    total = 20_000_000
    node = Node(lambda wake: FloodSession(wake, total))
    options = tls_options(settings(*make_certificate(tmp_path)))
    text = place.format(directory=tmp_path)
    listening = listen(
        loop.reactor, text, node.factory, setting="server.upr", backlog=5, tls=options
    )
    listener = loop.result(listening)
    client = TlsClient(loop.client(listener.address, receive_buffer=4_096), loop)
    client.socket.send(b"go")
    loop.until(lambda: node.turn() or node.states() == ["output-full"])
    node.factory.login_timeout_s = 0.001
    node.clock.advance(1.0)
    node.connections.tick()  # no limit of handshakes counts any more
    assert node.connections.bytes_written < total / 2
    loop.until(lambda: client.poll() or node.turn() or len(client.received) == total, 10.0)
    assert client.received == pattern(0, total)
    for protocol in node.connections:
        protocol.hang_up()
    client.read_all()
    client.socket.close()
    loop.until(lambda: node.connections.current == 0)
    loop.result(listener.stop())


def test_a_plain_client_of_a_tls_listener_is_let_go(loop: Loop, tmp_path: Path) -> None:
    node = Node(lambda wake: FloodSession(wake, 10))
    options = tls_options(settings(*make_certificate(tmp_path)))
    listening = listen(
        loop.reactor, "127.0.0.1:0", node.factory, setting="server.upr", backlog=5, tls=options
    )
    listener = loop.result(listening)
    client = loop.client(listener.address)
    client.socket.send(b"get key\r\n" * 10)
    client.read_all()
    loop.until(lambda: node.connections.current == 0)
    assert node.connections.session_errors == 0
    loop.result(listener.stop())


def test_a_handshake_takes_no_longer_than_the_limit(tmp_path: Path) -> None:
    node = Node(lambda wake: FloodSession(wake, 10))
    node.factory.login_timeout_s = 10.0
    served = ServedTls(settings(*make_certificate(tmp_path)))
    transport = SlowTransport()
    over_tls(node.clock, served, node.factory).buildProtocol(PEER).makeConnection(transport)
    for now, aborted in ((9.999, False), (10.0, True)):
        node.clock.rightNow = now
        node.connections.tick()
        assert transport.aborted is aborted


def test_an_endpoint_with_its_own_tls_excludes_the_settings(loop: Loop, tmp_path: Path) -> None:
    options = tls_options(settings(*make_certificate(tmp_path)))
    text = "ssl:0:interface=127.0.0.1"
    with pytest.raises(ConfigError, match="brings its own TLS"):
        loop.result(listen(loop.reactor, text, None, setting="x", backlog=5, tls=options))


@pytest.mark.filterwarnings("ignore:Passing pyOpenSSL")  # Twisted's endpoint does so
def test_half_handshakes_take_the_room_of_no_client(
    loop: Loop, tmp_path: Path, lines: io.StringIO
) -> None:
    """For sessions and for pages: limits count from accept on, and nobody leaves a traceback."""
    files = make_certificate(tmp_path)
    tls = tls_options(settings(*files))
    node = Node(lambda wake: FloodSession(wake, 10))
    node.connections.limit = 5
    site = node_site(FakeNode(), loop.reactor)
    site.clients_max = 5
    own = "ssl:0:interface=127.0.0.1:certKey={}:privateKey={}".format(*files)
    places = (("127.0.0.1:0", tls), (own, None))
    for factory, (place, options) in product((node.factory, site), places):
        listening = listen(
            loop.reactor, place, factory, setting="server.upr", backlog=50, tls=options
        )
        listener = loop.result(listening)
        half = [loop.client(listener.address) for _ in range(40)]
        for client in half:
            client.socket.send(b"\x16\x03\x01")
        client = TlsClient(loop.client(listener.address), loop)
        client.socket.send(b"GET /healthz HTTP/1.1\r\n\r\n")
        if options is not None:  # an endpoint of its own writes by the reactor of the process
            loop.until(lambda client=client: client.poll() or node.turn() or client.received)
        alive = [each for each in half if not each.poll() and not each.closed]
        assert len(alive) <= 5 + SPARE_CLIENTS
        for each in (client, *half):
            each.socket.close()
        loop.until(lambda: node.connections.current == site.clients == 0)
        loop.result(listener.stop())
    assert node.connections.handshakes == {}
    assert "Traceback" not in lines.getvalue()
