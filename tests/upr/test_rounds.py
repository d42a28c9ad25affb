"""Rounds: vBuckets by number, one whole snapshot each, and word of every completed round.

Source: seed 000, "loop over the partitions"; UPR reference 7; rows D27, D29 to D31; ruling R4.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upr.peer import (
    CLOSE_STREAM,
    DEAD,
    INVALID,
    MARKER,
    MUTATION,
    OK,
    PARTITION_START,
    REPLICA,
    ROUND_COMPLETE,
    SNAPSHOT_END,
    STREAM_END,
    Frame,
    Peer,
    Rig,
    check_stream,
    control,
    fill,
    frame,
    kinds,
    only,
    stream_request,
    upr_rig,
    write,
)

VBUCKETS = 8


@pytest.fixture
def rig() -> Rig:
    return upr_rig(engine__vbuckets=VBUCKETS)


def in_rounds(rig: Rig, vbuckets: range = range(VBUCKETS)) -> Peer:
    """A connection in rounds with a stream of each vBucket, from now on."""
    peer = Peer.open(rig)
    peer.controls(uprmc_rounds=b"true", uprmc_snapshot_end=b"true", uprmc_barrier=b"true")
    for number in reversed(vbuckets):
        assert peer.stream(number, rig.bucket.vbuckets[number].high_seqno) == []
    peer.received.clear()
    return peer


def turns(frames: list[Frame]) -> list[int]:
    return [each.vbucket for each in only(frames, PARTITION_START)]


def judge_rounds(frames: list[Frame]) -> None:
    """Ascending vBuckets, nothing between the frames of a snapshot, a count after each round."""
    current, last, cycle, visited = -1, -1, 0, 0
    for each in frames:
        if each.is_reply:
            continue
        if each.opcode == PARTITION_START:
            assert current == -1, "a turn began within another"
            assert each.vbucket > last, "not in ascending order"
            assert each.cycle == cycle
            current = last = each.vbucket
        elif each.opcode == SNAPSHOT_END:
            assert each.vbucket == current
            current, visited = -1, visited + 1
        elif each.opcode == ROUND_COMPLETE:
            assert current == -1, "the round ended within a snapshot"
            assert (each.cycle, each.visited, each.vbucket) == (cycle, visited, 0)
            cycle, visited, last = cycle + 1, 0, -1
        elif each.opcode in (MARKER, MUTATION, 0x58):
            assert each.vbucket == current, "interleaved"


@pytest.mark.acceptance("D27", "D30")
def test_a_round_goes_through_the_vbuckets_in_ascending_order(rig: Rig) -> None:
    peer = in_rounds(rig)
    for number in (5, 1, 7, 3):
        write(rig, number, b"a", b"b")
    frames = peer.drain()
    assert turns(frames) == [1, 3, 5, 7]
    one = [PARTITION_START, MARKER, MUTATION, MUTATION, SNAPSHOT_END]
    assert kinds(frames) == one * 4 + [ROUND_COMPLETE]
    judge_rounds(frames)


def test_a_turn_says_from_where_to_where(rig: Rig) -> None:
    fill(rig, 2, 3)
    peer = in_rounds(rig)
    write(rig, 2, b"x", b"y")
    start, *_, end, complete = peer.drain()
    assert (start.first, start.last, start.cycle) == (3, 5, 0)
    assert (end.end, end.items) == (5, 2)
    assert (complete.cycle, complete.visited, complete.skipped) == (0, 1, VBUCKETS - 1)
    assert complete.opaque == 0x11, "of the OPEN"


@pytest.mark.acceptance("D29")
def test_a_vbucket_without_changes_is_skipped_and_counted(rig: Rig) -> None:
    peer = in_rounds(rig)
    write(rig, 4, b"k")
    frames = peer.drain()
    assert turns(frames) == [4]
    assert {each.vbucket for each in only(frames, MARKER)} == {4}
    (complete,) = only(frames, ROUND_COMPLETE)
    assert (complete.visited, complete.skipped) == (1, VBUCKETS - 1)


@pytest.mark.acceptance("D30")
def test_each_round_is_announced_once_with_its_number(rig: Rig) -> None:
    peer = in_rounds(rig)
    for number in (3, 2, 6):
        write(rig, number, b"k")
        peer.drain()
    completed = only(peer.received, ROUND_COMPLETE)
    assert [each.cycle for each in completed] == [0, 1, 2]
    judge_rounds(peer.received)


@pytest.mark.acceptance("D31")
def test_an_idle_connection_in_rounds_says_nothing(rig: Rig) -> None:
    peer = in_rounds(rig)
    write(rig, 0, b"k")
    peer.drain()
    wakes = peer.wakes
    for second in range(60):
        peer.session.tick(float(second))
        assert peer.drain() == []
    assert peer.wakes == wakes
    write(rig, 1, b"k")
    assert peer.wakes == wakes + 1, "a write wakes it at once"
    assert turns(peer.drain()) == [1]


def test_what_is_written_behind_the_position_waits_for_the_next_round(rig: Rig) -> None:
    peer = in_rounds(rig)
    for number in (2, 5):
        fill(rig, number, 20, b"x" * 500)
    peer.turn(3_000)
    assert turns(peer.received) == [2]
    write(rig, 1, b"behind")
    write(rig, 4, b"ahead")
    write(rig, 2, b"again")
    peer.drain()
    assert turns(peer.received) == [2, 4, 5, 1, 2]
    assert [each.cycle for each in only(peer.received, PARTITION_START)] == [0, 0, 0, 1, 1]
    judge_rounds(peer.received)


def test_who_ended_in_a_round_is_not_taken_for_somebody_who_was_skipped(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.controls(uprmc_rounds=b"true")
    for number in range(4):
        assert peer.stream(number, 0, 1 if number == 1 else 2**64 - 1) == []
    write(rig, 1, b"k")
    write(rig, 2, b"k")
    frames = peer.drain()
    assert STREAM_END in kinds(frames)
    (complete,) = only(frames, ROUND_COMPLETE)
    assert (complete.visited, complete.skipped) == (2, 2)


def test_a_stream_that_is_closed_in_its_turn_lets_the_round_go_on(rig: Rig) -> None:
    peer = in_rounds(rig)
    fill(rig, 1, 50, b"x" * 500)
    write(rig, 3, b"k")
    peer.turn(2_000)
    frames = peer.say(frame(CLOSE_STREAM, vbucket=1))
    assert turns(frames) == [3]
    assert len(only(frames, ROUND_COMPLETE)) == 1


def test_a_stream_that_is_ended_in_its_turn_lets_the_round_go_on(rig: Rig) -> None:
    peer = in_rounds(rig)
    fill(rig, 1, 50, b"x" * 500)
    write(rig, 3, b"k")
    peer.turn(2_000)
    rig.bucket.set_state(1, DEAD)
    frames = peer.drain()
    assert turns(frames) == [3]
    assert len(only(frames, STREAM_END)) == 1


def test_in_rounds_a_stream_that_waits_for_the_disk_holds_the_round_up(rig: Rig) -> None:
    hub = rig.services.upr
    peer = Peer.open(rig)
    peer.controls(uprmc_rounds=b"true")
    fill(rig, 1, 3)
    rig.flush()
    fill(rig, 2, 3)
    hub.backfills.used = hub.backfills.limit
    assert peer.stream(1) == []
    assert peer.stream(2) == []
    hub.backfills.free(lambda: False)
    assert turns(peer.drain()) == [1, 2]


def test_a_reading_given_up_in_a_turn_keeps_the_turn(rig: Rig) -> None:
    peer = in_rounds(rig)
    fill(rig, 1, 50, b"x" * 500)
    write(rig, 0, b"before")
    write(rig, 2, b"after")
    peer.turn(4_000)
    assert turns(peer.received) == [0, 1]
    rig.services.upr.release_views()
    write(rig, 1, b"more")
    peer.drain()
    assert turns(peer.received) == [0, 1, 2]
    assert check_stream([f for f in peer.received if f.vbucket == 1 and not f.is_reply]) == 51
    judge_rounds(peer.received)


def test_a_replica_that_receives_in_its_turn_keeps_the_turn(rig: Rig) -> None:
    from uprmc.engine.replica import apply
    from uprmc.model import Item, SnapshotRange

    def received(seqno: int, snapshot: SnapshotRange) -> None:
        item = Item(b"k%d" % seqno, b"x" * 500, 0, 0, seqno, seqno, 1, 0)
        apply(rig.bucket.vbuckets[1], item, snapshot)

    rig.bucket.set_state(1, REPLICA)
    peer = in_rounds(rig)
    for seqno in range(1, 41):
        received(seqno, SnapshotRange(1, 40))
    write(rig, 2, b"k")
    peer.turn(4_000)
    received(41, SnapshotRange(41, 42))
    rig.services.upr.release_views()
    peer.drain()
    assert turns(peer.received) == [1], "half a snapshot was sent, so nobody else has a turn"
    received(42, SnapshotRange(41, 42))
    peer.drain()
    assert turns(peer.received) == [1, 2]
    judge_rounds(peer.received)


# --- choosing rounds ------------------------------------------------------------------------------


def test_rounds_are_chosen_before_the_first_stream(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.stream(0)
    assert peer.ask(control(b"uprmc_rounds", b"true")).status == INVALID
    peer.say(frame(CLOSE_STREAM))
    assert peer.ask(control(b"uprmc_rounds", b"true")).status == OK


def test_rounds_can_be_taken_back(rig: Rig) -> None:
    peer = Peer.open(rig)
    peer.controls(uprmc_rounds=b"true")
    peer.controls(uprmc_rounds=b"false")
    write(rig, 0, b"k")
    assert kinds(peer.stream(0)) == [MARKER, MUTATION]


def test_without_negotiation_none_of_our_frames_is_sent(rig: Rig) -> None:
    peer = Peer.open(rig)
    for number in range(4):
        write(rig, number, b"k")
        peer.stream(number)
    assert not {PARTITION_START, ROUND_COMPLETE, SNAPSHOT_END} & set(kinds(peer.received))


def test_snapshot_ends_come_without_rounds_too(rig: Rig) -> None:
    write(rig, 0, b"a", b"b", b"a")
    peer = Peer.open(rig)
    peer.controls(uprmc_snapshot_end=b"true")
    frames = peer.stream(0, 0, 3, opaque=4)
    assert kinds(frames) == [MARKER, MUTATION, MUTATION, SNAPSHOT_END, STREAM_END]
    end = frames[3]
    assert (end.end, end.items, end.opaque, end.vbucket) == (3, 2, 4, 0)


# --- anything at any time -------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "pull", "flush", "give up", "close", "open"]),
        st.integers(0, VBUCKETS - 1),
        st.integers(1, 900),
    ),
    max_size=80,
)


@pytest.mark.acceptance("D27", "D28", "D29", "D30")
@given(STEPS)
def test_whatever_happens_rounds_are_rounds(steps: list[tuple[str, int, int]]) -> None:
    rig = upr_rig(engine__vbuckets=VBUCKETS)
    peer = in_rounds(rig)
    held = dict.fromkeys(range(VBUCKETS), 0)
    closed = False
    for what, number, size in steps:
        if what == "write":
            write(rig, number, b"k%d" % (size % 5), value=b"x" * size)
        elif what == "pull":
            peer.turn(size)
        elif what == "flush":
            rig.flush()
        elif what == "give up":
            rig.services.upr.release_views()
        elif what == "close":
            peer.send(frame(CLOSE_STREAM, vbucket=number))
            closed = True
        elif number not in peer.side.feed.streams:
            peer.send(stream_request(number))
    peer.drain()
    if not closed:
        judge_rounds(peer.received)
        for number in held:
            own = [f for f in peer.received if not f.is_reply and f.vbucket == number]
            end = rig.bucket.vbuckets[number].high_seqno
            assert check_stream([f for f in own if f.opcode != ROUND_COMPLETE]) == end
    places = [(each.cycle, each.vbucket) for each in only(peer.received, PARTITION_START)]
    completed = [each.cycle for each in only(peer.received, ROUND_COMPLETE)]
    if not closed:
        assert places == sorted(set(places))
    assert completed == sorted(set(completed))
