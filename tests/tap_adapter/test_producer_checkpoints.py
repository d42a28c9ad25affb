"""Checkpoints, and clients that come back: by name, by a closed checkpoint, as registered ones.

Source: TAP reference 3, 6, 7 and 10.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, CHECKPOINT, FOR_EVER, REGISTERED, Peer, Rig
from uprmc.model import SnapshotRange

pytestmark = pytest.mark.acceptance("D56")


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(0)
    node[0].set(b"a")
    return node


# --- checkpoints ---------------------------------------------------------------------------------


def test_snapshots_after_the_backfill_are_checkpoints_from_1(node: FakeNode) -> None:
    line = Rig(node).connect(ACK | CHECKPOINT)
    assert line.run()[2:] == ["opaque 1 vb0!", "a=v!", "opaque 8 vb0!"]
    node[0].set(b"b")
    assert line.run() == ["start 1!", "b=v!"]
    node[0].set(b"c")
    assert line.run() == ["end 1!", "start 2!", "c=v!"]


def test_checkpoints_come_without_acks_too(node: FakeNode) -> None:
    line = Rig(node).connect(CHECKPOINT)
    line.run()
    node[0].set(b"b")
    line.run()
    node[0].set(b"c")
    assert line.run() == ["end 1", "start 2", "c=v"]


def test_without_the_flag_there_are_none(node: FakeNode) -> None:
    line = Rig(node).connect(ACK)
    line.run()
    node[0].set(b"b")
    assert line.run() == ["b=v!"]


def test_a_backfill_in_several_snapshots_ends_with_the_first_of_them(node: FakeNode) -> None:
    node[0].set(b"b")
    line = Rig(node).connect(ACK | CHECKPOINT, snapshot_items=1)
    assert line.run()[2:] == ["opaque 1 vb0!", "a=v!", "opaque 8 vb0!", "start 1!", "b=v!"]


def test_an_end_waits_until_all_before_it_is_acknowledged(node: FakeNode) -> None:
    line = Rig(node).connect(ACK | CHECKPOINT)
    line.run()
    node[0].set(b"b")
    line.drain()
    line.ack_all()
    assert line.said() == ["b=v!"]
    node[0].set(b"c")
    assert line.said() == []
    line.ack_all()
    assert line.said() == ["end 1!"]
    assert line.said() == []
    line.ack_all()
    assert line.said() == ["start 2!"]
    line.ack_all()
    assert line.said() == ["c=v!"]


def test_a_refused_end_is_sent_again_before_the_next_start(node: FakeNode) -> None:
    line = Rig(node, backoff_s=1).connect(ACK | CHECKPOINT)
    line.run()
    node[0].set(b"b")
    line.run()
    node[0].set(b"c")
    (end,) = line.drain()
    line.refuse(end)
    line.tick(1)
    assert line.run() == ["end 1!", "start 2!", "c=v!"]


def test_a_refused_item_is_sent_again_within_its_checkpoint(node: FakeNode) -> None:
    line = Rig(node, backoff_s=1).connect(ACK | CHECKPOINT)
    line.run()
    node[0].set(b"b")
    line.drain()
    line.ack_all()
    (item,) = line.drain()
    line.refuse(item)
    node[0].set(b"c")
    line.tick(1)
    assert line.run() == ["b=v", "c=v!"]
    node[0].set(b"d")
    assert line.run() == ["end 1!", "start 2!", "d=v!"]


def test_a_checkpoint_tells_the_highest_revision_of_a_deletion(node: FakeNode) -> None:
    node[0].set(b"b")
    node[0].set(b"b")
    node[0].delete(b"b")
    line = Rig(node).connect(ACK | CHECKPOINT)
    line.run()
    node[0].set(b"c")
    start = line.run_messages()[0]
    assert int.from_bytes(start.specific, "big") == 3


def test_the_last_seqno_of_a_closed_checkpoint_is_known(node: FakeNode) -> None:
    line = Rig(node).connect(ACK | CHECKPOINT)
    line.run()
    for key in (b"b", b"c", b"d"):
        node[0].set(key)
        line.run()
    assert line.known.cursors[0].closed == {1: 2, 2: 3}


# --- back by name --------------------------------------------------------------------------------


def test_who_comes_back_by_name_goes_on_behind_what_was_acknowledged(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(ACK)
    line.run()
    node[0].set(b"b")
    line.run()
    node[0].set(b"c")
    assert line.said() == ["c=v!"]
    line.leave()
    assert rig.connect(ACK).run() == ["opaque 0!", "c=v!"]


def test_a_cut_in_the_middle_of_a_snapshot_resumes_within_it(node: FakeNode) -> None:
    rig = Rig(node, ack_interval=2)
    line = rig.connect(ACK, age=FOR_EVER)
    line.run()
    for key in (b"b", b"c", b"d"):
        node[0].set(key)
    messages = line.drain()
    line.answer(messages[0])  # number 2
    line.leave()
    assert (line.known.cursors[0].acked, line.known.cursors[0].snapshot) == (2, SnapshotRange(1, 4))
    second = rig.connect(ACK)
    assert [text.rstrip("!") for text in second.run()] == ["opaque 0", "c=v", "d=v"]
    assert second.upstream.opened[0][1][1:] == (2, 2**64 - 1, 0xA000, 1, 4)


def test_a_second_cut_in_the_same_snapshot_still_knows_where_it_began(node: FakeNode) -> None:
    rig = Rig(node, ack_interval=2)
    line = rig.connect(ACK, age=FOR_EVER)
    line.run()
    for key in (b"b", b"c", b"d", b"e"):
        node[0].set(key)
    line.answer(line.drain()[0])  # number 2: seqno 2
    line.leave()
    second = rig.connect(ACK)
    second.drain()
    second.ack_all()
    second.answer(second.drain()[0])  # number 2: seqno 3
    second.leave()
    assert rig.connect(ACK).upstream.opened[0][1][1:] == (3, 2**64 - 1, 0xA000, 1, 5)


def test_who_holds_something_of_what_was_empty_begins_anew() -> None:
    """It may be deleted, and the deletion forgotten; from the first seqno nobody would notice."""
    node = FakeNode(0)
    rig = Rig(node)
    line = rig.connect(ACK)
    line.run()
    node[0].set(b"a")
    assert line.said() == ["a=v!"]
    line.leave()
    node[0].delete(b"a")
    node[0].purge(2)
    node[0].set(b"b")
    assert "opaque 1 vb0!" in rig.connect(ACK).run()


def test_a_cut_in_the_middle_of_the_backfill_begins_it_again(node: FakeNode) -> None:
    rig = Rig(node, ack_interval=1)
    node[0].set(b"b")
    line = rig.connect(ACK)
    line.drain()
    line.ack_all()
    line.answer(line.drain()[0])
    line.leave()
    assert line.known.cursors[0].acked == 1
    assert rig.connect(ACK, age=FOR_EVER).run()[1] == "opaque 1 vb0!"


def test_an_empty_vbucket_that_was_backfilled_needs_no_second_backfill() -> None:
    rig = Rig(FakeNode(0))
    line = rig.connect(ACK)
    line.run()
    line.leave()
    assert rig.connect(ACK).run() == ["opaque 0!"]


def test_a_new_connection_begins_with_the_start_of_the_open_checkpoint(node: FakeNode) -> None:
    """A pipe's far end may be a new process, which would not know what is to end."""
    rig = Rig(node)
    line = rig.connect(ACK | CHECKPOINT)
    line.run()
    node[0].set(b"b")
    line.run()
    line.leave()
    node[0].set(b"c")
    second = rig.connect(ACK | CHECKPOINT)
    assert second.run()[2:] == ["start 1!", "c=v!"]
    node[0].set(b"d")
    assert second.run() == ["end 1!", "start 2!", "d=v!"]


def test_other_names_know_nothing_of_each_other(node: FakeNode) -> None:
    rig = Rig(node)
    rig.connect(name=b"one").run()
    assert rig.connect(name=b"two").said()[0] == "opaque 1 vb0"


# --- back by a closed checkpoint -----------------------------------------------------------------


def closed(rig: Rig, node: FakeNode, *, registered: bool = False) -> None:
    """Leave a client that has closed 1 (up to seqno 2) and 2 (up to 3) and holds a part of 3."""
    line = rig.connect(ACK | CHECKPOINT | (REGISTERED if registered else 0))
    line.run()
    for key in (b"b", b"c", b"d"):
        node[0].set(key)
        line.run()
    line.leave()


@pytest.mark.parametrize(("checkpoint_id", "keys"), [(1, "cd"), (2, "d")])
def test_who_names_its_last_closed_checkpoint_goes_on_behind_it(
    node: FakeNode, checkpoint_id: int, keys: str
) -> None:
    rig = Rig(node)
    closed(rig, node)
    line = rig.connect(ACK | CHECKPOINT, last_closed={0: checkpoint_id})
    said = line.run()[2:]
    assert said[0] == f"start {checkpoint_id + 1}!"
    assert [text[0] for text in said if "=" in text] == list(keys)


@pytest.mark.parametrize("checkpoint_id", [3, 4, 2**64 - 1])
@pytest.mark.parametrize("age", [0, FOR_EVER])
def test_a_checkpoint_that_is_not_known_means_everything(
    node: FakeNode, checkpoint_id: int, age: int
) -> None:
    rig = Rig(node)
    closed(rig, node)
    line = rig.connect(ACK | CHECKPOINT, last_closed={0: checkpoint_id}, age=age)
    assert line.run()[2] == "opaque 1 vb0!"


def test_checkpoint_0_is_no_wish(node: FakeNode) -> None:
    rig = Rig(node)
    closed(rig, node)
    assert rig.connect(ACK | CHECKPOINT, last_closed={0: 0}).run() == ["opaque 0!", "opaque 2!"]


# --- closed checkpoints only ---------------------------------------------------------------------


def test_a_client_of_closed_checkpoints_hears_when_it_has_them_all(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(ACK | CHECKPOINT | REGISTERED, closed_only=True)
    assert line.run()[2:] == ["opaque 1 vb0!", "a=v!", "opaque 8 vb0!", "opaque 3 vb0!"]
    node[0].set(b"b")
    assert line.run() == ["start 1!", "b=v!", "end 1!", "opaque 3 vb0!"]
    line.leave()
    node[0].set(b"c")
    second = rig.connect(ACK | CHECKPOINT | REGISTERED, closed_only=True)
    assert second.run()[2:] == ["start 2!", "c=v!", "end 2!", "opaque 3 vb0!"]


def test_it_hears_so_at_once_when_there_is_nothing_new(node: FakeNode) -> None:
    rig = Rig(node)
    rig.connect(ACK | REGISTERED, closed_only=True).run()
    again = rig.connect(ACK | REGISTERED, closed_only=True)
    assert again.run() == ["opaque 0!", "opaque 3 vb0!"]
    assert again.run() == []


def test_any_other_client_does_not_hear_it(node: FakeNode) -> None:
    assert "opaque 3 vb0!" not in Rig(node).connect(ACK | CHECKPOINT | REGISTERED).run()


def test_a_peer_that_checks_checkpoints_is_content_over_reconnections(node: FakeNode) -> None:
    rig = Rig(node)
    peer = Peer()
    for step in range(5):
        line = rig.connect(ACK | CHECKPOINT)
        peer.open_checkpoints.clear()
        for key in (b"x", b"y"):
            node[0].set(key, b"%d" % step)
            for message in line.run_messages():
                peer.take(message)
        line.leave()
    assert {k: v[0] for k, v in peer.documents[0].items()} == {b"a": b"v", b"x": b"4", b"y": b"4"}
