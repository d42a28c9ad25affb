"""Tombstones among records, and those that are old enough to go: compiled only.

See `uprmc.engine.tombstones`, which says what each function promises.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from uprmc.core.native.table import FRONT_BYTES, KEY_LENGTH_AT, KIND_AT, LIFE_BITS, tail_of

SIGN: Final[i64] = -9223372036854775808


def pick(
    records: list[bytes],
    bounds: tuple[int, int, int],
    most: int,
    found: list[tuple[bytes, int]],
    left: tuple[int, int, int],
) -> tuple[int, int, int, bool]:
    """Append to `found` the tombstones that are to go."""
    limit, before_s, upto = bounds
    after, first_left, oldest_left = left
    for record in records:
        raw: i64 = read_i64_be(record, 16)
        seqno: int = int(raw)
        if raw < 0:
            seqno += 1 << 64
        if seqno > limit:
            return after, first_left, oldest_left, True
        after = seqno
        if not i64(record[KIND_AT]) & LIFE_BITS:
            continue
        deleted_at: i64 = i64(read_i32_be(record, 3)) & 0xFFFFFFFF
        deleted_at_s: int = int(deleted_at)
        if deleted_at_s < before_s and seqno <= upto:
            key_end: i64 = FRONT_BYTES + i64(record[KEY_LENGTH_AT])
            found.append((record[FRONT_BYTES:key_end], seqno))
            if len(found) >= most:
                break
        else:
            if seqno < first_left:
                first_left = seqno
            if deleted_at_s < oldest_left:
                oldest_left = deleted_at_s
    return after, first_left, oldest_left, False


def dead_among(records: list[bytes]) -> list[bytes]:
    """Return the tombstones among records."""
    return [record for record in records if i64(record[KIND_AT]) & LIFE_BITS]


def highest_cas(records: list[bytes]) -> int:
    """Return the highest CAS of records, 0 of none."""
    highest: i64 = SIGN  # the sign bit turned over orders numbers without a sign
    for record in records:
        cas: i64 = read_i64_be(record, tail_of(record)) ^ SIGN
        if cas > highest:
            highest = cas
    raw: i64 = highest ^ SIGN
    found: int = int(raw)
    if raw < 0:
        found += 1 << 64
    return found
