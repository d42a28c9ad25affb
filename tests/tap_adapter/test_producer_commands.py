"""What others do to a connection: filters, resets, hanging up; and what statistics say of it.

Source: TAP reference 7.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, CHECKPOINT, DUMP, FOR_EVER, REGISTERED, TAKEOVER, Rig
from uprmc.tap_adapter.feed import PULL_BYTES

pytestmark = pytest.mark.acceptance("D56")


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(0, 1)
    node[0].set(b"a")
    node[1].set(b"b")
    return node


# --- change of the filter ------------------------------------------------------------------------


def test_a_new_filter_is_announced_and_then_its_new_vbuckets_follow(node: FakeNode) -> None:
    line = Rig(node).connect(ACK, vbuckets=(0,))
    line.run()
    line.producer.change_filter({0: 0, 1: 0})
    assert line.wakes
    assert line.run() == ["opaque 4!", "opaque 1 vb1!", "b=v!", "opaque 8 vb1!"]
    node[0].set(b"c")
    assert line.run() == ["c=v!"]


def test_vbuckets_that_are_not_in_the_new_filter_stop(node: FakeNode) -> None:
    line = Rig(node).connect(ACK)
    line.run()
    line.producer.change_filter({1: 0})
    node[0].set(b"c")
    node[1].set(b"d")
    assert line.run() == ["opaque 4!", "d=v!"]
    assert line.upstream.closes == [0]
    assert list(line.known.cursors) == [1]


def test_a_vbucket_that_is_dropped_and_wanted_again_begins_anew(node: FakeNode) -> None:
    line = Rig(node).connect(ACK)
    line.run()
    line.producer.change_filter({1: 0})
    line.run()
    line.producer.change_filter({0: 0, 1: 0})
    assert line.run() == ["opaque 4!", "opaque 1 vb0!", "a=v!", "opaque 8 vb0!"]


def test_acks_of_a_dropped_vbucket_move_nothing(node: FakeNode) -> None:
    line = Rig(node).connect(ACK)
    line.run()
    node[0].set(b"c")
    line.drain()
    line.producer.change_filter({1: 0})
    assert line.run() == ["opaque 4!"]
    assert line.upstream.acked_bytes == line.upstream.pulled_bytes


def test_a_vbucket_of_the_filter_that_does_not_exist_is_left_out(node: FakeNode) -> None:
    line = Rig(node).connect(ACK, vbuckets=(0,))
    line.run()
    line.producer.change_filter({0: 0, 9: 0})
    assert line.run() == ["opaque 4!"]


def test_a_filter_that_comes_while_streams_are_being_opened_is_obeyed(node: FakeNode) -> None:
    line = Rig(node).connect(patient=True)
    line.upstream.deliver(1)
    line.producer.change_filter({1: 0})
    line.upstream.deliver()
    assert line.run() == ["opaque 4", "opaque 1 vb1", "b=v", "opaque 8 vb1"]
    assert list(line.upstream.streams) == [1]


def test_two_filters_before_the_upstream_has_answered_the_first_begin_a_vbucket_once(
    node: FakeNode,
) -> None:
    line = Rig(node).connect(vbuckets=(0,), patient=True)
    line.upstream.deliver()
    line.run()
    line.producer.change_filter({0: 0, 1: 0})
    line.producer.change_filter({0: 0, 1: 0})
    line.upstream.deliver()
    assert line.run() == ["opaque 4", "opaque 4", "opaque 1 vb1", "b=v", "opaque 8 vb1"]
    assert [number for number, _ in line.upstream.opened] == [0, 1]


# --- reset of the chain --------------------------------------------------------------------------


def test_a_reset_sends_everything_anew(node: FakeNode) -> None:
    line = Rig(node).connect(ACK, vbuckets=(0,))
    line.run()
    line.producer.reset()
    assert line.run() == ["opaque 1 vb0!", "a=v!", "opaque 8 vb0!"]


def test_a_reset_in_the_middle_of_a_backfill_begins_it_again(node: FakeNode) -> None:
    line = Rig(node).connect(ACK, vbuckets=(0,))
    line.drain()
    line.ack_all()
    line.drain()
    line.producer.reset()
    line.ack_all()
    assert line.run() == ["opaque 1 vb0!", "a=v!", "opaque 8 vb0!"]


def test_a_reset_while_the_stream_is_being_opened_is_carried_out(node: FakeNode) -> None:
    line = Rig(node).connect(ACK, vbuckets=(0,), patient=True, age=FOR_EVER)
    line.upstream.deliver(1)
    line.producer.reset()
    line.upstream.deliver()
    assert line.run() == ["opaque 0!", "opaque 1 vb0!", "a=v!", "opaque 8 vb0!"]


def test_a_reset_begins_checkpoints_anew(node: FakeNode) -> None:
    line = Rig(node).connect(ACK | CHECKPOINT, vbuckets=(0,))
    line.run()
    node[0].set(b"c")
    line.run()
    line.producer.reset()
    line.run()
    node[0].set(b"d")
    assert line.run() == ["start 1!", "d=v!"]


@pytest.mark.parametrize("flags", [DUMP, TAKEOVER])
def test_dumps_and_takeovers_are_not_reset(node: FakeNode, flags: int) -> None:
    line = Rig(node).connect(ACK | flags, vbuckets=(0,))
    line.drain()
    line.producer.reset()
    assert line.upstream.closes == []


# --- the end -------------------------------------------------------------------------------------


def test_a_newer_connection_of_the_name_ends_the_older_one(node: FakeNode) -> None:
    rig = Rig(node)
    older = rig.connect(ACK)
    older.run()
    newer = rig.connect(ACK)
    assert older.producer.closed
    assert not older.producer.finished
    assert older.wakes
    older.leave()
    assert newer.run() == ["opaque 0!"]


def test_acks_that_the_older_connection_still_hears_move_nothing(node: FakeNode) -> None:
    rig = Rig(node)
    older = rig.connect(ACK)
    older.drain()
    older.ack_all()
    older.drain()
    newer = rig.connect(ACK)
    older.ack_all()
    assert newer.run()[1:3] == ["opaque 1 vb0!", "opaque 1 vb1!"]


def test_close_lets_go_of_the_upstream(node: FakeNode) -> None:
    line = Rig(node).connect(ACK, patient=True)
    line.producer.close()
    assert line.upstream.gone
    assert line.said() == []


def test_answers_that_come_after_the_end_do_nothing(node: FakeNode) -> None:
    line = Rig(node).connect(ACK)
    messages = line.drain()
    line.producer.disconnect("deregistered")
    line.answer(messages[0])
    line.answer(messages[0], 0x81)
    line.tick(1_000)
    assert line.producer.closed == "deregistered"
    assert not line.producer.finished


def test_the_upstream_learns_the_time(node: FakeNode) -> None:
    line = Rig(node).connect()
    line.tick(5)
    assert line.upstream.now == 105.0


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [ACK, ACK | REGISTERED])
def test_one_pull_is_held_for_a_client_that_stops(flags: int) -> None:
    node = FakeNode(0)
    for index in range(2_000):
        node[0].set(b"k%d" % index, bytes(500))
    line = Rig(node, ack_interval=10, ack_window=1).connect(flags)
    line.drain()
    line.ack_all()
    line.drain(10**9)
    assert line.upstream.pulled_bytes < PULL_BYTES + 1_000


def test_no_more_is_pulled_than_the_budget_asks_for(node: FakeNode) -> None:
    for index in range(100):
        node[0].set(b"k%d" % index, bytes(1_000))
    line = Rig(node).connect(vbuckets=(0,))
    line.fill(5_000)
    assert line.upstream.pulled_bytes < 7_000


# --- statistics ----------------------------------------------------------------------------------


def test_statistics_tell_where_the_client_stands(node: FakeNode) -> None:
    line = Rig(node).connect(ACK)
    line.drain()
    before = line.producer.statistics()
    assert (before.backfills, before.backfill_remaining) == (2, 2)
    assert (before.messages, before.items, before.unacked) == (3, 0, 3)
    line.run()
    after = line.producer.statistics()
    assert (after.backfills, after.backfill_remaining, after.unacked) == (0, 0, 0)
    assert (after.messages, after.items) == (7, 2)
    assert after.vbuckets == (0, 1)
    assert after.sent_bytes > 0


def test_statistics_count_refusals_and_tell_pauses(node: FakeNode) -> None:
    line = Rig(node, backoff_s=1).connect(ACK)
    line.drain()
    line.refuse(line.unanswered[0])
    statistics = line.producer.statistics()
    assert (statistics.nacks, statistics.paused) == (1, True)
    line.tick(1)
    assert not line.producer.statistics().paused


def test_old_tools_find_their_names_in_the_statistics(node: FakeNode) -> None:
    line = Rig(node).connect(ACK | REGISTERED, vbuckets=(0, 1))
    line.run()
    rows = dict(line.producer.statistics().rows())
    assert rows["type"] == "producer"
    assert rows["supports_ack"] == "true"
    assert rows["reserved"] == "true"
    assert rows["vb_filter"] == "{ 0,1 }"
    assert rows["qlen"] == rows["ack_log_size"] == rows["total_backlog_size"] == "0"
    assert rows["backfill_completed"] == rows["idle"] == "true"
    assert int(rows["ack_seqno"]) == int(rows["recv_ack_seqno"]) == int(rows["rec_fetched"])
