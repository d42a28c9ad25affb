"""A node that keeps documents in a dict and does, when told, what no real node does on demand."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

from interop.wire import DELETE, GET, HEADER, NOT_FOUND, RESPONSE, SET

TERMS = 0x5501
HELLO, ALL_SEQNOS, FAILOVER_LOG, CLUSTER_CONFIG = 0x1F, 0x48, 0x96, 0xB5
NOT_MY_VBUCKET, BUSY, TEMPORARY_FAILURE = 0x07, 0x85, 0x86
TIMEOUT_S = 20

#: What a script returns to hang up without an answer.
HANG_UP = object()


class Asked:
    """One request."""

    def __init__(self, header: bytes, body: bytes) -> None:
        _, self.opcode, key, extras, _, self.vbucket, _, self.opaque, self.cas = HEADER.unpack(
            header
        )
        self.extras, self.key = body[:extras], body[extras : extras + key]
        self.value = body[extras + key :]


Script = Callable[["FakeKvNode", Asked], object]


class FakeKvNode:
    """Use it in a ``with`` statement.

    Attributes:
        place: HOST:PORT.
        active: vBuckets that it says are active.
        log: its vb_uuids, newest first.
        term: of each vBucket, ``None`` = it knows no terms.
        others: places of other nodes in its cluster map.
        documents: what was stored.
        asked: opcodes of document requests, in order.
        script: is asked first about each document request: returns bytes to send instead of the
            answer, `HANG_UP`, or ``None`` to leave it to the node.
    """

    def __init__(
        self,
        active: Iterable[int] = range(4),
        *,
        vbuckets: int | None = 4,
        branches: int = 1,
        term: int | None = None,
        others: Iterable[str] = (),
        script: Script | None = None,
    ) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.active = set(active)
        self.log = list(range(branches, 0, -1))
        self.term = term
        self.others = list(others)
        self.documents: dict[bytes, bytes] = {}
        self.asked: list[int] = []
        self.connections = 0
        self.script = script or (lambda node, asked: None)
        self._vbuckets = vbuckets
        self._threads: list[threading.Thread] = []
        self._peers: list[socket.socket] = []

    def __enter__(self) -> FakeKvNode:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Listen no more, hang up on everybody."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()

    def hang_up(self) -> None:
        """End every connection; new ones are accepted."""
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        self._peers.clear()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            peer.settimeout(TIMEOUT_S)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers.append(peer)
            self.connections += 1
            self._start(self._serve, peer)

    def _serve(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream, contextlib.suppress(OSError):
            while header := stream.read(HEADER.size):
                body = stream.read(struct.unpack_from(">I", header, 8)[0])
                answer = self._answer(Asked(header, body))
                if answer is HANG_UP:
                    peer.shutdown(socket.SHUT_WR)
                    stream.read()  # a reset could take answers with it
                    return
                if isinstance(answer, bytes):
                    peer.sendall(answer)

    def _answer(self, asked: Asked) -> object:
        knows = self.term is not None
        if asked.opcode == HELLO:
            return reply(asked, value=struct.pack(">H", TERMS) if knows else b"")
        if asked.opcode == ALL_SEQNOS:
            rows = [struct.pack(">HQ", vbucket, 5) for vbucket in sorted(self.active)]
            term = struct.pack(">Q", self.term) if self.term is not None else b""
            return reply(asked, value=b"".join(row + term for row in rows))
        if asked.opcode == FAILOVER_LOG:
            rows = [struct.pack(">QQ", uuid, 0) for uuid in self.log]
            return reply(asked, extras=bytes(8) if knows else b"", value=b"".join(rows))
        if asked.opcode == CLUSTER_CONFIG:
            return self._config(asked)
        self.asked.append(asked.opcode)
        answer = self.script(self, asked)
        return self.usual(asked) if answer is None else answer

    def _config(self, asked: Asked) -> bytes:
        if self._vbuckets is None:
            return reply(asked, 0x83)
        servers = {"serverList": [*self.others], "vBucketMap": [[0]] * self._vbuckets}
        return reply(asked, value=json.dumps({"vBucketServerMap": servers}).encode())

    def usual(self, asked: Asked) -> bytes:
        """Answer as a node does."""
        if asked.vbucket not in self.active:
            return reply(asked, NOT_MY_VBUCKET)
        if asked.opcode == SET:
            self.documents[asked.key] = asked.value
            return reply(asked, cas=7)
        if asked.opcode in (GET, DELETE) and asked.key not in self.documents:
            return reply(asked, NOT_FOUND)
        if asked.opcode == DELETE:
            del self.documents[asked.key]
            return reply(asked)
        return reply(asked, extras=bytes(4), value=self.documents[asked.key], cas=7)


def reply(
    asked: Asked,
    status: int = 0,
    *,
    extras: bytes = b"",
    value: bytes = b"",
    cas: int = 0,
    opaque: int | None = None,
    magic: int = RESPONSE,
) -> bytes:
    body = extras + value
    number = asked.opaque if opaque is None else opaque
    header = HEADER.pack(magic, asked.opcode, 0, len(extras), 0, status, len(body), number, cas)
    return header + body
