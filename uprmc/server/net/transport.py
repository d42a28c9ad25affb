"""Sockets of our listeners: how they are read and written, and the turns of the reactor."""

# ruff: noqa: N802, N815  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twisted.internet import main, tcp, unix
from twisted.internet.error import CannotListenError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IListeningPort
from twisted.internet.main import installReactor
from twisted.python import log

from uprmc.core.serving import Line
from uprmc.engine.stats import Histogram, Stats

if TYPE_CHECKING:
    from uprmc.server.work.turns import WakeList


# --- how long commands take -----------------------------------------------------------------------
# How long commands take, sampled: one piece of input in `SAMPLED_EVERY` is timed.
#
# A piece is what a connection receives at once; it may have hundreds of commands, which the
# compiled core carries out in one call. So the piece is timed, and each command of it counts with
# that time: this is how long the node kept its client waiting. What the commands were is seen from
# the counters that they change. A piece that is not timed costs one subtraction.
#
# The number is prime, so that connections that take turns are all looked at.


SAMPLED_EVERY = 61

#: Operation -> the counters of `Stats` that show how many there were.
_COUNTERS = {
    "get": ("cmd_get",),
    "set": ("cmd_set",),
    "delete": ("delete_hits", "delete_misses"),
    "arithmetic": ("incr_hits", "incr_misses", "decr_hits", "decr_misses"),
    "touch": ("cmd_touch",),
    "with_meta": ("ops_set_meta", "ops_del_meta", "ops_set_meta_res_fail"),
}
_MIXED, _OTHER = "mixed", "other"

T = TypeVar("T")


class OpTimes:
    """The times of one node."""

    __slots__ = ("_heard", "_stats", "by_op", "left")

    def __init__(self, stats: Stats, heard: Callable[[], int]) -> None:
        """Make empty histograms; `heard` returns how many pieces have been received."""
        # Pieces until the next one that is timed; who reads a piece counts down.
        self.left = SAMPLED_EVERY
        # Operation -> its histogram.
        self.by_op = {op: Histogram() for op in (*_COUNTERS, _MIXED, _OTHER)}
        self._stats, self._heard = stats, heard

    def measure(self, read: Callable[[], T]) -> T:
        """Have a piece read, and time it."""
        self.left = SAMPLED_EVERY + 1  # `read` counts down, too
        before, heard = self._counts(), self._heard()
        began = perf_counter()
        result = read()
        seconds = perf_counter() - began
        if self._heard() == heard:
            self.left = 1  # nothing had come: the next one
        else:
            self._add(seconds, before)
        return result

    def _add(self, seconds: float, before: list[int]) -> None:
        counts = zip(_COUNTERS, before, self._counts(), strict=True)
        done = {op: now - then for op, then, now in counts if now > then}
        op = next(iter(done)) if len(done) == 1 else _MIXED if done else _OTHER
        self.by_op[op].add(seconds, sum(done.values()) or 1)

    def _counts(self) -> list[int]:
        stats = self._stats
        return [sum(getattr(stats, name) for name in names) for names in _COUNTERS.values()]


# --- connections and ports ------------------------------------------------------------------------
# Connections that are read in the reactor's event itself, and try to send before they queue.
#
# Twisted's own `write` only queues: the reactor then starts to watch the socket for writing, comes
# back in its next turn, sends, and stops watching. For a server that answers each request with a
# few bytes these are two system calls and a turn of the loop too many. A direct connection sends
# first and leaves to Twisted what the kernel did not take (a slow reader, an error, a half-closed
# or TLS-started connection), so everything else about the connection stays Twisted's.
#
# `LeanReactor` reads a direct connection without the calls that Twisted has in between.
#
# This looks at `_tempDataBuffer` and `_writeDisconnecting`, which Twisted does not promise to keep:
# ``tests/server/test_transport.py`` fails when they move.


#: Connections accepted in one turn; each takes 45 us.
ACCEPTS_MAX = 64

#: What the lock of a unix socket is called after the socket.
_LOCK_SUFFIX = b".lock"


class Direct(tcp.Server):
    """An accepted connection whose `write` reaches the kernel before it returns, if it can.

    Bytes keep the order of the calls. A registered streaming producer is paused and resumed by
    Twisted as usual, once more than `bufferSize` bytes had to be queued; with a pull producer
    everything is queued, because only a drained queue asks such a producer for more.
    """

    line: Line | None = None  # receives and answers most chunks in one call of the compiled core
    times: OpTimes | None = None  # measures some of the chunks; ``None`` = none

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

    def createInternetSocket(self) -> socket.socket:  # Twisted's name
        """Make the socket; `::` leaves IPv4 to another port unless this one is `alone`."""
        made = cast(socket.socket, super().createInternetSocket())
        if self.addressFamily == socket.AF_INET6 and not self.alone:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        return made

    def doRead(self) -> None:  # Twisted's name
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

    def startListening(self) -> None:  # Twisted's name
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

    def connectionLost(self, reason: object) -> None:  # Twisted's name
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


# --- the reactor ----------------------------------------------------------------------------------
# Twisted's epoll reactor without a log context around every event, and with an end to its turns.
#
# Twisted wraps each readiness event in `log.callWithLogger`, so that old-style log lines carry a
# prefix. Nothing here uses that prefix, and at one request for each event the wrapping is a fifth
# of the cost of a request (measured: 8.6 against 6.8 us with 50 connections, no pipelining). Errors
# take the same way as before: `_doReadOrWrite` has its own handler.
#
# Connections of our listeners that have something to read, and nothing else, are read at once: what
# Twisted asks before each event is settled for them.
#
# What was woken by the events of a turn is served when all of them have been dealt with, in the
# same turn (`WakeList`): by `callLater(0)` it would cost a timer, and another look at the sockets.
#
# A turn handles a limited number of events. The rest is still there when the sockets are looked at
# next, first those that have waited longest; meanwhile timers and long work have their share.
# Without the limit, nine thousand clients that hung up at once took a turn of a third of a second.
#
# Timers count monotonic time. Twisted's own reactors count the wall clock's, so a clock that is set
# back an hour would keep every timer waiting for an hour.
#
# It looks at `_poller`, `_selectables`, `_doReadOrWrite` and `_disconnectSelectable`, which Twisted
# does not promise to keep: ``tests/server/test_reactor.py`` fails when they move.


try:
    from select import EPOLLIN

    from twisted.internet.epollreactor import EPollReactor
except ImportError:  # not Linux: Twisted's own choice serves as well
    EPollReactor = None  # type: ignore[assignment,misc]


#: Events handled in one turn; to close a connection takes 40 us, to answer a request 7.
EVENTS_MAX = 64


def install() -> Any:
    """Make this process's reactor and return it; call it before anything imports the reactor."""
    if EPollReactor is not None:
        installReactor(LeanReactor())
    from twisted.internet import reactor

    return count_monotonic_time(reactor)


def count_monotonic_time(reactor: Any) -> Any:
    """Let the timers of a reactor that has none yet ignore steps of the wall clock; return it."""
    reactor.seconds = time.monotonic
    return reactor


if EPollReactor is not None:

    class LeanReactor(EPollReactor):
        """An epoll reactor that does less for each event, and knows when a turn ends."""

        seconds = staticmethod(time.monotonic)
        _wake_lists: tuple[WakeList, ...] = ()

        def end_turns_with(self, wake_list: WakeList) -> None:
            """Run a `WakeList` at the end of each turn in which a call waits in it."""
            self._wake_lists += (wake_list,)

        def end_turns_without(self, wake_list: WakeList) -> None:
            """Run it no more."""
            self._wake_lists = tuple(each for each in self._wake_lists if each is not wake_list)

        def doPoll(self, timeout: float | None) -> None:
            """Wait for events at most `timeout` seconds (``None``: for ever) and handle them."""
            selectables = self._selectables
            for wake_list in self._wake_lists:
                if wake_list.waiting:
                    timeout = 0
            try:
                ready = self._poller.poll(-1 if timeout is None else timeout, EVENTS_MAX)
            except InterruptedError:
                ready = []
            for wake_list in self._wake_lists:
                wake_list.alone = len(ready) == 1
            for descriptor, event in ready:
                selectable = selectables.get(descriptor)
                if event == EPOLLIN and isinstance(selectable, Direct):
                    self._read(selectable)
                elif selectable is not None:
                    self._doReadOrWrite(selectable, descriptor, event)
            for wake_list in self._wake_lists:
                if wake_list.waiting:
                    wake_list.run()

        def _read(self, connection: Direct) -> None:
            why: BaseException | None
            try:
                why = connection.read()
            except BaseException as error:
                why = error
                log.err()
            if why is not None:
                self._disconnectSelectable(connection, why, True)

        doIteration = doPoll
