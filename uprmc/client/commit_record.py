"""One commit as bytes: the positions that moved, the ring entries that came, what may be forgotten.

Little-endian: u32 CRC-32 of all that follows; u32 counts of positions, trims, chunks and entries;
then columns: vBuckets (u32) and five numbers (u64 each) of the positions; vBuckets and seqnos of
the trims; vBuckets and lengths (u32 each) of the chunks; seqnos (u64), key lengths (u16) and keys
of their entries. Columns are written and read in a few calls, however many vBuckets there are.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple
from zlib import crc32

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
    body = b"".join(
        (
            _HEAD.pack(0, len(saved), len(trims), len(ring), len(ring.seqnos))[_CRC_BYTES:],
            _column("I", saved),
            *_numbers(saved),
            _column("I", trims),
            _column("Q", trims.values()),
            _column("I", ring.vbuckets),
            _column("I", ring.lengths),
            _column("Q", ring.seqnos),
            _column("H", map(len, ring.keys)),
            *ring.keys,
        )
    )
    return crc32(body).to_bytes(_CRC_BYTES, "little") + body


def _numbers(saved: Mapping[int, Saved]) -> list[bytes]:
    if not saved:
        return []
    seqnos, snapshots, _, rings_from, purge_seqnos, _ = zip(*saved.values(), strict=True)
    starts, ends = zip(*snapshots, strict=True)
    return [_column("Q", each) for each in (seqnos, starts, ends, rings_from, purge_seqnos)]


def _column(kind: str, numbers: Iterable[int]) -> bytes:
    found = array(kind, numbers)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def unpack_record(data: bytes) -> CommitRecord:
    """Return what `pack_record` was given.

    Raises:
        ValueError, struct.error: these are not the bytes that it returned.
    """
    crc, positions, trims, chunks, entries = _HEAD.unpack_from(data)
    if crc != crc32(memoryview(data)[_CRC_BYTES:]):
        raise ValueError("a record with a wrong checksum")
    reader = _Reader(data)
    moved = reader.column("I", positions)
    columns = [reader.column("Q", positions) for _ in range(_NUMBERS)]
    trimmed = dict(zip(reader.column("I", trims), reader.column("Q", trims), strict=True))
    ring = RingColumns()
    ring.vbuckets += reader.column("I", chunks)
    ring.lengths += reader.column("I", chunks)
    ring.seqnos += reader.column("Q", entries)
    ring.keys += reader.keys(entries)
    return CommitRecord(dict(zip(moved, zip(*columns, strict=True), strict=True)), trimmed, ring)


class _Reader:
    """Reads columns one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = _HEAD.size

    def column(self, kind: str, count: int) -> Sequence[int]:
        found = array(kind)
        end = self._at + count * found.itemsize
        found.frombytes(self._data[self._at : end])
        self._at = end
        if sys.byteorder == "big":
            found.byteswap()
        return found

    def keys(self, count: int) -> list[bytes]:
        lengths = self.column("H", count)
        return [
            self._data[start:end] for start, end in pairwise(accumulate(lengths, initial=self._at))
        ]
