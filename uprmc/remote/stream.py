"""One stream as the asking side knows it: what may come next, and what completes a snapshot.

The rule for markers is here, once: `judge`. A snapshot may be announced again with a later end as
long as it is not complete. *Strict*, every snapshot ends with an item that has its last seqno; that
is for replicas and for leases, which have no holes either. *Tolerant*, a marker that begins behind
the announced end completes the snapshot before it: producers other than ours may leave out the item
that had the last seqno.

See `docs/streams.md`.
"""

from __future__ import annotations

from uprmc.model import FailoverEntry, SnapshotRange
from uprmc.protocol.upr import Marker
from uprmc.rollback import history_of

#: Above every seqno: nothing may come before a marker.
NOTHING = 2**64


class StreamFault(ValueError):
    """What no producer may send; the text says what and of which vBucket."""


def judge(
    vbucket: int,
    seqno: int,
    snapshot: tuple[int, int],
    marker: Marker,
    *,
    strict: bool,
    resumed: bool = False,
) -> bool:
    """Judge a marker that comes after `seqno`; returns whether it completes the snapshot before it.

    Args:
        vbucket: the vBucket that is streamed.
        seqno: the last one that came.
        snapshot: the first and last seqno of what was announced before.
        marker: the next one.
        strict: see the module docstring.
        resumed: the snapshot was asked for, so that it must be this one that is announced.

    Raises:
        StreamFault: it does not fit what came before.
    """
    (first, last), start, end = snapshot, marker.start_seqno, marker.end_seqno
    if end <= seqno:
        raise StreamFault(f"vBucket {vbucket}: a snapshot {start}..{end} behind seqno {seqno}")
    shrinks = strict and end < last
    if seqno >= last or (start <= first and not shrinks):
        return False
    if strict or resumed or start <= last:
        raise StreamFault(
            f"vBucket {vbucket}: the snapshot {first}..{last} was cut short at {seqno} by "
            f"{start}..{end}"
        )
    return True


class StreamState:
    """One stream that was asked for."""

    __slots__ = ("branch_at", "dropped", "high", "log", "low", "opaque", "resumed", "seqno",
                 "start", "term", "uuid", "vbucket")  # fmt: skip

    def __init__(self, vbucket: int, opaque: int, seqno: int, snapshot: SnapshotRange) -> None:
        self.vbucket = vbucket  # the vBucket that is streamed
        self.opaque = opaque  # names the stream on its connection
        self.seqno = seqno  # the last one that came, or that we had before
        self.low = NOTHING  # the next item must be above this
        self.start = snapshot.start + 1  # where that snapshot begins
        # And not above this, the end of the snapshot that the stream is in.
        self.high = snapshot.end
        # The stream was asked to go on inside of a snapshot that it has not announced yet.
        self.resumed = seqno < snapshot.end
        # The producer's failover log, once it has accepted.
        self.log: tuple[FailoverEntry, ...] = ()
        # term: the term that came with it, 0 = the producer knows none.
        # uuid: the newest history, which begins after `branch_at`.
        self.uuid = self.term = 0
        self.branch_at = 0
        self.dropped = False  # nothing of it is wanted any more

    def accept(self, log: tuple[FailoverEntry, ...], term: int = 0) -> None:
        """The producer has accepted the stream."""
        self.log, self.term = log, term
        self.uuid, self.branch_at = log[0]

    def history_of(self, seqno: int) -> int:
        """Return the vb_uuid of the branch in which a seqno was given."""
        return history_of(self.log, seqno)

    def announce(self, marker: Marker, *, strict: bool = False) -> int | None:
        """Take a marker; return the end of the snapshot that it completes, if it does.

        Raises:
            StreamFault: it does not fit what came before.
        """
        start, end, _, _ = marker
        if not strict and self.high <= self.seqno < end:  # the usual case: one follows the other
            self.start, self.high, self.resumed = start, end, False
            self.low = self.seqno if start <= self.seqno else start - 1
            return None
        snapshot, completed = (self.start, self.high), None
        if judge(self.vbucket, self.seqno, snapshot, marker, strict=strict, resumed=self.resumed):
            completed = self.seqno = self.high
        inside = self.seqno < self.high
        if strict and not inside and start > self.seqno + 1:
            raise StreamFault(
                f"vBucket {self.vbucket}: a snapshot {start}..{end} leaves a hole behind seqno "
                f"{self.seqno}"
            )
        if not inside:
            self.start = start
        self.resumed = False
        self.low, self.high = max(self.seqno, start - 1), end
        return completed

    def begin_and_end(self, start: int, end: int) -> None:
        """All of a snapshot has come, after one that was complete."""
        self.start, self.resumed = start, False
        self.seqno = self.low = self.high = end

    def complete(self) -> int | None:
        """All of the snapshot was sent; return its end if its last item did not say so already."""
        if self.seqno >= self.high:
            return None
        self.seqno = self.low = self.high
        return self.high

    def fault(self, seqno: int, low: int, high: int) -> StreamFault:
        """Return what is wrong with an item that may not come between `low` and `high`."""
        if low == NOTHING:
            return StreamFault(f"vBucket {self.vbucket}: seqno {seqno} before any snapshot")
        if seqno > high or self.start > seqno > low:
            return StreamFault(f"vBucket {self.vbucket}: seqno {seqno} outside of its snapshot")
        if seqno <= low:
            return StreamFault(f"vBucket {self.vbucket}: seqno {seqno} after {low}")
        return StreamFault(f"vBucket {self.vbucket}: a torn item at seqno {seqno}")
