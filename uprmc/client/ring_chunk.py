"""Ring entries as bytes: one chunk holds the keys that a batch brought for one vBucket.

Little-endian: u32 CRC-32 of all that follows; u32 `COMPACT` and the count; then the count's seqnos,
its key lengths, its keys. Columns, because they are packed and read in a few calls however many
there are: about 0.1 us for each entry. A column is a byte that names its kind of number (B, H, I or
Q, as of `struct`; 0: all are 0; =: all are as in the column before) and the numbers.

Chunks without `COMPACT` are of older versions: their seqnos are Q, their lengths H, without names.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from zlib import crc32

_HEAD = struct.Struct("<II")
_U32_BYTES = 4
_SMALL_KINDS, _KINDS = "BHI", "BHIQ"
_ZEROS, _SAME = b"0", b"="

#: Set in the first count behind a checksum where columns name their kinds.
COMPACT = 1 << 31


def pack_entries(seqnos: Sequence[int], keys: Sequence[bytes]) -> bytes:
    """Return entries as bytes; keys are shorter than 64 KiB."""
    count = (COMPACT | len(seqnos)).to_bytes(_U32_BYTES, "little")
    return with_checksum((count, packed(seqnos), packed([*map(len, keys)]), *keys))


def unpack_entries(data: bytes) -> list[tuple[int, bytes]]:
    """Return each ``(seqno, key)`` that `pack_entries` was given.

    Raises:
        ValueError, struct.error: these are not the bytes that it returned.
    """
    if len(data) < _HEAD.size:
        raise ValueError(f"a chunk of {len(data)} bytes")
    check(data, "a chunk")
    _, count = _HEAD.unpack_from(data)
    reader = ColumnReader(data, _HEAD.size, compact=count >= COMPACT)
    count &= COMPACT - 1
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


def packed(numbers: Collection[int], before: Collection[int] | None = None) -> bytes:
    """Return a column of the smallest numbers that will do, which names them."""
    if before is not None and numbers == before:
        return _SAME
    if not any(numbers):
        return _ZEROS
    for kind in _SMALL_KINDS:
        with suppress(struct.error):
            return kind.encode() + struct.pack(f"<{len(numbers)}{kind}", *numbers)
    return b"Q" + struct.pack(f"<{len(numbers)}Q", *numbers)


class ColumnReader:
    """Reads columns one after the other, from a place in the bytes.

    Args:
        data: has them.
        at: where the first one begins.
        compact: whether they name their kinds.
    """

    def __init__(self, data: bytes, at: int, *, compact: bool) -> None:
        self._data = data
        self._at = at
        self._compact = compact
        self._before: Sequence[int] = ()

    def column(self, kind: str, count: int) -> Sequence[int]:
        """Return so many numbers; `kind` is theirs where they do not name it."""
        if self._compact:
            name = self._data[self._at : self._at + 1]
            self._at += 1
            if name == _SAME:
                return self._before
            if name == _ZEROS:
                self._before = [0] * count
                return self._before
            kind = name.decode("ascii")
            if kind not in _KINDS:
                raise ValueError(f"a column of {name!r}")
        self._before = self._numbers(kind, count)
        return self._before

    def _numbers(self, kind: str, count: int) -> Sequence[int]:
        layout = struct.Struct(f"<{count}{kind}")
        found = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def keys(self, count: int) -> list[bytes]:
        """Return so many keys, which stand behind their lengths."""
        lengths = self.column("H", count)
        return [
            self._data[start:end] for start, end in pairwise(accumulate(lengths, initial=self._at))
        ]
