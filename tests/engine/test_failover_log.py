"""The failover log: newest first, nothing from a future that did not happen, bounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support import Node, settings_of
from uprmc.engine import failover_log
from uprmc.engine.failover_log import branched, last_complete_seqno, new_log
from uprmc.engine.replica import take_history
from uprmc.errors import StoreCorrupt
from uprmc.model import FailoverEntry, SnapshotRange, VBucketState
from uprmc.rollback import ConsumerPosition, VBucketHoldings, rollback_point


@pytest.mark.acceptance("D11")
def test_any_number_of_unclean_starts_without_a_write_keeps_the_histories_that_hold_something() -> (
    None
):
    node = Node()
    consumers = node.vbucket.failover_log[0]
    node.set(b"k")
    node.flush()
    for _ in range(40):
        node = node.restarted()
    log = node.vbucket.failover_log
    assert len(log) == 25
    assert log[-1] == consumers
    position = ConsumerPosition(1, SnapshotRange(1, 1), consumers.uuid)
    assert rollback_point(position, VBucketHoldings(log, 1, 0)) is None


@pytest.mark.parametrize(
    ("high", "snapshot", "complete"),
    [
        (0, SnapshotRange(0, 0), 0),
        (100, SnapshotRange(100, 100), 100),
        (110, SnapshotRange(90, 120), 90),
        (119, SnapshotRange(90, 120), 90),
        (120, SnapshotRange(90, 120), 120),
        (90, SnapshotRange(90, 120), 90),
    ],
)
def test_only_whole_snapshots_count(high: int, snapshot: SnapshotRange, complete: int) -> None:
    assert last_complete_seqno(high, snapshot) == complete


@pytest.mark.acceptance("D12")
@given(
    branches=st.lists(st.integers(0, 300), max_size=40),
    limit=st.integers(2, 25),
)
def test_a_log_never_rises_from_newest_to_oldest(branches: list[int], limit: int) -> None:
    log = new_log(1)
    for uuid, seqno in enumerate(branches, start=2):
        before = log
        log = branched(log, uuid, seqno, limit)
        assert log[0] == FailoverEntry(uuid, seqno)
        assert 1 <= len(log) <= limit
        seqnos = [entry.seqno for entry in log]
        assert seqnos == sorted(seqnos, reverse=True)
        kept = [entry for entry in before if entry.seqno <= seqno]
        assert set(log[1:]) <= set(kept)
        assert len(log) == min(limit, 1 + len(kept)), "whatever still holds stays"
        written = [old for new, old in pairwise([log[0], *kept]) if new.seqno > old.seqno]
        assert set(written[: limit - 2]) <= set(log), "the newest that were written in stay"


# --- terms ----------------------------------------------------------------------------------------


ACTIVE, REPLICA, PENDING, DEAD = VBucketState


def promote(node: Node, number: int = 0) -> None:
    node.bucket.set_state(number, REPLICA)
    node.bucket.set_state(number, ACTIVE)


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "known", "after"), [(0, 0, 1), (3, 3, 4), (3, 9, 10)])
def test_a_promotion_is_above_all_that_is_known(own: int, known: int, after: int) -> None:
    assert failover_log.promoted(own, known) == after


@pytest.mark.parametrize("state", VBucketState)
@pytest.mark.parametrize(("own", "known"), [(2, 1), (2, 2), (2, 3)])
def test_only_an_active_with_a_lower_term_is_deposed(
    state: VBucketState, own: int, known: int
) -> None:
    assert failover_log.is_deposed(state, own, known) is (state == ACTIVE and known > own)


def test_a_history_is_shared_by_its_name_alone() -> None:
    log = (FailoverEntry(0xB, 7), FailoverEntry(0xA, 0))
    assert failover_log.shares_history(log, [0xC, 0xA])
    assert not failover_log.shares_history(log, [0xC, 0])
    assert not failover_log.shares_history(log, [])


# --- on disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [True, False])
def test_no_restart_changes_a_term(orderly: bool) -> None:
    node = Node()
    promote(node)
    node.flush()
    for _ in range(3):
        if orderly:
            node.stop()
        node = node.restarted()
        assert (node.vbucket.state, node.vbucket.term, node.vbucket.known_term) == (ACTIVE, 2, 2)


def test_a_term_is_in_the_commit_that_holds_its_failover_log() -> None:
    node = Node()
    node.set(b"k")
    node.flush()
    before = node.header()
    promote(node)
    assert node.header() == before
    node.flush()
    after = node.header()
    assert (after.term, after.failover_log) == (2, node.vbucket.failover_log)
    assert after.failover_log != before.failover_log


def test_what_deposed_a_vbucket_is_remembered_over_a_crash() -> None:
    node = Node()
    node.bucket.learn_term(node.vbucket, 6)
    node.flush()
    node = node.restarted()
    assert (node.vbucket.state, node.vbucket.term, node.vbucket.known_term) == (DEAD, 1, 6)
    node.bucket.set_state(0, ACTIVE)
    assert node.vbucket.term == 7


def test_a_lower_term_than_the_known_one_changes_nothing() -> None:
    node = Node()
    node.bucket.learn_term(node.vbucket, 1)
    assert (node.vbucket.state, node.vbucket.known_term) == (ACTIVE, 1)
    assert node.bucket.flusher.begin() is None


@pytest.mark.parametrize("crash", [True, False])
def test_a_vbucket_that_was_removed_is_made_again_above_its_old_term(crash: bool) -> None:
    node = Node()
    node.bucket.learn_term(node.vbucket, 4)
    gone: list[bool] = []
    node.bucket.remove(0, gone.append)
    node.flush()
    assert gone == [True]
    if crash:
        node = node.restarted()
    assert node.bucket.set_state(0, ACTIVE).term == 5


def test_a_vbucket_that_was_removed_and_follows_again_begins_with_nothing() -> None:
    node = Node()
    node.bucket.set_state(0, DEAD)
    node.bucket.remove(0, lambda _: None)
    vbucket = node.bucket.set_state(0, REPLICA)
    assert (vbucket.term, vbucket.known_term) == (0, 1)


def test_a_spoilt_record_of_removed_terms_is_one_line() -> None:
    for document in (b"{", b"[1]", b'{"a": 1}', b'{"1": null}'):
        with pytest.raises(StoreCorrupt, match="removed"):
            failover_log.decode_removed(document)


# --- replicas -------------------------------------------------------------------------------------


def test_a_replica_takes_the_term_of_its_sources_log_with_it() -> None:
    node = Node()
    node.bucket.set_state(0, REPLICA)
    take_history(node.vbucket, [FailoverEntry(0xB, 0)], 5)
    node.flush()
    header = node.header()
    assert (header.term, header.known_term) == (5, 5)
    assert header.failover_log == (FailoverEntry(0xB, 0),)


def test_a_term_that_is_new_under_the_same_log_is_written_too() -> None:
    node = Node()
    node.bucket.set_state(0, REPLICA)
    node.flush()
    take_history(node.vbucket, node.vbucket.failover_log, 5)
    node.flush()
    assert node.header().term == 5


def test_a_source_without_terms_lowers_nothing() -> None:
    node = Node()
    node.bucket.set_state(0, REPLICA)
    take_history(node.vbucket, [FailoverEntry(0xB, 0)], 0)
    assert (node.vbucket.term, node.vbucket.known_term) == (1, 1)


def test_another_history_has_its_own_term_and_a_promotion_is_above_both() -> None:
    node = Node()
    for _ in range(4):
        promote(node)
    node.bucket.set_state(0, REPLICA)
    take_history(node.vbucket, [FailoverEntry(0xB, 0)], 2)
    assert (node.vbucket.term, node.vbucket.known_term) == (2, 5)
    assert node.bucket.set_state(0, ACTIVE).term == 6


def test_a_takeover_that_begins_no_branch_has_a_higher_term_all_the_same() -> None:
    node = Node()
    node.bucket.set_state(0, REPLICA)
    take_history(node.vbucket, [FailoverEntry(0xB, 0)], 3)
    log = node.vbucket.failover_log
    node.bucket.set_state(0, PENDING, takeover=True)
    vbucket = node.bucket.set_state(0, ACTIVE, takeover=True)
    assert (vbucket.term, vbucket.failover_log) == (4, log)


# --- an unclean start -----------------------------------------------------------------------------


def test_after_a_crash_active_vbuckets_may_wait_to_be_told() -> None:
    node = Node(settings_of(engine={"after_unclean_start": "pending"}))
    node.set(b"k")
    node.flush()
    log = node.vbucket.failover_log
    node = node.restarted()
    assert (node.vbucket.state, node.vbucket.failover_log) == (PENDING, log)
    node.flush()
    node = node.restarted()
    assert node.vbucket.state == PENDING
    node.bucket.set_state(0, ACTIVE)
    assert node.vbucket.term == 2
    assert len(node.vbucket.failover_log) == 2


def test_after_an_orderly_stop_nobody_waits() -> None:
    node = Node(settings_of(engine={"after_unclean_start": "pending"}))
    node.stop()
    assert node.restarted().vbucket.state == ACTIVE
