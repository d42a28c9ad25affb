"""Waits that double, until there was no progress for too often or too long."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from uprmc.remote.retry import Backoff, Left, RetryPolicy, until_done


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [backoff.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert backoff.attempts == 5


def test_after_something_good_they_begin_anew() -> None:
    backoff = Backoff(0.1, 5.0)
    backoff.failed(100.0)
    backoff.failed(200.0)
    assert backoff.at == 200.2
    backoff.good()
    backoff.failed(300.0)
    assert (backoff.at, backoff.attempts) == (300.1, 1)


@given(st.floats(0, 1), st.integers(1, 20))
def test_chance_makes_a_wait_shorter_by_a_half_at_most(chance: float, times: int) -> None:
    lucky, plain = Backoff(0.1, 5.0), Backoff(0.1, 5.0)
    for _ in range(times):
        wait_s, length_s = lucky.next(chance), plain.next()
        assert length_s / 2 <= wait_s <= length_s == lucky.length_s


def test_no_wait_at_all_is_a_wait_of_nothing() -> None:
    assert [Backoff(0.0, 5.0).next() for _ in range(2)] == [0.0, 0.0]


def test_it_gives_up_after_so_many_failures_in_a_row() -> None:
    policy = RetryPolicy(Backoff(1.0, 1.0), retries=2)
    assert [policy.wait_s() for _ in range(3)] == [1.0, 1.0, None]
    policy.good()
    assert policy.wait_s() == 1.0
    assert RetryPolicy(Backoff(1.0, 1.0), retries=0).wait_s() is None


def test_it_gives_up_when_there_was_no_progress_for_too_long_with_one_attempt_at_the_end() -> None:
    policy = RetryPolicy(Backoff(1.0, 9.0), 100.0, patience_s=2.5)
    assert policy.wait_s(100.0) == 1.0
    assert policy.wait_s(101.0) == 1.5
    assert policy.wait_s(102.5) is None
    policy.good(110.0)
    assert policy.wait_s(110.0) == 1.0


class Script:
    """Answers rounds as planned: which requests are left, and whether to look around."""

    def __init__(self, *rounds: Left) -> None:
        self.rounds, self.asked, self.waits_s = list(rounds), list[list[int]](), list[float]()
        self.looks = 0

    def ask(self, todo: Sequence[int]) -> Left:
        self.asked.append(list(todo))
        return self.rounds.pop(0)

    def look(self) -> None:
        self.looks += 1

    def run(self, count: int, policy: RetryPolicy) -> Sequence[int]:
        return until_done(
            range(count),
            self.ask,
            self.look,
            policy,
            lambda: sum(self.waits_s),
            self.waits_s.append,
        )


def test_what_is_left_is_asked_again_until_nothing_is() -> None:
    script = Script(Left([1, 2], 2, True), Left([2], 1, False), Left([], 0, True))
    assert not script.run(3, RetryPolicy(Backoff(1.0, 9.0)))
    assert script.asked == [[0, 1, 2], [1, 2], [2]]
    assert script.waits_s == [1.0, 1.0]  # each round brought something
    assert script.looks == 1


def test_without_progress_it_waits_for_longer_and_gives_up() -> None:
    script = Script(*[Left([0, 1], 1, False)] * 4)
    assert script.run(2, RetryPolicy(Backoff(1.0, 9.0), patience_s=6.0)) == [0, 1]
    assert script.waits_s == [1.0, 2.0, 3.0]
