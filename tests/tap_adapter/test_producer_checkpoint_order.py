"""What a client of checkpoints must not be made to wait for, one vBucket after the other.

Source: TAP reference 5 and 6.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, CHECKPOINT, REGISTERED, TEMPORARY_FAILURE, Line, Rig
from uprmc.protocol.header import pack_request
from uprmc.protocol.opcodes import MAGIC_REQUEST, Opcode
from uprmc.tap_adapter.feed import beginnings_first

pytestmark = pytest.mark.acceptance("D56")

VBUCKETS = range(5)


def in_second_checkpoint(rig: Rig, flags: int = ACK | CHECKPOINT) -> Line:
    """A client that has all of checkpoint 1 of each vBucket, and a change to come in each."""
    line = rig.connect(flags)
    line.run()
    for round_number in range(2):
        if round_number:
            line.run()
        for number in VBUCKETS:
            rig.node[number].set(b"key", b"%d" % round_number)
    return line


def test_the_ends_of_many_vbuckets_leave_together_and_then_their_beginnings() -> None:
    line = in_second_checkpoint(Rig(FakeNode(*VBUCKETS)))
    assert line.said() == ["end 1!"] * len(VBUCKETS)
    line.ack_all()
    assert line.said() == ["start 2!"] * len(VBUCKETS)
    line.ack_all()
    assert [text.rstrip("!") for text in line.said()] == ["key=1"] * len(VBUCKETS)


def test_no_more_ends_leave_than_the_window_holds() -> None:
    line = in_second_checkpoint(Rig(FakeNode(*VBUCKETS), ack_interval=1, ack_window=2))
    assert line.said() == ["end 1!"] * 3


def test_a_beginning_waits_for_an_end_that_is_refused() -> None:
    line = in_second_checkpoint(Rig(FakeNode(*VBUCKETS), backoff_s=1))
    ends = line.drain()
    line.answer(ends[0], TEMPORARY_FAILURE)
    line.tick(1)
    assert line.said() == ["end 1!"]
    line.ack_all()
    assert sorted(line.said()) == ["start 2!"] * len(VBUCKETS)


def test_a_registered_client_costs_few_saves_for_many_vbuckets() -> None:
    rig = Rig(FakeNode(*VBUCKETS))
    line = in_second_checkpoint(rig, ACK | CHECKPOINT | REGISTERED)
    saves = []
    save = rig.keeper.save

    def counted(*arguments: object) -> None:
        saves.append(arguments)
        save(*arguments)  # type: ignore[arg-type]

    rig.keeper.save = counted  # type: ignore[method-assign]
    assert line.run()
    assert len(saves) <= 4, "the ends, the beginnings, the documents"


def test_only_a_streams_first_frame_of_a_pull_is_moved() -> None:
    def frame(opcode: int, opaque: int, *pieces: bytes) -> list[bytes]:
        size = sum(map(len, pieces))
        head = pack_request(MAGIC_REQUEST, opcode, 0, 0, 0, 0, size, opaque, 0)
        return [head, *pieces]

    marker, item = Opcode.UPR_SNAPSHOT_MARKER, Opcode.UPR_MUTATION
    first = frame(item, 1, b"key", b"")
    second = frame(marker, 2)
    third = frame(marker, 1)
    fourth = frame(item, 2, b"key", b"value")
    assert beginnings_first(first + second + third + fourth) == (
        second + first + third + fourth,
        len(second),
    )


def test_a_checkpoint_does_not_end_before_what_was_refused_of_it_has_come() -> None:
    """Its end was about to leave when the refusal came."""
    node = FakeNode(0)
    node[0].set(b"first")
    rig = Rig(node)
    line = rig.connect(ACK | CHECKPOINT)
    line.run()
    node[0].set(b"a")
    line.drain()
    line.ack_all()
    (refused,) = line.drain()
    node[0].set(b"b")
    assert line.said() == []
    line.answer(refused, TEMPORARY_FAILURE)
    line.tick(rig.settings.backoff_s)
    assert line.run() == ["a=v", "b=v!"]
    node[0].set(b"c")
    assert line.run() == ["end 1!", "start 2!", "c=v!"]
