"""Bytes of a producer to batches and events: the hot path of the consumer's library.

Mutations of a stream that follow one another are read by `remote.mutations`. Markers in the form
that our own nodes send have a path of their own; everything else is rare and goes through `_other`,
which also judges what stopped the quick paths.

What no producer may send raises `ProducerError` and nothing of that piece of data is handed on.

See `docs/streams.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from uprmc.client.errors import NotANode, ProducerError
from uprmc.errors import RemoteProtocolError
from uprmc.model import FailoverLog
from uprmc.places import stranger
from uprmc.protocol.header import (
    MERGED_REQUEST_HEADER,
    Frame,
    RequestFrame,
    ResponseFrame,
    decode_frame,
    unpack_request,
)
from uprmc.protocol.opcodes import (
    FRAME_MAX_BYTES,
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    EndReason,
    Opcode,
    Status,
)
from uprmc.protocol.upr import (
    MUTATION_EXTRAS,
    STREAM_END_EXTRAS,
    VERSIONED_MARKER_FRAME,
    Marker,
    decode_marker,
    decode_term,
    frame_head,
    versioned_marker_place,
)
from uprmc.protocol.upr_extensions import SNAPSHOT_END_EXTRAS
from uprmc.protocol.upr_many import (
    ANNOUNCED_SNAPSHOT,
    MORE_FOLLOWS,
    SNAPSHOTS_EXTRAS,
    SNAPSHOTS_HEAD_BYTES,
    answer_alone,
    decode_stream_answers,
)
from uprmc.remote import mutations
from uprmc.remote.batch import Batch, Received, Run, deletion_numbers
from uprmc.remote.conversation import Questions
from uprmc.remote.history import read_log
from uprmc.remote.stream import StreamFault, StreamState

# --- events ---------------------------------------------------------------------------------------
# What a node has sent beside batches: the events between bytes and rules.
#
# Events of streams name theirs, so a stream that is not wanted any more can be recognised.


class StreamEnded(NamedTuple):
    """The stream is over; `reason` is an `EndReason` number."""

    stream: StreamState
    reason: int


class Accepted(NamedTuple):
    """The producer accepted the stream; `StreamState.log` has been set."""

    stream: StreamState
    answer: ResponseFrame


Event = Batch | StreamEnded | Accepted | Frame


# --- decoder --------------------------------------------------------------------------------------


_MUTATION_HEAD = frame_head(Opcode.UPR_MUTATION)
_MARKER_HEAD = frame_head(Opcode.UPR_SNAPSHOT_MARKER)
_SNAPSHOTS_HEAD = frame_head(Opcode.SNAPSHOTS)
_FREQUENT_HEADS = (_MUTATION_HEAD, _SNAPSHOTS_HEAD, _MARKER_HEAD)
_unpack_head = MERGED_REQUEST_HEADER.unpack_from
_MARKER_BYTES = VERSIONED_MARKER_FRAME.size
_MARKER_PLACE = versioned_marker_place(0)
_unpack_marker = VERSIONED_MARKER_FRAME.unpack_from
_MAGICS = (MAGIC_REQUEST, MAGIC_RESPONSE)
_ITEMS = frozenset((Opcode.UPR_MUTATION, Opcode.UPR_DELETION, Opcode.UPR_EXPIRATION))
_OF_STREAMS = _ITEMS | {
    Opcode.UPR_SNAPSHOT_MARKER,
    Opcode.SNAPSHOT_END,
    Opcode.UPR_STREAM_END,
    Opcode.UPR_FLUSH,
    Opcode.UPR_SET_VBUCKET_STATE,
}


# --- many snapshots -------------------------------------------------------------------------------
# The asking side of SNAPSHOTS: one frame with the new snapshots of many streams and their items.
#
# The items are the frames that streams have anyway, so a batch refers to them as to any others. The
# frame is judged as if each snapshot had a marker of its own, in front of its items; and each must
# be complete.


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


class Decoder:
    """See the module docstring."""

    def __init__(self, place: str, *, wants_values: bool = True) -> None:
        self.place = place  # who sends, for messages
        self.streams: dict[int, StreamState] = {}  # those that were asked for, by opaque
        self.counted_bytes = 0  # bytes received since it was reset that flow control counts
        self.wants_values = wants_values  # whether changes carry values
        self.more_follows = False  # the producer has said that it goes on at once
        # Of the connection: they and its streams have different opaques.
        self.questions: Questions[Any] = Questions(strict=True)
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """Return what the bytes say that have come, cut anywhere.

        Raises:
            ProducerError: what no producer may send.
            NotANode: these are no frames.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < HEADER_BYTES or len(self._rest) < self._frame_bytes(self._rest, 0):
                return []
            data = bytes(self._rest)
            self._rest.clear()
        self.more_follows = False
        alone = take_lone_snapshot(data, self.streams, has_values=self.wants_values)
        if alone is not None:
            self.counted_bytes += len(data)
            return [alone]
        received = Received(data, has_values=self.wants_values)
        try:
            position, uncounted = self._frames(data, received)
        except StreamFault as fault:
            raise self._nonsense(str(fault)) from None
        self._rest += data[position:]
        self.counted_bytes += position - uncounted
        return received.events

    def _frames(self, data: bytes, received: Received) -> tuple[int, int]:
        """Deal with whole frames; return their end, and bytes that flow control leaves out."""
        size, position, uncounted = len(data), 0, 0
        while size - position >= HEADER_BYTES:
            head, _, _, vbucket, length, opaque, _ = _unpack_head(data, position)
            end = position + HEADER_BYTES + length
            if end > size or head not in _FREQUENT_HEADS:
                self._frame_bytes(data, position)
            if end > size:
                break
            if head == _MUTATION_HEAD:
                stop = self._mutations(data, position, opaque, vbucket, received)
                if stop > position:
                    position = stop
                    continue
            if head == _SNAPSHOTS_HEAD:
                self._snapshots(data, position, end, received)
            elif head != _MARKER_HEAD or not self._marker(data, position, end, received):
                uncounted += self._other(data, position, end, received)
            position = end
        return position, uncounted

    def _mutations(
        self, data: bytes, position: int, opaque: int, vbucket: int, received: Received
    ) -> int:
        """Take mutations of a stream that follow one another; return where the last one ends."""
        stream = self._stream(opaque, vbucket)
        if stream is None:  # it has ended
            return position
        run = received.run_of(stream)
        stop = received.current.take(position, len(data), stream)
        if stop > position:
            received.settle(run, stream.low)
        return stop

    @property
    def begun(self) -> bytes:
        """The first bytes of a frame whose rest is yet to come."""
        return bytes(self._rest)

    # --- everything but mutations ---------------------------------------------------------------

    def _frame_bytes(self, data: bytes | bytearray, position: int) -> int:
        """Return the length of the frame whose header is here."""
        magic, opcode, _, _, _, _, length, _, _ = unpack_request(data, position)
        if magic not in _MAGICS:
            words = stranger(self.place, bytes(data[position:]))
            words = words or f"what answers at {self.place} is no UPR: magic {magic:#04x}"
            raise NotANode(words).doubting(self.place)
        if length > FRAME_MAX_BYTES:
            raise self._nonsense(f"opcode {opcode:#04x} with a body of {length} bytes")
        return HEADER_BYTES + int(length)

    def _marker(self, data: bytes, position: int, end: int, received: Received) -> bool:
        """Deal with a marker of version 2.2, in the form that our own nodes send."""
        if end - position != _MARKER_BYTES:
            return False
        key_length, place, _, opaque, version, start, high, kind, purge_seqno = _unpack_marker(
            data, position
        )
        vbucket = place & 0xFFFF
        if key_length or place - vbucket != _MARKER_PLACE or version != 2 or start > high:
            return False
        stream = self._stream(opaque, vbucket)
        if stream is not None:
            received.begin(stream, tuple.__new__(Marker, (start, high, kind, purge_seqno)))
        return True

    def _other(self, data: bytes, position: int, end: int, received: Received) -> int:
        """Deal with any one frame; returns its bytes if flow control leaves it out."""
        try:
            frame = decode_frame(data[position:end])
        except RemoteProtocolError as error:
            raise NotANode(f"what answers at {self.place} is no UPR: {error}") from None
        if isinstance(frame, ResponseFrame):
            for answer in self._answers(frame):
                received.add(self._answer(answer))
            return end - position
        try:
            self._told(frame, data, position, received)
        except (struct.error, RemoteProtocolError) as error:
            raise self._nonsense(f"opcode {frame.opcode:#04x}: {error}") from None
        return end - position if frame.opcode == Opcode.UPR_NOOP else 0

    def _snapshots(self, data: bytes, position: int, end: int, received: Received) -> None:
        known = self.streams.get

        def find(opaque: int) -> StreamState | None:
            stream = known(opaque)
            if stream is None or not stream.log:
                return self._stream(opaque, stream.vbucket if stream is not None else 0)
            return stream

        def take_item(stream: StreamState, at: int, end: int) -> int:
            stop = at + self._frame_bytes(data, at)
            frame = decode_frame(data[at : min(stop, end)])
            if isinstance(frame, ResponseFrame) or frame.opcode not in _ITEMS:
                raise stream.fault(stream.low, stream.low, stream.high)
            if self._stream(frame.opaque, frame.vbucket) is not stream:
                raise StreamFault(f"vBucket {frame.vbucket}: an item of another stream")
            self._item(stream, frame, data, at, received)
            return stop

        try:
            self.more_follows = take_snapshots(data, position, end, received, find, take_item)
        except (struct.error, RemoteProtocolError) as error:
            raise self._nonsense(f"opcode {Opcode.SNAPSHOTS:#04x}: {error}") from None

    def _answers(self, frame: ResponseFrame) -> Iterable[ResponseFrame]:
        """Return the answers in a frame: of several streams, unless it refuses all of them."""
        if frame.opcode != Opcode.STREAM_REQUESTS or frame.status != Status.SUCCESS:
            return (frame,)
        try:
            answers, more = decode_stream_answers(frame.extras, frame.value)
        except RemoteProtocolError as error:
            raise self._nonsense(str(error)) from None
        if not more:
            self.questions.forget(frame.opaque)
        return map(answer_alone, answers)

    def _answer(self, frame: ResponseFrame) -> Event:
        stream = self.streams.get(frame.opaque)
        if stream is None or frame.opcode != Opcode.UPR_STREAM_REQUEST:
            return frame
        if frame.status != Status.SUCCESS:
            del self.streams[frame.opaque]
            return frame
        stream.accept(self.log(frame, stream.vbucket), self._term(frame, stream.vbucket))
        return Accepted(stream, frame)

    def _term(self, frame: ResponseFrame, vbucket: int) -> int:
        try:
            return decode_term(frame.extras)
        except RemoteProtocolError as error:
            raise self._nonsense(f"vBucket {vbucket}: {error}") from None

    def log(self, frame: ResponseFrame, vbucket: int) -> FailoverLog:
        """Read the failover log in an answer; raises `ProducerError`."""
        try:
            return read_log(frame.value)
        except RemoteProtocolError as error:
            raise self._nonsense(f"vBucket {vbucket}: {error}") from None

    def _told(self, frame: RequestFrame, data: bytes, position: int, received: Received) -> None:
        opcode = frame.opcode
        if opcode not in _OF_STREAMS:
            received.add(frame)
            return
        stream = self._stream(frame.opaque, frame.vbucket)
        if stream is None:
            return
        if opcode in _ITEMS:
            self._item(stream, frame, data, position, received)
        elif opcode == Opcode.UPR_SNAPSHOT_MARKER:
            received.begin(stream, decode_marker(frame.extras, frame.value))
        elif opcode == Opcode.SNAPSHOT_END:
            self._snapshot_end(stream, frame, received)
        elif opcode == Opcode.UPR_STREAM_END:
            self._stream_end(stream, frame, received)
        else:
            raise self._nonsense(f"opcode {opcode:#04x}, which is for replicas")

    def _stream(self, opaque: int, vbucket: int) -> StreamState | None:
        """Return the stream of a frame; ``None`` if it has ended."""
        stream = self.streams.get(opaque)
        if stream is None:
            if not self.questions.gave(opaque):
                raise StreamFault(
                    f"vBucket {vbucket}: a frame of a stream that was never requested"
                )
            return None
        if stream.vbucket != vbucket:
            raise StreamFault(f"vBucket {vbucket} in a stream of vBucket {stream.vbucket}")
        if not stream.log:
            raise StreamFault(f"vBucket {vbucket}: a stream that has not been accepted yet")
        return stream

    def _item(
        self,
        stream: StreamState,
        frame: RequestFrame,
        data: bytes,
        position: int,
        received: Received,
    ) -> None:
        seqno, nmeta = _judged(frame)
        is_set = frame.opcode == Opcode.UPR_MUTATION
        if not stream.low < seqno <= stream.high or not frame.key:
            raise stream.fault(seqno, stream.low, stream.high)
        run = received.run_of(stream)
        end = position + HEADER_BYTES + len(frame.extras) + len(frame.key) + len(frame.value)
        received.current.append(seqno, frame.key, position, end - nmeta if is_set else 0)
        received.settle(run, seqno)

    def _snapshot_end(self, stream: StreamState, frame: RequestFrame, received: Received) -> None:
        end, _ = SNAPSHOT_END_EXTRAS.unpack(frame.extras)
        if end != stream.high:
            raise StreamFault(
                f"vBucket {stream.vbucket}: the end {end} of a snapshot that goes to {stream.high}"
            )
        received.complete(stream)

    def _stream_end(self, stream: StreamState, frame: RequestFrame, received: Received) -> None:
        (reason,) = STREAM_END_EXTRAS.unpack(frame.extras)
        if reason == EndReason.OK and not stream.resumed:
            received.complete(stream)
        del self.streams[stream.opaque]
        received.events.append(StreamEnded(stream, reason))

    def _nonsense(self, what: str) -> ProducerError:
        return ProducerError(
            f"the node at {self.place} sent nonsense: {what}. Nothing of it was applied; what is "
            "saved is intact. Look at the node's version and log, then start again"
        )


def _judged(frame: RequestFrame) -> tuple[int, int]:
    """Return the seqno of an item's frame, and the length of its extended metadata.

    Raises:
        struct.error, RemoteProtocolError: it is torn.
    """
    if frame.opcode != Opcode.UPR_MUTATION:
        return deletion_numbers(frame.extras)[0], 0
    seqno, _, _, _, _, nmeta, _ = MUTATION_EXTRAS.unpack(frame.extras)
    if nmeta > len(frame.value):
        raise RemoteProtocolError(f"a torn item at seqno {seqno}")
    return seqno, nmeta
