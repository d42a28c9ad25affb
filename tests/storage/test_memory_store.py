"""The reference model keeps the contract, refuses malformed batches, and can lose power."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contents import change_of
from tests.contracts.store_contract import StoreContract
from tests.contracts.store_values import by_seq, contents, header, live, write
from uprmc.errors import StoreError
from uprmc.model import Item
from uprmc.storage.interface import CommitBatch, Store, VBucketChange
from uprmc.storage.memory import MemoryStore


class TestMemoryStore(StoreContract):
    """The contract, on dicts."""

    def create(self, path: Path) -> Store:
        """Return a new store; `path` is not used."""
        return MemoryStore()

    def reopen(self, store: Store) -> Store:
        """End the process, so to speak."""
        assert isinstance(store, MemoryStore)
        return store.reopened()


def test_a_power_loss_takes_back_what_was_not_synced() -> None:
    store = MemoryStore(sync=False)
    store.commit(write(live(b"a", 1)))
    store.sync()
    store.commit(write(live(b"b", 2)))
    store.commit(CommitBatch(local={b"doc": b"1"}))
    survivor = store.crash()
    assert by_seq(survivor.view()) == [(b"a", 1)]
    assert survivor.local(b"doc") is None


def test_a_power_loss_takes_nothing_back_when_commits_are_synced() -> None:
    store = MemoryStore()
    store.commit(write(live(b"a", 1)))
    store.commit(write(live(b"b", 2)))
    assert by_seq(store.crash().view()) == [(b"a", 1), (b"b", 2)]


def test_the_end_of_a_process_leaves_unsynced_commits_open_to_a_power_loss() -> None:
    store = MemoryStore(sync=False)
    store.commit(write(live(b"a", 1)))
    reopened = store.reopened()
    assert by_seq(reopened.view()) == [(b"a", 1)]
    assert by_seq(reopened.crash().view()) == []


def test_a_survivor_goes_on_by_itself() -> None:
    store = MemoryStore()
    store.commit(write(live(b"a", 1)))
    survivor = store.crash()
    assert store.closed
    survivor.commit(write(live(b"a", 2)))
    assert by_seq(survivor.view()) == [(b"a", 2)]


@pytest.mark.parametrize(
    "refused",
    [
        [change_of(0, header(9), [live(b"x", 8), Item(b"y", None, 0, 0, 1, 9, 1)])],
        [change_of(0, header(9), [live(b"x", 8), live(b"x", 9)])],
        [change_of(0, header(9), [live(b"x", 9), live(b"y", 8)])],
        [change_of(0, header(9), [live(b"x", 8), live(b"y", 8)])],
        [change_of(0, header(9), [live(b"x", 0)])],
        [change_of(0, header(8), [live(b"x", 8)]), change_of(0, header(9))],
        [change_of(1024, header(8), [live(b"x", 8)])],
        [change_of(-1, header(8))],
    ],
    ids=[
        "live without value",
        "key twice",
        "seqnos fall",
        "seqno twice",
        "seqno 0",
        "vBucket twice",
        "vBucket 1024",
        "vBucket -1",
    ],
)
def test_a_malformed_batch_is_refused_and_changes_nothing(refused: list[VBucketChange]) -> None:
    store = MemoryStore()
    store.commit(write(live(b"a", 1)))
    before = store.view()
    with pytest.raises(StoreError):
        store.commit(
            CommitBatch(
                [change_of(1, header(1), [live(b"other", 1)]), *refused],
                local={b"doc": b"1"},
                reset_all=True,
            )
        )
    after = store.view()
    assert contents(after, [0, 1]) == contents(before, [0, 1])
    assert store.local(b"doc") is None
    before.close()
    after.close()
