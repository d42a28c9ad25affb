"""What is done with which vBucket, and which versions can be waited for: rules without a clock.

Source: systems reference c.7, c.8; rows I15 to I17, I26, I27.
"""

from __future__ import annotations

import pytest

from uprmc.index.following import is_of, is_reached
from uprmc.index.model import Token
from uprmc.index.tree import IndexPosition
from uprmc.index.vbucket_sets import (
    States,
    Wish,
    bitmap,
    caught_up,
    contradiction,
    follow_source,
    numbers,
    wished,
)
from uprmc.model import FailoverEntry

LOG = (FailoverEntry(3, 90), FailoverEntry(2, 40), FailoverEntry(1, 0))


@pytest.mark.parametrize("given", [[], [0], [63, 64, 1023], [5, 1]])
def test_a_bitmap_has_the_vbuckets_that_it_was_made_of(given: list[int]) -> None:
    assert numbers(bitmap(given)) == sorted(given)


def test_what_is_new_at_the_source_is_pending_until_it_has_caught_up() -> None:
    states = follow_source(States(active=0b0011), 0b0111, 0)
    assert (states.active, states.pending) == (0b0011, 0b0100)
    states = caught_up(states, 0b0111)
    assert (states.active, states.pending) == (0b0111, 0)


def test_at_the_first_build_all_are_active_at_once() -> None:
    states = follow_source(States(), 0b0111, 0, first=True)
    assert (states.active, states.pending) == (0b0111, 0)


def test_what_the_source_has_lost_is_hidden_at_once_and_cleaned_up_later() -> None:
    states = follow_source(States(active=0b0111), 0b0011, 0b0100)
    assert (states.active, states.passive, states.cleanup) == (0b0011, 0b0100, 0)
    back = follow_source(states, 0b0111, 0)
    assert (back.active, back.pending, back.passive) == (0b0011, 0b0100, 0)
    gone = follow_source(states, 0b0011, 0)
    assert (gone.passive, gone.cleanup) == (0, 0b0100)
    again = follow_source(gone, 0b0111, 0)
    assert (again.pending, again.cleanup) == (0b0100, 0)


def test_a_wish_decides_for_good() -> None:
    states = wished(States(active=0b0011), Wish(active=0b0110, passive=0b1000, epoch=7))
    assert (states.active, states.pending, states.passive) == (0b0010, 0b0100, 0b1000)
    assert (states.cleanup, states.epoch, states.managed) == (0b0001, 7, True)
    assert follow_source(states, 0b1111, 0) is states


def test_what_is_not_named_stays() -> None:
    states = States(active=0b0011, passive=0b0100)
    paused = wished(states, Wish(pause=0b0001))
    assert (paused.active, paused.passive, paused.paused) == (0b0011, 0b0100, 0b0001)
    assert paused.followed == 0b0110
    moved = wished(states, Wish(active=0b0111))
    assert (moved.active, moved.pending, moved.passive) == (0b0011, 0b0100, 0)


@pytest.mark.parametrize(
    "wish",
    [Wish(active=1, passive=1), Wish(active=1, cleanup=1), Wish(cleanup=1, pause=1)],
)
def test_a_vbucket_in_two_sets_makes_no_sense(wish: Wish) -> None:
    assert contradiction(wish) is not None


def test_a_vbucket_may_be_active_and_paused() -> None:
    assert contradiction(Wish(active=1, passive=2, pause=3)) is None


@pytest.mark.parametrize(
    ("uuid", "seqno", "there"),
    [
        (3, 90, True),
        (3, 10_000, True),
        (2, 90, True),
        (2, 91, False),
        (1, 40, True),
        (1, 41, False),
        (9, 1, False),
    ],
)
@pytest.mark.acceptance("I27")
def test_a_history_has_a_version_up_to_where_its_next_branch_begins(
    uuid: int, seqno: int, there: bool
) -> None:
    assert is_of(LOG, Token(0, uuid, seqno)) is there


@pytest.mark.acceptance("I26")
def test_a_version_is_reached_by_seqno_and_history() -> None:
    token = Token(0, 3, 100)
    assert not is_reached(None, LOG, token)
    assert not is_reached(IndexPosition(99, 99, 99), LOG, token)
    assert is_reached(IndexPosition(100, 100, 100), LOG, token)
    assert not is_reached(IndexPosition(100, 100, 100), LOG[1:], token)
