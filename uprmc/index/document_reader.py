"""Documents as they are now, for answers with `include_docs`: read from the nodes, blocking.

Source: systems reference c.8.
"""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence

from uprmc.client.connection import NodeConnection, NodeError
from uprmc.index.json_text import Unreadable, portable
from uprmc.index.model import Lost
from uprmc.index.source import Source
from uprmc.index.source_nodes import Connections
from uprmc.model import vbucket_of
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import KEY_MAX_BYTES, Opcode, Status

#: The source is left alone for this long.
_AGAIN_S = 1.0

#: The source has this long to ask its nodes.
_REFRESH_S = 30.0

#: What is known of documents, by key.
_Found = dict[bytes, bytes | Lost | None]


class DocumentReader:
    """Reads documents; any thread may call it, one at a time reads.

    Args:
        source: tells which node to ask.
        from_thread: has something called in the reactor's thread.
    """

    def __init__(self, source: Source, from_thread: Callable[[Callable[[], object]], None]) -> None:
        self._source, self._from_thread = source, from_thread
        self._refreshed = threading.Event()
        self._closed = False
        self._lock = threading.Lock()
        self._connections = Connections(source.tls, source.credentials)
        self._silent: dict[str, tuple[int, str]] = {}
        self._refreshed_at = float("-inf")

    def get(self, keys: Sequence[bytes]) -> list[bytes | Lost | None]:
        """Return documents as JSON, ``None`` for those that are not there.

        A node that does not answer, or no longer has the vBucket, may have been replaced: then the
        source finds out, and the node that is right now is asked.
        """
        possible = [key for key in dict.fromkeys(keys) if 0 < len(key) <= KEY_MAX_BYTES]
        with self._lock:
            found = self._asked(possible)
            lost = [key for key, body in found.items() if type(body) is Lost]
            if lost and time.monotonic() - self._refreshed_at >= _AGAIN_S:
                self._refresh()
                found |= self._asked(lost)
        return [found.get(key) for key in keys]

    def _refresh(self) -> None:
        """Return when all nodes have said anew what they have, or failed to."""
        self._refreshed.clear()
        if not self._closed:
            self._from_thread(
                lambda: self._source.refresh().addCallback(lambda _: self._refreshed.set())
            )
            self._refreshed.wait(_REFRESH_S)
        self._refreshed_at = time.monotonic()

    def _asked(self, keys: Sequence[bytes]) -> _Found:
        total = self._source.total
        if not total:
            return dict.fromkeys(keys, Lost("no node has said yet what it has"))
        found: _Found = {}
        by_place: dict[str, dict[bytes, int]] = {}
        for key in keys:
            vbucket = vbucket_of(key, total)
            place = self._source.place_of(vbucket)
            if place:
                by_place.setdefault(place, {})[key] = vbucket
            else:
                found[key] = Lost(f"no node can be asked for vBucket {vbucket}")
        for place, some in by_place.items():
            found |= self._asked_at(place, some)
        return found

    def _asked_at(self, place: str, keys: Mapping[bytes, int]) -> _Found:
        """Ask a node; one that did not answer is left alone until the source has looked again."""
        round_, why = self._silent.get(place, (-1, ""))
        if round_ == self._source.rounds:
            return dict.fromkeys(keys, Lost(why))
        asked = [RequestFrame(Opcode.GET, key=key, vbucket=vb) for key, vb in keys.items()]

        def question(connection: NodeConnection) -> _Found:
            answers = zip(keys, connection.ask_all(asked), strict=True)
            return {key: _told(place, answer) for key, answer in answers}

        try:
            return self._connections.ask(place, question)
        except NodeError as error:
            self._silent[place] = self._source.rounds, str(error)
            return dict.fromkeys(keys, Lost(str(error)))

    def close(self) -> None:
        """Hang up; nothing waits for the reactor's thread any more."""
        self._closed = True
        self._refreshed.set()
        with self._lock:
            self._connections.close()


def _told(place: str, answer: ResponseFrame) -> bytes | Lost | None:
    """Return what an answer says of a document."""
    if answer.status == Status.KEY_NOT_FOUND:
        return None
    if answer.status:
        return Lost(f"the node at {place} refuses: {answer.reason}")
    try:
        return portable(answer.value)
    except Unreadable as error:
        return Lost(str(error))
    except ValueError:  # as `meta.type` says of it
        return json.dumps(b64encode(answer.value).decode()).encode()
