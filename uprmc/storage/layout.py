"""What is on disk, byte by byte. All numbers are big-endian, so that keys sort as numbers do.

An environment holds four databases:

``by-id``
    (vBucket 2 bytes, key) -> head. One entry for each document or tombstone. It has everything
    but the value, so a reading of all keys never touches a value.
``by-seq``
    (vBucket 2 bytes, seqno 8 bytes) -> head, key, value. One entry for each entry of ``by-id``.
``meta``
    ``identity`` -> what the directory is; ``extent`` -> the size the file had reached before the
    newest commit; ``vbucket:`` and the number in 2 bytes -> that vBucket's header.
``local``
    ``=`` and the name -> a local document, as it was given.

A **head** is 40 bytes, the same in both indexes::

     0  1  format version that wrote it       14  8  CAS
     1  1  length of the key                  22  8  seqno
     2  4  length of the value                30  8  revision
     6  4  flags                              38  1  datatype
    10  4  expiry                             39  1  life

From the flags on the order is that of `Item`'s arguments. The by-seq entry of a by-id head is
found by copying 8 bytes; nothing has to be decoded for that.

A **vBucket header** is 68 bytes (version, state, number of failover entries, high seqno, snapshot
start and end, purge seqno, greatest revision of a deletion, term, highest CAS, highest
known term), then 16 bytes (uuid, seqno) for each failover entry, newest first. Version 1 lacks the
last three numbers. The **identity** is 20 bytes: magic, format version, number of vBuckets, uuid of
the directory.

Versions. Records and headers have versions of their own, `FORMAT_VERSION` is the newer of the two;
a directory with a higher one is refused. Every record and header begins with the version it was
written in, and is brought up to date as it is read: `RECORD_UPGRADES` and `HEADER_UPGRADES` are
folded over it. So a new format needs one function here and no rewriting of files, provided that it
leaves the version in byte 0 and the seqno in bytes 22 to 29.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
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

RECORD_VERSION = 1
HEADER_VERSION = 2
FORMAT_VERSION = max(RECORD_VERSION, HEADER_VERSION)

Upgrade = Callable[[bytes], bytes]

#: ``UPGRADES[n]`` turns bytes of version n into bytes of version n + 1. Version 1 is the first.
RECORD_UPGRADES: dict[int, Upgrade] = {}

BY_ID = b"by-id"
BY_SEQ = b"by-seq"
META = b"meta"
LOCAL = b"local"

IDENTITY_KEY = b"identity"
EXTENT_KEY = b"extent"
HEADER_PREFIX = b"vbucket:"
HEADER_END = b"vbucket;"
LOCAL_PREFIX = b"="

HEAD = struct.Struct(">BBIIIQQQBB")
assert HEAD.size == 40
HEAD_BYTES = HEAD.size

#: Where a head, and so a record, has its seqno.
SEQNO_AT = 22
SEQNO = struct.Struct(">Q")
_SEQNO = slice(SEQNO_AT, SEQNO_AT + SEQNO.size)

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


def by_seq_key_of(prefix: bytes, head: bytes) -> bytes:
    """Return the by-seq key that belongs to a by-id entry, from its vBucket prefix and head."""
    return prefix + head[_SEQNO]


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


def pack_heads(items: Iterable[Item]) -> list[bytes]:
    """Return the heads of items, in their order; `struct.error` when one does not fit."""
    pack = HEAD.pack
    return [
        pack(
            RECORD_VERSION,
            len(item.key),
            0 if item.value is None else len(item.value),
            item.flags,
            item.expiry,
            item.cas,
            item.seqno,
            item.rev,
            item.datatype,
            item.life,
        )
        for item in items
    ]


def pack_record(head: bytes, item: Item) -> bytes:
    """Return the by-seq record of an item whose head is given."""
    return head + item.key + (item.value or b"")


def unpack_record(record: bytes) -> Item:
    """Read a by-seq record back; raises `StoreCorrupt`."""
    if not record or record[0] != RECORD_VERSION:
        record = upgraded(record, RECORD_UPGRADES, RECORD_VERSION)
    try:
        fields = HEAD.unpack_from(record)
    except struct.error:
        raise StoreCorrupt(f"a record of {len(record)} bytes is too short") from None
    _, key_length, length, flags, expiry, cas, seqno, rev, datatype, life = fields
    value_at = HEAD_BYTES + key_length
    if len(record) != value_at + length:
        raise StoreCorrupt(f"the record of seqno {seqno} does not have the length that it says")
    value = None if life and not length else record[value_at:]
    return Item(record[HEAD_BYTES:value_at], value, flags, expiry, cas, seqno, rev, datatype, life)


def unpack_metadata(key: bytes, head: bytes) -> tuple[Item, int]:
    """Read a by-id head back, as (item without value, value length); raises `StoreCorrupt`."""
    _, _, length, *fields = unpack_head(head)
    return Item(key, None, *fields), length


def unpack_head(head: bytes) -> tuple[int, ...]:
    """Return the ten numbers of a by-id head, of any format version; raises `StoreCorrupt`."""
    if not head or head[0] != RECORD_VERSION:
        head = upgraded(head, RECORD_UPGRADES, RECORD_VERSION)
    try:
        return HEAD.unpack(head)
    except struct.error:
        raise StoreCorrupt(f"an index entry has {len(head)} bytes, not {HEAD_BYTES}") from None


def upgraded(record: bytes, upgrades: Mapping[int, Upgrade], newest: int) -> bytes:
    """Bring a record or header, whose first byte is its version, up to the `newest` version."""
    version = record[0] if record else 0
    if not 1 <= version <= newest:
        raise StoreCorrupt(f"a record has format version {version}, not 1 to {newest}")
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
