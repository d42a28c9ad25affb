"""The binary protocol and UPR as their clients see them, written a second time on purpose.

Nothing here comes from `uprmc`: a mistake in the server's own codec must not cancel itself out.

Source: memcached reference, section 2; UPR reference, sections 1, 2, 6 and 7;
``docs/extensions.md``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

from tests.codec.frames import HEADER, REQUEST, RESPONSE, frame

# --- what documents are asked for with ------------------------------------------------------------

GET, SET, ADD, REPLACE, DELETE, INCREMENT, DECREMENT = range(7)
FLUSH, GETQ, NOOP = 0x08, 0x09, 0x0A
APPEND, PREPEND = 0x0E, 0x0F
SETQ, ADDQ, REPLACEQ, DELETEQ, INCREMENTQ, DECREMENTQ = range(0x11, 0x17)
APPENDQ, TOUCH, GAT, HELLO = 0x19, 0x1C, 0x1D, 0x1F
OBSERVE_SEQNO, OBSERVE, GETL, UNLOCK = 0x91, 0x92, 0x94, 0x95

OK, NOT_FOUND, EXISTS, TOO_LARGE, INVALID, NOT_STORED, BAD_DELTA = range(7)
NOT_MY_VBUCKET, LOCKED, STREAM_NOT_FOUND, NOT_LOCKED = 0x07, 0x09, 0x0A, 0x0E
OUT_OF_RANGE, ROLLBACK, NO_MEMORY, TRY_AGAIN = 0x22, 0x23, 0x82, 0x86

NOT_PERSISTED, PERSISTED, ABSENT, DELETED = 0x00, 0x01, 0x80, 0x81

CAS_HIDDEN = 2**64 - 1
NEVER_CREATE = 0xFFFFFFFF

WITH_SEQNOS, WITH_LOCK_STATUS = 0x04, 0x07

_KEY_HEAD = struct.Struct(">HH")
_KEY_TAIL = struct.Struct(">BQ")

# --- what streams are made of, and managed with ---------------------------------------------------

OPEN, ADD_STREAM, CLOSE_STREAM, STREAM_REQUEST = range(0x50, 0x54)
FAILOVER_LOG, STREAM_END, SNAPSHOT_MARKER, MUTATION = range(0x54, 0x58)
DELETION, EXPIRATION = 0x58, 0x59
SET_STATE, UPR_NOOP, BUFFER_ACK, CONTROL = range(0x5B, 0x5F)
LEASE_ACQUIRE, LEASE_RENEW, LEASE_RELEASE = range(0xE4, 0xE7)
BARRIER_ADD, BARRIER_REACHED, PARTITION_START = range(0xE8, 0xEB)
ROUND_COMPLETE, SNAPSHOT_END, SNAPSHOTS = 0xEB, 0xEC, 0xDF
HWT_REPORT, SPARK = 0xED, 6
SET_VBUCKET, DELETE_VBUCKET, COMPACT = 0x3D, 0x3F, 0xB3
STOP_PERSISTENCE, START_PERSISTENCE = 0x80, 0x81

ACTIVE, REPLICA, PENDING, DEAD = 1, 2, 3, 4

END_OK, END_CLOSED, END_STATE, END_BACKFILL, END_ROLLBACK = 0, 1, 2, 5, 6

#: What a peer of today says it understands: TCP_NODELAY, mutation seqno, XERROR.
FEATURES = b"\0\x03\0\x04\0\x07"

AS_PRODUCER, AS_NOTIFIER, DELETE_TIMES = 0x01, 0x02, 0x20
TAKEOVER, DISK_ONLY, LATEST, ACTIVE_ONLY = 0x01, 0x02, 0x04, 0x10

MARKER_MEMORY, MARKER_DISK, MARKER_CHECKPOINT, MARKER_ACK = 0x01, 0x02, 0x04, 0x08

NEVER = 2**64 - 1

#: Frames of the producer that count for flow control, NOOP and responses do not.
COUNTED = frozenset({*range(0x55, 0x5C), *range(0xE8, 0xED), SNAPSHOTS})

REPLICATE, TAKE_OVER, FAIL_OVER = 0xD7, 0xD8, 0xD9
STOP, DEMOTE = 0x01, 0x02
TAKEN, REFUSED, INTERRUPTED = 0, 1, 2


# --- frames ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame from the server; `place` is the status of a reply, the vBucket of a request."""

    is_reply: bool
    opcode: int
    place: int
    opaque: int
    cas: int
    extras: bytes
    key: bytes
    value: bytes

    @property
    def size(self) -> int:
        """Its bytes on the wire."""
        return 24 + len(self.extras) + len(self.key) + len(self.value)

    @property
    def status(self) -> int:
        return self.place

    @property
    def token(self) -> tuple[int, int] | None:
        """The place of an accepted change: (vb_uuid, seqno)."""
        return struct.unpack(">QQ", self.extras) if len(self.extras) == 16 else None

    @property
    def flags(self) -> int:
        """The flags beside a document."""
        return int.from_bytes(self.extras, "big") if len(self.extras) == 4 else -1


class Packets:
    """Whole packets out of bytes that arrive anyhow."""

    def __init__(self) -> None:
        self._buffer = b""

    def whole(self, data: bytes) -> Iterator[bytes]:
        """Yield the packets that are complete now."""
        buffer, at = self._buffer + data, 0
        while len(buffer) - at >= HEADER.size:
            end = at + HEADER.size + int.from_bytes(buffer[at + 8 : at + 12], "big")
            if len(buffer) < end:
                break
            yield buffer[at:end]
            at = end
        self._buffer = buffer[at:]


class FrameReader(Packets):
    """Frames out of bytes that arrive anyhow."""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now."""
        return [_frame(packet) for packet in self.whole(data)]


def _frame(packet: bytes) -> Frame:
    magic, opcode, key, extras, datatype, place, _, opaque, cas = HEADER.unpack_from(packet)
    assert magic in (REQUEST, RESPONSE), f"a frame begins with {magic:#04x}"
    assert datatype == 0, f"datatype {datatype} was not negotiated"
    first, second = HEADER.size + extras, HEADER.size + extras + key
    assert second <= len(packet), "lengths of a frame contradict each other"
    parts = packet[HEADER.size : first], packet[first:second], packet[second:]
    return Frame(magic == RESPONSE, opcode, place, opaque, cas, *parts)


def apart(shared: Frame) -> list[Frame]:
    """Return a marker and the items of each snapshot that one frame holds."""
    _, count = struct.unpack(">II", shared.extras)
    assert count, "shared snapshots without a snapshot"
    rows = [struct.unpack_from(">IIQQQ", shared.value, 32 * row) for row in range(count)]
    items = FrameReader().feed(shared.value[32 * count :])
    assert sum(item.size for item in items) == len(shared.value) - 32 * count, "a torn item"
    found = []
    for opaque, kind, start, end, _ in rows:
        assert items, f"no items for the snapshot to {end}"
        assert items[0].opaque == opaque, f"{items[0]} comes before the items of {opaque}"
        extras = struct.pack(">QQI", start, end, kind)
        found.append(Frame(False, SNAPSHOT_MARKER, items[0].place, opaque, 0, extras, b"", b""))
        while items and items[0].opaque == opaque:
            found.append(items.pop(0))
        last = struct.unpack_from(">Q", found[-1].extras)[0]
        assert last == end, f"a snapshot to {end} ends with {last}"
    assert not items, f"{items[0]} belongs to no snapshot"
    return found


# --- what clients send ----------------------------------------------------------------------------


def vbucket_of(key: bytes, vbuckets: int) -> int:
    """Return where a key belongs."""
    return ((crc32(key) >> 16) & 0x7FFF) % vbuckets


def hello_value(features: list[int]) -> bytes:
    """Return the value of HELLO."""
    return b"".join(feature.to_bytes(2, "big") for feature in features)


def store_extras(flags: int, exptime: int) -> bytes:
    """Return the extras of set, add, replace."""
    return struct.pack(">II", flags, exptime)


def counter_extras(delta: int, initial: int, exptime: int) -> bytes:
    """Return the extras of increment and decrement."""
    return struct.pack(">QQI", delta, initial, exptime)


def number32(number: int) -> bytes:
    """Return the extras of touch, getl and flush."""
    return number.to_bytes(4, "big")


def number64(number: int) -> bytes:
    """Return the value of OBSERVE_SEQNO."""
    return number.to_bytes(8, "big")


def observe_value(keys: list[tuple[int, bytes]]) -> bytes:
    """Return the value of OBSERVE for (vBucket, key)s."""
    return b"".join(_KEY_HEAD.pack(number, len(key)) + key for number, key in keys)


def reply(opcode: int, opaque: int, status: int = OK) -> bytes:
    """Return the answer to a frame of the producer."""
    return frame(opcode, opaque=opaque, vbucket=status, magic=RESPONSE)


def open_connection(name: bytes, flags: int, opaque: int) -> bytes:
    """Return an OPEN."""
    return frame(OPEN, key=name, extras=struct.pack(">II", 0, flags), opaque=opaque)


def control(name: str, value: str, opaque: int) -> bytes:
    """Return a CONTROL."""
    return frame(CONTROL, key=name.encode(), value=value.encode(), opaque=opaque)


@dataclass(frozen=True, slots=True)
class Position:
    """What a consumer says it holds of a vBucket, and how far it wants to go."""

    start: int
    end: int
    uuid: int
    snapshot_start: int
    snapshot_end: int
    flags: int = 0
    versions: tuple[tuple[int, int], ...] = ()
    lease: int = 0


def stream_request(vbucket: int, position: Position, opaque: int) -> bytes:
    """Return a STREAM_REQ."""
    extras = struct.pack(
        ">IIQQQQQ",
        position.flags,
        0,
        position.start,
        position.end,
        position.uuid,
        position.snapshot_start,
        position.snapshot_end,
    )
    document: dict[str, object] = {}
    if position.versions:
        document["known_versions"] = [
            {"id": f"{uuid:016x}", "seq": seqno} for uuid, seqno in position.versions
        ]
    if position.lease:
        document["lease"] = f"{position.lease:016x}"
    value = json.dumps(document).encode() if document else b""
    return frame(STREAM_REQUEST, extras=extras, value=value, vbucket=vbucket, opaque=opaque)


def buffer_ack(size: int) -> bytes:
    """Return a BUFFER_ACK."""
    return frame(BUFFER_ACK, extras=struct.pack(">I", size))


def set_vbucket(vbucket: int, state: int, opaque: int) -> bytes:
    """Return a SET_VBUCKET."""
    return frame(SET_VBUCKET, extras=struct.pack(">I", state), vbucket=vbucket, opaque=opaque)


def compact(
    vbucket: int, upto: int, opaque: int, *, before_s: int = 0, every: bool = False
) -> bytes:
    """Return a COMPACT_DB."""
    extras = struct.pack(">QQB7x", before_s, upto, every)
    return frame(COMPACT, extras=extras, vbucket=vbucket, opaque=opaque)


def report_extras(
    watermark: int, kind: int, lifetime_s: int, *, remove: bool = False, uuid: int = 0
) -> bytes:
    """Return the extras of a HWT_REPORT; a history of 0 is left out."""
    short = struct.pack(">QIBBH", watermark, lifetime_s, kind, remove, 0)
    return short + struct.pack(">Q", uuid) if uuid else short


def numbers(vbuckets: Iterable[int]) -> bytes:
    """Return vBucket numbers as a value."""
    return b"".join(struct.pack(">H", number) for number in vbuckets)


# --- what clients read ----------------------------------------------------------------------------


def observed(value: bytes) -> list[tuple[int, bytes, int, int]]:
    """Return (vBucket, key, state, cas) of each key in the reply."""
    found = []
    while value:
        number, length = _KEY_HEAD.unpack_from(value)
        key = value[4 : 4 + length]
        state, cas = _KEY_TAIL.unpack_from(value, 4 + length)
        found.append((number, key, state, cas))
        value = value[4 + length + 9 :]
    return found


@dataclass(frozen=True, slots=True)
class SeqnoReport:
    """The reply to OBSERVE_SEQNO."""

    vbucket: int
    uuid: int
    persisted: int
    current: int


def seqno_report(value: bytes) -> SeqnoReport:
    """Read the reply to OBSERVE_SEQNO, in either of its forms."""
    assert len(value) == (27, 43)[value[0]], "observe-seqno has 27 or 43 bytes"
    return SeqnoReport(*struct.unpack_from(">HQQQ", value, 1))


def failover_log(value: bytes) -> tuple[tuple[int, int], ...]:
    """Return (uuid, seqno)s, newest first."""
    assert value, "a failover log is empty"
    assert len(value) % 16 == 0, "a failover log is malformed"
    return tuple(struct.iter_unpack(">QQ", value))  # type: ignore[arg-type]


def read64(value: bytes) -> int:
    """Return the seqno of a ROLLBACK."""
    assert len(value) == 8
    return int.from_bytes(value, "big")


def read32(extras: bytes) -> int:
    """Return the reason of a STREAM_END."""
    assert len(extras) == 4
    return int.from_bytes(extras, "big")


def marker(extras: bytes) -> tuple[int, int, int]:
    """Return start, end and kind of a snapshot marker."""
    start, end, kind = struct.unpack(">QQI", extras)
    return start, end, kind


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a document; a deletion says nothing but its place and its numbers."""

    key: bytes
    seqno: int
    rev: int
    cas: int
    deleted: bool
    value: bytes
    flags: int
    expiry: int

    @classmethod
    def of_item(cls, item: object) -> Version:
        """Copy an item of the engine or of a store."""
        deleted = bool(item.life)  # type: ignore[attr-defined]
        key, seqno, rev, cas, value, flags, expiry = (
            getattr(item, name)
            for name in ("key", "seqno", "rev", "cas", "value", "flags", "expiry")
        )
        if deleted:
            return cls(key, seqno, rev, cas, True, b"", 0, 0)
        return cls(key, seqno, rev, cas, False, value, flags, expiry)


def report_answer(reply: Frame) -> tuple[int, int, int]:
    """Return purge seqno, high seqno and lifetime out of the answer to a HWT_REPORT."""
    purge, high, lifetime_s = struct.unpack(">QQI", reply.extras)
    return purge, high, lifetime_s


def stored_rows(document: bytes | None) -> dict[bytes, tuple[int, int, int | None, int, int]]:
    """Read the document of a vBucket's watermarks.

    Returns:
        By id: watermark, history, floor, when it was reported, lifetime.
    """
    rows: dict[bytes, tuple[int, int, int | None, int, int]] = {}
    at = 1
    while document is not None and at < len(document):
        _, watermark, uuid, floor, at_s, lifetime_s, size, more = struct.unpack_from(
            ">BQQQQIHH", document, at
        )
        at += 41 + size + more
        name = document[at - size - more : at - more]
        rows[name] = watermark, uuid, None if floor == NEVER else floor, at_s, lifetime_s
    return rows


def version(message: Frame, *, timed: bool) -> Version:
    """Read a mutation, a deletion, or an expiration; `timed` ones say when they happened."""
    extras = message.extras
    if message.opcode == MUTATION:
        seqno, rev, flags, expiry, lock, meta, _ = struct.unpack(">QQIIIHB", extras)
        assert lock == meta == 0
        return Version(message.key, seqno, rev, message.cas, False, message.value, flags, expiry)
    size = 20 if message.opcode == EXPIRATION else 21 if timed else 18
    assert len(extras) == size, f"a deletion has {len(extras)} bytes of extras"
    assert not message.value, "a deletion has a value"
    seqno, rev = struct.unpack_from(">QQ", extras)
    return Version(message.key, seqno, rev, message.cas, True, b"", 0, 0)


def leased(value: bytes) -> Iterable[tuple[int, int, int, int]]:
    """Return (vBucket, uuid, high seqno, purge seqno)s of a lease."""
    assert len(value) % 26 == 0
    return struct.iter_unpack(">HQQQ", value)  # type: ignore[return-value]


def outcomes(value: bytes) -> dict[int, int]:
    """Return what became of each vBucket."""
    return dict(struct.iter_unpack(">HH", value))  # type: ignore[arg-type]


def branches(value: bytes) -> dict[int, tuple[int, int]]:
    """Return the newest (uuid, seqno) of each vBucket."""
    return {number: (uuid, seqno) for number, uuid, seqno in struct.iter_unpack(">HQQ", value)}
