"""Takeover: the client becomes the active one, and the source steps back.

Source: TAP reference 5, 6 and 10; UPR reference 4.4.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, BUSY, CHECKPOINT, TAKEOVER, Line, Peer, Rig, brief
from uprmc.model import VBucketState
from uprmc.protocol.opcodes import Opcode
from uprmc.tap_adapter import feed

pytestmark = pytest.mark.acceptance("D56")

ACTIVE, PENDING, DEAD = VBucketState.ACTIVE, VBucketState.PENDING, VBucketState.DEAD


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(0)
    node[0].set(b"a")
    return node


def in_last_phase(rig: Rig) -> Line:
    """A takeover whose client is pending and has everything; the source has not stepped back."""
    line = rig.connect(ACK | TAKEOVER, vbuckets=(0,), dies_at_once=False)
    line.run()
    assert line.upstream.streams[0].dying
    return line


@pytest.mark.parametrize("budget", [1, 1_000_000])
def test_a_takeover_is_pending_then_data_then_active(node: FakeNode, budget: int) -> None:
    line = Rig(node).connect(ACK | TAKEOVER, vbuckets=(0,))
    assert line.run(budget) == [
        "opaque 0!",
        "state 3 vb0!",
        "opaque 1 vb0!",
        "a=v!",
        "opaque 8 vb0!",
        "state 1 vb0!",
    ]
    assert line.producer.done
    assert node[0].state is DEAD


def test_a_takeover_without_acks_goes_through(node: FakeNode) -> None:
    line = Rig(node).connect(TAKEOVER, vbuckets=(0,))
    assert line.run()[-1] == "state 1 vb0"
    assert line.producer.done


def test_several_vbuckets_are_taken_over_and_then_the_connection_ends() -> None:
    node = FakeNode(0, 1, 2)
    node[1].set(b"a")
    line = Rig(node).connect(ACK | TAKEOVER, vbuckets=(0, 1, 2))
    peer = Peer()
    for message in line.run_messages():
        peer.take(message)
    assert peer.states == dict.fromkeys((0, 1, 2), ACTIVE)
    assert [node[number].state for number in (0, 1, 2)] == [DEAD] * 3
    assert line.producer.done


def test_a_replica_is_not_handed_over(node: FakeNode) -> None:
    node[0].state = VBucketState.REPLICA
    line = Rig(node).connect(ACK | TAKEOVER, vbuckets=(0,))
    assert line.run() == ["opaque 0!"]
    assert not line.producer.closed


def test_what_is_written_before_the_source_steps_back_is_handed_over(node: FakeNode) -> None:
    line = Rig(node).connect(ACK | TAKEOVER, vbuckets=(0,))
    line.drain()
    line.ack_all()
    line.drain()
    node[0].set(b"late")
    said = line.run()
    assert said.index("late=v!") < said.index("state 1 vb0!")


def test_a_snapshot_is_answered_when_all_of_it_is_acknowledged(node: FakeNode) -> None:
    line = Rig(node).connect(ACK | TAKEOVER, vbuckets=(0,))
    line.drain()
    line.ack_all()
    line.drain()
    assert line.upstream.answers == []
    line.ack_all()
    assert [opcode for opcode, _, _ in line.upstream.answers] == [Opcode.UPR_SNAPSHOT_MARKER]


def test_active_waits_until_all_before_it_is_acknowledged(node: FakeNode) -> None:
    line = in_last_phase(Rig(node))
    node[0].set(b"last")
    assert line.said() == ["last=v!"]
    line.upstream.die(0)
    assert line.said() == []
    line.ack_all()
    assert line.said() == ["state 1 vb0!"]
    assert not line.producer.done
    line.ack_all()
    line.drain()
    assert line.producer.done


def test_without_the_ack_of_active_nothing_is_complete(node: FakeNode) -> None:
    line = in_last_phase(Rig(node))
    line.upstream.die(0)
    assert line.said() == ["state 1 vb0!"]
    line.leave()
    assert node[0].state is DEAD
    assert not line.producer.done


def test_the_last_phase_knows_no_pause_and_sends_what_it_has_kept(node: FakeNode) -> None:
    line = in_last_phase(Rig(node, backoff_s=1_000))
    node[0].set(b"y")
    node[0].set(b"z")
    messages = line.drain()
    line.upstream.die(0)
    opened = len(line.upstream.opened)
    line.refuse(messages[-1], BUSY)
    assert line.said() == ["y=v", "z=v!"]
    assert len(line.upstream.opened) == opened
    line.ack_all()
    assert line.said() == ["state 1 vb0!"]
    line.refuse(line.unanswered[0])
    assert line.said() == ["state 1 vb0!"]
    line.ack_all()
    line.drain()
    assert line.producer.done


def test_what_is_kept_has_a_limit(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    line = in_last_phase(Rig(node))
    frame_bytes = 24 + 31 + 2 + 1
    monkeypatch.setattr(feed, "KEPT_BYTES", 3 * frame_bytes)
    for index in range(9):
        node[0].set(b"k%d" % index)
    line.upstream.die(0)
    assert line.said(1) == ["k0=v", "k1=v", "k2=v", "k3=v!"]  # the limit, and one more
    line.ack_all()
    assert line.said(1) == ["k4=v", "k5=v", "k6=v", "k7=v!"]
    line.ack_all()
    assert line.run(1) == ["k8=v!", "state 1 vb0!"]
    assert line.producer.done


def test_a_refusal_before_the_last_phase_pauses_and_opens_the_takeover_again(
    node: FakeNode,
) -> None:
    line = Rig(node, backoff_s=1).connect(ACK | TAKEOVER, vbuckets=(0,))
    line.drain()
    line.ack_all()
    (item,) = line.drain()
    line.refuse(item)
    assert line.said() == []
    line.tick(1)
    assert line.run()[-1] == "state 1 vb0!"
    assert line.producer.done


def test_the_source_does_not_step_back_before_the_client_is_pending(node: FakeNode) -> None:
    line = Rig(node, backoff_s=1).connect(ACK | TAKEOVER, vbuckets=(0,))
    line.answer(line.drain()[0])
    for _ in range(3):  # OPAQUE 1, the item, OPAQUE 8
        pending = next(message for message in line.unanswered if message.opcode == 0x45)
        line.refuse(pending)
        line.ack_all()
        line.tick(1)
        line.drain()
    assert [brief(message) for message in line.unanswered] == ["state 3 vb0!"]
    assert node[0].state is ACTIVE
    line.ack_all()
    line.drain()
    assert node[0].state is DEAD


def test_a_client_that_does_not_want_to_be_pending_ends_it(node: FakeNode) -> None:
    line = Rig(node).connect(ACK | TAKEOVER, vbuckets=(0,))
    messages = line.drain()
    line.answer(messages[1], 0x07)
    assert line.producer.closed
    assert node[0].state is ACTIVE


def test_checkpoints_are_told_in_a_takeover_too(node: FakeNode) -> None:
    line = Rig(node).connect(ACK | CHECKPOINT | TAKEOVER, vbuckets=(0,), snapshot_items=1)
    node[0].set(b"b")
    said = line.run()
    assert said[-3:] == ["start 1!", "b=v!", "state 1 vb0!"]
