"""The read of one vBucket from a lease: how far it is, and what became of it.

It outlives connections: when one is lost, the next one asks for the rest of the same snapshot of
the same lease. What a stream may send is for `remote.stream` to say, strictly.

See `docs/streams.md`, how to write a consumer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from uprmc.model import FailoverLog, SnapshotRange
from uprmc.protocol.opcodes import MarkerFlag, StreamFlag
from uprmc.protocol.upr import STREAM_REQUEST_EXTRAS, Marker
from uprmc.remote.stream import StreamState

#: A stream of a lease ends by itself.
_NO_END = 0xFFFFFFFFFFFFFFFF

#: Seqnos are 64 bits without sign on the wire, with sign in a column.
COLUMN_SEQNO_MAX = 0x7FFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Range:
    """Everything of one vBucket after `start`, which lies in a snapshot of `uuid`."""

    vbucket: int  # by number
    start: int = 0  # the last seqno that the reader has; 0 = none
    uuid: int = 0  # the history that it belongs to; 0 for a start of 0
    # snap_start, snap_end: the snapshot that `start` lies in; not given = it is complete
    snap_start: int = 0
    snap_end: int = 0
    end: int | None = None  # rows above it are left out; ``None`` = all that the lease holds
    resumed: bool = False  # what came before `start` was read from the same lease

    @property
    def snapshot(self) -> SnapshotRange:
        """The snapshot that `start` lies in."""
        inside = self.snap_end > self.start
        bounds = (self.snap_start, self.snap_end) if inside else (self.start, self.start)
        return SnapshotRange(*bounds)


class ReadState:
    """The read of one vBucket from a lease; `ValueError` = a stream's promise is broken."""

    def __init__(self, wanted: Range) -> None:
        self.range, self.vbucket = wanted, wanted.vbucket
        self.place = ""  # HOST:PORT of the node that holds it
        self.restart()

    def restart(self) -> None:
        """Begin again: nothing has come, nothing is known of a lease."""
        self.held_high: int | None = None  # up to where the lease holds it, if that is known
        self.uuid = self.range.uuid
        self.log: FailoverLog = ()  # in force, newest first
        self.purge_seqno = 0  # deletions up to it may be missing
        # What was handed on: how many of the rows are no documents, bytes of keys and values.
        self.rows = self.deletes = self.bytes = 0
        self.ended = False  # all of it has come
        self.begun = False  # rows of it were yielded
        self.snap_start, self.disk = 0, False  # of the present snapshot: as it was announced
        self.block = -1  # number of the last block with rows of it
        # What came of it, on the present connection or the last one.
        self.stream = StreamState(self.vbucket, 0, self.range.start, self.range.snapshot)

    def open(self) -> None:
        """Go on with a stream of a new connection."""
        last = self.stream
        snapshot = SnapshotRange(max(0, min(last.start - 1, last.seqno)), last.high)
        self.stream = StreamState(self.vbucket, 0, last.seqno, snapshot)

    @property
    def seqno(self) -> int:
        """The last one that came."""
        return self.stream.seqno

    @property
    def start(self) -> int:
        """The seqno after which the read begins."""
        return self.range.start

    @property
    def enough(self) -> bool:
        """Whether all that is wanted of it has come."""
        return self.range.end is not None and self.seqno >= self.range.end

    @property
    def end(self) -> int:
        """Up to where it goes: the high seqno of the lease, which its one snapshot has, too."""
        return self.stream.high if self.held_high is None else self.held_high

    def request(self) -> bytes:
        """Return the extras of the stream request for what is missing.

        In the middle of a lease no deletion was missed that the lease does not have: without the
        flag the node would send us back to 0 where it has dropped some above our place.
        """
        stream = self.stream
        inside = self.range.resumed or stream.seqno > self.start
        flags = StreamFlag.IGNORE_PURGED if inside else 0
        return STREAM_REQUEST_EXTRAS.pack(
            flags, 0, stream.seqno, _NO_END, self.uuid, stream.start - 1, stream.high
        )

    # --- what comes -----------------------------------------------------------------------------

    def accept(self, log: FailoverLog) -> None:
        """The node has accepted the request."""
        self.stream.accept(log)
        self.log, self.uuid = log, log[0][0]

    def marker(self, marker: Marker) -> None:
        """A snapshot is announced."""
        if not self.stream.log:
            raise ValueError("a snapshot of a stream that was not accepted")
        self.stream.announce(marker, strict=True)
        high = COLUMN_SEQNO_MAX if self.held_high is None else self.held_high
        if marker.end_seqno > high:
            raise ValueError(f"a snapshot to {marker.end_seqno} of a lease to {high}")
        self.snap_start, self.disk = marker.start_seqno, bool(marker.kind & MarkerFlag.DISK)
        self.purge_seqno = max(self.purge_seqno, marker.purge_seqno)

    def items(self, first: int, last: int) -> None:
        """Items with rising seqnos from `first` to `last` have come."""
        stream = self.stream
        if not stream.low < first <= last <= stream.high:
            wrong = first if first <= stream.low else last
            raise stream.fault(wrong, stream.low, stream.high)
        stream.seqno = stream.low = last

    def finish(self) -> None:
        """The stream ended because everything was sent."""
        due = max(self.held_high or 0, self.stream.high)
        if not self.stream.log or self.seqno < due:
            raise ValueError(f"the end of a stream at seqno {self.seqno} that goes to {due}")
        self.ended = True


class StreamEnd(NamedTuple):
    """No more of a stream will come; an `EndReason` says why."""

    state: ReadState
    reason: int
