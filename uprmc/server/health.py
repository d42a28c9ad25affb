"""What is wrong with a node, and since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: What has happened once is named for so long.
RECENT_S = 60.0

#: How bad a problem is: the node or a part of it does not work, something is about to, or it may be
#: meant so.
BAD, WARNING, NOTE = "bad", "warn", "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    how: str
    what: str
    do: str
    panel: str  # of the page, which shows more
    subject: str = ""  # whom it concerns, where the panel has several


class Health:
    """Remembers since when each problem has been there.

    Attributes:
        problems: of the last look, the worst first.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, str], float] = {}
        self._counters: dict[str, tuple[int, float]] = {}
        self.problems: list[Problem] = []

    def seen(self, problems: Iterable[Problem], now: float) -> None:
        """Take what a look has found at a Unix time."""
        found = sorted(problems, key=lambda each: (BAD, WARNING, NOTE).index(each.how))
        self._since = {_key(each): self._since.get(_key(each), now) for each in found}
        self.problems = found

    def since(self, problem: Problem) -> float:
        """Return the Unix time at which a problem was seen first."""
        return self._since[_key(problem)]

    @property
    def state(self) -> str:
        """``ok``, ``warning`` or ``failing``."""
        how = {each.how for each in self.problems}
        return "failing" if BAD in how else "warning" if WARNING in how else "ok"

    def has_grown(self, name: str, count: int, monotonic: float) -> bool:
        """Tell whether a counter, which began at 0, has grown within the last time."""
        known, at = self._counters.get(name, (0, -RECENT_S))
        if count != known:
            at = monotonic if count > known else -RECENT_S
            self._counters[name] = (count, at)
        return monotonic - at < RECENT_S


def _key(problem: Problem) -> tuple[str, str, str]:
    return problem.panel, problem.subject, problem.how
