"""Where a consumer stands, what it asks for, and where it goes back to: rules without a wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc import rollback
from uprmc.client.position import Asked, VBucketPlace
from uprmc.client.state import Saved
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange
from uprmc.rollback import VBucketHoldings, rollback_point

A, B, C, D, E = range(1, 6)

Log = tuple[FailoverEntry, ...]


def log(text: str) -> Log:
    """Read "B@100 A@0"."""
    names = {"A": A, "B": B, "C": C, "D": D, "E": E}
    pairs = [word.split("@") for word in text.split()]
    return tuple(FailoverEntry(names[name], int(seqno)) for name, seqno in pairs)


def place(text: str, seqno: int, whole: int | None = None, end: int | None = None) -> VBucketPlace:
    """A consumer at `seqno`, in a snapshot that is whole unless its bounds are said."""
    bounds = SnapshotRange(seqno if whole is None else whole, seqno if end is None else end)
    return VBucketPlace.of(0, Saved(seqno, bounds, log(text), 0), 0, 0)


#: Our log, our seqno, the node's log, its high seqno; how far back, worked out by hand.
LOGS = [
    ("A@0", 50, "A@0", 50, None),
    ("A@0", 20, "A@0", 50, None),
    ("A@0", 60, "A@0", 50, 50),
    ("A@0", 20, "D@0", 50, 0),
    ("A@0", 90, "B@100 A@0", 150, None),
    ("A@0", 100, "B@100 A@0", 150, None),
    ("A@0", 130, "B@100 A@0", 150, 100),
    ("B@100 A@0", 130, "B@100 A@0", 150, None),
    ("B@100 A@0", 130, "A@0", 200, 100),
    ("B@100 A@0", 90, "A@0", 200, None),
    ("B@100 A@0", 100, "A@0", 200, None),
    ("B@100 A@0", 130, "C@120 A@0", 200, 100),
    ("B@100 A@0", 130, "C@80 A@0", 200, 80),
    ("B@100 A@0", 130, "C@110 B@100 A@0", 200, 110),
    ("C@250 B@100 A@0", 300, "B@100 A@0", 400, 250),
    ("C@250 B@100 A@0", 300, "B@100 A@0", 240, 240),
    ("C@250 B@100 A@0", 300, "D@180 B@100 A@0", 400, 180),
    ("C@250 B@100 A@0", 300, "D@180 A@0", 400, 100),
    ("C@250 B@100 A@0", 300, "E@60 D@40 A@0", 400, 40),
    ("D@300 C@250 B@100 A@0", 320, "E@290 C@250 A@0", 400, 290),
    ("B@0 A@0", 10, "A@0", 50, 0),
    ("C@60 A@0", 70, "B@70 A@0", 80, 60),
    ("C@20 B@10", 5, "C@20 B@10", 50, None),  # older than all that the logs have kept
    ("C@20 B@10", 5, "D@30 C@20", 50, None),
    ("C@20 B@10", 5, "D@15 B@10", 50, None),
    ("C@20 B@10", 5, "D@30 E@25", 50, 0),
]


@pytest.mark.acceptance("D14")
@pytest.mark.parametrize(("ours", "seqno", "theirs", "high", "back_to"), LOGS)
def test_both_sides_find_the_newest_common_history_and_the_smaller_seqno(
    ours: str, seqno: int, theirs: str, high: int, back_to: int | None
) -> None:
    """We do not know the node's high seqno: as long as we are below it both answers are one."""
    here = place(ours, seqno)
    asked = here.asked()
    uuid = asked.known_versions[0].uuid
    position = rollback.ConsumerPosition(asked.seqno, asked.snapshot, uuid, asked.known_versions)
    assert rollback_point(position, VBucketHoldings(log(theirs), high, 0)) == back_to
    if back_to is None or back_to < high:
        assert here.agreed(log(theirs)) == back_to


def test_inside_of_a_snapshot_that_is_not_shared_we_go_back_before_it() -> None:
    assert place("A@0", 110, 90, 120).agreed(log("B@100 A@0")) == 90
    assert place("A@0", 95, 90, 100).agreed(log("B@100 A@0")) is None


# --- what is asked and saved ----------------------------------------------------------------------


def test_a_new_consumer_asks_for_everything_and_names_no_history() -> None:
    assert VBucketPlace(0).asked() == Asked(0, SnapshotRange(0, 0), 0, ())


def test_the_history_that_is_named_is_the_one_our_seqno_was_given_in() -> None:
    asked = place("C@250 B@100 A@0", 180).asked()
    assert (asked.uuid, asked.known_versions) == (B, log("B@100 A@0"))
    at_the_branch = place("B@100 A@0", 100).asked()
    assert (at_the_branch.uuid, at_the_branch.known_versions) == (A, log("B@100 A@0"))


def test_inside_of_a_snapshot_its_bounds_are_asked_and_saved() -> None:
    here = place("A@0", 10)
    here.begin(20, 7)
    assert here.asked().snapshot == SnapshotRange(10, 10)  # announced, and nothing came
    here.take(15)
    assert (here.asked().seqno, here.asked().snapshot) == (15, SnapshotRange(10, 20))
    assert here.saved(inside=True) == Saved(15, SnapshotRange(10, 20), log("A@0"), 0, 7)
    assert here.saved(inside=False) == Saved(10, SnapshotRange(10, 10), log("A@0"), 0, 7)
    here.complete(20)
    assert here.saved(inside=False).snapshot == here.asked().snapshot == SnapshotRange(20, 20)


def test_only_as_many_known_versions_are_sent_as_are_read() -> None:
    entries = tuple(FailoverEntry(number, 100 - number) for number in range(1, 101))
    here = VBucketPlace.of(0, Saved(500, SnapshotRange(500, 500), entries, 0), 0, 0)
    assert len(here.asked().known_versions) == 25


# --- going back -----------------------------------------------------------------------------------


@pytest.mark.acceptance("P10", "D47")
@pytest.mark.parametrize(
    ("shared", "ring_from", "native", "target"),
    [
        (40, 0, False, 40),
        (39, 0, False, 25),
        (30, 0, False, 25),
        (25, 0, False, 25),
        (24, 0, False, 10),
        (9, 0, False, 9),  # no boundary is left; the ring covers every seqno of a whole snapshot
        (30, 26, False, 30),
        (26, 26, False, 26),
        (25, 26, False, 0),
        (0, 0, False, 0),
        (99, 0, False, 40),
        (30, 0, True, 25),
        (9, 0, True, 0),
    ],
)
def test_the_target_is_the_newest_boundary_that_can_be_returned_to(
    shared: int, ring_from: int, native: bool, target: int
) -> None:
    here = place("A@0", 45, 40, 60)
    here.ring_from = ring_from
    assert here.target(shared, [10, 25, 40], native=native) == target


def test_going_back_forgets_what_came_later_and_remembers_what_was_lost() -> None:
    here = place("A@0", 45, 40, 60)
    here.went_back(25, log("B@30 A@0"), 33)
    assert (here.seqno, here.whole, here.end, here.applied) == (25, 25, 25, 33)
    assert here.lost == (26, 45)
    here.went_back(10, log("A@0"), 0)
    assert (here.lost, here.applied, here.settled) == ((11, 45), 10, True)


# --- the ring -------------------------------------------------------------------------------------


def test_at_least_as_many_keys_are_kept_as_were_asked_for() -> None:
    here = place("A@0", 0)
    here.complete(100)
    assert here.remember(100, 6, 10) is None
    assert here.remember(105, 9, 10) is None  # without the first there would be nine
    assert here.remember(106, 1, 10) == 100
    assert here.ring_from == 100


def test_above_the_last_whole_snapshot_everything_is_kept() -> None:
    here = place("A@0", 100)
    here.begin(200, 0)
    assert here.remember(120, 20, 10) is None
    assert here.remember(140, 20, 10) is None
    here.complete(200)
    assert here.remember(201, 1, 10) == 120


def test_before_the_first_whole_snapshot_old_keys_go() -> None:
    here = VBucketPlace(0)
    here.begin(1000, 0)
    assert here.remember(50, 50, 10) is None
    here.take(50)
    assert here.remember(100, 50, 10) == 50


def test_before_the_first_whole_snapshot_keys_that_come_again_stay() -> None:
    """After a crash inside the first snapshot the ring is ahead of the place."""
    here = VBucketPlace.of(0, Saved(2, SnapshotRange(0, 7), (FailoverEntry(1, 0),), 2), 12, 5)
    assert here.remember(6, 3, 1) is None


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_the_ring_covers_what_it_says(batches: list[tuple[int, bool]], keep: int) -> None:
    """Against a plain list: nothing above `ring_from` is trimmed, and no less than `keep` stays."""
    here, kept, seqno = VBucketPlace(0), [0] * 0, 0
    for count, ends in batches:
        batch = list(range(seqno + 1, seqno + count + 1))
        seqno = batch[-1]
        trimmed = here.remember(seqno, count, keep)
        kept += batch
        if trimmed is not None:
            kept = [each for each in kept if each > trimmed]
        here.take(seqno)
        if ends:
            here.complete(seqno)
        assert kept == list(range(here.ring_from + 1, seqno + 1))
        assert len(kept) >= min(keep, seqno)
        assert not here.whole or here.ring_from <= here.whole


_NAMES = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True).map(
    lambda names: sorted(names, reverse=True)  # what was made later has the higher number
)


@given(_NAMES, _NAMES, st.data())
def test_what_the_handler_has_seen_is_shared_as_far_as_both_sides_agree(
    ours: list[int], theirs: list[int], data: st.DataObject
) -> None:
    """`holds_until` judges what was applied by the same rule as a rollback judges a place."""

    def drawn(uuids: list[int]) -> Log:
        seqnos = sorted(data.draw(st.lists(st.integers(1, 99), min_size=len(uuids) - 1,
                                           max_size=len(uuids) - 1)), reverse=True)  # fmt: skip
        return tuple(map(FailoverEntry, uuids, [*seqnos, 0]))

    our_log, their_log = drawn(ours), drawn(theirs)
    applied = data.draw(st.integers(our_log[0].seqno + 1, 120))
    here = VBucketPlace.of(0, Saved(applied, SnapshotRange(applied, applied), our_log, 0), 0, 0)
    back_to = here.agreed(their_log)
    assert here.holds_until(their_log) == (applied if back_to is None else back_to)


def test_a_log_is_not_taken_over_while_something_of_another_history_is_left() -> None:
    here = place("A@0", 50)
    here.remember(60, 1, 10)
    assert not here.adopt(log("B@55 A@0"))
    assert here.log == log("A@0")
    assert here.adopt(log("B@60 A@0"))


def test_a_seqno_of_64_bits_is_no_trouble() -> None:
    here = place("A@0", SEQNO_MAX)
    assert here.asked().seqno == SEQNO_MAX
