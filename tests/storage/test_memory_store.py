"""The reference model keeps the contract, and forgets at a power loss what was not synced."""

from __future__ import annotations

from pathlib import Path

from tests.contracts.store_contract import StoreContract
from tests.contracts.store_values import by_seq, live, write
from uprmc.storage.interface import Batch, Store
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
    store.commit(Batch(local={b"doc": b"1"}))
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
