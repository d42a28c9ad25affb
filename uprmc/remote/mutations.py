"""Plain mutations of a stream that follow one another, read into the columns of a batch.

This is the hot path of every program that follows a node. It takes only what is as it should be:
whole mutations of the stream, by rising seqno, inside of the snapshot. The first frame that is
anything else ends a call, and is judged by the rules. Where the core is compiled, its form runs.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.core.form import COMPILED, FORM
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode
from uprmc.protocol.upr import MUTATION_EXTRAS, MUTATION_JUDGED, frame_head, frame_place

_HEAD = frame_head(Opcode.UPR_MUTATION)
_PLACE = frame_place(MUTATION_EXTRAS.size, 0)
#: All of a merged frame's third number but the datatype.
_PLACE_MASK = 0xFF00FFFF
_FRAME_BYTES = MUTATION_JUDGED.size
_unpack = MUTATION_JUDGED.unpack_from

#: The compiled form has signed numbers. What is above is read by the rules.
SEQNO_LIMIT = 2**63 - 1


def read_mutations(
    data: bytes,
    position: int,
    end: int,
    opaque: int,
    vbucket: int,
    low: int,
    high: int,
    seqnos: list[int],
    keys: list[bytes],
    positions: list[int],
    ends: list[int],
) -> int:
    """Read mutations of a stream from `position` on; returns where the last one ends.

    Args:
        data: the received bytes.
        position, end: where to begin, and where to stop at the latest.
        opaque, vbucket: of the stream.
        low, high: seqnos are above the one and at most the other; both up to `SEQNO_LIMIT`.
        seqnos, keys, positions, ends: columns of a `Batch`, to which the items are added.
    """
    last_start, place_wanted = end - _FRAME_BYTES, _PLACE | vbucket
    while low < high and position <= last_start:
        head, key_length, place, length, found, seqno, nmeta = _unpack(data, position)
        if head != _HEAD or found != opaque or place & _PLACE_MASK != place_wanted:
            break
        key_at = position + _FRAME_BYTES
        value_at, stop = key_at + key_length, position + HEADER_BYTES + length
        value_end = stop - nmeta
        if not low < seqno <= high or not key_at < value_at <= value_end or stop > end:
            break
        seqnos.append(seqno)
        keys.append(data[key_at:value_at])
        positions.append(position)
        ends.append(value_end)
        low, position = seqno, stop
    return position


def read_values(
    data: bytes, head_bytes: int, positions: list[int], keys: list[bytes], ends: list[int]
) -> list[bytes | None]:
    """Return the values of items, ``None`` for those that end at 0.

    Args:
        data: the received bytes.
        head_bytes: of a mutation in front of its key.
        positions, keys, ends: columns of a `Batch`.
    """
    return [
        data[position + head_bytes + len(key) : end] if end else None
        for position, key, end in zip(positions, keys, ends, strict=True)
    ]


def read_no_snapshots(
    data: bytes,
    rows_at: int,
    position: int,
    end: int,
    vbuckets: list[int],
    lasts: list[int],
    seqnos: list[int],
    keys: list[bytes],
    positions: list[int],
    ends: list[int],
) -> bool:
    """Read the items of SNAPSHOTS if all are plain mutations; the interpreted form never does.

    Args:
        data: the received bytes.
        rows_at: where the rows begin, one for each of `vbuckets`.
        position, end: of the items.
        vbuckets: of the snapshots.
        lasts: gets the number of items in all columns behind each snapshot.
        seqnos, keys, positions, ends: columns of a `Batch`, to which the items are added.

    Returns:
        whether all of it was read; if not, what was added to columns is to be taken out again.
    """
    return False


def read_no_lone_snapshot(
    data: bytes, seqnos: list[int], keys: list[bytes], positions: list[int], ends: list[int]
) -> tuple[int, int, int, int, int, int] | None:
    """Read bytes that are one frame of SNAPSHOTS with one snapshot of plain mutations.

    That is how a change comes that comes alone. The interpreted form never reads it.

    Args:
        data: the received bytes.
        seqnos, keys, positions, ends: columns of a `Batch`, to which the items are added.

    Returns:
        opaque, vBucket, start, end, kind and purge seqno; ``None`` = it is anything else, and what
        was added to columns makes no sense.
    """
    return None


take_mutations = read_mutations
lone_snapshot: Callable[..., tuple[int, int, int, int, int, int] | None] = read_no_lone_snapshot
take_snapshots: Callable[..., bool] = read_no_snapshots
values_of = read_values
if FORM == COMPILED:
    from uprmc.core.native import frames

    take_mutations = frames.take_mutations
    lone_snapshot = frames.lone_snapshot
    take_snapshots = frames.take_snapshots
    values_of = frames.values_of
