"""Sessions that wake by themselves: in order, and not at the cost of the sockets."""

from __future__ import annotations

from tests.server.support import TurnClock
from uprmc.server.work.turns import TURN_S, WakeList


def test_those_woken_are_served_in_order_with_one_call() -> None:
    clock = TurnClock()
    wakes = WakeList(clock)
    served: list[int] = []
    for number in range(3):
        wakes.add(lambda number=number: served.append(number))
    assert len(clock.getDelayedCalls()) == 1
    assert served == []
    clock.turn()
    assert served == [0, 1, 2]
    assert clock.getDelayedCalls() == []


def test_one_woken_while_others_are_served_comes_next_turn() -> None:
    clock = TurnClock()
    wakes = WakeList(clock)
    served: list[str] = []

    def again() -> None:
        served.append("a")
        wakes.add(again)

    wakes.add(again)
    wakes.add(lambda: served.append("b"))
    clock.turn()
    assert served == ["a", "b"]
    assert len(clock.getDelayedCalls()) == 1
    clock.turn()
    assert served == ["a", "b", "a"]


def test_a_turn_ends_when_its_time_is_used_up() -> None:
    clock = TurnClock()
    wakes = WakeList(clock)
    served: list[int] = []

    def slow(number: int) -> None:
        served.append(number)
        clock.rightNow += TURN_S * 0.75

    for number in range(4):
        wakes.add(lambda number=number: slow(number))
    clock.turn()
    assert served == [0, 1]
    clock.turn()
    assert served == [0, 1, 2, 3]
