"""Barrier cookies: true, in order, always returned; and two rules that must agree."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.seeds import seeds
from tests.upr.barrier_world import (
    LIMIT,
    AnyBarriers,
    Lie,
    Lost,
    Plain,
    Rounds,
    agree,
    busy_story,
    story,
)
from uprmc.errors import (
    CommandError,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    LocalProtocolError,
    TemporaryFailure,
    TooLarge,
)
from uprmc.upr.barrier import Barrier, ByCycle, ByVector, RoundPlace, _Return, _Vector

both = pytest.mark.parametrize("rule", [ByVector, ByCycle])
randoms = st.randoms(use_true_random=False)


@pytest.mark.acceptance("D16", "D35", "D36")
@given(random=randoms)
def test_both_rules_are_true_and_cycles_are_never_earlier_than_vectors(random: Random) -> None:
    streams = Rounds(ByVector(LIMIT), ByCycle(LIMIT))
    story(random, streams)
    agree(streams)


@pytest.mark.acceptance("D36", "D37")
@given(random=randoms)
def test_when_everybody_has_something_to_send_both_rules_agree_on_the_moment(
    random: Random,
) -> None:
    streams = Rounds(ByVector(LIMIT), ByCycle(LIMIT))
    busy_story(random, streams)
    agree(streams, exactly=True)


@pytest.mark.acceptance("D16", "D36")
@given(random=randoms)
def test_cookies_are_true_on_plain_streams(random: Random) -> None:
    story(random, Plain(ByVector(LIMIT)))


@pytest.mark.parametrize("seed", seeds(default=10))
def test_long_stories_are_true_as_well(seed: int) -> None:
    streams = Rounds(ByVector(LIMIT), ByCycle(LIMIT))
    story(Random(seed), streams, steps=2_000)
    agree(streams)
    story(Random(seed), Plain(ByVector(LIMIT)), steps=2_000)


# --- the judge sees faults ----------------------------------------------------------------------


class OneRoundTooEarly(ByCycle):
    def _goal(self, highs: Mapping[int, int]) -> _Return:
        cycle, vbucket = super()._goal(highs).place
        return _Return(RoundPlace(cycle - 1, vbucket), {})


class OnePlaceTooEarly(ByCycle):
    def _goal(self, highs: Mapping[int, int]) -> _Return:
        cycle, vbucket = super()._goal(highs).place
        return _Return(RoundPlace(cycle, vbucket - 1), {})


class OnePlaceTooLate(ByCycle):
    def _is_reached(self, goal: _Return) -> bool:
        return self._done > goal.place


class TheSnapshotUnderWayCounts(ByCycle):
    def _goal(self, highs: Mapping[int, int]) -> _Return:
        return _Return(RoundPlace(self._done.cycle + 1, self._done.vbucket), {})


class BegunIsPassed(ByCycle):
    def begun(self, vbucket: int) -> None:
        super().begun(vbucket)
        self._move(RoundPlace(self._done.cycle, vbucket))


class IdlenessLasts(ByCycle):
    idle_since = False

    def begun(self, vbucket: int) -> None:
        self.idle_since = False
        super().begun(vbucket)

    def idle(self) -> None:
        self.idle_since = True
        super().idle()

    def _is_reached(self, goal: _Return) -> bool:
        return self.idle_since or super()._is_reached(goal)


class IdlenessDoesNotCount(ByCycle):
    def idle(self) -> None:
        pass


class EqualIsBehind(ByVector):
    _is_behind = staticmethod(lambda stream, seqno: stream.sent_seqno <= seqno)


class OneLessIsEnough(ByVector):
    _is_behind = staticmethod(lambda stream, seqno: stream.sent_seqno + 1 < seqno)


class AnEndedStreamIsWaitedFor(ByVector):
    def ended(self, vbucket: int) -> None:
        self._streams.pop(vbucket, None)


class OneStreamIsEnough(ByVector):
    def _is_reached(self, goal: _Vector) -> bool:
        return not all(map(self._is_behind, goal.streams, goal.seqnos)) or not goal.streams


@pytest.mark.parametrize(
    ("fault", "noticed"),
    [
        (OneRoundTooEarly, Lie),
        (OnePlaceTooEarly, Lie),
        (OnePlaceTooLate, AssertionError),
        (TheSnapshotUnderWayCounts, Lie),
        (BegunIsPassed, Lie),
        (IdlenessLasts, Lie),
        (IdlenessDoesNotCount, Lost),
        (EqualIsBehind, Lost),
        (OneLessIsEnough, Lie),
        (AnEndedStreamIsWaitedFor, Lost),
        (OneStreamIsEnough, Lie),
    ],
)
def test_a_fault_is_noticed(fault: type[AnyBarriers], noticed: type[AssertionError]) -> None:
    with pytest.raises(noticed):
        tell_both_stories(range(500), fault)


def test_without_a_fault_nothing_is_noticed() -> None:
    tell_both_stories(range(100), ByVector)
    tell_both_stories(range(100), ByCycle)


def tell_both_stories(numbers: range, rule: type[AnyBarriers]) -> None:
    """Judge one rule, and its moments against those of the other, which is right."""
    rules = (rule, ByCycle) if issubclass(rule, ByVector) else (ByVector, rule)
    for seed in numbers:
        for tell, exactly in ((story, False), (busy_story, True)):
            streams = Rounds(*(make(LIMIT) for make in rules))
            tell(Random(seed), streams)
            agree(streams, exactly=exactly)


# --- examples -----------------------------------------------------------------------------------


def opened(rule: type[AnyBarriers], *vbuckets: int, limit: int = 3) -> AnyBarriers:
    barriers = rule(limit)
    for vbucket in vbuckets:
        barriers.opened(vbucket, 0)
    return barriers


def cookies(due: list[Barrier]) -> list[bytes]:
    return [barrier.cookie for barrier in due]


@pytest.mark.acceptance("D37")
def test_a_cookie_that_comes_inside_a_snapshot_waits_for_the_next_one_of_that_vbucket() -> None:
    barriers = opened(ByCycle, 1, 2, 3)
    barriers.begun(1)
    barriers.passed(1, 5)
    barriers.begun(2)
    barriers.add(b"inside 2", 7, {1: 6, 2: 6, 3: 6})
    barriers.passed(2, 5)
    barriers.begun(3)
    barriers.passed(3, 6)
    barriers.round_complete()
    barriers.begun(1)
    barriers.passed(1, 6)
    barriers.begun(2)
    assert barriers.reached() == []
    barriers.passed(2, 6)
    assert barriers.reached() == [Barrier(b"inside 2", 7)]


@pytest.mark.acceptance("D37")
def test_a_cookie_that_comes_between_snapshots_waits_for_one_round() -> None:
    barriers = opened(ByCycle, 1, 2, 3)
    barriers.begun(1)
    barriers.passed(1, 5)
    barriers.add(b"after 1", 7, {1: 6, 2: 6, 3: 6})
    barriers.begun(3)
    barriers.passed(3, 6)
    barriers.round_complete()
    assert barriers.reached() == []
    barriers.begun(2)
    assert cookies(barriers.reached()) == [b"after 1"], "1 was skipped: it had nothing more"


@pytest.mark.acceptance("D38")
def test_a_cookie_returns_at_once_when_all_was_sent() -> None:
    by_vector = opened(ByVector, 1, 2)
    by_vector.passed(1, 5)
    by_vector.add(b"now", 1, {1: 5, 2: 0})
    assert cookies(by_vector.reached()) == [b"now"]
    by_cycle = opened(ByCycle, 1, 2)
    by_cycle.add(b"now", 1, {1: 0, 2: 0})
    by_cycle.idle()
    assert cookies(by_cycle.reached()) == [b"now"]


@both
@pytest.mark.acceptance("D32", "D36")
def test_a_cookie_is_forgotten_when_it_returned(rule: type[AnyBarriers]) -> None:
    barriers = opened(rule, 1)
    barriers.add(b"again", 1, {1: 5}, frames=17)
    assert len(barriers) == 1
    assert barriers.reached() == []
    barriers.ended(1)
    assert barriers.reached() == [Barrier(b"again", 1, 17)]
    assert len(barriers) == 0
    barriers.opened(1, 5)
    barriers.add(b"again", 2, {1: 6})
    assert len(barriers) == 1


@both
@pytest.mark.acceptance("D34")
@pytest.mark.parametrize(
    ("cookie", "refusal"),
    [
        (b"", InvalidArguments),
        (b"x" * 129, TooLarge),
        (b"pending", KeyExists),
    ],
)
def test_a_bad_cookie_is_refused(
    rule: type[AnyBarriers], cookie: bytes, refusal: type[CommandError]
) -> None:
    barriers = opened(rule, 1)
    barriers.add(b"pending", 1, {1: 9})
    with pytest.raises(refusal):
        barriers.add(cookie, 2, {1: 9})
    assert len(barriers) == 1
    barriers.ended(1)
    assert barriers.reached() == [Barrier(b"pending", 1)]


@both
@pytest.mark.acceptance("D34")
def test_the_longest_cookie_is_taken_and_another_connection_may_use_it(
    rule: type[AnyBarriers],
) -> None:
    for barriers in (opened(rule, 1), opened(rule, 1)):
        barriers.add(b"x" * 128, 1, {1: 9})
        assert len(barriers) == 1


@both
def test_cookies_beyond_the_limit_are_refused_until_one_returned(rule: type[AnyBarriers]) -> None:
    barriers = opened(rule, 1, limit=2)
    barriers.add(b"a", 1, {1: 9})
    barriers.add(b"b", 2, {1: 9})
    with pytest.raises(TemporaryFailure):
        barriers.add(b"c", 3, {1: 9})
    barriers.passed(1, 9)
    barriers.idle()
    with pytest.raises(TemporaryFailure):
        barriers.add(b"c", 3, {1: 9})
    assert cookies(barriers.reached()) == [b"a", b"b"]
    barriers.add(b"c", 3, {1: 10})


@both
def test_a_cookie_without_a_stream_is_refused(rule: type[AnyBarriers]) -> None:
    barriers = rule(3)
    with pytest.raises(KeyNotFound):
        barriers.add(b"a", 1, {})
    barriers.opened(1, 0)
    barriers.ended(1)
    with pytest.raises(KeyNotFound):
        barriers.add(b"a", 1, {})


@both
def test_a_stream_opened_later_is_not_waited_for(rule: type[AnyBarriers]) -> None:
    barriers = opened(rule, 1)
    barriers.add(b"a", 1, {1: 9})
    barriers.opened(2, 0)
    barriers.begun(1)
    barriers.passed(1, 9)
    barriers.round_complete()
    assert cookies(barriers.reached()) == [b"a"]


@pytest.mark.parametrize("told", [True, False], ids=["its end was told", "its end was not told"])
def test_a_stream_opened_again_does_not_hold_back_older_cookies(told: bool) -> None:
    barriers = opened(ByVector, 1, 2)
    barriers.add(b"a", 1, {1: 9, 2: 9})
    if told:
        barriers.ended(1)
    barriers.opened(1, 0)
    barriers.passed(2, 9)
    assert cookies(barriers.reached()) == [b"a"]


def test_the_same_seqnos_are_remembered_once() -> None:
    barriers = ByVector(LIMIT)
    for vbucket in range(100):
        barriers.opened(vbucket, 0)
    highs = dict.fromkeys(range(100), 9)
    for number in range(1_000):
        barriers.add(b"%d" % number, number, highs)
    held = sum(len(vector.streams) for _, vector in barriers._waiting)
    assert held == 100
    for vbucket in range(100):
        assert barriers.reached() == []
        barriers.passed(vbucket, 9)
    assert len(barriers.reached()) == 1_000


def test_a_vbucket_out_of_turn_is_our_own_fault() -> None:
    barriers = opened(ByCycle, 1, 2)
    barriers.begun(2)
    with pytest.raises(LocalProtocolError):
        barriers.begun(1)
    with pytest.raises(LocalProtocolError):
        barriers.round_complete()
    barriers.passed(2, 9)
    with pytest.raises(LocalProtocolError):
        barriers.begun(2)


def test_a_turn_that_went_by_in_silence_does_not_count() -> None:
    barriers = opened(ByCycle, 1, 2)
    barriers.add(b"a", 1, {1: 9, 2: 9})
    barriers.was_late(1, 9)
    barriers.round_complete()
    barriers.round_complete()
    assert barriers.reached() == []
    barriers.begun(1)
    barriers.passed(1, 8)
    assert barriers.reached() == [], "not yet everything"
    barriers.round_complete()
    barriers.begun(1)
    barriers.passed(1, 9)
    assert cookies(barriers.reached()) == [b"a"]


def test_a_cookie_waits_for_who_was_late_when_it_came() -> None:
    barriers = opened(ByCycle, 1, 2)
    barriers.expect({2: 9})
    barriers.add(b"a", 1, {1: 9, 2: 9})
    barriers.round_complete()
    assert barriers.reached() == []
    barriers.ended(2)
    assert cookies(barriers.reached()) == [b"a"], "nobody waits for a stream that ended"
