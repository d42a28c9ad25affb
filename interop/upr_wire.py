"""A raw UPR peer for scripts: hand-made frames out, checked frames in.

`UprWire` is one connection, `Mirror` a consumer's copy of the documents it was sent. Written from
the protocol's description and independent of `uprmc`'s own codec, as `interop.wire` is. `Mirror`
judges the order of frames as the consumers of 2014 did: every item belongs to the marker before it,
seqnos rise, a snapshot has one message for each key and is complete before the next one begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from interop import wire as w
from interop.wire import HEADER, REQUEST, RESPONSE, Wire, frame

OPEN, ADD_STREAM, CLOSE_STREAM, STREAM_REQUEST, GET_FAILOVER_LOG, STREAM_END = range(0x50, 0x56)
SNAPSHOT_MARKER, MUTATION, DELETION, EXPIRATION, FLUSH, SET_STATE = range(0x56, 0x5C)
UPR_NOOP, BUFFER_ACK, CONTROL = range(0x5C, 0x5F)
SET_VBUCKET, GET_VBUCKET, DEL_VBUCKET, GET_ALL_VB_SEQNOS = 0x3D, 0x3E, 0x3F, 0x48
STOP_PERSISTENCE, START_PERSISTENCE, SEQNO_PERSISTENCE = 0x80, 0x81, 0xB7
BARRIER_ADD, BARRIER_REACHED, PARTITION_START, ROUND_COMPLETE, SNAPSHOT_END = range(0xE8, 0xED)

NOT_MY_VBUCKET, RANGE_ERROR, ROLLBACK, NOT_SUPPORTED = 0x07, 0x22, 0x23, 0x83
ACTIVE, REPLICA, PENDING, DEAD = range(1, 5)
NEVER = 2**64 - 1

CONSUMER, PRODUCER, NOTIFIER, KEYS_ONLY, DELETE_TIMES = 0x00, 0x01, 0x02, 0x08, 0x20
TAKEOVER, DISK_ONLY, LATEST = 0x01, 0x02, 0x04
MEMORY, DISK, CHECKPOINT, ACK = 0x01, 0x02, 0x04, 0x08

END_OK, END_STATE = 0, 2

_CHANGES = (MUTATION, DELETION, EXPIRATION)

#: Frames that use up the receiver's buffer.
_COUNTED = frozenset(
    {STREAM_END, SNAPSHOT_MARKER, *_CHANGES, SET_STATE, *range(BARRIER_REACHED, SNAPSHOT_END + 1)}
)


class Frame(NamedTuple):
    """One frame of either direction; ``number`` is a request's vBucket or a response's status."""

    magic: int
    opcode: int
    number: int
    opaque: int
    cas: int
    extras: bytes
    key: bytes
    value: bytes
    packet: bytes

    @classmethod
    def of(cls, packet: bytes) -> Frame:
        magic, opcode, keys, extras, _, number, _, opaque, cas = HEADER.unpack_from(packet)
        first, second = HEADER.size + extras, HEADER.size + extras + keys
        parts = packet[HEADER.size : first], packet[first:second], packet[second:]
        return cls(magic, opcode, number, opaque, cas, *parts, packet)

    @property
    def is_reply(self) -> bool:
        return self.magic == RESPONSE

    @property
    def seqno(self) -> int:
        """The by-seqno of a change."""
        assert self.opcode in _CHANGES, self
        return int.from_bytes(self.extras[:8], "big")

    @property
    def snapshot(self) -> tuple[int, int, int]:
        """Start, end and type bits of a marker."""
        assert self.opcode == SNAPSHOT_MARKER, self
        start, end, kind = struct.unpack(">QQI", self.extras)
        return start, end, kind

    @property
    def reason(self) -> int:
        """Why the stream ended."""
        assert self.opcode == STREAM_END, self
        return int.from_bytes(self.extras, "big")


def failover_log(value: bytes) -> list[tuple[int, int]]:
    """Split the answer to a stream request: (uuid, seqno), newest first."""
    assert value, "a failover log is never empty"
    return list(struct.iter_unpack(">QQ", value))


class UprWire(Wire):
    """One connection to the ``upr`` listener, where the vBucket field of a request counts."""

    def frame(self) -> Frame:
        """The next frame, request or reply. A consumer's acknowledgements come at any time: not
        those."""
        while True:
            header = self.read(HEADER.size)
            assert header[0] in (REQUEST, RESPONSE), header
            found = Frame.of(header + self.read(int.from_bytes(header[8:12], "big")))
            if found.is_reply or found.opcode != BUFFER_ACK:
                return found

    def call(self, request: bytes) -> Frame:
        """Send a request; give its answer, which must be the next frame."""
        self.send(request)
        answer = self.frame()
        assert answer.is_reply, f"asked {request[1]:#04x}, got {answer}"
        assert (answer.opcode, answer.opaque) == (request[1], Frame.of(request).opaque), answer
        return answer

    def command(self, request: bytes) -> Frame:
        """As `call`, and it must succeed."""
        answer = self.call(request)
        assert answer.number == w.OK, f"{request[1]:#04x} was refused: {answer}"
        return answer

    # --- UPR ------------------------------------------------------------------------------------

    def open(self, name: bytes = b"interop", flags: int = PRODUCER) -> Frame:
        return self.command(frame(OPEN, name, extras=struct.pack(">II", 0, flags)))

    def control(self, key: bytes, value: bytes) -> Frame:
        return self.command(frame(CONTROL, key, value))

    def request_stream(
        self,
        vbucket: int,
        start: int = 0,
        end: int = NEVER,
        uuid: int = 0,
        snapshot: tuple[int, int] | None = None,
        *,
        flags: int = 0,
        opaque: int = 0,
    ) -> None:
        """Send a stream request; without ``snapshot`` one that is between two snapshots."""
        extras = struct.pack(">IIQQQQQ", flags, 0, start, end, uuid, *(snapshot or (start, start)))
        self.send(frame(STREAM_REQUEST, extras=extras, vbucket=vbucket, opaque=opaque))

    def stream(
        self,
        vbucket: int,
        start: int = 0,
        end: int = NEVER,
        uuid: int = 0,
        snapshot: tuple[int, int] | None = None,
        *,
        flags: int = 0,
        opaque: int = 0,
    ) -> Frame:
        """Send a stream request and give its answer, which must be the next frame."""
        self.request_stream(vbucket, start, end, uuid, snapshot, flags=flags, opaque=opaque)
        answer = self.frame()
        assert (answer.magic, answer.opcode) == (RESPONSE, STREAM_REQUEST), answer
        assert answer.opaque == opaque
        return answer

    def acknowledge(self, size: int) -> None:
        self.send(frame(BUFFER_ACK, extras=struct.pack(">I", size)))

    def log_of(self, vbucket: int) -> list[tuple[int, int]]:
        return failover_log(self.command(frame(GET_FAILOVER_LOG, vbucket=vbucket)).value)

    def until(self, *opcodes: int) -> list[Frame]:
        """Frames up to and including the first of one of these kinds."""
        frames = [self.frame()]
        while frames[-1].opcode not in opcodes:
            frames.append(self.frame())
        return frames

    def expect_no_frame(self) -> None:
        """Require that nothing was sent, shown by the answer to a harmless command."""
        self.command(frame(w.NOOP, opaque=0x51E4CE))

    # --- documents and vBuckets -----------------------------------------------------------------

    def put(self, vbucket: int, key: bytes, value: bytes = b"value") -> int:
        """Store a document; gives its CAS."""
        return self.command(w.store(w.SET, key, value, vbucket=vbucket)).cas

    def put_many(self, vbucket: int, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        quiet = [w.store(w.SETQ, key, value, vbucket=vbucket) for key, value in pairs]
        assert self.replies_until_noop(*quiet) == []

    def delete(self, vbucket: int, key: bytes) -> None:
        self.command(frame(w.DELETE, key, vbucket=vbucket))

    def set_state(self, vbucket: int, state: int) -> None:
        self.command(frame(SET_VBUCKET, extras=struct.pack(">I", state), vbucket=vbucket))

    def remake(self, vbucket: int, state: int = ACTIVE) -> None:
        """Replace a vBucket by a new and empty one."""
        if self.call(frame(GET_VBUCKET, vbucket=vbucket)).number == w.OK:
            self.set_state(vbucket, DEAD)
            self.command(frame(DEL_VBUCKET, vbucket=vbucket))
        self.set_state(vbucket, state)

    def high_seqnos(self) -> dict[int, int]:
        value = self.command(frame(GET_ALL_VB_SEQNOS)).value
        return dict(struct.iter_unpack(">HQ", value))

    def wait_until_persisted(self, vbucket: int, seqno: int) -> None:
        """Wait until everything up to a seqno is on disk; the server answers when it is."""
        self.command(frame(SEQNO_PERSISTENCE, extras=struct.pack(">Q", seqno), vbucket=vbucket))

    def texts(self, group: bytes) -> dict[str, str]:
        """A group of statistics as text."""
        return {key.decode(): value.decode() for key, value in self.statistics(group).items()}


def marker(vbucket: int, opaque: int, start: int, end: int, kind: int) -> bytes:
    """A snapshot marker, for scripts that play a producer."""
    extras = struct.pack(">QQI", start, end, kind)
    return frame(SNAPSHOT_MARKER, extras=extras, vbucket=vbucket, opaque=opaque)


def mutation(
    vbucket: int,
    opaque: int,
    seqno: int,
    key: bytes,
    value: bytes,
    *,
    rev: int = 1,
    flags: int = 0,
    expiry: int = 0,
    cas: int = 0,
) -> bytes:
    """A document of a stream, for scripts that play a producer."""
    extras = struct.pack(">QQIIIHB", seqno, rev, flags, expiry, 0, 0, 0)
    return frame(MUTATION, key, value, extras, vbucket=vbucket, opaque=opaque, cas=cas or seqno)


@dataclass
class Copy:
    """A consumer's copy of one vBucket, with its position."""

    documents: dict[bytes, Frame] = field(default_factory=dict)
    log: list[tuple[int, int]] = field(default_factory=list)
    seqno: int = 0
    snapshot: tuple[int, int] = (0, 0)
    keys: set[bytes] = field(default_factory=set)


class Mirror:
    """Everything a consumer was sent, checked frame by frame.

    A snapshot that the server had to let go of half way is announced again with a later end; that
    is no fault, and counted in ``again``.
    """

    def __init__(self) -> None:
        self.copies: dict[int, Copy] = {}
        self.kinds: list[int] = []
        self.counted_bytes = 0
        self.again = 0

    def begin(self, vbucket: int, answer: Frame) -> None:
        """A stream request was accepted, from where the copy of the vBucket stands."""
        assert answer.number == w.OK, answer
        copy = self.copies.setdefault(vbucket, Copy())
        copy.log = failover_log(answer.value)
        copy.snapshot = (copy.seqno, copy.seqno)

    def take(self, packet: Frame) -> None:
        """Take a frame that the server has sent by itself."""
        assert not packet.is_reply, packet
        if packet.opcode in _COUNTED:
            self.counted_bytes += len(packet.packet)
        if packet.opcode == SNAPSHOT_MARKER:
            self._announced(self.copies[packet.number], packet)
        elif packet.opcode in _CHANGES:
            self._changed(self.copies[packet.number], packet)

    def _announced(self, copy: Copy, packet: Frame) -> None:
        start, end, kind = packet.snapshot
        self.kinds.append(kind)
        assert kind in (MEMORY, DISK, MEMORY | CHECKPOINT, DISK | CHECKPOINT), packet
        assert start <= end, packet
        if copy.seqno < copy.snapshot[1]:
            assert end > copy.snapshot[1], "another marker before the snapshot was complete"
            self.again += 1
        copy.snapshot = (start, end)
        copy.keys.clear()

    def _changed(self, copy: Copy, packet: Frame) -> None:
        start, end = copy.snapshot
        assert start <= packet.seqno <= end, f"{packet.seqno} is outside of {copy.snapshot}"
        assert packet.seqno > copy.seqno, f"{packet.seqno} after {copy.seqno}"
        assert packet.key not in copy.keys, f"{packet.key!r} twice in a snapshot"
        copy.keys.add(packet.key)
        copy.seqno = packet.seqno
        if packet.opcode == MUTATION:
            copy.documents[packet.key] = packet
        else:
            copy.documents.pop(packet.key, None)

    def has(self, seqnos: dict[int, int]) -> bool:
        """Whether it has come as far as these high seqnos."""
        return all(self.copies[number].seqno >= seqno for number, seqno in seqnos.items())

    def values(self) -> dict[tuple[int, bytes], tuple[bytes, int, int]]:
        """(vBucket, key) -> value, flags, CAS."""
        return {
            (number, key): (found.value, int.from_bytes(found.extras[16:20], "big"), found.cas)
            for number, copy in self.copies.items()
            for key, found in copy.documents.items()
        }


def documents(wire: UprWire, keys: Iterable[tuple[int, bytes]]) -> dict[tuple[int, bytes], object]:
    """What the server itself answers for keys: value, flags, CAS; missing ones are left out."""
    wanted = list(keys)
    requests = [
        frame(w.GETQ, key, vbucket=vbucket, opaque=number)
        for number, (vbucket, key) in enumerate(wanted)
    ]
    found = wire.replies_until_noop(*requests)
    return {
        wanted[reply.opaque]: (reply.value, int.from_bytes(reply.extras, "big"), reply.cas)
        for reply in found
    }


def item_counts(wire: UprWire) -> dict[int, int]:
    """How many documents the server says it has, by vBucket."""
    group = wire.texts(b"vbucket-details")
    return {
        int(name.removeprefix("vb_").removesuffix(":num_items")): int(value)
        for name, value in group.items()
        if name.endswith(":num_items")
    }
