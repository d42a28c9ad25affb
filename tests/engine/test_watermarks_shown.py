"""Which rows a replica is told: never one that is ahead of what it has itself.

Source: `reference/systems.md` a.6.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support import Node
from tests.engine.test_watermarks import OWNER, UUID, filled, limit, report, restarted, row
from uprmc.engine.replica import apply, take_history
from uprmc.engine.watermarks.rows import (
    EARLIER_REPORTS,
    Kind,
    Limit,
    Row,
    Shown,
    newest_within,
    shown_to,
)
from uprmc.model import FailoverEntry, Item, SnapshotRange, VBucketState

REPLICA, ACTIVE = VBucketState.REPLICA, VBucketState.ACTIVE


def told(watermark: int, name: bytes = b"x", floor: int | None = None) -> Row:
    return Row(name, Kind.XDCR, watermark, UUID, floor, 0, 0)


def show(node: Node, reach: int, name: bytes = b"n1") -> tuple[list[int], int]:
    rows, hidden = node.bucket.watermarks.show(node.vbucket, name, reach)
    return [each.watermark for each in rows], hidden


@pytest.mark.acceptance("X25")
@pytest.mark.parametrize(
    ("reports", "reach", "expected"),
    [
        ([1024], 1024, 1024),
        ([2048], 1024, None),
        ([2048, 1000, 500], 1024, 1000),
        ([2048, 1024, 1000], 1024, 1024),
        ([2048, 1000], 2048, 2048),
        ([0], 0, 0),
        ([], 10, None),
    ],
)
def test_the_newest_report_that_is_not_ahead_is_told(
    reports: list[int], reach: int, expected: int | None
) -> None:
    found = newest_within(map(told, reports), reach)
    assert (None if found is None else found.watermark) == expected


def test_a_builder_is_ahead_while_its_floor_is() -> None:
    assert newest_within([told(0, floor=1200)], 1000) is None
    assert newest_within([told(0, floor=1200)], 1200) is not None


@pytest.mark.acceptance("X25")
@given(
    st.lists(st.lists(st.integers(0, 50), max_size=5).map(sorted), max_size=5),
    st.lists(st.integers(0, 60), min_size=1, max_size=6).map(sorted),
)
def test_nothing_told_is_ahead_and_nobody_waits_for_ever(
    rows: list[list[int]], reaches: list[int]
) -> None:
    reports = [
        [told(each, b"%d" % number) for each in reversed(row)] for number, row in enumerate(rows)
    ]
    answers = [shown_to(reports, reach) for reach in reaches]
    for answer, reach in zip(answers, reaches, strict=True):
        assert all(each.effective <= reach for each in answer.rows)
        assert len(answer.rows) + answer.hidden == len(rows)
    for one, next_one in pairwise(answers):
        before = {each.id: each.watermark for each in one.rows}
        after = {each.id: each.watermark for each in next_one.rows}
        assert all(after[name] >= watermark for name, watermark in before.items())
    newest = [row[-1] for row in rows if row]
    last = shown_to(reports, 60)
    assert sorted(each.watermark for each in last.rows) == sorted(newest)


def test_what_was_told_once_is_told_again_when_its_report_is_forgotten() -> None:
    node = filled()
    report(node, 100)
    report(node, 0, b"n1", kind=Kind.REPLICA, owner=object())
    assert show(node, 100) == ([100], 0)
    for watermark in range(200, 200 + 2 * EARLIER_REPORTS):
        report(node, watermark)
    assert show(node, 150) == ([100], 0)
    assert show(node, 150, b"another") == ([], 1)


@pytest.mark.acceptance("X25")
def test_a_replica_that_starts_over_shows_no_row_above_what_it_has_again() -> None:
    node = Node()
    vbucket = node.bucket.set_state(0, REPLICA)
    take_history(vbucket, [FailoverEntry(UUID, 0)])
    apply(vbucket, Item(b"a", b"v", 0, 0, 1, 10, 1), SnapshotRange(0, 10))
    node.flush()
    node.bucket.limits.learn_table(vbucket, 0, [told(8)], incomplete=False)
    assert node.bucket.watermarks.rows(vbucket) == [told(8)]
    vbucket.reset(UUID + 1)
    take_history(vbucket, [FailoverEntry(9, 20), FailoverEntry(UUID, 0)])
    apply(vbucket, Item(b"b", b"v", 0, 0, 2, 12, 1), SnapshotRange(0, 30))
    assert node.bucket.watermarks.rows(vbucket) == [told(0)]
    assert show(node, 100) == ([], 1)


def test_replicas_and_moves_are_no_business_of_a_replica() -> None:
    node = filled()
    for number, kind in enumerate(Kind):
        report(node, number, b"%d" % number, kind=kind)
    rows = node.bucket.watermarks.show(node.vbucket, b"n1", 500).rows
    assert {each.kind for each in rows} == set(Kind) - {Kind.REPLICA, Kind.REBALANCE}


@pytest.mark.acceptance("X26")
def test_the_purge_waits_for_what_a_replica_was_told_until_the_replica_is_gone() -> None:
    node = filled()
    report(node, 400)
    report(node, 500, b"n1", kind=Kind.REPLICA)
    report(node, 900)
    assert limit(node) == Limit(500, b"n1")
    assert show(node, 500) == ([400], 0)
    assert limit(node) == Limit(400, b"x")
    node.bucket.watermarks.remove(node.vbucket, b"n1", OWNER)
    assert limit(node) == Limit(900, b"x")


# --- at the replica -------------------------------------------------------------------------------


def copy(*rows: Row, incomplete: bool = False, purge_seqno: int = 0) -> Node:
    """A replica that has learned rows."""
    node = filled(100)
    node.bucket.set_state(node.vbucket.id, REPLICA)
    uuid = node.vbucket.failover_log[0].uuid
    learned = [each._replace(vb_uuid=uuid) for each in rows]
    node.bucket.limits.learn_table(node.vbucket, purge_seqno, learned, incomplete=incomplete)
    return node


@pytest.mark.acceptance("X22")
@pytest.mark.parametrize(
    ("rows", "incomplete", "purge_seqno", "expected"),
    [
        ([], False, 0, Limit(0, "source")),
        ([], False, 60, Limit(60, "source")),
        ([told(40)], False, 60, Limit(40, b"x")),
        ([told(80)], False, 60, Limit(60, "source")),
        ([told(80)], True, 60, Limit(0, "source")),
        ([], False, 101, Limit(0, "source")),
    ],
)
def test_a_replica_purges_up_to_the_least_of_its_rows_and_its_source(
    rows: list[Row], incomplete: bool, purge_seqno: int, expected: Limit
) -> None:
    node = copy(*rows, incomplete=incomplete, purge_seqno=purge_seqno)
    assert limit(node) == expected


@pytest.mark.acceptance("X20")
@pytest.mark.parametrize("incomplete", [False, True])
@pytest.mark.parametrize("rows", [[], [told(40)]])
def test_what_a_replica_was_told_survives_a_restart(rows: list[Row], incomplete: bool) -> None:
    node = copy(*rows, incomplete=incomplete, purge_seqno=60)
    node.flush()
    again = restarted(node)
    assert again.bucket.watermarks.rows(again.vbucket) == node.bucket.watermarks.rows(node.vbucket)
    assert again.bucket.watermarks.is_incomplete(again.vbucket.id) is incomplete
    assert again.vbucket.purge_seqno == 60


def test_rows_at_a_replica_do_not_expire_by_themselves() -> None:
    node = copy(told(40)._replace(lifetime_s=1))
    node.clock.advance(1_000_000)
    assert row(node).watermark == 40


@pytest.mark.acceptance("X26")
def test_promoted_everyone_has_a_fresh_lease_and_nobody_is_ahead_of_the_branch() -> None:
    node = copy(told(40)._replace(lifetime_s=60), told(2048, b"y"), incomplete=True)
    node.clock.advance(1_000_000)
    node.bucket.set_state(node.vbucket.id, ACTIVE)
    assert (row(node).watermark, row(node).reported_at) == (40, int(node.clock.now()))
    assert row(node, b"y").watermark == 100
    for number in range(3_000):
        node.set(b"new%d" % number)
    node.flush()
    assert row(node, b"y").watermark == 100
    assert limit(node) == Limit(40, b"x")
    node.clock.advance(61)
    assert limit(node) == Limit(100, b"y")


def test_an_empty_answer_hides_nothing() -> None:
    assert shown_to([], 10) == Shown((), 0)
