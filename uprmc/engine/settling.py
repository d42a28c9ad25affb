"""Telling vBuckets what a finished commit has put on disk, in short steps."""

from __future__ import annotations

from collections.abc import Iterator

from uprmc.engine.disposal import Disposals
from uprmc.engine.flush import SETTLE_ITEMS, STEP_ITEMS, VBUCKET_AS_ITEMS, Flush, Part
from uprmc.engine.queue_cursors import Cursor, QueueCursors
from uprmc.model import SnapshotRange
from uprmc.record import seqno_of


def settle(flush: Flush, cursors: QueueCursors, disposals: Disposals) -> Iterator[None]:
    """Tell the vBuckets of a flush that is on disk, yielding after each short step."""
    since_yield = 0
    for part in flush.parts:
        if part.cursor is not None:
            yield from _settle_portion(part, part.cursor, cursors)
        elif not disposals.is_gone(part.vbucket):
            _persisted(part, part.records)
        since_yield += len(part.records) + VBUCKET_AS_ITEMS
        if since_yield >= STEP_ITEMS:
            since_yield = 0
            yield


def _settle_portion(part: Part, cursor: Cursor, cursors: QueueCursors) -> Iterator[None]:
    """Tell a vBucket which part of a view is on disk, a little at a time if that is much.

    The cursor stays until the last step: until then the vBucket's durable seqno has not risen.
    """
    vbucket = part.vbucket
    if not cursors.has(cursor, vbucket):
        return
    cursor.position = part.upto
    complete = part.upto >= cursor.view.high_seqno
    if complete:
        cursor.view.close()
    else:
        cursor.view.pass_by(part.upto)
    settled = 0
    if not vbucket.rewinding:
        between = SnapshotRange(cursor.whole, cursor.snapshot.end)
        while len(part.records) - settled > SETTLE_ITEMS and part.queue is vbucket.queue:
            few = part.records[settled : settled + SETTLE_ITEMS]
            settled += len(few)
            vbucket.persisted(few, seqno_of(few[-1]), between)
            yield
    if complete and cursors.has(cursor, vbucket):
        cursors.close(vbucket.id)
    _persisted(part, part.records[settled:])


def _persisted(part: Part, records: list[bytes]) -> None:
    """Tell a vBucket what is on disk now, unless that belongs to a former history."""
    vbucket = part.vbucket
    if part.queue is not vbucket.queue or part.table is not vbucket.table:
        return
    vbucket.persisted(records, part.upto, part.snapshot)
    if vbucket.queue.live:  # beyond this batch, or accepted since it was begun
        vbucket.mark_dirty()
    elif part.snapshot != vbucket.snapshot:  # a branch has completed it in the meantime
        vbucket.change_header()
