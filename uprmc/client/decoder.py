"""Bytes of a producer to events: the hot path of the consumer's library.

One loop reads header and extras of a mutation at once and makes a `Change` of it, having judged its
seqno by the marker and the item before. Changes that follow one another in one stream are one
`Run`. Everything else is rare and goes through `_other`.

What no producer may send raises `ProducerError` and nothing of that piece of data is handed on.

Source: UPR reference 1, 2, 4.3; ``docs/streams.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from uprmc.client.errors import NotANode, ProducerError
from uprmc.client.events import (
    NOTHING,
    Accepted,
    Event,
    Inlet,
    Run,
    SnapshotBegun,
    SnapshotDone,
    StreamEnded,
)
from uprmc.client.handler import DELETE, EXPIRE, SET, Change
from uprmc.consume.history import read_log
from uprmc.errors import RemoteProtocolError
from uprmc.model import FailoverLog
from uprmc.places import stranger
from uprmc.protocol.header import RequestFrame, ResponseFrame, decode_frame, unpack_request
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
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    MUTATION_FRAME,
    STREAM_END_EXTRAS,
    TIMED_DELETION_EXTRAS,
    decode_marker,
    decode_term,
    frame_head,
    frame_place,
)
from uprmc.protocol.upr_extensions import SNAPSHOT_END_EXTRAS

_MUTATION_HEAD = frame_head(Opcode.UPR_MUTATION)
_MUTATION_BYTES = MUTATION_FRAME.size
_MUTATION_PLACE = frame_place(MUTATION_EXTRAS.size, 0)
#: All of a merged frame's third number but the datatype.
_PLACE_MASK = 0xFF00FFFF
_MAGICS = (MAGIC_REQUEST, MAGIC_RESPONSE)
_ITEMS = frozenset((Opcode.UPR_MUTATION, Opcode.UPR_DELETION, Opcode.UPR_EXPIRATION))
_OF_STREAMS = _ITEMS | {
    Opcode.UPR_SNAPSHOT_MARKER,
    Opcode.SNAPSHOT_END,
    Opcode.UPR_STREAM_END,
    Opcode.UPR_FLUSH,
    Opcode.UPR_SET_VBUCKET_STATE,
}


class Decoder:
    """See the module docstring.

    Attributes:
        place: who sends, for messages.
        inlets: streams that were asked for, by opaque.
        counted_bytes: bytes received since it was reset that flow control counts.
        wants_values: whether changes carry values.
    """

    def __init__(self, place: str, *, wants_values: bool = True) -> None:
        self.place = place
        self.inlets: dict[int, Inlet] = {}
        self.counted_bytes = 0
        self.wants_values = wants_values
        self._opaques = 0
        self._rest = bytearray()

    def next_opaque(self) -> int:
        """Return a number that no other request of this connection has."""
        self._opaques = self._opaques % 0xFFFFFFFF + 1
        return self._opaques

    def feed(self, data: bytes) -> list[Event]:
        """Return what the bytes say that have come, cut anywhere.

        Raises:
            ProducerError: what no producer may send.
            NotANode: these are no frames.
        """
        events: list[Event] = []
        position = self._complete_rest(data, events) if self._rest else 0
        unpack, frame_bytes = MUTATION_FRAME.unpack_from, _MUTATION_BYTES
        new, kind, op = tuple.__new__, Change, SET
        began, size = position, len(data)
        last_start = size - frame_bytes
        uncounted = 0
        current = low = high = good_place = vbucket = uuid = branch_at = datatype = -1
        inlet: Inlet | None = None
        append: Callable[[Change], None] | None = None
        while position <= last_start:
            head, key_length, place, length, opaque, cas, seqno, rev, flags, expiry, _, nmeta, _ = (
                unpack(data, position)
            )
            end = position + 24 + length
            if end > size:
                break
            if head != _MUTATION_HEAD:
                if inlet is not None:
                    inlet.seqno = inlet.low = low
                    inlet, current = None, -1
                uncounted += self._other(data, position, end, events)
                position = end
                continue
            if opaque != current:
                if inlet is not None:
                    inlet.seqno = inlet.low = low
                    inlet = None
                inlet = self._inlet(opaque, place & 0xFFFF)
                if inlet is None:  # a stream that has ended
                    current = -1
                    position = end
                    continue
                current, low, high = opaque, inlet.low, inlet.high
                vbucket, uuid, branch_at = inlet.vbucket, inlet.uuid, inlet.branch_at
                good_place = -1
                run: list[Change] = []
                append = run.append
                events.append(Run(inlet, run, True))
            if place != good_place:
                datatype = self._datatype(place, vbucket)
                good_place = place
            key_at = position + frame_bytes
            value_at = key_at + key_length
            value_end = end - nmeta if nmeta else end
            if not low < seqno <= high or not key_at < value_at <= value_end:
                raise self._bad_item(inlet, seqno, low, high)
            low = seqno
            append(  # type: ignore[misc]
                new(
                    kind,
                    (
                        op,
                        vbucket,
                        seqno,
                        uuid if seqno > branch_at else inlet.history_of(seqno),  # type: ignore[union-attr]
                        data[key_at:value_at],
                        data[value_at:value_end],
                        rev,
                        cas,
                        flags,
                        expiry,
                        datatype,
                        None,
                    ),
                )
            )
            position = end
        if inlet is not None:
            inlet.seqno = inlet.low = low
        position, short = self._short_frames(data, position, size, events)
        self._rest += data[position:]
        self.counted_bytes += position - began - uncounted - short
        return events if self.wants_values else _without_values(events)

    @property
    def begun(self) -> bytes:
        """The first bytes of a frame whose rest is yet to come."""
        return bytes(self._rest)

    # --- everything but mutations ---------------------------------------------------------------

    def _complete_rest(self, data: bytes, events: list[Event]) -> int:
        """Deal with the frame that was cut, if it is whole now; returns where the next begins.

        Only that one is copied: putting the rest before all of the data would copy a batch.
        """
        rest = self._rest
        taken = max(0, HEADER_BYTES - len(rest))
        rest += data[:taken]
        if len(rest) < HEADER_BYTES:
            return len(data)
        missing = self._frame_bytes(rest, 0) - len(rest)
        rest += data[taken : taken + missing]
        if len(data) - taken < missing:
            return len(data)
        frame = bytes(rest)
        rest.clear()
        self.counted_bytes += len(frame) - self._other(frame, 0, len(frame), events)
        return taken + missing

    def _frame_bytes(self, data: bytes | bytearray, position: int) -> int:
        """Return the length of the frame whose header is here."""
        magic, opcode, _, _, _, _, length, _, _ = unpack_request(data, position)
        if magic not in _MAGICS:
            words = stranger(self.place, bytes(data[position:]))
            raise NotANode(words or f"what answers at {self.place} is no UPR: magic {magic:#04x}")
        if length > FRAME_MAX_BYTES:
            raise self._nonsense(f"opcode {opcode:#04x} with a body of {length} bytes")
        return HEADER_BYTES + int(length)

    def _short_frames(
        self, data: bytes, position: int, size: int, events: list[Event]
    ) -> tuple[int, int]:
        """Deal with frames shorter than a mutation at the end; returns the place and what does
        not count.
        """
        uncounted = 0
        while size - position >= HEADER_BYTES:
            end = position + self._frame_bytes(data, position)
            if end > size:
                break
            uncounted += self._other(data, position, end, events)
            position = end
        return position, uncounted

    def _other(self, data: bytes, position: int, end: int, events: list[Event]) -> int:
        """Deal with any one frame; returns its bytes if flow control leaves it out."""
        try:
            frame = decode_frame(data[position:end])
        except RemoteProtocolError as error:
            raise NotANode(f"what answers at {self.place} is no UPR: {error}") from None
        if isinstance(frame, ResponseFrame):
            events.append(self._answer(frame))
            return end - position
        try:
            self._told(frame, events)
        except (struct.error, RemoteProtocolError) as error:
            raise self._nonsense(f"opcode {frame.opcode:#04x}: {error}") from None
        return end - position if frame.opcode == Opcode.UPR_NOOP else 0

    def _answer(self, frame: ResponseFrame) -> Event:
        inlet = self.inlets.get(frame.opaque)
        if inlet is None or frame.opcode != Opcode.UPR_STREAM_REQUEST:
            return frame
        if frame.status != Status.SUCCESS:
            del self.inlets[frame.opaque]
            return frame
        inlet.accept(self.log(frame, inlet.vbucket), self._term(frame, inlet.vbucket))
        return Accepted(inlet, frame)

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

    def _told(self, frame: RequestFrame, events: list[Event]) -> None:
        opcode = frame.opcode
        if opcode not in _OF_STREAMS:
            events.append(frame)
            return
        inlet = self._inlet(frame.opaque, frame.vbucket)
        if inlet is None:
            return
        if opcode in _ITEMS:
            self._item(inlet, frame, events)
        elif opcode == Opcode.UPR_SNAPSHOT_MARKER:
            self._marker(inlet, frame, events)
        elif opcode == Opcode.SNAPSHOT_END:
            self._snapshot_end(inlet, frame, events)
        elif opcode == Opcode.UPR_STREAM_END:
            self._stream_end(inlet, frame, events)
        else:
            raise self._nonsense(f"opcode {opcode:#04x}, which is for replicas")

    def _inlet(self, opaque: int, vbucket: int) -> Inlet | None:
        """Return the stream of a frame; ``None`` if it has ended."""
        inlet = self.inlets.get(opaque)
        if inlet is None:
            if not 0 < opaque <= self._opaques:
                raise self._nonsense(f"vBucket {vbucket}: a stream that nobody asked for")
            return None
        if inlet.vbucket != vbucket:
            raise self._nonsense(f"vBucket {vbucket} in a stream of vBucket {inlet.vbucket}")
        if not inlet.log:
            raise self._nonsense(f"vBucket {vbucket}: a stream that has not been accepted yet")
        return inlet

    def _item(self, inlet: Inlet, frame: RequestFrame, events: list[Event]) -> None:
        change = _change(inlet, frame)
        if not inlet.low < change.seqno <= inlet.high or not change.key:
            raise self._bad_item(inlet, change.seqno, inlet.low, inlet.high)
        inlet.seqno = inlet.low = change.seqno
        last = events[-1] if events else None
        sets = change.op == SET
        if type(last) is Run and last.inlet is inlet and last.sets == sets:
            last.changes.append(change)
        else:
            events.append(Run(inlet, [change], sets))

    def _marker(self, inlet: Inlet, frame: RequestFrame, events: list[Event]) -> None:
        start, end, kind, purge_seqno = decode_marker(frame.extras, frame.value)
        if end <= inlet.seqno:
            raise self._nonsense(
                f"vBucket {inlet.vbucket}: a snapshot {start}..{end} behind seqno {inlet.seqno}"
            )
        inside = inlet.seqno < inlet.high
        if inside and inlet.start < start:
            if start <= inlet.high or inlet.resumed:
                raise self._nonsense(
                    f"vBucket {inlet.vbucket}: the snapshot {inlet.start}..{inlet.high} was cut "
                    f"short at {inlet.seqno} by {start}..{end}"
                )
            events.append(SnapshotDone(inlet, inlet.high))
            inlet.seqno, inside = inlet.high, False
        if not inside:
            inlet.start = start
        inlet.resumed = False
        inlet.low, inlet.high = max(inlet.seqno, start - 1), end
        events.append(SnapshotBegun(inlet, start, end, kind, purge_seqno))

    def _snapshot_end(self, inlet: Inlet, frame: RequestFrame, events: list[Event]) -> None:
        end, _ = SNAPSHOT_END_EXTRAS.unpack(frame.extras)
        if end != inlet.high:
            raise self._nonsense(
                f"vBucket {inlet.vbucket}: the end {end} of a snapshot that goes to {inlet.high}"
            )
        self._complete(inlet, events)

    def _stream_end(self, inlet: Inlet, frame: RequestFrame, events: list[Event]) -> None:
        (reason,) = STREAM_END_EXTRAS.unpack(frame.extras)
        if reason == EndReason.OK and not inlet.resumed:
            self._complete(inlet, events)
        del self.inlets[inlet.opaque]
        events.append(StreamEnded(inlet, reason))

    def _complete(self, inlet: Inlet, events: list[Event]) -> None:
        if inlet.seqno < inlet.high:
            inlet.seqno = inlet.low = inlet.high
            events.append(SnapshotDone(inlet, inlet.high))

    def _datatype(self, place: int, vbucket: int) -> int:
        if place & _PLACE_MASK != _MUTATION_PLACE | vbucket:
            raise self._nonsense(
                f"vBucket {place & 0xFFFF}: extras of {place >> 24} bytes in a mutation of the "
                f"stream of vBucket {vbucket}"
            )
        return place >> 16 & 0xFF

    def _bad_item(self, inlet: Inlet | None, seqno: int, low: int, high: int) -> ProducerError:
        vbucket = inlet.vbucket if inlet else -1
        if low == NOTHING:
            return self._nonsense(f"vBucket {vbucket}: seqno {seqno} before any snapshot")
        if seqno > high or (inlet and inlet.start > seqno > low):
            return self._nonsense(f"vBucket {vbucket}: seqno {seqno} outside of its snapshot")
        if seqno <= low:
            return self._nonsense(f"vBucket {vbucket}: seqno {seqno} after {low}")
        return self._nonsense(f"vBucket {vbucket}: a torn item at seqno {seqno}")

    def _nonsense(self, what: str) -> ProducerError:
        return ProducerError(
            f"the node at {self.place} sent nonsense: {what}. Nothing of it was applied; what is "
            "saved is intact. Look at the node's version and log, then start again"
        )


def _without_values(events: list[Event]) -> list[Event]:
    return [
        event._replace(changes=[change._replace(value=None) for change in event.changes])
        if type(event) is Run
        else event
        for event in events
    ]


def _change(inlet: Inlet, frame: RequestFrame) -> Change:
    """Return the change that an item's frame holds.

    Raises:
        struct.error, RemoteProtocolError: it is torn.
    """
    if frame.opcode == Opcode.UPR_MUTATION:
        seqno, rev, flags, expiry, _, nmeta, _ = MUTATION_EXTRAS.unpack(frame.extras)
        if nmeta > len(frame.value):
            raise RemoteProtocolError(f"a torn item at seqno {seqno}")
        value = frame.value[: len(frame.value) - nmeta]
        uuid = inlet.history_of(seqno)
        return Change(SET, inlet.vbucket, seqno, uuid, frame.key, value, rev, frame.cas, flags,
                      expiry, frame.datatype, None)  # fmt: skip
    deleted_at = 0
    if len(frame.extras) == TIMED_DELETION_EXTRAS.size:
        seqno, rev, deleted_at, _ = TIMED_DELETION_EXTRAS.unpack(frame.extras)
    elif len(frame.extras) == EXPIRATION_EXTRAS.size:
        seqno, rev, deleted_at = EXPIRATION_EXTRAS.unpack(frame.extras)
    else:
        seqno, rev, _ = DELETION_EXTRAS.unpack(frame.extras)
    op = EXPIRE if frame.opcode == Opcode.UPR_EXPIRATION else DELETE
    uuid = inlet.history_of(seqno)
    return Change(op, inlet.vbucket, seqno, uuid, frame.key, None, rev, frame.cas, None, None, None,
                  deleted_at)  # fmt: skip
