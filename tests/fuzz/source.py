"""A node that streams, said in words of our own: it answers whoever has dialled, and tells lies.

Told the truth, whoever listens ends with what `Past` says. A `Liar` puts lies in place of answers
and frames, or beside them. What went over the wire is written down (`Said`), lies too: who listens
may believe nothing else.

Source: UPR reference 2 to 5; ``docs/extensions.md``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.lies import Liar
from tests.fuzz.past import Log, Past, Version
from tests.fuzz.said import Said
from tests.upr import peer
from tests.upr.peer import Frame, frame

ALL_SEQNOS, LOG_ANYWHERE, GET_META, CLUSTER, GET_VERSION = 0x48, 0x96, 0xA0, 0xB5, 0xE7
SEQNO_ACK, BARRIER_ADD, BARRIER_REACHED = 0x61, 0xE8, 0xE9

_EXTENSIONS = (
    b"uprmc_versions",
    b"max_marker_version",
    b"uprmc_persisted",
    b"uprmc_snapshot_end",
    b"uprmc_vbucket_facts",
)
_KNOWN_CONTROLS = (b"connection_buffer_size", b"enable_noop", b"set_noop_interval")
_SNAPSHOT_ITEMS = (1, 3, 1_000)


class Flow:
    """One stream that was granted.

    Attributes:
        at: the last seqno that was sent.
        low: where the snapshot began that the listener holds a part of; `at` if it holds none.
        rest: items of the present snapshot that were not sent yet; it goes to `end`.
        takeover: the vBucket is to be handed over.
        states, answered: of a takeover, how many states were sent, and how many taken.
    """

    def __init__(self, past: Past, opaque: int, at: int, low: int, *, takeover: bool) -> None:
        self.past = past
        self.opaque = opaque
        self.at = at
        self.low = low
        self.history = past.log
        self.rest: list[Version] = []
        self.end = 0
        self.takeover = takeover
        self.states = 0
        self.answered = 0


class Source:
    """See the module docstring. One per connection; the pasts outlive it.

    Attributes:
        flows: streams by vBucket.
        old: it knows no extension of ours.
    """

    def __init__(
        self, random: Random, pasts: dict[int, Past], said: Said, liar: Liar, *, old: bool = False
    ) -> None:
        self.random = random
        self.pasts = pasts
        self.said = said
        self.liar = liar
        self.old = old
        self.flows: dict[int, Flow] = {}
        self._connection = said.connect()
        self._rest = b""
        self._versioned = False

    # --- the connection -------------------------------------------------------------------------

    def take(self, data: bytes) -> list[bytes]:
        """Return what is said to what came."""
        frames, self._rest = peer.split(self._rest + data)
        out: list[bytes] = []
        for asked in frames:
            if asked.is_reply:
                self._answered(asked)
            else:
                out += self.liar.instead(asked, self._answer(asked))
        return self._noted(out)

    def push(self) -> list[bytes]:
        """Return the next frames of some stream."""
        out: list[bytes] = []
        flows = list(self.flows.values())
        if flows:
            flow = self.random.choice(flows)
            true = self._next(flow)
            out = self.liar.amid(flow, true)
        elif self.liar.lies():
            out = self.liar.amid(None, [])
        return self._noted(out)

    def _noted(self, out: list[bytes]) -> list[bytes]:
        out = [self.liar.spoiled(one) for one in out]
        for one in out:
            self.said.note(self._connection, one)
        return out

    # --- answers --------------------------------------------------------------------------------

    def _answer(self, asked: Frame) -> list[bytes]:
        answer = _ANSWERS.get(asked.opcode, Source._unknown)
        ours = asked.opcode in (GET_VERSION, BARRIER_ADD, SEQNO_ACK)
        return Source._unknown(self, asked) if ours and self.old else answer(self, asked)

    def _reply(
        self,
        asked: Frame,
        status: int = 0,
        *,
        extras: bytes = b"",
        value: bytes = b"",
        cas: int = 0,
    ) -> list[bytes]:
        return [
            frame(
                *(asked.opcode,),
                opaque=asked.opaque,
                vbucket=status,
                extras=extras,
                value=value,
                cas=cas,
                magic=0x81,
            )
        ]

    def _unknown(self, asked: Frame) -> list[bytes]:
        return self._reply(asked, peer.UNKNOWN)

    def _yes(self, asked: Frame) -> list[bytes]:
        return self._reply(asked)

    def _nothing(self, asked: Frame) -> list[bytes]:
        return []

    def _control(self, asked: Frame) -> list[bytes]:
        known = asked.key in _KNOWN_CONTROLS or (asked.key in _EXTENSIONS and not self.old)
        if asked.key == b"max_marker_version" and known:
            self._versioned = True
        return self._reply(asked, 0 if known else peer.INVALID)

    def _seqnos(self, asked: Frame) -> list[bytes]:
        live = [past for past in self.pasts.values() if past.active]
        rows = b"".join(struct.pack(">HQ", past.number, past.high) for past in live)
        return self._reply(asked, value=rows)

    def _log(self, asked: Frame) -> list[bytes]:
        past = self.pasts.get(asked.vbucket)
        if past is None:
            return self._reply(asked, peer.NOT_MY_VBUCKET)
        return self._reply(asked, value=pairs(past.log))

    def _close(self, asked: Frame) -> list[bytes]:
        flow = self.flows.pop(asked.vbucket, None)
        return self._reply(asked, 0 if flow else peer.NOT_FOUND)

    def _stream(self, asked: Frame) -> list[bytes]:
        flags, _, start, _, uuid, low, end = struct.unpack(">IIQQQQQ", asked.extras)
        past = self.pasts.get(asked.vbucket)
        if past is None or not past.active:
            return self._reply(asked, peer.NOT_MY_VBUCKET)
        if asked.vbucket in self.flows:
            return self._reply(asked, peer.EXISTS)
        known = self._known(asked.value) or [(uuid, 0)]
        point = past.rollback(start, low, end, known)
        if point is not None:
            return self._reply(asked, peer.ROLLBACK, value=struct.pack(">Q", point))
        low = low if start < end else start
        self.flows[asked.vbucket] = Flow(
            past, asked.opaque, start, low, takeover=bool(flags & peer.TAKEOVER)
        )
        return self._reply(asked, value=pairs(past.log))

    def _known(self, value: bytes) -> Log:
        if not value:
            return []
        entries = json.loads(value).get("known_versions", [])
        return [(int(entry["id"], 16), entry["seq"]) for entry in entries]

    def _version(self, asked: Frame) -> list[bytes]:
        (upto,) = struct.unpack(">Q", asked.extras)
        past = self.pasts.get(asked.vbucket)
        if past is None or not past.active:
            return self._reply(asked, peer.NOT_MY_VBUCKET)
        found = past.newest().get(asked.key)
        if found is None:
            return self._reply(asked, peer.NOT_FOUND, extras=struct.pack(">Q", past.purged))
        numbers = found.seqno, found.rev, found.flags, found.expiry, found.life
        value = found.value if found.value is not None and found.seqno <= upto else b""
        extras = struct.pack(">QQIIB", *numbers)
        return self._reply(asked, extras=extras, value=value, cas=found.cas)

    def _get(self, asked: Frame) -> list[bytes]:
        past = self.pasts.get(asked.vbucket)
        found = past.documents().get(asked.key) if past else None
        if found is None or found.value is None:
            return self._reply(asked, peer.NOT_FOUND)
        extras = struct.pack(">I", found.flags)
        return self._reply(asked, extras=extras, value=found.value, cas=found.cas)

    def _meta(self, asked: Frame) -> list[bytes]:
        past = self.pasts.get(asked.vbucket)
        found = past.newest().get(asked.key) if past else None
        if found is None:
            return self._reply(asked, peer.NOT_FOUND)
        extras = struct.pack(">IIIQ", bool(found.life), found.flags, found.expiry, found.rev)
        return self._reply(asked, extras=extras, cas=found.cas)

    def _barrier(self, asked: Frame) -> list[bytes]:
        reached = frame(BARRIER_REACHED, key=asked.key, extras=struct.pack(">II", 1, 1))
        return [*self._reply(asked), reached]

    # --- streams --------------------------------------------------------------------------------

    def _next(self, flow: Flow) -> list[bytes]:
        past = flow.past
        if flow.states > flow.answered:
            return []  # it waits until that is on disk there
        gone = flow.history is not past.log if past.active else not flow.takeover
        if gone or (0 < flow.at < past.purged and not flow.rest):
            return self._end(flow, 2)
        if flow.rest:
            return self._items(flow)
        found = past.changes(flow.at) if past.active else []
        if found:
            flow.rest, flow.end = found, past.high
            start = min(flow.low, flow.at) if flow.low < flow.at else flow.at + 1
            flow.low = past.high
            return [self._marker(flow, start)]
        return self._hand_over(flow) if flow.takeover else []

    def _marker(self, flow: Flow, start: int) -> bytes:
        place: dict[str, Any] = {"vbucket": flow.past.number, "opaque": flow.opaque}
        start, end, purged = min(start, flow.end), flow.end, min(flow.past.purged, flow.end)
        kind = self.random.choice((peer.MEMORY, peer.DISK, peer.MEMORY | peer.ACK))
        if not self._versioned:
            return peer.marker(flow.past.number, flow.opaque, start, end, kind)
        value = struct.pack(">QQIQQQQ", start, end, kind, end, 0, purged, 0)
        return frame(peer.MARKER, extras=b"\2", value=value[:52], **place)

    def _items(self, flow: Flow) -> list[bytes]:
        count = self.random.choice(_SNAPSHOT_ITEMS)
        batch, flow.rest = flow.rest[:count], flow.rest[count:]
        flow.at = batch[-1].seqno
        return [item(flow.past.number, flow.opaque, version) for version in batch]

    def _end(self, flow: Flow, reason: int) -> list[bytes]:
        del self.flows[flow.past.number]
        extras = struct.pack(">I", reason)
        place: dict[str, Any] = {"vbucket": flow.past.number, "opaque": flow.opaque}
        return [frame(peer.STREAM_END, extras=extras, **place)]

    def _hand_over(self, flow: Flow) -> list[bytes]:
        """Say pending, then active, then it is theirs."""
        if flow.states == 2:
            return self._end(flow, 0)
        flow.states += 1
        flow.past.active = flow.past.active and flow.states < 2
        place: dict[str, Any] = {"vbucket": flow.past.number, "opaque": flow.opaque}
        return [frame(peer.SET_STATE, extras=(b"\3", b"\1")[flow.states - 1], **place)]

    def _answered(self, reply: Frame) -> None:
        for flow in self.flows.values():
            if reply.opcode == peer.SET_STATE and reply.opaque == flow.opaque:
                flow.answered += 1


def item(number: int, opaque: int, version: Version) -> bytes:
    """Return the frame that brings a version."""
    seqno, key, value, rev, cas, flags, expiry, _ = version
    if value is not None:
        numbers: dict[str, Any] = {"rev": rev, "cas": cas, "flags": flags, "expiry": expiry}
        return peer.mutation(number, opaque, seqno, key, value, **numbers)
    extras = struct.pack(">QQIB", seqno, rev, expiry, 0)
    return frame(peer.DELETION, key=key, extras=extras, vbucket=number, opaque=opaque, cas=cas)


def pairs(log: Log) -> bytes:
    """Return a failover log as a value."""
    return b"".join(struct.pack(">QQ", *entry) for entry in log)


_ANSWERS: dict[int, Callable[[Source, Frame], list[bytes]]] = {
    peer.HELLO: Source._yes,
    peer.OPEN: Source._yes,
    peer.CONTROL: Source._control,
    peer.BUFFER_ACK: Source._nothing,
    SEQNO_ACK: Source._nothing,
    CLUSTER: Source._yes,
    ALL_SEQNOS: Source._seqnos,
    peer.FAILOVER_LOG: Source._log,
    LOG_ANYWHERE: Source._log,
    peer.STREAM_REQUEST: Source._stream,
    peer.CLOSE_STREAM: Source._close,
    GET_VERSION: Source._version,
    peer.GET: Source._get,
    GET_META: Source._meta,
    BARRIER_ADD: Source._barrier,
}
