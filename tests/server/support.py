"""Sessions, transports and a hand-driven reactor for the tests of the server package."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from uprmc.server.net.adapter import SessionFactory, SessionProtocol
from uprmc.server.net.connections import Connections
from uprmc.server.net.transport import LeanReactor
from uprmc.server.work.turns import WakeList

PEER = IPv4Address("TCP", "192.0.2.7", 4711)


class EchoSession:
    """Answers with what it was sent; ``quit`` hangs up, ``boom`` is a bug."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.closing = False
        self.input_full = False
        self.successor = None
        self.out: list[bytes] = []
        self.received: list[bytes] = []
        self.ticks: list[float] = []
        self.budgets: list[int] = []
        self.lost = 0

    def receive_data(self, data: bytes) -> None:
        self.received.append(data)
        if data == b"boom":
            raise RuntimeError("a bug of ours")
        self.out.append(data)
        self.closing = data.endswith(b"quit")

    def tick(self, now: float) -> None:
        self.ticks.append(now)

    def data_to_send(self, budget: int) -> list[bytes]:
        self.budgets.append(budget)
        out, self.out = self.out, []
        return out

    def buffered(self) -> tuple[int, int]:
        return 0, sum(map(len, self.out))

    def connection_lost(self) -> None:
        self.lost += 1


class FloodSession(EchoSession):
    """Has `total` bytes to send as soon as it hears anything; counts what was pulled of them."""

    def __init__(self, wake: Callable[[], None], total: int) -> None:
        super().__init__(wake)
        self.left = 0
        self.total = total
        self.pulled = 0

    def receive_data(self, data: bytes) -> None:
        self.received.append(data)
        self.left += self.total

    def data_to_send(self, budget: int) -> list[bytes]:
        size = min(budget, self.left)
        self.left -= size
        self.pulled += size
        return [pattern(self.pulled - size, size)] if size else []


def pattern(offset: int, size: int) -> bytes:
    """Return bytes of an endless text in which every place can be told from its neighbours."""
    first = offset // 8
    text = b"".join(b"%07x|" % number for number in range(first, (offset + size) // 8 + 1))
    return text[offset - first * 8 :][:size]


class SlowTransport(StringTransport):
    """Queues like Twisted's own: pauses its producer above `limit`, resumes it when drained."""

    def __init__(self, limit: int = 65_536) -> None:
        super().__init__(peerAddress=PEER)
        self.limit = limit
        self.queued = 0
        self.writes: list[bytes] = []
        self.aborted = False
        self.no_delay = False
        self.instant = False  # the kernel takes everything at once

    def write(self, data: bytes) -> None:
        super().write(data)
        self.writes.append(data)
        self.queued += 0 if self.instant else len(data)
        if self.producer is not None and self.queued > self.limit:
            self.producer.pauseProducing()

    def drain(self) -> None:
        """The peer read everything."""
        self.queued = 0
        if self.producer is not None:
            self.producer.resumeProducing()

    def abortConnection(self) -> None:  # noqa: N802
        self.aborted = True
        super().abortConnection()


class TurnClock(Clock):
    """A clock that can do one turn of the reactor: what is due now, not what that puts off."""

    def turn(self) -> None:
        due = [call for call in self.calls if call.getTime() <= self.seconds()]
        for call in due:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class Node:
    """Registry, wake list and factory on a clock of their own."""

    def __init__(
        self, make: Callable[[Callable[[], None]], object], limit: int = 100, idle_s: float = 0.0
    ) -> None:
        self.clock = TurnClock()
        self.connections = Connections(limit, self.clock.seconds)
        self.wake_list = WakeList(self.clock)
        self.factory = SessionFactory(
            lambda peer, wake: make(wake), self.connections, self.wake_list, "memcached", idle_s
        )

    def connect(self, transport: StringTransport | None = None) -> SessionProtocol:
        """Accept a connection over `transport`."""
        protocol = self.factory.buildProtocol(PEER)
        protocol.makeConnection(transport or SlowTransport())
        return protocol

    def states(self) -> list[str]:
        """Return what every connection waits for."""
        return [info.state for info in self.connections.infos()]

    def turn(self) -> None:
        """Let what was put off to the next turn of the reactor happen."""
        self.clock.turn()


class Loop:
    """A real reactor that runs only while a test waits for something; closes what was opened."""

    def __init__(self) -> None:
        self.reactor = LeanReactor()
        self._sockets: list[socket.socket] = []

    def until(self, condition: Callable[[], object], limit_s: float = 30.0) -> None:
        """Run the reactor until `condition` holds; the limit only ends a test that failed."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, "what the test waits for did not happen"
            self.reactor.iterate(0.001)

    def result(self, deferred, limit_s: float = 30.0):
        """Run the reactor until `deferred` fires; return its result or raise its error."""
        fired: list[object] = []
        errors: list[BaseException] = []
        deferred.addCallbacks(fired.append, lambda failure: errors.append(failure.value))
        self.until(lambda: fired or errors, limit_s)
        if errors:
            raise errors[0]
        return fired[0]

    def client(self, address: str, receive_buffer: int = 0) -> Client:
        """Connect to ``HOST:PORT``, ``[HOST]:PORT`` or ``unix:PATH``."""
        if address.startswith("unix:"):
            made = socket.socket(socket.AF_UNIX)
            where: object = address.removeprefix("unix:")
        else:
            host, _, port = address.rpartition(":")
            made = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET)
            where = (host.strip("[]"), int(port))
        self._sockets.append(made)
        if receive_buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.connect(where)
        made.setblocking(False)
        return Client(self, made)

    def close(self) -> None:
        """Close every connection, listener and descriptor of the reactor."""
        for made in self._sockets:
            made.close()
        for selectable in self.reactor.removeAll():
            selectable.connectionLost(_gone())
        self.reactor.waker.connectionLost(None)
        self.reactor._poller.close()


class Client:
    """A plain socket whose waits run the reactor."""

    def __init__(self, loop: Loop, made: socket.socket) -> None:
        self.socket = made
        self.received = bytearray()
        self.closed = False
        self._loop = loop

    def poll(self) -> None:
        """Take what has arrived."""
        try:
            while data := self.socket.recv(1 << 20):
                self.received += data
            self.closed = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.closed = True

    def read(self, size: int) -> bytes:
        """Wait for `size` bytes or the end, and return all that came."""
        self._loop.until(lambda: self.poll() or self.closed or len(self.received) >= size)
        data = bytes(self.received)
        self.received.clear()
        return data

    def read_all(self) -> bytes:
        """Wait for the end of the connection and return all that came."""
        self._loop.until(lambda: self.poll() or self.closed)
        return bytes(self.received)


def _gone():
    from twisted.internet.error import ConnectionDone
    from twisted.python.failure import Failure

    return Failure(ConnectionDone())
