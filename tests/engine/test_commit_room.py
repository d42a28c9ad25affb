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
from uprmc.storage.interface import CommitBatch, Trees

SETTINGS = replace(FlushSettings(), batch_items=1_000_000, commit_memory=12 * MIB)


def record(seqno: int, value: bytes = b"") -> bytes:
    return pack(Item(b"%d" % seqno, value, 0, 0, seqno, seqno, 1))


#: A store of a million documents of 100 bytes.
LARGE = Trees(14_000, 200, 1_500, 150, 200 * MIB, 1_000_000, 250_000)


def test_the_setting_limits_a_commit_to_an_empty_store() -> None:
    assert CommitRoom(replace(SETTINGS, batch_items=100), GIB, Trees()).items == 100


def test_a_large_store_is_written_in_full_batches_while_nothing_is_new() -> None:
    settings = FlushSettings()
    room = CommitRoom(settings, GIB, LARGE, lambda: LARGE.records)
    assert room.items == settings.batch_items
    taken = 0
    while room.left:
        room.use([record(number, bytes(100)) for number in range(30)])
        taken += 30
    assert taken > settings.batch_items * 3 // 4
    assert CommitRoom(settings, GIB, LARGE).items < settings.batch_items


def test_an_item_of_a_huge_store_needs_pages_of_its_own() -> None:
    trees = Trees(*[size * 10 for size in LARGE])
    room = CommitRoom(FlushSettings(), GIB, trees, lambda: trees.records)
    assert 128 * MIB // (20 * KIB) < room.items < 128 * MIB // (12 * KIB)


def test_the_room_ends_with_its_items_or_with_its_memory() -> None:
    room = CommitRoom(replace(SETTINGS, batch_items=2), GIB, Trees())
    room.use([record(1)])
    assert room.left
    room.use([record(2)])
    assert not room.left
    room = CommitRoom(SETTINGS, GIB, Trees())
    for number in range(60):
        assert room.left
        room.use([record(seqno, bytes(1_280)) for seqno in range(number, number + 100)])
    for _ in range(60):
        room.use([record(seqno, bytes(1_280)) for seqno in range(100)])
    assert not room.left


def test_a_value_that_has_pages_of_its_own_takes_complete_ones() -> None:
    assert _taken_by(3_000) == _taken_by(4_000)
    assert 4 * KIB < _taken_by(3_000, count=2) - _taken_by(3_000) < 5 * KIB
    assert _taken_by(4_090) == _taken_by(4_000) + 4 * KIB


def _taken_by(length: int, count: int = 1) -> int:
    room = CommitRoom(SETTINGS, GIB, Trees())
    before = room.memory_bytes
    room.use([record(number, bytes(length)) for number in range(count)])
    return before - room.memory_bytes


@pytest.mark.parametrize(
    ("quota", "allowance"),
    [(8 * MIB, 1 * MIB), (32 * MIB, 4 * MIB), (96 * MIB, 12 * MIB), (GIB, 12 * MIB)],
)
def test_a_commit_takes_at_most_an_eighth_of_the_quota(quota: int, allowance: int) -> None:
    assert CommitRoom(SETTINGS, quota, Trees()).memory_bytes == allowance - 64 * KIB


def test_a_store_that_does_not_tell_its_size_gets_the_smaller_commits() -> None:
    class Silent(FaultyStore):
        def trees(self) -> Trees:
            raise StoreError("no answer")

    assert CommitRoom.of(SETTINGS, GIB, Silent(), None).items < 12 * MIB // (16 * KIB)


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

    def commit(self, batch: CommitBatch) -> None:
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
        commit_growing(Cramped(missing=1, growable=False), CommitBatch())
