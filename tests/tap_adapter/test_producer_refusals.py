"""What a negative acknowledgement brings: a pause, and what was refused once more as it is then.

Source: TAP reference 5.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, BUSY, TEMPORARY_FAILURE, Rig, brief
from tests.tap_adapter.test_producer_acks import begun, filled
from uprmc.protocol.opcodes import EndReason

pytestmark = pytest.mark.acceptance("D56")


@pytest.mark.parametrize("status", [BUSY, TEMPORARY_FAILURE])
def test_what_is_refused_is_sent_again_after_a_pause_with_the_newest_value(status: int) -> None:
    node = filled(3)
    line = begun(Rig(node, backoff_s=5).connect(ACK))
    line.run()
    node[0].set(b"k1", b"old")
    (message,) = line.drain()
    line.refuse(message, status)
    node[0].set(b"k1", b"new")
    assert line.said() == []
    line.tick(4.9)
    assert line.said() == []
    line.tick(0.2)
    assert line.said() == ["k1=new!"]
    line.ack_all()
    assert line.known.cursors[0].acked == 5


def test_what_came_before_the_refused_message_is_acknowledged() -> None:
    line = begun(Rig(filled(8), ack_interval=4, backoff_s=1).connect(ACK))
    messages = line.drain()
    line.refuse(next(message for message in messages if message.opaque == 8))
    assert line.known.cursors[0].acked == 5
    line.tick(1)
    assert line.said() == [f"k{i}=v" + "!" * (i in (6, 7)) for i in range(5, 8)]


def test_a_refusal_between_two_asked_for_counts_what_came_before_it() -> None:
    line = begun(Rig(filled(8), ack_interval=8, backoff_s=1).connect(ACK))
    refused = next(message for message in line.drain() if brief(message).startswith("k3"))
    line.answer(refused, TEMPORARY_FAILURE)
    assert line.known.cursors[0].acked == 3
    line.tick(1)
    assert next(brief(message).rstrip("!") for message in line.drain()) == "k3=v"


def test_answers_to_what_is_sent_again_anyway_change_nothing() -> None:
    line = begun(Rig(filled(8), ack_interval=2, backoff_s=1).connect(ACK))
    messages = [message for message in line.drain() if message.wants_ack]
    line.answer(messages[0])
    line.refuse(messages[1])
    line.answer(messages[2], TEMPORARY_FAILURE)
    line.answer(messages[3])
    assert line.known.cursors[0].acked == 3
    line.tick(1)
    assert [brief(message).rstrip("!") for message in line.drain()][-1] == "k7=v"
    line.ack_all()
    assert line.known.cursors[0].acked == 8


def test_a_backfill_that_is_refused_at_its_beginning_begins_again_with_opaque_1() -> None:
    """Nobody can follow from the first seqno who holds something: deletions may be forgotten."""
    line = begun(Rig(filled(3), backoff_s=1).connect(ACK))
    line.answer(line.drain()[0], TEMPORARY_FAILURE)
    line.tick(1)
    assert line.said() == ["opaque 1 vb0!"]
    line.ack_all()
    assert line.run() == ["k0=v", "k1=v", "k2=v!", "opaque 8 vb0!"]


def test_a_refused_opaque_is_sent_again_by_itself() -> None:
    line = Rig(filled(1), backoff_s=1).connect(ACK)
    line.drain()
    line.refuse(line.unanswered[0])
    line.answer(line.unanswered[0])
    assert line.said() == []
    line.tick(1)
    assert line.said() == ["opaque 0!"]
    line.ack_all()
    assert line.run() == ["k0=v!", "opaque 8 vb0!"]


def test_other_vbuckets_are_not_disturbed_by_what_was_acknowledged_of_them() -> None:
    node = FakeNode(0, 1)
    node[1].set(b"before")
    line = begun(Rig(node, backoff_s=1).connect(ACK))
    line.run()
    node[0].set(b"a")
    line.run()
    node[1].set(b"b")
    (message,) = line.drain()
    opened = len(line.upstream.opened)
    line.refuse(message)
    line.tick(1)
    assert [number for number, _ in line.upstream.opened[opened:]] == [1]
    assert line.said() == ["b=v!"]


def test_frames_of_the_closed_stream_that_were_pulled_are_dropped() -> None:
    node = filled(30)
    line = begun(Rig(node, ack_interval=3, ack_window=1, backoff_s=1).connect(ACK))
    messages = line.drain()
    assert line.producer.statistics().window_full
    line.refuse(next(message for message in messages if message.wants_ack))
    line.tick(1)
    keys = [text.rstrip("!").split("=")[0] for text in line.run() if "=" in text]
    assert list(dict.fromkeys(keys)) == [f"k{i}" for i in range(30)]
    assert line.upstream.acked_bytes == line.upstream.pulled_bytes


def test_a_pause_of_nothing_ends_with_the_next_tick() -> None:
    line = begun(Rig(filled(3), backoff_s=0).connect(ACK))
    line.drain()
    line.refuse(line.unanswered[-1])
    line.tick(0)
    assert line.said() == ["k2=v!"]


def test_a_refusal_while_the_stream_is_being_opened_anew_is_survived() -> None:
    node = filled(3)
    line = Rig(node, backoff_s=1).connect(ACK, patient=True)
    for _ in range(3):
        line.upstream.deliver()
        line.drain()
        line.ack_all()
    node[0].set(b"a")
    (message,) = line.drain()
    line.upstream.end(0, EndReason.STATE_CHANGED)
    line.drain()
    line.refuse(message)
    line.upstream.deliver()
    line.tick(1)
    line.upstream.deliver()
    assert line.run() == ["a=v!"]
