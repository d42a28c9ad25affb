"""How much one commit may contain, so that writing it takes bounded memory; room in the store.

A copy-on-write store holds every page that a commit touches in memory until it is written. An item
at a random place touches a few pages of the trees, but all items together no more than these have.
So there are two ways to count a tree: as many pages for each item as one may touch, or all of it at
once; the one that leaves room for more items is used.

The numbers are bounds for `storage.lmdb_store`, and a test compares them with the pages that it
writes. Only what is rewritten beside dropped records is counted with the average of all records.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.config import KIB, FlushSettings
from uprmc.errors import StoreError, StoreMapFull
from uprmc.record import KEY_LENGTH_AT
from uprmc.storage.interface import CommitBatch, Store, Trees
from uprmc.storage.segments import REWRITTEN_FOR_WRITTEN, SHARING_BYTES, stale_allowed

#: The store's pages, each with a header.
_PAGE_BYTES = 4 * KIB
_PAGE_HEADER_BYTES = 16
_SEGMENT_HEADER_BYTES = 6

#: What an item takes of pages that it shares with others: a mark, and an entry besides its key.
_ENTRIES_BYTES = 128

#: Pages that come of splits are nearly half full at least: this many bytes are written for each.
_HALF_FULL = 2.5

#: Segments leave at most a quarter of their pages empty.
_SEGMENT_SHARE = 4 / 3

#: For each vBucket: its last segment, which is written again, the end of the new last one, a page
#: of the tree, and its header.
_VBUCKET_BYTES = 17 * KIB

#: A sweep passes by three records for an item, and at most as many marks; a page has at least 50.
_SWEPT_PAGES = 3
_PAGES_OF_SWEPT_MARKS = 3 / 50

#: Records kept for each one that is dropped where segments are rewritten for that.
_KEPT_FOR_DROPPED = 3

#: What is not for items: the store's own lists, local documents.
_ALWAYS_BYTES = 64 * KIB

#: Share of the memory quota that one commit may take: the quota is for documents.
_QUOTA_SHARE = 8
_LEAST_BYTES = 1_024 * KIB

#: A store that does not tell what it has.
_UNKNOWN = Trees(2**40, 2**40, 2**40, 0, 2**50, 1, 0)

#: Tells how many records the store may have after the commit at most; ``None`` if that is unknown.
RecordsMost = Callable[[], int | None]


def commit_growing(store: Store, batch: CommitBatch) -> None:
    """Commit at once, growing the store's map as often as that takes; for when no view is open.

    Raises:
        StoreError: as `Store.commit`.
    """
    while True:
        try:
            store.commit(batch)
            return
        except StoreMapFull:
            if not store.grow():
                raise


class CommitRoom:
    """What is left of one commit's allowance."""

    __slots__ = ("_drop_bytes", "_item_bytes", "items", "memory_bytes")

    def __init__(
        self,
        settings: FlushSettings,
        quota: int,
        trees: Trees,
        records_most: RecordsMost | None = None,
    ) -> None:
        """Begin with a full allowance.

        Args:
            settings: they limit it.
            quota: the memory quota, which limits it too.
            trees: what the store has.
            records_most: asked if new records could make a large tree grow.
        """
        allowance = min(settings.commit_memory, max(quota // _QUOTA_SHARE, _LEAST_BYTES))
        new = settings.batch_items
        if records_most is not None and trees.by_id * _PAGE_BYTES > allowance // _QUOTA_SHARE:
            most = records_most()
            if most is not None:
                new = min(new, max(0, most - trees.records))
        room = allowance - _ALWAYS_BYTES
        average = trees.records_bytes / max(1, trees.records + trees.stale_records)
        # What a commit may need of each part of the store, in pages: in all, and for each item.
        parts: list[tuple[float, float]] = [
            (trees.by_id, 1),
            (min(trees.by_id, new), 1),  # those that split
            (trees.by_seq, 1),
            (trees.stale, 1),
            (trees.stale, 1),  # those that split
            (2 * trees.branches, 2),
        ]
        self.memory_bytes, self._item_bytes = _shared(room, _ENTRIES_BYTES, parts)
        items = int(self.memory_bytes // (self._item_bytes + average))
        items = min(settings.batch_items, max(1, items))
        each = min(average, SHARING_BYTES) * _SEGMENT_SHARE
        if trees.stale_records + items > stale_allowed(max(0, trees.records - items)):
            rewritten = int(trees.records_bytes * _SEGMENT_SHARE) / _PAGE_BYTES
            parts += [  # what a sweep may need
                (trees.by_seq, _SWEPT_PAGES),
                (trees.stale, _PAGES_OF_SWEPT_MARKS),
                (rewritten, max(1.0, REWRITTEN_FOR_WRITTEN * each) / _PAGE_BYTES),
            ]
            self.memory_bytes, self._item_bytes = _shared(room, _ENTRIES_BYTES + each, parts)
            self._item_bytes -= int(each)
            items = min(settings.batch_items, max(1, self.memory_bytes // self._item_bytes))
        # How many items it may still take, and how much memory the store may still need for them.
        self.items = items
        self._drop_bytes = 2 * self._item_bytes + int(_KEPT_FOR_DROPPED * each)

    @classmethod
    def of(
        cls, settings: FlushSettings, quota: int, store: Store, records_most: RecordsMost | None
    ) -> CommitRoom:
        """Return a full allowance for the next commit to `store`."""
        try:
            return cls(settings, quota, store.trees(), records_most)
        except StoreError:
            return cls(settings, quota, _UNKNOWN)

    @property
    def left(self) -> bool:
        """Whether anything more may be taken; the last item may exceed the allowance."""
        return self.items > 0 and self.memory_bytes > 0

    @property
    def drops(self) -> int:
        """How many records may be dropped, if nothing is written; at least one."""
        return min(self.items, max(1, self.memory_bytes // self._drop_bytes))

    def use(self, records: list[bytes]) -> None:
        """Account for records of one vBucket that were taken."""
        if not records:
            return
        lengths = [*map(len, records)]
        if max(lengths) <= SHARING_BYTES:
            taken = sum(lengths) * _SEGMENT_SHARE + _VBUCKET_BYTES
        else:
            taken = sum(map(_stored_bytes, lengths)) + _PAGE_BYTES
            taken += _VBUCKET_BYTES if lengths[0] <= SHARING_BYTES else 0
        taken += _HALF_FULL * sum([record[KEY_LENGTH_AT] for record in records])
        self.items -= len(records)
        self.memory_bytes -= int(taken) + self._item_bytes * len(records)

    def use_drops(self, count: int) -> None:
        """Account for records that the commit drops."""
        self.items -= count
        self.memory_bytes -= self._drop_bytes * count


def _shared(room: int, item_bytes: float, parts: list[tuple[float, float]]) -> tuple[int, int]:
    """Return what is left for items, and what each takes of it, so that most items have room.

    A part is counted in all if the items that there is room for would take as much of it.
    """
    item_bytes += _PAGE_BYTES * sum(each for _, each in parts)
    for whole, each in sorted(parts, key=lambda part: part[0] / part[1]):
        if whole * item_bytes < each * room:
            room -= int(whole * _PAGE_BYTES)
            item_bytes -= each * _PAGE_BYTES
    return room, int(item_bytes)


def _stored_bytes(length: int) -> int:
    """Return what a record of this length takes of the pages that a commit writes."""
    if length <= SHARING_BYTES:
        return int(length * _SEGMENT_SHARE)
    return -(-(length + _PAGE_HEADER_BYTES + _SEGMENT_HEADER_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
