"""What random frames and random failovers have found, each in its smallest form."""

from __future__ import annotations

import pytest

from tests.client.consumer_world import (
    CrashingState,
    Mirror,
    World,
    fail_over,
    live,
    node,
    replicate,
    standby,
    write,
)
from tests.client.fake_producer import FakeProducer, Joined, accepted, pairs, rollback
from tests.upr.peer import Frame, marker, mutation, response
from uprmc.client.errors import ProducerError


@pytest.mark.acceptance("D46")
def test_what_an_undo_put_back_can_be_undone_although_it_was_never_handed_over() -> None:
    active, ahead, behind = node(), standby(1000), standby(2000)
    mirror = Mirror()
    world = World(mirror, active, ahead, behind, vbuckets=frozenset({0}), ring_items=1)
    write(active, k="1")
    write(active, x="1")
    replicate(active, behind)
    world.settle(1)
    world.cut()
    world.down.add("node0:1")
    write(active, k="2")  # seqno 3: by the time the consumer is back it has been superseded
    write(active, y="1")
    replicate(active, ahead)
    write(active, k="3")
    world.down.clear()
    world.settle(3)
    world.lose_node("node0:1")
    fail_over(active, ahead)
    world.settle(3)
    assert mirror.docs[0][b"k"] == b"2"
    world.lose_node("node1:1")
    fail_over(ahead, behind)
    world.settle(3)
    assert mirror.docs[0] == live(behind)


def test_an_answer_before_the_question_is_nonsense() -> None:
    asked_before = False

    def stream(asked: Frame) -> bytes:
        nonlocal asked_before
        if not asked_before:
            asked_before = True
            items = marker(0, asked.opaque, 0, 1) + mutation(0, asked.opaque, 1, b"k")
            return accepted(asked, then=items)
        early = response(0x53, opaque=asked.opaque + 1, value=pairs((9, 0)))
        return rollback(asked, 0) + early

    mirror, state = Mirror(), CrashingState()
    Joined(mirror, FakeProducer(stream), state).settle()
    again = Joined(mirror, FakeProducer(stream), state)
    with pytest.raises(ProducerError):
        again.settle()


def test_an_answer_to_another_command_is_nonsense() -> None:
    def stream(asked: Frame) -> bytes:
        return response(0x48, opaque=asked.opaque, value=pairs((9, 0)))

    with pytest.raises(ProducerError, match="answers"):
        Joined(Mirror(), FakeProducer(stream)).settle()


def test_a_torn_list_of_seqnos_is_nonsense_when_beginning_now() -> None:
    class Tearing(FakeProducer):
        asked = 0

        def _answer(self, asked: Frame) -> bytes:
            self.asked += asked.opcode == 0x48
            if asked.opcode == 0x48 and self.asked > 1:
                return response(0x48, opaque=asked.opaque, value=b"123")
            return super()._answer(asked)

    with pytest.raises(ProducerError):
        Joined(Mirror(), Tearing(accepted), start="now").settle()


@pytest.mark.parametrize("cut", [0, 30, 60])
def test_a_torn_item_is_nonsense_however_it_is_cut(cut: int) -> None:
    opaques: list[int] = []

    def stream(asked: Frame) -> bytes:
        opaques.append(asked.opaque)
        return accepted(asked, then=marker(0, asked.opaque, 0, 9))

    mirror = Mirror()
    joined = Joined(mirror, FakeProducer(stream))
    joined.settle()
    torn = mutation(0, opaques[0], 1, b"k", b"v" * 300, nmeta=400)
    if cut:
        joined.say(torn[:cut])
    with pytest.raises(ProducerError):
        joined.say(torn[cut:])
    assert not mirror.changes
