"""What is on disk, byte by byte. All numbers are big-endian, so that keys sort as numbers do.

An environment holds four databases:

``by-id``
    (vBucket 2 bytes, key) -> entry. One for each document or tombstone: everything but key and
    value, so a reading of all keys never touches a value.
``by-seq``
    (vBucket 2 bytes, seqno 8 bytes) -> record (`uprmc.record`). One for each entry of ``by-id``.
``meta``
    ``identity`` -> what the directory is; ``extent`` -> the size the file had reached before the
    newest commit; ``vbucket:`` and the number in 2 bytes -> that vBucket's header.
``local``
    ``=`` and the name -> a local document, as it was given.

An **entry** is 40 bytes: a record's front, marked as `ABSENT` for a document; CAS and flags; the
length of the value in 4 bytes. Its by-seq key is found by copying 8 bytes.

A **vBucket header** is 68 bytes (version, state, number of failover entries, high seqno, snapshot
start and end, purge seqno, greatest revision of a deletion, term, highest CAS, highest
known term), then 16 bytes (uuid, seqno) for each failover entry, newest first. Version 1 lacks the
last three numbers. The **identity** is 20 bytes: magic, format version, number of vBuckets, uuid of
the directory.

Versions. Records and headers have versions of their own; `FORMAT_VERSION` counts both, and a
directory with a higher one is refused. Every record, entry and header begins with the version it
was written in, and is brought up to date as it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from uprmc.errors import StoreCorrupt, StoreError
from uprmc.model import (
    SEQNO_MAX,
    FailoverEntry,
    Item,
    SnapshotRange,
    VBucketHeader,
    VBucketState,
)
from uprmc.record import (
    ABSENT,
    AGE_BITS,
    FRONT_BYTES,
    KEY_LENGTH_AT,
    KIND_AT,
    LIFE_BITS,
    RECORD_OVERHEAD_BYTES,
    RECORD_VERSION,
    SEQNO,
    TAIL_BYTES,
    is_sound,
    pack,
)

HEADER_VERSION = 2
#: 1: records and headers of version 1; 2: headers of version 2; 3: records of version 2, too.
FORMAT_VERSION = 3

#: What the record of a document begins with that has its value and no optional section.
_PLAIN = bytes((RECORD_VERSION, 0))

Upgrade = Callable[[bytes], bytes]

#: ``UPGRADES[n]`` turns bytes of version n into bytes of version n + 1. Version 1 is the first.
BY_ID = b"by-id"
BY_SEQ = b"by-seq"
META = b"meta"
LOCAL = b"local"

IDENTITY_KEY = b"identity"
EXTENT_KEY = b"extent"
HEADER_PREFIX = b"vbucket:"
HEADER_END = b"vbucket;"
LOCAL_PREFIX = b"="

_LENGTH = struct.Struct(">I")
ENTRY_BYTES = RECORD_OVERHEAD_BYTES + _LENGTH.size
assert ENTRY_BYTES == 40

#: Version 1 of a record: version, lengths of key and value, flags, expiry, CAS, seqno, revision,
#: datatype, life; then key and value. An entry was the same without key and value.
_RECORD_1 = struct.Struct(">BBIIIQQQBB")
assert _RECORD_1.size == 40
_SEQNO_1 = slice(22, 30)

VBUCKET = struct.Struct(">H")
assert VBUCKET.size == 2

_BY_SEQ_KEY = struct.Struct(">HQ")
assert _BY_SEQ_KEY.size == 10

_HEADER = struct.Struct(">BBHQQQQQQQQ")
assert _HEADER.size == 68

_HEADER_1_BYTES = 44

_FAILOVER = struct.Struct(">QQ")
assert _FAILOVER.size == 16

_IDENTITY = struct.Struct(">8sHHQ")
assert _IDENTITY.size == 20
_MAGIC = b"uprmc\r\n\x00"

_EXTENT = struct.Struct(">Q")
assert _EXTENT.size == 8


def _with_term_and_cas(header: bytes) -> bytes:
    """Turn a header of version 1 into one of version 2: an active vBucket is in its first term."""
    term = int(header[1:2] == bytes([VBucketState.ACTIVE]))
    cut = _HEADER_1_BYTES
    return b"\x02" + header[1:cut] + struct.pack(">QQQ", term, 0, term) + header[cut:]


HEADER_UPGRADES: dict[int, Upgrade] = {1: _with_term_and_cas}


class Identity(NamedTuple):
    """What a data directory is: fixed when it is made, but for an upgrade of the format."""

    format_version: int
    vbuckets: int
    uuid: int


# --- keys ---------------------------------------------------------------------------------------


def vbucket_prefix(vbucket: int) -> bytes:
    """Return what every key of the vBucket begins with, in both indexes."""
    return VBUCKET.pack(vbucket)


def vbucket_end(vbucket: int) -> bytes:
    """Return the least key that is above all keys of the vBucket, in both indexes."""
    return VBUCKET.pack(vbucket + 1)


def by_seq_key(vbucket: int, seqno: int) -> bytes:
    """Return the by-seq key of a seqno."""
    return _BY_SEQ_KEY.pack(vbucket, seqno)


def by_seq_key_of(prefix: bytes, stored: bytes) -> bytes:
    """Return the by-seq key of a record or entry, with its vBucket's prefix."""
    return prefix + stored[SEQNO if stored[0] == RECORD_VERSION else _SEQNO_1]


def seqno_of_key(by_seq_key: bytes) -> int:
    """Return the seqno of a by-seq key."""
    return int(_BY_SEQ_KEY.unpack(by_seq_key)[1])


def header_key(vbucket: int) -> bytes:
    """Return the meta key of a vBucket's header."""
    return HEADER_PREFIX + VBUCKET.pack(vbucket)


def vbucket_of_header_key(key: bytes) -> int:
    """Return the vBucket that `header_key` was made for."""
    (vbucket,) = VBUCKET.unpack_from(key, len(HEADER_PREFIX))
    return int(vbucket)


def local_key(name: bytes) -> bytes:
    """Return the key of a local document; the prefix lets its name be empty."""
    return LOCAL_PREFIX + name


# --- records ------------------------------------------------------------------------------------


def entry_of(record: bytes) -> bytes:
    """Return the by-id entry of a record."""
    kind = record[KIND_AT]
    if not kind & LIFE_BITS:
        kind |= ABSENT
    tail_at = FRONT_BYTES + record[KEY_LENGTH_AT]
    value_at = tail_at + TAIL_BYTES
    return b"%c%c%b%b%b" % (
        RECORD_VERSION,
        kind & ~AGE_BITS,
        record[2:FRONT_BYTES],
        record[tail_at:value_at],
        _LENGTH.pack(len(record) - value_at),
    )


def read_entry(key: bytes, entry: bytes) -> tuple[bytes, int]:
    """Return (record without value, value length) of a by-id entry; raises `StoreCorrupt`."""
    if entry[:1] == b"\x01" and len(entry) == _RECORD_1.size:
        _, _, length, flags, expiry, cas, seqno, rev, datatype, life = _RECORD_1.unpack(entry)
        return pack(Item(key, None, flags, expiry, cas, seqno, rev, datatype, life)), length
    _check_version(entry)
    if len(entry) != ENTRY_BYTES or entry[KEY_LENGTH_AT] != len(key):
        raise StoreCorrupt(f"an index entry has {len(entry)} bytes, or belongs to another key")
    (length,) = _LENGTH.unpack_from(entry, RECORD_OVERHEAD_BYTES)
    return entry[:FRONT_BYTES] + key + entry[FRONT_BYTES:RECORD_OVERHEAD_BYTES], length


def read_record(data: bytes) -> bytes:
    """Return a by-seq record, of any format version, in the present one; raises `StoreCorrupt`."""
    if data[:1] == b"\x01":
        return _record_of_version_1(data)
    _check_version(data)
    if not is_sound(data):
        raise StoreCorrupt(f"a record of {len(data)} bytes is too short, or of no known kind")
    return data


def read_records(found: list[bytes]) -> list[bytes]:
    """Do what `read_record` does for many, of which most are plain documents."""
    return [
        data
        if data.startswith(_PLAIN)
        and len(data) > RECORD_OVERHEAD_BYTES
        and len(data) >= RECORD_OVERHEAD_BYTES + data[KEY_LENGTH_AT]
        else read_record(data)
        for data in found
    ]


def _check_version(data: bytes) -> None:
    version = data[0] if data else 0
    if version != RECORD_VERSION:
        raise StoreCorrupt(f"a record has format version {version}, not 1 to {RECORD_VERSION}")


def _record_of_version_1(data: bytes) -> bytes:
    try:
        fields = _RECORD_1.unpack_from(data)
    except struct.error:
        raise StoreCorrupt(f"a record of {len(data)} bytes is too short") from None
    _, key_length, length, flags, expiry, cas, seqno, rev, datatype, life = fields
    value_at = _RECORD_1.size + key_length
    if len(data) != value_at + length:
        raise StoreCorrupt(f"the record of seqno {seqno} does not have the length that it says")
    value = None if life and not length else data[value_at:]
    key = data[_RECORD_1.size : value_at]
    return pack(Item(key, value, flags, expiry, cas, seqno, rev, datatype, life))


def upgraded(record: bytes, upgrades: Mapping[int, Upgrade], newest: int) -> bytes:
    """Bring a header, whose first byte is its version, up to the `newest` version."""
    version = record[0] if record else 0
    if not 1 <= version <= newest:
        raise StoreCorrupt(f"a vBucket header has format version {version}, not 1 to {newest}")
    for step in range(version, newest):
        record = upgrades[step](record)
    return record


# --- headers ------------------------------------------------------------------------------------


def pack_header(header: VBucketHeader) -> bytes:
    """Return a vBucket header as bytes; `struct.error` when a number does not fit."""
    fixed = _HEADER.pack(
        HEADER_VERSION,
        header.state,
        len(header.failover_log),
        header.high_seqno,
        *header.snapshot,
        header.purge_seqno,
        header.max_deleted_rev,
        header.term,
        header.max_cas,
        header.known_term,
    )
    return fixed + b"".join(_FAILOVER.pack(*entry) for entry in header.failover_log)


def unpack_header(data: bytes) -> VBucketHeader:
    """Read a vBucket header back; raises `StoreCorrupt`."""
    data = upgraded(data, HEADER_UPGRADES, HEADER_VERSION)
    try:
        _, state, count, high, start, end, *others = _HEADER.unpack_from(data)
        log = tuple(FailoverEntry(*pair) for pair in _FAILOVER.iter_unpack(data[_HEADER.size :]))
        known_state = VBucketState(state)
    except (struct.error, ValueError) as error:
        raise StoreCorrupt(f"a vBucket header cannot be read: {error}") from None
    if len(log) != count:
        raise StoreCorrupt(f"a vBucket header has {len(log)} failover entries, not {count}")
    return VBucketHeader(known_state, high, SnapshotRange(start, end), log, *others)


# --- the directory ------------------------------------------------------------------------------


def pack_identity(identity: Identity) -> bytes:
    """Return the identity record; raises `StoreError` when a number is too large."""
    try:
        return _IDENTITY.pack(_MAGIC, *identity)
    except struct.error as error:
        raise StoreError(f"the directory's identity does not fit its layout: {error}") from None


def unpack_identity(data: bytes) -> Identity:
    """Read the identity record of any version; raises `StoreCorrupt`."""
    if len(data) < _IDENTITY.size or not data.startswith(_MAGIC):
        raise StoreCorrupt("the identity record is not one of uprmc")
    _, format_version, vbuckets, uuid = _IDENTITY.unpack_from(data)
    return Identity(format_version, vbuckets, uuid)


def pack_extent(file_bytes: int) -> bytes:
    """Return the extent record."""
    return _EXTENT.pack(min(file_bytes, SEQNO_MAX))


def unpack_extent(data: bytes | None) -> int:
    """Read the extent record; 0 when there is none yet."""
    return int(_EXTENT.unpack(data)[0]) if data else 0
