"""Versions that a foreign master imposes: what they get, and in which history they are numbered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contents import table_of
from tests.engine.support import BEGINNING, Node, Watching, settings_of
from uprmc.engine.replica import apply, begin_again, flush_all, outrank, overwrite
from uprmc.engine.with_meta import REV_MAX
from uprmc.errors import InvalidArguments, Locked, OutOfMemory, TemporaryFailure
from uprmc.model import FailoverEntry, Item, Life, SnapshotRange, VBucketState

ACTIVE, REPLICA, PENDING, _ = VBucketState


@pytest.fixture
def node(node: Node) -> Node:
    """A node whose only vBucket is a replica."""
    node.bucket.set_state(0, REPLICA)
    node.flush()
    return node


def version(
    key: bytes = b"a", value: bytes = b"x", *, rev: int = 1, cas: int = 7, **more: Any
) -> Item:
    return Item(key, value, 3, 0, cas, 0, rev, **more)


def tombstone(key: bytes = b"a", *, rev: int = 1, cas: int = 7) -> Item:
    return Item(key, None, 0, 0, cas, 0, rev, life=Life.DELETED)


def impose(
    node: Node, item: Item, *, plain: bool = False, within_snapshot: bool = False
) -> Item | None:
    return overwrite(node.bucket, node.vbucket, item, plain=plain, within_snapshot=within_snapshot)


# --- versions -------------------------------------------------------------------------------------


def test_a_version_keeps_all_but_its_seqno(node: Node) -> None:
    stored = impose(node, version(rev=9, nru=1))
    assert stored == Item(b"a", b"x", 3, 0, 7, 1, 9)
    assert stored == table_of(node.vbucket)[b"a"]
    assert stored.nru == 1
    node.flush()
    assert node.stored()[b"a"] == stored
    node.check()


def test_a_tombstone_is_dated_now(node: Node) -> None:
    impose(node, tombstone(rev=4))
    stored = table_of(node.vbucket)[b"a"]
    assert (stored.expiry, stored.rev, stored.life) == (int(BEGINNING), 4, Life.DELETED)
    assert node.vbucket.max_deleted_rev == 4


def test_revisions_go_down_if_the_master_says_so(node: Node) -> None:
    impose(node, version(rev=9))
    impose(node, version(rev=2))
    assert table_of(node.vbucket)[b"a"].rev == 2


def test_a_plain_version_gets_cas_and_revision_of_this_node(node: Node) -> None:
    impose(node, tombstone(b"gone", rev=5))
    last = node.bucket.account.last_cas
    new = impose(node, version(cas=0, rev=0), plain=True)
    assert new is not None
    assert (new.cas, new.rev) == (last + 1, 6)
    again = impose(node, version(cas=0, rev=0), plain=True)
    assert again is not None
    assert (again.cas, again.rev) == (last + 2, 7)


def test_a_plain_deletion_of_nothing_is_nothing(node: Node) -> None:
    assert impose(node, tombstone(), plain=True) is None
    impose(node, version())
    assert impose(node, tombstone(), plain=True) is not None
    assert impose(node, tombstone(), plain=True) is None
    assert node.vbucket.high_seqno == 2


def test_a_value_that_is_only_on_disk_can_be_overwritten(node: Node) -> None:
    impose(node, version())
    node.flush()
    node.eject(b"a")
    impose(node, version(value=b"new"))
    assert node.vbucket.table.absent == 0
    node.check()


def test_refusals_leave_no_trace(node: Node) -> None:
    impose(node, version())
    before = (node.vbucket.high_seqno, node.vbucket.failover_log, node.bucket.account.last_cas)
    with pytest.raises(InvalidArguments):
        impose(node, version(cas=2**63))
    with pytest.raises(InvalidArguments):
        impose(node, version(rev=REV_MAX + 1))
    with pytest.raises(InvalidArguments):
        outrank(node.vbucket, REV_MAX + 1)
    node.bucket.account.write_limit = 0
    with pytest.raises(TemporaryFailure):
        impose(node, version(), within_snapshot=True)
    node.bucket.account.exhausted = True
    with pytest.raises(OutOfMemory):
        impose(node, version())
    impose(node, tombstone())
    assert node.vbucket.receiving is None
    after = (node.vbucket.high_seqno - 1, node.vbucket.failover_log, node.bucket.account.last_cas)
    assert after == before


def test_a_lock_counts_only_where_clients_are_served(node: Node) -> None:
    node.bucket.set_state(0, ACTIVE)
    impose(node, version())
    node.vbucket.lock(b"a", 15)
    for item in (version(), tombstone()):
        with pytest.raises(Locked):
            impose(node, item)
    node.bucket.set_state(0, PENDING)
    impose(node, version())
    assert not node.vbucket.locks


# --- histories ------------------------------------------------------------------------------------


def test_numbering_begins_a_branch_once(node: Node) -> None:
    (old, *rest) = node.vbucket.failover_log
    watcher = Watching(node.vbucket)
    impose(node, version())
    (new, *others) = node.vbucket.failover_log
    assert others == [old, *rest]
    assert new.seqno == 0
    assert watcher.told == ["state changed"]
    impose(node, version(b"b"))
    assert node.vbucket.failover_log == (new, *others)


def test_what_came_from_a_peer_is_not_numbered_on_under_the_peers_name(node: Node) -> None:
    log = (FailoverEntry(0xBEEF, 0),)
    node.vbucket.failover_log = log
    apply(node.vbucket, Item(b"p", b"", 0, 0, 5, 5, 1), SnapshotRange(0, 5), purge_seqno=3)
    impose(node, version())
    assert node.vbucket.failover_log[0].seqno == 5
    assert node.vbucket.failover_log[1:] == log
    assert node.vbucket.high_seqno == 6
    assert node.vbucket.purge_seqno == 3


def test_nobody_is_sent_back_for_deletions_above_what_is_here(node: Node) -> None:
    """Of a peer's snapshot, half received, the purge seqno may lie above our newest seqno."""
    apply(node.vbucket, Item(b"p", b"", 0, 0, 5, 5, 1), SnapshotRange(0, 9), purge_seqno=8)
    impose(node, version())
    assert node.vbucket.failover_log[0].seqno == 0
    assert node.vbucket.purge_seqno == 5
    assert node.vbucket.receiving == SnapshotRange(0, 7)


def test_a_takeover_that_begins_no_branch_makes_the_next_numbering_begin_one(node: Node) -> None:
    """The history goes on at whoever takes the vBucket over from here in its turn."""
    impose(node, version())
    log = node.vbucket.failover_log
    node.bucket.set_state(0, ACTIVE, takeover=True)
    assert node.vbucket.failover_log == log
    node.bucket.set_state(0, REPLICA)
    impose(node, version(b"b"))
    assert node.vbucket.failover_log[1:] == log
    assert node.vbucket.failover_log[0].seqno == 1


def test_a_restart_begins_a_branch_even_if_it_was_clean(node: Node) -> None:
    impose(node, version())
    log = node.vbucket.failover_log
    node.stop()
    again = node.restarted()
    assert again.vbucket.failover_log == log
    impose(again, version(b"b"))
    assert again.vbucket.failover_log[1:] == log


def test_an_active_vbucket_goes_on_in_its_history(node: Node) -> None:
    node.bucket.set_state(0, ACTIVE)
    log = node.vbucket.failover_log
    impose(node, version(), within_snapshot=True)
    assert node.vbucket.failover_log == log
    assert node.vbucket.receiving is None


def test_the_failover_log_has_its_limit() -> None:
    node = Node(settings_of(engine={"max_failover_entries": 3}))
    for _ in range(5):
        node.bucket.set_state(0, REPLICA)
        impose(node, version())
        assert len(node.vbucket.failover_log) <= 3
        node.bucket.set_state(0, ACTIVE)


def test_beginning_anew_is_a_history_of_its_own(node: Node) -> None:
    impose(node, version())
    begin_again(node.bucket, node.vbucket)
    (entry,) = node.vbucket.failover_log
    impose(node, version(b"b"))
    assert node.vbucket.failover_log == (entry,)
    node.flush()
    assert set(node.stored()) == {b"b"}
    node.check()


def test_after_a_flush_numbering_needs_no_branch(node: Node) -> None:
    impose(node, version())
    flush_all(node.bucket)
    (entry,) = node.vbucket.failover_log
    impose(node, version(b"b"))
    assert node.vbucket.failover_log == (entry,)


@pytest.mark.parametrize("step_s", [5, -5])
def test_a_flush_is_done_at_once_although_the_clock_has_just_been_set(
    node: Node, step_s: int
) -> None:
    impose(node, version())
    node.clock.step(step_s)
    flush_all(node.bucket)
    assert table_of(node.vbucket) == {}


def test_a_removed_vbuckets_successor_begins_with_its_own_branch(node: Node) -> None:
    impose(node, version())
    node.bucket.set_state(0, VBucketState.DEAD)
    node.bucket.remove(0, lambda _: None)
    node.bucket.set_state(0, REPLICA)
    ((uuid, _),) = node.vbucket.failover_log
    impose(node, version())
    assert [entry.uuid for entry in node.vbucket.failover_log][1:] == [uuid]


# --- snapshots ------------------------------------------------------------------------------------


def test_a_snapshot_is_open_until_it_is_said_to_be_whole(node: Node) -> None:
    impose(node, version())
    impose(node, version(b"b"), within_snapshot=True)
    watcher = Watching(node.vbucket)
    impose(node, version(b"c"), within_snapshot=True)
    assert node.vbucket.receiving == SnapshotRange(1, 4)
    assert watcher.told == []
    node.flush()
    assert node.header().snapshot == SnapshotRange(1, 4)
    node.vbucket.complete_snapshot()
    assert watcher.told == ["changed"]
    assert node.vbucket.whole_seqno == 3
    node.flush()
    assert node.header().snapshot == SnapshotRange(3, 3)


def test_nothing_is_written_when_nothing_was_open(node: Node) -> None:
    node.flush()
    node.vbucket.complete_snapshot()
    assert node.bucket.flusher.begin() is None


def test_what_was_left_open_stays_open(node: Node) -> None:
    impose(node, version(), within_snapshot=True)
    impose(node, version(b"b"))
    assert node.vbucket.receiving == SnapshotRange(0, 3)
    node.flush()
    again = node.restarted()
    assert again.vbucket.receiving == SnapshotRange(0, 3)


# --- revisions ------------------------------------------------------------------------------------


def test_a_masters_highest_deletion_is_outranked_and_kept(node: Node) -> None:
    outrank(node.vbucket, 12)
    outrank(node.vbucket, 11)
    node.flush()
    assert node.header().max_deleted_rev == 12
    new = impose(node, version(rev=0), plain=True)
    assert new is not None
    assert new.rev == 13
