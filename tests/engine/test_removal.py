"""A dead vBucket goes: from memory at once, from disk with the next commit, never by halves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pytest

from tests.contents import table_of
from tests.engine.support import Node, Watching, settings_of
from uprmc.engine import flusher
from uprmc.engine.flusher import Flush
from uprmc.engine.memory import Evictor
from uprmc.engine.vbucket import VBucket
from uprmc.engine.warmup import POPULATED_MARK
from uprmc.errors import InvalidArguments, NotMyVBucket, StoreError, StoreFull
from uprmc.model import VBucketState
from uprmc.record import COLD, with_kind


def filled(vbuckets: int = 2, documents: int = 5) -> Node:
    """Return a node whose vBuckets hold persisted documents ``old-0``, ``old-1``, ..."""
    node = Node(settings_of(vbuckets))
    for vbucket in node.bucket.vbuckets.values():
        fill(vbucket, b"old", documents)
    node.flush()
    return node


def fill(vbucket: VBucket, prefix: bytes, documents: int = 5) -> None:
    for number in range(documents):
        vbucket.store(b"%s-%d" % (prefix, number), prefix, 0, 0)


def remove(node: Node, number: int = 0) -> list[bool]:
    told: list[bool] = []
    node.bucket.set_state(number, VBucketState.DEAD)
    node.bucket.remove(number, told.append)
    return told


def stored_numbers(node: Node) -> list[int]:
    view = node.store.view()
    numbers = sorted(view.headers())
    view.close()
    return numbers


# --- rules ----------------------------------------------------------------------------------------


def test_a_vbucket_that_is_absent_cannot_be_removed(node: Node) -> None:
    with pytest.raises(NotMyVBucket):
        node.bucket.remove(1, lambda _: None)
    remove(node)
    with pytest.raises(NotMyVBucket):
        node.bucket.remove(0, lambda _: None)


@pytest.mark.parametrize("state", set(VBucketState) - {VBucketState.DEAD})
def test_a_vbucket_that_is_not_dead_cannot_be_removed(node: Node, state: VBucketState) -> None:
    node.set(b"k")
    node.bucket.set_state(0, state)
    with pytest.raises(InvalidArguments):
        node.bucket.remove(0, lambda _: None)
    assert node.vbucket.item_count == 1


def test_it_is_gone_from_memory_at_once_and_from_disk_when_that_is_told() -> None:
    node = filled()
    node.set(b"queued")
    told = remove(node)
    assert list(node.bucket.vbuckets) == list(node.bucket.active) == [1]
    assert list(node.bucket.lookups) == [1]
    with pytest.raises(NotMyVBucket):
        node.bucket.locate(0)
    assert node.bucket.flusher.queued == 0
    node.check()
    flush = node.begin()
    assert told == []
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert told == [True]
    assert stored_numbers(node) == [1]
    assert node.stored(0) == {}
    assert len(node.stored(1)) == 5
    assert not node.bucket.flusher.pending
    node.check()


def test_the_last_one_can_be_removed_and_nothing_waits_for_ever() -> None:
    node = filled(vbuckets=1)
    told = remove(node)
    node.flush()
    assert told == [True]
    node.bucket.flush(0, told.append)
    assert node.bucket.flusher.pending, "nobody would look otherwise"
    node.flush()
    assert told == [True, True]
    assert node.bucket.item_count == node.bucket.account.used == 0


def test_a_removal_and_a_waiter_are_announced_though_nothing_is_dirty() -> None:
    node = filled()
    announced: list[None] = []
    node.bucket.account.on_dirty = lambda: announced.append(None)
    node.bucket.flusher.when_durable(lambda _: None)
    assert len(announced) == 1
    node.flush()
    node.bucket.set_state(0, VBucketState.DEAD)
    node.flush()
    announced.clear()
    node.bucket.remove(0, lambda _: None)
    assert announced
    assert node.bucket.flusher.pending
    assert node.bucket.flusher.delay(0.0, 1.0) == 0


def test_whoever_follows_it_is_told_once() -> None:
    node = filled()
    node.bucket.set_state(0, VBucketState.DEAD)
    follower = Watching(node.vbucket)
    node.bucket.remove(0, lambda _: None)
    assert follower.told == ["state changed"]


def test_somebody_who_still_holds_it_can_neither_write_nor_miscount() -> None:
    """Long walks and streams keep the object for a while."""
    node = filled()
    gone = node.vbucket
    records = list(gone.table.records())
    remove(node)
    node.flush()
    pager = Evictor(lambda: [gone], node.bucket.account, node.bucket.stats, 10)
    pager._sweep(gone, [with_kind(record, COLD) for record in records])
    node.check()
    gone.change_header()
    assert node.bucket.account.dirty == []
    node.flush()
    assert stored_numbers(node) == [1]


def test_a_vbucket_that_was_clean_when_it_went_does_not_come_back_either(node: Node) -> None:
    clean = node.bucket.vbuckets.pop(0)
    node.bucket.flusher.remove(clean, lambda _: None)
    clean.change_header()
    assert node.bucket.account.dirty == []


def test_a_long_flush_of_it_that_was_under_way_holds_nothing_any_more() -> None:
    node = Node(settings_of(flush={"batch_items": 64}))
    fill(node.vbucket, b"many", 300)
    queue = node.vbucket.queue
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert queue.open_views == 1
    remove(node)
    assert queue.open_views == 0
    node.flush()
    assert stored_numbers(node) == []


# --- made again -----------------------------------------------------------------------------------


def test_one_made_again_under_that_number_is_empty_and_of_another_history() -> None:
    node = filled()
    uuid = node.vbucket.failover_log[0].uuid
    told = remove(node)
    fresh = node.bucket.set_state(0, VBucketState.ACTIVE)
    fresh.store(b"new", b"v", 0, 0)
    assert fresh.high_seqno == 1
    node.flush()
    assert told == [True]
    assert list(node.stored()) == [b"new"]
    assert node.header().failover_log[0].uuid not in (uuid, 0)
    assert node.bucket.locate(0) is fresh
    node.check()


def test_all_removed_and_made_again_in_one_commit() -> None:
    node = filled(vbuckets=4)
    for number in range(4):
        remove(node, number)
    for number in (0, 2):
        fill(node.bucket.set_state(number, VBucketState.ACTIVE), b"new", 1)
    node.flush()
    assert stored_numbers(node) == [0, 2]
    assert list(node.stored(0)) == list(node.stored(2)) == [b"new-0"]


Event = Callable[[Node], None]


def made_again(node: Node) -> None:
    vbucket = node.bucket.set_state(0, VBucketState.ACTIVE)
    if not node.bucket.account.disk_reason:
        fill(vbucket, b"new", 3)


def gone(node: Node) -> None:
    remove(node)


def changed(node: Node) -> None:
    if 0 in node.bucket.vbuckets and not node.bucket.account.disk_reason:
        fill(node.vbucket, b"more", 2)


def flushed(node: Node) -> None:
    node.bucket.flush(0, lambda _: None)


STORIES: dict[str, list[Event]] = {
    "removed": [gone],
    "removed with changes": [changed, gone],
    "made again": [gone, made_again],
    "made again and changed": [gone, made_again, changed],
    "removed twice": [gone, made_again, gone],
    "made again twice": [gone, made_again, gone, made_again],
    "flushed before": [flushed, gone, made_again],
    "flushed after": [gone, made_again, flushed, changed],
    "others flushed": [gone, flushed],
}


def one_history(node: Node, histories: dict[int, int]) -> None:
    """Judge what a crash left: each header with records of its own history and no others."""
    view = node.store.view()
    for number, header in view.headers().items():
        root = header.failover_log[-1].uuid
        items = list(view.changes_after(number, 0))
        assert {histories[item.cas] for item in items} <= {root}
        assert [item.seqno for item in items] == list(range(1, len(items) + 1)), "some are lost"
        assert len(items) == header.high_seqno
    view.close()


@pytest.mark.parametrize("flush_at", range(4))
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("steps", range(3))
@pytest.mark.parametrize("story", STORIES)
def test_a_crash_leaves_the_old_one_nothing_or_the_new_one(
    story: str, steps: int, fails: bool, flush_at: int
) -> None:
    """A flush begins at any place of the story, goes so far, and ends after the story has.

    The node may crash after each event and after each step of a flush.
    """
    node = filled()
    histories: dict[int, int] = {}

    def look() -> None:
        for vbucket in node.bucket.vbuckets.values():
            for item in table_of(vbucket).values():
                histories.setdefault(item.cas, vbucket.failover_log[-1].uuid)
        one_history(node, histories)
        node.check()

    walk: Iterator[None] = iter(())
    for place, event in enumerate(STORIES[story]):
        if place == flush_at:
            walk = one_flush(node, fails=fails)
            for _ in range(steps + 1):
                next(walk, None)
        look()
        event(node)
        look()
    for _ in walk:
        look()
    node.flush()
    look()
    expected = {number: table_of(vbucket) for number, vbucket in node.bucket.vbuckets.items()}
    assert {number: node.stored(number) for number in stored_numbers(node)} == expected
    after = node.restarted()
    assert {n: table_of(vbucket) for n, vbucket in after.bucket.vbuckets.items()} == expected
    after.check()


def one_flush(node: Node, *, fails: bool) -> Iterator[None]:
    flusher = node.bucket.flusher
    flush = flusher.begin()
    if flush is None:
        return
    yield
    if fails:
        flusher.failed(flush, StoreFull("full"))
        return
    flusher.commit(flush)
    yield
    flusher.finish(flush)
    yield


@pytest.fixture
def a_slice_for_each_vbucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "VBUCKET_AS_ITEMS", 1_000)


@pytest.mark.usefixtures("a_slice_for_each_vbucket")
def test_a_removal_between_the_slices_of_a_flush_is_in_the_next() -> None:
    node = filled(vbuckets=3)
    for vbucket in node.bucket.vbuckets.values():
        fill(vbucket, b"more")
    first, second, third = node.bucket.vbuckets.values()
    slices = node.bucket.flusher.begin_in_slices()
    next(slices)
    for number in (0, 2):
        remove(node, number)
    node.bucket.set_state(2, VBucketState.ACTIVE).store(b"new", b"v", 0, 0)
    flush = _rest(slices)
    assert [part.vbucket for part in flush.parts] == [first, second], "the third is gone"
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert third.persisted_seqno == 0
    node.check()
    node.flush()
    assert stored_numbers(node) == [1, 2]
    assert list(node.stored(2)) == [b"new"]
    node.check()


@pytest.mark.usefixtures("a_slice_for_each_vbucket")
def test_a_flush_of_the_others_does_not_wipe_one_that_is_removed_meanwhile() -> None:
    """All that are there are reset, but one was taken that is not: its old records must stay."""
    node = filled(vbuckets=2)
    node.bucket.vbuckets[1].reset(99)
    fill(node.vbucket, b"more")
    slices = node.bucket.flusher.begin_in_slices()
    for _ in node.bucket.vbuckets:
        next(slices)
    remove(node)
    flush = _rest(slices)
    node.bucket.flusher.commit(flush)
    assert len(node.stored(0)) == 10


def _rest(slices: Generator[None, None, Flush | None]) -> Flush:
    flush: Flush | None = None

    def run() -> Generator[None, None, None]:
        nonlocal flush
        flush = yield from slices

    list(run())
    assert flush is not None
    return flush


def test_a_refused_removal_keeps_writes_out_until_it_has_worked() -> None:
    node = filled()
    node.bucket.set_state(0, VBucketState.DEAD)
    node.flush()
    told: list[bool] = []
    node.bucket.remove(0, told.append)
    node.fail_flush(StoreError("no"))
    assert told == [False]
    assert node.bucket.account.disk_reason
    assert node.bucket.flusher.pending, "it is tried again"
    node.flush()
    assert not node.bucket.account.disk_reason
    assert stored_numbers(node) == [1]


def test_the_value_of_a_document_that_is_being_fetched_does_not_reach_the_new_one() -> None:
    node = filled()
    node.eject(b"old-0")
    told: list[bool] = []
    node.bucket.fetcher.want([(0, b"old-0")], told.append)
    fetch = node.bucket.fetcher.begin()
    assert fetch is not None
    node.bucket.fetcher.commit(fetch)
    remove(node)
    node.bucket.set_state(0, VBucketState.ACTIVE).store(b"old-0", b"another", 0, 0)
    node.bucket.fetcher.finish(fetch)
    assert told == [True]
    item = node.vbucket.get(b"old-0")
    assert item is not None
    assert item.value == b"another"
    node.check()


# --- warm-up --------------------------------------------------------------------------------------


def test_a_node_whose_last_vbucket_was_removed_makes_none_when_it_starts() -> None:
    node = filled(vbuckets=4)
    for number in range(4):
        remove(node, number)
    node.flush()
    for orderly in (False, True):
        if orderly:
            node.stop()
        node = node.restarted()
        assert node.bucket.vbuckets == {}
    node.bucket.set_state(2, VBucketState.ACTIVE)
    node.flush()
    assert list(node.restarted().bucket.vbuckets) == [2]


def test_a_start_that_crashed_before_the_vbuckets_were_stored_makes_them_again() -> None:
    node = Node(settings_of(4))
    stored = node.store.local(POPULATED_MARK)
    assert stored is not None
    commits = node.store.commits  # type: ignore[attr-defined]
    marks = [place for place, batch in enumerate(commits) if POPULATED_MARK in batch.local]
    headers = [place for place, batch in enumerate(commits) if batch.changes]
    assert max(headers) < min(marks)


def test_data_from_before_there_was_a_mark_gets_one() -> None:
    node = filled()
    node.store._state.local.pop(POPULATED_MARK)  # type: ignore[attr-defined]
    node = node.restarted()
    assert node.store.local(POPULATED_MARK) is not None
    assert list(node.bucket.vbuckets) == [0, 1]
