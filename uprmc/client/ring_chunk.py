"""Ring entries as bytes: one chunk holds the keys that a batch brought for one vBucket.

Little-endian: u32 CRC-32 of all that follows, u32 count; then the count's seqnos (u64 each), its
key lengths (u16 each), its keys. Columns, because they are packed and read in a few calls however
many there are: about 0.1 us for each entry.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from zlib import crc32

_HEAD = struct.Struct("<II")
_U32_BYTES = 4


def pack_entries(seqnos: Sequence[int], keys: Sequence[bytes]) -> bytes:
    """Return entries as bytes; keys are shorter than 64 KiB."""
    count = len(seqnos).to_bytes(_U32_BYTES, "little")
    return with_checksum((count, column("Q", seqnos), column("H", map(len, keys)), *keys))


def unpack_entries(data: bytes) -> list[tuple[int, bytes]]:
    """Return each ``(seqno, key)`` that `pack_entries` was given.

    Raises:
        ValueError: these are not the bytes that it returned.
    """
    if len(data) < _HEAD.size:
        raise ValueError(f"a chunk of {len(data)} bytes")
    check(data, "a chunk")
    _, count = _HEAD.unpack_from(data)
    reader = ColumnReader(data, _HEAD.size)
    return list(zip(reader.column("Q", count), reader.keys(count), strict=True))


# --- columns --------------------------------------------------------------------------------------


def with_checksum(pieces: Iterable[bytes]) -> bytes:
    """Return pieces as one, their checksum before them."""
    body = b"".join(pieces)
    return crc32(body).to_bytes(_U32_BYTES, "little") + body


def check(data: bytes, what: str) -> None:
    """Raise `ValueError` if these are not bytes that `with_checksum` returned."""
    if data[:_U32_BYTES] != crc32(memoryview(data)[_U32_BYTES:]).to_bytes(_U32_BYTES, "little"):
        raise ValueError(f"{what} with a wrong checksum")


def column(kind: str, numbers: Iterable[int]) -> bytes:
    """Return numbers of one kind of `array`, little-endian."""
    found = array(kind, numbers)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


class ColumnReader:
    """Reads columns one after the other, from a place in the bytes."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def column(self, kind: str, count: int) -> Sequence[int]:
        """Return so many numbers."""
        found = array(kind)
        end = self._at + count * found.itemsize
        found.frombytes(self._data[self._at : end])
        self._at = end
        if sys.byteorder == "big":
            found.byteswap()
        return found

    def keys(self, count: int) -> list[bytes]:
        """Return so many keys, which stand behind their lengths."""
        lengths = self.column("H", count)
        return [
            self._data[start:end] for start, end in pairwise(accumulate(lengths, initial=self._at))
        ]
