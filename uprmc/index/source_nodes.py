"""How the nodes are reached whose documents are indexed."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.client.twisted_link import MakeEndpoint, over_tcp
from uprmc.errors import RemoteProtocolError
from uprmc.login.credentials import Credentials

#: A node that says nothing for this long is given up.
_ANSWER_S = 5.0

_Result = TypeVar("_Result")


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


class Connections:
    """Connections for questions, which block; kept open, and used by one thread at a time."""

    def __init__(self, tls: ssl.SSLContext | None, credentials: Credentials | None) -> None:
        self._tls, self._credentials = tls, credentials
        self._open: dict[str, NodeConnection] = {}

    def ask(self, place: str, question: Callable[[NodeConnection], _Result]) -> _Result:
        """Return what a question to a node gives; it may be put twice.

        A connection that was kept says nothing of its node when it fails: that may have been
        started again meanwhile. So it is dialled once more.

        Raises:
            NodeError: the node does not answer, or makes no sense.
        """
        kept = self._open.get(place)
        if kept is not None:
            try:
                return self._put(kept, question)
            except NodeError:
                self._drop(place)
        self._open[place] = NodeConnection(place, _ANSWER_S, self._tls, self._credentials)
        try:
            return self._put(self._open[place], question)
        except BaseException:
            self._drop(place)
            raise

    def _put(
        self, connection: NodeConnection, question: Callable[[NodeConnection], _Result]
    ) -> _Result:
        try:
            return question(connection)
        except (RemoteProtocolError, ValueError) as error:
            reason = f"the node at {connection.place} makes no sense: {error}"
            raise NodeError(reason) from None

    def _drop(self, place: str) -> None:
        self._open.pop(place).close()

    def close(self) -> None:
        """Hang up."""
        while self._open:
            self._drop(next(iter(self._open)))
