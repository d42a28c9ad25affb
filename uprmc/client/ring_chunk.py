"""Ring entries as bytes: one chunk holds the keys that a batch brought for one vBucket.

Little-endian: u32 CRC-32 of all that follows, u32 count; then the count's seqnos (u64 each), its
key lengths (u16 each), its keys. Columns, because they are packed and read in a few calls however
many there are: about 0.1 us for each entry.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from zlib import crc32

_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")


def pack_entries(entries: Sequence[tuple[int, bytes]]) -> bytes:
    """Return at least one ``(seqno, key)`` as bytes; keys are shorter than 64 KiB."""
    seqnos, keys = zip(*entries, strict=True)
    count = len(seqnos)
    columns = _columns(count).pack(count, *seqnos, *map(len, keys))
    body = b"".join((columns, *keys))
    return _CRC.pack(crc32(body)) + body


def unpack_entries(data: bytes) -> list[tuple[int, bytes]]:
    """Return what `pack_entries` was given.

    Raises:
        ValueError: these are not the bytes that it returned.
    """
    if len(data) < _HEAD.size:
        raise ValueError(f"a chunk of {len(data)} bytes")
    crc, count = _HEAD.unpack_from(data)
    if crc != crc32(memoryview(data)[_CRC.size :]):
        raise ValueError("a chunk with a wrong checksum")
    columns = _columns(count)
    _, *numbers = columns.unpack_from(data, _CRC.size)
    ends = accumulate(numbers[count:], initial=_CRC.size + columns.size)
    keys = [data[start:end] for start, end in pairwise(ends)]
    return list(zip(numbers[:count], keys, strict=True))


@lru_cache(1024)
def _columns(count: int) -> struct.Struct:
    return struct.Struct(f"<I{count}Q{count}H")
