"""Connections that are read in the reactor's event itself, and try to send before they queue.

Twisted's own `write` only queues: the reactor then starts to watch the socket for writing, comes
back in its next turn, sends, and stops watching. For a server that answers each request with a
few bytes these are two system calls and a turn of the loop too many. A direct connection sends
first and leaves to Twisted what the kernel did not take (a slow reader, an error, a half-closed or
TLS-started connection), so everything else about the connection stays Twisted's.

`LeanReactor` reads a direct connection without the calls that Twisted has in between.

This looks at `_tempDataBuffer` and `_writeDisconnecting`, which Twisted does not promise to keep:
``tests/server/test_transport.py`` fails when they move.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import Any, cast

from twisted.internet import main, tcp, unix
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IListeningPort

from uprmc.core.serving import Line
from uprmc.server.op_times import OpTimes

#: Connections accepted in one turn; each takes 45 us.
ACCEPTS_MAX = 64


class Direct(tcp.Server):
    """An accepted connection whose `write` reaches the kernel before it returns, if it can.

    Bytes keep the order of the calls. A registered streaming producer is paused and resumed by
    Twisted as usual, once more than `bufferSize` bytes had to be queued; with a pull producer
    everything is queued, because only a drained queue asks such a producer for more.

    Attributes:
        line: receives and answers most chunks in one call of the compiled core.
        times: measures some of the chunks; ``None`` = none.
    """

    line: Line | None = None
    times: OpTimes | None = None

    def read(self) -> ConnectionLost | ConnectionDone | None:
        """Pass what has arrived to the protocol; return why the connection is over, if it is."""
        times = self.times
        if times is not None:
            times.left -= 1
            if not times.left:
                return times.measure(self.read)
        line = self.line
        try:
            data = self.socket.recv(self.bufferSize) if line is None else line.exchange()
        except BlockingIOError:
            return None
        except OSError:
            return main.CONNECTION_LOST
        if data is None:
            return None
        if not data:
            return main.CONNECTION_DONE
        self.protocol.dataReceived(data)  # type: ignore[call-arg, misc]  # a zope interface has no self
        return None

    def queue(self, data: bytes) -> None:
        """Queue what the kernel did not take."""
        super().write(data)

    def write(self, data: bytes) -> None:
        """Send what the kernel takes now and queue the rest; never raises for a lost peer."""
        if (
            self._tempDataBuffer
            or self.dataBuffer
            or self.disconnecting
            or not self.connected
            or self.TLS
            or self._writeDisconnecting
            or not (self.producer is None or self.streamingProducer)
        ):
            super().write(data)
            return
        try:
            sent = self.socket.send(data)
        except OSError:
            sent = 0  # full or broken: the queued attempt meets the same error and deals with it
        if sent != len(data):
            super().write(data[sent:] if sent else data)


class DirectServer(Direct):
    """A direct connection over TCP.

    Replies leave without waiting for others (TCP_NODELAY), and a peer that vanished without a word
    is found out in the end (SO_KEEPALIVE).
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # passed on as Twisted gave them
        self.setTcpNoDelay(True)
        self.setTcpKeepAlive(True)


class DirectUnixServer(Direct, unix.Server):
    """A direct connection over a unix socket; file descriptors that a peer sends are dropped."""


class DirectPort(tcp.Port):
    """A listening TCP port whose connections are `DirectServer`s, some accepted in each turn."""

    transport = DirectServer  # type: ignore[assignment]  # Twisted declares the exact class

    def doRead(self) -> None:  # noqa: N802  # Twisted's name
        """Accept those who wait; Twisted takes 20 more in each turn in which not all were taken."""
        self.numberAccepts = min(self.numberAccepts, ACCEPTS_MAX)
        super().doRead()


def listen_direct(
    reactor: Any, port: int, factory: Any, backlog: int, interface: str
) -> IListeningPort:
    """Do what `reactor.listenTCP` does, with a `DirectPort`; 0 picks a free port.

    Raises:
        CannotListenError: the address cannot be bound.
        OSError: it could be bound but not listened on.
    """
    listening = DirectPort(port, factory, backlog, interface, reactor)
    listening.startListening()
    return cast(IListeningPort, listening)


def send_directly(port: object) -> None:
    """Let a port that an endpoint made build direct connections, if it is a plain one."""
    if type(port) is tcp.Port:
        port.transport = DirectServer  # type: ignore[assignment]
    elif type(port) is unix.Port:
        port.transport = DirectUnixServer


def adopt_directly(reactor: Any, socket: Any, factory: Any) -> None:
    """Make a connected unix socket a direct connection; the caller closes its own."""
    DirectUnixServer._fromConnectedSocket(socket.fileno(), factory, reactor)
