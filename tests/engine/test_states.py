"""States of vBuckets: who is let in, who is told, when history branches, what a restart finds."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from tests.contents import change_of, table_of
from tests.engine.readings import open_reading
from tests.engine.support import Node, Watching, settings_of
from uprmc.engine import replica
from uprmc.engine.vbucket import VBucket
from uprmc.errors import NotMyVBucket, RangeExceeded, TemporaryFailure
from uprmc.model import SEQNO_MAX, FailoverEntry, Item, SnapshotRange, VBucketHeader, VBucketState
from uprmc.record import pack
from uprmc.rollback import ConsumerPosition, VBucketHoldings, rollback_point, shared_until
from uprmc.storage.interface import CommitBatch

ACTIVE, REPLICA, PENDING, DEAD = VBucketState
PAIRS = list(product(VBucketState, VBucketState))


def receive(vbucket: VBucket, end: int, *seqnos: int) -> None:
    for seqno in seqnos:
        item = Item(b"%03d" % seqno, b"v", 0, 0, 9_000 + seqno, seqno, 1)
        replica.apply(vbucket, item, SnapshotRange(vbucket.snapshot.start, end))


def branch_seqnos(node: Node) -> list[int]:
    return [entry.seqno for entry in node.vbucket.failover_log]


def fail_over(node: Node) -> None:
    node.bucket.set_state(0, REPLICA)
    node.bucket.set_state(0, ACTIVE)


def kill(node: Node) -> Node:
    return node.restarted()


# --- every pair -----------------------------------------------------------------------------------


@pytest.mark.acceptance("D10", "P17")
@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("takeover", [False, True])
def test_only_becoming_active_other_than_by_takeover_begins_a_branch(
    node: Node, before: VBucketState, after: VBucketState, takeover: bool
) -> None:
    node.set(b"k")
    node.bucket.set_state(0, before)
    node.flush()
    log, watcher = node.vbucket.failover_log, Watching(node.vbucket)
    assert node.bucket.set_state(0, after, takeover=takeover) is node.vbucket
    branches = after == ACTIVE != before and not takeover
    assert (node.vbucket.failover_log != log) == branches
    if branches:
        assert node.vbucket.failover_log[1:] == log
        assert node.vbucket.failover_log[0].seqno == 1
    assert watcher.told == ([] if before == after else ["state changed"])
    assert node.vbucket.header_dirty == (before != after)
    node.flush()
    assert node.header() == node.vbucket.header(1, SnapshotRange(1, 1))
    assert node.header().state == after


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_clients_are_let_in_while_it_is_active_and_only_then(
    node: Node, before: VBucketState, after: VBucketState
) -> None:
    written = node.set(b"k")
    for state in (before, after):
        node.bucket.set_state(0, state)
        assert (0 in node.bucket.active) == (0 in node.bucket.lookups) == (state == ACTIVE)
        if state == ACTIVE:
            assert node.bucket.locate(0) is node.vbucket
            assert node.bucket.lookups[0](b"k") == pack(written)
        else:
            with pytest.raises(NotMyVBucket):
                node.bucket.locate(0)


@pytest.mark.parametrize("state", VBucketState)
def test_an_absent_vbucket_is_made_in_the_state_that_is_asked_for(state: VBucketState) -> None:
    node = Node(settings_of(2))
    node.bucket.set_state(1, DEAD)
    node.bucket.remove(1, lambda _: None)
    vbucket = node.bucket.set_state(1, state)
    assert (vbucket.state, vbucket.high_seqno) == (state, 0)
    assert [entry.seqno for entry in vbucket.failover_log] == [0]
    assert (1 in node.bucket.active) == (state == ACTIVE)
    node.flush()
    assert node.header(1).state == state


@pytest.mark.parametrize("number", [-1, 2, 1_024, 65_535])
def test_there_is_no_vbucket_beyond_the_last(number: int) -> None:
    node = Node(settings_of(2))
    with pytest.raises(RangeExceeded):
        node.bucket.set_state(number, ACTIVE)
    assert sorted(node.bucket.vbuckets) == [0, 1]


def test_nobody_is_let_in_before_the_doors_are_open(node: Node) -> None:
    node.bucket.shut_traffic_out()
    node.bucket.set_state(0, REPLICA)
    node.bucket.set_state(0, ACTIVE)
    assert (node.bucket.active, node.bucket.lookups) == ({}, {})
    with pytest.raises(TemporaryFailure):
        node.bucket.locate(0)
    node.bucket.let_traffic_in()
    assert node.bucket.locate(0) is node.vbucket


# --- who follows ----------------------------------------------------------------------------------


def test_who_waits_is_told_of_the_next_change_once(node: Node) -> None:
    watcher = Watching(node.vbucket)
    node.set(b"a")
    node.set(b"b")
    assert watcher.told == ["changed"]
    node.vbucket.waiting.append(watcher)
    node.vbucket.delete(b"a")
    assert watcher.told == ["changed"] * 2


def test_who_waits_again_when_told_is_told_of_the_change_after(node: Node) -> None:
    watcher = Watching(node.vbucket)
    told = watcher.changed

    def again() -> None:
        told()
        node.vbucket.waiting.append(watcher)

    watcher.changed = again  # type: ignore[method-assign]
    for count in (1, 2, 3):
        node.set(b"k")
        assert watcher.told == ["changed"] * count


def test_who_was_interrupted_is_told_nothing_any_more(node: Node) -> None:
    watchers = [Watching(node.vbucket), Watching(node.vbucket)]
    node.bucket.set_state(0, REPLICA)
    node.bucket.set_state(0, ACTIVE)
    node.set(b"k")
    assert [watcher.told for watcher in watchers] == [["state changed"]] * 2
    assert node.vbucket.watchers == node.vbucket.waiting == []


def test_who_no_longer_watches_is_told_nothing(node: Node) -> None:
    leaves, stays = Watching(node.vbucket), Watching(node.vbucket)
    node.vbucket.unwatch(leaves)
    node.vbucket.unwatch(leaves)
    node.set(b"k")
    node.bucket.flush(0, lambda _: None)
    assert (leaves.told, stays.told) == ([], ["changed", "reset"])


def test_whoever_leaves_another_s_side_while_all_are_told_does_not_disturb(node: Node) -> None:
    watchers = [Watching(node.vbucket) for _ in range(3)]
    first = watchers[0]
    first.interrupted = lambda why: node.vbucket.unwatch(watchers[1])  # type: ignore[method-assign]
    node.bucket.set_state(0, DEAD)
    assert [watcher.told for watcher in watchers] == [[], ["state changed"], ["state changed"]]


# --- branches -------------------------------------------------------------------------------------


@pytest.mark.acceptance("D53", "P06")
def test_a_replica_with_half_a_snapshot_branches_at_its_last_whole_state(node: Node) -> None:
    node.bucket.set_state(0, REPLICA)
    receive(node.vbucket, 90, *range(80, 91))
    receive(node.vbucket, 120, *range(101, 111))
    assert (node.vbucket.high_seqno, node.vbucket.snapshot) == (110, (90, 120))
    old = node.vbucket.failover_log[0].uuid
    node.bucket.set_state(0, ACTIVE)
    assert branch_seqnos(node) == [90, 0]
    assert (node.vbucket.high_seqno, node.vbucket.receiving) == (110, None)
    assert node.vbucket.get(b"105") is not None, "nothing is thrown away"
    held = VBucketHoldings(node.vbucket.failover_log, 110, 0)
    for seqno in range(91, 111):
        position = ConsumerPosition(seqno, SnapshotRange(seqno, seqno), old)
        assert rollback_point(position, held) == 90
    assert rollback_point(ConsumerPosition(90, SnapshotRange(90, 90), old), held) is None
    assert node.set(b"next").seqno == 111


@pytest.mark.parametrize(("purged", "after"), [(40, 40), (110, 110), (111, 110), (300, 110)])
def test_deletions_dropped_beyond_the_end_are_of_no_new_branch(
    node: Node, purged: int, after: int
) -> None:
    """Half a snapshot may tell of more than has come; seqnos from here on are given anew."""
    node.bucket.set_state(0, REPLICA)
    receive(node.vbucket, 400, *range(101, 111))
    node.vbucket.purge_seqno = purged
    node.bucket.set_state(0, ACTIVE)
    assert node.vbucket.purge_seqno == after


@pytest.mark.acceptance("D53", "P06")
def test_a_replica_with_a_whole_snapshot_branches_at_its_end(node: Node) -> None:
    node.bucket.set_state(0, REPLICA)
    receive(node.vbucket, 120, 110, 120)
    node.bucket.set_state(0, ACTIVE)
    assert branch_seqnos(node) == [120, 0]


@pytest.mark.acceptance("D12")
def test_branches_at_100_200_and_then_150_keep_100_and_150(node: Node) -> None:
    vbucket = node.vbucket
    for seqno in range(1, 100):
        node.set(b"%d" % seqno)
    node.set(b"100")
    fail_over(node)
    assert branch_seqnos(node) == [100, 0]
    for seqno in range(101, 151):
        node.set(b"%d" % seqno)
    node.bucket.set_state(0, REPLICA)
    kept = vbucket.failover_log
    receive(vbucket, 200, *range(151, 201))
    fail_over(node)
    assert branch_seqnos(node) == [200, 100, 0]
    node.bucket.set_state(0, REPLICA)
    vbucket.receiving = SnapshotRange(150, 300)  # as after a rollback to 150
    node.bucket.set_state(0, ACTIVE)
    assert branch_seqnos(node) == [150, 100, 0]
    assert vbucket.failover_log[1:] == kept


@pytest.mark.acceptance("D10", "P17")
def test_every_failover_adds_an_entry_and_the_26th_drops_the_oldest(node: Node) -> None:
    uuids = [node.vbucket.failover_log[0].uuid]
    for count in range(2, 31):
        node.set(b"k")
        fail_over(node)
        log = node.vbucket.failover_log
        uuids.insert(0, log[0].uuid)
        assert [entry.uuid for entry in log] == uuids[:25]
        assert len(log) == min(count, 25)
        assert all(newer.seqno > older.seqno for newer, older in pairwise(log))
    node.flush()
    assert node.restarted().vbucket.failover_log[1:] == log[:24]


@pytest.mark.acceptance("D10")
def test_scripted_takeovers_give_the_expected_list(node: Node) -> None:
    first = node.vbucket.failover_log[0]
    node.set(b"a")
    fail_over(node)
    node.set(b"b")
    node.bucket.set_state(0, REPLICA)
    node.bucket.set_state(0, PENDING, takeover=True)
    node.bucket.set_state(0, ACTIVE, takeover=True)
    node.set(b"c")
    fail_over(node)
    newest, older = node.vbucket.failover_log[:2]
    assert node.vbucket.failover_log == (newest, older, first)
    assert (newest.seqno, older.seqno, first.seqno) == (3, 1, 0)
    assert len({newest.uuid, older.uuid, first.uuid}) == 3


@pytest.mark.acceptance("D54")
@pytest.mark.parametrize("persisted", [False, True])
def test_a_new_master_feeds_another_replica_at_once(node: Node, persisted: bool) -> None:
    node.bucket.set_state(0, REPLICA)
    receive(node.vbucket, 90, *range(1, 91))
    receive(node.vbucket, 120, *range(101, 111))
    if persisted:
        node.flush()
    node.bucket.set_state(0, ACTIVE)
    other = Node()
    other.bucket.set_state(0, REPLICA)
    replica.take_history(other.vbucket, node.vbucket.failover_log)
    reading = open_reading(node.store, node.vbucket, 0)
    for item in reading.changes(0):
        replica.apply(other.vbucket, item, SnapshotRange(1, reading.end_seqno))
    reading.close()
    assert table_of(other.vbucket) == table_of(node.vbucket)
    assert other.vbucket.receiving is None
    assert other.vbucket.failover_log == node.vbucket.failover_log


@pytest.mark.acceptance("D55")
def test_the_newest_history_reaches_to_the_high_seqno(node: Node) -> None:
    uuid = node.vbucket.failover_log[0].uuid
    for count in range(1, 5):
        node.set(b"%d" % count)
        node.flush()
        header = node.header()
        theirs = (FailoverEntry(uuid, 0),)
        upper = shared_until(header.failover_log, header.high_seqno, theirs, SEQNO_MAX)
        assert upper == header.high_seqno == node.vbucket.persisted_seqno == count


# --- what a restart finds -------------------------------------------------------------------------


@pytest.mark.acceptance("D11", "P17")
@pytest.mark.parametrize("state", VBucketState)
def test_an_unclean_start_adds_one_entry_to_what_was_active(
    node: Node, state: VBucketState
) -> None:
    node.set(b"k")
    node.bucket.set_state(0, state)
    node.flush()
    log = node.vbucket.failover_log
    after = kill(node)
    assert after.vbucket.state == state
    if state == ACTIVE:
        assert after.vbucket.failover_log[1:] == log
        assert branch_seqnos(after) == [1, 0]
    else:
        assert after.vbucket.failover_log == log
    assert (0 in after.bucket.active) == (state == ACTIVE)
    assert after.header().failover_log == after.vbucket.failover_log, "stored before anyone comes"


@pytest.mark.acceptance("D11")
@pytest.mark.parametrize("state", VBucketState)
def test_an_orderly_restart_adds_none(node: Node, state: VBucketState) -> None:
    node.set(b"k")
    node.bucket.set_state(0, state)
    node.stop()
    log = node.vbucket.failover_log
    after = node.restarted()
    assert (after.vbucket.state, after.vbucket.failover_log) == (state, log)
    again = kill(after)
    assert len(again.vbucket.failover_log) == len(log) + (state == ACTIVE), "the mark counts once"


@pytest.mark.acceptance("P17")
def test_entries_count_the_unclean_events(node: Node) -> None:
    events = 0
    for clean in (True, False, False, True, False):
        node.set(b"k")
        if clean:
            node.stop()
        else:
            node.flush()
            events += 1
        node = node.restarted()
        node.set(b"k")
        fail_over(node)
        events += 1
        node.flush()
        assert len(node.vbucket.failover_log) == 1 + events


@pytest.mark.acceptance("D10", "D53")
def test_a_branch_is_on_disk_with_the_next_commit(node: Node) -> None:
    node.bucket.set_state(0, REPLICA)
    receive(node.vbucket, 90, 90)
    receive(node.vbucket, 120, 110)
    node.flush()
    assert node.header().snapshot == (90, 120)
    node.bucket.set_state(0, ACTIVE)
    log = node.vbucket.failover_log
    node.flush()
    header = node.header()
    assert (header.state, header.failover_log, header.high_seqno) == (ACTIVE, log, 110)
    assert header.snapshot == (110, 110)
    after = kill(node)
    assert branch_seqnos(after) == [110, 90, 0]


@pytest.mark.acceptance("D53")
def test_a_replica_that_was_killed_in_mid_snapshot_still_knows_when_it_becomes_active(
    node: Node,
) -> None:
    node.bucket.set_state(0, REPLICA)
    receive(node.vbucket, 90, 90)
    receive(node.vbucket, 120, 110)
    node.flush()
    after = kill(kill(node))
    assert (after.vbucket.high_seqno, after.vbucket.receiving) == (110, (90, 120))
    after.bucket.set_state(0, ACTIVE)
    assert branch_seqnos(after) == [90, 0]


def test_an_active_vbucket_that_was_killed_within_a_long_flush_branches_where_it_was_whole(
    node: Node,
) -> None:
    log = (FailoverEntry(7, 60), FailoverEntry(5, 0))
    header = VBucketHeader(ACTIVE, 110, SnapshotRange(50, 200), log)
    items = [Item(b"k", b"v", 0, 0, 1, 110, 1)]
    node.store.commit(CommitBatch([change_of(0, header, items)]))
    after = kill(node)
    assert branch_seqnos(after) == [50, 0], "a branch that began later is of another future"
    assert after.vbucket.receiving is None
    assert after.header().snapshot == (110, 110)


def test_half_a_snapshot_and_a_takeover_do_not_go_together(node: Node) -> None:
    """Whoever gives a vBucket away sends all of it first; if not, it is a failover."""
    node.bucket.set_state(0, REPLICA)
    receive(node.vbucket, 90, 90)
    receive(node.vbucket, 120, 110)
    node.bucket.set_state(0, PENDING, takeover=True)
    assert branch_seqnos(node) == [0]
    node.bucket.set_state(0, ACTIVE, takeover=True)
    assert branch_seqnos(node) == [90, 0]
    assert node.vbucket.receiving is None
