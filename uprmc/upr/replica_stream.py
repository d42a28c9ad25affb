"""One stream on the consumer's side: what it asked for, and what it takes.

Source: UPR reference 5.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from uprmc.engine.replica import apply, take_history
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.model import SEQNO_MAX, FailoverEntry, Item, SnapshotRange
from uprmc.protocol.upr import StreamRequest


class ReplicaState(Enum):
    """Where it stands; the texts are those of statistics."""

    PENDING = "pending"
    READING = "reading"
    DEAD = "dead"


class ReplicaStream:
    """Fills a vBucket from a stream. Watches the vBucket: it ends when somebody else changes that.

    Attributes:
        vbucket: what is filled.
        flags: of the request.
        opaque: of its frames.
        asked_by: opaque of the ADD_STREAM, which is answered when the stream begins.
        state: see `ReplicaState`.
        snapshot: the one that was announced last.
        kind: its marker's type bits.
        items: taken so far.
    """

    __slots__ = (
        "_died",
        "asked_by",
        "flags",
        "items",
        "kind",
        "opaque",
        "snapshot",
        "state",
        "vbucket",
    )

    def __init__(
        self,
        vbucket: VBucket,
        flags: int,
        opaque: int,
        asked_by: int,
        died: Callable[[ReplicaStream], None],
    ) -> None:
        """See the class; `died` is called when the vBucket is changed by somebody else."""
        self.vbucket = vbucket
        self.flags = flags
        self.opaque = opaque
        self.asked_by = asked_by
        self.state = ReplicaState.PENDING
        self.snapshot = vbucket.snapshot
        self.kind = 0
        self.items = 0
        self._died: Callable[[ReplicaStream], None] | None = died
        vbucket.watchers.append(self)

    def request(self) -> StreamRequest:
        """Return what to ask for: everything after what the vBucket holds."""
        vbucket = self.vbucket
        high, snapshot = vbucket.high_seqno, vbucket.snapshot
        uuid = vbucket.failover_log[0].uuid
        return StreamRequest(self.flags, high, SEQNO_MAX, uuid, *snapshot)

    def accepted(self, log: tuple[FailoverEntry, ...]) -> None:
        """The producer has agreed; its history is ours from now on."""
        take_history(self.vbucket, log)
        self.state = ReplicaState.READING

    def announced(self, snapshot: SnapshotRange, kind: int) -> None:
        """A snapshot begins; it counts from its first item on."""
        self.snapshot = snapshot
        self.kind = kind

    def take(self, item: Item) -> None:
        """Apply a version; raises `RangeExceeded` for one out of order."""
        apply(self.vbucket, item, self.snapshot)
        self.items += 1

    def change_state(self, change: Callable[[], object]) -> None:
        """Let `change` put the vBucket into another state without ending this stream."""
        self.vbucket.unwatch(self)
        change()
        self.vbucket.watchers.append(self)

    # --- what the vBucket tells -----------------------------------------------------------------

    def changed(self) -> None:
        """It is us who change it."""

    def interrupted(self, why: Interruption) -> None:
        """Somebody else has changed the vBucket's state, or it is gone."""
        died = self._died
        self.close()
        if died is not None:
            died(self)

    def close(self) -> None:
        """Let go of the vBucket."""
        self.vbucket.unwatch(self)
        self.state = ReplicaState.DEAD
        self._died = None
