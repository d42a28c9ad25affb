"""The Twisted protocol around any `ports.Session`: bytes in, bytes out, pressure both ways.

`SessionProtocol` is on the path of every request, so its doors are flat and it allocates nothing
per chunk. Rules it keeps:

- one write per received chunk, unless the replies exceed one pull;
- while the transport cannot take more, the session is not asked for more and the peer is not read;
- while the session's `input_full` is set the peer is not read;
- a session that always has more is served in slices, so that others have their turn;
- an exception from a session is a bug of ours: it is logged and ends that connection only.

So what a peer that never reads can make us hold is the kernel's socket buffer, Twisted's
`bufferSize`, one pull, and what the session itself allows.
"""

# ruff: noqa: N802  # Twisted's names
from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet import address
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    IHandshakeListener,
    IPushProducer,
)
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.ports import Answering, Draining, Session
from uprmc.server.log import Log
from uprmc.server.net.connections import ConnectionInfo, Connections
from uprmc.server.net.transport import Direct
from uprmc.server.work.turns import WakeList

#: How many bytes a session is asked for at a time, and how often in one turn of the reactor.
PULL_BYTES = 64 * 1024
PULLS_PER_TURN = 4

#: The same while others have requests: a stream that has always more must not make them wait.
SHARED_PULL_BYTES = 16 * 1024
SHARED_PULLS_PER_TURN = 1

#: That lasts for this many turns after the last of their requests.
SHARED_TURNS = 32

#: A peer that takes nothing for this long after we hung up is cut off.
FAREWELL_S = 30.0

#: Clients above the limit of connections that are told so at a time, and for how long: under TLS
#: they have to finish a handshake first. Others are closed without a word.
REJECTIONS_MAX = 64
REJECTION_S = 5.0

TOO_MANY = b"ERROR Too many open connections\r\n"

MakeSession = Callable[[str, Callable[[], None]], Session]

_log = Log("connection")


class _NoSession:
    """Takes the place of a session before there is one, and after it has ended."""

    closing = False
    input_full = False
    successor: Session | None = None

    def receive_data(self, data: bytes) -> None: ...

    def tick(self, now: float) -> None: ...

    def data_to_send(self, budget: int) -> list[bytes]:
        return []

    def buffered(self) -> tuple[int, int]:
        return 0, 0

    def connection_lost(self) -> None: ...


_NO_SESSION: Session = _NoSession()
_NOTHING = (0, 0)


@implementer(IPushProducer, IHalfCloseableProtocol, IHandshakeListener)
class SessionProtocol(Protocol):
    """One connection. Made by `SessionFactory`; the session is made when it is connected."""

    nothing = _NOTHING  # what `_counted` is while nothing is held; for `core.serving.Line`
    _in_handshake = False  # of TLS

    def __init__(self, factory: SessionFactory, peer: str) -> None:
        self.session: Session = _NO_SESSION  # the conversation; statistics look at it
        self._answer: Callable[[bytes], bytes | None] | None = None
        self._draining: Draining | None = None
        self.bytes_read = 0  # received from the peer so far
        self.bytes_written = 0  # handed to the transport so far
        self._owner = factory
        self._wake_list = factory.wake_list
        self._connections = factory.connections
        self._peer = peer
        self._number = 0
        self._wire: Any = None  # the transport; Twisted's interfaces split it into three
        self._blocked = False  # the transport does not take more
        self._reading = True
        self._no_more_input = False  # the peer closed its half
        self._ending = False  # we hung up, or the connection is gone
        self._queued = False  # waits in the wake list
        self._chunks = 0  # received
        self._heard = factory.connections.heard  # by all others, when we last sent by ourselves
        self._shares = False  # others have sent something a short while ago
        self._shared_turns = 0
        self._since = self._active_at = factory.connections.monotonic()
        self._moved = 0  # bytes in both directions at the last tick
        self._in_transport = 0  # of the last write, while the transport does not take more
        self._counted = _NOTHING  # what the node's account has of us
        self._counted_at = (0, 0)  # bytes read and written then

    # --- Twisted's side -----------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Join the registry, take charge of the transport's backpressure, start the session."""
        self._wire = self.transport
        self._in_handshake = isinstance(self._wire, TLSMemoryBIOProtocol)
        self._number = self._connections.add(self)
        if self._in_handshake:
            self._connections.handshakes[self] = None
        self._wire.registerProducer(self, True)
        below = getattr(self._wire, "transport", None)  # of TLS
        for wire in (self._wire, below):
            if isinstance(wire, Direct):
                wire.times = self._connections.op_times
        try:
            self._follow(self._owner.make_session(self._peer, self.wake))
            self._pump()
        except Exception:
            self._failed()

    def handshakeCompleted(self) -> None:
        """TLS is agreed on."""
        self._in_handshake = False
        self._connections.handshakes.pop(self, None)

    def dataReceived(self, data: bytes) -> None:
        """Feed the session and send what it answers."""
        if self._ending:
            return
        self.bytes_read += len(data)
        self._chunks += 1
        self._connections.heard += 1
        try:
            reply = None
            if self._answer is None or self._blocked or self._counted is not _NOTHING:
                self.session.receive_data(data)
            else:
                reply = self._answer(data)
            wakes = self._wake_list
            if wakes.alone and wakes.waiting:
                wakes.run()  # a change reaches its streams before its writer has the answer
            if reply is not None:
                self._send(reply)
                return
            self._pump_after_input()
        except Exception:
            self._failed()

    def _pump_after_input(self) -> None:
        """Send what the session says to what has come."""
        self._pump()

    def _send(self, reply: bytes) -> None:
        """Write all that the session had to say."""
        if reply:
            self.bytes_written += len(reply)
            self._in_transport = len(reply)
            self._wire.write(reply)
            if self._blocked:
                self._pump()

    def readConnectionLost(self) -> None:
        """Answer what the peer asked before it closed its half, then hang up.

        A session that still has something to do for it says so by `input_full`.
        """
        self._no_more_input = True
        self._reading = False
        self._run()

    def writeConnectionLost(self) -> None:
        """Nothing to do: we never close only our half."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Let the session go."""
        self._release_transport()
        self._ending = True
        self._connections.remove(self)
        self._connections.buffers.forget(self)
        session, self.session = self.session, _NO_SESSION
        self._answer = self._draining = None
        if isinstance(self._wire, Direct):
            self._wire.line = None
        try:
            session.connection_lost()
        except Exception:
            self._failed()

    # --- the transport as consumer --------------------------------------------------------------

    def pauseProducing(self) -> None:
        """The transport has queued more than it likes: stop pulling."""
        self._blocked = True

    def resumeProducing(self) -> None:
        """Everything queued is sent: go on pulling."""
        self._blocked = False
        self._run()

    def stopProducing(self) -> None:
        """The transport is closing; `connectionLost` follows."""
        self._blocked = True

    # --- pumping ------------------------------------------------------------------------------

    def wake(self) -> None:
        """Pump soon: the session has something to send, or reads again, by itself. O(1)."""
        if not (self._queued or self._ending):
            self._queued = True
            self._owner.wake_list.add(self._woken)

    def _woken(self) -> None:
        self._queued = False
        self._run()

    def _run(self) -> None:
        """Pump from outside of `dataReceived`; never raises."""
        if self._ending:
            return
        heard = self._connections.heard - self._chunks
        if heard != self._heard:
            self._heard, self._shared_turns = heard, SHARED_TURNS
        if self._shared_turns:
            self._shared_turns -= 1
            self._shares = True
        try:
            self._pump()
        except Exception:
            self._failed()
        self._shares = False

    def _pump(self) -> None:
        """Write while the session has something and the transport takes it, then settle reading."""
        session = self.session
        if session.successor is not None:
            session = self._succeeded()
        pulls = 0
        budget = SHARED_PULL_BYTES if self._shares else PULL_BYTES
        most = SHARED_PULLS_PER_TURN if self._shares else PULLS_PER_TURN
        drained = False
        while not self._blocked:
            pieces = [] if drained else session.data_to_send(budget)
            if not pieces:
                if session.successor is not None:
                    session, drained = self._succeeded(), False
                    continue
                if session.closing or (self._no_more_input and not session.input_full):
                    self.hang_up()
                    return
                break
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self.bytes_written += len(data)
            self._in_transport = len(data)
            self._wire.write(data)
            drained = self._draining is not None and self._draining.drained
            pulls += 1
            if pulls == most and not drained:
                self._connections.yields += 1
                self.wake()
                break
        received, unsent = session.buffered()
        if self._blocked:
            unsent += self._in_transport
        if received or unsent or self._counted is not _NOTHING:
            self._count(received, unsent)
            if self._ending:
                return
        if self._reading is (
            session.input_full or self._blocked or session.closing or self._no_more_input
        ):
            self._turn_reading()

    def _count(self, received: int, unsent: int) -> None:
        """Tell the node's account what we hold."""
        bytes_read, bytes_written = self._counted_at
        arrived = self.bytes_read - bytes_read
        began = received != self._counted[0] + arrived
        took = self.bytes_written != bytes_written
        self._counted = (received, unsent) if received or unsent else _NOTHING
        self._counted_at = (self.bytes_read, self.bytes_written)
        self._connections.buffers.note(self, received, unsent, began=began, took=took)

    def shed(self) -> None:
        """See `connections.Holder`."""
        _log.debug("shed", peer=self._peer, received=self._counted[0], unsent=self._counted[1])
        self.abort()

    def _succeeded(self) -> Session:
        """Go on with the session that carries the conversation on, once the peer showed itself."""
        session = self.session
        while session.successor is not None:
            session = session.successor
        self._follow(session)
        return session

    def _follow(self, session: Session) -> None:
        self.session = session
        answering = getattr(session, "answers", False)  # not every session is an `Answering`
        self._answer = cast(Answering, session).answer if answering else None
        self._draining = cast(Draining, session) if hasattr(session, "drained") else None
        if isinstance(self._wire, Direct):
            make_line = getattr(session, "line", None) if answering else None
            self._wire.line = make_line(self, self._wire) if make_line else None

    def _turn_reading(self) -> None:
        self._reading = not self._reading
        if self._reading:
            self._wire.resumeProducing()
        else:
            self._wire.pauseProducing()

    # --- looking after it ---------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Pass the time on to the session; hang up on an idle peer, cut off one that stays."""
        moved = self.bytes_read + self.bytes_written
        if moved != self._moved:
            self._moved = moved
            self._active_at = now
        if self._ending or (self._blocked and self.session.closing):
            if now - self._active_at >= FAREWELL_S:
                self.abort()
            return
        limit = self._owner.login_timeout_s
        if limit and self._in_handshake and now - self._since >= limit:
            self.abort()
            return
        limit = self._owner.idle_timeout_s
        if limit and now - self._active_at >= limit:
            self._idled_out(now)
            return
        try:
            self.session.tick(now)
            self._pump()
        except Exception:
            self._failed()

    def _idled_out(self, now: float) -> None:
        _log.debug("idle", peer=self._peer, idle_s=round(now - self._active_at, 3))
        if self._blocked:
            self.abort()  # it would never take the rest
        else:
            self.hang_up()

    def info(self, now: float) -> ConnectionInfo:
        """Describe the connection."""
        return ConnectionInfo(
            self._number,
            self._peer,
            self._owner.listener,
            self._state(),
            now - self._since,
            max(0.0, now - self._active_at),
            self.bytes_read,
            self.bytes_written,
        )

    def _state(self) -> str:
        if self._ending:
            return "closing"
        if self._blocked:
            return "output-full"
        return "open" if self._reading else "input-full"

    def hang_up(self) -> None:
        """Close once everything already handed to the transport is sent; harmless twice."""
        if not self._ending:
            self._release_transport()
            self._ending = True
            self._active_at = self._connections.monotonic()
            self._wire.loseConnection()

    def _release_transport(self) -> None:
        """Be its producer no more: one would hold up the close, and under TLS be kept for ever."""
        if not self._ending:
            self._wire.unregisterProducer()

    def abort(self) -> None:
        """Close now and drop what was not sent; harmless twice."""
        self._release_transport()
        self._ending = True
        self._wire.abortConnection()

    def _failed(self) -> None:
        """Report a bug in a session, from inside of the except clause, and close."""
        self._connections.session_errors += 1
        _log.failure("session_failed", peer=self._peer, listener=self._owner.listener)
        self.hang_up()


class _Rejection(Protocol):
    """Tells a client above the limit of connections that it is refused.

    Under TLS that takes until the client has finished its handshake, so the registry has these,
    too, beside those that count, and cuts them off.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._since = connections.monotonic()

    def connectionMade(self) -> None:
        transport = cast(Any, self.transport)
        self._connections.rejections[self] = None
        transport.write(TOO_MANY)
        transport.loseConnection()

    def tick(self, now: float) -> None:
        """Go if the client takes its time."""
        if now - self._since >= REJECTION_S:
            self.abort()

    def abort(self) -> None:
        """Close now."""
        cast(Any, self.transport).abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._connections.rejections.pop(self, None)


class SessionFactory(ServerFactory):
    """Gives every accepted connection a session, while there is room for it.

    Args:
        make_session: called as ``make_session(peer, wake)``; `wake` may be called at any time, from
            the reactor's thread.
        connections: the node's registry, shared by all listeners.
        wake_list: the node's wake list, shared by all listeners.
        listener: its name, for statistics and logs.
        idle_timeout_s: 0 = never.
        login_timeout_s: a TLS handshake takes no longer; 0 = it may.
    """

    noisy = False

    def __init__(
        self,
        make_session: MakeSession,
        connections: Connections,
        wake_list: WakeList,
        listener: str,
        idle_timeout_s: float = 0.0,
        login_timeout_s: float = 0.0,
    ) -> None:
        self.make_session = make_session
        self.connections = connections
        self.wake_list = wake_list
        self.listener = listener
        self.idle_timeout_s = idle_timeout_s
        self.login_timeout_s = login_timeout_s

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        """Make the protocol of a connection from `addr`, or one that turns it away.

        ``None`` = it is closed at once: too many are being turned away.
        """
        peer = peer_text(addr)
        if self.connections.full and not self.connections.make_room():
            self.connections.reject(peer, self.listener)
            told = len(self.connections.rejections) < REJECTIONS_MAX
            return _Rejection(self.connections) if told else None
        return SessionProtocol(self, peer)


def peer_text(addr: IAddress | None) -> str:
    """Write an address as ``HOST:PORT``, ``[HOST]:PORT`` or ``unix``."""
    if isinstance(addr, address.IPv4Address):
        return f"{addr.host}:{addr.port}"
    if isinstance(addr, address.IPv6Address):
        return f"[{addr.host}]:{addr.port}"
    return "unix" if isinstance(addr, address.UNIXAddress) else str(addr)
