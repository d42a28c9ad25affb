"""Bytes that lie side by side, looked at row by row where numpy needs many passes: compiled only.

See `uprmc.columnar.decoder` and `uprmc.backup.digest`, which say what each function promises.
"""

from __future__ import annotations

from typing import Final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_le,
    write_i64_le,
)
from mypy_extensions import i64

HEADER_BYTES: Final[i64] = 24
#: Header and extras of a mutation.
RECORD_BYTES: Final[i64] = 55
MUTATION: Final[i64] = 0x8057
EXPIRATION: Final[i64] = 0x8059

#: As `uprmc.backup.digest` has them, with a sign.
EVERY_PLACE: Final[i64] = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST: Final[i64] = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND: Final[i64] = 0x94D049BB133111EB - (1 << 64)


def scan(data: bytes, size: i64) -> tuple[bytes, bytes, list[tuple[int, int, int]], int]:
    """Find the frames in the first `size` bytes."""
    records, places = BytesWriter(), BytesWriter()
    others: list[tuple[int, int, int]] = []
    count: i64 = 0
    at: i64 = 0
    while at + HEADER_BYTES <= size:
        end: i64 = at + HEADER_BYTES + (i64(read_i32_be(data, at + 8)) & 0xFFFFFFFF)
        if end > size:
            break
        head: i64 = i64(read_i16_be(data, at)) & 0xFFFF
        if MUTATION <= head <= EXPIRATION:
            write_i64_le(places, at)
            records.write(data[at : at + RECORD_BYTES])
            count += 1
        else:
            others.append((int(count), int(at), int(end)))
        at = end
    return records.getvalue(), places.getvalue(), others, int(at)


def _rest(data: bytes, at: i64, length: i64) -> i64:
    """Return the last word of a string, which has less than 8 bytes."""
    word: i64 = 0
    place: i64 = length
    while place > 0:
        place -= 1
        word = (word << 8) | i64(data[at + place])
    return word


def hashes(data: bytes, starts: bytes, lengths: bytes) -> bytes:
    """Return the hash of each string in `data`; all numbers are little-endian, of 8 bytes.

    The mixing is written out, and its factors are variables: a call for each word, or a constant of
    64 bits, would cost more than the mixing.
    """
    first: i64 = FIRST
    second: i64 = SECOND
    every_place: i64 = EVERY_PLACE
    found = BytesWriter()
    row: i64 = 0
    rows: i64 = len(starts)
    while row < rows:
        at: i64 = read_i64_le(starts, row)
        length: i64 = read_i64_le(lengths, row)
        end: i64 = at + length
        total: i64 = 0
        place: i64 = 0
        word: i64 = 0
        while at < end or place == 0:
            word = place + (read_i64_le(data, at) if end - at >= 8 else _rest(data, at, end - at))
            word = (word ^ ((word >> 30) & 0x3FFFFFFFF)) * first
            word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * second
            total += word ^ ((word >> 31) & 0x1FFFFFFFF)
            place += every_place
            at += 8
        word = total ^ length
        word = (word ^ ((word >> 30) & 0x3FFFFFFFF)) * first
        word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * second
        write_i64_le(found, word ^ ((word >> 31) & 0x1FFFFFFFF))
        row += 8
    return found.getvalue()
