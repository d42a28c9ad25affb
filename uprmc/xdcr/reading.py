"""What a link reads: streams of this node's own vBuckets, from a producer in the same process.

It is an ordinary producer of the node's hub, so limits on disk readings, statistics and watermarks
apply to it as to any other. There is no flow control between the two: what is not pulled is not
produced. The producer's frames are known to be well formed, so they are read without a second look.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from uprmc.engine.vbucket import VBucket
from uprmc.errors import CommandError, StreamNotFound, TemporaryFailure
from uprmc.model import SEQNO_MAX, SnapshotRange
from uprmc.protocol.header import MERGED_REQUEST_HEADER, RequestFrame, ResponseFrame, decode_frame
from uprmc.protocol.opcodes import HEADER_BYTES, DataType, Opcode, StreamFlag
from uprmc.protocol.upr import (
    OPEN_EXTRAS,
    StreamRequest,
    decode_failover_log,
    decode_marker,
    frame_head,
)
from uprmc.protocol.watermarks import ReportExtras, encode_report
from uprmc.remote import features
from uprmc.remote.batch import Batch, Received, Run, deletion_numbers
from uprmc.remote.registering import kind_number, removal
from uprmc.remote.stream import StreamState
from uprmc.upr.hub import Hub
from uprmc.upr.peer import Negotiated
from uprmc.upr.producer import Producer

#: Before the link's name in names of producers and of watermark rows.
PREFIX = b"xdcr:"

_XDCR = kind_number("xdcr")
_MUTATION_HEAD = frame_head(Opcode.UPR_MUTATION)
_GONE = frozenset((Opcode.UPR_DELETION, Opcode.UPR_EXPIRATION))


class Start(NamedTuple):
    """Where a stream begins."""

    uuid: int
    seqno: int
    snapshot: SnapshotRange


class Pulled(NamedTuple):
    """What was read at once."""

    data: bytes  # the frames; empty = there was nothing
    batches: list[Batch]  # their items, those of a stream in its order
    ended: list[StreamState]  # streams that have ended
    # the snapshot that each run lies in, as it was announced when the run was read.
    snapshots: dict[Run, SnapshotRange]


_NOTHING = Pulled(b"", [], [], {})


class LinkReading:
    """The streams of one link."""

    def __init__(self, hub: Hub, name: bytes, wake: Callable[[], None]) -> None:
        """Open a producer; an older one of the same name is disconnected.

        Args:
            hub: of the node.
            name: of the link, which its producer and its watermark rows carry.
            wake: called when there is something to pull.

        Raises:
            TemporaryFailure: the node is warming up.
        """
        if not hub.bucket.traffic:
            raise TemporaryFailure("warming up")
        opening = features.LINK.open(PREFIX + name)
        (_, flags) = OPEN_EXTRAS.unpack(opening.extras)
        self.closed = ""  # why nothing more will come
        self.drained = False  # nothing is to be pulled; `wake` is called before there is
        self.streams: dict[int, StreamState] = {}  # by opaque
        self._row = PREFIX + name
        self._wake = wake
        self._gone = False
        self._opaque = 0
        negotiated = Negotiated(greeted=True, datatypes=int(DataType.JSON))
        self._producer = Producer(hub, opening, flags, negotiated, self._stirred, self._hung_up)
        self._producer.registration.merges = True
        for control in features.LINK.controls():
            self._producer.handle(control)

    def _stirred(self) -> None:
        self.drained = False
        if not self._gone:
            self._wake()

    def _hung_up(self, why: str) -> None:
        self.closed = why
        self._stirred()

    def _handle(
        self,
        opcode: int,
        vbucket: int = 0,
        opaque: int = 0,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
    ) -> bytes | None:
        self.drained = False
        answer = self._producer.handle(RequestFrame(opcode, key, extras, value, vbucket, opaque))
        return None if answer is None else answer.value

    # --- streams --------------------------------------------------------------------------------

    def begin(self, vbucket: VBucket, start: Start) -> StreamState:
        """Begin the stream of a vBucket without an end.

        Raises:
            RollbackRequired: its history is not that of `start`, or deletions have been purged.
            NotMyVBucket, TemporaryFailure: it cannot be read now.
        """
        number, (uuid, seqno, snapshot) = vbucket.id, start
        self._opaque += 1
        asked = StreamRequest(
            int(StreamFlag.ACTIVE_ONLY), seqno, SEQNO_MAX, uuid, snapshot.start, snapshot.end
        )
        log = self._handle(Opcode.UPR_STREAM_REQUEST, number, self._opaque, asked.encode())
        assert log is not None
        stream = StreamState(number, self._opaque, seqno, snapshot)
        stream.accept(decode_failover_log(log))
        self.streams[stream.opaque] = stream
        return stream

    def end(self, stream: StreamState) -> None:
        """End a stream; what of it is still to be pulled is ignored."""
        if self.streams.pop(stream.opaque, None) is None:
            return
        try:
            self._producer.handle(RequestFrame(Opcode.UPR_CLOSE_STREAM, vbucket=stream.vbucket))
        except StreamNotFound:
            return  # it has ended by itself

    def pull(self, budget: int) -> Pulled:
        """Read what comes next, about `budget` bytes at most."""
        if self.drained or self._gone:
            return _NOTHING
        pieces: list[bytes] = []
        self.drained = True
        size = self._producer.fill(pieces, budget)
        if not self._producer.drained:
            self.drained = False
        if not size:
            return _NOTHING
        data = b"".join(pieces)
        received = Received(data)
        snapshots: dict[Run, SnapshotRange] = {}
        ended = self._frames(data, received, snapshots)
        return Pulled(data, received.events, ended, snapshots)

    def _frames(
        self, data: bytes, received: Received, snapshots: dict[Run, SnapshotRange]
    ) -> list[StreamState]:
        position, size, ended = 0, len(data), list[StreamState]()
        while position < size:
            head, _, _, _, length, opaque, _ = MERGED_REQUEST_HEADER.unpack_from(data, position)
            stream, end = self.streams.get(opaque), position + HEADER_BYTES + length
            if stream is not None and head == _MUTATION_HEAD:
                run = received.run_of(stream)
                stop = received.current.take(position, size, stream)
                if stop > position:
                    snapshots.setdefault(run, _snapshot_of(stream))
                    received.settle(run, stream.low)
                    position = stop
                    continue
            if stream is not None and self._other(stream, data, position, end, received, snapshots):
                ended.append(stream)
            position = end
        return ended

    def _other(
        self,
        stream: StreamState,
        data: bytes,
        position: int,
        end: int,
        received: Received,
        snapshots: dict[Run, SnapshotRange],
    ) -> bool:
        """Deal with a frame that is no plain mutation; return whether it ends its stream."""
        frame = decode_frame(data[position:end])
        if isinstance(frame, ResponseFrame):
            return False
        if frame.opcode == Opcode.UPR_SNAPSHOT_MARKER:
            received.begin(stream, decode_marker(frame.extras, frame.value))
        elif frame.opcode in _GONE:
            seqno = deletion_numbers(frame.extras)[0]
            run = received.run_of(stream)
            snapshots.setdefault(run, _snapshot_of(stream))
            received.current.append(seqno, frame.key, position, 0)
            received.settle(run, seqno)
        elif frame.opcode == Opcode.UPR_STREAM_END:
            self.streams.pop(stream.opaque, None)
            return True
        return False

    # --- watermarks -----------------------------------------------------------------------------

    def keep_rows(self, *, lasting: bool) -> None:
        """Decide whether rows that are reported from now on never expire by time."""
        self._producer.registration.lasting = lasting

    def report(self, number: int, watermark: int, uuid: int, meta: bytes) -> None:
        """Register with a vBucket, or report how far it has arrived at the target.

        Raises:
            RollbackRequired: it is not in the vBucket's history, or deletions have been purged.
            CommandError: the vBucket has no row for us, and gets none now.
        """
        extras = encode_report(ReportExtras(watermark, 0, _XDCR, vb_uuid=uuid or None))
        self._handle(Opcode.HWT_REPORT, number, extras=extras, key=self._row, value=meta)

    def unregister(self, number: int) -> None:
        """Remove the row of a vBucket, if there is one."""
        asked = removal(self._row, number)
        with suppress(CommandError):
            self._handle(asked.opcode, number, extras=asked.extras, key=asked.key)

    # --- the rest -------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Learn the time: readings that are kept too long are given up."""
        self._producer.tick(now, 0)
        self.drained = False

    def close(self) -> None:
        """End everything."""
        if not self._gone:
            self._gone = True
            self.streams.clear()
            self._producer.close()


def _snapshot_of(stream: StreamState) -> SnapshotRange:
    """Return the snapshot that a stream is in.

    What is before the marker's first seqno belongs to snapshots that are complete.
    """
    return SnapshotRange(max(stream.start - 1, 0), stream.high)


def replicated_seqno(hub: Hub, number: int) -> int:
    """Return up to which seqno a replica has said that it has a vBucket on disk; 0 = none has."""
    found = 0
    for peer in hub.producers.values():
        if isinstance(peer, Producer) and number in peer.feed.streams:
            found = max(found, peer.feed.streams[number].persisted_seqno)
    return found
