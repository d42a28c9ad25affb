"""Choosing what the next commit writes: each dirty vBucket's share, as much as there is room for.

First come the vBuckets whose headers have changed, because `Flusher.begin_in_slices` promises that
these headers are in the batch. A vBucket with a short queue is taken at once; a longer queue is
taken from a view, in steps, and its rest is left for the next flush.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from uprmc.engine.commit_room import CommitRoom
from uprmc.engine.disposal import Disposals, Record
from uprmc.engine.flush import STEP_ITEMS, VBUCKET_AS_ITEMS, Begun, Flush, Part
from uprmc.engine.queue_cursors import Cursor, QueueCursors
from uprmc.engine.vbucket import VBucket
from uprmc.model import SnapshotRange
from uprmc.record import seqno_of
from uprmc.storage.interface import VBucketChange


class Gathering:
    """Fills one flush with parts and changes.

    Args:
        flush: what is filled.
        room: how much more it may take.
        vbuckets: those of the bucket now.
        cursors: opened where a queue is too long for one commit.
        disposals: tombstones to drop.
        next_time: dirty vBuckets that the next flush must look at are added to this list.
    """

    def __init__(
        self,
        flush: Flush,
        room: CommitRoom,
        vbuckets: Mapping[int, VBucket],
        cursors: QueueCursors,
        disposals: Disposals,
        next_time: list[VBucket],
    ) -> None:
        self._flush = flush
        self._room = room
        self._vbuckets = vbuckets
        self._cursors = cursors
        self._disposals = disposals
        self._next_time = next_time

    def take(self, dirty: list[VBucket]) -> Generator[None, None, bool]:
        """Take what fits, yielding after each short step; tell whether every vBucket is reset."""
        dirty = [each for each in dirty if not self._disposals.is_gone(each)]
        begun = [Begun.of(each) for each in dirty if each.header_dirty or each.reset_pending]
        later = [each for each in dirty if not (each.header_dirty or each.reset_pending)]
        resets = sum(each.reset for each in begun)
        reset_all = 0 < resets == len(self._vbuckets)
        for each in sorted(begun, key=lambda each: not each.vbucket.rewinding):
            yield from self._take_begun(each)
            if not each.vbucket.rewinding:  # what was rolled back is taken before the first step
                yield
        since_yield = 0
        for vbucket in later:
            if not self._room.left:
                self._leave(vbucket)
            elif self._is_short(vbucket):
                since_yield += self._take_all(vbucket)
            elif not (yield from self._take_portion(vbucket, reset=False)):
                self._leave(vbucket)
            since_yield += VBUCKET_AS_ITEMS
            if since_yield >= STEP_ITEMS:
                since_yield = 0
                yield
        return reset_all

    def _leave(self, vbucket: VBucket) -> None:
        """Leave a dirty vBucket for the next flush."""
        if not self._disposals.is_gone(vbucket):
            self._next_time.append(vbucket)

    def _take_begun(self, begun: Begun) -> Generator[None, None, None]:
        """Add a vBucket's share, or only the header if its history has ended."""
        vbucket, table, header, reset = begun
        if vbucket.table is table and (yield from self._take_portion(vbucket, reset=reset)):
            return
        self._flush.parts.append(
            Part(vbucket, table, None, None, [], header.high_seqno, header.snapshot, reset, True)
        )
        self._flush.changes.append(VBucketChange(vbucket.id, header, [], reset))
        self._leave(vbucket)

    def _is_short(self, vbucket: VBucket) -> bool:
        """Tell whether a vBucket without anything special has so little that it is taken at once.

        That needs no view: all of it is in one commit, and if that fails nothing of it is on disk.
        """
        return (
            vbucket.queue.live <= STEP_ITEMS
            and vbucket.id not in self._cursors
            and not (vbucket.rewinding or vbucket.reset_pending or self._disposals.is_gone(vbucket))
        )

    def _take_all(self, vbucket: VBucket) -> int:
        """Add everything that a vBucket has; return how many records that is."""
        drop = self._take_drops(vbucket)
        records = vbucket.queue.since(vbucket.queue.persisted)
        self._room.use(records)
        upto = seqno_of(records[-1]) if records else vbucket.persisted_seqno
        self._add(vbucket, None, records, upto, vbucket.snapshot, drop)
        return len(records)

    def _take_portion(self, vbucket: VBucket, *, reset: bool) -> Generator[None, None, bool]:
        """Add as much of a vBucket as fits; ``False`` if its history has changed meanwhile.

        All of a rollback is in one commit, however long it is; its newest item may be on disk
        already.
        """
        if self._disposals.is_gone(vbucket) or vbucket.reset_pending != reset:
            return False
        cursor = self._cursors.open(vbucket)
        drop = self._take_drops(vbucket)
        above, forget = vbucket.forgetting or (None, frozenset())
        if above is None:
            records = yield from self._read(cursor, vbucket)
            if records is None:
                return False
            upto = seqno_of(records[-1]) if records else cursor.position
        else:
            records = list(cursor.view.records())
            self._room.use(records)
            upto = cursor.view.high_seqno
        snapshot = cursor.snapshot_at(upto)
        self._add(vbucket, cursor, records, upto, snapshot, drop, above, sorted(forget))
        return True

    def _take_drops(self, vbucket: VBucket) -> Sequence[Record]:
        drop = self._disposals.take_drops(vbucket)
        self._room.use_drops(len(drop))
        return drop

    def _read(self, cursor: Cursor, vbucket: VBucket) -> Generator[None, None, list[bytes] | None]:
        """Return the next records of a view, as many as there is room for.

        ``None`` if the vBucket began another history or was removed in the meantime.
        """
        records: list[bytes] = []
        room, view, upto = self._room, cursor.view, cursor.position
        while room.left and upto < view.high_seqno:
            if records:
                yield
                if self._cursors.of(vbucket) is not cursor:
                    return None
            found = view.take(min(room.items, STEP_ITEMS), upto)
            if not found:
                break
            room.use(found)
            records += found
            upto = seqno_of(found[-1])
        return records

    def _add(
        self,
        vbucket: VBucket,
        cursor: Cursor | None,
        records: list[bytes],
        upto: int,
        snapshot: SnapshotRange,
        drop: Sequence[Record],
        above: int | None = None,
        forget: Sequence[bytes] = (),
    ) -> None:
        """Add a part to the flush, and what it does to the store; the vBucket is clean now."""
        table, queue = vbucket.table, vbucket.queue
        reset, header_dirty = vbucket.reset_pending, vbucket.header_dirty
        self._flush.parts.append(
            Part(vbucket, table, queue, cursor, records, upto, snapshot, reset, header_dirty)
        )
        header = vbucket.header(upto, snapshot)
        self._flush.changes.append(
            VBucketChange(
                vbucket.id,
                header,
                records,
                reset,
                drop,
                above,
                forget,
                self._disposals.take_heals(vbucket),
            )
        )
        vbucket.dirty = vbucket.header_dirty = vbucket.reset_pending = False
