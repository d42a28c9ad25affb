"""Whose turn it is: nobody is passed over, nobody comes twice in a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from uprmc.upr.feed import Round, RoundRobin, Schedule, StreamRounds
from uprmc.upr.stream import Stream


@dataclass
class Place:
    """A vBucket, as far as a schedule looks at it."""

    id: int


@dataclass(eq=False)
class Turn:
    """A stream, as far as a schedule looks at it.

    Attributes:
        left: portions left of each snapshot that it has to send.
    """

    number: int
    left: list[int] = field(default_factory=list)
    queued: bool = False
    announced: bool = False

    @property
    def vbucket(self) -> Place:
        return Place(self.number)

    @property
    def stream(self) -> Stream:
        return cast(Stream, self)


def ready(schedule: Schedule, *turns: Turn) -> None:
    for turn in turns:
        schedule.ready(turn.stream)


def serve(schedule: Schedule) -> int | None:
    """Let whose turn it is send a portion; return its vBucket, ``None`` = it is nobody's turn."""
    turn = cast(Turn | None, schedule.next())
    if turn is None:
        return None
    sent = bool(turn.left)
    complete = False
    if sent:
        turn.left[0] -= 1
        complete = turn.left[0] <= 0
        if complete:
            turn.left.pop(0)
        turn.announced = not complete
    schedule.had_turn(turn.stream, sent=sent, complete=complete, idle=not turn.left)
    return turn.number


def serve_all(schedule: Schedule) -> list[int]:
    served = []
    while (number := serve(schedule)) is not None:
        served.append(number)
    return served


# --- round robin ----------------------------------------------------------------------------------


def test_streams_take_turns_of_one_portion() -> None:
    schedule = RoundRobin()
    ready(schedule, Turn(7, [3]), Turn(1, [2]), Turn(4, [1]))
    assert serve_all(schedule) == [7, 1, 4, 7, 1, 7]


def test_a_hot_vbucket_does_not_starve_the_others() -> None:
    schedule = RoundRobin()
    ready(schedule, Turn(0, [10_000]))
    for number in range(1, 5):
        ready(schedule, Turn(number, [1]))
        served = [serve(schedule) for _ in range(3)]
        assert number in served


def test_a_stream_that_is_ready_twice_has_one_turn() -> None:
    schedule = RoundRobin()
    turn = Turn(0, [1])
    ready(schedule, turn, turn)
    assert serve_all(schedule) == [0]
    assert not turn.queued
    turn.left = [1]
    ready(schedule, turn)
    assert serve_all(schedule) == [0]


@pytest.mark.parametrize("schedule", [RoundRobin, StreamRounds])
def test_a_stream_that_is_gone_has_no_turn(schedule: type[RoundRobin] | type[StreamRounds]) -> None:
    streams = schedule()
    turns = [Turn(number, [1]) for number in range(4)]
    ready(streams, *turns)
    for turn in (turns[0], turns[2], turns[2]):
        streams.gone(turn.stream)
    assert serve_all(streams) == [1, 3]


@pytest.mark.parametrize("schedule", [RoundRobin, StreamRounds])
def test_a_stream_that_ends_in_its_turn_disturbs_nobody(
    schedule: type[RoundRobin] | type[StreamRounds],
) -> None:
    streams = schedule()
    ends, other = Turn(0, [5]), Turn(1, [1])
    ready(streams, ends, other)
    assert cast(Turn, streams.next()) is ends
    streams.gone(ends.stream)
    streams.had_turn(ends.stream, sent=True, complete=True, idle=False)
    assert serve_all(streams) == [1]


@pytest.mark.parametrize("schedule", [RoundRobin, StreamRounds])
def test_without_streams_it_is_nobody_s_turn(
    schedule: type[RoundRobin] | type[StreamRounds],
) -> None:
    assert schedule().next() is None


# --- rounds ---------------------------------------------------------------------------------------


@pytest.mark.acceptance("D27", "D29", "D30")
def test_a_round_goes_by_vbucket_number_one_whole_snapshot_each() -> None:
    rounds = StreamRounds()
    ready(rounds, Turn(7, [2]), Turn(1, [1, 1]), Turn(4, [3]))
    assert serve_all(rounds) == [1, 4, 4, 4, 7, 7]
    assert rounds.finish() == Round(0, frozenset({1, 4, 7}))
    assert serve_all(rounds) == [1]
    assert rounds.finish() == Round(1, frozenset({1}))
    assert serve_all(rounds) == []
    assert rounds.finish() is None
    assert rounds.cycle == 2


@pytest.mark.acceptance("D27")
def test_a_vbucket_behind_the_place_of_the_round_waits_for_the_next() -> None:
    rounds = StreamRounds()
    ready(rounds, Turn(5, [2]))
    assert serve(rounds) == 5
    ready(rounds, Turn(3, [1]), Turn(9, [1]))
    assert serve_all(rounds) == [5, 9]
    rounds.finish()
    assert serve_all(rounds) == [3]


def test_a_vbucket_has_one_snapshot_in_a_round_though_it_is_ready_again() -> None:
    rounds = StreamRounds()
    turn = Turn(5, [1])
    ready(rounds, turn)
    assert serve(rounds) == 5
    turn.left = [1]
    ready(rounds, turn)
    assert serve(rounds) is None
    rounds.finish()
    assert serve(rounds) == 5


def test_nobody_has_a_turn_while_a_snapshot_is_half_sent() -> None:
    rounds = StreamRounds()
    ready(rounds, Turn(5, [9]))
    for _ in range(8):
        assert serve(rounds) == 5
        ready(rounds, Turn(6, [1]))
        assert rounds.position == 5
    assert serve_all(rounds) == [5, 6]


def test_a_round_in_which_nobody_sends_does_not_count() -> None:
    rounds = StreamRounds()
    ready(rounds, Turn(2))
    assert serve(rounds) == 2
    assert serve(rounds) is None
    assert rounds.finish() == Round(0, frozenset())
    assert (rounds.cycle, rounds.position) == (0, -1)
    ready(rounds, Turn(2, [1]))
    serve_all(rounds)
    assert rounds.finish() == Round(0, frozenset({2}))


def test_a_snapshot_that_was_begun_counts_though_its_stream_ended() -> None:
    rounds = StreamRounds()
    turn = Turn(2, [5])
    ready(rounds, turn, Turn(3, [1]))
    assert serve(rounds) == 2
    rounds.gone(turn.stream)
    assert serve_all(rounds) == [3]
    assert rounds.finish() == Round(0, frozenset({2, 3}))


class ScheduleMachine(RuleBasedStateMachine):
    """Streams come, get news, end; whoever is told ready is served within so many turns."""

    def __init__(self, schedule: RoundRobin | StreamRounds) -> None:
        super().__init__()
        self.schedule = schedule
        self.turns: dict[int, Turn] = {}
        self.waited: dict[int, int] = {}

    @rule(number=st.integers(0, 5), portions=st.integers(1, 3))
    def news(self, number: int, portions: int) -> None:
        turn = self.turns.setdefault(number, Turn(number))
        turn.left.append(portions)
        self.schedule.ready(turn.stream)
        self.waited.setdefault(number, 0)

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.turns)))
        self.schedule.gone(self.turns.pop(number).stream)
        self.waited.pop(number, None)

    @rule()
    def serve(self) -> None:
        number = serve(self.schedule)
        if number is None:
            self.nobody()
            return
        turn = self.turns[number]
        self.waited = {other: turns + 1 for other, turns in self.waited.items()}
        self.waited[number] = 0
        if not turn.left:
            del self.waited[number]

    def nobody(self) -> None:
        assert not any(turn.left for turn in self.turns.values()), "somebody was forgotten"

    @invariant()
    def everybody_who_has_something_is_known(self) -> None:
        assert all(turn.queued for turn in self.turns.values() if turn.left)

    def longest_wait(self) -> int:
        return 6

    @invariant()
    def nobody_waits_long(self) -> None:
        assert all(turns <= self.longest_wait() for turns in self.waited.values())


class RoundRobinMachine(ScheduleMachine):
    def __init__(self) -> None:
        super().__init__(RoundRobin())


class RoundsMachine(ScheduleMachine):
    """Within a round numbers rise, and each vBucket sends one snapshot."""

    def __init__(self) -> None:
        self.rounds = StreamRounds()
        super().__init__(self.rounds)

    def nobody(self) -> None:
        cycle, visited = self.rounds.cycle, frozenset(self.rounds.visited)
        ended = self.rounds.finish()
        if ended is None:
            super().nobody()
        else:
            assert ended == (cycle, visited)
            assert self.rounds.cycle == cycle + bool(visited)

    def longest_wait(self) -> int:
        return 2 * 6 * 3

    @rule()
    def a_whole_round(self) -> None:
        self.rounds.finish() if self.rounds.next() is None else None
        served = []
        while self.rounds.next() is not None:
            position = self.rounds.position
            served.append(position)
            self.serve()
        assert served == sorted(served)
        for number in set(served):
            portions = served.count(number)
            assert portions <= 3, "more than one snapshot"


TestRoundRobinMachine = RoundRobinMachine.TestCase
TestRoundsMachine = pytest.mark.acceptance("D27")(RoundsMachine.TestCase)
TestRoundRobinMachine.settings = settings(max_examples=80, stateful_step_count=40)
TestRoundsMachine.settings = settings(max_examples=80, stateful_step_count=40)
