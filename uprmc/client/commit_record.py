"""One commit as bytes: the positions that moved, the ring entries that came, what may be forgotten.

Little-endian: u32 CRC-32 of all that follows; u32 counts of positions (with `COMPACT`), trims,
chunks and entries; then columns as of `ring_chunk`: vBuckets and five numbers of the positions;
vBuckets and seqnos of the trims; vBuckets and lengths of the chunks; seqnos, key lengths and keys
of their entries. They are written and read in a few calls, however many vBuckets there are. A
vBucket at the end of a snapshot whose seqno is below 65,536 takes 4 bytes.

Records without `COMPACT` are of older versions: there vBuckets and lengths of chunks are I, lengths
of keys H, and all other numbers Q.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from uprmc.client.ring_chunk import COMPACT, ColumnReader, check, packed, with_checksum
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
    counts = len(trims), len(ring), len(ring.seqnos)
    return with_checksum(
        (
            _HEAD.pack(0, COMPACT | len(saved), *counts)[_CRC_BYTES:],
            packed(saved.keys()),
            *_numbers(saved),
            packed(trims.keys()),
            packed(trims.values()),
            packed(ring.vbuckets),
            packed(ring.lengths),
            packed(ring.seqnos),
            packed([*map(len, ring.keys)]),
            *ring.keys,
        )
    )


def _numbers(saved: Mapping[int, Saved]) -> list[bytes]:
    if not saved:
        return [packed(())] * _NUMBERS
    seqnos, snapshots, _, rings_from, purge_seqnos, _ = zip(*saved.values(), strict=True)
    starts, ends = zip(*snapshots, strict=True)
    return [
        packed(seqnos),
        packed(starts, seqnos),
        packed(ends, starts),
        packed(rings_from),
        packed(purge_seqnos),
    ]


def unpack_record(data: bytes) -> CommitRecord:
    """Return what `pack_record` was given.

    Raises:
        ValueError, struct.error: these are not the bytes that it returned.
    """
    check(data, "a record")
    _, positions, trims, chunks, entries = _HEAD.unpack_from(data)
    reader = ColumnReader(data, _HEAD.size, compact=positions >= COMPACT)
    positions &= COMPACT - 1
    moved = reader.column("I", positions)
    columns = [reader.column("Q", positions) for _ in range(_NUMBERS)]
    trimmed = dict(zip(reader.column("I", trims), reader.column("Q", trims), strict=True))
    ring = RingColumns()
    ring.vbuckets += reader.column("I", chunks)
    ring.lengths += reader.column("I", chunks)
    ring.seqnos += reader.column("Q", entries)
    ring.keys += reader.keys(entries)
    return CommitRecord(dict(zip(moved, zip(*columns, strict=True), strict=True)), trimmed, ring)
