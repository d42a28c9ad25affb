"""TLS contexts from plain values, made where a connection is made: contexts do not pickle."""

from __future__ import annotations

import ssl

from uprmc.columnar.access import Tls
from uprmc.columnar.errors import BadOption


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return a context.

    Raises:
        BadOption: a file cannot be read, or holds no certificate or key.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BadOption(f"tlsCaFile={tls.ca_file}: {_why(error)}") from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            files = f"tlsCertFile={tls.cert_file} tlsKeyFile={tls.key_file}"
            raise BadOption(f"{files}: {_why(error)}") from None
    return context


def _why(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
