"""History branches under a TAP client: corrections where the ring reaches, else everything anew.

Source: TAP reference 10.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, CHECKPOINT, DUMP, REGISTERED, Line, Peer, Rig
from uprmc.protocol.opcodes import EndReason
from uprmc.tap_adapter.openings import FETCHED_AT_ONCE

pytestmark = pytest.mark.acceptance("D56")


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(0)
    node[0].set(b"a", b"a1")
    node[0].set(b"b", b"b1")
    return node


def with_lost_changes(rig: Rig, flags: int = ACK) -> Line:
    """Leave a client that holds changes which the next history does not have."""
    node = rig.node
    line = rig.connect(flags)
    line.run()
    node[0].set(b"a", b"lost")
    node[0].set(b"c", b"lost")
    node[0].delete(b"b")
    line.run()
    line.leave()
    node[0].fail_over(2, uuid=0xB0)
    return line


def test_lost_changes_are_corrected_one_by_one(node: FakeNode) -> None:
    rig = Rig(node)
    with_lost_changes(rig)
    node[0].set(b"d", b"d1")
    line = rig.connect(ACK)
    assert line.run() == ["opaque 0!", "a=a1", "-c", "b=b1", "d=d1!"]
    assert line.known.cursors[0].uuid == 0xB0
    assert line.known.cursors[0].acked == 3


def test_corrections_come_without_acks_too(node: FakeNode) -> None:
    rig = Rig(node)
    with_lost_changes(rig, 0)
    line = rig.connect()
    assert line.run() == ["a=a1", "-c", "b=b1"]
    assert line.known.cursors[0].uuid == 0xB0


def test_by_the_setting_everything_is_sent_anew_instead(node: FakeNode) -> None:
    rig = Rig(node, rollback="restart")
    with_lost_changes(rig)
    line = rig.connect(ACK)
    assert line.run() == ["opaque 0!", "opaque 1 vb0!", "a=a1", "b=b1!", "opaque 8 vb0!"]
    assert line.upstream.fetched == []


@pytest.mark.parametrize(("undo_keys", "reaches"), [(3, True), (2, False), (0, False)])
def test_what_the_ring_does_not_reach_is_sent_anew(
    node: FakeNode, undo_keys: int, reaches: bool
) -> None:
    rig = Rig(node, undo_keys=undo_keys)
    with_lost_changes(rig)
    assert ("opaque 1 vb0!" not in rig.connect(ACK).run()) is reaches


def test_a_rollback_to_0_is_everything_anew(node: FakeNode) -> None:
    rig = Rig(node)
    with_lost_changes(rig)
    node[0].fail_over(0, uuid=0xC0)
    node[0].set(b"n")
    assert rig.connect(ACK).run() == ["opaque 0!", "opaque 1 vb0!", "n=v!", "opaque 8 vb0!"]


def test_versions_that_cannot_be_had_mean_everything_anew(node: FakeNode) -> None:
    rig = Rig(node)
    with_lost_changes(rig)
    line = rig.connect(ACK, patient=True)
    line.upstream.can_fetch = False
    line.upstream.deliver()
    assert line.run() == ["opaque 0!", "opaque 1 vb0!", "a=a1", "b=b1!", "opaque 8 vb0!"]


def test_changes_that_were_sent_and_not_acknowledged_are_corrected(node: FakeNode) -> None:
    """The client's acknowledged place is shared, so the producer sees nothing to roll back."""
    rig = Rig(node)
    line = rig.connect(ACK)
    line.run()
    node[0].set(b"x", b"lost")
    assert line.said() == ["x=lost!"]
    line.leave()
    node[0].fail_over(2, uuid=0xB0)
    again = rig.connect(ACK)
    assert again.run() == ["opaque 0!", "-x!"]
    assert again.known.cursors[0].uuid == 0xB0


def test_a_branch_above_what_was_sent_costs_nothing(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(ACK)
    line.run()
    line.leave()
    node[0].set(b"c")
    node[0].fail_over(3, uuid=0xB0)
    again = rig.connect(ACK)
    assert again.run() == ["opaque 0!", "c=v!"]
    assert again.upstream.fetched == []
    assert again.known.cursors[0].uuid == 0xB0


def test_a_client_that_vanishes_amid_corrections_gets_them_again(node: FakeNode) -> None:
    rig = Rig(node, ack_interval=2, ack_window=1)
    with_lost_changes(rig)
    line = rig.connect(ACK)
    line.drain()
    line.ack_all()
    assert line.said() == ["a=a1!", "-c", "b=b1!"]
    line.answer(line.unanswered[0])
    line.leave()
    assert line.known.cursors[0].uuid == 0xA000
    again = rig.connect(ACK)
    assert sorted(text.rstrip("!") for text in again.run()[1:]) == ["-c", "a=a1", "b=b1"]
    assert again.known.cursors[0].uuid == 0xB0


def test_a_second_branch_below_the_corrections_corrects_them_again(node: FakeNode) -> None:
    rig = Rig(node)
    with_lost_changes(rig)
    node[0].set(b"a", b"a3")
    node[0].set(b"e", b"e4")
    line = rig.connect(ACK)
    line.run()
    line.leave()
    node[0].fail_over(2, uuid=0xC0)
    again = rig.connect(ACK)
    said = {text.rstrip("!") for text in again.run()[1:]}
    assert {"a=a1", "-e"} <= said


def test_refused_corrections_are_fetched_and_sent_again(node: FakeNode) -> None:
    rig = Rig(node, backoff_s=1)
    with_lost_changes(rig)
    line = rig.connect(ACK)
    line.drain()
    line.ack_all()
    messages = line.drain()
    line.refuse(messages[-1])
    node[0].set(b"a", b"newer")
    line.tick(1)
    said = [text.rstrip("!") for text in line.run()]
    assert said[-1] == "a=newer"
    assert {"-c", "b=b1"} <= set(said)
    assert "a=a1" not in said
    assert line.known.cursors[0].uuid == 0xB0


@pytest.mark.parametrize("keys", [FETCHED_AT_ONCE, FETCHED_AT_ONCE + 1, 3 * FETCHED_AT_ONCE])
def test_versions_are_fetched_a_few_at_a_time(node: FakeNode, keys: int) -> None:
    rig = Rig(node)
    line = rig.connect(ACK)
    line.run()
    for index in range(keys):
        node[0].set(b"k%d" % index)
    line.run()
    line.leave()
    node[0].fail_over(2, uuid=0xB0)
    again = rig.connect(ACK)
    assert len(again.run()) == keys + 1
    assert max(map(len, again.upstream.fetched)) == min(keys, FETCHED_AT_ONCE)
    assert sum(map(len, again.upstream.fetched)) == keys


def test_history_that_branches_while_the_client_is_connected_is_corrected(node: FakeNode) -> None:
    line = Rig(node).connect(ACK)
    line.run()
    node[0].set(b"x", b"lost")
    line.run()
    node[0].fail_over(2, uuid=0xB0)
    line.upstream.end(0, EndReason.STATE_CHANGED)
    node[0].set(b"y", b"y3")
    assert line.run() == ["-x", "y=y3!"]


def test_a_branch_between_corrections_and_stream_is_noticed(node: FakeNode) -> None:
    rig = Rig(node)
    with_lost_changes(rig)
    line = rig.connect(ACK, patient=True)
    line.upstream.deliver(3)  # survey, rollback, grant; the versions are on their way
    line.drain()
    line.ack_all()
    node[0].set(b"n")
    node[0].fail_over(2, uuid=0xC0)
    line.upstream.deliver(1)
    assert [text.rstrip("!") for text in line.said()] == ["a=a1", "-c", "b=b1"]
    line.upstream.deliver()
    assert [text.rstrip("!") for text in line.run()] == ["a=a1", "-c", "b=b1"]
    line.upstream.deliver()
    assert line.run() == []
    assert line.known.cursors[0].uuid == 0xC0


def test_a_branch_below_corrections_whose_stream_never_came_corrects_them_again(
    node: FakeNode,
) -> None:
    rig = Rig(node)
    with_lost_changes(rig)
    for _ in range(5):
        node[0].set(b"n")
    node[0].set(b"a", b"a8")
    line = rig.connect(ACK, patient=True)
    line.upstream.deliver(3)
    line.drain()
    line.ack_all()
    line.upstream.deliver(1)
    assert "a=a8" in line.said()
    line.ack_all()
    line.upstream.deliver()
    assert line.known.cursors[0].uuid == 0xB0
    assert line.known.cursors[0].acked == 2
    line.leave()
    node[0].fail_over(7, uuid=0xC0)
    assert "a=a1" in rig.connect(ACK).run()


def test_deletions_that_were_forgotten_mean_everything_anew(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(ACK)
    line.run()
    line.leave()
    node[0].delete(b"a")
    node[0].set(b"c")
    node[0].purge(3)
    said = rig.connect(ACK).run()
    assert said == ["opaque 0!", "opaque 1 vb0!", "b=b1", "c=v!", "opaque 8 vb0!"]


def test_after_everything_anew_checkpoints_begin_at_1(node: FakeNode) -> None:
    rig = Rig(node, rollback="restart")
    with_lost_changes(rig, ACK | CHECKPOINT)
    line = rig.connect(ACK | CHECKPOINT)
    line.run()
    node[0].set(b"n")
    assert line.run() == ["start 1!", "n=v!"]


def test_corrections_go_on_with_the_ids_of_checkpoints(node: FakeNode) -> None:
    rig = Rig(node)
    with_lost_changes(rig, ACK | CHECKPOINT)
    line = rig.connect(ACK | CHECKPOINT)
    node[0].set(b"n")
    said = line.run()
    assert said[-2:] == ["start 1!", "n=v!"]


@pytest.mark.parametrize("branch", [2, 3])
def test_nobody_goes_back_to_a_checkpoint_that_ended_in_the_history_that_is_over(
    node: FakeNode, branch: int
) -> None:
    """Behind a branch at 2 the end of checkpoint 1 is no place any more, at 3 it is."""
    rig = Rig(node)
    line = rig.connect(ACK | CHECKPOINT)
    line.run()
    for key in (b"c", b"d"):
        node[0].set(key)
        line.run()
    line.leave()
    node[0].fail_over(branch, uuid=0xB0)
    rig.connect(ACK | CHECKPOINT).run()
    again = rig.connect(ACK | CHECKPOINT, last_closed={0: 1}).run()
    assert ("opaque 1 vb0!" in again) is (branch == 2)


def test_the_id_of_a_checkpoint_that_ended_above_a_branch_is_not_used_again(
    node: FakeNode,
) -> None:
    rig = Rig(node)
    line = rig.connect(ACK | CHECKPOINT | REGISTERED, closed_only=True)
    line.run()
    node[0].set(b"c")
    assert "end 1!" in line.run()
    line.leave()
    node[0].fail_over(2, uuid=0xB0)
    node[0].set(b"n")
    again = rig.connect(ACK | CHECKPOINT | REGISTERED, closed_only=True).run()
    assert [text for text in again if "start" in text] == ["start 2!"]


def test_a_registered_client_is_corrected_or_emptied_after_a_restart_too(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(ACK | REGISTERED)
    peer = Peer()
    for message in line.run_messages():
        peer.take(message)
    node[0].set(b"x", b"lost")
    for message in line.drain():
        peer.take(message)
    assert b"x" in peer.documents[0]
    rig.restart()
    node[0].fail_over(2, uuid=0xB0)
    for message in rig.connect(ACK | REGISTERED).run_messages():
        peer.take(message)
    assert sorted(peer.documents[0]) == [b"a", b"b"]


def test_a_producer_that_rolls_back_to_where_the_client_is_not_is_given_up(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(ACK)
    line.run()
    line.leave()
    again = rig.connect(ACK, patient=True)
    again.upstream.deliver(1)
    again.upstream.refusals[0] = 0
    stream = again.producer._conversation.streams[0]
    again.producer._feed.openings._answered(stream, 0x23, (99).to_bytes(8, "big"))
    assert again.producer.closed


@pytest.mark.parametrize("value", [b"", b"\0" * 7, b"\0" * 9])
def test_a_torn_rollback_answer_ends_the_connection(node: FakeNode, value: bytes) -> None:
    rig = Rig(node)
    line = rig.connect(ACK)
    line.run()
    line.leave()
    again = rig.connect(ACK, patient=True)
    again.upstream.deliver(1)
    stream = again.producer._conversation.streams[0]
    again.producer._feed.openings._answered(stream, 0x23, value)
    assert again.producer.closed


@pytest.mark.parametrize("log", [b"", b"\0" * 15])
def test_a_torn_failover_log_ends_the_connection(node: FakeNode, log: bytes) -> None:
    line = Rig(node).connect(ACK, patient=True)
    line.upstream.deliver(1)
    stream = line.producer._conversation.streams[0]
    line.producer._feed.openings._answered(stream, 0, log)
    assert line.producer.closed


def test_a_dump_notes_no_keys(node: FakeNode) -> None:
    line = Rig(node).connect(DUMP)
    line.run()
    assert len(line.known.ring) == 0
