"""One version of one document as packed bytes: the form in memory, on disk and nearly on the wire.

A record never changes. Tables, write queues, commits, stored entries, streams and warm-up all pass
on the same bytes; `uprmc.model.Item` is the decoded view for code that is not hot.

A **record** is a front of 24 bytes, the key, perhaps an origin, and a tail::

    front   0  1  format version, 2
            1  1  kind: see the bits below
            2  1  datatype
            3  4  expiry; for a tombstone the time of the deletion
            7  1  length of the key
            8  8  revision
           16  8  seqno
                  the key
    origin     8  vb_uuid     of the place where the version was first accepted;
               8  seqno       only if the kind has ORIGIN
    tail       8  CAS
               4  flags
                  the value

All numbers are big-endian. The tail is what the answer to a binary GET contains behind the first 16
bytes of its header, so an answer is one slice of the record.

A kind's two lowest bits are the `Life`. `ABSENT` marks a document whose value is only on disk: its
tail ends after the flags. `ORIGIN` marks a version that was first accepted elsewhere. Any other
version was accepted in its own vBucket: its seqno and the failover log tell the same. The two
highest bits are the **age** of the value in memory, a hint for the pager that means nothing on
disk. `LOST` marks, in memory only, an `ABSENT` document whose record on disk is damaged: nothing is
known of it but its key and seqno. The last bit is 0; it is for an optional section.
"""

from __future__ import annotations

import struct

from uprmc.model import Item, Origin

RECORD_VERSION = 2

#: Bits of a kind.
LIFE_BITS = 0x03
ABSENT = 0x04
ORIGIN = 0x08
LOST = 0x10
AGE_BITS = 0xC0

#: Ages. A record is made as `UNREAD`. A read makes it `READ`; each sweep of the pager adds
#: `AGE_STEP`, modulo the age bits, until it is `COLD`.
READ, UNREAD, COLD = 0x80, 0x00, 0x40
AGE_STEP = 0x40

FRONT = struct.Struct(">BBBIBQQ")
FRONT_BYTES = FRONT.size
assert FRONT_BYTES == 24
TAIL = struct.Struct(">QI")
TAIL_BYTES = TAIL.size
assert TAIL_BYTES == 12
ORIGIN_SECTION = struct.Struct(">QQ")
ORIGIN_BYTES = ORIGIN_SECTION.size
assert ORIGIN_BYTES == 2 * ORIGIN  # `tail_at` needs no branch
#: What a record takes beside its key, its origin and its value.
RECORD_OVERHEAD_BYTES = FRONT_BYTES + TAIL_BYTES

KIND_AT = 1
KEY_LENGTH_AT = 7
REV_AT, SEQNO_AT = 8, 16
EXPIRY = slice(3, 7)
REV = slice(REV_AT, REV_AT + 8)
SEQNO = slice(SEQNO_AT, SEQNO_AT + 8)

#: Beginning of a resident document of plain bytes that was read before.
READ_PLAIN = struct.pack(">BBB", RECORD_VERSION, READ, 0)
NEVER = bytes(4)
#: The same of one that never expires. Its tail can be sent without looking at anything else.
READ_PLAIN_FOREVER = READ_PLAIN + NEVER

_EXPIRY_MAX = 2**32 - 1
_pack_expiry = struct.Struct(">I").pack
_unpack_seqno = struct.Struct(">Q").unpack_from


def expiry_bytes(now_s: float) -> bytes:
    """Return a time as a front has it: of documents that expire, those above it are still there."""
    return _pack_expiry(min(max(int(now_s), 0), _EXPIRY_MAX))


def age_bits(nru: int) -> int:
    """Return the age of an item's `nru`."""
    return (nru + 2 & 3) << 6


def pack(item: Item) -> bytes:
    """Return the record of an item; `struct.error` when a number does not fit its field."""
    value = item.value
    kind = item.life | age_bits(item.nru)
    if value is None:
        value = b""
        if not item.life:
            kind |= ABSENT
    front = (kind, item.datatype, item.expiry, len(item.key), item.rev, item.seqno)
    return build(front, item.key, item.cas, item.flags, value, item.origin)


def build(
    front: tuple[int, int, int, int, int, int],
    key: bytes,
    cas: int,
    flags: int,
    value: bytes,
    origin: tuple[int, int] | None = None,
) -> bytes:
    """Return a record of its fields; `front` has those from the kind to the seqno."""
    if origin is None:
        return FRONT.pack(RECORD_VERSION, *front) + key + TAIL.pack(cas, flags) + value
    kind, *others = front
    begin = FRONT.pack(RECORD_VERSION, kind | ORIGIN, *others)
    return begin + key + ORIGIN_SECTION.pack(*origin) + TAIL.pack(cas, flags) + value


def stand_in(key: bytes, seqno: int) -> bytes:
    """Return what is known of a document whose record is damaged."""
    return build((ABSENT | LOST, 0, 0, len(key), 0, seqno), key, 0, 0, b"")


def unpack(record: bytes) -> Item:
    """Return the decoded view of a record."""
    _, kind, datatype, expiry, key_length, rev, seqno = FRONT.unpack_from(record)
    tail = tail_at(record)
    cas, flags = TAIL.unpack_from(record, tail)
    value: bytes | None = record[tail + TAIL_BYTES :]
    life = kind & LIFE_BITS
    if kind & ABSENT or (life and not value):
        value = None
    nru = (kind >> 6) + 2 & 3
    key = record[FRONT_BYTES : FRONT_BYTES + key_length]
    origin = stored_origin(record)
    return Item(key, value, flags, expiry, cas, seqno, rev, datatype, life, nru, origin)


def tail_at(record: bytes) -> int:
    """Return where a record's tail begins."""
    return FRONT_BYTES + record[KEY_LENGTH_AT] + 2 * (record[KIND_AT] & ORIGIN)


def stored_origin(record: bytes) -> Origin | None:
    """Return where a version was first accepted; ``None`` = in its own vBucket."""
    if not record[KIND_AT] & ORIGIN:
        return None
    return Origin(*ORIGIN_SECTION.unpack_from(record, FRONT_BYTES + record[KEY_LENGTH_AT]))


def seqno_of(record: bytes) -> int:
    """Return a record's seqno."""
    (seqno,) = _unpack_seqno(record, SEQNO_AT)
    return int(seqno)


def cas_of(record: bytes) -> int:
    """Return a record's CAS."""
    (cas,) = _unpack_seqno(record, tail_at(record))
    return int(cas)


def key_of(record: bytes) -> bytes:
    """Return a record's key."""
    return record[FRONT_BYTES : FRONT_BYTES + record[KEY_LENGTH_AT]]


def value_bytes_of(record: bytes) -> int:
    """Return the length of a record's value."""
    return len(record) - tail_at(record) - TAIL_BYTES


def with_kind(record: bytes, kind: int) -> bytes:
    """Return a record with another kind."""
    return b"%c%c%b" % (RECORD_VERSION, kind, record[2:])


def without_value(record: bytes) -> bytes:
    """Return what is kept of a document whose value is only on disk; a tombstone stays as it is."""
    kind = record[KIND_AT]
    if kind & LIFE_BITS:
        return record
    end = tail_at(record) + TAIL_BYTES
    return b"%c%c%b" % (RECORD_VERSION, kind | ABSENT, record[2:end])
