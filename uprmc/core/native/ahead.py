"""The next frames of a connection, looked at together: compiled only.

While one frame is carried out nothing is known of the next one's document, so each would wait for
memory by itself. Here the keys of many frames are hashed first, and then all their records are
read, so that the processor waits for them at the same time.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from uprmc.core.native.store import KEY_MAX_BYTES, crc32_of, u16_at, u32_at
from uprmc.core.native.table import RecordTable, hash_of

HEADER_BYTES: Final[i64] = 24
#: So many frames are looked at together.
FRAMES: Final[i64] = 32


class Ahead:
    """What is known of the frames that were looked at last.

    Attributes:
        turn: how often something was looked at.
        count: how many they are; all are complete and have a key and a vBucket that is served.
        numbers: of their vBuckets. Tables are not kept: one that is discarded must go at once.
        hashes: of their keys.
    """

    def __init__(self) -> None:
        self.turn: i64 = 0
        self.count: i64 = 0
        self.numbers: vec[i64] = vec[i64]([0] * 32)
        self.hashes: vec[i64] = vec[i64]([0] * 32)
        self._places: vec[i64] = vec[i64]([0] * 32)
        #: What was read; without it a compiler could leave the reading out.
        self._read: i64 = 0

    def look(
        self,
        tables: list[RecordTable | None],
        data: bytes,
        position: i64,
        mask: i64,
        most: i64,
    ) -> i64:
        """Look at up to `most` frames from `position` on; return the number of this look."""
        size: i64 = len(data)
        served: i64 = len(tables)
        count: i64 = 0
        while count < most and position + HEADER_BYTES <= size and data[position] == 0x80:
            key_length: i64 = u16_at(data, position + 2)
            key_at: i64 = position + HEADER_BYTES + i64(data[position + 4])
            end: i64 = position + HEADER_BYTES + u32_at(data, position + 8)
            if end > size or not 0 < key_length <= KEY_MAX_BYTES or key_at + key_length > end:
                break
            number = (
                (crc32_of(data, key_at, key_length) >> 16) & 0x7FFF & mask
                if mask >= 0
                else u16_at(data, position + 6)
            )
            if number >= served or tables[number] is None:
                break
            self.numbers[count] = number
            self.hashes[count] = hash_of(data, key_at, key_length)
            count += 1
            position = end
        self.count = count
        if count > 1:
            self._read_records(tables)
        self.turn += 1
        return self.turn

    def _read_records(self, tables: list[RecordTable | None]) -> None:
        """Have the processor fetch slots, then records, each all together."""
        numbers, hashes, places = self.numbers, self.hashes, self._places
        at: i64 = 0
        while at < self.count:
            table = tables[numbers[at]]
            places[at] = -1 if table is None else table.place_of(hashes[at])
            at += 1
        at = 0
        while at < self.count:
            if places[at] >= 0:
                table = tables[numbers[at]]
                if table is not None:
                    self._read += table.touch(hashes[at], places[at])
            at += 1
