"""How the nodes are reached whose documents are indexed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from uprmc.client.connection import NodeConnection
from uprmc.client.twisted_client import MakeEndpoint, over_tcp
from uprmc.login.credentials import Credentials
from uprmc.remote import features
from uprmc.remote.blocking import KeptConnections

#: A node that says nothing for this long is given up.
_ANSWER_S = 5.0


@dataclass(frozen=True)
class SourceNodes:
    """Nodes, and how to speak to them."""

    places: tuple[str, ...]  # HOST:PORT of their upr listeners
    endpoint: MakeEndpoint = over_tcp  # for streams
    tls: ssl.SSLContext | None = None  # for questions, ``None`` = without TLS
    credentials: Credentials | None = None  # who logs in, ``None`` = nobody does


def questioning(tls: ssl.SSLContext | None, credentials: Credentials | None) -> KeptConnections:
    """Return connections for questions, which block."""

    def dial(place: str) -> NodeConnection:
        return NodeConnection(place, _ANSWER_S, tls, credentials, features.SURVEYOR, b"uprmc-index")

    return KeptConnections(dial)
