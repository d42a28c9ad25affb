"""Snapshot leases: the same reading again and again, for a limited time, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.readings import judge
from tests.engine.support import Node, settings_of
from uprmc.config import UprSettings
from uprmc.engine.reading import EngineLease, Leases
from uprmc.engine.tombstones import PurgeRule
from uprmc.errors import (
    CommandError,
    InvalidArguments,
    KeyNotFound,
    NotMyVBucket,
    StoreError,
    TemporaryFailure,
)
from uprmc.model import Item, SnapshotRange, VBucketHeader, VBucketState
from uprmc.storage.memory import MemoryView


class Rig:
    """A node with two vBuckets, half persisted, and its leases."""

    def __init__(self, **settings: Any) -> None:
        self.node = Node(settings_of(2))
        self.accepted = {number: self.fill(number) for number in (0, 1)}
        self.node.flush()
        for number in (0, 1):
            self.accepted[number] += self.fill(number)
        self.leases = Leases(self.node.bucket, replace(UprSettings(), **settings))

    def fill(self, number: int) -> list[Item]:
        vbucket = self.node.bucket.vbuckets[number]
        items = [vbucket.store(b"%03d" % each, b"v", 0, 0) for each in range(5)]
        return [*items, vbucket.delete(b"002")]

    def acquire(self, *numbers: int, lifetime_s: int = 60) -> EngineLease:
        return self.leases.acquire(numbers, lifetime_s)[0]

    def nothing_is_held(self) -> bool:
        queues = [vbucket.queue for vbucket in self.node.bucket.vbuckets.values()]
        return self.node.store.grow() and not any(q.open_views or q.retired for q in queues)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def contents(lease: EngineLease) -> dict[int, list[Item]]:
    return {number: list(reading.changes(0)) for number, reading in lease.readings.items()}


def write_more(rig: Rig) -> None:
    rig.fill(0)


def flush_to_disk(rig: Rig) -> None:
    rig.fill(1)
    rig.node.flush()


def flush_all(rig: Rig) -> None:
    rig.node.bucket.flush(0, lambda _: None)
    rig.node.flush()


def remove(rig: Rig) -> None:
    rig.node.bucket.set_state(0, VBucketState.DEAD)
    rig.node.bucket.remove(0, lambda _: None)
    rig.node.flush()


def remove_and_make_again(rig: Rig) -> None:
    remove(rig)
    rig.node.bucket.set_state(0, VBucketState.ACTIVE)
    rig.fill(0)
    rig.node.flush()


def purge(rig: Rig) -> None:
    rig.node.flush()
    bucket = rig.node.bucket
    bucket.vbuckets[0].store(b"last", b"", 0, 0)
    rig.node.flush()
    bucket.compact(0, PurgeRule(every=True), lambda _: None)
    while bucket.compactor.waiting:
        look = bucket.compactor.begin()
        assert look is not None
        bucket.compactor.read(look)
        bucket.compactor.finish(look)
    rig.node.flush()
    assert b"002" not in rig.node.stored(0)


def change_state(rig: Rig) -> None:
    rig.node.bucket.set_state(0, VBucketState.REPLICA)
    rig.node.bucket.set_state(0, VBucketState.ACTIVE)


@pytest.mark.acceptance("D40", "P13")
@pytest.mark.parametrize(
    "meanwhile",
    [write_more, flush_to_disk, flush_all, remove, remove_and_make_again, purge, change_state],
)
def test_a_lease_reads_the_same_whatever_happens_meanwhile(
    rig: Rig, meanwhile: Callable[[Rig], None]
) -> None:
    lease = rig.acquire()
    first = contents(lease)
    for number, items in first.items():
        reading = lease.readings[number]
        judge(items, rig.accepted[number], 0, 12, 0)
        assert (reading.end_seqno, reading.purge_seqno) == (12, 0)
    meanwhile(rig)
    assert contents(lease) == first
    assert contents(lease) == first, "and once more"
    rig.leases.release(lease.id)
    assert rig.nothing_is_held()


def test_half_a_reading_does_not_disturb_another(rig: Rig) -> None:
    lease = rig.acquire(0)
    one, other = lease.readings[0].changes(0), lease.readings[0].changes(0)
    taken = [next(one), next(one)]
    assert list(other) == taken + list(one)
    rig.leases.release(lease.id)


def test_without_numbers_it_holds_all_active_vbuckets(rig: Rig) -> None:
    rig.node.bucket.set_state(1, VBucketState.REPLICA)
    assert list(rig.acquire().readings) == [0]
    assert list(rig.acquire(1, 0).readings) == [0, 1]


def test_it_says_what_history_it_holds(rig: Rig) -> None:
    vbucket = rig.node.bucket.vbuckets[0]
    log = vbucket.failover_log
    lease = rig.acquire(0)
    change_state(rig)
    assert vbucket.failover_log != log
    assert lease.holdings[0] == (log, 12, 0)
    assert lease.readings[0].uuid == log[0].uuid


def test_one_view_of_the_store_serves_all_of_a_lease() -> None:
    rig = Rig()
    opened = []
    view = rig.node.store.view
    rig.node.store.view = lambda: opened.append(view()) or opened[-1]  # type: ignore[method-assign, func-returns-value]
    rig.acquire(0, 1)
    assert len(opened) == 1


def test_what_the_store_still_holds_of_a_former_history_is_not_in_it(rig: Rig) -> None:
    rig.node.bucket.flush(0, lambda _: None)
    fresh = rig.node.bucket.vbuckets[0].store(b"fresh", b"v", 0, 0)
    assert contents(rig.acquire(0, 1)) == {0: [fresh], 1: []}


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "lifetime_s", "error"),
    [
        ((0, 0), 60, InvalidArguments),
        ((0,), 0, InvalidArguments),
        ((2,), 60, NotMyVBucket),
        ((0, 65_535), 60, NotMyVBucket),
    ],
)
def test_what_cannot_be_leased_is_refused_and_nothing_is_held(
    rig: Rig, numbers: tuple[int, ...], lifetime_s: int, error: type[CommandError]
) -> None:
    with pytest.raises(error):
        rig.leases.acquire(numbers, lifetime_s)
    assert (rig.leases.granted, rig.leases.open) == (0, {})
    assert rig.nothing_is_held()


@pytest.mark.parametrize(
    ("limit", "spare", "granted"), [(4, 2, 2), (4, 9, 1), (2, 1, 1), (1, 2, 1)]
)
def test_who_spares_leases_for_others_gets_none_of_the_last_ones(
    limit: int, spare: int, granted: int
) -> None:
    rig = Rig(leases=limit)
    for _ in range(granted):
        rig.leases.acquire([0], 60, spare=spare)
    with pytest.raises(TemporaryFailure, match="stay free for others"):
        rig.leases.acquire([0], 60, spare=spare)
    for _ in range(limit - granted):
        rig.acquire(0)
    with pytest.raises(TemporaryFailure, match=f"there are {limit} leases already"):
        rig.acquire(0)


@pytest.mark.parametrize("state", [VBucketState.PENDING, VBucketState.DEAD])
def test_a_vbucket_that_serves_nobody_cannot_be_leased(rig: Rig, state: VBucketState) -> None:
    rig.node.bucket.set_state(1, state)
    with pytest.raises(NotMyVBucket):
        rig.acquire(0, 1)
    assert rig.nothing_is_held()


def test_half_a_snapshot_is_not_leased(rig: Rig) -> None:
    rig.node.bucket.set_state(1, VBucketState.REPLICA)
    rig.node.bucket.vbuckets[1].receiving = SnapshotRange(12, 20)
    with pytest.raises(TemporaryFailure):
        rig.acquire(1)
    rig.node.bucket.vbuckets[1].receiving = None
    assert rig.acquire(1).readings[1].end_seqno == 12


def test_during_warm_up_nothing_is_leased(rig: Rig) -> None:
    rig.node.bucket.shut_traffic_out()
    with pytest.raises(TemporaryFailure):
        rig.acquire()


def test_there_are_only_so_many_at_a_time() -> None:
    rig = Rig(leases=2)
    first, _ = rig.acquire(0), rig.acquire(0)
    with pytest.raises(TemporaryFailure):
        rig.acquire(0)
    rig.leases.release(first.id)
    rig.acquire(0)
    assert (rig.leases.granted, len(rig.leases.open)) == (3, 2)


class UnreadableView(MemoryView):
    """Reads one header and no second."""

    headers_left = 1

    def header(self, vbucket: int) -> VBucketHeader | None:
        if not self.headers_left:
            raise StoreError("a bad sector")
        self.headers_left -= 1
        return super().header(vbucket)


def test_a_store_that_cannot_be_read_half_way_leaves_nothing_held(rig: Rig) -> None:
    store = rig.node.store
    view = UnreadableView(store, store._state)
    store.view = lambda: view  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        rig.acquire(0, 1)
    with pytest.raises(StoreError):
        view.count()  # it was closed
    assert rig.leases.open == {}
    assert rig.nothing_is_held()


# --- ends -----------------------------------------------------------------------------------------


def test_it_ends_by_the_clock(rig: Rig) -> None:
    short, long = rig.acquire(0, lifetime_s=10), rig.acquire(0, lifetime_s=11)
    rig.node.clock.advance(9.9)
    rig.leases.tick()
    assert list(rig.leases.open) == [short.id, long.id]
    rig.node.clock.advance(0.1)
    rig.leases.tick()
    assert list(rig.leases.open) == [long.id]
    assert rig.leases.expired == 1
    with pytest.raises(KeyNotFound):
        rig.leases.find(short.id)
    assert rig.leases.find(long.id) is long


@pytest.mark.parametrize("step_s", [-3_600, 3_600])
def test_a_step_of_the_wall_clock_neither_prolongs_nor_ends_it(rig: Rig, step_s: int) -> None:
    lease = rig.acquire(0, lifetime_s=10)
    rig.node.clock.step(step_s)
    rig.node.clock.advance(9.9)
    rig.leases.tick()
    assert rig.leases.find(lease.id) is lease
    rig.node.clock.advance(0.1)
    rig.leases.tick()
    assert not rig.leases.open


def test_a_lifetime_beyond_the_limit_is_cut_to_it() -> None:
    rig = Rig(lease_max_s=30)
    lease, granted_s = rig.leases.acquire([0], 1_000)
    assert granted_s == 30
    assert lease.expires_at == rig.node.clock.monotonic() + 30
    assert rig.leases.renew(lease.id, 2**32 - 1) == 30


def test_renewed_it_lives_for_so_long_from_now(rig: Rig) -> None:
    lease = rig.acquire(0, lifetime_s=10)
    rig.node.clock.advance(9)
    assert rig.leases.renew(lease.id, 5) == 5
    rig.node.clock.advance(4)
    rig.leases.tick()
    assert rig.leases.find(lease.id) is lease
    rig.node.clock.advance(1)
    rig.leases.tick()
    assert rig.leases.open == {}
    for use in (lambda: rig.leases.renew(lease.id, 5), lambda: rig.leases.release(lease.id)):
        with pytest.raises(KeyNotFound):
            use()


def test_a_renewal_without_a_lifetime_is_refused_and_changes_nothing(rig: Rig) -> None:
    lease = rig.acquire(0)
    until = lease.expires_at
    with pytest.raises(InvalidArguments):
        rig.leases.renew(lease.id, 0)
    assert lease.expires_at == until


def test_when_the_store_must_grow_all_of_them_go(rig: Rig) -> None:
    rig.acquire(0)
    rig.acquire(0, 1)
    assert not rig.node.store.grow()
    rig.leases.release_views()
    assert (rig.leases.open, rig.leases.withdrawn, rig.leases.expired) == ({}, 2, 0)
    assert rig.nothing_is_held()


def release(rig: Rig, lease: EngineLease) -> None:
    rig.leases.release(lease.id)


def expire(rig: Rig, lease: EngineLease) -> None:
    rig.node.clock.advance(60)
    rig.leases.tick()


def withdraw(rig: Rig, lease: EngineLease) -> None:
    rig.leases.release_views()


@pytest.mark.parametrize("end", [release, expire, withdraw])
def test_readers_are_told_once_before_it_is_closed(
    rig: Rig, end: Callable[[Rig, EngineLease], None]
) -> None:
    lease = rig.acquire(0)
    told: list[object] = []

    def leave() -> None:
        """Read on for the last time, and go, as a stream does."""
        told.append(len(list(lease.readings[0].changes(0))))
        lease.readers.pop(leave, None)

    gone: list[object] = []
    stays = lambda: gone.append("told")  # noqa: E731
    lease.readers = {leave: None, stays: None}
    end(rig, lease)
    assert (told, gone) == ([5], ["told"])
    assert lease.readers == {}
    lease.close()
    assert (told, gone) == ([5], ["told"])
    assert rig.nothing_is_held()


def test_reading_on_from_a_lease_that_has_ended_is_a_store_error(rig: Rig) -> None:
    lease = rig.acquire(0)
    changes = lease.readings[0].changes(0)
    next(changes)
    rig.leases.release(lease.id)
    with pytest.raises(StoreError):
        list(changes)


@pytest.mark.usefixtures("no_collector")
def test_what_only_a_lease_held_is_freed_with_it(rig: Rig) -> None:
    vbucket = rig.node.bucket.vbuckets[0]
    lease = rig.acquire(0)
    for _ in range(1_000):
        rig.fill(0)
    assert 0 < vbucket.queue.retired <= 6, "what it sees, however often that was replaced since"
    rig.leases.release(lease.id)
    assert vbucket.queue.retired == 0
    assert rig.nothing_is_held()
