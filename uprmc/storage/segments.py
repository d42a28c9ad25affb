"""Segments: how records of one vBucket stand together in one value of the by-seq database.

A **segment** has records of rising seqno. It is stored under the seqno of its last record, so the
first segment at or behind a seqno is the one that has it, or what comes next. Segments of a vBucket
never overlap::

    8          checksum of all that follows; its seed is the checksum of the segment's by-seq key
    2          number of records
    4 for each length of the record
    4 for each checksum of the record, the last 32 bits; its seed is the number of its vBucket
               the records

Checksums are XXH3 of 64 bits. Who reads a segment checks the first one (`is_intact`), which
costs next to nothing: a CRC-32 would add a tenth to a backfill. Only if it is wrong those of the
records tell which of them can be trusted (`sound`).

A record's **place** is its seqno in 8 bytes, and `ALONE` if it stands alone because of its length.

A segment fits on a few pages of LMDB, which are read and written together. A record that LMDB would
not put on a page beside others stands alone, so it can be removed without rewriting others.

The functions here are the interpreted form; `uprmc.core.native.segments` replaces them if it runs.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import repeat, takewhile
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest as checksum

from uprmc.core import form
from uprmc.errors import StoreCorrupt
from uprmc.record import (
    AGE_BITS,
    AGE_STEP,
    KIND_AT,
    RECORD_OVERHEAD_BYTES,
    RECORD_VERSION,
    SEQNO,
    key_of,
    stand_in,
    with_kind,
)

#: Four pages of LMDB without their header. With one, a commit costs a tenth more and a scan a
#: quarter; with many, a free place for a segment would be hard to find in the file.
SEGMENT_BYTES = 4 * 4_096 - 16

#: A longer record stands alone.
SHARING_BYTES = (4_096 - 16) // 2
ALONE = b"\x01"

#: This many stale records may be there in any case, and one more for each `_LIVE_FOR_STALE` that
#: are not stale.
_STALE_FREE = 256
_LIVE_FOR_STALE = 4

#: A commit rewrites at most this many records of average length for each one that it writes.
REWRITTEN_FOR_WRITTEN = 4

#: What a by-seq key begins with: the number of its vBucket.
VBUCKET_BYTES = 2

#: After this many entries that stay were passed by, each of the others is looked for.
PASSED_MOST = 32

_SEQNO_BYTES = 8
_CHECKSUM_BYTES = 8
#: What each record takes in the head.
_ENTRY_BYTES = 8
_COUNT_END = 10
_COUNT = struct.Struct(">H")
_LAST_32_BITS = 2**32 - 1


def stale_allowed(live: int) -> int:
    """Return how many stale records may be beside those that are not without a sweep."""
    return _STALE_FREE + live // _LIVE_FOR_STALE


@lru_cache(maxsize=256)
def _head(count: int) -> struct.Struct:
    return struct.Struct(f">H{2 * count}I")


def join(key: bytes, records: Sequence[bytes], spoiled: Collection[bytes] = ()) -> bytes:
    """Return the segment of some records.

    Args:
        key: its by-seq key.
        records: what it has.
        spoiled: records among them that shall be taken for damaged by all who read them.
    """
    vbucket = int.from_bytes(key[:VBUCKET_BYTES], "big")
    sums = [each & _LAST_32_BITS for each in map(checksum, records, repeat(vbucket))]
    if spoiled:
        sums = [each ^ (record in spoiled) for record, each in zip(records, sums, strict=True)]
    content = _head(len(records)).pack(len(records), *map(len, records), *sums) + b"".join(records)
    found = checksum(content, checksum(key)) ^ bool(spoiled)
    return found.to_bytes(_CHECKSUM_BYTES, "big") + content


def is_intact(key: bytes, segment: bytes) -> bool:
    """Tell whether a segment is what was written under this by-seq key."""
    found = checksum(memoryview(segment)[_CHECKSUM_BYTES:], checksum(key))
    return found == int.from_bytes(segment[:_CHECKSUM_BYTES], "big")


def read(key: bytes, segment: bytes) -> list[bytes] | None:
    """Return the records of a segment; ``None`` = it is damaged. Raises `StoreCorrupt`."""
    return split(segment) if is_intact(key, segment) else None


def sound(key: bytes, segment: bytes) -> list[bytes]:
    """Return those records of a damaged segment that are as they were written."""
    try:
        records, sums = _parts(segment)
    except StoreCorrupt:
        return []
    vbucket = int.from_bytes(key[:VBUCKET_BYTES], "big")
    return [
        record
        for record, written in zip(records, sums, strict=True)
        if checksum(record, vbucket) & _LAST_32_BITS == written
    ]


def as_written(key: bytes, segment: bytes, record: bytes) -> bytes | None:
    """Return a version as a damaged segment had it, ``None`` if it never had that version.

    The checksum tells, also of a version that somebody else says is the right one. What cannot be
    known is believed: if the segment's head is damaged, or a stand-in has taken the record's place.

    Args:
        key: the segment's by-seq key.
        segment: it has the damaged record.
        record: the version, with any age.
    """
    try:
        found, sums = _parts(segment)
    except StoreCorrupt:
        return record
    vbucket = int.from_bytes(key[:VBUCKET_BYTES], "big")
    kind = record[KIND_AT] & ~AGE_BITS
    for age in range(0, AGE_BITS + 1, AGE_STEP):
        variant = with_kind(record, kind | age)
        if checksum(variant, vbucket) & _LAST_32_BITS in sums or variant in found:
            return variant
    placeholder = stand_in(key_of(record), int.from_bytes(record[SEQNO], "big"))
    return record if placeholder in found else None


def split(segment: bytes) -> list[bytes]:
    """Return the records of a segment; raises `StoreCorrupt`."""
    records, _ = _parts(segment)
    if min(map(len, records)) < RECORD_OVERHEAD_BYTES:
        raise StoreCorrupt(f"a segment of {len(segment)} bytes has a record that is too short")
    if records[0][0] != RECORD_VERSION:
        raise StoreCorrupt(f"a record has format version {records[0][0]}, not {RECORD_VERSION}")
    return records


def _parts(segment: bytes) -> tuple[list[bytes], Sequence[int]]:
    """Return a segment's records, and what their checksums were."""
    try:
        (count,) = _COUNT.unpack_from(segment, _CHECKSUM_BYTES)
        numbers = struct.unpack_from(f">{2 * count}I", segment, _COUNT_END)
    except struct.error:
        raise StoreCorrupt(f"a segment of {len(segment)} bytes is too short") from None
    end = _COUNT_END + count * _ENTRY_BYTES
    records = []
    for length in numbers[:count]:
        start, end = end, end + length
        records.append(segment[start:end])
    if not records or end != len(segment):
        raise StoreCorrupt(f"a segment of {len(segment)} bytes does not have the length it says")
    return records, numbers[count:]


def count_of(segment: bytes) -> int:
    """Return the number of records of a segment."""
    return int.from_bytes(segment[_CHECKSUM_BYTES:_COUNT_END], "big")


def without(records: list[bytes], marks: list[bytes]) -> list[bytes]:
    """Return the records whose seqno no mark has.

    Args:
        records: by rising seqno.
        marks: by-seq keys of the same vBucket, in order.
    """
    if not marks:
        return records
    stale = {mark[VBUCKET_BYTES:] for mark in marks}
    return [record for record in records if record[SEQNO] not in stale]


def marks_upto(keys: Iterable[bytes], last: bytes) -> list[bytes]:
    """Return the first by-seq keys of a vBucket that are not above one."""
    return list(takewhile(lambda key: key <= last, keys))


def packed(prefix: bytes, records: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return (by-seq key, segment) of records of rising seqno."""
    found = []
    begin, size = 0, _COUNT_END
    for at, record in enumerate(records):
        length = len(record)
        size += _ENTRY_BYTES + length
        if at > begin and (size > SEGMENT_BYTES or length > SHARING_BYTES):
            key = prefix + records[at - 1][SEQNO]
            found.append((key, join(key, records[begin:at])))
            begin, size = at, _COUNT_END + _ENTRY_BYTES + length
        if length > SHARING_BYTES:
            size = SEGMENT_BYTES
    if records:
        key = prefix + records[-1][SEQNO]
        found.append((key, join(key, records[begin:])))
    return found


def entries(prefix: bytes, records: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return (by-id key, place) of records, in the order of their keys."""
    return sorted(
        [
            (
                prefix + key_of(record),
                record[SEQNO] if len(record) <= SHARING_BYTES else record[SEQNO] + ALONE,
            )
            for record in records
        ]
    )


def unlist(by_id: Any, prefix: bytes, drop: Sequence[tuple[bytes, int]]) -> list[int]:
    """Remove (key, seqno) from the by-id database by a cursor of it; return the seqnos, rising.

    What has another seqno stays. Entries are passed by one after the other as long as many of them
    are to go, because looking for each costs more than looking at it.
    """
    wanted = dict(drop)
    found: list[int] = []
    passed = -PASSED_MOST
    by_id.set_range(prefix + min(wanted))
    while wanted and passed <= 2 * len(found) and (entry := by_id.key()).startswith(prefix):
        seqno = wanted.pop(entry[VBUCKET_BYTES:], None)
        if seqno is not None and _unlisted(by_id, seqno):
            found.append(seqno)
        else:
            passed += 1
            by_id.next()
    for key in sorted(wanted):
        seqno = wanted[key]
        found += [seqno] if by_id.set_key(prefix + key) and _unlisted(by_id, seqno) else []
    return sorted(found)


def _unlisted(by_id: Any, seqno: int) -> bool:
    """Remove the entry at the cursor if it has that seqno."""
    if int.from_bytes(by_id.value()[:_SEQNO_BYTES], "big") != seqno:
        return False
    by_id.delete()
    return True


if form.FORM == form.COMPILED and not TYPE_CHECKING:
    from uprmc.core.native.segments import (  # noqa: F401
        entries,
        is_intact,
        marks_upto,
        packed,
        read,
        split,
        unlist,
        without,
    )
