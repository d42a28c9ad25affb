"""Connections of the Twisted client: endpoints, TLS, bytes to and fro, and reading no further.

A `Link` is one connection to one node, from the attempt to connect until nothing of it is left in
the reactor. It keeps what it hears until its owner takes it. Failures are named: unreachable, TLS,
lost.
"""

# ruff: noqa: N802  # Twisted's names
# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from typing import Protocol as Interface

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import (
    HostnameEndpoint,
    TCP4ClientEndpoint,
    TCP6ClientEndpoint,
    UNIXClientEndpoint,
    connectProtocol,
)
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IHandshakeListener,
    ISSLTransport,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.client.errors import ClientError, NodeUnreachable, TlsFailed, ended
from uprmc.client.node_session import NodeSession
from uprmc.places import tls_refusal
from uprmc.protocol.opcodes import HEADER_BYTES

#: Makes what connects to a node: of reactor, host, port.
MakeEndpoint = Callable[[Any, str, int], Any]

#: So much is read before it is dealt with: one commit of the state for so much.
BATCH_MAX_BYTES = 1024 * 1024


def over_tcp(reactor: Any, host: str, port: int) -> Any:
    """Return an endpoint without TLS; a host that begins with a slash is a unix socket.

    Addresses are not looked up: that would take a thread.
    """
    if host.startswith("/"):
        return UNIXClientEndpoint(reactor, host)
    if isIPAddress(host):
        return TCP4ClientEndpoint(reactor, host, port)
    if isIPv6Address(host):
        return TCP6ClientEndpoint(reactor, host, port)
    return HostnameEndpoint(reactor, host, port)


def over_tls(options: Callable[[str], Any]) -> MakeEndpoint:
    """Return what makes endpoints with TLS.

    Args:
        options: of a host's name, such as `twisted.internet.ssl.optionsForClientTLS`, which trusts
            what the system trusts, or one with a `trustRoot` of your own.
    """

    def endpoint(reactor: Any, host: str, port: int) -> Any:
        name = "localhost" if host.startswith("/") else host
        return _TlsEndpoint(reactor, options(name), over_tcp(reactor, host, port))

    return endpoint


@implementer(IStreamClientEndpoint)
class _TlsEndpoint:
    """Does what `wrapClientTLS` does, whose small writes would wait in the process's reactor."""

    def __init__(self, reactor: Any, options: Any, endpoint: Any) -> None:
        self._reactor = reactor
        self._options = options
        self._endpoint = endpoint

    def connect(self, factory: Any) -> Deferred[Any]:
        """See `IStreamClientEndpoint`."""
        wrapped = TLSMemoryBIOFactory(self._options, True, factory, self._reactor)
        connecting: Deferred[Any] = self._endpoint.connect(wrapped)
        return connecting.addCallback(lambda protocol: protocol.wrappedProtocol)


class LinkOwner(Interface):
    """Who deals with what links hear.

    Attributes:
        held: it is busy: links read no further.
    """

    held: bool

    def hear(self) -> None:
        """A link is ready, has heard something, or has ended."""

    def left(self, link: Link) -> None:
        """Nothing of a link is left in the reactor."""


@implementer(IHandshakeListener)
class Link(Protocol):
    """One connection to one node, from the attempt to its end.

    Attributes:
        place: HOST:PORT.
        session: the rules of it, once it is ready.
        ready: connected, TLS agreed upon.
        lost: why it ended or never came about.
        gone: nothing of it is left in the reactor.
        paused: nothing is read from it for now.
    """

    def __init__(self, owner: LinkOwner, place: str, deadline: float) -> None:
        self.place = place
        self.session: NodeSession | None = None
        self.ready = self.gone = self.paused = False
        self.lost: ClientError | None = None
        self._owner = owner
        self._deadline = deadline
        self._tls = self._answered = False
        self._connecting: Deferred[Any] | None = None
        self._pieces: list[bytes] = []
        self._size = self._heard = 0
        self._listens_ahead = False

    # --- coming and going -----------------------------------------------------------------------

    def dial(self, endpoint: Any) -> None:
        """Connect."""
        self._connecting = connectProtocol(endpoint, self)
        self._connecting.addErrback(self._unreachable)

    def _unreachable(self, reason: Failure) -> None:
        self._end(
            NodeUnreachable(
                f"no node answers at {self.place}: {_why(reason)}; is it running, and is this its "
                "upr listener?"
            )
        )

    def connectionMade(self) -> None:
        """The socket is connected."""
        self._tls = ISSLTransport.providedBy(self.transport)
        if ITCPTransport.providedBy(self.transport):
            cast(Any, self.transport).setTcpNoDelay(True)
        if not self._tls:
            self.handshakeCompleted()

    def handshakeCompleted(self) -> None:
        """Both sides agree on TLS, or there is none."""
        self.ready = True
        self._owner.hear()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The socket is closed."""
        if self._tls and not self.ready:
            self._end(TlsFailed(tls_refusal(self.place, _why(reason))))
        else:
            self._end(ended(self.place, _why(reason), doubtful=not (self._tls or self._answered)))

    def _end(self, error: ClientError) -> None:
        self.gone, self.lost = True, error
        self._owner.left(self)

    def too_late(self, now: float) -> None:
        """Raise `NodeUnreachable` if connecting takes too long."""
        if not self.ready and not self.gone and now > self._deadline:
            raise NodeUnreachable(f"no node answers at {self.place} in time; see the network")

    def hang_up(self) -> None:
        """Close the socket at once; what was not sent is dropped."""
        if self.transport is not None:
            cast(Any, self.transport).abortConnection()
        elif self._connecting is not None:
            self._connecting.cancel()

    # --- bytes ----------------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Keep what has come; while the handler is busy, answer keep-alives in it.

        No more is read than a batch, or what the node may be ahead while the handler is busy.
        """
        self._pieces.append(data)
        self._size += len(data)
        self._answered = self._answered or len(data) >= HEADER_BYTES
        if self._listens_ahead:
            self.hear_ahead()
        elif self._owner.held or self._size >= BATCH_MAX_BYTES:
            self._pause()
        self._owner.hear()

    def hear_ahead(self) -> None:
        """The handler has been busy for long: answer the keep-alives in what was read, and read on.

        No further than the node may be ahead.
        """
        session = self.session
        if session is None or self.gone or not session.room_ahead:
            self._pause()
            return
        self._listens_ahead = True
        answers = b"".join(session.hear_ahead(piece) for piece in self._pieces[self._heard :])
        self._heard = len(self._pieces)
        if answers:
            cast(Any, self.transport).write(answers)
        if not session.room_ahead:
            self._pause()
        elif self.paused:
            self.paused = False
            cast(Any, self.transport).resumeProducing()

    def _pause(self) -> None:
        if not self.paused and not self.gone and self.transport is not None:
            self.paused = True
            cast(Any, self.transport).pauseProducing()

    @property
    def held_bytes(self) -> int:
        """What has come, from the batch that is being handed over on."""
        decoder = self.session.decoder if self.session is not None else None
        handed = decoder.counted_bytes + len(decoder.begun) if decoder is not None else 0
        return self._size + handed

    def take(self) -> bytes:
        """Return what has come."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = self._heard = 0
        self._listens_ahead = False
        self.read_on()
        return data

    def read_on(self) -> None:
        """Read again, unless a batch waits."""
        if self.paused and self._size < BATCH_MAX_BYTES:
            self.paused = False
            cast(Any, self.transport).resumeProducing()


def _why(reason: Failure) -> str:
    if isinstance(reason.value, ConnectionDone):
        return "it closed the connection"
    return " ".join(str(reason.value).split()) or type(reason.value).__name__
