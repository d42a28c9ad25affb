"""The window: what acknowledgements and refusals of sequence numbers mean.

Source: TAP reference 5.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.protocol.opcodes import Opcode
from uprmc.tap_adapter.window import SEQUENCE_MAX, STRETCHES_MAX, Mark, TapControl, TapWindow

pytestmark = pytest.mark.acceptance("D56")

OPAQUE = TapControl(Opcode.TAP_OPAQUE, 0, 0)
STATE = TapControl(Opcode.TAP_VBUCKET_SET, 0, 3)
START = TapControl(Opcode.TAP_CHECKPOINT_START, 0, 1)


def at(seqno: int) -> Mark:
    return Mark(seqno, seqno, seqno)


def stretches(*marks: dict[int, int]) -> TapWindow:
    """A window with stretches of one message for each vBucket, each with its seqno."""
    window = TapWindow(1_000)
    for stretch in marks:
        for vbucket, seqno in stretch.items():
            window.add_items(vbucket, 1, at(seqno))
        window.end_stretch()
    return window


# --- numbers -------------------------------------------------------------------------------------


def test_after_the_highest_number_comes_1() -> None:
    window = TapWindow(10, begin=SEQUENCE_MAX - 1)
    assert window.sequence == SEQUENCE_MAX
    window.add_control(OPAQUE)
    assert window.sequence == 1


def test_an_acknowledgement_is_understood_across_the_wrap() -> None:
    window = TapWindow(10, begin=SEQUENCE_MAX - 2)
    window.add_items(0, 5, at(5))
    window.end_stretch()
    assert window.sequence == 4
    settled = window.acknowledge(3)
    assert settled is not None
    assert settled.marks == {0: at(5)}


@pytest.mark.parametrize("sequence", [0, 4, SEQUENCE_MAX, SEQUENCE_MAX + 1, -1])
def test_numbers_that_were_not_sent_are_of_nothing(sequence: int) -> None:
    window = TapWindow(10)
    window.add_items(0, 3, at(3))
    assert window.acknowledge(sequence) is None
    assert window.refuse(sequence) is None


# --- acknowledgements ----------------------------------------------------------------------------


# --- refusals ------------------------------------------------------------------------------------


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "kept"), [(STRETCHES_MAX, 64), (STRETCHES_MAX + 1, 64), (9_999, 64)]
)
def test_very_many_stretches_are_joined(count: int, kept: int) -> None:
    window = TapWindow(100_000)
    for seqno in range(1, count + 1):
        window.add_items(seqno % 3, 1, at(seqno))
        window.end_stretch()
    assert window.stretches == kept
    settled = window.acknowledge(count)
    assert settled is not None
    assert max(mark.seqno for mark in settled.marks.values()) == count
    assert window.empty
    assert not any(window.holds(vbucket) for vbucket in range(3))


# --- any order of things -------------------------------------------------------------------------

actions = st.lists(
    st.one_of(
        st.tuples(st.just("items"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("control"), st.just(0), st.just(0)),
        st.tuples(st.just("end"), st.just(0), st.just(0)),
        st.tuples(st.just("ack"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("refuse"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("forget"), st.integers(0, 2), st.just(0)),
    ),
    max_size=60,
)


@given(actions, st.sampled_from([0, SEQUENCE_MAX - 10]))
def test_a_client_is_never_taken_for_further_than_it_is(
    steps: list[tuple[str, int, int]], begin: int
) -> None:
    """The model knows every message; a mark may lag behind it, and never goes beyond."""
    window = TapWindow(1_000, begin=begin)
    sent: list[tuple[int, int] | None] = []  # (vBucket, seqno) of each message, by serial
    seqnos = [0, 0, 0]
    acked = [0, 0, 0]
    taken_until = 0
    for what, first, second in steps:
        if what == "items":
            for _ in range(second):
                seqnos[first] += 1
                sent.append((first, seqnos[first]))
            window.add_items(first, second, at(seqnos[first]))
        elif what == "control":
            sent.append(None)
            window.add_control(OPAQUE)
        elif what == "end":
            window.end_stretch()
        elif what == "forget":
            window.forget(first)
        else:
            sequence = (begin + first) % SEQUENCE_MAX
            answer = window.acknowledge(sequence) if what == "ack" else window.refuse(sequence)
            if answer is None:
                continue
            settled = answer if what == "ack" else answer.settled  # type: ignore[union-attr]
            taken_until = max(taken_until, first if what == "ack" else first - 1)
            held = [0, 0, 0]
            for message in sent[:taken_until]:
                if message is not None:
                    held[message[0]] = max(held[message[0]], message[1])
            for vbucket, mark in settled.marks.items():  # type: ignore[union-attr]
                assert acked[vbucket] <= mark.seqno <= held[vbucket]
                acked[vbucket] = mark.seqno
            if what == "refuse":
                for vbucket in answer.vbuckets:  # type: ignore[union-attr]
                    seqnos[vbucket] = acked[vbucket]
    assert window.sent - begin == len(sent)
    window.acknowledge_all()
    assert window.empty
    assert not window.gated
    assert not any(window.holds(vbucket) for vbucket in range(3))
