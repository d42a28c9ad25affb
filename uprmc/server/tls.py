"""The certificate and key that both listeners show when they serve TLS; they may be renewed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLContextFactory
from twisted.internet.ssl import CertificateOptions, TLSVersion
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.config import ServerSettings
from uprmc.errors import ConfigError

_CERT = "server.tls_cert"
_KEY = "server.tls_key"


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
