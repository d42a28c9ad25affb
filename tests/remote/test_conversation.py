"""Questions by opaque, acknowledgements and silence: what all connections to producers share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upr.peer import BUFFER_ACK, NOOP, split
from uprmc.errors import RemoteProtocolError
from uprmc.remote.conversation import (
    KEEP_ALIVES,
    FlowControl,
    Questions,
    Silence,
    acknowledgement,
    keep_alive_answer,
)

GET, STAT = 0x00, 0x10


def test_answers_find_who_asked_whatever_their_order() -> None:
    asked: Questions[str] = Questions(strict=True)
    first, second = asked.expect(GET, "first"), asked.expect(STAT, "second")
    assert (first, second) == (1, 2)
    assert asked.opcodes() == [GET, STAT]
    assert asked.answered(STAT, second) == "second"
    assert asked.answered(GET, first) == "first"
    assert len(asked) == 0


def test_an_answer_counts_once() -> None:
    asked: Questions[str] = Questions(strict=True)
    opaque = asked.expect(GET, "who")
    assert asked.answered(GET, opaque) == "who"
    assert asked.answered(GET, opaque) is None


def test_a_question_of_many_answers_waits_until_it_is_forgotten() -> None:
    asked: Questions[str] = Questions(strict=False)
    opaque = asked.expect(STAT, "who")
    assert [asked.waiting_for(STAT, opaque) for _ in range(3)] == ["who"] * 3
    assert asked.waiting_for(GET, opaque) is None
    asked.forget(opaque)
    assert asked.waiting_for(STAT, opaque) is None
    asked.forget(opaque)


def test_another_opcode_ends_a_strict_connection_and_is_ignored_by_a_tolerant_one() -> None:
    strict: Questions[str] = Questions(strict=True)
    tolerant: Questions[str] = Questions(strict=False)
    for each in (strict, tolerant):
        each.expect(GET, "who", 7)
    with pytest.raises(RemoteProtocolError, match="opcode 0x10 answers 0x00"):
        strict.answered(STAT, 7)
    assert tolerant.answered(STAT, 7) is None
    assert tolerant.answered(GET, 7) == "who"


def test_opaques_that_streams_choose_and_new_ones_stand_side_by_side() -> None:
    asked: Questions[int] = Questions(strict=True)
    asked.expect(GET, 0, asked.new_opaque())
    assert asked.expect(GET, 1) == 2
    assert asked.clear() == [0, 1]
    assert asked.expect(GET, 2) == 3


@given(st.integers(1, 10_000), st.sampled_from([0.2, 0.25, 0.5]), st.lists(st.integers(0, 9_000)))
def test_no_producer_waits_for_an_acknowledgement_that_never_comes(
    buffer_bytes: int, share: float, sizes: list[int]
) -> None:
    flow = FlowControl(buffer_bytes, share)
    acked = sum(flow.processed(size) for size in sizes)
    assert acked == flow.acked_bytes
    assert acked + flow.unacked_bytes == sum(sizes)
    assert flow.unacked_bytes < max(1, share * buffer_bytes)


def test_without_a_buffer_nothing_is_acknowledged() -> None:
    flow = FlowControl(0, 0.5)
    assert [flow.processed(1_000_000), flow.tick(9e9)] == [0, 0]


def test_little_is_acknowledged_when_it_is_old() -> None:
    flow = FlowControl(1_000, 0.2, after_s=5.0)
    assert flow.tick(100.0) == 0
    assert flow.processed(10) == 0
    assert flow.tick(104.9) == 0
    assert flow.tick(105.0) == 10
    assert flow.tick(200.0) == 0


def test_what_was_put_off_is_acknowledged_as_soon_as_it_may_be() -> None:
    class Reluctant(FlowControl):
        may = False

        def _may_go_on(self) -> bool:
            return self.may

    flow = Reluctant(1_000, 0.2, after_s=5.0)
    assert flow.processed(500) == 0
    assert flow.held_back
    assert flow.tick(1.0) == 0
    flow.may = True
    assert flow.tick(1.1) == 500
    assert not flow.held_back


def test_silence_is_counted_from_the_first_look() -> None:
    silence = Silence()
    assert not silence.lasts(1_000.0, 4.0)
    assert not silence.lasts(1_004.0, 4.0)
    assert silence.lasts(1_004.1, 4.0)


def test_a_sign_of_life_ends_it_whether_its_time_is_known_or_not() -> None:
    silence = Silence()
    silence.heard(10.0)
    assert silence.lasts(20.0, 4.0)
    silence.broken = True
    assert not silence.lasts(30.0, 4.0)
    assert silence.lasts(34.5, 4.0)


def test_time_in_which_nobody_listened_is_excused() -> None:
    silence = Silence()
    silence.heard(10.0)
    silence.excuse(60.0)
    assert not silence.lasts(74.0, 4.0)
    assert silence.lasts(74.1, 4.0)


def test_frames_are_those_of_the_reference() -> None:
    frames, rest = split(acknowledgement(70_000) + keep_alive_answer(NOOP, 9))
    assert not rest
    assert [(each.opcode, each.is_reply, each.opaque) for each in frames] == [
        (BUFFER_ACK, False, 0),
        (NOOP, True, 9),
    ]
    assert frames[0].size == 28
    assert frames[0].extras == (70_000).to_bytes(4, "big")
    assert {0x0A, NOOP} == KEEP_ALIVES
