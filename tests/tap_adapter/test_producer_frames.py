"""Frames of UPR that are no items and no markers, and a UPR producer that talks nonsense.

Source: TAP reference 10.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, Rig
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
