"""What a node's streams have brought: the events between bytes and rules.

An `Inlet` is one stream that was asked for, as the decoder knows it. Events of streams name theirs,
so whoever deals with them can tell a stream that is not wanted any more.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.client.handler import Change
from uprmc.model import FailoverEntry, SnapshotRange
from uprmc.protocol.header import Frame, ResponseFrame

#: Above every seqno: nothing may come before a marker.
NOTHING = 2**64


class Inlet:
    """One stream that was asked for, as the decoder knows it.

    Attributes:
        vbucket: whose.
        opaque: names the stream on its connection.
        seqno: the last one that came, or that we had before.
        low: the next item must be above this.
        high: and not above this, the end of the snapshot that the stream is in.
        start: where that snapshot begins.
        resumed: the stream was asked to go on inside of a snapshot that it has not announced yet.
        log: the producer's failover log, once it has accepted.
        term: the term that came with it, 0 = the producer knows none.
        uuid: the newest history, which begins after `branch_at`.
        dropped: nothing of it is wanted any more.
    """

    __slots__ = ("branch_at", "dropped", "high", "log", "low", "opaque", "resumed", "seqno",
                 "start", "term", "uuid", "vbucket")  # fmt: skip

    def __init__(self, vbucket: int, opaque: int, seqno: int, snapshot: SnapshotRange) -> None:
        self.vbucket = vbucket
        self.opaque = opaque
        self.seqno = seqno
        self.low = NOTHING
        self.start = snapshot.start + 1
        self.high = snapshot.end
        self.resumed = seqno < snapshot.end
        self.log: tuple[FailoverEntry, ...] = ()
        self.uuid = self.term = 0
        self.branch_at = 0
        self.dropped = False

    def accept(self, log: tuple[FailoverEntry, ...], term: int = 0) -> None:
        """The producer has accepted the stream."""
        self.log, self.term = log, term
        self.uuid, self.branch_at = log[0]

    def history_of(self, seqno: int) -> int:
        """Return the vb_uuid of the branch in which a seqno was given."""
        return next((entry.uuid for entry in self.log if entry.seqno < seqno), 0)


class Run(NamedTuple):
    """Changes of one stream, in order, all of one snapshot: all of them sets, or none."""

    inlet: Inlet
    changes: list[Change]
    sets: bool


class SnapshotBegun(NamedTuple):
    """A snapshot was announced; perhaps the one that the stream is in, now with a later end."""

    inlet: Inlet
    start: int
    end: int
    kind: int
    purge_seqno: int


class SnapshotDone(NamedTuple):
    """All of the snapshot up to `end` was sent, though no item may have had that seqno."""

    inlet: Inlet
    end: int


class StreamEnded(NamedTuple):
    """The stream is over; `reason` is an `EndReason` number."""

    inlet: Inlet
    reason: int


class Accepted(NamedTuple):
    """The producer accepted the stream; `Inlet.log` has been set."""

    inlet: Inlet
    answer: ResponseFrame


Event = Run | SnapshotBegun | SnapshotDone | StreamEnded | Accepted | Frame
