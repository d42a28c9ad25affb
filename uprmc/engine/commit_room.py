"""How much one commit may take, so that writing it costs bounded memory; and room in the store.

A copy-on-write store holds every page that a commit touches in memory until it is written: a few
pages for an item at a random place of a large store, whatever the item's size, but in a small store
never more than the store has. So large batches are for small stores, where many items share a page
and gain by it; in a large store each item has its pages to itself and a large batch gains little.
"""

from __future__ import annotations

from uprmc.config import KIB, FlushSettings
from uprmc.errors import StoreError, StoreMapFull
from uprmc.model import Item
from uprmc.storage.interface import Batch, Store

#: By-id leaf, the old by-seq leaf and a share of the new one.
_SCATTERED_ITEM_BYTES = 12 * KIB

#: An item's share of pages that it has in common with others.
_CLOSE_ITEM_BYTES = 256


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

    def __init__(self, settings: FlushSettings, stored_bytes: int) -> None:
        scattered = stored_bytes > settings.commit_memory
        self._item_bytes = _SCATTERED_ITEM_BYTES if scattered else _CLOSE_ITEM_BYTES
        self.items = min(settings.batch_items, max(1, settings.commit_memory // self._item_bytes))
        self.memory_bytes = settings.commit_memory

    @classmethod
    def of(cls, settings: FlushSettings, store: Store) -> CommitRoom:
        """Return a whole commit's allowance; a cautious one if the store does not tell its size."""
        try:
            usage = store.usage()
        except StoreError:
            return cls(settings, settings.commit_memory + 1)
        return cls(settings, usage.used_bytes)

    @property
    def left(self) -> bool:
        """Whether anything more may be taken; the last taken may exceed what was left."""
        return self.items > 0 and self.memory_bytes > 0

    def use(self, items: list[Item]) -> None:
        """Account for items that were taken."""
        self.memory_bytes -= sum([len(item.value) for item in items if item.value])
        self.use_records(len(items))

    def use_records(self, count: int) -> None:
        """Account for the places of records that the commit touches, whatever it does there."""
        self.items -= count
        self.memory_bytes -= self._item_bytes * count
