"""What the next batch reads, rule by rule; `test_course_model` tries them all together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.columnar.errors import DataLost, NoVBucket, RolledBack
from uprmc.spark.batch_planner import (
    FAIL,
    RESTART,
    REWIND,
    PlanRules,
    Seen,
    SettledBatch,
    advanced,
    at_rest,
    carried_on,
    settled,
    shares,
    slices,
    unchanged,
)
from uprmc.spark.offsets import Offset, OffsetPosition

A, B, C = 1, 2, 3
PLACES = {0: "node"}


def at(
    position: OffsetPosition, *, confirmed: bool = True, fail_on_data_loss: bool = True
) -> SettledBatch:
    rules = PlanRules(REWIND, fail_on_data_loss)
    return settled(Offset(8, {0: position}, "old"), confirmed, PLACES, rules)


def next_of(
    position: OffsetPosition,
    seen: Seen,
    *,
    how: str = REWIND,
    rows: int | None = None,
    confirmed: bool = True,
    fail_on_data_loss: bool = True,
) -> OffsetPosition:
    """The position after a batch from a new lease."""
    here = at(position, confirmed=confirmed, fail_on_data_loss=fail_on_data_loss)
    rules = PlanRules(how, fail_on_data_loss)
    return advanced(here, {0: seen}, "new", rules, rows).at(0)


def seen(*log: tuple[int, int], high: int, purged: int = 0, place: str = "node") -> Seen:
    return Seen(log, high, purged, place)


def test_a_batch_reads_the_whole_lease_and_ends_in_a_complete_state() -> None:
    found = next_of(OffsetPosition(A, 10, moved=True), seen((A, 0), high=30))
    assert found == OffsetPosition(A, 30, None, (10,), moved=True)


def test_a_limited_batch_ends_inside_of_a_snapshot() -> None:
    found = next_of(OffsetPosition(A, 10), seen((A, 0), high=30), rows=5)
    assert found == OffsetPosition(A, 15, (10, 30), moved=True)
    last = carried_on(Offset(8, {0: found}, "new"), None).at(0)
    assert last == OffsetPosition(A, 30, None, (10,), moved=True)


def test_an_end_that_its_lease_did_not_outlive_is_no_boundary() -> None:
    found = next_of(
        OffsetPosition(A, 20, None, (10,), moved=True), seen((A, 0), high=30), confirmed=False
    )
    assert found == OffsetPosition(A, 30, None, (10,), moved=True)


def test_a_stream_goes_back_to_a_boundary_and_not_into_a_snapshot() -> None:
    place = OffsetPosition(A, 40, None, (25, 10))
    found = next_of(place, seen((B, 30), (A, 0), high=35))
    assert found == OffsetPosition(B, 35, None, (25, 10), 25, moved=True)
    assert next_of(place, seen((B, 30), (A, 0), high=35), how=RESTART).rewound_to == 0


def test_a_stream_that_may_not_go_back_names_the_numbers() -> None:
    with pytest.raises(RolledBack, match="vb=0 checkpoint=40 rollback_to=30: "):
        next_of(OffsetPosition(A, 40), seen((B, 30), (A, 0), high=35), how=FAIL)


@pytest.mark.parametrize(
    ("log", "place", "rewound_to"),
    [
        (((A, 0),), "node", None),
        (((B, 45), (A, 0)), "node", None),  # killed once: what was handed over was on its disk
        (((B, 45), (A, 0)), "replica", 10),
        (((C, 46), (B, 45), (A, 0)), "node", 10),
    ],
)
def test_a_new_history_above_an_unproven_end(
    log: tuple[tuple[int, int], ...], place: str, rewound_to: int | None
) -> None:
    position = OffsetPosition(A, 40, None, (10,), moved=True)
    found = next_of(position, seen(*log, high=50, place=place), confirmed=False)
    assert found.rewound_to == rewound_to


def test_what_was_begun_at_the_present_goes_back_no_further_than_needed() -> None:
    place = OffsetPosition(A, 40, origin=40)
    assert next_of(place, seen((B, 30), (A, 0), high=35)).rewound_to == 30
    assert next_of(place, seen((B, 0), high=35)).rewound_to == 0


def test_dropped_deletions_are_a_loss_or_a_new_beginning() -> None:
    there = seen((A, 0), high=50, purged=25)
    with pytest.raises(DataLost, match="vb=0 checkpoint=20: deletions up to 25"):
        next_of(OffsetPosition(A, 20), there)
    for how in (FAIL, REWIND):
        found = next_of(OffsetPosition(A, 20, None, (10,)), there, how=how, fail_on_data_loss=False)
        assert found == OffsetPosition(A, 50, rewound_to=0, moved=True)
    assert next_of(OffsetPosition(A, 25), there).rewound_to is None


def test_going_back_below_dropped_deletions_is_going_back_to_the_beginning() -> None:
    position = OffsetPosition(A, 40, None, (20,))
    for purged, to in ((19, 20), (20, 20), (21, 0), (25, 0), (40, 0)):
        found = next_of(position, seen((B, 30), (A, 0), high=50, purged=purged))
        assert found.rewound_to == to


def test_a_vbucket_that_is_gone() -> None:
    here = at(OffsetPosition(A, 10))
    with pytest.raises(NoVBucket, match="vb=0"):
        advanced(here, {}, "new", PlanRules(REWIND))
    kept = advanced(here, {}, "new", PlanRules(REWIND, False))
    assert kept.at(0) == OffsetPosition(A, 10)


def test_at_rest_an_unproven_end_turns_out_to_be_complete() -> None:
    here = at(OffsetPosition(A, 20, None, (10,), moved=True), confirmed=False)
    rules = PlanRules(REWIND)
    assert unchanged(here, {0: seen((A, 0), high=20)}, rules)
    assert not unchanged(here, {0: seen((A, 0), high=21)}, rules)
    assert at_rest(here).at(0) == OffsetPosition(A, 20, None, (10,))
    assert at_rest(here).lease is None


def test_slices_begin_where_the_batch_before_ended() -> None:
    start = Offset(8, {0: OffsetPosition(A, 10, (5, 30)), 1: OffsetPosition(A, 7)}, "lease")
    end = Offset(8, {0: OffsetPosition(A, 30, moved=True), 1: OffsetPosition(A, 7)}, "lease")
    (part,) = slices(start, end)
    assert (part.start, part.snapshot, part.end, part.resumed) == (10, (5, 30), 30, True)


def test_a_vbucket_that_went_back_to_its_newest_state_has_only_a_control_row() -> None:
    (part,) = slices(
        Offset(8, {0: OffsetPosition(A, 40)}),
        Offset(8, {0: OffsetPosition(B, 30, rewound_to=30)}, "new"),
    )
    assert part.only_control
    assert part.control == 30


lags = st.dictionaries(st.integers(0, 63), st.integers(0, 1000), min_size=1)


@given(lags, st.integers(0, 5000))
def test_a_limit_is_shared_out_to_the_last_row(lags: dict[int, int], rows: int) -> None:
    parts = shares(lags, rows)
    assert sum(parts.values()) == min(sum(lags.values()), max(1, rows))
    assert all(0 <= parts[number] <= lag for number, lag in lags.items())


def test_whoever_is_further_behind_gets_more() -> None:
    assert shares({1: 900, 2: 90, 3: 9}, 100) == {1: 91, 2: 9, 3: 0}
    assert shares({1: 900, 2: 90}, None) == {1: 900, 2: 90}
