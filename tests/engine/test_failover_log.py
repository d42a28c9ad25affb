"""The failover log: newest first, nothing from a future that did not happen, bounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support import Node
from uprmc.engine.failover_log import branched, last_complete_seqno, new_log
from uprmc.model import FailoverEntry, SnapshotRange
from uprmc.rollback import ConsumerPosition, VBucketHoldings, rollback_point


def test_a_new_log_begins_at_zero() -> None:
    assert new_log(7) == (FailoverEntry(7, 0),)


@pytest.mark.acceptance("D12")
def test_a_branch_at_a_lower_seqno_removes_the_higher_ones() -> None:
    log = new_log(1)
    for uuid, seqno in ((2, 100), (3, 200), (4, 150)):
        log = branched(log, uuid, seqno, 25)
    assert log == (FailoverEntry(4, 150), FailoverEntry(2, 100), FailoverEntry(1, 0))


@pytest.mark.acceptance("D12")
def test_a_branch_at_the_same_seqno_keeps_the_entry_before_it() -> None:
    log = branched(branched(new_log(1), 2, 100, 25), 3, 100, 25)
    assert [entry.uuid for entry in log] == [3, 2, 1]


def test_the_oldest_entries_go_beyond_the_limit() -> None:
    log = new_log(1)
    for number in range(2, 40):
        log = branched(log, number, number * 10, 25)
        assert len(log) == min(number, 25)
    assert [entry.uuid for entry in log] == list(range(39, 14, -1))


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
