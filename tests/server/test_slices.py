"""Long work shares a turn's budget: it gives way when that is spent, whoever spent it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from tests.server.support import TurnClock
from uprmc.server.work.turns import (
    COLLECT_S,
    TURN_S,
    WORK_S,
    InSlices,
    LongWork,
    TurnBudget,
    WakeList,
)


class World:
    """A pretended clock, long work on it, and what is done in each turn."""

    def __init__(self, *, collects: bool = False) -> None:
        self.clock = TurnClock()
        self.work = LongWork(self.clock, *([self.collect] if collects else []))
        self.done: list[str] = []
        self.collect_s = 0.0

    def collect(self) -> None:
        self.done.append("collect")
        self.clock.rightNow += self.collect_s

    def steps(self, name: str, count: int, step_s: float) -> Generator[None, None, str]:
        """Steps that take `step_s` each and return their name in the end."""
        for _ in range(count):
            self.done.append(name)
            self.clock.rightNow += step_s
            yield
        return name

    def turn(self) -> list[str]:
        """Let a turn pass; return what was done in it."""
        self.done.clear()
        self.clock.turn()
        return list(self.done)


# --- the budget -----------------------------------------------------------------------------------


def test_steps_begin_until_the_budget_is_spent_and_not_after() -> None:
    world = World()
    world.work.add(world.steps("a", 5, WORK_S / 2))
    assert world.turn() == ["a", "a"], "the second step ends at the limit, none begins there"
    world = World()
    world.work.add(world.steps("a", 5, WORK_S / 2 - 1e-6))
    assert world.turn() == ["a", "a", "a"], "one begins just below the limit"


def test_a_step_that_takes_the_whole_budget_is_the_only_one_of_its_turn() -> None:
    world = World()
    world.work.add(world.steps("a", 2, 10 * WORK_S))
    world.work.add(world.steps("b", 2, 10 * WORK_S))
    assert [world.turn() for _ in range(4)] == [["a"], ["b"], ["a"], ["b"]]


def test_pieces_of_work_take_turns_and_share_one_budget() -> None:
    world = World()
    for name in "abc":
        world.work.add(world.steps(name, 2, WORK_S / 4))
    assert world.turn() == ["a", "b", "c", "a"]
    assert world.turn() == ["b", "c"]
    assert not world.clock.getDelayedCalls(), "nothing is planned when there is nothing to do"


def test_what_is_added_in_a_turn_whose_budget_is_spent_goes_to_the_next() -> None:
    world = World()

    def adding() -> Generator[None, None, None]:
        world.work.add(world.steps("b", 1, 0.0))
        world.done.append("a")
        world.clock.rightNow += WORK_S
        yield

    world.work.add(adding())
    assert [world.turn(), world.turn()] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("used_s", "left_s"),
    [(0.0, TURN_S), (WORK_S, TURN_S - WORK_S), (TURN_S, 0.0), (2 * TURN_S, 0.0)],
)
def test_sessions_get_what_work_has_left_of_a_turn(used_s: float, left_s: float) -> None:
    clock = TurnClock()
    budget = TurnBudget(clock.seconds)
    budget.begin_work()
    clock.rightNow += used_s
    budget.end_work()
    clock.rightNow += 1.0  # requests are served first; they are not counted
    assert budget.take_rest() == pytest.approx(clock.rightNow + left_s)
    assert budget.take_rest() == pytest.approx(clock.rightNow + TURN_S), "that is another turn"


def test_one_woken_session_is_served_however_long_the_work_took() -> None:
    world = World()
    wakes = WakeList(world.clock, world.work.budget)

    def session(name: str) -> None:
        world.done.append(name)
        world.clock.rightNow += 1e-6

    world.work.add(world.steps("a", 1, 10 * TURN_S))
    for name in ("x", "y", "z"):
        wakes.add(lambda name=name: session(name))
    assert world.turn() == ["a", "x"]
    assert world.turn() == ["y", "z"]


# --- the collector --------------------------------------------------------------------------------


def test_the_collector_comes_first_and_what_it_took_is_off_the_budget() -> None:
    world = World(collects=True)
    world.collect_s = WORK_S / 2
    world.work.add(world.steps("a", 9, WORK_S / 4))
    world.work.collect_soon()
    assert world.turn() == ["collect", "a", "a"]


def test_nothing_is_done_beside_a_collection_that_takes_the_whole_budget() -> None:
    world = World(collects=True)
    world.collect_s = 10 * COLLECT_S
    world.work.add(world.steps("a", 2, WORK_S))
    world.clock.rightNow += COLLECT_S
    assert world.turn() == ["collect"]
    world.clock.rightNow += COLLECT_S
    assert world.turn() == ["a"], "not twice on end, or work would stand still"
    world.clock.rightNow += COLLECT_S
    assert world.turn() == ["collect"]


def test_while_work_goes_on_the_collector_looks_every_few_milliseconds() -> None:
    world = World(collects=True)
    world.work.add(world.steps("a", 1_000, WORK_S))
    turns = [world.turn()[0] for _ in range(100)]
    assert turns.count("collect") == pytest.approx(100 * WORK_S / COLLECT_S, abs=10)
    world.clock.rightNow += COLLECT_S
    assert world.turn()[0] == "collect"


def test_without_work_it_looks_when_it_is_asked_to_and_only_then() -> None:
    world = World(collects=True)
    world.clock.rightNow += 10 * COLLECT_S
    assert world.turn() == []
    for _ in range(2):
        world.work.collect_soon()
        assert world.turn() == ["collect"]
        assert world.turn() == []


# --- pieces of work -------------------------------------------------------------------------------


def test_who_waits_for_steps_gets_what_they_return_or_raise() -> None:
    world = World()
    told: list[Any] = []

    def broken() -> Generator[None, None, None]:
        yield
        raise LookupError("no")

    world.work.do(world.steps("a", 2, 0.0)).addCallback(told.append)
    world.work.do(broken()).addErrback(lambda failure: told.append(failure.type))
    world.turn()
    assert told == [LookupError, "a"]


def test_work_that_was_stopped_is_not_gone_on_with() -> None:
    world = World()
    done: Deferred[Any] = world.work.do(world.steps("a", 3, WORK_S))
    world.turn()
    world.work.stop()
    world.work.stop()
    assert not world.clock.getDelayedCalls()
    world.work.add(world.steps("b", 1, 0.0))
    assert world.turn() == ["b"]
    assert not done.called


def test_a_broken_piece_does_not_end_the_others() -> None:
    world = World()

    def broken() -> Generator[None, None, None]:
        raise RuntimeError
        yield

    world.work.add(broken())
    world.work.add(world.steps("a", 2, 0.0))
    assert world.turn() == ["a", "a"]


# --- done whenever it is asked for ----------------------------------------------------------------


class Repeated:
    """Work of ten steps that can be asked for again and again."""

    def __init__(self, step_s: float) -> None:
        self.world = World()
        self.step_s = step_s
        self.begun = 0
        self.broken = False
        self.slices = InSlices(self.world.work, self.steps)

    def steps(self) -> Generator[None, None, str]:
        self.begun += 1
        if self.broken:
            raise RuntimeError
        return self.world.steps("a", 10, self.step_s)


def test_it_can_be_asked_for_while_it_goes_on_again_later_and_stopped() -> None:
    repeated = Repeated(0.0)
    for _ in range(2):
        repeated.slices.start()
        repeated.slices.start()
        assert repeated.world.turn() == ["a"] * 10
    assert repeated.begun == 2
    repeated.step_s = WORK_S
    repeated.slices.start()
    assert repeated.world.turn() == ["a"]
    repeated.slices.stop()
    repeated.slices.stop()
    assert repeated.world.turn() == []
    repeated.slices.start()
    assert repeated.world.turn() == ["a"], "it begins from the start"
    assert repeated.begun == 4


def test_an_exception_ends_only_this_time() -> None:
    repeated = Repeated(0.0)
    repeated.broken = True
    repeated.slices.start()
    assert repeated.world.turn() == []
    repeated.broken = False
    repeated.slices.start()
    assert repeated.world.turn() == ["a"] * 10
