"""How an index process reaches the nodes whose documents it indexes, by its options."""

# mypy: allow-untyped-calls
from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import Certificate, optionsForClientTLS, trustRootFromCertificates
from zope.interface import implementer  # type: ignore[import-untyped]

from uprmc.cli.node_access import tls_context
from uprmc.client.nodes import check_place
from uprmc.client.twisted_link import over_tls
from uprmc.errors import ConfigError
from uprmc.index.source_nodes import SourceNodes
from uprmc.login.credentials import Credentials

_BEGIN = b"-----BEGIN CERTIFICATE-----"


def source_nodes(
    sources: tuple[str, ...],
    tls: bool,
    ca_file: str | None,
    credentials: Credentials | None,
    *,
    verify: bool,
) -> SourceNodes:
    """Return how to reach the nodes.

    Raises:
        ConfigError: a place is none, or the certificates cannot be read.
        MisuseError: likewise.
    """
    places = [check_place(each) for one in sources for each in one.split(",")]
    context: ssl.SSLContext | None = tls_context(tls, ca_file, verify)
    found = tuple(dict.fromkeys(places))
    if context is None:
        return SourceNodes(found, credentials=credentials)
    options = _trusting(ca_file) if verify else _Unverified
    return SourceNodes(found, over_tls(options), context, credentials)


def _trusting(ca_file: str | None) -> Callable[[str], Any]:
    if ca_file is None:
        return optionsForClientTLS
    parts = Path(ca_file).read_bytes().split(_BEGIN)[1:]
    try:
        root = trustRootFromCertificates([Certificate.loadPEM(_BEGIN + part) for part in parts])
    except SSL.Error as error:
        raise ConfigError(f"--tls-ca {ca_file}: {error}") from None
    return lambda name: optionsForClientTLS(name, trustRoot=root)


@implementer(IOpenSSLClientConnectionCreator)
class _Unverified:
    """TLS without a look at the certificate: to the node that has started us."""

    def __init__(self, name: str) -> None:
        self._context = SSL.Context(SSL.TLS_CLIENT_METHOD)

    def clientConnectionForTLS(self, protocol: Any) -> Any:  # noqa: N802  # Twisted's name
        """Return a connection."""
        return SSL.Connection(self._context, None)
