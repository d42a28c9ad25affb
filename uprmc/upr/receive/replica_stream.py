"""One stream on the consumer's side: what it asked for, and what it takes.

Source: UPR reference 5.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from uprmc.engine.replica import apply, apply_all, outrank, take_history
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.model import SEQNO_MAX, FailoverEntry, Item, SnapshotRange
from uprmc.protocol.opcodes import MarkerFlag
from uprmc.protocol.upr import Marker, StreamRequest

_DISK = int(MarkerFlag.DISK)


class ReplicaState(Enum):
    """Where it stands; the texts are those of statistics."""

    PENDING = "pending"
    READING = "reading"
    TAKEOVER_WAIT = "takeover-wait"
    DEAD = "dead"


class ReplicaStream:
    """Fills a vBucket from a stream. Watches the vBucket: it ends when something else changes that.

    Attributes:
        vbucket: what is filled.
        flags: of the request.
        opaque: of its frames.
        asked_by: opaque of the ADD_STREAM, which is answered when the stream begins; 0 = none.
        asked: what its source was asked for last.
        state: see `ReplicaState`.
        snapshot: the one that was announced last; before the first nothing fits into it.
        kind: its marker's type bits.
        purge_seqno: deletions up to here may be missing from it.
        told_purge_seqno: what VBUCKET_FACTS said last of that, ``None`` = nothing.
        items: taken so far.
        rollbacks: how often the source has sent us back before it granted it.
        told_seqno: what the source was told last to be on our disk.
        bare: whether the request goes without known versions: the source has refused one with them.
        stranger: whether the source's history is none of ours, so that our term says nothing there.
    """

    __slots__ = (
        "_died",
        "_floor",
        "_silent_disk",
        "asked",
        "asked_by",
        "bare",
        "flags",
        "items",
        "kind",
        "opaque",
        "purge_seqno",
        "rollbacks",
        "snapshot",
        "state",
        "stranger",
        "told_purge_seqno",
        "told_seqno",
        "vbucket",
    )

    def __init__(
        self,
        vbucket: VBucket,
        flags: int,
        opaque: int,
        asked_by: int,
        died: Callable[[ReplicaStream, Interruption], None],
    ) -> None:
        """See the class; `died` is called when something else changes the vBucket."""
        self.vbucket = vbucket
        self.flags = flags
        self.opaque = opaque
        self.asked_by = asked_by
        self.state = ReplicaState.PENDING
        self.snapshot = SnapshotRange(vbucket.high_seqno, vbucket.high_seqno)
        self.kind = 0
        self.purge_seqno = 0
        self.items = 0
        self.rollbacks = 0
        self.told_seqno = 0
        self.bare = self.stranger = False
        self.told_purge_seqno: int | None = None
        self._silent_disk = False
        self._floor: int | None = None
        self.asked = self._request()
        self._died: Callable[[ReplicaStream, Interruption], None] | None = died
        vbucket.watchers.append(self)

    def request(self) -> StreamRequest:
        """Return what to ask for: everything after what the vBucket holds."""
        self.asked = self._request()
        self._floor = self.asked.snapshot_start + 1
        return self.asked

    def _request(self) -> StreamRequest:
        vbucket = self.vbucket
        high, snapshot = vbucket.high_seqno, vbucket.snapshot
        return StreamRequest(self.flags, high, SEQNO_MAX, vbucket.failover_log[0].uuid, *snapshot)

    def accepted(self, log: tuple[FailoverEntry, ...], term: int) -> None:
        """The producer has agreed; its history is ours from now on, with its term."""
        self.change_state(lambda: take_history(self.vbucket, log, term))
        self.vbucket.may_start_over = False
        high = self.vbucket.high_seqno
        self.snapshot = SnapshotRange(high, high)
        self.kind = self.purge_seqno = 0
        self.state = ReplicaState.READING

    @property
    def whole(self) -> bool:
        """Whether everything that was announced has come."""
        return self.vbucket.high_seqno >= self.snapshot.end

    def told(self, purge_seqno: int, rev_floor: int) -> None:
        """Learn what goes with the snapshots that follow.

        Raises:
            InvalidArguments: no vBucket has such a revision.
        """
        outrank(self.vbucket, rev_floor)
        self.told_purge_seqno = purge_seqno

    def purged(self, marker: Marker, *, told: bool) -> int:
        """Return up to where deletions may be missing from a snapshot.

        A source that tells nothing of it may have dropped any deletion from what it reads off its
        disk. Of that the stream's first counts, however often it is announced: what comes later
        was changed since it began.

        Args:
            marker: the snapshot's.
            told: whether the marker says so itself.
        """
        if told or self.told_purge_seqno is not None:
            return max(marker.purge_seqno, self.told_purge_seqno or 0)
        if not marker.kind & _DISK or (self._silent_disk and self.whole):
            return 0
        self._silent_disk = True
        return marker.end_seqno

    def announced(self, marker: Marker, purge_seqno: int) -> None:
        """A snapshot begins; it counts from its first item on.

        The first one goes on with what was asked for, whatever its own start says.
        """
        start, floor = marker.start_seqno, self._floor
        if floor is not None:
            start, self._floor = min(start, floor), None
        self.snapshot = SnapshotRange(start, marker.end_seqno)
        self.kind = marker.kind
        self.purge_seqno = purge_seqno

    def take(self, item: Item) -> None:
        """Apply a version.

        Raises:
            RangeExceeded: it is out of order.
            InvalidArguments: its numbers leave no room for our own.
        """
        apply(self.vbucket, item, self.snapshot, self.purge_seqno)
        self.items += 1

    def take_all(self, records: list[bytes], highest_cas: int) -> None:
        """Apply versions that `intake.read_run` has found to be in order."""
        apply_all(self.vbucket, records, highest_cas, self.snapshot, self.purge_seqno)
        self.items += len(records)

    def change_state(self, change: Callable[[], object]) -> None:
        """Let `change` put the vBucket into another state without ending this stream."""
        self.vbucket.unwatch(self)
        try:
            change()
        finally:
            if self.state is not ReplicaState.DEAD:
                self.vbucket.watchers.append(self)

    # --- what the vBucket tells -----------------------------------------------------------------

    def changed(self) -> None:
        """It is us who change it."""

    def interrupted(self, why: Interruption) -> None:
        """Learn that something else has changed the vBucket's state, or that it is gone."""
        died = self._died
        self.close()
        if died is not None:
            died(self, why)

    def close(self) -> None:
        """Let go of the vBucket."""
        self.vbucket.unwatch(self)
        self.state = ReplicaState.DEAD
        self._died = None
