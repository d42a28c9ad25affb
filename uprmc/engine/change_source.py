"""One ordered reading of a vBucket: what is on disk and what is queued, as one sequence.

A `Reading` takes a view of the queue and, where that is not enough, a view of the store **in the
same turn**. Together they hold the vBucket as it was then: every key at its newest version, once,
by rising seqno. `changes` reads it from any seqno on, as often as wanted.

How the two fit: the store's own header says up to which seqno the store view is complete (the
hand-over seqno; a commit may be on disk whose `finish` has not run yet, so memory's idea of it can
lag behind). Up to there the disk is read, but for keys that have a newer version in the queue view:
those come at their newer place, in the second part, from the queue. So a key is never sent twice
and nothing newer than the reading appears in it (ruling R3).

Source: seed 000, "how a client is served"; seed 003; design, decision 8; rows D40 to D42.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from uprmc.engine.vbucket import VBucket
from uprmc.model import Item
from uprmc.storage.interface import Store, StoreView


class Reading:
    """See the module docstring. Close it: it pins queue entries and pages of the store.

    Attributes:
        vbucket: its number.
        uuid: the history that it belongs to.
        end_seqno: the newest seqno in it.
        purge_seqno: deletions up to here may be missing from it.
        from_disk: whether the store is read too.
    """

    def __init__(self, vbucket: VBucket, view: StoreView | None, *, owns_view: bool = True) -> None:
        """Take the views.

        Args:
            vbucket: what to read.
            view: a store view opened in this turn; ``None`` reads only the queue.
            owns_view: whether closing this closes the store view.
        """
        self.vbucket = vbucket.id
        self.uuid = vbucket.failover_log[0].uuid
        self.from_disk = view is not None
        self.purge_seqno = vbucket.purge_seqno
        self._queue_view = vbucket.queue.open_view()
        self.end_seqno = self._queue_view.high_seqno
        self._view = view
        self._owns_view = owns_view
        self._handover = 0
        self._newer: frozenset[bytes] = frozenset()
        header = view.header(vbucket.id) if view is not None else None
        if header is not None:
            self._handover = header.high_seqno
            self.purge_seqno = max(self.purge_seqno, header.purge_seqno)
            self._newer = frozenset(item.key for item in self._queue_view.items(self._handover))

    def changes(self, after: int) -> Iterator[Item]:
        """Yield everything above seqno `after`, by rising seqno, one item for each key.

        Raises:
            StoreError: the disk cannot be read, or the reading was closed meanwhile.
        """
        queued = self._queue_view.items(max(after, self._handover))
        if self._view is None or after >= self._handover:
            return queued
        stored = self._view.changes_after(self.vbucket, after)
        newer = self._newer
        if newer:
            stored = (item for item in stored if item.key not in newer)
        return chain(stored, queued)

    def close(self) -> None:
        """Let go of the views; items that were read stay valid. Closing twice is harmless."""
        self._queue_view.close()
        if self._view is not None and self._owns_view:
            self._view.close()
        self._view = None


def needs_disk(vbucket: VBucket, after: int) -> bool:
    """Tell whether the queue alone does not hold everything above seqno `after`."""
    return vbucket.queue.persisted > after


def open_reading(store: Store, vbucket: VBucket, after: int) -> Reading:
    """Take a reading of `vbucket` for somebody who has everything up to seqno `after`."""
    return Reading(vbucket, store.view() if needs_disk(vbucket, after) else None)
