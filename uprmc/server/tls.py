"""The certificate and key that listeners show when they serve TLS; they may be renewed."""

# mypy: allow-untyped-calls
from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLContextFactory
from twisted.internet.protocol import Protocol
from twisted.internet.ssl import CertificateOptions, TLSVersion
from twisted.protocols.policies import WrappingFactory
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.config import ServerSettings
from uprmc.errors import ConfigError
from uprmc.web import NOT_HTTPS, LimitedSite

_CERT = "server.tls_cert"
_KEY = "server.tls_key"

#: First byte of what a client says that speaks TLS.
_TLS_HANDSHAKE = 0x16


@implementer(IOpenSSLContextFactory)
class ServedTls:
    """What listeners show: the certificate and key that were loaded last."""

    def __init__(self, settings: ServerSettings) -> None:
        """Load what the settings name, checked so that no client is the first to find out.

        Raises:
            ConfigError: a file is missing, unreadable or no PEM, or they do not belong together.
        """
        self._options = _loaded(settings)

    def reload(self, settings: ServerSettings) -> None:
        """Show what these settings name to connections to come; raises as the constructor.

        What was shown before stays when it raises.
        """
        self._options = _loaded(settings)

    def getContext(self) -> SSL.Context:  # noqa: N802  # Twisted asks for each connection
        """Return what the next connection is made with."""
        return self._options.getContext()


def tls_options(settings: ServerSettings) -> ServedTls | None:
    """Return what `listener.listen` wants, None when TLS is not asked for; raises `ConfigError`."""
    return ServedTls(settings) if settings.tls_cert or settings.tls_key else None


def https_options(settings: ServerSettings, tls: ServedTls | None) -> ServedTls | None:
    """Return what the listeners for HTTP want: `tls`, None when they are to stay without."""
    return tls if settings.http_tls else None


def over_tls(reactor: Any, tls: ServedTls, factory: Any) -> Any:
    """Return a factory whose connections speak TLS below those of `factory`."""
    wrapped = _OverTls(cast(Any, tls), False, factory, reactor)
    if isinstance(factory, LimitedSite):
        wrapped.protocol = _Https
    return wrapped


class _OverTls(TLSMemoryBIOFactory):
    """Turns away at once whom the factory above turns away."""

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802  # Twisted's name
        """Make the protocol of a connection, ``None`` = there is no room."""
        above = self.wrappedFactory.buildProtocol(addr)
        return None if above is None else self.protocol(self, above)


class _Closed(Protocol):
    """A connection that is over at once."""

    def connectionMade(self) -> None:  # noqa: N802  # Twisted's name
        """Close it."""
        cast(Any, self.transport).abortConnection()


class AlwaysConnected(WrappingFactory[Any]):
    """A factory for an endpoint that adds TLS itself, and cannot bear that one is turned away."""

    noisy = False

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802  # Twisted's name
        """Make the protocol of a connection."""
        found = self.wrappedFactory.buildProtocol(addr)
        return _Closed() if found is None else found


class _Https(BufferingTLSTransport):
    """A connection of a site; a client that speaks plain HTTP reads what it should do instead."""

    _first = True

    def dataReceived(self, data: bytes) -> None:  # noqa: N802  # Twisted's name
        """Look at the first byte."""
        first, self._first = self._first, False
        if first and data[0] != _TLS_HANDSHAKE:
            transport = cast(Any, self.transport)
            transport.write(NOT_HTTPS)
            transport.loseConnection()
        else:
            super().dataReceived(data)


def _loaded(settings: ServerSettings) -> CertificateOptions:
    """Return TLS 1.2 and newer with the certificate and key that the settings name."""
    options = CertificateOptions(raiseMinimumTo=TLSVersion.TLSv1_2)
    context = options.getContext()  # made once and kept by the options
    _use_certificate(context, settings.tls_cert)
    _use_key(context, settings.tls_key, settings.tls_cert)
    return options


def _use_certificate(context: Any, path: str) -> None:
    _read(_CERT, path)
    try:
        context.use_certificate_chain_file(path)
    except SSL.Error:
        raise ConfigError(f"{_CERT}: {path} holds no PEM certificate") from None


def _use_key(context: Any, path: str, certificate: str) -> None:
    key = _load_key(path)
    try:
        context.use_privatekey(key)
        context.check_privatekey()
    except SSL.Error:
        raise ConfigError(
            f"{_KEY}: {path} does not belong to the certificate in {certificate}"
        ) from None


def _load_key(path: str) -> Any:
    """Load a key without ever asking for a password on the terminal, as OpenSSL would."""
    try:
        return load_pem_private_key(_read(_KEY, path), password=None)
    except TypeError:
        raise ConfigError(f"{_KEY}: {path} is encrypted; that is not supported") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{_KEY}: {path} holds no PEM private key") from None


def _read(setting: str, path: str) -> bytes:
    if not path:
        raise ConfigError(f"{_CERT} and {_KEY} go together; {setting} is missing")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from None
