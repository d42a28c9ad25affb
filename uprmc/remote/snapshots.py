"""The asking side of SNAPSHOTS: one frame with the new snapshots of many streams and their items.

The items are the frames that streams have anyway, so a batch refers to them as to any others. The
frame is judged as if each snapshot had a marker of its own, in front of its items; and each must be
complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES
from uprmc.protocol.upr import Marker
from uprmc.protocol.upr_many import (
    ANNOUNCED_SNAPSHOT,
    MORE_FOLLOWS,
    SNAPSHOTS_EXTRAS,
    SNAPSHOTS_HEAD_BYTES,
)
from uprmc.remote import mutations
from uprmc.remote.batch import Batch, Received, Run
from uprmc.remote.stream import StreamFault, StreamState

#: From this number of snapshots on it pays to read all of a frame at once.
_MANY = 8

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
        received: gets the items.
        find: returns the stream with an opaque, ``None`` = it has ended.
        take_item: deals with an item that is no plain mutation; see `TakeItem`.

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
    more = bool(flags & MORE_FOLLOWS)
    if count >= _MANY and _take_plain(data, rows_at, at, end, rows, streams, batch):
        received.completed(streams)
        return more
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
    received.completed(streams)
    if at != end:
        raise RemoteProtocolError(f"{end - at} bytes behind the last snapshot")
    return more


def take_lone_snapshot(
    data: bytes, streams: Mapping[int, StreamState], *, has_values: bool
) -> Batch | None:
    """Take one frame of SNAPSHOTS that announces one snapshot, and nothing else.

    Returns:
        ``None`` if the bytes are anything else, or what `take_snapshots` is to judge.
    """
    batch = Batch(data, has_values=has_values)
    found = mutations.lone_snapshot(data, *batch.columns)
    if found is None:
        return None
    opaque, vbucket, start, high, kind, purge = found
    stream = streams.get(opaque)
    if stream is None or not stream.log or stream.vbucket != vbucket:
        return None
    if not stream.high <= stream.seqno < batch.seqnos[0]:
        return None
    stream.begin_and_end(start, high)
    batch.runs.append(Run(stream, 0, (start, high, kind, purge), len(batch.keys), high))
    return batch


def _items(
    data: bytes,
    at: int,
    end: int,
    batch: Batch,
    stream: StreamState,
    take_item: TakeItem,
) -> int:
    """Take the items of a snapshot that has just begun; return their end."""
    while stream.low < stream.high:
        stop = batch.take(at, end, stream)
        if stop > at:
            at = stop
        elif at + HEADER_BYTES > end:
            low, high = stream.low, stream.high
            raise StreamFault(f"vBucket {stream.vbucket}: a snapshot to {high} ends at {low}")
        else:
            at = take_item(stream, at, end)
    return at


def _take_plain(
    data: bytes,
    rows_at: int,
    at: int,
    end: int,
    rows: Sequence[tuple[int, int, int, int, int]],
    streams: Sequence[StreamState | None],
    batch: Batch,
) -> bool:
    """Take all snapshots at once, if every one is new and all items are plain mutations."""
    known = [stream for stream in streams if stream is not None]
    if len(known) < len(streams):
        return False
    first, lasts = len(batch.keys), list[int]()
    vbuckets = [stream.vbucket for stream in known]
    good = mutations.take_snapshots(data, rows_at, at, end, vbuckets, lasts, *batch.columns)
    seqnos, number = batch.seqnos, first
    if good:
        for stream, last in zip(known, lasts, strict=True):
            if not stream.high <= stream.seqno < seqnos[number]:
                good = False
                break
            number = last
    if not good:
        for column in batch.columns:
            del column[first:]
        return False
    add = batch.runs.append
    for (_, kind, start, high, purge), stream, last in zip(rows, known, lasts, strict=True):
        stream.begin_and_end(start, high)
        add(Run(stream, first, (start, high, kind, purge), last, high))
        first = last
    return True


def _skip(data: bytes, at: int, end: int, opaque: int) -> int:
    """Return where the items of a stream that has ended are over."""
    while at + HEADER_BYTES <= end:
        _, _, _, _, _, _, length, found, _ = unpack_request(data, at)
        if found != opaque:
            break
        at += HEADER_BYTES + length
    return at
