"""Lines to sources: dialling again and again with patience, asking for streams, lag."""

from __future__ import annotations

import gc
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kv.harness import CountingEntropy
from tests.upr.replication_rig import A, B, FakeLink, World
from uprmc.protocol import control
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.upr.source import FIRST_PAUSE_S, Pause, Source

MOST_S = 15.0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def source(world: World, place: str = A) -> Source:
    return world.replication.sources[place]


def linked(world: World, numbers: list[int] | None = None) -> FakeLink:
    """Follow and let the connection come about."""
    world.follow(A, numbers)
    return world.calls[-1].opens()


# --- the line -----------------------------------------------------------------------------------


def test_a_source_is_dialled_at_once_and_asked_for_everything_when_it_is_ready(
    world: World,
) -> None:
    world.follow(A, [0, 2])
    (call,) = world.calls
    assert source(world).state.value == "connecting"
    link = call.connects()
    assert link.asked == []
    link.opens()
    assert link.asked == [[0, 2]]
    assert source(world).state.value == "open"
    link.begins(0)
    assert [world.standing(0), world.standing(2)] == ["streaming", "asked"]
    assert source(world).streaming == 1


@pytest.mark.parametrize("times", [0.5, 2])
def test_a_source_with_another_number_of_vbuckets_is_not_followed(
    world: World, times: float
) -> None:
    """A key would be in another vBucket here; what it has and we have not was refused for ever."""
    world.follow(A)
    link = world.calls[-1].connects()
    link.granted = {control.VERSIONS}
    link.opens()
    assert link.asked == [], "not before it is known"
    others = int(world.bucket.settings.engine.vbuckets * times)
    document = json.dumps(
        {"vBucketServerMap": {"vBucketMap": [[0]] * others, "serverList": ["a:1"]}}
    )
    ((opcode, answered),) = link.questions
    assert opcode == Opcode.GET_CLUSTER_CONFIG
    answered(ResponseFrame(opcode, value=document.encode()))
    world.wait(60)
    assert link.asked == []
    assert {world.standing(number) for number in source(world).followed} == {"refused"}
    assert source(world).last_error.startswith(f"it has {others} vBuckets")


def test_a_source_that_tells_no_number_is_followed(world: World) -> None:
    world.follow(A, [0])
    link = world.calls[-1].connects()
    link.granted = {control.VERSIONS}
    link.opens()
    ((opcode, answered),) = link.questions
    answered(ResponseFrame(opcode, status=Status.ACCESS_DENIED))
    assert link.asked == [[0]]


def test_each_connection_has_a_name_that_the_source_knows_again(world: World) -> None:
    first = linked(world)
    first.closes()
    world.redialled_after()
    again = world.calls[-1].opens()
    world.stop([3])
    world.take_over(B, [3])
    world.follow(B, [2])
    others = [call.connects().name for call in world.calls[2:]]
    assert again.name == first.name
    assert len({first.name, *others}) == 1 + len(others)


def test_pauses_double_up_to_the_longest(world: World) -> None:
    world.follow(A, [0])
    world.calls[0].failed("connection refused")
    pauses = []
    for _ in range(12):
        pauses.append(world.redialled_after())
        world.calls[-1].failed("connection refused")
    assert pauses[0] <= FIRST_PAUSE_S + 0.02
    assert pauses[-1] <= MOST_S + 0.02
    assert pauses[-1] >= MOST_S / 2
    assert [round(each, 1) for each in pauses] == sorted(round(each, 1) for each in pauses)
    assert (source(world).attempts, source(world).last_error) == (13, "connection refused")
    assert world.troubles[0] == (A, "connection refused")


def test_what_held_for_a_while_is_dialled_again_soon(world: World) -> None:
    world.follow(A, [0])
    for _ in range(8):
        world.calls[-1].failed("refused")
        world.redialled_after()
    world.calls[-1].opens()
    world.wait(MOST_S)
    link = source(world)._open_link()
    assert link is not None
    link.closes()
    assert world.redialled_after() <= FIRST_PAUSE_S + 0.02


def test_a_source_that_breaks_every_connection_at_once_is_dialled_ever_more_rarely(
    world: World,
) -> None:
    """One that sends nonsense must not be asked for it ten times a second."""
    world.follow(A, [0])
    pauses = []
    for _ in range(9):
        link = world.calls[-1].opens()
        link.begins(0)
        link.closes("falling seqnos")
        pauses.append(world.redialled_after())
    assert pauses[-1] >= MOST_S / 2


def test_what_breaks_within_a_second_has_proven_nothing(world: World) -> None:
    world.follow(A, [0])
    pauses = []
    for _ in range(9):
        link = world.calls[-1].opens()
        world.wait(0.5)
        link.closes()
        pauses.append(world.redialled_after())
    assert pauses[-1] >= MOST_S / 2


def test_a_link_is_told_the_time_ten_times_a_second(world: World) -> None:
    link = linked(world)
    world.wait(1)
    assert 9 <= len(link.ticks) <= 12


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_pause_is_never_longer_than_the_longest_nor_half_of_the_shortest(
    held: list[float],
) -> None:
    pause = Pause(CountingEntropy(), MOST_S)
    for held_s in held:
        assert FIRST_PAUSE_S / 2 <= pause.next(held_s) <= MOST_S


def test_nodes_spread_out(world: World) -> None:
    class Chance:
        def __init__(self, number: int) -> None:
            self.number = number

        def uuid48(self) -> int:
            return self.number

    assert Pause(Chance(0), 1.0).next(0) == FIRST_PAUSE_S
    assert Pause(Chance(0xFFFF), 1.0).next(0) < FIRST_PAUSE_S * 0.51


def test_a_call_that_is_not_answered_is_given_up_after_the_time_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, upr__dial_timeout_s=3.0)
    world.follow(A, [0])
    call = world.calls[0]
    world.wait(2.8)
    assert not call.abandoned
    world.wait(0.4)
    assert call.abandoned
    assert source(world).last_error.startswith("no answer for 3 s: ")
    world.redialled_after()
    silent = world.calls[-1].connects()
    world.wait(3.2)
    assert world.calls[1].abandoned
    silent.opens()  # too late
    assert source(world).state.value != "open"


def test_the_first_reason_counts_and_later_ones_change_nothing(world: World) -> None:
    world.follow(A, [0])
    call = world.calls[0]
    link = call.connects()
    call.failed("its certificate has expired")
    link.closes("connection lost")
    call.failed("connection lost")
    assert source(world).last_error == "its certificate has expired"
    assert len(world.troubles) == 1
    assert 0.04 < world.redialled_after() < 0.12


def test_a_dialler_that_fails_in_the_call_is_no_different(world: World) -> None:
    def dial(place: str, make_session: object, failed: object) -> object:
        failed("no such host")  # type: ignore[operator]
        return world.calls

    world.replication._dial = dial  # type: ignore[assignment]
    world.follow(A, [0])
    assert (source(world).state.value, source(world).last_error) == ("waiting", "no such host")


def test_a_line_that_was_hung_up_on_tells_nothing_more(world: World) -> None:
    link = linked(world)
    world.stop()
    link.begins(0)
    link.ends(0)
    link.closes()
    assert world.troubles == []
    assert len(world.calls) == 1


def test_nothing_of_a_line_outlives_it_without_the_collector(world: World) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            linked(world, [0, 1]).closes()
            world.redialled_after()
            world.calls[-1].failed("refused")
            world.stop()
            told = world.take_over(A, [0])
            world.calls[-1].opens().closes()
            world.rig.flush()
            assert told
            world.wait(2)
        world.calls.clear()
        alive = [type(each).__name__ for each in gc.get_objects() if _comes_and_goes(each)]
    finally:
        gc.enable()
    assert alive == []


def _comes_and_goes(thing: object) -> bool:
    return type(thing).__name__ in {"Line", "Source", "Followed", "Handover", "FakeLink"}


# --- streams ------------------------------------------------------------------------------------


def test_a_stream_that_ended_is_asked_for_again_on_the_same_line(world: World) -> None:
    link = linked(world, [0, 1])
    link.begins(0, 1)
    link.ends(0, "its vBucket changed its state there")
    assert (world.standing(0), world.standing(1)) == ("waiting", "streaming")
    assert world.troubles == [(A, "vBucket 0: its vBucket changed its state there")]
    world.wait(0.3)
    assert link.asked == [[0, 1], [0]]
    link.begins(0)
    assert source(world).followed[0].error == ""


def test_streams_that_end_at_once_are_asked_for_ever_more_rarely(world: World) -> None:
    link = linked(world, [0])
    asked = []
    for _ in range(9):
        link.begins(0)
        link.ends(0)
        before = len(link.asked)
        began = world.now
        while len(link.asked) == before:
            world.wait(0.1)
        asked.append(world.now - began)
    assert asked[0] <= 0.25
    assert asked[-1] >= MOST_S / 2


def test_all_that_are_due_are_asked_for_together(world: World) -> None:
    link = linked(world)
    for number in range(4):
        link.ends(number, "not my vBucket")
    world.wait(0.3)
    assert link.asked == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_stream_that_only_an_operator_can_help_is_asked_for_on_the_next_line(
    world: World,
) -> None:
    link = linked(world, [0])
    link.ends(0, "it refuses", retry=False)
    world.wait(60)
    assert link.asked == [[0]]
    assert source(world).followed[0].error == "it refuses"
    link.closes()
    world.redialled_after()
    assert world.calls[-1].opens().asked == [[0]]


def test_a_vbucket_that_is_added_gets_a_stream_on_the_line_that_is_there(world: World) -> None:
    link = linked(world, [0])
    world.follow(A, [1])
    assert link.asked == [[0], [1]]
    assert len(world.calls) == 1


def test_what_the_link_says_of_others_is_of_no_interest(world: World) -> None:
    link = linked(world, [0])
    link.begins(3)
    link.ends(3)
    link.owner.taken(0)
    assert world.followed() == {A: [0]}


# --- lag ----------------------------------------------------------------------------------------


def test_lag_is_what_the_source_is_known_to_have_more(world: World) -> None:
    link = linked(world, [0, 1])
    link.begins(0, 1)
    link.source_seqnos.update({0: 7, 1: 0, 3: 99})
    assert source(world).lag_items == 7
    world.bucket.vbuckets[0].high_seqno = 5
    assert source(world).lag_items == 2
    world.bucket.vbuckets[0].high_seqno = 8
    assert source(world).lag_items == 0


def test_lag_in_seconds_counts_from_when_nothing_was_lacking(world: World) -> None:
    link = linked(world, [0])
    link.begins(0)
    world.wait(2)
    assert source(world).lag_s == 0
    link.source_seqnos[0] = 1
    world.wait(3)
    assert 2.5 <= source(world).lag_s <= 4.5
    world.bucket.vbuckets[0].high_seqno = 1
    assert source(world).lag_s == 0


def test_a_source_that_is_not_reached_lags_ever_longer(world: World) -> None:
    link = linked(world, [0])
    link.begins(0)
    world.wait(2)
    link.source_seqnos[0] = 3
    assert source(world).lag_items == 3
    link.closes()
    world.wait(5)
    assert source(world).lag_s >= 4
    assert source(world).lag_items == 3


def test_what_is_received_counts_over_lines_and_sources(world: World) -> None:
    link = linked(world, [0])
    link.items, link.rollbacks, link.window.backoffs = 3, 1, 2
    link.closes()
    world.redialled_after()
    link = world.calls[-1].opens()
    link.items, link.rollbacks = 4, 2
    assert source(world).received == (7, 3, 2)
    world.stop()
    link = linked(world, [1])
    link.items, link.window.backoffs = 5, 1
    assert world.replication.received == (12, 3, 3)
