"""Documents as they are now, for answers with `include_docs`: read from the nodes, blocking.

Source: systems reference c.8.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.index.source import Source
from uprmc.model import vbucket_of
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode

#: A node that says nothing for this long is given up.
_ANSWER_S = 5.0


class DocumentReader:
    """Reads documents; any thread may call it, one at a time reads."""

    def __init__(self, source: Source, tls: ssl.SSLContext | None) -> None:
        self._source, self._tls = source, tls
        self._lock = threading.Lock()
        self._connections: dict[str, NodeConnection] = {}

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return documents as JSON, ``None`` for those that are not there or cannot be had now."""
        with self._lock:
            found: dict[bytes, bytes] = {}
            for place, some in self._by_place(keys).items():
                with suppress(NodeError):
                    found |= self._ask(place, some)
            return [found.get(key) for key in keys]

    def _by_place(self, keys: Sequence[bytes]) -> dict[str, dict[bytes, int]]:
        total = self._source.total
        found: dict[str, dict[bytes, int]] = {}
        for key in keys if total else ():
            vbucket = vbucket_of(key, total)
            found.setdefault(self._source.place_of(vbucket), {})[key] = vbucket
        return found

    def _ask(self, place: str, keys: Mapping[bytes, int]) -> dict[bytes, bytes]:
        try:
            asked = [RequestFrame(Opcode.GET, key=key, vbucket=vb) for key, vb in keys.items()]
            answers = list(self._at(place).ask_all(asked))
        except NodeError:
            connection = self._connections.pop(place, None)
            if connection is not None:
                connection.close()
            raise
        return {
            key: _as_json(answer.value)
            for key, answer in zip(keys, answers, strict=True)
            if not answer.status
        }

    def _at(self, place: str) -> NodeConnection:
        if place not in self._connections:
            self._connections[place] = NodeConnection(
                place, _ANSWER_S, self._tls, self._source.credentials
            )
        return self._connections[place]

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()


def _as_json(value: bytes) -> bytes:
    """Return a document as it is shown: what is not JSON as base64 text."""
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return json.dumps(base64.b64encode(value).decode()).encode()
    return value
