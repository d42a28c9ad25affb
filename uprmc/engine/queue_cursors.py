"""Views of queues that are too long for one commit, and what counts as on disk meanwhile.

Such a queue is written from *one* view in several commits. Until the last of them the stored
snapshot range says "incomplete". After a crash in between, the items are kept, but history branches
at the last complete state. For the same reason, the part of a snapshot that a replica has received
is stored with that snapshot's range.
"""

from __future__ import annotations

from dataclasses import dataclass

from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.vbucket import VBucket
from uprmc.engine.write_queue import QueueView, WriteQueue
from uprmc.model import SnapshotRange


@dataclass(slots=True)
class Cursor:
    """How far one view of one queue has been written.

    Attributes:
        start: the persisted seqno when the view was opened.
        whole: the end of the last complete snapshot that was persisted then.
        snapshot: the range to which the view's newest items belong.
        position: the seqno up to which the view has been written.
    """

    queue: WriteQueue
    view: QueueView
    start: int
    whole: int
    snapshot: SnapshotRange
    position: int

    def snapshot_at(self, seqno: int) -> SnapshotRange:
        """Return the range to store in a commit that ends at `seqno`."""
        if seqno < self.view.high_seqno:
            return SnapshotRange(self.whole, self.snapshot.end)
        return self.snapshot


class QueueCursors:
    """The cursor of each vBucket whose queue is being written in several commits."""

    def __init__(self) -> None:
        self._cursors: dict[int, Cursor] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._cursors

    def has(self, cursor: Cursor, vbucket: VBucket) -> bool:
        """Tell whether `cursor` is that of this vBucket, and not of its former history."""
        return self._cursors.get(vbucket.id) is cursor

    def of(self, vbucket: VBucket) -> Cursor | None:
        """Return the cursor of a vBucket's present queue."""
        cursor = self._cursors.get(vbucket.id)
        return cursor if cursor is not None and cursor.queue is vbucket.queue else None

    def open(self, vbucket: VBucket) -> Cursor:
        """Return the cursor of a vBucket's present queue; a new one if it has none."""
        cursor = self.of(vbucket)
        if cursor is None:
            self.close(vbucket.id)
            start = vbucket.persisted_seqno
            whole = last_complete_seqno(start, vbucket.persisted_snapshot)
            view = vbucket.queue.open_view()
            cursor = Cursor(vbucket.queue, view, start, whole, vbucket.snapshot, start)
            self._cursors[vbucket.id] = cursor
        return cursor

    def close(self, number: int) -> None:
        """End a vBucket's cursor if it has one."""
        cursor = self._cursors.pop(number, None)
        if cursor is not None:
            cursor.view.close()
