"""Frames of UPR that are no items and no markers, and a UPR producer that talks nonsense.

Source: TAP reference 10.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, CHECKPOINT, DUMP, Rig, brief
from uprmc.model import FailoverEntry
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import Opcode

pytestmark = pytest.mark.acceptance("D56")


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(0)
    node[0].set(b"a", b"a1")
    node[0].set(b"b", b"b1")
    return node


def test_a_flush_of_one_vbucket_empties_that_one(node: FakeNode) -> None:
    line = Rig(node).connect(ACK)
    line.run()
    stream = line.upstream.streams[0]
    line.upstream.inject(0, encode_request(Opcode.UPR_FLUSH, opaque=stream.opaque))
    assert line.run() == ["opaque 1 vb0!", "opaque 8 vb0!"]


def test_frames_that_mean_nothing_to_tap_are_passed_over(node: FakeNode) -> None:
    line = Rig(node).connect()
    line.run()
    stream = line.upstream.streams[0]
    line.upstream.inject(
        0,
        encode_request(0x5F, extras=b"12345678", opaque=stream.opaque),
        encode_request(Opcode.UPR_NOOP),
        encode_request(
            Opcode.UPR_MUTATION, key=b"k", extras=bytes(31), vbucket=9, opaque=stream.opaque
        ),
        encode_request(Opcode.UPR_MUTATION, key=b"k", extras=b"\0" * 31, opaque=9_999),
    )
    node[0].set(b"c")
    assert line.run() == ["c=v"]
    assert line.upstream.acked_bytes == line.upstream.pulled_bytes


@pytest.mark.parametrize(
    "frame",
    [
        b"\x80",
        b"\x80" + b"\xff" * 23,
        encode_request(Opcode.UPR_SNAPSHOT_MARKER, extras=b"\0"),
        encode_request(Opcode.UPR_STREAM_END, extras=b"\0"),
        encode_request(Opcode.UPR_MUTATION, key=b"k", extras=b"\0" * 31),
        encode_request(Opcode.UPR_DELETION, key=b"k", extras=b"\0" * 3),
        encode_request(Opcode.UPR_SET_VBUCKET_STATE),
    ],
)
def test_a_producer_that_talks_nonsense_is_given_up(node: FakeNode, frame: bytes) -> None:
    line = Rig(node).connect()
    line.run()
    opaque = line.upstream.streams[0].opaque.to_bytes(4, "big")
    line.upstream.inject(0, frame[:12] + opaque + frame[16:] if len(frame) >= 24 else frame)
    line.run()
    assert line.producer.closed


# --- what is emptied --------------------------------------------------------------------------


def test_a_producer_whose_failover_log_is_not_newest_first_is_given_up(node: FakeNode) -> None:
    node[0].failover_log = [FailoverEntry(0xA, 1), FailoverEntry(0xB, 2)]
    line = Rig(node).connect()
    line.run()
    assert "a failover log that is not newest first" in line.producer.closed


@pytest.fixture
def pair() -> FakeNode:
    node = FakeNode(0, 1)
    for number in (0, 1):
        node[number].set(b"a%d" % number, b"1")
    return node


def test_all_that_is_emptied_at_once_is_one_flush(pair: FakeNode) -> None:
    line = Rig(pair).connect(ACK | CHECKPOINT)
    line.run()
    line.upstream.flush()
    assert line.run() == ["flush!"]
    pair[1].set(b"b", b"2")
    assert line.run() == ["start 1!", "b=2!"]
    line.upstream.flush()
    line.upstream.flush()
    assert line.run() == ["flush!"]


def test_no_item_and_no_checkpoint_follows_a_flush_that_is_not_acknowledged(
    pair: FakeNode,
) -> None:
    line = Rig(pair).connect(ACK | CHECKPOINT)
    line.run()
    line.upstream.flush()
    pair[0].set(b"b", b"2")
    (flush,) = line.drain()
    assert brief(flush) == "flush!"
    line.refuse(flush)
    line.tick(10)
    (flush,) = line.drain()
    assert brief(flush) == "flush!"
    line.unanswered.clear()
    line.answer(flush)
    assert line.run() == ["start 1!", "b=2!"]


def test_what_was_sent_and_not_acknowledged_before_a_flush_moves_nothing(pair: FakeNode) -> None:
    rig = Rig(pair)
    line = rig.connect(ACK)
    line.run()
    pair[0].set(b"b", b"2")
    pair[0].set(b"c", b"3")
    line.drain()
    line.upstream.flush()
    assert line.run() == ["flush!"]
    assert [rig.names.find(b"client").cursors[n].acked for n in (0, 1)] == [0, 0]


def test_a_client_that_has_not_acknowledged_a_flush_begins_from_scratch(pair: FakeNode) -> None:
    rig = Rig(pair)
    line = rig.connect(ACK)
    line.run()
    line.upstream.flush()
    line.drain()
    line.leave()
    pair[0].set(b"b", b"2")
    again = rig.connect(ACK).run()
    assert [text for text in again if "vb" in text or "=" in text] == [
        "opaque 1 vb0!",
        "opaque 1 vb1!",
        "opaque 8 vb1!",
        "b=2!",
        "opaque 8 vb0!",
    ]


def test_a_client_that_has_acknowledged_a_flush_goes_on_from_there(pair: FakeNode) -> None:
    rig = Rig(pair)
    line = rig.connect(ACK)
    line.run()
    line.upstream.flush()
    line.run()
    line.leave()
    pair[0].set(b"b", b"2")
    assert rig.connect(ACK).run() == ["opaque 0!", "b=2!"]


def test_a_client_of_some_vbuckets_is_told_of_each_that_it_is_empty(pair: FakeNode) -> None:
    line = Rig(pair).connect(ACK, vbuckets=[1])
    line.run()
    line.upstream.flush()
    assert line.run() == ["opaque 1 vb1!", "opaque 8 vb1!"]


def test_a_dump_is_not_flushed(pair: FakeNode) -> None:
    line = Rig(pair).connect(DUMP, patient=True)
    line.upstream.deliver()
    line.upstream.flush()
    assert "flush" not in line.run()


@pytest.mark.parametrize("flags", [0, ACK])
def test_one_vbucket_that_is_emptied_gets_both_ends_of_a_backfill(
    pair: FakeNode, flags: int
) -> None:
    line = Rig(pair).connect(flags)
    line.run()
    mark = "!" * bool(flags)
    line.upstream.empty(0)
    assert line.run() == [f"opaque 1 vb0{mark}", f"opaque 8 vb0{mark}"]
    for _ in range(3):
        line.upstream.empty(0)
        assert line.run() == [], "it has nothing of it"
    pair[0].set(b"b", b"2")
    assert line.run() == [f"b=2{mark}"]


def test_a_survey_that_comes_late_does_not_end_a_backfill_that_has_begun(pair: FakeNode) -> None:
    line = Rig(pair).connect(ACK, patient=True)
    line.upstream.deliver()
    line.run()
    line.upstream.empty(0)
    line.run()
    line.upstream.deliver(1)  # sent back
    line.upstream.deliver(1)  # granted
    pair[0].set(b"b", b"2")
    assert line.run() == ["opaque 1 vb0!", "b=2!", "opaque 8 vb0!"]
    line.upstream.deliver()
    assert line.run() == []
