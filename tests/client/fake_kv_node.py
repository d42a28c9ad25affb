"""A node that keeps documents in a dict and does, when told, what no real node does on demand."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable

from interop.wire import DELETE, GET, NOT_FOUND, SET
from tests.codec.frames import Frame, frame, reply
from tests.codec.node import HangUp, ScriptedNode

TERMS = 0x5501
HELLO, STAT, ALL_SEQNOS, FAILOVER_LOG, CLUSTER_CONFIG = 0x1F, 0x10, 0x48, 0x96, 0xB5
TELL_TERMS, UPR_OPEN, UPR_CONTROL, STREAM_REQUEST, STREAM_END = 0xDB, 0x50, 0x5E, 0x53, 0x55
NOT_MY_VBUCKET, NOT_SUPPORTED, BUSY, TEMPORARY_FAILURE = 0x07, 0x83, 0x85, 0x86

#: What a script returns to hang up without an answer.
HANG_UP = object()


Script = Callable[["FakeKvNode", Frame], object]


class FakeKvNode(ScriptedNode):
    """Use it in a ``with`` statement.

    Attributes:
        active: vBuckets that it says are active.
        log: its vb_uuids, newest first.
        term: of each vBucket, ``None`` = it knows no terms.
        others: places of other nodes in its cluster map.
        map: that map, if it is to be another one.
        count: how many vBuckets its statistics tell of.
        documents: what was stored.
        told: (vBucket, term, vb_uuid) of promotions elsewhere.
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
        self.active = set(active)
        self.log = list(range(branches, 0, -1))
        self.term = term
        self.others = list(others)
        self.documents: dict[bytes, bytes] = {}
        self.told: list[tuple[int, ...]] = []
        self.asked: list[int] = []
        self.script = script or (lambda node, asked: None)
        self.map: bytes | None = None
        self.count: int | None = None
        self._vbuckets = vbuckets
        super().__init__()

    def answers(self, asked: Frame) -> Iterable[bytes]:
        answer = self._answer(asked)
        if answer is HANG_UP:
            raise HangUp
        return [answer] if isinstance(answer, bytes) else ()

    def _answer(self, asked: Frame) -> object:
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
        if asked.opcode == TELL_TERMS:
            self.told += struct.iter_unpack(">HQQ", asked.value)
            return reply(asked)
        if asked.opcode == STAT:
            return self._statistics(asked)
        self.asked.append(asked.opcode)
        if asked.opcode in (UPR_OPEN, UPR_CONTROL):
            return reply(asked, 0 if asked.opcode == UPR_OPEN else NOT_SUPPORTED)
        if asked.opcode == STREAM_REQUEST:
            return self._stream(asked)
        answer = self.script(self, asked)
        return self.usual(asked) if answer is None else answer

    def _stream(self, asked: Frame) -> bytes:
        """Stream nothing, and end; who knows of a higher term is refused."""
        known = json.loads(asked.value or b"{}").get("term", 0)
        if asked.vbucket not in self.active or known > (self.term or 0):
            self.asked.pop()
            return reply(asked, NOT_MY_VBUCKET)
        log = b"".join(struct.pack(">QQ", uuid, 0) for uuid in self.log)
        ends = frame(STREAM_END, extras=bytes(4), vbucket=asked.vbucket, opaque=asked.opaque)
        return reply(asked, value=log) + ends

    def _statistics(self, asked: Frame) -> bytes:
        if self.count is None:
            return reply(asked, NOT_FOUND)
        told = reply(asked, key=b"ep_max_vbuckets", value=b"%d" % self.count)
        return told + reply(asked)

    def _config(self, asked: Frame) -> bytes:
        if self.map is not None:
            return reply(asked, value=self.map)
        if self._vbuckets is None:
            return reply(asked, NOT_SUPPORTED)
        servers = {"serverList": [*self.others], "vBucketMap": [[0]] * self._vbuckets}
        return reply(asked, value=json.dumps({"vBucketServerMap": servers}).encode())

    def usual(self, asked: Frame) -> bytes:
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
