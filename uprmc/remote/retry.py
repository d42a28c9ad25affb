"""When to try again, and when to give up: waits that double, counted from the last progress.

There is neither a clock nor chance in here: the time and a random number are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Backoff:
    """Waits that double.

    Args:
        first_s: the first wait, in seconds.
        most_s: the longest one.

    Attributes:
        attempts: how many failed in a row.
        length_s: the last wait, before chance shortened it; 0 = there was none.
    """

    __slots__ = ("_first_s", "_most_s", "at", "attempts", "length_s")

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s
        self.at = 0.0  # when the next attempt is due, for those who ask by `failed`
        self.good()

    def good(self) -> None:
        """Something went well: begin with short waits again."""
        self.attempts = 0
        self.length_s = 0.0

    def next(self, chance: float = 0.0) -> float:
        """Return how long to wait after one more failure.

        Args:
            chance: from 0 to 1, shortens the wait by up to a half, so that those who lost the same
                node do not all come back at once.
        """
        self.attempts += 1
        self.length_s = min(self.length_s * 2 or self._first_s, self._most_s)
        return self.length_s * (1 - chance / 2)

    def failed(self, now: float, chance: float = 0.0) -> None:
        """Make the next attempt due after the next wait."""
        self.at = now + self.next(chance)


class RetryPolicy:
    """Waits that double, until there was no progress for too long or too often.

    Args:
        backoff: the waits.
        now: the present, in seconds of any clock that only grows.
        retries: how many attempts in a row may fail; ``None`` = any number.
        patience_s: how long there may be no progress; ``None`` = for ever.
    """

    def __init__(
        self,
        backoff: Backoff,
        now: float = 0.0,
        *,
        retries: int | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._backoff, self._retries, self._patience_s = backoff, retries, patience_s
        self.good(now)

    def good(self, now: float = 0.0) -> None:
        """There was progress."""
        self._backoff.good()
        self._since = now

    def wait_s(self, now: float = 0.0, chance: float = 0.0) -> float | None:
        """Return how long to wait before the next attempt, ``None`` = give up.

        No wait goes beyond the end of the patience: there is one attempt then.
        """
        if self._retries is not None and self._backoff.attempts >= self._retries:
            return None
        if self._patience_s is None:
            return self._backoff.next(chance)
        left_s = self._since + self._patience_s - now
        return min(self._backoff.next(chance), left_s) if left_s > 0 else None


class Left(NamedTuple):
    """What a round of requests left undone."""

    todo: Sequence[int]  # what is to be asked again; empty = all is done
    failed: int  # how many of these failed; others may only be repeated for the sake of their order
    look: bool  # whether to find out first who has what now


def until_done(
    todo: Sequence[int],
    ask: Callable[[Sequence[int]], Left],
    look_around: Callable[[], None],
    policy: RetryPolicy,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Sequence[int]:
    """Ask round after round, until nothing is left or there is no progress; return what is left.

    Args:
        todo: numbers of the requests.
        ask: asks some of them once.
        look_around: asks the nodes what they have.
        policy: when to give up; fewer failures than ever are progress, and the first round is.
        clock: seconds that only grow.
        sleep: waits.
    """
    least = len(todo) + 1
    while True:
        todo, failed, look = ask(todo)
        if failed < least:
            least = failed
            policy.good(clock())
        wait_s = policy.wait_s(clock()) if todo else None
        if wait_s is None:
            return todo
        sleep(wait_s)
        if look:
            look_around()
