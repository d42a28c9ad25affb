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

import errno
import fcntl
import os
import socket
import stat
from contextlib import suppress
from typing import Any, cast

from twisted.internet import main, tcp, unix
from twisted.internet.error import CannotListenError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IListeningPort

from uprmc.core.serving import Line
from uprmc.server.op_times import OpTimes

#: Connections accepted in one turn; each takes 45 us.
ACCEPTS_MAX = 64

#: What the lock of a unix socket is called after the socket.
_LOCK_SUFFIX = b".lock"


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
    alone = True

    def createInternetSocket(self) -> socket.socket:  # noqa: N802  # Twisted's name
        """Make the socket; `::` leaves IPv4 to another port unless this one is `alone`."""
        made = cast(socket.socket, super().createInternetSocket())
        if self.addressFamily == socket.AF_INET6 and not self.alone:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        return made

    def doRead(self) -> None:  # noqa: N802  # Twisted's name
        """Accept those who wait; Twisted takes 20 more in each turn in which not all were taken."""
        self.numberAccepts = min(self.numberAccepts, ACCEPTS_MAX)
        super().doRead()


class DirectUnixPort(unix.Port):
    """A listening unix socket whose connections are `DirectUnixServer`s.

    A lock on a file beside the socket says that somebody listens. The system takes it back however
    the process ends, so what a killed node left behind never keeps another one from starting; a
    pid in a file may belong to another process by then, in a container to the very same program.
    A socket that still answers belongs to a program that knows nothing of this lock, or the lock
    does not hold there.
    """

    transport = DirectUnixServer
    _lock = -1
    _made: tuple[int, int] | None = None

    def startListening(self) -> None:  # noqa: N802  # Twisted's name
        """Bind and listen; raises `CannotListenError`."""
        path = self._bindPath
        named = not path.startswith(b"\0")
        listening = self.createInternetSocket()
        try:
            if named:
                self._take_lock()
                if _answers(path):
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
                _remove_socket(path)
                # The socket must never exist with more permissions than it has in the end.
                os.fchmod(listening.fileno(), self.mode)
            listening.bind(path)
            if named:
                os.chmod(path, self.mode)
                self._made = _inode(path)
            listening.listen(self.backlog)
        except OSError as error:
            listening.close()
            self._let_go()
            raise CannotListenError(None, path, error) from None
        self.factory.doStart()  # type: ignore[union-attr]  # a port that listens has one
        self.connected = True
        self.socket = listening
        self.fileno = listening.fileno  # type: ignore[method-assign]  # as Twisted does
        self.numberAccepts = ACCEPTS_MAX
        self.startReading()

    def connectionLost(self, reason: object) -> None:  # noqa: N802  # Twisted's name
        """Close; the socket's file goes, unless it is another one's by now."""
        self._let_go()
        tcp.Port.connectionLost(self, reason)

    def _take_lock(self) -> None:
        path = self._bindPath + _LOCK_SUFFIX
        while True:
            if os.path.islink(path):  # a lock of the kind that names a pid
                os.unlink(path)
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it may have removed the file meanwhile, so that it locks nothing.
                locks = os.fstat(lock).st_ino == _inode(path)[1]
            except BlockingIOError:
                os.close(lock)
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
            except FileNotFoundError:
                locks = False
            if locks:
                self._lock = lock
                return
            os.close(lock)

    def _let_go(self) -> None:
        """Remove what was made, and give the lock back."""
        path = self._bindPath
        with suppress(OSError):
            if self._made is not None and _inode(path) == self._made:
                os.unlink(path)
        self._made = None
        if self._lock >= 0:
            with suppress(OSError):
                os.unlink(path + _LOCK_SUFFIX)
            os.close(self._lock)
            self._lock = -1


def _inode(path: bytes) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _answers(path: bytes) -> bool:
    """Tell whether somebody listens at a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def _remove_socket(path: bytes) -> None:
    """Remove a socket at which nobody listens; what is no socket stays."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def listen_unix(reactor: Any, path: str, factory: Any, backlog: int, mode: int) -> IListeningPort:
    """Do what `reactor.listenUNIX` does, with a `DirectUnixPort`; raises `CannotListenError`."""
    listening = DirectUnixPort(os.fsencode(path), factory, backlog, mode, reactor)
    listening.startListening()
    return cast(IListeningPort, listening)


def listen_direct(
    reactor: Any, port: int, factory: Any, backlog: int, interface: str, *, alone: bool = True
) -> IListeningPort:
    """Do what `reactor.listenTCP` does, with a `DirectPort`; 0 picks a free port.

    `alone` tells whether `::` may take IPv4, too.

    Raises:
        CannotListenError: the address cannot be bound.
        OSError: it could be bound but not listened on.
    """
    listening = DirectPort(port, factory, backlog, interface, reactor)
    listening.alone = alone
    listening.startListening()
    return cast(IListeningPort, listening)


def send_directly(port: object) -> None:
    """Let a port that an endpoint made build direct connections, if it is a plain one."""
    if type(port) is tcp.Port:
        port.transport = DirectServer  # type: ignore[assignment]
    elif type(port) is unix.Port:  # pragma: no cover  # a plugin's
        port.transport = DirectUnixServer


def adopt_directly(reactor: Any, socket: Any, factory: Any) -> None:
    """Make a connected unix socket a direct connection; the caller closes its own."""
    DirectUnixServer._fromConnectedSocket(socket.fileno(), factory, reactor)
