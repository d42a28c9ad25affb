"""The binary protocol as a client sees it, written a second time on purpose.

Nothing here comes from `uprmc`: a mistake in the server's own codec must not cancel itself out.

Source: memcached reference, section 2; UPR reference, section 6 (observe).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from zlib import crc32

from tests.codec.frames import HEADER, frame

GET, SET, ADD, REPLACE, DELETE, INCREMENT, DECREMENT = range(7)
FLUSH, GETQ, NOOP = 0x08, 0x09, 0x0A
APPEND, PREPEND = 0x0E, 0x0F
SETQ, ADDQ, REPLACEQ, DELETEQ, INCREMENTQ, DECREMENTQ = range(0x11, 0x17)
APPENDQ, TOUCH, GAT, HELLO = 0x19, 0x1C, 0x1D, 0x1F
OBSERVE_SEQNO, OBSERVE, GETL, UNLOCK = 0x91, 0x92, 0x94, 0x95

OK, NOT_FOUND, EXISTS, TOO_LARGE = 0x00, 0x01, 0x02, 0x03
NOT_STORED, BAD_DELTA, LOCKED, NOT_LOCKED = 0x05, 0x06, 0x09, 0x0E
NO_MEMORY, TRY_AGAIN = 0x82, 0x86

NOT_PERSISTED, PERSISTED, ABSENT, DELETED = 0x00, 0x01, 0x80, 0x81

CAS_HIDDEN = 2**64 - 1
NEVER_CREATE = 0xFFFFFFFF

WITH_SEQNOS, WITH_LOCK_STATUS = 0x04, 0x07

_KEY_HEAD = struct.Struct(">HH")
_KEY_TAIL = struct.Struct(">BQ")


request = frame


def vbucket_of(key: bytes, vbuckets: int) -> int:
    """Return where a key belongs."""
    return ((crc32(key) >> 16) & 0x7FFF) % vbuckets


@dataclass(frozen=True, slots=True)
class Reply:
    """A frame from the server."""

    opcode: int
    status: int
    opaque: int
    cas: int
    extras: bytes
    key: bytes
    value: bytes

    @property
    def token(self) -> tuple[int, int] | None:
        """The place of an accepted change: (vb_uuid, seqno)."""
        return struct.unpack(">QQ", self.extras) if len(self.extras) == 16 else None

    @property
    def flags(self) -> int:
        """The flags beside a document."""
        return int.from_bytes(self.extras, "big") if len(self.extras) == 4 else -1

    @property
    def number(self) -> int:
        """The counter."""
        return int.from_bytes(self.value, "big")


class ReplyReader:
    """Replies out of bytes that arrive anyhow."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Reply]:
        """Return the replies that are complete now."""
        buffer = self._buffer + data
        replies = []
        while len(buffer) >= 24:
            magic, opcode, key, extras, _, status, body, opaque, cas = HEADER.unpack_from(buffer)
            assert magic == 0x81, f"a reply begins with {magic:#04x}"
            if len(buffer) < 24 + body:
                break
            middle, end = 24 + extras + key, 24 + body
            assert middle <= end, "lengths of a reply contradict each other"
            parts = buffer[24 : 24 + extras], buffer[24 + extras : middle], buffer[middle:end]
            replies.append(Reply(opcode, status, opaque, cas, *parts))
            buffer = buffer[end:]
        self._buffer = buffer
        return replies


def observe_value(keys: list[tuple[int, bytes]]) -> bytes:
    """Return the value of OBSERVE for (vBucket, key)s."""
    return b"".join(_KEY_HEAD.pack(number, len(key)) + key for number, key in keys)


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
