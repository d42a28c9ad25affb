"""Get-and-lock: who may change a locked document, and when the lock is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contents import table_of
from tests.engine.support import FaultyStore, Node
from uprmc.engine.vbucket import StoreMode, VBucket
from uprmc.errors import (
    DeltaBadValue,
    KeyExists,
    KeyNotFound,
    Locked,
    NotLocked,
    NotResident,
    NotStored,
    StoreFull,
    TemporaryFailure,
)
from uprmc.model import CAS_LOCKED

WRITES: dict[str, Callable[[VBucket, int], object]] = {
    "set": lambda vbucket, cas: vbucket.store(b"k", b"8", 0, 0, cas),
    "replace": lambda vbucket, cas: vbucket.store(b"k", b"8", 0, 0, cas, mode=StoreMode.REPLACE),
    "append": lambda vbucket, cas: vbucket.extend(b"k", b"8", cas, front=False, limit_bytes=9),
    "delete": lambda vbucket, cas: vbucket.delete(b"k", cas),
    "incr": lambda vbucket, cas: vbucket.add_delta(b"k", 1, cas),
}
EVERY_WRITE = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


def locked(node: Node, seconds: int = 15, value: bytes = b"7") -> int:
    """Store and lock a document; return the lock's CAS."""
    node.set(b"k", value)
    _, cas = node.vbucket.lock(b"k", seconds)
    return cas


def test_a_lock_returns_the_document_and_a_cas_of_its_own(node: Node) -> None:
    stored = node.set(b"k")
    item, cas = node.vbucket.lock(b"k", 15)
    assert item == stored
    assert cas > stored.cas
    assert node.vbucket.high_seqno == 1, "a lock is no change"


def test_nothing_can_be_locked_where_nothing_is(node: Node) -> None:
    with pytest.raises(KeyNotFound):
        node.vbucket.lock(b"k", 15)
    node.set(b"k")
    node.flush()
    node.eject(b"k")
    with pytest.raises(NotResident):
        node.vbucket.lock(b"k", 15)
    assert not node.vbucket.locks


def test_a_locked_document_cannot_be_locked_again(node: Node) -> None:
    locked(node)
    with pytest.raises(Locked):
        node.vbucket.lock(b"k", 15)


@EVERY_WRITE
def test_nobody_else_may_change_a_locked_document(
    node: Node, write: Callable[[VBucket, int], object]
) -> None:
    cas = locked(node)
    before = table_of(node.vbucket)[b"k"]
    for other in (0, before.cas, cas + 1):
        with pytest.raises(Locked):
            write(node.vbucket, other)
    with pytest.raises(Locked):
        node.vbucket.touch(b"k", 99)
    assert table_of(node.vbucket)[b"k"] == before
    assert node.vbucket.high_seqno == 1


def test_add_of_a_locked_document_says_that_it_exists(node: Node) -> None:
    locked(node)
    with pytest.raises(KeyExists):
        node.vbucket.store(b"k", b"8", 0, 0, mode=StoreMode.ADD)


@EVERY_WRITE
def test_a_change_with_the_locks_cas_is_accepted_and_opens_the_lock(
    node: Node, write: Callable[[VBucket, int], object]
) -> None:
    cas = locked(node)
    write(node.vbucket, cas)
    assert not node.vbucket.locks
    assert node.vbucket.high_seqno == 2
    node.vbucket.store(b"k", b"free", 0, 0)
    node.check()


@EVERY_WRITE
def test_a_lock_lapses_by_itself(node: Node, write: Callable[[VBucket, int], object]) -> None:
    locked(node, seconds=15)
    node.clock.advance(14.9)
    with pytest.raises(Locked):
        write(node.vbucket, 0)
    node.clock.advance(0.1)
    write(node.vbucket, 0)
    assert not node.vbucket.locks


@pytest.mark.parametrize("step_s", [-3_600, 3_600])
def test_a_step_of_the_wall_clock_neither_prolongs_nor_ends_a_lock(node: Node, step_s: int) -> None:
    locked(node, seconds=15)
    node.clock.step(step_s)
    node.clock.advance(14.9)
    with pytest.raises(Locked):
        node.vbucket.store(b"k", b"foreign", 0, 0)
    node.clock.advance(0.1)
    node.vbucket.store(b"k", b"w", 0, 0)


def test_a_lapsed_locks_cas_opens_nothing_and_matches_nothing(node: Node) -> None:
    cas = locked(node)
    node.clock.advance(15)
    with pytest.raises(KeyExists):
        node.vbucket.store(b"k", b"late", 0, 0, cas=cas)
    with pytest.raises(NotLocked):
        node.vbucket.unlock(b"k", cas)


def test_unlocking_needs_the_locks_cas(node: Node) -> None:
    cas = locked(node)
    for other in (0, cas + 1, table_of(node.vbucket)[b"k"].cas):
        with pytest.raises(NotLocked):
            node.vbucket.unlock(b"k", other)
    node.vbucket.unlock(b"k", cas)
    with pytest.raises(NotLocked):
        node.vbucket.unlock(b"k", cas)
    node.vbucket.store(b"k", b"free", 0, 0)


def test_unlocking_what_is_not_there_misses(node: Node) -> None:
    with pytest.raises(KeyNotFound):
        node.vbucket.unlock(b"k", 1)


def test_readers_of_a_locked_document_see_its_value_and_a_masked_cas(node: Node) -> None:
    cas = locked(node)
    node.set(b"other")
    item, other = node.vbucket.get(b"k"), node.vbucket.get(b"other")
    assert item is not None
    assert other is not None
    assert item.value == b"7"
    assert node.vbucket.visible_cas(item.key, item.cas) == CAS_LOCKED
    assert node.vbucket.visible_cas(other.key, other.cas) == other.cas
    node.vbucket.unlock(b"k", cas)
    assert node.vbucket.visible_cas(item.key, item.cas) == item.cas


def test_the_mask_falls_when_the_lock_lapses(node: Node) -> None:
    locked(node)
    item = table_of(node.vbucket)[b"k"]
    node.clock.advance(15)
    assert node.vbucket.visible_cas(item.key, item.cas) == item.cas


# A refused command leaves no trace: not on the lock either.


def test_a_refused_append_with_the_locks_cas_leaves_the_lock(node: Node) -> None:
    cas = locked(node)
    with pytest.raises(NotStored):
        node.vbucket.extend(b"k", b"too long", cas, front=False, limit_bytes=5)
    with pytest.raises(Locked):
        node.set(b"k")


def test_a_refused_incr_with_the_locks_cas_leaves_the_lock(node: Node) -> None:
    cas = locked(node, value=b"no number")
    with pytest.raises(DeltaBadValue):
        node.vbucket.add_delta(b"k", 1, cas)
    with pytest.raises(Locked):
        node.set(b"k")


@pytest.mark.parametrize("name", ["set", "append", "incr", "delete"])
def test_a_write_that_the_disk_refuses_leaves_the_lock(name: str) -> None:
    store = FaultyStore()
    node = Node(store=store)
    cas = locked(node)
    node.fail_flush(StoreFull("disk full"))
    with pytest.raises(TemporaryFailure):
        WRITES[name](node.vbucket, cas)
    node.flush()
    with pytest.raises(Locked):
        node.set(b"k")
    WRITES[name](node.vbucket, cas)


# A lock belongs to one document: it ends with it.


@pytest.mark.parametrize("mode", [StoreMode.SET, StoreMode.ADD])
def test_a_document_made_after_the_locked_one_expired_is_not_locked(node: Node, mode: int) -> None:
    node.set(b"k", expiry=int(node.clock.now()) + 5)
    node.vbucket.lock(b"k", 15)
    node.clock.advance(5)
    fresh = node.vbucket.store(b"k", b"fresh", 0, 0, mode=mode)
    assert node.vbucket.visible_cas(fresh.key, fresh.cas) == fresh.cas
    node.set(b"k", b"again")


def test_deleting_and_expiring_end_a_lock(node: Node) -> None:
    cas = locked(node)
    node.vbucket.delete(b"k", cas)
    node.set(b"k", expiry=int(node.clock.now()) + 1)
    node.vbucket.lock(b"k", 15)
    node.clock.advance(1)
    assert node.vbucket.get(b"k") is None
    assert not node.vbucket.locks


def test_a_flush_of_everything_ends_all_locks(node: Node) -> None:
    locked(node)
    node.bucket.flush(0, lambda _: None)
    node.set(b"k")
    node.check()
