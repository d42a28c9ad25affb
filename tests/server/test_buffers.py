"""The account of what all connections hold: who is closed, and that nothing is lost."""

from __future__ import annotations

import io
import random

import pytest
from twisted.internet.task import Clock

from uprmc.server.net.connections import Buffers

LIMIT = 8_000_000


class Holder:
    """A connection that notes what becomes of it."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.closed = False
        self.received = self.unsent = 0

    def __repr__(self) -> str:
        return f"<{self.received} {self.unsent} {'closed' if self.closed else ''}>"

    def hold(
        self, received: int = 0, unsent: int = 0, *, began: bool = False, took: bool = False
    ) -> Holder:
        self.received, self.unsent = received, unsent
        self.buffers.note(self, received, unsent, began=began, took=took)
        return self

    def shed(self) -> None:
        self.closed = True
        self.received = self.unsent = 0


@pytest.fixture
def buffers() -> Buffers:
    return Buffers(LIMIT, Clock().seconds)


def test_at_the_limit_all_stay_and_one_byte_more_closes_the_oldest(buffers: Buffers) -> None:
    first, second, third = (Holder(buffers).hold(LIMIT // 4) for _ in range(3))
    third.hold(LIMIT // 2)
    assert buffers.total == LIMIT
    assert not any(each.closed for each in (first, second, third))
    third.hold(LIMIT // 2 + 1)
    assert (first.closed, second.closed, third.closed) == (True, False, False)
    assert buffers.total == LIMIT // 4 + LIMIT // 2 + 1
    assert buffers.shed == 1


def test_a_connection_that_alone_is_above_the_limit_is_closed(buffers: Buffers) -> None:
    alone = Holder(buffers).hold(LIMIT + 1)
    assert alone.closed
    assert buffers.total == 0


def test_who_began_another_frame_is_no_longer_the_oldest(buffers: Buffers) -> None:
    first, second = (Holder(buffers).hold(LIMIT // 2) for _ in range(2))
    first.hold(LIMIT // 2, began=True)
    first.hold(LIMIT // 2 + 1)
    assert (first.closed, second.closed) == (False, True)


def test_of_both_kinds_the_larger_one_loses_its_oldest(buffers: Buffers) -> None:
    receives = Holder(buffers).hold(LIMIT // 4)
    old, young = (Holder(buffers).hold(unsent=LIMIT // 4) for _ in range(2))
    old.hold(unsent=LIMIT // 4, took=True)
    old.hold(unsent=LIMIT // 2 + 1)
    assert (receives.closed, old.closed, young.closed) == (False, False, True)


def test_replies_that_are_taken_make_a_connection_younger(buffers: Buffers) -> None:
    reads, stalls = (Holder(buffers).hold(unsent=LIMIT // 2) for _ in range(2))
    reads.hold(unsent=LIMIT // 2, took=True)
    reads.hold(unsent=LIMIT // 2 + 1)
    assert (reads.closed, stalls.closed) == (False, True)


def test_many_closings_are_one_log_line(buffers: Buffers, lines: io.StringIO) -> None:
    for _ in range(100):
        Holder(buffers).hold(LIMIT // 2)
    assert buffers.shed == 98
    assert lines.getvalue().count("\n") == 1
    assert "buffers.shed" in lines.getvalue()


@pytest.mark.parametrize("seed", range(20))
def test_the_account_is_the_sum_of_what_is_held(buffers: Buffers, seed: int) -> None:
    chance = random.Random(seed)
    holders = [Holder(buffers) for _ in range(20)]
    for _ in range(500):
        place = chance.randrange(len(holders))
        if holders[place].closed or chance.random() < 0.05:
            buffers.forget(holders[place])
            holders[place] = Holder(buffers)
        sizes = [chance.choice([0, 1, LIMIT // 30, LIMIT // 3]) for _ in range(2)]
        holders[place].hold(*sizes, began=chance.random() < 0.2, took=chance.random() < 0.2)
        assert buffers.received == sum(each.received for each in holders)
        assert buffers.unsent == sum(each.unsent for each in holders)
        assert buffers.total <= LIMIT
