"""The certificate and key that both listeners show when they serve TLS."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto
from twisted.internet.ssl import CertificateOptions, TLSVersion

from uprmc.config import ServerSettings
from uprmc.errors import ConfigError

_CERT = "server.tls_cert"
_KEY = "server.tls_key"


def tls_options(settings: ServerSettings) -> CertificateOptions | None:
    """Load what the settings name, checked so that no client is the first to find out.

    Returns:
        what `listener.listen` wants for TLS 1.2 and newer, or None when TLS is not asked for.

    Raises:
        ConfigError: a file is missing, unreadable or no PEM, or they do not belong together.
    """
    if not (settings.tls_cert or settings.tls_key):
        return None
    chain = _chain(settings.tls_cert)
    options = CertificateOptions(
        privateKey=_key(settings.tls_key),
        certificate=chain[0],
        extraCertChain=chain[1:],
        raiseMinimumTo=TLSVersion.TLSv1_2,
    )
    try:
        options.getContext()
    except (SSL.Error, ValueError) as error:
        raise ConfigError(
            f"{_KEY}: {settings.tls_key} does not belong to the certificate in "
            f"{settings.tls_cert} ({_reason(error)})"
        ) from None
    return options


def _read(setting: str, path: str) -> bytes:
    if not path:
        raise ConfigError(f"{_CERT} and {_KEY} go together; {setting} is missing")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror}") from None


def _chain(path: str) -> list[crypto.X509]:
    """Return the certificates in the file, the server's own first."""
    pem = _read(_CERT, path)
    try:
        return [crypto.X509.from_cryptography(one) for one in x509.load_pem_x509_certificates(pem)]
    except ValueError:
        raise ConfigError(f"{_CERT}: {path} holds no PEM certificate") from None


def _key(path: str) -> crypto.PKey:
    pem = _read(_KEY, path)
    try:
        key = load_pem_private_key(pem, password=None)
        return crypto.PKey.from_cryptography_key(key)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(
            f"{_KEY}: {path} is of a kind we cannot use: it must be RSA, DSA or EC, and must not "
            "be encrypted"
        ) from None
    except ValueError:
        raise ConfigError(f"{_KEY}: {path} holds no PEM private key") from None


def _reason(error: Exception) -> str:
    """Pick the readable part out of OpenSSL's list of errors."""
    entries = error.args[0] if error.args and isinstance(error.args[0], list) else []
    return str(entries[0][-1]) if entries else str(error) or "they do not match"
