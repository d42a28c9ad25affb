"""Sessions that found something to send by themselves, served at the end of the turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from uprmc.server.turn_budget import TurnBudget


class WakeList:
    """One node's queue of such sessions, for all its listeners.

    However often a session is woken in a turn, it is pumped once, after the input that woke it has
    been dealt with: that is what gathers live mutations into one write. First come, first served.

    `reactor.LeanReactor` runs it at the end of the turn in which it was added to; any other reactor
    in its next turn.

    Args:
        clock: the reactor.
        budget: the budget of its turns, if it is shared.

    Attributes:
        waiting: who has been added and not been served.
        alone: whether this turn has a single event. Then those who wait may be served before who
            woke them gets an answer; with other events in the turn that would only keep more of
            them waiting.
    """

    def __init__(self, clock: Any, budget: TurnBudget | None = None) -> None:
        self._clock = clock
        self._budget = budget or TurnBudget(clock.seconds)
        self.waiting: deque[Callable[[], None]] = deque()
        self.alone = False
        self._scheduled = False
        end_turns_with = getattr(clock, "end_turns_with", None)
        self._driven = end_turns_with is not None
        if end_turns_with is not None:
            end_turns_with(self)

    def add(self, pump: Callable[[], None]) -> None:
        """Call `pump`, which must not raise, soon; O(1)."""
        self.waiting.append(pump)
        self._schedule()

    def run(self) -> None:
        """Serve those who wait now until the turn's budget is spent; the rest comes next turn."""
        self._scheduled = False
        waiting = self.waiting
        until = self._budget.take_rest()
        for _ in range(len(waiting)):
            waiting.popleft()()
            if self._clock.seconds() > until:
                break
        if waiting:
            self._schedule()

    def close(self) -> None:
        """Serve nobody any more."""
        self.waiting.clear()
        if self._driven:
            self._clock.end_turns_without(self)

    def _schedule(self) -> None:
        if not (self._driven or self._scheduled):
            self._scheduled = True
            self._clock.callLater(0, self.run)
