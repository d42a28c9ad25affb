"""Tombstones that nobody needs go for good: which, when, and what a crash in between leaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contents import decoded, receive_all
from tests.engine.support import BEGINNING, FaultyStore, Node, settings_of
from uprmc.engine import purge
from uprmc.engine.purge import Scan
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.vbucket import Interruption
from uprmc.engine.watermarks.rows import Limit
from uprmc.errors import NotMyVBucket, StoreError, StoreFull, TemporaryFailure
from uprmc.model import Item, Life, SnapshotRange, VBucketState

ALL = PurgeRule(every=True)


def key_of(number: int) -> bytes:
    return b"%04d" % number


def deleted(count: int, *, kept: int = 1, node: Node | None = None) -> Node:
    """Return a node with persisted tombstones 0000, 0001, ... and then some documents."""
    node = node or Node()
    for number in range(count):
        node.set(key_of(number))
    for number in range(count):
        node.vbucket.delete(key_of(number))
    for number in range(kept):
        node.set(b"kept-%d" % number)
    node.flush()
    return node


def look(node: Node) -> Scan | None:
    """Do one look into the store, from its beginning to its end."""
    compactor = node.bucket.compactor
    scan = compactor.begin()
    if scan is not None:
        compactor.read(scan)
        compactor.finish(scan)
    return scan


def want(node: Node, rule: PurgeRule = ALL, number: int = 0) -> list[bool]:
    told: list[bool] = []
    node.bucket.compact(number, rule, told.append)
    return told


def compact(node: Node, rule: PurgeRule = ALL, number: int = 0) -> int:
    """Compact to the end; return how many commits that took."""
    told = want(node, rule, number)
    commits = 0
    while not told:
        while node.bucket.compactor.waiting:
            look(node)
        if node.bucket.flusher.pending:
            node.flush()
            commits += 1
    assert told == [True]
    node.check()
    return commits


# --- which ----------------------------------------------------------------------------------------


@pytest.mark.acceptance("X03", "X17")
def test_dropping_all_leaves_documents_and_raises_the_purge_seqno_to_the_highest_dropped() -> None:
    node = deleted(10)
    compact(node)
    assert list(node.stored()) == [b"kept-0"]
    assert node.vbucket.purge_seqno == node.header().purge_seqno == 20
    assert node.vbucket.high_seqno == node.header().high_seqno == 21


def test_the_newest_item_stays() -> None:
    node = deleted(10, kept=0)
    compact(node)
    assert list(node.stored()) == [b"0009"]
    assert node.vbucket.purge_seqno == 19


def test_the_newest_item_on_disk_stays_though_a_newer_one_waits() -> None:
    node = deleted(3, kept=0)
    node.set(b"queued")
    told = want(node)
    look(node)
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    assert list(node.stored()) == [b"0002", b"queued"]
    node.bucket.flusher.finish(flush)
    assert told == [True]


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (PurgeRule(), [1, 2, 3, 4]),
        (PurgeRule(before_s=int(BEGINNING) + 20), [3, 4]),
        (PurgeRule(before_s=int(BEGINNING) + 21), [4]),
        (PurgeRule(upto_seqno=6), [3, 4]),
        (PurgeRule(upto_seqno=5), [2, 3, 4]),
        (PurgeRule(int(BEGINNING) + 21, 6), [3, 4]),
        (PurgeRule(int(BEGINNING) + 10, 7), [2, 3, 4]),
        (PurgeRule(int(BEGINNING), 7), [1, 2, 3, 4]),
        (PurgeRule(2**64 - 1, 2**64 - 1), []),
        (PurgeRule(1, 1, every=True), []),
    ],
)
def test_what_goes_is_older_than_the_time_and_not_above_the_seqno(
    rule: PurgeRule, left: list[int]
) -> None:
    node = Node()
    for number in (1, 2, 3, 4):
        node.set(key_of(number))
    for number in (1, 2, 3, 4):  # seqnos 5 to 8, deleted at 0, 10, 20 and 30 seconds
        node.vbucket.delete(key_of(number))
        node.clock.advance(10)
    node.set(b"last")
    node.flush()
    compact(node, rule)
    assert list(node.stored()) == [*map(key_of, left), b"last"]
    dropped = {5, 6, 7, 8} - {number + 4 for number in left}
    assert node.vbucket.purge_seqno == max(dropped, default=0)


def test_expired_documents_leave_tombstones_that_go_like_others() -> None:
    node = Node()
    node.set(b"e", expiry=int(BEGINNING) + 1)
    node.set(b"last")
    node.clock.advance(2)
    assert node.vbucket.find(b"e") is None
    node.set(b"very last")
    node.flush()
    compact(node)
    assert list(node.stored()) == [b"last", b"very last"]


def test_documents_stay_however_old() -> None:
    node = Node()
    node.set(b"old", expiry=int(BEGINNING) + 5)
    node.set(b"last")
    node.flush()
    assert compact(node) == 0, "nothing to drop, nothing to commit"
    assert len(node.stored()) == 2
    assert node.vbucket.purge_seqno == 0


def test_what_is_not_on_disk_stays_in_memory_and_reaches_the_disk() -> None:
    node = deleted(2)
    node.set(b"fresh")
    node.vbucket.delete(b"fresh")
    node.set(b"last")
    compact(node)
    assert list(node.stored()) == [b"kept-0", b"fresh", b"last"]
    assert node.vbucket.purge_seqno == 4


def test_what_is_committed_but_not_settled_is_not_dropped_yet() -> None:
    node = deleted(2)
    node.set(b"fresh")
    node.vbucket.delete(b"fresh")
    node.set(b"last")
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    want(node)
    scan = node.bucket.compactor.begin()
    assert scan is not None
    node.bucket.compactor.read(scan)
    assert scan.found == [(b"0000", 3), (b"0001", 4)]


def test_nothing_of_a_half_received_snapshot_goes() -> None:
    node = deleted(3)
    node.vbucket.receiving = SnapshotRange(4, 50)
    compact(node)
    assert list(node.stored()) == [b"0001", b"0002", b"kept-0"]
    assert node.vbucket.purge_seqno == 4


def test_nothing_beyond_the_complete_part_of_a_long_flush_goes() -> None:
    node = Node(settings_of(flush={"batch_items": 64}))
    deleted(200, node=node)
    for number in range(200):
        node.set(key_of(number))
        node.vbucket.delete(key_of(number))
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert 401 < node.vbucket.persisted_seqno < 801
    want(node)
    scan = node.bucket.compactor.begin()
    assert scan is not None
    assert scan.limit == 401


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.acceptance("X22")
def test_a_replica_drops_nothing_that_its_source_may_still_have() -> None:
    node = Node()
    node.bucket.set_state(0, VBucketState.REPLICA)
    tombstones = [Item(b"%d" % n, None, 0, 1, n, n, 2, 0, Life.DELETED) for n in range(1, 5)]
    receive_all(
        node.vbucket, [*tombstones, Item(b"k", b"v", 0, 0, 5, 5, 1)], SnapshotRange(0, 5), 2
    )
    node.flush()
    compact(node)
    assert sorted(node.stored()) == [b"3", b"4", b"k"]
    assert node.vbucket.purge_seqno == 2


def test_nothing_above_the_purge_limit_goes_though_all_was_asked_for() -> None:
    node = deleted(10)
    node.bucket.purge_limit = lambda vbucket: Limit(13 if vbucket is node.vbucket else 0, None)
    compact(node)
    assert [key for key in node.stored() if key != b"kept-0"] == [key_of(n) for n in range(3, 10)]
    assert node.vbucket.purge_seqno == 13


def test_a_limit_that_sinks_while_the_store_is_read_is_heeded() -> None:
    node = deleted(10)
    told = want(node)
    scan = node.bucket.compactor.begin()
    assert scan is not None
    node.bucket.compactor.read(scan)
    node.bucket.purge_limit = lambda _: Limit(12, None)
    node.bucket.compactor.finish(scan)
    assert node.vbucket.purge_seqno == 12
    node.flush()
    assert told == [True]
    assert node.header().purge_seqno == 12
    assert len(node.stored()) == 9


def test_a_limit_below_everything_ends_it_without_a_commit() -> None:
    node = deleted(10)
    node.bucket.purge_limit = lambda _: Limit(0, None)
    assert compact(node) == 0
    assert len(node.stored()) == 11


@pytest.mark.parametrize(("size", "commits"), [(10, 1), (9, 2), (5, 2), (4, 3), (1, 10)])
def test_many_tombstones_go_in_commits_of_a_slice_at_most(size: int, commits: int) -> None:
    node = Node(settings_of(purge={"batch_items": size}))
    deleted(10, node=node)
    store = node.store
    assert isinstance(store, FaultyStore)
    store.commits.clear()
    assert compact(node) == commits
    assert all(len(batch.changes[0].drop) <= size for batch in store.commits)
    assert list(node.stored()) == [b"kept-0"]
    assert node.header().purge_seqno == 20


def test_it_ends_though_documents_are_deleted_faster_than_it_drops_them() -> None:
    node = Node(settings_of(purge={"batch_items": 2}))
    deleted(10, node=node)
    told = want(node)
    for number in range(10):
        while node.bucket.compactor.waiting:
            look(node)
        for key in (b"a%d" % number, b"b%d" % number, b"c%d" % number):
            node.set(key)
            node.vbucket.delete(key)
        node.flush()
    assert told == [True]


def test_a_compaction_that_goes_on_after_a_commit_is_announced() -> None:
    node = Node(settings_of(purge={"batch_items": 2}))
    deleted(5, node=node)
    announced: list[None] = []
    node.bucket.compactor.on_wanted = lambda: announced.append(None)
    told = want(node)
    for count in (1, 2, 3):
        assert len(announced) == count
        look(node)
        assert not node.bucket.compactor.waiting
        node.flush()
    assert told == [True]


def test_a_commit_has_room_for_what_its_memory_allows_and_items_come_after_drops() -> None:
    node = Node(settings_of(flush={"batch_items": 8}))
    deleted(20, node=node)
    for number in range(100):
        node.set(b"new-%d" % number)
    want(node)
    look(node)
    (change,) = node.begin().batch.changes
    assert (len(change.drop), list(decoded(change.records))) == (8, [])


def test_one_look_reads_a_bounded_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "_READ_RECORDS", 4)
    node = deleted(10, kept=3)
    told = want(node)
    looks = 0
    while node.bucket.compactor.waiting:
        scan = look(node)
        assert scan is not None
        assert scan.view.records_read <= 4
        looks += 1
    assert looks == 4
    assert told == [], "it is not over before it is on disk"
    node.flush()
    assert told == [True]
    assert len(node.stored()) == 3


def test_no_view_stays_open_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "_READ_RECORDS", 2)
    node = deleted(5)
    want(node)
    while node.bucket.compactor.waiting:
        look(node)
        assert node.store.grow()


# --- purge seqno ----------------------------------------------------------------------------------


@pytest.mark.acceptance("X17")
def test_the_purge_seqno_never_falls() -> None:
    node = deleted(10)
    node.bucket.purge_limit = lambda vbucket: Limit(vbucket.high_seqno if raised else 0, None)
    raised = True
    compact(node, PurgeRule(upto_seqno=15))
    assert node.vbucket.purge_seqno == 15
    for key in (b"kept-0", b"x"):
        node.set(key)
    node.flush()
    raised = False
    compact(node)
    assert node.vbucket.purge_seqno == node.header().purge_seqno == 15


def test_the_purge_seqno_has_risen_before_the_commit_begins() -> None:
    node = deleted(10)
    want(node)
    look(node)
    assert node.vbucket.purge_seqno == 20
    assert node.header().purge_seqno == 0
    assert len(node.stored()) == 11


def test_a_tombstone_whose_key_was_written_again_meanwhile_is_not_missed() -> None:
    node = deleted(3)
    told = want(node)
    scan = node.bucket.compactor.begin()
    assert scan is not None
    node.bucket.compactor.read(scan)
    node.set(b"0001", b"again")
    node.flush()
    node.bucket.compactor.finish(scan)
    node.flush()
    assert told == [True]
    assert list(node.stored()) == [b"kept-0", b"0001"]
    document = node.vbucket.get(b"0001")
    assert document is not None
    assert document.value == b"again"
    node.check()


def test_a_key_made_anew_after_its_tombstone_went_outranks_it() -> None:
    node = deleted(1)
    buried = node.stored()[b"0000"]
    compact(node)
    assert node.restarted().set(b"0000").rev > buried.rev


# --- ends -----------------------------------------------------------------------------------------


def test_compacting_what_is_absent_is_refused(node: Node) -> None:
    with pytest.raises(NotMyVBucket):
        want(node, number=1)
    node.bucket.warm = False
    with pytest.raises(TemporaryFailure):
        want(node)


@pytest.mark.parametrize("state", VBucketState)
def test_a_vbucket_is_compacted_in_any_state(state: VBucketState) -> None:
    node = deleted(2)
    node.bucket.set_state(0, state)
    node.vbucket.purge_seqno = node.vbucket.high_seqno  # as its source, where it has one
    node.flush()
    compact(node)
    assert len(node.stored()) == 1


def four_to_compact() -> tuple[Node, list[bool]]:
    """Return a node whose four vBuckets have a tombstone and are to be compacted."""
    node = Node(settings_of(vbuckets=4))
    for vbucket in node.bucket.vbuckets.values():
        vbucket.store(b"k", b"v", 0, 0)
        vbucket.delete(b"k")
        vbucket.store(b"last", b"v", 0, 0)
    node.flush()
    told: list[bool] = []
    for number in range(4):
        node.bucket.compact(number, ALL, told.append)
    return node, told


def test_what_several_vbuckets_have_goes_in_one_commit() -> None:
    node, told = four_to_compact()
    for _ in range(4):
        assert node.bucket.compactor.waiting
        look(node)
    assert told == []
    assert not node.bucket.compactor.waiting
    node.flush()
    assert told == [True] * 4
    assert all(list(node.stored(number)) == [b"last"] for number in range(4))


def test_a_vbucket_that_is_asked_for_twice_is_compacted_twice() -> None:
    node, told = four_to_compact()
    node.bucket.compact(3, ALL, told.append)
    while len(told) < 5:
        while node.bucket.compactor.waiting:
            look(node)
        node.flush()
    assert told == [True] * 5
    assert list(node.stored(3)) == [b"last"]
    assert node.vbucket.watchers == []


def test_one_that_is_interrupted_leaves_the_others_of_its_commit_alone() -> None:
    node, told = four_to_compact()
    for _ in range(3):
        look(node)
    node.bucket.set_state(1, VBucketState.REPLICA)
    look(node)
    assert told == [False]
    node.flush()
    assert told == [False, True, True, True]
    assert [len(node.stored(number)) for number in range(4)] == [1, 2, 1, 1]


def test_a_waiter_that_raises_leaves_none_of_the_others_waiting() -> None:
    """As at an orderly stop, where no further step comes that would call them."""
    node, told = four_to_compact()
    compactor = node.bucket.compactor

    def broken(_: bool) -> None:
        raise RuntimeError("no")

    compactor._requests = deque(
        each._replace(done=broken) if each.number == 1 else each for each in compactor._requests
    )
    for _ in range(3):
        look(node)
    for number in range(3):
        node.bucket.set_state(number, VBucketState.REPLICA)
    with pytest.raises(RuntimeError):
        look(node)
    assert told == [False, False]
    node.flush()
    assert told == [False, False, True]
    assert [each.watchers for each in node.bucket.vbuckets.values()] == [[]] * 4
    assert not compactor.waiting


def test_a_limit_that_cannot_be_told_ends_one_compaction_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, told = four_to_compact()
    for _ in range(3):
        look(node)
    compactor = node.bucket.compactor
    scan = compactor.begin()
    assert scan is not None
    compactor.read(scan)
    limits, limit = [1], compactor.limit

    def once_broken(*arguments: Any) -> Limit:
        if limits:
            limits.pop()
            raise RuntimeError("no")
        return limit(*arguments)

    monkeypatch.setattr(compactor, "limit", once_broken)
    with pytest.raises(RuntimeError):
        compactor.finish(scan)
    assert told == [False]
    assert compactor.waiting
    look(node)
    node.flush()
    assert told == [False, True, True, True]
    assert [each.watchers for each in node.bucket.vbuckets.values()] == [[]] * 4


def test_a_store_that_cannot_be_read_ends_it() -> None:
    node = deleted(2)
    told = want(node)
    scan = node.bucket.compactor.begin()
    assert scan is not None
    node.bucket.compactor.failed(scan)
    assert told == [False]
    assert node.store.grow(), "the view is closed"
    assert node.vbucket.watchers == []
    compact(node)


def test_a_store_that_gives_no_view_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    node = deleted(2)
    told = want(node)

    def refuse() -> None:
        raise StoreError("no")

    with monkeypatch.context() as patch:
        patch.setattr(node.store, "view", refuse)
        with pytest.raises(StoreError):
            node.bucket.compactor.begin()
    assert told == [False]
    compact(node)


def test_a_failed_commit_ends_it_and_loses_nothing() -> None:
    node = deleted(5)
    told = want(node)
    look(node)
    node.fail_flush(StoreFull("full"))
    assert told == [False]
    assert len(node.stored()) == 6
    node.flush()
    assert len(node.stored()) == 6, "given up, not tried again"
    assert node.header().purge_seqno == 10, "consumers were told so already"
    compact(node)
    assert len(node.stored()) == 1


def test_a_vbucket_that_went_before_its_turn_ends_it() -> None:
    node = deleted(2)
    told = want(node)
    remove(node)
    assert look(node) is None
    assert told == [False]
    assert not node.bucket.compactor.waiting


def remove(node: Node) -> None:
    node.bucket.set_state(0, VBucketState.DEAD)
    node.bucket.remove(0, lambda _: None)


def begin_anew(node: Node, cause: str) -> None:
    """End the vBucket's history in one way or another."""
    if cause == "flushed":
        node.bucket.flush(0, lambda _: None)
    elif cause == "changed its state":
        node.bucket.set_state(0, VBucketState.REPLICA)
    elif cause == "rolled back":
        node.vbucket.interrupt(Interruption.STATE_CHANGED)
    else:
        remove(node)
        if cause == "removed and made again":
            node.bucket.create(0, VBucketState.ACTIVE)


CAUSES = ["flushed", "removed", "removed and made again", "changed its state", "rolled back"]


@pytest.mark.parametrize("step", ["view open", "read", "commit wanted"])
@pytest.mark.parametrize("cause", CAUSES)
def test_a_vbucket_that_is_interrupted_loses_nothing_to_what_was_found_before(
    step: str, cause: str
) -> None:
    """What comes after may have the keys and the seqnos of the tombstones that were found."""
    node = deleted(3, kept=3)
    compactor = node.bucket.compactor
    told = want(node)
    scan = compactor.begin()
    assert scan is not None
    if step != "view open":
        compactor.read(scan)
    if step == "commit wanted":
        compactor.finish(scan)
    begin_anew(node, cause)
    assert told == [], "nobody is called in the middle of what interrupts"
    if cause in ("flushed", "removed and made again"):
        deleted(3, kept=3, node=node)
    node.flush()
    expected = node.stored()
    if step != "commit wanted":
        compactor.finish(scan)
    node.flush()
    look(node)
    assert told == [False]
    assert node.stored() == expected
    assert len(expected) == (0 if cause == "removed" else 6)
    assert not compactor.waiting
    node.check()


# --- crashes --------------------------------------------------------------------------------------


@pytest.mark.acceptance("X17")
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("steps", range(14))
def test_a_crash_between_any_two_steps_never_loses_more_than_the_purge_seqno_says(
    steps: int, power: bool
) -> None:
    node = Node(settings_of(purge={"batch_items": 2}))
    deleted(6, node=node)
    before = node.stored()
    want(node)
    walk = _steps(node)
    for _ in range(steps):
        next(walk, None)
    store = node.store.crash() if power else node.store.reopened()
    after = Node(node.settings, store=store, clock=node.clock, entropy=node.entropy)
    left, purged = after.stored(), after.vbucket.purge_seqno
    missing = [item.seqno for key, item in before.items() if key not in left]
    assert max(missing, default=0) == purged
    assert all(before[key].life for key in before.keys() - left.keys())
    assert after.vbucket.high_seqno == 13
    after.check()
    compact(after)
    assert list(after.stored()) == [b"kept-0"]


def _steps(node: Node) -> Iterator[None]:
    """Do a compaction, a step at a time."""
    compactor, flusher = node.bucket.compactor, node.bucket.flusher
    while True:
        if (scan := compactor.begin()) is not None:
            yield
            compactor.read(scan)
            yield
            compactor.finish(scan)
            yield
        elif (flush := flusher.begin()) is not None:
            yield
            flusher.commit(flush)
            yield
            flusher.finish(flush)
            yield
        else:
            return
