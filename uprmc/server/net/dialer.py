"""Connections that this node opens: names looked up, TLS if asked for, failures in plain words.

`Dialer` is a running node's `Dial`. A call tries the addresses of a name one after the other. Its
connection is a `SessionProtocol` like those that are accepted, in the same registry.

Note: it uses neither Twisted's endpoints nor Twisted's check of certificates. Endpoints and
connectors are in cycles with their connections, and with the collector off (`server.system`) they
would never be freed. A call unties its connector when the connection is over.
"""

# ruff: noqa: N802  # Twisted's names
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from OpenSSL import SSL, crypto
from service_identity.exceptions import CertificateError, VerificationError
from service_identity.pyopenssl import verify_hostname, verify_ip_address
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.error import (
    ConnectBindError,
    ConnectionDone,
    ConnectionLost,
    ConnectionRefusedError,
    DNSLookupError,
    NoRouteError,
    TimeoutError,
)
from twisted.internet.interfaces import (
    IAddress,
    IOpenSSLClientConnectionCreator,
    IResolutionReceiver,
)
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    TLSVersion,
    trustRootFromCertificates,
)
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.config import UprSettings
from uprmc.errors import ConfigError
from uprmc.login.credentials import Credentials, credentials_from
from uprmc.places import parsed
from uprmc.ports import MakeSession
from uprmc.server.net.adapter import SessionProtocol
from uprmc.server.net.connections import Connections
from uprmc.server.work.turns import WakeList

_LISTENER = "replication"

#: First byte of TLS's complaint about a peer that does not speak it.
_TLS_ALERT = 0x15

_PEM_END = b"-----END CERTIFICATE-----"

_SPEAKS_TLS = "it speaks TLS: set upr.dial_ca to the PEM of the authority that certifies it"
_SPEAKS_NO_TLS = "it does not speak TLS: leave upr.dial_ca out, or set server.tls_cert there"
#: What OpenSSL says of an answer that is no TLS at all.
_NO_TLS = ("wrong version number", "record layer failure", "packet length too long", "http request")

_REFUSED = "connection refused: is the node running, and is this its upr listener?"
_CLOSED_UNHEARD = (
    "it hung up without an answer: is it the upr listener of a node, and does it want TLS "
    "(upr.dial_ca)?"
)


def dialling_as(settings: UprSettings) -> Credentials | None:
    """Return who the node logs in to sources as, ``None`` = nobody; raises `ConfigError`."""
    try:
        return credentials_from(settings.dial_user, settings.dial_password_file)
    except ConfigError as error:
        raise ConfigError(f"upr.dial_user, upr.dial_password_file: {error}") from None


def trust_root(settings: UprSettings) -> Any:
    """Load whom to trust when dialling.

    Returns:
        what `Dialer` wants for TLS, or None when TLS is not asked for.

    Raises:
        ConfigError: ``upr.dial_ca`` cannot be read or holds no certificate.
    """
    path = settings.dial_ca
    if not path:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"upr.dial_ca: {path} cannot be read: {error.strerror}") from None
    return trust_of(text, f"upr.dial_ca: {path}")


def trust_of(text: bytes, what: str) -> Any:
    """Return whom the certificates in a text are of; `what` names it. Raises `ConfigError`."""
    found = [part + _PEM_END for part in text.split(_PEM_END)[:-1]]
    try:
        certificates = [Certificate.loadPEM(pem) for pem in found]
    except (crypto.Error, ValueError):
        certificates = []
    if not certificates:
        raise ConfigError(f"{what} holds no PEM certificate")
    return trustRootFromCertificates(certificates)


class Dialer:
    """Opens connections for one node."""

    def __init__(
        self,
        reactor: Any,
        connections: Connections,
        wake_list: WakeList,
        timeout_s: float,
        trust: Any = None,
    ) -> None:
        """Prepare it; `trust` is what `trust_root` returned."""
        self.reactor = reactor
        self.connections = connections
        self.wake_list = wake_list
        self.timeout_s = timeout_s
        self._context = _client_context(trust)

    def __call__(
        self, place: str, make_session: MakeSession, failed: Callable[[str], None]
    ) -> Call:
        """Open a connection (see `Dial`). `failed` is called in a later turn only."""
        return Call(self, place, make_session, failed)

    def wrapped(self, host: str, factory: Any) -> Any:
        """Return the factory, made to speak TLS where that is asked for."""
        if self._context is None:
            return factory
        creator = _TlsCreator(self._context, host)
        return TLSMemoryBIOFactory(cast(Any, creator), True, factory, self.reactor)


def _client_context(trust: Any) -> SSL.Context | None:
    if trust is None:
        return None
    return CertificateOptions(trustRoot=trust, raiseMinimumTo=TLSVersion.TLSv1_2).getContext()


@implementer(IOpenSSLClientConnectionCreator)
class _TlsCreator:
    """Makes the TLS side of connections to one host.

    Whose certificate it is `DialledProtocol` looks at, after the handshake. Twisted's own creator
    does so during it, and stays with what it was looking at when a handshake never ends.
    """

    def __init__(self, context: SSL.Context, host: str) -> None:
        self._context = context
        self._host = host

    def clientConnectionForTLS(self, _protocol: object) -> SSL.Connection:
        """See `IOpenSSLClientConnectionCreator`."""
        connection = SSL.Connection(self._context, None)
        if not _is_literal(self._host):
            connection.set_tlsext_host_name(self._host.encode("ascii"))
        return connection


def _is_literal(host: str) -> bool:
    return isIPAddress(host) or isIPv6Address(host)


def _is_name(host: str) -> bool:
    """Tell whether it can be looked up; an empty or endless part makes Python's resolver raise."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


@implementer(IResolutionReceiver)
class Call(ClientFactory):
    """One attempt to reach a place. Implements `Dialled`; a factory of one connection.

    Attributes:
        host: the name or address that is dialled.
        make_session, connections, wake_list, listener, idle_timeout_s, login_timeout_s: see
            `SessionFactory`.
    """

    noisy = False
    listener = _LISTENER
    idle_timeout_s = login_timeout_s = 0.0

    def __init__(
        self,
        dialer: Dialer,
        place: str,
        make_session: MakeSession,
        failed: Callable[[str], None],
    ) -> None:
        self.host, self._port, _ = parsed(place)
        self.connections = dialer.connections
        self.wake_list = dialer.wake_list
        self._dialer = dialer
        self._place = place
        self._addresses: list[str] = []
        self._make_session: MakeSession | None = make_session
        self._failed: Callable[[str], None] | None = failed
        self._connector: Any = None
        self._transport: Any = None
        self._protocol: SessionProtocol | None = None
        dialer.reactor.callLater(0, self._look_up)

    def abandon(self) -> None:
        """See `Dialled`."""
        self._make_session = self._failed = None
        connector, protocol = self._connector, self._protocol
        if protocol is not None and protocol.bytes_read:
            protocol.hang_up()
        elif protocol is not None:
            protocol.abort()  # one that never spoke may not end a TLS handshake either
        elif connector is not None:
            connector.disconnect()

    def tell(self, why: str) -> None:
        """Say why there is no connection (any more); the first reason counts."""
        failed, self._failed = self._failed, None
        self._make_session = None
        if failed is not None:
            failed(why)

    # --- addresses ------------------------------------------------------------------------------

    def _look_up(self) -> None:
        if self._failed is None:
            return
        if _is_literal(self.host):
            self._addresses = [self.host]
            self._connect()
        elif not _is_name(self.host):
            self.tell(f"host {self.host} is not known")
        else:
            self._dialer.reactor.nameResolver.resolveHostName(self, self.host, self._port)

    def resolutionBegan(self, _resolution: object) -> None:
        """Nothing: it cannot be stopped either."""

    def addressResolved(self, address: IAddress) -> None:
        """Keep an address; see `IResolutionReceiver`."""
        self._addresses.append(cast(Any, address).host)

    def resolutionComplete(self) -> None:
        """Try the first address."""
        if self._failed is None:
            return
        if self._addresses:
            self._connect()
        else:
            self.tell(f"host {self.host} is not known")

    def _connect(self) -> None:
        factory = self._dialer.wrapped(self.host, self)
        address = self._addresses.pop(0)
        self._dialer.reactor.connectTCP(address, self._port, factory, self._dialer.timeout_s)

    # --- Twisted's side -------------------------------------------------------------------------

    def startedConnecting(self, connector: Any) -> None:
        """Keep what ends it."""
        self._connector, self._transport = connector, connector.transport

    def buildProtocol(self, _addr: IAddress | None) -> Protocol | None:
        """Make the protocol of the connection, unless nobody wants it any more."""
        if self._make_session is None:
            return None
        self._protocol = DialledProtocol(self, self._place)
        return self._protocol

    def make_session(self, _peer: str, wake: Callable[[], None]) -> Any:
        """See `SessionFactory`."""
        make, self._make_session = self._make_session, None
        assert make is not None, "one session for each call"
        return make(wake)

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        """Try the next address, or give up."""
        self._untie(connector)
        if self._addresses and self._failed is not None:
            self._connect()
        else:
            self.tell(self._in_words(reason.value))

    def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
        """It is over."""
        self._untie(connector)

    def _untie(self, connector: Any) -> None:
        transport, self._transport = self._transport, None
        self._connector = self._protocol = connector.transport = None
        self._dialer.reactor.callLater(0, _untie_from_itself, transport)

    def lost(self, reason: Failure, heard: bool) -> None:
        """Learn why the connection ended, and whether the other end ever said something."""
        error = reason.value
        if not heard and isinstance(error, ConnectionDone | ConnectionLost):
            self.tell(_CLOSED_UNHEARD)
        else:
            self.tell(self._in_words(error))

    def _in_words(self, error: BaseException | None) -> str:
        if isinstance(error, ConnectionRefusedError):
            return _REFUSED
        if isinstance(error, TimeoutError):
            return f"no answer for {self._dialer.timeout_s:g} s: host down, or port blocked?"
        if isinstance(error, DNSLookupError):
            return f"host {self.host} is not known"
        if isinstance(error, NoRouteError):
            return f"no route to {self.host}"
        if isinstance(error, SSL.Error):
            return _tls_failure(error)
        if isinstance(error, ConnectionDone):
            return "it closed the connection"
        cause = error.osError if isinstance(error, ConnectBindError) else error
        return " ".join(str(cause).split()) or type(cause).__name__


def _untie_from_itself(transport: Any) -> None:
    """Take away what Twisted has bound to a transport while it connected.

    Not before the turn of the reactor is over, which may yet call them.
    """
    for name in ("doRead", "doWrite"):
        vars(transport).pop(name, None)


def _tls_failure(error: SSL.Error) -> str:
    reasons = ", ".join(entry[-1] for entry in error.args[0]) if error.args else ""
    if "certificate verify failed" in reasons:
        return "its certificate is not certified by upr.dial_ca, or has expired"
    if not reasons or any(each in reasons for each in _NO_TLS):
        return _SPEAKS_NO_TLS
    return f"TLS failed: {reasons}"


class DialledProtocol(SessionProtocol):
    """One connection that we have opened; tells its call why it ended."""

    def __init__(self, call: Call, peer: str) -> None:
        super().__init__(cast(Any, call), peer)
        self._call = call

    def connectionMade(self) -> None:
        """See `SessionProtocol`; small frames leave at once, a silent death is found out."""
        transport = cast(Any, self.transport)
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        super().connectionMade()

    def handshakeCompleted(self) -> None:
        """Look whether the certificate is of who was dialled, before anything is heard."""
        super().handshakeCompleted()
        connection, host = cast(Any, self.transport).getHandle(), self._call.host
        verify = verify_ip_address if _is_literal(host) else verify_hostname
        try:
            verify(connection, host)
        except (VerificationError, CertificateError):
            self._call.tell(f"its certificate is not for {host}: dial it by the name in there")
            self.abort()

    def dataReceived(self, data: bytes) -> None:
        """See `SessionProtocol`; a TLS listener's complaint is understood."""
        if not self.bytes_read and data[0] == _TLS_ALERT:
            self.bytes_read = len(data)
            self._call.tell(_SPEAKS_TLS)
            self.hang_up()
            return
        super().dataReceived(data)

    def _pump_after_input(self) -> None:
        """See `SessionProtocol`; what a node answers us is no request, so others go first."""
        self._run()

    def _turn_reading(self) -> None:
        """See `SessionProtocol`; what is written during a handshake waits for what is read."""
        if not self._in_handshake:
            super()._turn_reading()

    def tick(self, now: float) -> None:
        """See `SessionProtocol`; one that takes nothing is not asked whether we may leave."""
        super().tick(now)
        if self.session.closing:
            self.abort()

    def hang_up(self) -> None:
        """See `SessionProtocol`; a source that has failed is not waited for, it may be silent."""
        if self.session.closing:
            self.abort()
        else:
            super().hang_up()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See `SessionProtocol`."""
        if not self.session.closing:
            self._call.lost(reason, bool(self.bytes_read))
        super().connectionLost(reason)
