"""Warm-up: what a node knows again after a restart, and when it admits that some may be lost."""

from __future__ import annotations

import pytest

from tests.contents import table_of
from tests.engine.support import (
    BEGINNING,
    CountingEntropy,
    FaultyStore,
    ManualClock,
    Node,
    settings_of,
)
from uprmc.engine.bucket import Bucket
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES
from uprmc.engine.warmup import Warmup, WarmupState
from uprmc.errors import NotResident, StoreError, TemporaryFailure
from uprmc.model import VBucketState
from uprmc.record import RECORD_OVERHEAD_BYTES
from uprmc.storage.interface import CLEAN_MARK


def filled(count: int = 50, vbuckets: int = 2) -> Node:
    node = Node(settings_of(vbuckets=vbuckets))
    for number in range(count):
        node.bucket.vbuckets[number % vbuckets].store(b"%03d" % number, b"v%d" % number, number, 0)
    node.flush()
    return node


# --- a new data directory -------------------------------------------------------------------------


def test_a_new_node_makes_its_vbuckets_and_stores_them() -> None:
    node = Node(settings_of(vbuckets=8))
    assert node.warmup.was_clean
    assert [vbucket.state for vbucket in node.bucket.active.values()] == [VBucketState.ACTIVE] * 8
    uuids = {vbucket.failover_log[0].uuid for vbucket in node.bucket.vbuckets.values()}
    assert len(uuids) == 8
    for number, vbucket in node.bucket.vbuckets.items():
        assert node.header(number).failover_log == vbucket.failover_log
    node.check()


# --- what comes back ------------------------------------------------------------------------------


def test_everything_that_was_stored_comes_back() -> None:
    node = filled()
    for key in (b"000", b"001"):
        node.bucket.vbuckets[int(key) % 2].delete(key)
    node.stop()
    after = node.restarted()
    for number, vbucket in after.bucket.vbuckets.items():
        before = node.bucket.vbuckets[number]
        assert table_of(vbucket) == table_of(before)
        assert vbucket.high_seqno == vbucket.persisted_seqno == before.high_seqno
        assert vbucket.failover_log == before.failover_log
        assert vbucket.max_deleted_rev == before.max_deleted_rev
    assert after.bucket.account.used == node.bucket.account.used
    assert (after.warmup.keys, after.warmup.values, after.warmup.records) == (50, 48, 50)
    after.check()


def test_tombstones_are_not_loaded() -> None:
    node = filled(vbuckets=1)
    node.vbucket.delete(b"000")
    node.stop()
    after = node.restarted()
    assert after.vbucket.table.find(b"000") is None
    assert after.vbucket.table.tombstones == 0
    assert len(after.stored()) == 50


def test_the_next_seqno_follows_the_last_stored_one() -> None:
    node = filled(vbuckets=1)
    node.vbucket.delete(b"007")
    node.stop()
    after = node.restarted()
    assert after.set(b"new").seqno == 52
    after.flush()
    after.check()


def test_states_of_vbuckets_come_back() -> None:
    node = filled(vbuckets=4)
    for vbucket, state in zip(node.bucket.vbuckets.values(), VBucketState, strict=True):
        vbucket.state = state
        vbucket.change_header()
    node.stop()
    after = node.restarted()
    assert [vbucket.state for vbucket in after.bucket.vbuckets.values()] == list(VBucketState)
    assert list(after.bucket.active) == [0]


def test_an_expired_document_is_loaded_and_then_missed() -> None:
    node = Node()
    node.set(b"k", expiry=int(BEGINNING) + 10)
    node.stop()
    node.clock.advance(10)
    after = node.restarted()
    assert after.vbucket.get(b"k") is None
    after.check()


# --- CAS ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["set", "delete"])
def test_cas_never_goes_back_though_the_clock_does(last: str) -> None:
    node = Node()
    newest = node.set(b"k")
    for _ in range(10):
        newest = node.set(b"k")
    if last == "delete":
        newest = node.vbucket.delete(b"k")
    node.stop()
    node.clock.step(-1_000_000)
    after = node.restarted()
    assert after.set(b"new").cas > newest.cas


def test_cas_given_out_and_lost_in_a_crash_is_not_given_out_again() -> None:
    node = Node()
    lost = node.set(b"k")
    node.clock.advance(1)
    assert node.restarted().set(b"k").cas > lost.cas


# --- order ----------------------------------------------------------------------------------------


def test_keys_come_before_values_and_traffic_comes_last() -> None:
    node = filled(count=3_500, vbuckets=1)
    node.stop()
    low_mark = 3_500 * (2 * 4 + RECORD_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES) + 5_000
    memory = {"quota": 4 * low_mark, "low_mark": 0.25, "high_mark": 0.5}
    settings = settings_of(vbuckets=1, memory=memory)
    bucket = Bucket(settings, node.store.reopened(), node.clock, CountingEntropy())
    warmup = Warmup(bucket)
    assert warmup.share == 0.0
    seen: list[WarmupState] = [warmup.state]
    shares: list[float] = []
    for _ in warmup.steps():
        seen.append(warmup.state)
        shares.append(warmup.share)
        with pytest.raises(TemporaryFailure):
            bucket.locate(0)
        vbucket = bucket.vbuckets[0]
        if warmup.state is WarmupState.KEY_DUMP:
            assert all(item.value is None for item in table_of(vbucket).values())
        if warmup.state is WarmupState.LOAD_VALUES:
            assert len(table_of(vbucket)) == 3_500
    order = [state for index, state in enumerate(seen) if state not in seen[:index]]
    assert order == list(WarmupState)[:-1]
    assert shares == sorted(shares)
    assert (warmup.state, warmup.share) == (WarmupState.DONE, 1.0)
    assert bucket.locate(0).item_count == 3_500


def test_what_certainly_fits_is_read_once() -> None:
    node = filled(count=3_500, vbuckets=1)
    node.stop()
    store = node.store.reopened()
    bucket = Bucket(node.settings, store, node.clock, CountingEntropy())
    warmup = Warmup(bucket)
    states = {warmup.state for _ in warmup.steps()}
    assert WarmupState.KEY_DUMP not in states
    assert (warmup.keys, warmup.values) == (3_500, 3_500)
    vbucket = bucket.vbuckets[0]
    vbucket.check()
    assert vbucket.item_count == 3_500
    assert bucket.account.used == vbucket.table.memory_bytes()


def test_values_are_loaded_up_to_the_low_mark_and_the_others_when_asked_for() -> None:
    node = Node()
    for number in range(100):
        node.set(b"%03d" % number, bytes(1_000))
    node.stop()
    low_mark = 100 * (2 * 3 + RECORD_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES) + 30_000
    quota = {"quota": 4 * low_mark, "low_mark": 0.25, "high_mark": 0.5}
    after = Node(settings_of(memory=quota), store=node.store.reopened(), clock=node.clock)
    assert after.bucket.account.low_mark == low_mark
    assert low_mark < after.bucket.account.used <= low_mark + 1_000
    assert after.vbucket.item_count == 100
    assert after.vbucket.table.absent == 100 - after.warmup.values == 69
    with pytest.raises(NotResident):
        after.vbucket.get(b"099")
    assert after.fetch(b"099")
    assert after.vbucket.get(b"099") is not None
    after.check()


def test_warm_up_lets_go_of_its_view() -> None:
    node = filled()
    node.stop()
    after = node.restarted()
    assert after.store.grow()


def test_a_warm_up_that_is_abandoned_lets_go_of_its_view() -> None:
    node = filled(count=2_500, vbuckets=1)
    store = node.store.reopened()
    bucket = Bucket(node.settings, store, node.clock, CountingEntropy())
    steps = Warmup(bucket).steps()
    next(steps)
    next(steps)
    assert not store.grow()
    steps.close()
    assert store.grow()


def test_a_store_that_cannot_be_written_ends_the_start() -> None:
    store = FaultyStore()
    store.refusal = StoreError("read-only")
    bucket = Bucket(settings_of(), store, ManualClock(), CountingEntropy())
    with pytest.raises(StoreError, match="read-only"):
        list(Warmup(bucket).steps())
    with pytest.raises(TemporaryFailure):
        bucket.locate(0)


# --- D11: clean and unclean -----------------------------------------------------------------------


@pytest.mark.acceptance("D11")
def test_an_orderly_stop_adds_no_failover_entry_and_an_unclean_one_adds_one() -> None:
    node = filled(vbuckets=2)
    log = node.vbucket.failover_log
    node.stop()
    node = node.restarted()
    assert node.warmup.was_clean
    assert node.vbucket.failover_log == log
    for crashes in range(1, 4):
        node.set(b"written")
        node.flush()
        high = node.vbucket.persisted_seqno
        node.set(b"lost")
        node = node.restarted()
        assert not node.warmup.was_clean
        assert node.vbucket.find(b"lost") is None
        assert node.vbucket.failover_log[0].seqno == high
        assert len(node.vbucket.failover_log) == len(log) + crashes
        assert node.header().failover_log == node.vbucket.failover_log, (
            "before any client is let in"
        )
    node.stop()
    log = node.vbucket.failover_log
    assert node.restarted().vbucket.failover_log == log


@pytest.mark.acceptance("D11")
def test_the_clean_mark_is_gone_while_the_node_runs() -> None:
    node = filled()
    assert node.store.local(CLEAN_MARK) is None
    node.stop()
    assert node.store.local(CLEAN_MARK) is not None
    after = node.restarted()
    assert after.store.local(CLEAN_MARK) is None


@pytest.mark.acceptance("D11")
def test_a_crash_during_warm_up_counts_as_unclean() -> None:
    node = filled(vbuckets=1)
    node.stop()
    log = node.vbucket.failover_log
    store = node.store.reopened()
    bucket = Bucket(node.settings, store, node.clock, node.entropy)
    next(Warmup(bucket).steps())
    after = Node(node.settings, store=store.reopened(), clock=node.clock, entropy=node.entropy)
    assert not after.warmup.was_clean
    assert after.vbucket.failover_log[1:] == log


@pytest.mark.acceptance("D11")
def test_a_replica_adds_no_entry_of_its_own() -> None:
    node = filled(vbuckets=2)
    node.vbucket.state = VBucketState.REPLICA
    node.vbucket.change_header()
    node.flush()
    after = node.restarted()
    assert after.vbucket.failover_log == node.vbucket.failover_log
    assert len(after.bucket.vbuckets[1].failover_log) == 2


@pytest.mark.acceptance("D11")
def test_the_failover_log_stays_within_its_limit_whatever_crashes() -> None:
    node = Node(settings_of(engine={"max_failover_entries": 5}))
    for _ in range(12):
        node.set(b"k")
        node.flush()
        node = node.restarted()
    log = node.vbucket.failover_log
    assert [entry.seqno for entry in log] == [12, 11, 10, 9, 8]
    assert len({entry.uuid for entry in log}) == 5
