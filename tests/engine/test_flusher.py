"""From the queues to the store: whole batches or nothing; only what is written leaves the queue."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator

import pytest

from tests.contents import decoded, got, queued, table_of
from tests.engine.support import FaultyStore, Node, settings_of
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.flusher import Flush, Flusher
from uprmc.engine.write_queue import SEGMENT_BITS
from uprmc.errors import StoreError, StoreFull, StoreMapFull, TemporaryFailure
from uprmc.model import SnapshotRange, VBucketState
from uprmc.storage.interface import CommitBatch

SEGMENT = 1 << SEGMENT_BITS


def write(node: Node, count: int, prefix: bytes = b"k") -> None:
    for number in range(count):
        node.set(b"%s-%d" % (prefix, number))


# --- by id and by seq -----------------------------------------------------------------------------


@pytest.mark.acceptance("D05")
def test_after_many_updates_the_store_has_one_record_per_key_in_seqno_order(node: Node) -> None:
    keys = [b"key-%d" % number for number in range(20)]
    for round_number in range(15):
        for index, key in enumerate(keys):
            if (round_number + index) % 7 == 0 and node.vbucket.find(key):
                node.vbucket.delete(key)
            else:
                node.set(key, b"%d" % round_number)
        if round_number % 4:
            node.flush()
    node.flush()
    view = node.store.view()
    by_seq = list(view.changes_after(0, 0))
    by_id = [got(view, 0, item.key) for item in by_seq]
    assert len(by_seq) == len(keys)
    assert [item.seqno for item in by_seq] == sorted({item.seqno for item in by_seq})
    assert by_id == by_seq
    view.close()


@pytest.mark.acceptance("D06")
def test_changes_since_a_seqno_are_read_without_reading_the_others(node: Node) -> None:
    write(node, 500)
    node.flush()
    view = node.store.view()
    assert [item.seqno for item in view.changes_after(0, 490)] == list(range(491, 501))
    assert view.records_read == 10
    view.close()


# --- D20: answered before it is on disk -----------------------------------------------------------


@pytest.mark.acceptance("D20")
def test_writes_are_answered_while_the_disk_stalls_and_count_as_not_persisted(node: Node) -> None:
    first = node.set(b"first")
    stalled = node.begin()
    for number in range(100):
        item = node.set(b"k%d" % number)
        assert node.vbucket.get(b"k%d" % number) == item
    assert first.seqno > node.vbucket.persisted_seqno == 0
    assert node.vbucket.high_seqno == 101
    assert node.stored() == {}
    node.bucket.flusher.commit(stalled)
    assert node.vbucket.persisted_seqno == 0, "written, but not yet settled"
    node.bucket.flusher.finish(stalled)
    assert node.vbucket.persisted_seqno == 1
    node.flush()
    assert node.vbucket.persisted_seqno == 101


# --- D21: all of a batch or nothing ---------------------------------------------------------------


@pytest.mark.acceptance("D21")
def test_one_batch_has_the_changes_of_every_vbucket_with_its_header() -> None:
    node = Node(settings_of(vbuckets=4))
    for number in range(40):
        node.bucket.vbuckets[number % 4].store(b"%d" % number, b"v", 0, 0)
    flush = node.begin()
    assert flush.item_count == 40
    assert [change.vbucket for change in flush.batch.changes] == [0, 1, 2, 3]
    for change in flush.batch.changes:
        assert [item.seqno for item in decoded(change.records)] == list(range(1, 11))
        assert change.header is not None
        assert change.header.high_seqno == 10
        assert change.header.snapshot == SnapshotRange(10, 10)
    assert node.bucket.flusher.begin() is None, "everything is in the first"


@pytest.mark.acceptance("D21")
@pytest.mark.parametrize("step", ["accepted", "begun", "refused", "committed", "finished"])
def test_a_crash_at_any_step_leaves_all_of_the_batch_or_nothing(step: str) -> None:
    node = Node(settings_of(vbuckets=2))
    first, second = node.bucket.vbuckets.values()
    for vbucket in (first, second):
        vbucket.store(b"old", b"1", 0, 0)
        vbucket.store(b"gone", b"1", 0, 0)
    node.flush()
    for vbucket in (first, second):
        vbucket.store(b"new", b"2", 0, 0)
        vbucket.store(b"old", b"2", 0, 0)
        vbucket.delete(b"gone")
    flusher = node.bucket.flusher
    if step != "accepted":
        flush = node.begin()
        if step == "refused":
            flusher.failed(flush, StoreError("no"))
        if step in ("committed", "finished"):
            flusher.commit(flush)
        if step == "finished":
            flusher.finish(flush)
    after = node.restarted()
    written = step in ("committed", "finished")
    for vbucket in after.bucket.vbuckets.values():
        assert vbucket.high_seqno == (5 if written else 2)
        found = {key: item.value for key, item in table_of(vbucket).items()}
        expected = {b"old": b"2", b"new": b"2"} if written else {b"old": b"1", b"gone": b"1"}
        assert found == expected
    after.check()


@pytest.mark.acceptance("D21")
@pytest.mark.parametrize("error", [StoreFull("full"), StoreMapFull("map"), StoreError("broken")])
def test_a_refused_commit_leaves_everything_queued_and_is_tried_again(error: StoreError) -> None:
    store = FaultyStore()
    node = Node(settings_of(vbuckets=2), store=store)
    for vbucket in node.bucket.vbuckets.values():
        for number in range(100):
            vbucket.store(b"%d" % number, b"v", 0, 0)
        vbucket.delete(b"7")
    store.refusal = error
    flush = node.begin()
    with pytest.raises(StoreError):
        node.bucket.flusher.commit(flush)
    node.bucket.flusher.failed(flush, error)
    assert node.bucket.flusher.queued == 200
    assert [vbucket.persisted_seqno for vbucket in node.bucket.vbuckets.values()] == [0, 0]
    assert node.vbucket.table.find(b"7") is not None
    node.check()
    store.refusal = None
    node.flush()
    assert node.bucket.flusher.queued == 0
    assert len(node.stored(0)) == len(node.stored(1)) == 100
    node.check()


# --- failed commits refuse writes -----------------------------------------------------------------


def test_after_a_failed_commit_every_write_is_refused_until_one_works(node: Node) -> None:
    node.set(b"k", b"1")
    node.fail_flush(StoreFull("disk full"))
    vbucket = node.vbucket
    writes = [
        lambda: node.set(b"k"),
        lambda: vbucket.delete(b"k"),
        lambda: vbucket.touch(b"k", 99),
        lambda: vbucket.extend(b"k", b"1", 0, front=False, limit_bytes=9),
        lambda: vbucket.add_delta(b"k", 1),
        lambda: vbucket.add_delta(b"new", 1, initial=1),
    ]
    for refused in writes:
        with pytest.raises(TemporaryFailure, match="disk full"):
            refused()
    assert vbucket.high_seqno == 1
    assert vbucket.get(b"k") is not None, "reading goes on"
    assert node.bucket.stats.commit_failures == 1
    node.flush()
    assert node.bucket.account.disk_reason == ""
    node.set(b"k")
    node.check()


def test_a_failure_with_nothing_to_try_again_does_not_shut_writes_out_for_good(node: Node) -> None:
    told: list[bool] = []
    node.bucket.flusher.when_durable(told.append)
    node.fail_flush(StoreFull("disk full"))
    assert told == [False]
    node.set(b"k")


# --- D22: only what was written leaves ------------------------------------------------------------


@pytest.mark.acceptance("D22")
def test_a_key_written_again_during_the_flush_is_in_the_next_batch(node: Node) -> None:
    node.set(b"a", b"1")
    node.set(b"b", b"1")
    flush = node.begin()
    second = node.set(b"a", b"2")
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert node.stored()[b"a"].value == b"1"
    assert node.bucket.flusher.queued == 1
    following = node.begin()
    assert [item for change in following.batch.changes for item in decoded(change.records)] == [
        second
    ]
    node.bucket.flusher.commit(following)
    node.bucket.flusher.finish(following)
    assert node.stored()[b"a"] == second
    assert node.bucket.flusher.queued == 0
    node.check()


# --- a long queue in several commits --------------------------------------------------------------


def long_flush_node() -> Node:
    """A node whose commits take about a segment, with ten segments in its queue."""
    node = Node(settings_of(flush={"batch_items": SEGMENT}))
    write(node, 10 * SEGMENT)
    return node


@pytest.mark.acceptance("D21", "D22")
def test_a_long_queue_is_written_from_one_view_in_several_commits() -> None:
    node = long_flush_node()
    end = node.vbucket.high_seqno
    flusher = node.bucket.flusher
    commits = 0
    while node.vbucket.persisted_seqno < end:
        flush = node.begin()
        node.set(b"k-%d" % (9 * SEGMENT), b"written meanwhile %d" % commits)
        node.set(b"k-0", b"written meanwhile %d" % commits)
        flusher.commit(flush)
        header = node.header()
        complete = header.high_seqno == end
        assert header.snapshot == (SnapshotRange(end, end) if complete else SnapshotRange(0, end))
        assert last_complete_seqno(header.high_seqno, header.snapshot) == (end if complete else 0)
        stored = {item.seqno for item in node.stored().values()}
        assert stored == set(range(1, header.high_seqno + 1))
        flusher.finish(flush)
        node.check()
        commits += 1
    assert commits == 10
    assert node.bucket.flusher.queued == 2
    node.flush()
    assert node.stored()[b"k-0"] == node.vbucket.get(b"k-0")
    assert node.vbucket.persisted_seqno == node.vbucket.high_seqno
    assert node.vbucket.queue.open_views == 0


@pytest.mark.acceptance("D11", "D21")
def test_a_crash_within_a_long_flush_keeps_the_items_and_branches_at_the_last_complete_seqno() -> (
    None
):
    node = Node(settings_of(flush={"batch_items": SEGMENT}))
    write(node, 40, b"first")
    node.flush()
    complete = node.vbucket.persisted_seqno
    assert complete == 40
    write(node, 10 * SEGMENT)
    for _ in range(3):
        flush = node.begin()
        node.bucket.flusher.commit(flush)
        node.bucket.flusher.finish(flush)
    old_log = node.vbucket.failover_log
    written = node.vbucket.persisted_seqno
    assert complete < written < node.vbucket.high_seqno
    after = node.restarted()
    assert after.vbucket.high_seqno == written
    assert after.vbucket.item_count == written
    assert after.vbucket.failover_log[0].seqno == complete
    assert after.vbucket.failover_log[1:] == old_log
    assert after.header().snapshot == SnapshotRange(written, written)
    after.check()


@pytest.mark.acceptance("D22")
@pytest.mark.parametrize("first", ["failed", "part of a long queue"])
def test_what_was_accepted_since_the_view_was_opened_is_written_by_itself(first: str) -> None:
    """A view is used for several commits; writes during the first must not wait for a new one."""
    node = Node(settings_of(flush={"batch_items": SEGMENT}))
    write(node, 2 * SEGMENT if first != "failed" else 1)
    flush = node.begin()
    meanwhile = node.set(b"meanwhile")
    if first == "failed":
        node.bucket.flusher.failed(flush, StoreError("no"))
    else:
        node.bucket.flusher.commit(flush)
        node.bucket.flusher.finish(flush)
    node.flush()
    assert node.stored()[b"meanwhile"] == meanwhile
    node.stop()
    assert node.restarted().vbucket.find(b"meanwhile") is not None
    node.check()


def test_a_failure_within_a_long_flush_goes_on_where_it_stopped() -> None:
    node = long_flush_node()
    end = node.vbucket.high_seqno
    flush = node.begin()
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    position = node.vbucket.persisted_seqno
    node.fail_flush(StoreFull("full"))
    retried = node.begin()
    assert decoded(retried.batch.changes[0].records)[0].seqno == position + 1
    assert retried.batch.changes[0].header is not None
    assert retried.batch.changes[0].header.snapshot == SnapshotRange(0, end)
    node.bucket.flusher.commit(retried)
    node.bucket.flusher.finish(retried)
    node.flush()
    assert node.vbucket.persisted_seqno == end
    assert len(node.stored()) == end
    node.check()


def test_a_long_queue_does_not_keep_other_vbuckets_waiting() -> None:
    node = Node(settings_of(vbuckets=2, flush={"batch_items": SEGMENT}))
    long, short = node.bucket.vbuckets.values()
    for number in range(10 * SEGMENT):
        long.store(b"%d" % number, b"", 0, 0)
    short.store(b"k", b"", 0, 0)
    flush = node.begin()
    assert [change.vbucket for change in flush.batch.changes] == [0]
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    flush = node.begin()
    assert [change.vbucket for change in flush.batch.changes] == [1, 0]
    node.bucket.flusher.failed(flush, StoreError("no"))
    node.flush()
    node.check()


def test_a_batch_is_a_segment_longer_than_its_limit_at_most() -> None:
    node = Node(settings_of(vbuckets=8, flush={"batch_items": 100}))
    for number in range(8 * 200):
        node.bucket.vbuckets[number % 8].store(b"%d" % number, b"", 0, 0)
    while flush := node.bucket.flusher.begin():
        assert flush.item_count < 100 + SEGMENT
        node.bucket.flusher.commit(flush)
        node.bucket.flusher.finish(flush)
    assert node.bucket.flusher.queued == 0
    node.check()


# --- forgetting during a flush --------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["finished", "failed"])
@pytest.mark.parametrize("long", [False, True])
def test_a_reset_during_a_flush_wins(outcome: str, long: bool) -> None:
    node = Node(settings_of(vbuckets=2, flush={"batch_items": SEGMENT}))
    write(node, 5 * SEGMENT if long else 10)
    flush = node.begin()
    node.vbucket.reset(uuid=4711)
    node.set(b"new", b"after")
    if outcome == "finished":
        node.bucket.flusher.commit(flush)
        node.bucket.flusher.finish(flush)
        assert len(node.stored()) >= 10, "the old state is whole until the next commit"
        assert node.header().failover_log[0].uuid != 4711
    else:
        node.bucket.flusher.failed(flush, StoreError("no"))
    assert node.vbucket.persisted_seqno == 0
    node.check()
    node.flush()
    assert {key: item.value for key, item in node.stored().items()} == {b"new": b"after"}
    assert node.header().failover_log[0].uuid == 4711
    assert node.vbucket.persisted_seqno == 1
    node.check()


def test_views_of_a_queue_outlive_a_reset(node: Node) -> None:
    write(node, 10)
    view = node.vbucket.queue.open_view()
    node.vbucket.reset(uuid=4711)
    assert [item.seqno for item in queued(view)] == list(range(1, 11))
    view.close()


def test_a_reset_that_failed_to_be_written_is_written_with_what_came_after(node: Node) -> None:
    write(node, 5)
    node.flush()
    node.vbucket.reset(uuid=4711)
    node.fail_flush(StoreFull("full"))
    node.flush()
    assert node.stored() == {}
    node.set(b"k")
    node.flush()
    assert list(node.stored()) == [b"k"]


def test_a_long_queue_behind_a_reset_forgets_once() -> None:
    node = long_flush_node()
    node.flush()
    node.vbucket.reset(uuid=4711)
    write(node, 3 * SEGMENT, b"new")
    node.flush()
    assert len(node.stored()) == 3 * SEGMENT
    assert all(key.startswith(b"new") for key in node.stored())
    node.check()


def test_only_a_reset_of_all_vbuckets_forgets_the_whole_store() -> None:
    node = Node(settings_of(vbuckets=3))
    vbuckets = list(node.bucket.vbuckets.values())
    for vbucket in vbuckets:
        vbucket.store(b"k", b"", 0, 0)
    node.flush()
    for vbucket in vbuckets[:2]:
        vbucket.reset(uuid=4711)
    flush = node.begin()
    assert not flush.batch.reset_all
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert [len(node.stored(number)) for number in range(3)] == [0, 0, 1]
    for vbucket in vbuckets:
        vbucket.reset(uuid=4712)
    flush = node.begin()
    assert flush.batch.reset_all
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert [node.header(number).failover_log[0].uuid for number in range(3)] == [4712] * 3
    node.check()


def test_a_flush_before_any_vbucket_is_known_forgets_nothing(node: Node) -> None:
    node.set(b"k")
    node.flush()
    flusher = Flusher(
        node.store, {}, node.bucket.account, node.bucket.stats, node.bucket.settings.flush
    )
    flusher.when_durable(lambda _: None)
    flush = flusher.begin()
    assert flush is not None
    flusher.commit(flush)
    assert list(node.stored()) == [b"k"]


# --- waiters --------------------------------------------------------------------------------------


def test_a_waiter_is_told_after_the_next_flush_that_is_begun(node: Node) -> None:
    told: list[bool] = []
    node.set(b"a")
    under_way = node.begin()
    node.vbucket.change_header()
    node.bucket.flusher.when_durable(told.append)
    node.bucket.flusher.commit(under_way)
    node.bucket.flusher.finish(under_way)
    assert told == [], "what was under way may lack what the waiter waits for"
    following = node.begin()
    node.bucket.flusher.commit(following)
    assert told == []
    node.bucket.flusher.finish(following)
    assert told == [True]
    node.flush()
    assert told == [True]


def test_a_waiter_is_served_though_nothing_is_dirty(node: Node) -> None:
    told: list[bool] = []
    node.bucket.flusher.when_durable(told.append)
    node.flush()
    assert told == [True]


def test_headers_are_written_however_long_the_queues_are() -> None:
    node = Node(settings_of(vbuckets=20, flush={"batch_items": SEGMENT}))
    write(node, 10 * SEGMENT)
    for vbucket in node.bucket.vbuckets.values():
        vbucket.change_header()
    flush = node.begin()
    assert len(flush.batch.changes) == 20
    node.bucket.flusher.failed(flush, StoreError("no"))
    again = node.begin()
    assert len(again.batch.changes) == 20, "a failed header is still to be written"


def test_nothing_to_do_makes_no_commit(node: Node) -> None:
    assert node.bucket.flusher.begin() is None
    store = node.store
    assert isinstance(store, FaultyStore)
    before = len(store.commits)
    node.flush()
    assert len(store.commits) == before


def test_what_becomes_dirty_is_announced_once_until_the_next_flush(node: Node) -> None:
    announced: list[None] = []
    node.bucket.account.on_dirty = lambda: announced.append(None)
    node.set(b"a")
    node.set(b"b")
    assert len(announced) == 1
    node.flush()
    node.set(b"c")
    assert len(announced) == 2


def test_counters_tell_commits_and_items(node: Node) -> None:
    node.bucket.stats.reset()
    write(node, 10)
    node.flush()
    assert (node.bucket.stats.commits, node.bucket.stats.items_flushed) == (1, 10)


# --- when -----------------------------------------------------------------------------------------


def delayed_node() -> Node:
    return Node(
        settings_of(
            flush={
                "batch_items": 1_000,
                "rest_factor": 10,
                "min_delay_s": 0.02,
                "max_delay_s": 1.0,
            }
        )
    )


def test_after_a_quick_flush_the_next_comes_when_the_oldest_change_has_the_least_age() -> None:
    node = delayed_node()
    write(node, 10)
    delay = node.bucket.flusher.delay
    assert delay(0.0, 0.002) == pytest.approx(0.02)
    assert delay(0.015, 0.002) == pytest.approx(0.005)
    assert delay(0.02, 0.002) == 0.0
    assert delay(5.0, 0.002) == 0.0


def test_the_flusher_rests_a_multiple_of_the_time_it_worked_and_is_asked_often() -> None:
    node = delayed_node()
    write(node, 11)
    delay = node.bucket.flusher.delay
    assert delay(0.0, 0.05) == pytest.approx(0.02)
    assert delay(0.49, 0.05) == pytest.approx(0.01)
    assert delay(0.5, 0.05) == 0.0


def test_no_change_waits_longer_than_the_longest_delay() -> None:
    node = delayed_node()
    write(node, 11)
    delay = node.bucket.flusher.delay
    assert delay(0.99, 60.0) == pytest.approx(0.01)
    assert delay(1.0, 60.0) == 0.0


def test_a_full_batch_is_written_at_once() -> None:
    node = delayed_node()
    write(node, 999)
    assert node.bucket.flusher.delay(0.0, 0.05) > 0
    node.set(b"one more")
    assert node.bucket.flusher.delay(0.0, 0.05) == 0.0


def test_many_batches_may_gather_while_replicas_are_filled() -> None:
    node = delayed_node()
    flusher = node.bucket.flusher
    write(node, 1_000)
    flusher.filling = 1
    assert flusher.delay(0.0, 0.05) > 0
    write(node, 32_000)
    assert flusher.delay(0.0, 0.05) == 0.0
    flusher.filling = 0
    assert flusher.delay(0.0, 0.05) == 0.0


def test_somebody_who_waits_has_it_written_at_once() -> None:
    node = delayed_node()
    node.set(b"k")
    node.bucket.flusher.when_durable(lambda _: None)
    assert node.bucket.flusher.delay(0.0, 0.05) == 0.0


def test_when_memory_runs_short_it_is_written_at_once() -> None:
    node = delayed_node()
    node.set(b"k")
    account = node.bucket.account
    account.high_mark = account.used
    assert node.bucket.flusher.delay(0.0, 0.05) > 0
    account.high_mark = account.used - 1
    assert node.bucket.flusher.delay(0.0, 0.05) == 0.0


def test_local_documents_are_no_business_of_the_flusher(node: Node) -> None:
    node.store.commit(CommitBatch(local={b"doc": b"1"}))
    node.bucket.flush(0, lambda _: None)
    node.flush()
    assert node.store.local(b"doc") == b"1"


def result_of(
    steps: Generator[None, None, Flush | None], between: Callable[[], None] = lambda: None
) -> Flush:
    """Run the slices of `begin`, with something in between; return what they made."""
    made: list[Flush] = []

    def collect() -> Generator[None, None, None]:
        flush = yield from steps
        assert flush is not None
        made.append(flush)

    for _ in collect():
        between()
    return made[0]


def test_a_flush_all_between_two_slices_goes_into_the_next_batch_as_a_whole() -> None:
    node = Node(settings_of(vbuckets=128))
    for number in range(2_000):
        key = b"%d" % number
        node.bucket.of_key(key).store(key, b"old", 0, 0)
    steps = node.bucket.flusher.begin_in_slices()
    next(steps)
    durable: list[bool] = []
    node.bucket.flush(0, durable.append)
    first = result_of(steps)
    assert not any(part.reset for part in first.parts)
    node.bucket.flusher.commit(first)
    node.bucket.flusher.finish(first)
    assert durable == []
    second = node.bucket.flusher.begin()
    assert second is not None
    assert second.batch.reset_all
    assert len(second.parts) == 128
    node.bucket.flusher.commit(second)
    node.bucket.flusher.finish(second)
    assert durable == [True]
    assert node.store.view().count() == 0


def test_what_is_to_be_dropped_meanwhile_goes_with_the_header_that_says_so() -> None:
    """It is not left for a later commit, when the key may have that seqno in another history."""
    node = Node(settings_of(vbuckets=1))
    seqno = node.vbucket.delete(node.set(b"gone").key).seqno
    node.flush()
    write(node, 200)
    steps = node.bucket.flusher.begin_in_slices()
    next(steps)
    told: list[bool] = []
    node.bucket.flusher.drop(node.vbucket, [(b"gone", seqno)], told.append)
    flush = result_of(steps)
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert node.header().purge_seqno == seqno
    assert b"gone" not in node.stored()
    node.flush()
    assert told == [True]


def test_writes_between_the_slices_of_begin_and_finish_are_all_persisted_in_the_end() -> None:
    node = Node(settings_of(vbuckets=128))
    written = 0

    def write() -> None:
        nonlocal written
        for _ in range(50):
            key = b"%d" % (written % 500)
            node.bucket.of_key(key).store(key, b"%d" % written, 0, 0)
            written += 1

    write()
    for _ in range(5):
        steps = node.bucket.flusher.begin_in_slices()
        flush = result_of(steps, write)
        node.bucket.flusher.commit(flush)
        for _ in node.bucket.flusher.finish_in_slices(flush):
            write()
    while flush := node.bucket.flusher.begin():
        node.bucket.flusher.commit(flush)
        node.bucket.flusher.finish(flush)
    view = node.store.view()
    for vbucket in node.bucket.vbuckets.values():
        vbucket.check()
        assert vbucket.persisted_seqno == vbucket.high_seqno
        stored = {item.key: item.value for item in view.changes_after(vbucket.id, 0)}
        assert stored == {key: item.value for key, item in table_of(vbucket).items()}


def test_a_rest_ends_when_somebody_asks_whether_a_change_is_on_disk() -> None:
    node = delayed_node()
    write(node, 10)
    flusher = node.bucket.flusher
    assert flusher.delay(0.4, 0.05) > 0
    flusher.hurry()
    assert flusher.delay(0.019, 0.05) > 0
    assert flusher.delay(0.02, 0.05) == 0
    node.flush()
    write(node, 10)
    assert flusher.delay(0.4, 0.05) > 0, "the hurry is over with the flush it asked for"


def test_what_was_written_is_freed_a_little_at_a_time() -> None:
    """Of deletions a flush has the last reference, and freeing 50,000 takes 7 ms."""
    node = Node(settings_of(vbuckets=1))
    write(node, 2_000)
    flush = node.bucket.flusher.begin()
    assert flush is not None
    records = flush.parts[0].records
    sizes = [len(records)] + [len(records) for _ in flush.let_go()]
    assert not records
    assert max(before - after for before, after in itertools.pairwise(sizes)) <= 256


# --- pausing --------------------------------------------------------------------------------------


def test_a_flusher_that_is_paused_says_so_and_keeps_what_gathers(node: Node) -> None:
    flusher = node.bucket.flusher
    assert not flusher.paused
    flusher.pause()
    assert flusher.paused
    assert not flusher.pending
    node.set(b"k")
    assert flusher.pending
    assert flusher.queued == 1
    assert node.vbucket.persisted_seqno == 0


def test_resuming_announces_what_has_gathered_once(node: Node) -> None:
    flusher = node.bucket.flusher
    announced: list[bool] = []
    node.bucket.account.on_dirty = lambda: announced.append(flusher.paused)
    flusher.pause()
    flusher.resume()
    assert announced == [], "there is nothing to do"
    flusher.pause()
    node.set(b"k")
    assert announced == [True]
    flusher.resume()
    assert announced == [True, False]
    assert not flusher.paused


def test_resuming_announces_a_waiter_though_nothing_is_dirty(node: Node) -> None:
    flusher = node.bucket.flusher
    flusher.pause()
    told: list[bool] = []
    flusher.when_durable(told.append)
    announced: list[None] = []
    node.bucket.account.on_dirty = lambda: announced.append(None)
    flusher.resume()
    assert len(announced) == 1
    node.flush()
    assert told == [True]


def test_a_flush_under_way_goes_on_to_its_end(node: Node) -> None:
    node.set(b"k")
    flush = node.begin()
    node.bucket.flusher.pause()
    node.bucket.flusher.commit(flush)
    node.bucket.flusher.finish(flush)
    assert list(node.stored()) == [b"k"]


def test_a_stop_in_order_persists_everything_all_the_same(node: Node) -> None:
    node.bucket.flusher.pause()
    node.set(b"k")
    node.stop()
    after = node.restarted()
    assert after.vbucket.get(b"k") is not None
    assert not after.bucket.flusher.paused


# --- local documents ------------------------------------------------------------------------------


def test_a_local_document_goes_with_the_next_commit(node: Node) -> None:
    told: list[bool] = []
    node.bucket.flusher.write_local(b"name", b"1", told.append)
    assert node.bucket.flusher.pending
    assert (node.store.local(b"name"), told) == (None, [])
    node.flush()
    assert (node.store.local(b"name"), told) == (b"1", [True])
    assert not node.bucket.flusher.pending
    node = node.restarted()
    assert node.store.local(b"name") == b"1"
    node.bucket.flusher.write_local(b"name", None, told.append)
    node.flush()
    assert node.store.local(b"name") is None


def test_the_flusher_is_called_for_it_and_hurries(node: Node) -> None:
    called: list[bool] = []
    node.bucket.account.on_dirty = lambda: called.append(True)
    node.bucket.flusher.write_local(b"name", b"1", lambda _: None)
    assert called
    assert node.bucket.flusher.delay(0.0, 100.0) == 0.0


def test_it_is_in_one_commit_with_the_headers_of_the_same_turn(node: Node) -> None:
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.bucket.flusher.write_local(b"name", b"follows", lambda _: None)
    flush = node.begin()
    assert flush.batch.local == {b"name": b"follows"}
    assert [change.vbucket for change in flush.batch.changes] == [0]


def test_after_a_failure_it_is_tried_again_and_writes_are_refused(node: Node) -> None:
    told: list[bool] = []
    flusher = node.bucket.flusher
    flusher.write_local(b"name", b"1", told.append)
    node.fail_flush(StoreFull("full"))
    assert told == [False]
    assert flusher.pending
    with pytest.raises(TemporaryFailure):
        node.set(b"key")
    node.flush()
    assert node.store.local(b"name") == b"1"
    node.set(b"key")


def test_a_newer_one_is_not_undone_by_trying_the_older_again(node: Node) -> None:
    flusher = node.bucket.flusher
    flusher.write_local(b"name", b"1", lambda _: None)
    flusher.write_local(b"other", b"1", lambda _: None)
    flush = node.begin()
    flusher.write_local(b"name", b"2", lambda _: None)
    flusher.failed(flush, StoreFull("full"))
    node.flush()
    assert (node.store.local(b"name"), node.store.local(b"other")) == (b"2", b"1")


def test_one_that_is_written_during_a_flush_goes_with_the_next(node: Node) -> None:
    told: list[bool] = []
    flusher = node.bucket.flusher
    node.set(b"key")
    flush = node.begin()
    flusher.write_local(b"name", b"1", told.append)
    flusher.commit(flush)
    flusher.finish(flush)
    assert (node.store.local(b"name"), told) == (None, [])
    node.flush()
    assert (node.store.local(b"name"), told) == (b"1", [True])
