"""What a TAP client gets: order of messages, dump, backfill, live changes, vBucket lists.

Source: TAP reference 3, 6 and 10.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, CHECKPOINT, DUMP, FOR_EVER, IN_ORDER, KEYS_ONLY, Rig
from uprmc.model import VBucketState
from uprmc.protocol.opcodes import EndReason, Status
from uprmc.protocol.tap import TapFlag

pytestmark = pytest.mark.acceptance("D56")


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(3)
    node[3].set(b"a", b"1")
    node[3].set(b"b", b"2")
    return node


def test_a_stream_without_acks_is_the_backfill_and_then_what_happens(node: FakeNode) -> None:
    line = Rig(node).connect()
    assert line.said() == ["opaque 1 vb3", "a=1", "b=2", "opaque 8 vb3"]
    node[3].set(b"a", b"3")
    node[3].delete(b"b")
    assert line.said() == ["a=3", "-b"]


def test_with_acks_opaque_0_comes_first_and_holds_all_items_back(node: FakeNode) -> None:
    line = Rig(node).connect(ACK)
    assert line.said() == ["opaque 0!", "opaque 1 vb3!"]
    line.ack_all()
    assert line.said() == ["a=1", "b=2!"]
    line.ack_all()
    assert line.said() == ["opaque 8 vb3!"]


def test_checkpoints_are_announced_by_opaque_2_after_opaque_0(node: FakeNode) -> None:
    assert Rig(node).connect(ACK | CHECKPOINT).said()[:2] == ["opaque 0!", "opaque 2!"]


@pytest.mark.parametrize("budget", [1, 60, 1_000_000])
@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("flags", [0, ACK])
def test_a_dump_ends_with_a_plain_close(
    node: FakeNode, flags: int, pieces: int, budget: int
) -> None:
    line = Rig(node).connect(DUMP | flags, pieces=pieces)
    said = [text.rstrip("!") for text in line.run(budget)]
    assert said[-4:] == ["opaque 1 vb3", "a=1", "b=2", "opaque 8 vb3"]
    assert line.producer.done
    assert line.producer.closed


def test_a_dump_waits_for_its_last_ack(node: FakeNode) -> None:
    line = Rig(node).connect(DUMP | ACK)
    while "opaque 8 vb3!" not in line.said():
        line.ack_all()
    assert not line.producer.done
    line.ack_all()
    line.drain()
    assert line.producer.done


def test_a_dump_has_what_was_there_at_connect_and_nothing_of_later(node: FakeNode) -> None:
    line = Rig(node).connect(DUMP)
    node[3].set(b"c", b"later")
    line.run()
    assert line.upstream.opened[0][1].end_seqno == 2
    assert line.producer.done


def test_a_dump_leaves_empty_and_replica_vbuckets_out(node: FakeNode) -> None:
    node.vbuckets |= FakeNode(4).vbuckets | FakeNode(5, state=VBucketState.REPLICA).vbuckets
    node[5].set(b"r", b"1")
    line = Rig(node).connect(DUMP, vbuckets=(3, 4, 5))
    line.run()
    assert [number for number, _ in line.upstream.opened] == [3]


def test_a_dump_of_nothing_closes(node: FakeNode) -> None:
    line = Rig(node).connect(DUMP, vbuckets=(77,))
    assert line.run() == []
    assert line.producer.done


def test_a_stream_of_nothing_stays_open(node: FakeNode) -> None:
    line = Rig(node).connect(vbuckets=(77,))
    assert line.run() == []
    assert not line.producer.closed


def test_a_dump_keeps_no_position(node: FakeNode) -> None:
    line = Rig(node).connect(DUMP | ACK | CHECKPOINT)
    assert "start 1!" not in line.run()
    assert not line.known.cursors
    assert len(line.known.ring) == 0


def test_without_a_list_all_active_vbuckets_come(node: FakeNode) -> None:
    node.vbuckets |= FakeNode(4).vbuckets | FakeNode(5, state=VBucketState.REPLICA).vbuckets
    line = Rig(node).connect()
    line.run()
    assert sorted(line.upstream.streams) == [3, 4]


def test_a_list_names_replicas_too_and_missing_ones_are_left_out(node: FakeNode) -> None:
    node.vbuckets |= FakeNode(5, state=VBucketState.REPLICA).vbuckets
    line = Rig(node).connect(vbuckets=(5, 9))
    line.run()
    assert sorted(line.upstream.streams) == [5]


def test_a_vbucket_that_the_producer_does_not_serve_is_left_out(node: FakeNode) -> None:
    node.vbuckets |= FakeNode(5, state=VBucketState.DEAD).vbuckets
    line = Rig(node).connect(vbuckets=(3, 5))
    assert line.said()[-1] == "opaque 8 vb3"
    assert not line.producer.closed


def test_an_empty_vbucket_is_backfilled_at_once() -> None:
    node = FakeNode(1)
    line = Rig(node).connect()
    assert line.said() == ["opaque 1 vb1", "opaque 8 vb1"]


def test_an_age_in_the_future_means_no_backfill(node: FakeNode) -> None:
    line = Rig(node).connect(age=FOR_EVER)
    assert line.said() == []
    node[3].set(b"c", b"3")
    assert line.said() == ["c=3"]


@pytest.mark.parametrize("age", [0, 1_699_999_999])
def test_an_age_in_the_past_means_everything(node: FakeNode, age: int) -> None:
    assert "a=1" in Rig(node).connect(age=age).said()


def test_the_position_is_taken_at_connect(node: FakeNode) -> None:
    line = Rig(node).connect(ACK, age=FOR_EVER)
    assert line.said() == ["opaque 0!"]
    node[3].set(b"c", b"3")
    assert line.said() == []  # the gate is shut
    line.ack_all()
    assert line.said() == ["c=3!"]


def test_the_position_is_taken_when_the_survey_answers_even_if_streams_open_later(
    node: FakeNode,
) -> None:
    line = Rig(node).connect(age=FOR_EVER, patient=True)
    line.upstream.deliver(1)
    node[3].set(b"c", b"3")
    assert line.said() == []
    line.upstream.deliver()
    assert line.wakes
    assert line.said() == ["c=3"]


def test_keys_only_leaves_values_out_and_says_so(node: FakeNode) -> None:
    messages = Rig(node).connect(KEYS_ONLY, values=False).drain()
    item = messages[1]
    assert (item.key, item.value) == (b"a", b"")
    assert item.flags & TapFlag.NO_VALUE


@pytest.mark.parametrize(
    ("flags", "on_the_wire", "marked"),
    [(0, 0xEFBEADDE, 0), (IN_ORDER, 0xDEADBEEF, TapFlag.NETWORK_BYTE_ORDER)],
)
def test_item_flags_are_swapped_unless_the_client_asks(
    flags: int, on_the_wire: int, marked: int
) -> None:
    node = FakeNode(0)
    node[0].set(b"k", flags=0xDEADBEEF)
    item = Rig(node).connect(flags).drain()[1]
    assert (item.item_flags, item.flags & TapFlag.NETWORK_BYTE_ORDER) == (on_the_wire, marked)


def test_an_expiry_is_a_delete(node: FakeNode) -> None:
    line = Rig(node).connect()
    line.run()
    node[3].delete(b"a", expired=True)
    assert line.said() == ["-a"]


def test_sequence_numbers_rise_by_one_over_all_messages(node: FakeNode) -> None:
    messages = Rig(node).connect(ACK | CHECKPOINT).run_messages()
    assert [message.opaque for message in messages] == list(range(1, len(messages) + 1))


def test_a_stream_that_ends_is_opened_again_where_it_stood(node: FakeNode) -> None:
    line = Rig(node).connect()
    line.run()
    line.upstream.end(3, EndReason.STATE_CHANGED)
    assert line.said() == []
    node[3].set(b"c", b"3")
    assert line.said() == ["c=3"]


def test_a_stream_that_ends_again_before_anything_came_ends_the_connection(
    node: FakeNode,
) -> None:
    line = Rig(node).connect()
    line.run()
    line.upstream.end(3, EndReason.STATE_CHANGED)
    line.run()
    line.upstream.end(3, EndReason.STATE_CHANGED)
    line.run()
    assert line.producer.closed
    assert not line.producer.finished


def test_a_vbucket_that_cannot_be_had_any_more_ends_the_connection(node: FakeNode) -> None:
    line = Rig(node).connect()
    line.run()
    node[3].state = VBucketState.DEAD
    line.upstream.end(3, EndReason.STATE_CHANGED)
    line.run()
    assert line.producer.closed


def test_a_stream_that_cannot_be_had_for_now_is_asked_for_again_after_a_second(
    node: FakeNode,
) -> None:
    rig = Rig(node)
    line = rig.connect(patient=True)
    line.upstream.refusals[3] = Status.TEMPORARY_FAILURE
    line.upstream.deliver()
    before = line.run()
    assert not any("vb3" in text for text in before)
    del line.upstream.refusals[3]
    line.tick(0.9)
    line.upstream.deliver()
    assert line.run() == []
    line.tick(0.2)
    line.upstream.deliver()
    assert "opaque 1 vb3" in line.run()
    assert not line.producer.closed


def test_a_stream_that_cannot_be_had_at_all_ends_the_connection(node: FakeNode) -> None:
    line = Rig(node).connect(patient=True)
    line.upstream.refusals[3] = Status.INTERNAL_ERROR
    line.upstream.deliver()
    assert line.producer.closed


def test_an_upstream_that_breaks_off_ends_the_connection(node: FakeNode) -> None:
    line = Rig(node).connect()
    line.run()
    line.upstream.break_off()
    line.run()
    assert line.producer.closed == "the upstream is gone"


def test_nothing_leaves_after_the_connection_was_given_up(node: FakeNode) -> None:
    line = Rig(node).connect()
    line.producer.disconnect("another connection has taken the name")
    assert line.said() == []
    assert line.wakes == 1
