"""What is on disk, byte by byte. All numbers are big-endian, so that keys sort as numbers do.

An environment holds four databases:

``by-id``
    (vBucket 2 bytes, key) -> place (`segments`). One for each document or tombstone.
``by-seq``
    (vBucket 2 bytes, seqno 8 bytes) -> segment (`segments`), which has records (`uprmc.record`).
``stale``
    (vBucket 2 bytes, seqno 8 bytes) -> nothing. One for each record in ``by-seq`` that is replaced
    or gone. All others are in ``by-id``.
``meta``
    ``identity`` -> what the directory is; ``extent`` -> the size the file had reached before the
    newest commit; ``upgrade`` -> how far an unfinished upgrade has come; ``place`` -> where the
    directory was left (`directory`); ``owner`` -> the process that has opened it last;
    ``vbucket:`` and the number in 2 bytes -> that vBucket's header.
``local``
    ``=`` and the name -> a local document, as it was given.

What is in ``meta`` and ``local`` is **sealed**: behind each value are 4 bytes with the CRC-32 of
its key and itself. Segments have checksums of their own. What ``by-id`` and ``stale`` say is
compared with the segments when a node starts.

A **vBucket header** is 68 bytes (version, state, number of failover entries, high seqno, snapshot
start and end, purge seqno, greatest revision of a deletion, term, highest CAS, highest known term),
then 16 bytes (uuid, seqno) for each failover entry, newest first. The **identity** is 21 bytes:
magic, format version, number of vBuckets, uuid of the directory, number of the rule for conflicts.

A directory of an older format is rewritten when it is opened (`upgrade`); one with a newer
`FORMAT_VERSION` is refused.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from uprmc.errors import StoreCorrupt, StoreError
from uprmc.model import (
    SEQNO_MAX,
    ConflictRule,
    FailoverEntry,
    SnapshotRange,
    VBucketHeader,
    VBucketState,
)

HEADER_VERSION = 2
#: 1: the first; 2: headers of version 2; 3: records of version 2 in segments; 4: origins in
#: records, and an identity with the rule for conflicts; 5: checksums.
FORMAT_VERSION = 5

BY_ID = b"by-id"
BY_SEQ = b"by-seq"
STALE = b"stale"
META = b"meta"
LOCAL = b"local"

IDENTITY_KEY = b"identity"
EXTENT_KEY = b"extent"
UPGRADE_KEY = b"upgrade"
PLACE_KEY = b"place"
OWNER_KEY = b"owner"
HEADER_PREFIX = b"vbucket:"
HEADER_END = b"vbucket;"
LOCAL_PREFIX = b"="

SEQNO_BYTES = 8
SEAL_BYTES = 4

VBUCKET = struct.Struct(">H")
SEQNO = struct.Struct(">Q")
assert VBUCKET.size == 2

_BY_SEQ_KEY = struct.Struct(">HQ")
assert _BY_SEQ_KEY.size == 10

_HEADER = struct.Struct(">BBHQQQQQQQQ")
assert _HEADER.size == 68

_FAILOVER = struct.Struct(">QQ")
assert _FAILOVER.size == 16

_IDENTITY = struct.Struct(">8sHHQ")
assert _IDENTITY.size == 20
#: One more byte since format 4.
_RULES = (ConflictRule.REVISION, ConflictRule.TIMESTAMP)
_MAGIC = b"uprmc\r\n\x00"

_EXTENT = struct.Struct(">Q")
assert _EXTENT.size == 8


class Identity(NamedTuple):
    """What a data directory is: fixed when it is made, but for an upgrade of the format."""

    format_version: int
    vbuckets: int
    uuid: int
    conflict_rule: ConflictRule = ConflictRule.REVISION


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


def seqno_of_key(key: bytes) -> int:
    """Return the seqno of a by-seq key."""
    _, seqno = _BY_SEQ_KEY.unpack(key)
    return int(seqno)


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


# --- seals --------------------------------------------------------------------------------------


def sealed(key: bytes, value: bytes) -> bytes:
    """Return what is stored in ``meta`` or ``local`` for a value."""
    return value + crc32(value, crc32(key)).to_bytes(SEAL_BYTES, "big")


def unsealed(key: bytes, stored: bytes) -> bytes:
    """Return the value again; raises `StoreCorrupt`."""
    value = stored[:-SEAL_BYTES]
    if stored != sealed(key, value):
        raise StoreCorrupt(f"what is stored as {key!r} is not what was written")
    return value


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
    if data[:1] != bytes([HEADER_VERSION]):
        raise StoreCorrupt(f"a vBucket header is not of version {HEADER_VERSION}")
    try:
        _, state, count, high, start, end, *others = _HEADER.unpack_from(data)
        log = tuple(map(FailoverEntry._make, _FAILOVER.iter_unpack(data[_HEADER.size :])))
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
        *numbers, rule = identity
        packed = _IDENTITY.pack(_MAGIC, *numbers) + bytes([_RULES.index(rule)])
        return sealed(IDENTITY_KEY, packed)
    except struct.error as error:
        raise StoreError(f"the directory's identity does not fit its layout: {error}") from None


def unpack_identity(data: bytes) -> Identity:
    """Read the identity record of any version; raises `StoreCorrupt`."""
    if len(data) > _IDENTITY.size + 1:  # those of older formats have no seal
        data = unsealed(IDENTITY_KEY, data)
    if len(data) < _IDENTITY.size or not data.startswith(_MAGIC):
        raise StoreCorrupt("the identity record is not one of uprmc")
    _, format_version, vbuckets, uuid = _IDENTITY.unpack_from(data)
    number = data[_IDENTITY.size] if len(data) > _IDENTITY.size else 0
    if number >= len(_RULES):
        raise StoreCorrupt(f"no rule for conflicts has the number {number}")
    return Identity(format_version, vbuckets, uuid, _RULES[number])


def pack_extent(file_bytes: int) -> bytes:
    """Return the extent record."""
    return sealed(EXTENT_KEY, _EXTENT.pack(min(file_bytes, SEQNO_MAX)))


def unpack_extent(data: bytes | None) -> int:
    """Read the extent record, of older formats, too; 0 when there is none yet."""
    if data is None or len(data) == _EXTENT.size:
        return int(_EXTENT.unpack(data)[0]) if data else 0
    return int.from_bytes(unsealed(EXTENT_KEY, data), "big")
