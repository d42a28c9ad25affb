"""Memory: values are shared and freed by their last holder, the account is right, limits refuse."""

from __future__ import annotations

import sys

import pytest

from tests.contents import table_of
from tests.engine.support import FaultyStore, Node, settings_of
from uprmc.config import MemorySettings
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES, Leftovers, MemoryAccount
from uprmc.errors import KeyNotFound, OutOfMemory, StoreError, StoreFull, TemporaryFailure
from uprmc.model import VBucketState
from uprmc.record import RECORD_OVERHEAD_BYTES, pack, unpack

SMALL_QUOTA = 100_000

#: What a document costs beside its value and twice its key.
_FIXED_BYTES = RECORD_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES

#: References to a record that only a test holds: its variable, and the call that counts.
_MINE = 2


@pytest.fixture
def small() -> Node:
    """A node with a quota of 100,000 bytes."""
    return Node(settings_of(memory={"quota": SMALL_QUOTA}))


def filled_up(node: Node) -> int:
    """Write until memory is short; return how many documents went in."""
    account = node.bucket.account
    count = 0
    while account.used <= account.write_limit:
        node.set(b"k%d" % count, bytes(1_000))
        count += 1
    with pytest.raises(TemporaryFailure):
        node.set(b"one too many", bytes(1_000))
    return count


# --- D09 ------------------------------------------------------------------------------------------


@pytest.mark.acceptance("D09")
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("how", ["set", "delete", "append", "flush_all", "expire"])
def test_a_reader_keeps_the_old_bytes_and_frees_them_by_letting_go(node: Node, how: str) -> None:
    node.set(b"k", bytes(range(200)), expiry=int(node.clock.now()) + 100)
    reader = node.vbucket.table.get(b"k")
    if how == "set":
        node.set(b"k", b"new")
    elif how == "delete":
        node.vbucket.delete(b"k")
    elif how == "append":
        node.vbucket.extend(b"k", b"more", 0, front=False, limit_bytes=1_000)
    elif how == "expire":
        node.clock.advance(100)
        assert node.vbucket.get(b"k") is None
    else:
        node.bucket.flush(0, lambda _: None)
        for _ in node.bucket.account.leftovers.steps():
            pass
    assert reader is not None
    assert unpack(reader).value == bytes(range(200))
    assert sys.getrefcount(reader) == _MINE, "table and queue have let go already"


@pytest.mark.acceptance("D08", "D09")
@pytest.mark.usefixtures("no_collector")
def test_an_ejected_value_leaves_memory_although_its_queue_was_the_last_to_have_it() -> None:
    class Forgetful(FaultyStore):
        """A store whose values are elsewhere, as a real one's are."""

        def commit(self, batch: object) -> None:
            """Keep nothing."""

    node = Node(store=Forgetful())
    node.set(b"k", bytes(range(200)))
    record = node.vbucket.table.get(b"k")
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    del flush
    assert sys.getrefcount(record) == _MINE + 1
    node.eject(b"k")
    assert sys.getrefcount(record) == _MINE


@pytest.mark.acceptance("D09")
@pytest.mark.usefixtures("no_collector")
def test_a_version_under_way_to_the_disk_is_freed_when_it_has_arrived(node: Node) -> None:
    node.set(b"k", bytes(range(200)))
    record = node.vbucket.table.get(b"k")
    flush = node.begin()
    node.set(b"k", b"new")
    assert sys.getrefcount(record) > _MINE
    node.bucket.flusher.failed(flush, StoreError("it never arrived"))
    del flush
    node.flush()
    assert node.store.view().get(0, b"k") == node.vbucket.table.get(b"k")
    node.store.commits.clear()  # type: ignore[attr-defined]
    assert sys.getrefcount(record) == _MINE


# --- the account ----------------------------------------------------------------------------------


def test_each_document_costs_its_key_twice_its_value_and_a_fixed_overhead(node: Node) -> None:
    used = node.bucket.account.used
    assert used == 0
    node.set(b"key", b"value")
    assert node.bucket.account.used == 2 * 3 + 5 + _FIXED_BYTES
    node.set(b"key", b"longer value")
    assert node.bucket.account.used == 2 * 3 + 12 + _FIXED_BYTES
    node.flush()
    node.eject(b"key")
    assert node.bucket.account.used == 2 * 3 + _FIXED_BYTES
    node.vbucket.delete(b"key")
    assert node.bucket.account.used == 2 * 3 + _FIXED_BYTES, "the tombstone"
    node.flush()
    assert node.bucket.account.used == 0


def test_a_value_that_was_brought_back_is_counted_once(node: Node) -> None:
    node.set(b"k", bytes(500))
    node.flush()
    before = node.bucket.account.used
    node.eject(b"k")
    assert node.fetch(b"k")
    assert node.fetch(b"k")
    assert node.bucket.account.used == before
    node.check()


# --- limits ---------------------------------------------------------------------------------------


def test_writes_are_refused_above_the_mutation_limit_and_nothing_is_lost(small: Node) -> None:
    count = filled_up(small)
    account = small.bucket.account
    assert account.mutation_limit < account.used <= account.mutation_limit + 1_000 + 500
    assert small.vbucket.high_seqno == count
    assert account.refused_memory == 1
    for number in range(count):
        assert small.vbucket.get(b"k%d" % number) is not None
    small.check()


def test_every_write_that_needs_memory_is_refused_and_those_that_do_not_pass(small: Node) -> None:
    filled_up(small)
    vbucket = small.vbucket
    high = vbucket.high_seqno
    with pytest.raises(TemporaryFailure):
        vbucket.extend(b"k0", b"x", 0, front=False, limit_bytes=9_999)
    with pytest.raises(TemporaryFailure):
        vbucket.add_delta(b"new", 1, initial=1)
    assert vbucket.high_seqno == high
    vbucket.touch(b"k0", int(small.clock.now()) + 9)
    vbucket.delete(b"k1")
    assert vbucket.high_seqno == high + 2
    with pytest.raises(KeyNotFound):
        vbucket.delete(b"k1")


def test_an_item_that_could_never_fit_is_told_so(small: Node) -> None:
    filled_up(small)
    limit = small.bucket.account.mutation_limit
    with pytest.raises(OutOfMemory):
        small.set(b"k", bytes(limit - _FIXED_BYTES))
    with pytest.raises(TemporaryFailure):
        small.set(b"k", bytes(limit - _FIXED_BYTES - 1))


def test_a_refusal_asks_the_pager_to_start_and_writes_go_on_afterwards(small: Node) -> None:
    asked: list[None] = []
    small.bucket.account.on_pressure = lambda: asked.append(None)
    filled_up(small)
    assert len(asked) == 1
    small.flush()
    while small.bucket.evictor.run_slice():
        pass
    small.set(b"again", bytes(1_000))
    small.check()


def test_deleting_makes_room(small: Node) -> None:
    count = filled_up(small)
    for number in range(count // 2):
        small.vbucket.delete(b"k%d" % number)
    small.set(b"again", bytes(1_000))


def test_a_new_quota_moves_every_mark() -> None:
    shares = MemorySettings(quota=1_000, low_mark=0.5, high_mark=0.6, mutation_limit=0.7)
    account = MemoryAccount(shares)
    assert (account.low_mark, account.high_mark, account.write_limit) == (500, 600, 700)
    account.set_quota(2_000, shares)
    assert (account.low_mark, account.high_mark, account.write_limit) == (1_000, 1_200, 1_400)


def test_a_new_quota_does_not_let_writes_in_while_the_disk_refuses() -> None:
    shares = MemorySettings()
    account = MemoryAccount(shares)
    account.disk_failed("disk full")
    account.set_quota(2**40, shares)
    assert account.write_limit < 0
    account.disk_works()
    assert account.write_limit == account.mutation_limit


def test_a_disk_that_fails_without_a_reason_refuses_all_the_same(node: Node) -> None:
    node.set(b"k")
    node.fail_flush(StoreError())
    for write in (lambda: node.set(b"k"), lambda: node.vbucket.delete(b"k")):
        with pytest.raises(TemporaryFailure):
            write()
    assert node.bucket.account.disk_reason


def test_refusals_are_counted_by_their_reason(small: Node) -> None:
    filled_up(small)
    small.fail_flush(StoreFull("disk full"))
    with pytest.raises(TemporaryFailure, match="disk full"):
        small.set(b"k")
    assert (small.bucket.account.refused_memory, small.bucket.account.refused_disk) == (1, 1)


# --- what is freed little by little ---------------------------------------------------------------


def steps_of(leftovers: Leftovers) -> int:
    """Free everything; return how many steps it took."""
    return sum(1 for _ in leftovers.steps())


def test_tables_and_lists_are_freed_in_steps() -> None:
    leftovers = Leftovers()
    thing = object()
    before = sys.getrefcount(thing)
    leftovers.add(dict.fromkeys(range(1_200), thing))
    leftovers.add([thing] * 1_200)
    leftovers.add([])
    steps = leftovers.steps()
    next(steps)
    assert before + 1_500 < sys.getrefcount(thing) < before + 2_400
    leftovers.add({b"k": thing})  # while others are taken apart
    assert sum(1 for _ in steps) >= 5
    assert sys.getrefcount(thing) == before
    assert not leftovers


def test_after_a_flush_of_everything_memory_is_free_at_once_and_freed_later() -> None:
    node = Node(settings_of(vbuckets=2))
    for vbucket in node.bucket.vbuckets.values():
        for number in range(2_000):
            vbucket.store(b"%d" % number, b"v", 0, 0)
    node.bucket.flush(0, lambda _: None)
    node.check()
    assert node.bucket.account.used == 0
    assert node.bucket.total_item_count == 0
    node.set(b"new")
    assert steps_of(node.bucket.account.leftovers) > 4
    node.check()
    assert list(table_of(node.vbucket)) == [b"new"]


def test_the_short_way_finds_what_is_stored_after_a_reset() -> None:
    node = Node(settings_of())
    node.set(b"old")
    node.bucket.flush(0, lambda _: None)
    assert node.bucket.lookups[0](b"old") is None
    written = node.set(b"new")
    assert node.bucket.lookups[0](b"new") == pack(written)
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.vbucket.reset(7)
    assert node.bucket.lookups == {}
