"""Which messages ask to be acknowledged, what waits for it, and what a refusal brings.

Source: TAP reference 5.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, CHECKPOINT, TEMPORARY_FAILURE, Line, Rig
from uprmc.protocol.opcodes import Opcode
from uprmc.tap_adapter.window import SEQUENCE_MAX

pytestmark = pytest.mark.acceptance("D56")


def filled(items: int, number: int = 0) -> FakeNode:
    node = FakeNode(number)
    for index in range(items):
        node[number].set(b"k%d" % index)
    return node


def begun(line: Line) -> Line:
    """Let the OPAQUEs that begin a stream be acknowledged."""
    line.drain()
    line.ack_all()
    return line


# --- who is asked --------------------------------------------------------------------------------


def test_every_so_many_messages_the_client_is_asked() -> None:
    line = begun(Rig(filled(10), ack_interval=4).connect(ACK))
    asked = [message.opaque for message in line.drain() if message.wants_ack]
    assert asked == [4, 8, 12]


@pytest.mark.parametrize("budget", [1, 100, 1_000_000])
def test_the_last_message_before_silence_asks(budget: int) -> None:
    line = begun(Rig(filled(5)).connect(ACK))
    assert [message.wants_ack for message in line.drain(budget)] == [False] * 4 + [True]


def test_a_live_change_that_nothing_follows_asks() -> None:
    node = filled(0)
    line = Rig(node).connect(ACK)
    line.run()
    node[0].set(b"a")
    assert line.said() == ["a=v!"]


def test_no_message_asks_a_client_that_does_not_acknowledge() -> None:
    messages = Rig(filled(5), ack_interval=1).connect(CHECKPOINT).drain()
    assert not any(message.wants_ack for message in messages)


def test_the_last_item_of_a_checkpoint_asks() -> None:
    node = FakeNode(0, 1)
    line = Rig(node).connect(ACK | CHECKPOINT)
    line.run()
    node[0].set(b"a")
    node[0].set(b"b")
    node[1].set(b"c")
    said = line.run()
    assert said.index("b=v!") < said.index("c=v!")


def test_the_last_item_of_a_backfill_asks_though_others_follow() -> None:
    node = FakeNode(0, 1)
    for number in (0, 1):
        node[number].set(b"a")
        node[number].set(b"b")
    line = begun(Rig(node).connect(ACK))
    assert line.said() == ["a=v", "b=v!", "a=v", "b=v!"]


# --- gates ---------------------------------------------------------------------------------------


def test_while_an_opaque_is_unacknowledged_only_opaques_follow() -> None:
    line = Rig(filled(3)).connect(ACK | CHECKPOINT)
    assert line.said() == ["opaque 0!", "opaque 2!", "opaque 1 vb0!"]
    line.answer(line.unanswered[0])
    assert line.said() == []
    line.answer(line.unanswered[2])
    assert line.said() == ["k0=v", "k1=v", "k2=v!"]


def test_the_backfill_of_nothing_is_closed_when_the_client_has_emptied_its_copy() -> None:
    line = Rig(FakeNode(0)).connect(ACK)
    assert line.said() == ["opaque 0!", "opaque 1 vb0!"]
    line.ack_all()
    assert line.said() == ["opaque 8 vb0!"]


def test_only_the_newest_of_several_resets_counts() -> None:
    line = Rig(FakeNode(0)).connect(ACK)
    older = line.drain()[-1]
    line.producer.reset()
    (newer,) = line.drain()
    line.answer(older)
    assert line.said() == []
    line.answer(newer)
    assert line.said() == ["opaque 8 vb0!"]


def test_a_backfill_is_closed_when_all_of_it_is_acknowledged() -> None:
    line = begun(Rig(filled(3), ack_interval=4).connect(ACK))
    line.drain()
    assert [message.opaque for message in line.unanswered][-2:] == [4, 5]
    line.answer(line.unanswered[-2])
    assert line.said() == []
    line.answer(line.unanswered[-1])
    assert line.said() == ["opaque 8 vb0!"]


# --- window --------------------------------------------------------------------------------------


def test_the_window_holds_the_limit_and_one_more() -> None:
    node = filled(100)
    line = begun(Rig(node, ack_interval=5, ack_window=4).connect(ACK))
    before = line.producer.statistics().acked_sequence
    messages = line.drain()
    assert messages[-1].opaque - before == 21
    assert messages[-1].wants_ack
    assert line.producer.statistics().window_full
    line.answer(next(message for message in line.unanswered if message.opaque == 5))
    assert [message.opaque for message in line.drain()] == [24, 25, 26]


def test_a_full_window_pulls_nothing_more() -> None:
    line = begun(Rig(filled(100), ack_interval=1, ack_window=1).connect(ACK))
    line.drain(1)
    pulls = line.upstream.pulls
    line.drain(1)
    assert line.upstream.pulls == pulls


def test_who_acknowledges_nothing_with_a_full_window_is_disconnected() -> None:
    line = begun(Rig(filled(100), ack_interval=1, ack_window=1, ack_grace_s=30).connect(ACK))
    line.drain()
    line.tick(1)
    line.tick(29.9)
    assert not line.producer.closed
    line.tick(0.1)
    assert line.producer.closed
    assert not line.producer.finished


def test_an_ack_renews_the_patience() -> None:
    line = begun(Rig(filled(100), ack_interval=1, ack_window=1, ack_grace_s=30).connect(ACK))
    line.drain()
    line.tick(1)
    line.tick(29)
    line.ack_all()
    line.drain()
    line.tick(1)
    line.tick(29)
    assert not line.producer.closed


def test_who_has_room_may_be_silent_for_ever() -> None:
    line = begun(Rig(filled(3), ack_grace_s=30).connect(ACK))
    line.drain()
    line.tick(1)
    line.tick(1_000)
    assert not line.producer.closed


def test_the_upstream_hears_of_bytes_when_they_are_acknowledged() -> None:
    line = begun(Rig(filled(10)).connect(ACK))
    line.drain()
    assert line.upstream.acked_bytes == 0
    line.ack_all()
    assert line.upstream.acked_bytes == line.upstream.pulled_bytes > 0


def test_without_acks_the_upstream_hears_of_bytes_when_they_are_put_out() -> None:
    line = Rig(filled(10)).connect()
    line.drain()
    assert line.upstream.acked_bytes == line.upstream.pulled_bytes > 0


@pytest.mark.parametrize("flags", [0, ACK, ACK | CHECKPOINT])
def test_a_small_window_upstream_does_not_stop_the_stream(flags: int) -> None:
    node = filled(50)
    line = Rig(node).connect(flags, window_bytes=200)
    said = line.run()
    assert [text.rstrip("!") for text in said if "=" in text] == [f"k{i}=v" for i in range(50)]


# --- answers -------------------------------------------------------------------------------------


def test_an_ack_in_the_middle_counts_up_to_the_stretch_before() -> None:
    line = begun(Rig(filled(10), ack_interval=4).connect(ACK))
    messages = line.drain()
    line.answer(messages[4])  # number 7: 4 is asked, 8 is
    assert line.known.cursors[0].acked == 2
    line.answer(next(message for message in messages if message.opaque == 8))
    assert line.known.cursors[0].acked == 6


@pytest.mark.parametrize("sequence", [0, 6, 4_000_000_000])
@pytest.mark.parametrize("status", [0, TEMPORARY_FAILURE])
def test_an_answer_to_nothing_is_counted_and_ignored(sequence: int, status: int) -> None:
    line = begun(Rig(filled(3)).connect(ACK))
    line.drain()
    line.producer.answered(Opcode.TAP_MUTATION, sequence, status)
    assert line.producer.statistics().strange_answers == 1
    assert line.known.cursors[0].acked == 0
    assert not line.producer.closed
    line.ack_all()
    assert line.known.cursors[0].acked == 3


def test_an_ack_that_comes_twice_is_of_nothing() -> None:
    line = begun(Rig(filled(3)).connect(ACK))
    line.drain()
    again = line.unanswered[-1]
    line.ack_all()
    line.answer(again)
    assert line.producer.statistics().strange_answers == 1


def test_an_answer_to_a_noop_is_ignored() -> None:
    line = begun(Rig(filled(3)).connect(ACK))
    line.producer.answered(Opcode.NOOP, 0, 0x81)
    assert not line.producer.closed


def test_errors_of_a_client_that_does_not_acknowledge_are_ignored() -> None:
    line = Rig(filled(3)).connect()
    line.run()
    line.producer.answered(Opcode.TAP_MUTATION, 2, 0x07)
    assert not line.producer.closed


@pytest.mark.parametrize("status", [0x01, 0x04, 0x07, 0x81, 0x82])
def test_any_other_status_closes_at_once_and_forgets_the_name(status: int) -> None:
    rig = Rig(filled(3))
    line = begun(rig.connect(ACK))
    line.drain()
    line.answer(line.unanswered[-1], status)
    assert line.producer.closed
    assert line.producer.finished
    assert not line.producer.done
    line.leave()
    assert rig.names.find(b"client") is None


# --- sequence numbers ----------------------------------------------------------------------------


def test_sequence_numbers_begin_at_1_again_after_the_highest() -> None:
    node = filled(10)
    line = Rig(node, ack_interval=4).connect(ACK)
    window = line.producer._conversation.send_queue.window
    window.sent = window.acked = SEQUENCE_MAX - 4
    messages = line.run_messages()
    numbers = [message.opaque for message in messages]
    assert numbers[:7] == [
        SEQUENCE_MAX - 3,
        SEQUENCE_MAX - 2,
        SEQUENCE_MAX - 1,
        SEQUENCE_MAX,
        1,
        2,
        3,
    ]
    assert line.known.cursors[0].acked == 10
    assert [m.opaque for m in messages if m.opaque % 4 == 0 and not m.wants_ack] == []


# --- keep-alive ----------------------------------------------------------------------------------


def test_a_silent_stream_gets_a_noop() -> None:
    line = Rig(filled(1), noop_interval_s=10).connect()
    line.run()
    line.tick(9)
    assert line.said() == []
    line.tick(1)
    assert line.wakes
    (noop,) = line.drain()
    assert (noop.opcode, noop.opaque) == (Opcode.NOOP, 0)
    line.tick(9)
    assert line.said() == []
    line.tick(1)
    assert line.said() == ["noop"]


def test_a_stream_that_is_not_silent_gets_none() -> None:
    node = filled(1)
    line = Rig(node, noop_interval_s=10).connect()
    line.run()
    line.tick(9)
    node[0].set(b"a")
    assert line.said() == ["a=v"]
    line.tick(9)
    assert line.said() == []


def test_a_noop_is_sent_while_the_gate_is_shut_and_is_not_in_the_window() -> None:
    line = Rig(filled(1), noop_interval_s=10).connect(ACK)
    line.drain()
    line.tick(10)
    assert line.said() == ["noop"]
    line.ack_all()
    assert line.said() == ["k0=v!"]
