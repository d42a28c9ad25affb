"""What a source has said, lies included, read from the bytes that went over the wire.

Written from the UPR reference, section 2. Whoever listens may hold nothing that is not here.
"""

from __future__ import annotations

import struct
from collections import defaultdict

from tests.fuzz.past import Version
from tests.upr import peer

LOGS = (0x53, 0x54, 0x96)
_DELETIONS = {18: ">QQH", 20: ">QQI", 21: ">QQIB"}


class Said:
    """See the module docstring. By vBucket where frames tell it; answers do not.

    Attributes:
        ends: ends of snapshots.
        items: versions that streams brought; of a deletion without a time with 0.
        states: states that were handed over.
        points: seqnos that somebody was sent back to.
        logs: failover logs.
        versions: (seqno, rev, value) of answers to GET_VERSION, value None of a deletion.
        values: documents of answers to GET and GET_VERSION.
        seqnos: rows of GET_ALL_VB_SEQNOS.
    """

    def __init__(self) -> None:
        self.ends: dict[int, set[int]] = defaultdict(set)
        self.items: dict[int, set[Version]] = defaultdict(set)
        self.states: dict[int, set[int]] = defaultdict(set)
        self.points: set[int] = set()
        self.logs: set[tuple[tuple[int, int], ...]] = set()
        self.versions: set[tuple[int, int, bytes | None]] = set()
        self.values: set[bytes] = set()
        self.seqnos: set[int] = set()
        self._rests: list[bytes | None] = []

    def connect(self) -> int:
        """Begin another connection; the result names it."""
        self._rests.append(b"")
        return len(self._rests) - 1

    def note(self, connection: int, data: bytes) -> None:
        """Read what was sent; behind something that is no frame nobody can read on."""
        rest = self._rests[connection]
        if rest is None:
            return
        data = rest + data
        at = 0
        while len(data) - at >= 24:
            magic, opcode, key, extras, _, number, body, _, cas = peer.HEADER.unpack_from(data, at)
            if magic not in (peer.REQUEST, peer.RESPONSE) or extras + key > body:
                self._rests[connection] = None
                return
            end = at + 24 + body
            if end > len(data):
                break
            parts = data[at + 24 : at + 24 + extras], data[at + 24 + extras : end]
            read = self._reply if magic == peer.RESPONSE else self._frame
            read(opcode, number, cas, parts[0], parts[1][:key], parts[1][key:])
            at = end
        self._rests[connection] = data[at:]

    def _frame(
        self, opcode: int, number: int, cas: int, extras: bytes, key: bytes, value: bytes
    ) -> None:
        if opcode == peer.MARKER and len(extras) == 20:
            self.ends[number].add(struct.unpack(">QQI", extras)[1])
        elif opcode == peer.MARKER and len(value) >= 16:
            self.ends[number].add(struct.unpack_from(">QQ", value)[1])
        elif opcode == peer.MUTATION and len(extras) == 31:
            seqno, rev, flags, expiry, _, nmeta, _ = struct.unpack(">QQIIIHB", extras)
            value = value[: max(0, len(value) - nmeta)]
            self.items[number].add(Version(seqno, key, value, rev, cas, flags, expiry, 0))
        elif opcode in (peer.DELETION, peer.EXPIRATION) and len(extras) in _DELETIONS:
            seqno, rev, time, *_ = struct.unpack(_DELETIONS[len(extras)], extras)
            life = 2 if opcode == peer.EXPIRATION else 1
            time = 0 if len(extras) == 18 else time
            self.items[number].add(Version(seqno, key, None, rev, cas, 0, time, life))
        elif opcode == peer.SET_STATE and len(extras) == 1:
            self.states[number].add(extras[0])

    def _reply(
        self, opcode: int, status: int, cas: int, extras: bytes, key: bytes, value: bytes
    ) -> None:
        if opcode in LOGS and not len(value) % 16:
            self.logs.add(tuple(struct.iter_unpack(">QQ", value)))
        if opcode == peer.STREAM_REQUEST and status == peer.ROLLBACK and len(value) == 8:
            self.points.add(int.from_bytes(value, "big"))
        if opcode == peer.GET_VERSION and len(extras) == 25:
            seqno, rev, _, _, life = struct.unpack(">QQIIB", extras)
            self.versions.add((seqno, rev, None if life else value))
        if opcode in (peer.GET, peer.GET_VERSION):
            self.values.add(value)
        if opcode == 0x48:
            places = range(0, len(value), 10)
            self.seqnos.update(int.from_bytes(value[at + 2 : at + 10], "big") for at in places)
