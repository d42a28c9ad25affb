"""How long one turn of the reactor may keep its sockets waiting: one rule for all that can wait.

What cannot wait is the request that a socket brought. All else shares the time of a turn: long work
that comes in steps (`slices`), the collector, and sessions that send by themselves (`wake_list`).
"""

from __future__ import annotations

from collections.abc import Callable

#: What one turn spends on all of that together.
TURN_S = 0.004

#: How much of it long work may take, so that sessions always have a share.
WORK_S = 0.002

#: How long one session may take to make an answer before others have their turn.
SLICE_S = 0.001


class TurnBudget:
    """What is left of the present turn. Each user gets at least one step done.

    Args:
        seconds: monotonic time.
    """

    __slots__ = ("_began", "_seconds", "_used_s")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._began = 0.0
        self._used_s = 0.0

    def begin_work(self) -> float:
        """Begin a turn with long work; return until when steps may begin."""
        self._began = self._seconds()
        return self._began + WORK_S

    def end_work(self) -> None:
        """Take what the long work of this turn used off what sessions get in it."""
        self._used_s = self._seconds() - self._began

    def take_rest(self) -> float:
        """Return until when sessions may be served; what follows is another turn's."""
        used_s, self._used_s = min(self._used_s, TURN_S), 0.0
        return self._seconds() + TURN_S - used_s
