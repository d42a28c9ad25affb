"""One ordered reading of a vBucket: what is on disk and what is queued, as one sequence.

A `Reading` takes a view of the queue and, where that is not enough, a view of the store **in the
same turn**. Together they hold the vBucket as it was then: every key at its newest version, once,
by rising seqno. `changes` reads it from any seqno on, as often as wanted.

How the two fit together: the store's own header says up to which seqno the store view is complete
(the hand-over seqno; memory's idea of it can lag behind, when a commit is on disk but its `finish`
has not run yet). Up to there changes are read from disk, except those of keys that have a newer
version in the queue view, which are read from the queue in the second part. So a key is never sent
twice, and nothing newer than the reading appears in it (ruling R3).

Source: seed 000, "how a client is served"; seed 003; design, decision 8; rows D40 to D42.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import chain

from uprmc.engine.vbucket import VBucket
from uprmc.errors import StoreError
from uprmc.model import Item, VBucketHeader
from uprmc.record import key_of, seqno_of, unpack
from uprmc.storage.interface import StoreView

#: Queue entries looked up at a time.
_PORTION_ITEMS = 64

#: A portion of the store counts as this many records at least: others in it may be stale.
_PORTION_RECORDS = 32


class Reading:
    """One ordered reading of a vBucket.

    Close it: it pins queue entries and pages of the store.

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

        Raises:
            StoreError: the view cannot be read. A view that is owned has been closed.
        """
        assert view is None or vbucket.queue.persisted, "the store may hold a former history"
        assert not vbucket.rewinding, "the store still has the history that was rolled back"
        self._view = view
        self._owns_view = owns_view
        header = self._header(vbucket.id)
        self.vbucket = vbucket.id
        self.uuid = vbucket.failover_log[0].uuid
        self.from_disk = view is not None
        self.purge_seqno = vbucket.purge_seqno
        self._queue_view = vbucket.queue.open_view()
        self.end_seqno = self._queue_view.high_seqno
        self._closed = False
        self._handover = 0
        if header is not None:
            self._handover = header.high_seqno
            self.purge_seqno = max(self.purge_seqno, header.purge_seqno)

    @cached_property
    def newer(self) -> frozenset[bytes]:
        """Keys whose version in the queue is newer than in the store: skip them in the store.

        They are found when they are first asked for, since most of a lease is never read at once.
        """
        if not self.from_disk or self._closed:
            return frozenset()
        return frozenset(map(key_of, self._queue_view.records(self._handover)))

    @property
    def remembered(self) -> int:
        """The number of `newer` keys, 0 while nobody has asked for them."""
        return len(self.__dict__.get("newer", ()))

    def changes(self, after: int) -> Iterator[Item]:
        """Yield everything above seqno `after`, by rising seqno, one item for each key.

        This is `records` without `newer` keys, followed by `queued`; streams read these directly.

        Raises:
            StoreError: the disk cannot be read, or the reading was closed in the meantime.
        """
        stored = (each for each in self.records(after) if key_of(each) not in self.newer)
        return map(unpack, chain(stored, self.queued(after)))

    def records(self, after: int) -> Iterator[bytes]:
        """Yield the store's part above seqno `after` as records, those of `newer` keys included.

        A backfill consists of these, because most of a record is copied to the wire unchanged.
        `queued` has the rest. Raises as `changes`.
        """
        if self._closed:
            raise StoreError("the reading is closed")
        if self._view is None or after >= self._handover:
            return iter(())
        return self._view.records_after(self.vbucket, after)

    def queued(self, after: int) -> Iterator[bytes]:
        """Yield the queue's part above seqno `after`; raises as `changes`."""
        return chain.from_iterable(self._queued_portions(max(after, self._handover)))

    def reached(
        self, after: int, rows: int, slice_records: int, slice_bytes: int
    ) -> Iterator[tuple[int, int]]:
        """Count changes above seqno `after`, a slice at a time.

        Args:
            after: see `changes`.
            rows: stop when this number of them is reached.
            slice_records, slice_bytes: about how much to look at in a slice.

        Yields:
            After each slice how far the count is: a seqno, and the number of changes up to it. The
            last one is the answer; its seqno is the reading's end if there are no more changes.

        Raises:
            As `changes`.
        """
        seqno, found = after, 0
        records = size_bytes = 0
        for portion, newer in self._portions(after):
            for record in portion:
                if key_of(record) not in newer:
                    seqno, found = seqno_of(record), found + 1
                    if found == rows:
                        yield seqno, found
                        return
            records += max(len(portion), _PORTION_RECORDS)
            size_bytes += sum(map(len, portion))
            if records >= slice_records or size_bytes >= slice_bytes:
                yield seqno, found
                records = size_bytes = 0
        yield max(after, self.end_seqno), found

    def close(self) -> None:
        """Close the views; items that were read stay valid. Closing twice is harmless."""
        self._closed = True
        self._queue_view.close()
        self._close_view()

    def _portions(self, after: int) -> Iterator[tuple[list[bytes], frozenset[bytes]]]:
        """Yield `records` and `queued` as they are read, with the keys that do not count there.

        A portion may be empty: all that was read is stale.
        """
        if self._closed:
            raise StoreError("the reading is closed")
        if self._view is not None and after < self._handover:
            for portion in self._view.portions_after(self.vbucket, after):
                yield portion, self.newer
        for portion in self._queued_portions(max(after, self._handover)):
            yield portion, frozenset()

    def _queued_portions(self, after: int) -> Iterator[list[bytes]]:
        """Yield what the queue view holds after seqno `after`."""
        while True:
            if self._closed:
                raise StoreError("the reading is closed")
            portion = self._queue_view.take(_PORTION_ITEMS, after)
            if not portion:
                return
            yield portion
            after = seqno_of(portion[-1])

    def _header(self, number: int) -> VBucketHeader | None:
        if self._view is None:
            return None
        try:
            return self._view.header(number)
        except StoreError:
            self._close_view()
            raise

    def _close_view(self) -> None:
        view, self._view = self._view, None
        if view is not None and self._owns_view:
            view.close()


def needs_disk(vbucket: VBucket, after: int) -> bool:
    """Tell whether the queue alone does not hold everything above seqno `after`."""
    return vbucket.queue.persisted > after
