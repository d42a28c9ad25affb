"""Direct sending keeps everything that Twisted promises about a connection's bytes."""

from __future__ import annotations

import socket

import pytest
from twisted.internet import tcp, unix
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from tests.server.support import Client, Loop, pattern
from uprmc.server.net.transport import (
    ACCEPTS_MAX,
    DirectPort,
    DirectServer,
    DirectUnixServer,
    listen_direct,
    send_directly,
)

BIG = 3_000_000


class Recorder(Protocol):
    """A protocol that notes what the transport asks of it as a streaming producer."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.received = b""
        self.lost: Failure | None = None
        self.on_resume = lambda: None

    def pauseProducing(self) -> None:  # noqa: N802
        self.calls.append("pause")

    def resumeProducing(self) -> None:  # noqa: N802
        self.calls.append("resume")
        self.on_resume()

    def stopProducing(self) -> None:  # noqa: N802
        self.calls.append("stop")

    def connectionLost(self, reason) -> None:  # noqa: N802
        self.lost = reason

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        if data == b"a bug":
            raise RuntimeError(data)
        self.received += data


class CountingSocket:
    """A socket that counts sends, takes at most so much at a time, or fails either way."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self.sends = 0
        self.at_most = 1 << 30
        self.error: OSError | None = None
        self.receive_error: OSError | None = None

    def recv(self, size: int) -> bytes:
        if self.receive_error is not None:
            raise self.receive_error
        return self._real.recv(size)

    def __getattr__(self, name: str):
        return getattr(self._real, name)

    def send(self, data) -> int:
        self.sends += 1
        if self.error is not None:
            raise self.error
        return self._real.send(bytes(data[: self.at_most]))


class Pair:
    """A connected client and the server's end of it."""

    def __init__(self, loop: Loop, send_buffer: int = 0) -> None:
        self.protocol = Recorder()
        factory = Factory.forProtocol(lambda: self.protocol)
        factory.noisy = False
        self.port = listen_direct(loop.reactor, 0, factory, 5, "127.0.0.1")
        host = self.port.getHost()
        self.client: Client = loop.client(f"{host.host}:{host.port}", receive_buffer=send_buffer)
        loop.until(lambda: self.protocol.transport)
        self.transport: DirectServer = self.protocol.transport
        if send_buffer:
            option = (socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            self.transport.socket.setsockopt(*option)
        self.socket = CountingSocket(self.transport.socket)
        self.transport.socket = self.socket


@pytest.fixture
def pair(loop: Loop) -> Pair:
    return Pair(loop)


@pytest.fixture
def narrow(loop: Loop) -> Pair:
    """A connection whose kernel buffers hold next to nothing."""
    return Pair(loop, send_buffer=4_096)


def queued(transport: DirectServer) -> int:
    return len(transport.dataBuffer) - transport.offset + transport._tempDataLen


def test_twisted_still_keeps_its_queue_where_we_look_for_it(pair: Pair) -> None:
    assert pair.transport._tempDataBuffer == []
    assert pair.transport.dataBuffer == b""
    assert pair.transport._writeDisconnecting is False
    assert pair.transport.TLS is False
    assert (pair.transport.disconnecting, pair.transport.connected) == (0, 1)
    assert (pair.transport.producer, pair.transport.streamingProducer) == (None, False)
    tcp.Server.write(pair.transport, b"x")
    assert pair.transport._tempDataBuffer == [b"x"]
    pair.transport.loseWriteConnection()
    assert pair.transport._writeDisconnecting is True


def test_a_write_is_sent_before_it_returns_and_nothing_is_queued(pair: Pair, loop: Loop) -> None:
    pair.transport.write(b"hello")
    assert pair.socket.sends == 1
    assert queued(pair.transport) == 0
    assert pair.transport not in loop.reactor.getWriters()
    pair.client.poll()
    assert pair.client.received == b"hello"


def test_replies_do_not_wait_for_each_other(pair: Pair) -> None:
    assert pair.transport.getTcpNoDelay()
    assert pair.transport.getTcpKeepAlive()


def test_what_the_kernel_does_not_take_follows_in_order(narrow: Pair) -> None:
    sizes = [1, 70_000, 0, 13, 200_000, 7, 900_000, 1_000]
    offset = 0
    for size in sizes:
        narrow.transport.write(pattern(offset, size))
        offset += size
    assert queued(narrow.transport) > 500_000
    assert narrow.client.read(offset) == pattern(0, offset)


def test_a_write_behind_a_half_sent_buffer_waits_its_turn(narrow: Pair, loop: Loop) -> None:
    """Twisted has moved its queue into one buffer; the queue looks empty but nothing may pass."""
    narrow.transport.write(pattern(0, BIG))
    loop.until(lambda: not narrow.transport._tempDataBuffer)
    narrow.client.poll()  # the kernel has room again
    narrow.transport.write(pattern(BIG, 100))
    assert narrow.client.read(BIG + 100) == pattern(0, BIG + 100)


def test_single_bytes_after_a_partial_send_keep_their_place(narrow: Pair) -> None:
    narrow.transport.write(pattern(0, BIG))
    for place in range(BIG, BIG + 500):
        narrow.transport.write(pattern(place, 1))
    assert narrow.client.read(BIG + 500) == pattern(0, BIG + 500)


def test_a_socket_that_takes_three_bytes_at_a_time_gets_all_in_order(pair: Pair) -> None:
    pair.socket.at_most = 3
    for place in range(0, 100, 10):
        pair.transport.write(pattern(place, 10))
    assert pair.client.read(100) == pattern(0, 100)


def test_direct_sending_starts_again_once_the_queue_is_drained(narrow: Pair) -> None:
    narrow.transport.write(pattern(0, BIG))
    assert narrow.client.read(BIG) == pattern(0, BIG)
    sends = narrow.socket.sends
    narrow.transport.write(b"again")
    assert narrow.socket.sends == sends + 1
    assert queued(narrow.transport) == 0


def test_write_sequence_after_a_partial_send_keeps_order(narrow: Pair) -> None:
    narrow.transport.write(pattern(0, BIG))
    narrow.transport.writeSequence([pattern(BIG, 10), pattern(BIG + 10, 10)])
    assert narrow.client.read(BIG + 20) == pattern(0, BIG + 20)


def test_a_socket_that_would_block_is_tried_again_later(pair: Pair) -> None:
    pair.socket.error = BlockingIOError(11, "would block")
    pair.transport.write(b"later")
    assert queued(pair.transport) == 5
    pair.socket.error = None
    assert pair.client.read(5) == b"later"


@pytest.mark.parametrize("error", [BrokenPipeError(32, "pipe"), ConnectionResetError(104, "reset")])
def test_a_broken_connection_is_lost_in_the_reactor_not_in_write(
    pair: Pair, loop: Loop, error: OSError
) -> None:
    pair.socket.error = error
    pair.transport.write(b"into the void")
    assert not pair.protocol.lost
    loop.until(lambda: pair.protocol.lost)


def test_a_streaming_producer_is_paused_and_resumed_as_ever(narrow: Pair) -> None:
    narrow.transport.registerProducer(narrow.protocol, True)
    narrow.transport.write(b"small")
    assert narrow.protocol.calls == []
    narrow.transport.write(pattern(0, BIG))
    assert narrow.protocol.calls == ["pause"]
    narrow.client.read(BIG + 5)
    assert narrow.protocol.calls == ["pause", "resume"]


def test_a_producer_may_write_from_resume(narrow: Pair) -> None:
    narrow.transport.registerProducer(narrow.protocol, True)
    offsets = iter(range(BIG, BIG * 3, BIG))
    narrow.protocol.on_resume = lambda: [
        narrow.transport.write(pattern(at, BIG)) for at in [next(offsets, None)] if at
    ]
    narrow.transport.write(pattern(0, BIG))
    assert narrow.client.read(BIG * 3) == pattern(0, BIG * 3)


def test_a_pull_producer_is_asked_for_more_as_ever(pair: Pair, loop: Loop) -> None:
    offsets = iter(range(0, 50, 10))

    def produce() -> None:
        at = next(offsets, None)
        if at is None:
            pair.transport.unregisterProducer()
        else:
            pair.transport.write(pattern(at, 10))

    pair.protocol.on_resume = produce
    pair.transport.registerProducer(pair.protocol, False)
    assert pair.client.read(50) == pattern(0, 50)
    loop.until(lambda: pair.transport.producer is None)


def test_everything_written_is_sent_before_the_connection_closes(narrow: Pair) -> None:
    narrow.transport.write(pattern(0, BIG))
    narrow.transport.loseConnection()
    assert narrow.client.read_all() == pattern(0, BIG)


def test_a_write_after_the_connection_was_told_to_close_is_left_to_twisted(pair: Pair) -> None:
    pair.transport.loseConnection()
    pair.transport.write(b"last words")
    assert pair.socket.sends == 0
    assert pair.client.read_all() == b"last words"


def test_a_write_after_half_closing_goes_the_way_of_twisted(pair: Pair, loop: Loop) -> None:
    pair.transport.write(b"before")
    pair.transport.loseWriteConnection()
    loop.until(lambda: pair.transport._writeDisconnected)
    sends = pair.socket.sends
    pair.transport.write(b"after")
    assert pair.socket.sends == sends
    assert pair.client.read_all() == b"before"


def test_a_write_after_the_connection_is_lost_is_dropped(pair: Pair, loop: Loop) -> None:
    pair.client.socket.close()
    loop.until(lambda: pair.protocol.lost)
    pair.transport.write(b"nobody listens")


def test_text_is_refused_as_ever(pair: Pair) -> None:
    with pytest.raises(TypeError):
        pair.transport.write("text")


def test_what_arrives_is_read_without_twisted_between(pair: Pair, loop: Loop) -> None:
    pair.transport.doRead = pytest.fail
    pair.client.socket.send(b"hello")
    loop.until(lambda: pair.protocol.received)
    assert pair.protocol.received == b"hello"


def test_a_socket_that_has_nothing_after_all_is_asked_again(pair: Pair, loop: Loop) -> None:
    pair.socket.receive_error = BlockingIOError(11, "would block")
    pair.client.socket.send(b"hello")
    loop.reactor.iterate(0.1)
    assert pair.protocol.lost is None
    pair.socket.receive_error = None
    loop.until(lambda: pair.protocol.received)


def test_a_socket_that_fails_is_lost(pair: Pair, loop: Loop) -> None:
    pair.socket.receive_error = ConnectionResetError(104, "reset")
    pair.client.socket.send(b"hello")
    loop.until(lambda: pair.protocol.lost)
    assert pair.protocol.lost.check(ConnectionLost)


def test_a_bug_in_a_protocol_ends_its_connection(pair: Pair, loop: Loop) -> None:
    pair.client.socket.send(b"a bug")
    loop.until(lambda: pair.protocol.lost)
    assert pair.protocol.lost.check(RuntimeError)


def test_plain_ports_can_be_made_direct_and_others_are_left_alone(loop: Loop) -> None:
    factory = Factory.forProtocol(Recorder)
    plain = tcp.Port(0, factory, 5, "127.0.0.1", loop.reactor)
    send_directly(plain)
    assert plain.transport is DirectServer
    assert tcp.Port.transport is tcp.Server
    assert DirectPort.transport is DirectServer
    by_path = unix.Port(b"/somewhere", factory, reactor=loop.reactor)
    send_directly(by_path)
    assert by_path.transport is DirectUnixServer
    assert unix.Port.transport is unix.Server
    send_directly(object())


def test_many_who_connect_at_once_are_accepted_in_turns(loop: Loop) -> None:
    factory = Factory.forProtocol(Recorder)
    made: list[object] = []
    factory.buildProtocol = lambda address: made.append(address)  # None: it is closed at once
    port = DirectPort(0, factory, 1_000, "127.0.0.1", loop.reactor)
    port.startListening()
    port.stopReading()
    clients = [socket.create_connection(("127.0.0.1", port.getHost().port)) for _ in range(150)]
    sizes = []
    for _ in range(4):
        before = len(made)
        port.doRead()
        sizes.append(len(made) - before)
    assert sizes == [ACCEPTS_MAX, ACCEPTS_MAX, 150 - 2 * ACCEPTS_MAX, 0]
    for client in clients:
        client.close()
    port.stopListening()
    loop.until(lambda: not port.connected)
