"""One commit's allowance: items, and the memory that the store needs for writing them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engine.support import FaultyStore, Node, settings_of
from uprmc.config import GIB, KIB, MIB, FlushSettings
from uprmc.engine.commit_room import CommitRoom, commit_growing
from uprmc.errors import StoreError, StoreMapFull
from uprmc.model import Item
from uprmc.record import pack
from uprmc.storage.interface import Batch, StoreUsage

SETTINGS = replace(FlushSettings(), batch_items=1_000_000, commit_memory=12 * MIB)


def record(seqno: int, value: bytes = b"") -> bytes:
    return pack(Item(b"%d" % seqno, value, 0, 0, seqno, seqno, 1))


def test_a_store_smaller_than_the_allowance_may_be_rewritten_in_one_commit() -> None:
    assert CommitRoom(SETTINGS, GIB, 12 * MIB).items == 12 * MIB // 256
    assert CommitRoom(replace(SETTINGS, batch_items=100), GIB, 0).items == 100


def test_in_a_larger_store_each_item_needs_pages_of_its_own() -> None:
    assert CommitRoom(SETTINGS, GIB, 12 * MIB + 1).items == 1_024


def test_the_room_ends_with_its_items_or_with_its_memory() -> None:
    room = CommitRoom(replace(SETTINGS, batch_items=2), GIB, 0)
    room.use([record(1)])
    assert room.left
    room.use([record(2)])
    assert not room.left
    room = CommitRoom(SETTINGS, GIB, 0)
    for seqno in range(8 * KIB):
        assert room.left
        room.use([record(seqno, bytes(1_280))])
    assert not room.left


def test_a_value_that_has_pages_of_its_own_takes_complete_ones() -> None:
    assert _values_taken(1_999) == 12 * MIB // (1_999 + 256) + 1
    assert _values_taken(2_000) == 12 * MIB // (4 * KIB + 256) + 1
    assert _values_taken(4 * KIB) == 12 * MIB // (8 * KIB + 256) + 1


def _values_taken(length: int) -> int:
    room = CommitRoom(SETTINGS, GIB, 0)
    taken = 0
    while room.left:
        room.use([record(taken, bytes(length))])
        taken += 1
    return taken


@pytest.mark.parametrize(
    ("quota", "allowance"),
    [(8 * MIB, 1 * MIB), (32 * MIB, 4 * MIB), (96 * MIB, 12 * MIB), (GIB, 12 * MIB)],
)
def test_a_commit_takes_at_most_an_eighth_of_the_quota(quota: int, allowance: int) -> None:
    assert CommitRoom(SETTINGS, quota, 0).memory_bytes == allowance
    assert CommitRoom(SETTINGS, quota, allowance + 1).items == allowance // (12 * KIB)


def test_a_store_that_does_not_tell_its_size_gets_the_smaller_commits() -> None:
    class Silent(FaultyStore):
        def usage(self) -> StoreUsage:
            raise StoreError("no answer")

    assert CommitRoom.of(SETTINGS, GIB, Silent()).items == 1_024


def test_large_values_are_written_in_several_commits_and_all_of_them_in_the_end() -> None:
    node = Node(settings_of(flush={"commit_memory": 1 * MIB}))
    for number in range(1_000):
        node.set(b"%d" % number, bytes(16 * KIB))
    sizes = []
    while flush := node.bucket.flusher.begin():
        sizes.append(flush.item_count)
        node.bucket.flusher.commit(flush)
        node.bucket.flusher.finish(flush)
    assert sum(sizes) == 1_000
    assert max(sizes) <= 2 * 64
    assert node.vbucket.persisted_seqno == 1_000


class Cramped(FaultyStore):
    """A store whose map is full until it has grown often enough."""

    def __init__(self, missing: int, *, growable: bool = True) -> None:
        super().__init__()
        self.missing = missing
        self.growable = growable

    def commit(self, batch: Batch) -> None:
        if self.missing:
            raise StoreMapFull("full")
        super().commit(batch)

    def grow(self) -> bool:
        self.missing -= self.growable
        return self.growable


def test_a_node_starts_in_a_store_that_has_to_grow_for_it() -> None:
    store = Cramped(missing=3)
    Node(store=store)
    assert store.missing == 0
    assert store.view().headers()


def test_a_store_that_cannot_grow_says_so() -> None:
    with pytest.raises(StoreMapFull):
        commit_growing(Cramped(missing=1, growable=False), Batch())
