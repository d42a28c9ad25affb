"""TCP connections that try to send at once, before they queue.

Twisted's own `write` only queues: the reactor then starts to watch the socket for writing, comes
back in its next turn, sends, and stops watching. For a server that answers each request with a
few bytes these are two system calls and a turn of the loop too many. `DirectServer` sends first
and leaves to Twisted what the kernel did not take (a slow reader, an error, a half-closed or
TLS-started connection), so everything else about the connection stays Twisted's.

It looks at `_tempDataBuffer` and `_writeDisconnecting`, which Twisted does not promise to keep:
``tests/server/test_transport.py`` fails when they move.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import Any, cast

from twisted.internet import tcp
from twisted.internet.interfaces import IListeningPort

#: Connections accepted in one turn; each takes 45 us.
ACCEPTS_MAX = 64


class DirectServer(tcp.Server):
    """An accepted connection whose `write` reaches the kernel before it returns, if it can.

    Bytes keep the order of the calls. A registered streaming producer is paused and resumed by
    Twisted as usual, once more than `bufferSize` bytes had to be queued; with a pull producer
    everything is queued, because only a drained queue asks such a producer for more. Replies
    leave without waiting for others (TCP_NODELAY), and a peer that vanished without a word is
    found out in the end (SO_KEEPALIVE).
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # passed on as Twisted gave them
        self.setTcpNoDelay(True)
        self.setTcpKeepAlive(True)

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
    """Let a port that an endpoint made build `DirectServer`s, if it is plain TCP."""
    if type(port) is tcp.Port:
        port.transport = DirectServer  # type: ignore[assignment]
