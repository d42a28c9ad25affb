"""Where one TAP client stands in one vBucket.

The producer moves it, `names` carries it from one connection of the client to the next, and
`position_document` over restarts.

Source: TAP reference, sections 7 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from uprmc.model import SnapshotRange

#: This many of the newest closed checkpoints of a vBucket are remembered.
CHECKPOINTS_KEPT = 1_000

#: Checkpoints kept over all vBuckets of a client; one with many vBuckets keeps fewer of each.
CHECKPOINTS_OF_A_CLIENT = 4_096

#: Checkpoints kept of a vBucket in any case: a 2.x server has no more in memory.
CHECKPOINTS_LEAST = 2


@dataclass(slots=True)
class Cursor:
    """Where a client stands in one vBucket.

    Attributes:
        uuid: the history that its seqnos belong to.
        acked: everything up to this seqno is acknowledged.
        snapshot: the one `acked` lies in, as a UPR resume wants it.
        sent: highest seqno that the client may hold; more than was sent does no harm.
        checkpoint_id: of the open or last checkpoint; 0 = still the backfill.
        closed: id -> last seqno of closed checkpoints, oldest first; written by `TapName.closed`.
        backfilled: the first snapshot from 0 was acknowledged whole.
        deleted_rev: highest revision of a deletion that was sent.
        checkpoint_after: the seqno after which `checkpoint_id` begins.
    """

    uuid: int = 0
    acked: int = 0
    snapshot: SnapshotRange = SnapshotRange(0, 0)  # noqa: RUF009  # an immutable tuple
    sent: int = 0
    checkpoint_id: int = 0
    closed: dict[int, int] = field(default_factory=dict)
    backfilled: bool = False
    deleted_rev: int = 0
    checkpoint_after: int = 0

    def open_checkpoint(self, checkpoint_id: int, after: int) -> None:
        """Note that a checkpoint begins with what comes after seqno `after`."""
        self.checkpoint_id = checkpoint_id
        self.checkpoint_after = after

    def close_checkpoint(self, checkpoint_id: int, last_seqno: int, kept: int) -> None:
        """Note that the end of a checkpoint was acknowledged; the newest `kept` are remembered."""
        self.closed.pop(checkpoint_id, None)
        self.closed[checkpoint_id] = last_seqno
        while len(self.closed) > kept:
            del self.closed[next(iter(self.closed))]

    def restart_checkpoint(self) -> None:
        """Go back to the beginning of the checkpoint that is not closed yet, if there is one.

        What was acknowledged of it will be sent again, under the same id.
        """
        if self.checkpoint_id in self.closed or self.acked <= self.checkpoint_after:
            return
        if self.checkpoint_id:
            self.acked = self.checkpoint_after
            self.snapshot = SnapshotRange(self.acked, self.acked)

    def branched(self, seqno: int) -> None:
        """Note that history has branched at `seqno`: no position above it means anything any more.

        A checkpoint that ended above must not be resumed from either: its end is a seqno of the
        history that is over.
        """
        if self.acked > seqno:
            self.acked = seqno
            self.snapshot = SnapshotRange(seqno, seqno)
        self.checkpoint_after = min(self.checkpoint_after, seqno)
        if self.closed.get(self.checkpoint_id, 0) > seqno:
            self.checkpoint_id += 1  # ids are not used again: the next one begins at the branch
            self.checkpoint_after = seqno
        self.closed = {number: end for number, end in self.closed.items() if end <= seqno}

    def copied(self) -> Cursor:
        """Return one that can be moved without moving this one."""
        return replace(self, closed=dict(self.closed))
