"""The asking side of SNAPSHOTS: one frame with the new snapshots of many streams and their items.

The items are the frames that streams have anyway, so a batch refers to them as to any others. The
frame is judged as if each snapshot had a marker of its own, in front of its items; and each must be
complete.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.consume.batch import Batch, Received, Run
from uprmc.consume.stream import StreamFault, StreamState
from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode
from uprmc.protocol.upr import (
    MUTATION_EXTRAS,
    MUTATION_JUDGED,
    Marker,
    frame_head,
    frame_place,
)
from uprmc.protocol.upr_many import (
    ANNOUNCED_SNAPSHOT,
    MORE_FOLLOWS,
    SNAPSHOTS_EXTRAS,
    SNAPSHOTS_HEAD_BYTES,
)

_MUTATION_HEAD = frame_head(Opcode.UPR_MUTATION)
_MUTATION_BYTES = MUTATION_JUDGED.size
_MUTATION_PLACE = frame_place(MUTATION_EXTRAS.size, 0)
#: All of a merged frame's third number but the datatype.
_PLACE_MASK = 0xFF00FFFF
_unpack = MUTATION_JUDGED.unpack_from

#: Deals with one item that is no plain mutation, between two positions; returns their end.
TakeItem = Callable[[StreamState, int, int], int]


def take_snapshots(
    data: bytes,
    position: int,
    end: int,
    received: Received,
    find: Callable[[int], StreamState | None],
    take_item: TakeItem,
) -> bool:
    """Take one frame of SNAPSHOTS; returns whether the producer goes on at once.

    Args:
        data: holds all of the frame.
        position, end: where it begins and ends.
        received: where the items go.
        find: returns the stream with an opaque, ``None`` = it has ended.
        take_item: see there.

    Raises:
        StreamFault, RemoteProtocolError: what no producer may send.
    """
    flags, count = SNAPSHOTS_EXTRAS.unpack_from(data, position + HEADER_BYTES)
    rows_at = position + SNAPSHOTS_HEAD_BYTES
    at = rows_at + count * ANNOUNCED_SNAPSHOT.size
    if not count or at > end:
        raise RemoteProtocolError(f"{count} snapshots in {end - position} bytes")
    rows = list(ANNOUNCED_SNAPSHOT.iter_unpack(data[rows_at:at]))
    streams = [find(row[0]) for row in rows]
    if len({row[0] for row in rows}) < count:
        raise RemoteProtocolError("two snapshots of a stream in one frame")
    batch = received.batch_for(streams)
    for (opaque, kind, start, high, purge), stream in zip(rows, streams, strict=True):
        if stream is None:
            at = _skip(data, at, end, opaque)
            continue
        if start > high:
            raise RemoteProtocolError(f"a snapshot from {start} to {high}")
        marker = tuple.__new__(Marker, (start, high, kind, purge))
        if stream.announce(marker) is not None:
            raise StreamFault(f"vBucket {stream.vbucket}: a snapshot within another one")
        run = Run(stream, len(batch.keys), marker)
        batch.runs.append(run)
        at = _items(data, at, end, batch, stream, take_item)
        run.last, run.done = len(batch.keys), high
    received.completed(filter(None, streams))
    if at != end:
        raise RemoteProtocolError(f"{end - at} bytes behind the last snapshot")
    return bool(flags & MORE_FOLLOWS)


def _items(
    data: bytes,
    at: int,
    end: int,
    batch: Batch,
    stream: StreamState,
    take_item: TakeItem,
) -> int:
    """Take the items of a snapshot that has just begun; return their end."""
    low, high, last_start = stream.low, stream.high, end - _MUTATION_BYTES
    expected = _MUTATION_PLACE | stream.vbucket
    while low < high:
        head = 0
        if at <= last_start:
            head, key_length, place, length, opaque, seqno, nmeta = _unpack(data, at)
        if head != _MUTATION_HEAD:
            if at + HEADER_BYTES > end:
                raise StreamFault(f"vBucket {stream.vbucket}: a snapshot to {high} ends at {low}")
            stream.seqno = stream.low = low
            at, low = take_item(stream, at, end), stream.low
            continue
        key_at = at + _MUTATION_BYTES
        value_at, stop = key_at + key_length, at + HEADER_BYTES + length
        value_end = stop - nmeta
        if opaque != stream.opaque or place & _PLACE_MASK != expected:
            raise StreamFault(f"vBucket {stream.vbucket}: an item of another stream at {low}")
        if not low < seqno <= high or not key_at < value_at <= value_end or stop > end:
            raise stream.fault(seqno, low, high)
        batch.seqnos.append(seqno)
        batch.keys.append(data[key_at:value_at])
        batch.positions.append(at)
        batch.ends.append(value_end)
        low, at = seqno, stop
    stream.seqno = stream.low = low
    return at


def _skip(data: bytes, at: int, end: int, opaque: int) -> int:
    """Return where the items of a stream that has ended are over."""
    while at + HEADER_BYTES <= end:
        _, _, _, _, _, _, length, found, _ = unpack_request(data, at)
        if found != opaque:
            break
        at += HEADER_BYTES + length
    return at
