"""Segments: how records of one vBucket stand together in one value of the by-seq database.

A **segment** has records of rising seqno: their number in 2 bytes, the length of each in 4 bytes,
then the records. It is stored under the seqno of its last record, so the first segment at or behind
a seqno is the one that has it, or what comes next. Segments of a vBucket never overlap.

A segment fits on a few pages of LMDB, which are read and written together. A record that LMDB would
not put on a page beside others stands alone, so it can be removed without rewriting others.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

from uprmc.errors import StoreCorrupt
from uprmc.record import RECORD_OVERHEAD_BYTES, RECORD_VERSION, SEQNO

#: Four pages of LMDB without their header. With one, a commit costs a tenth more and a scan a
#: quarter; with many, a free place for a segment would be hard to find in the file.
SEGMENT_BYTES = 4 * 4_096 - 16

#: A longer record stands alone.
SHARING_BYTES = (4_096 - 16) // 2

_LENGTH_BYTES = 4
_COUNT = struct.Struct(">H")


@lru_cache(maxsize=256)
def _head(count: int) -> struct.Struct:
    return struct.Struct(f">H{count}I")


def join(records: Sequence[bytes]) -> bytes:
    """Return the segment of some records."""
    return _head(len(records)).pack(len(records), *map(len, records)) + b"".join(records)


def split(segment: bytes) -> list[bytes]:
    """Return the records of a segment; raises `StoreCorrupt`."""
    try:
        (count,) = _COUNT.unpack_from(segment)
        head = _head(count)
        lengths = head.unpack_from(segment)
    except struct.error:
        raise StoreCorrupt(f"a segment of {len(segment)} bytes is too short") from None
    end = head.size
    records = []
    for length in lengths[1:]:
        start, end = end, end + length
        records.append(segment[start:end])
    if not records or end != len(segment) or min(lengths[1:]) < RECORD_OVERHEAD_BYTES:
        raise StoreCorrupt(f"a segment of {len(segment)} bytes does not have the length it says")
    if records[0][0] != RECORD_VERSION:
        raise StoreCorrupt(f"a record has format version {records[0][0]}, not {RECORD_VERSION}")
    return records


def without(records: list[bytes], stale: Collection[bytes]) -> list[bytes]:
    """Return the records whose seqno is not among those, which are given as bytes."""
    if not stale:
        return records
    return [record for record in records if record[SEQNO] not in stale]


def packed(records: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (last seqno as bytes, segment) of records of rising seqno."""
    begin, size = 0, _COUNT.size
    for at, record in enumerate(records):
        length = len(record)
        size += _LENGTH_BYTES + length
        if at > begin and (size > SEGMENT_BYTES or length > SHARING_BYTES):
            yield records[at - 1][SEQNO], join(records[begin:at])
            begin, size = at, _COUNT.size + _LENGTH_BYTES + length
        if length > SHARING_BYTES:
            size = SEGMENT_BYTES
    if records:
        yield records[-1][SEQNO], join(records[begin:])
