"""How much one commit may contain, so that writing it takes bounded memory; room in the store.

A copy-on-write store holds every page that a commit touches in memory until it is written: a few
pages for an item at a random place of a large store, whatever the item's size, but in a small store
never more than the store has. So large batches help in small stores, where many items share a page.
In a large store each item has pages of its own, and a large batch gains little.
"""

from __future__ import annotations

from uprmc.config import KIB, FlushSettings
from uprmc.errors import StoreError, StoreMapFull
from uprmc.record import KEY_LENGTH_AT, RECORD_OVERHEAD_BYTES, value_bytes_of
from uprmc.storage.interface import Batch, Store

#: By-id leaf, a leaf of stale marks, and a share of segments, new ones and rewritten ones.
_SCATTERED_ITEM_BYTES = 12 * KIB

#: An item's share of the pages that it shares with others.
_CLOSE_ITEM_BYTES = 256

#: The store's pages, and from which size on a record gets pages of its own (LMDB: two do not fit
#: on one page beside its header), each with a header in the first one.
_PAGE_BYTES = 4 * KIB
_OWN_PAGES_FROM_BYTES = 2_000
_PAGE_HEADER_BYTES = 16

#: What a record takes beyond its key and value, roughly.
_RECORD_BYTES = 64

#: Share of the memory quota that one commit may take: the quota is for documents.
_QUOTA_SHARE = 8
_LEAST_BYTES = 1_024 * KIB


def commit_growing(store: Store, batch: Batch) -> None:
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
    """What is left of one commit's allowance.

    Attributes:
        items: how many items it may still take.
        memory_bytes: how much memory the store may still need for it.
    """

    __slots__ = ("_item_bytes", "items", "memory_bytes")

    def __init__(self, settings: FlushSettings, quota: int, stored_bytes: int | None) -> None:
        """Begin with a full allowance.

        Args:
            settings: they limit it.
            quota: the memory quota, which limits it too.
            stored_bytes: size of the store, ``None`` if it is not known.
        """
        self.memory_bytes = min(settings.commit_memory, max(quota // _QUOTA_SHARE, _LEAST_BYTES))
        scattered = stored_bytes is None or stored_bytes > self.memory_bytes
        self._item_bytes = _SCATTERED_ITEM_BYTES if scattered else _CLOSE_ITEM_BYTES
        self.items = min(settings.batch_items, max(1, self.memory_bytes // self._item_bytes))

    @classmethod
    def of(cls, settings: FlushSettings, quota: int, store: Store) -> CommitRoom:
        """Return a full allowance for the next commit to `store`."""
        try:
            return cls(settings, quota, store.usage().used_bytes)
        except StoreError:
            return cls(settings, quota, None)

    @property
    def left(self) -> bool:
        """Whether anything more may be taken; the last item may exceed the allowance."""
        return self.items > 0 and self.memory_bytes > 0

    def use(self, records: list[bytes]) -> None:
        """Account for records that were taken."""
        if records and max(map(len, records)) < _OWN_PAGES_FROM_BYTES:  # no value has own pages
            self.memory_bytes -= sum([len(record) - record[KEY_LENGTH_AT] for record in records])
            self.memory_bytes += RECORD_OVERHEAD_BYTES * len(records)
        else:
            self.memory_bytes -= sum([_value_bytes(value_bytes_of(record)) for record in records])
        self.use_records(len(records))

    def use_records(self, count: int) -> None:
        """Account for the records that the commit touches, whatever it does to them."""
        self.items -= count
        self.memory_bytes -= self._item_bytes * count


def _value_bytes(length: int) -> int:
    """Return what a value of this length takes of the pages that a commit writes."""
    if length < _OWN_PAGES_FROM_BYTES:
        return length
    return -(-(length + _RECORD_BYTES + _PAGE_HEADER_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
