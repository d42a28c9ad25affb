"""How the nodes are reached whose documents are indexed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from uprmc.client.twisted_link import MakeEndpoint, over_tcp
from uprmc.login.credentials import Credentials


@dataclass(frozen=True)
class SourceNodes:
    """Nodes, and how to speak to them.

    Attributes:
        places: HOST:PORT of their upr listeners.
        endpoint: for streams.
        tls: for questions, ``None`` = without TLS.
        credentials: who logs in, ``None`` = nobody does.
    """

    places: tuple[str, ...]
    endpoint: MakeEndpoint = over_tcp
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None
