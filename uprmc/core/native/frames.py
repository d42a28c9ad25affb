"""Mutations of UPR streams, from received bytes to columns: compiled only.

What is no plain mutation of the stream, in order and inside of its snapshot, ends a call: the rules
judge it, and they exist only elsewhere. `uprmc.remote.mutations` says what is promised.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from uprmc.core.native.store import u16_at, u32_at

HEADER_BYTES: Final[i64] = 24
EXTRAS_BYTES: Final[i64] = 31
#: Magic and opcode of a mutation.
MUTATION: Final[i64] = 0x8057
#: A row of SNAPSHOTS: opaque, kind, start, end, purge seqno.
ROW_BYTES: Final[i64] = 32
#: Magic and opcode of SNAPSHOTS, and the bytes in front of its rows.
SNAPSHOTS: Final[i64] = 0x80DF
SNAPSHOTS_HEAD_BYTES: Final[i64] = 32
#: Key length, length of extras and datatype of SNAPSHOTS.
LENGTHS: Final[i64] = 0x0800


def take_mutations(
    data: bytes,
    position: i64,
    end: i64,
    opaque: i64,
    vbucket: i64,
    low: i64,
    high: i64,
    seqnos: list[int],
    keys: list[bytes],
    positions: list[int],
    ends: list[int],
) -> i64:
    """See `uprmc.remote.mutations`."""
    while low < high and position + HEADER_BYTES + EXTRAS_BYTES <= end:
        if u16_at(data, position) != MUTATION or u32_at(data, position + 12) != opaque:
            break
        if u16_at(data, position + 6) != vbucket or i64(data[position + 4]) != EXTRAS_BYTES:
            break
        key_at: i64 = position + HEADER_BYTES + EXTRAS_BYTES
        value_at: i64 = key_at + u16_at(data, position + 2)
        stop: i64 = position + HEADER_BYTES + u32_at(data, position + 8)
        value_end: i64 = stop - u16_at(data, position + 52)
        seqno = read_i64_be(data, position + 24)
        if seqno <= low or seqno > high or stop > end or not key_at < value_at <= value_end:
            break
        seqnos.append(seqno)
        keys.append(data[key_at:value_at])
        positions.append(position)
        ends.append(value_end)
        low = seqno
        position = stop
    return position


def take_snapshots(
    data: bytes,
    rows_at: i64,
    position: i64,
    end: i64,
    vbuckets: list[int],
    lasts: list[int],
    seqnos: list[int],
    keys: list[bytes],
    positions: list[int],
    ends: list[int],
) -> bool:
    """See `uprmc.remote.mutations`."""
    for vbucket in vbuckets:
        high = read_i64_be(data, rows_at + 16)
        low = read_i64_be(data, rows_at + 8) - 1
        opaque = u32_at(data, rows_at)
        if low < -1 or high <= low:
            return False
        stop = take_mutations(
            data, position, end, opaque, vbucket, low, high, seqnos, keys, positions, ends
        )
        if stop == position or seqnos[-1] != high:
            return False
        lasts.append(len(keys))
        rows_at += ROW_BYTES
        position = stop
    return position == end


def lone_snapshot(
    data: bytes,
    seqnos: list[int],
    keys: list[bytes],
    positions: list[int],
    ends: list[int],
) -> tuple[int, int, int, int, int, int] | None:
    """See `uprmc.remote.mutations`."""
    end: i64 = i64(len(data))
    item: i64 = SNAPSHOTS_HEAD_BYTES + ROW_BYTES
    if end < item + HEADER_BYTES + EXTRAS_BYTES or u16_at(data, 0) != SNAPSHOTS:
        return None
    if u32_at(data, 2) != LENGTHS or u32_at(data, 8) != end - HEADER_BYTES:
        return None
    if u32_at(data, 24) or u32_at(data, 28) != 1:
        return None
    opaque = u32_at(data, SNAPSHOTS_HEAD_BYTES)
    vbucket = u16_at(data, item + 6)
    start = read_i64_be(data, SNAPSHOTS_HEAD_BYTES + 8)
    high = read_i64_be(data, SNAPSHOTS_HEAD_BYTES + 16)
    purge_seqno = read_i64_be(data, SNAPSHOTS_HEAD_BYTES + 24)
    if start < 0 or high < start or purge_seqno < 0:
        return None
    stop = take_mutations(
        data, item, end, opaque, vbucket, start - 1, high, seqnos, keys, positions, ends
    )
    if stop != end or seqnos[-1] != high:
        return None
    kind = u32_at(data, SNAPSHOTS_HEAD_BYTES + 4)
    return opaque, vbucket, start, high, kind, purge_seqno


def values_of(
    data: bytes, head_bytes: i64, positions: list[int], keys: list[bytes], ends: list[int]
) -> list[bytes | None]:
    """See `uprmc.remote.mutations`."""
    found: list[bytes | None] = []
    number: i64 = 0
    count: i64 = len(keys)
    while number < count:
        end: i64 = ends[number]
        if end:
            found.append(data[i64(positions[number]) + head_bytes + i64(len(keys[number])) : end])
        else:
            found.append(None)
        number += 1
    return found
