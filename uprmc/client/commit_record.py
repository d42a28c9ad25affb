"""One commit as bytes: the positions that moved, the ring entries that came, what may be forgotten.

Little-endian: u32 CRC-32 of all that follows; u32 counts of positions, trims, chunks and entries;
then columns: vBuckets (u32) and five numbers (u64 each) of the positions; vBuckets and seqnos of
the trims; vBuckets and lengths (u32 each) of the chunks; seqnos (u64), key lengths (u16) and keys
of their entries. Columns are written and read in a few calls, however many vBuckets there are.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from uprmc.client.ring_chunk import ColumnReader, check, column, with_checksum
from uprmc.client.ring_columns import RingColumns
from uprmc.client.state import Saved

_HEAD = struct.Struct("<5I")
_CRC_BYTES = 4
_NUMBERS = 5

#: Seqno, start and end of the snapshot, `ring_from` and purge seqno, as in `state.Saved`.
Numbers = tuple[int, int, int, int, int]


class CommitRecord(NamedTuple):
    """What a record holds.

    Attributes:
        positions: by vBucket.
        trims: by vBucket, the seqno up to which older entries were forgotten.
        ring: entries that were added after that.
    """

    positions: Mapping[int, Numbers]
    trims: Mapping[int, int]
    ring: RingColumns


def pack_record(saved: Mapping[int, Saved], trims: Mapping[int, int], ring: RingColumns) -> bytes:
    """Return a commit as bytes; failover logs and terms are left out."""
    return with_checksum(
        (
            _HEAD.pack(0, len(saved), len(trims), len(ring), len(ring.seqnos))[_CRC_BYTES:],
            column("I", saved),
            *_numbers(saved),
            column("I", trims),
            column("Q", trims.values()),
            column("I", ring.vbuckets),
            column("I", ring.lengths),
            column("Q", ring.seqnos),
            column("H", map(len, ring.keys)),
            *ring.keys,
        )
    )


def _numbers(saved: Mapping[int, Saved]) -> list[bytes]:
    if not saved:
        return []
    seqnos, snapshots, _, rings_from, purge_seqnos, _ = zip(*saved.values(), strict=True)
    starts, ends = zip(*snapshots, strict=True)
    return [column("Q", each) for each in (seqnos, starts, ends, rings_from, purge_seqnos)]


def unpack_record(data: bytes) -> CommitRecord:
    """Return what `pack_record` was given.

    Raises:
        ValueError, struct.error: these are not the bytes that it returned.
    """
    check(data, "a record")
    _, positions, trims, chunks, entries = _HEAD.unpack_from(data)
    reader = ColumnReader(data, _HEAD.size)
    moved = reader.column("I", positions)
    columns = [reader.column("Q", positions) for _ in range(_NUMBERS)]
    trimmed = dict(zip(reader.column("I", trims), reader.column("Q", trims), strict=True))
    ring = RingColumns()
    ring.vbuckets += reader.column("I", chunks)
    ring.lengths += reader.column("I", chunks)
    ring.seqnos += reader.column("Q", entries)
    ring.keys += reader.keys(entries)
    return CommitRecord(dict(zip(moved, zip(*columns, strict=True), strict=True)), trimmed, ring)
