"""Registered clients: nothing leaves before it is saved that the client may hold it.

Source: TAP reference 7 and 10.
"""

from __future__ import annotations

import pytest

from tests.tap_adapter.fake_upstream import FakeNode
from tests.tap_adapter.tap_peer import ACK, CHECKPOINT, FOR_EVER, REGISTERED, Rig

pytestmark = pytest.mark.acceptance("D56")


@pytest.fixture
def node() -> FakeNode:
    node = FakeNode(0)
    node[0].set(b"a")
    return node


def test_nothing_leaves_to_a_registered_client_before_it_is_saved(node: FakeNode) -> None:
    rig = Rig(node)
    rig.keeper.patient = True
    line = rig.connect(REGISTERED)
    assert line.said() == []
    assert line.said() == []
    assert rig.keeper.pending
    rig.keeper.finish()
    assert line.wakes
    assert line.said() == ["opaque 1 vb0", "a=v", "opaque 8 vb0"]


def test_a_place_that_cannot_be_saved_is_tried_again(node: FakeNode) -> None:
    rig = Rig(node)
    rig.keeper.works = False
    line = rig.connect(REGISTERED)
    assert line.said() == []
    rig.keeper.works = True
    line.tick(0.5)
    assert line.said() == []
    line.tick(0.5)
    assert line.said() == ["opaque 1 vb0", "a=v", "opaque 8 vb0"]


def test_a_save_from_before_a_batch_does_not_let_it_go(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(REGISTERED | ACK)
    line.run()
    rig.keeper.patient = True
    node[0].set(b"b")
    line.drain()
    rig.keeper.finish_all()
    line.drain()
    line.ack_all()
    line.tick(2)  # its acknowledged place is being saved
    assert len(rig.keeper.pending) == 1
    node[0].set(b"c")
    assert line.said() == []
    rig.keeper.finish()
    assert line.said() == []
    rig.keeper.finish_all()
    assert line.said() == ["c=v!"]


@pytest.mark.parametrize("flags", [ACK, ACK | CHECKPOINT, CHECKPOINT])
def test_a_registered_client_goes_on_after_a_restart(node: FakeNode, flags: int) -> None:
    rig = Rig(node)
    line = rig.connect(REGISTERED | flags)
    line.run()
    node[0].set(b"b")
    line.run()
    line.leave()
    rig.restart()
    node[0].set(b"c")
    said = [text.rstrip("!") for text in rig.connect(REGISTERED | flags).run()]
    assert [text for text in said if "=" in text] == ["c=v"]
    assert "opaque 1 vb0" not in said


def test_what_was_acknowledged_is_saved_soon(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(REGISTERED | ACK)
    line.run()
    line.tick(2)
    rig.restart()  # as after a crash: nobody has left
    assert rig.names.find(b"client").cursors[0].backfilled  # type: ignore[union-attr]


def test_a_registered_client_that_is_idle_is_not_written_again_and_again(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(REGISTERED | ACK)
    line.run()
    line.tick(2)
    writes = rig.keeper.writes
    for _ in range(10):
        line.tick(2)
    assert rig.keeper.writes == writes


def test_others_are_never_saved(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(ACK)
    line.run()
    line.tick(2)
    line.leave()
    assert rig.keeper.writes == 0


@pytest.mark.parametrize("flags", [ACK, ACK | CHECKPOINT])
def test_the_first_word_to_a_client_without_a_backfill_waits_until_its_place_is_saved(
    node: FakeNode, flags: int
) -> None:
    """A crash after it must not forget from where the client has to get everything."""
    rig = Rig(node)
    rig.keeper.patient = True
    line = rig.connect(REGISTERED | flags, age=FOR_EVER)
    assert line.said() == []
    rig.keeper.finish()
    assert line.said()[0] == "opaque 0!"
    rig.restart()
    node[0].set(b"b")
    assert "b=v!" in rig.connect(REGISTERED | flags, age=FOR_EVER).run()


def test_a_client_that_is_told_nothing_is_saved_within_a_second(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(REGISTERED, age=FOR_EVER)
    assert line.run() == []
    line.tick(1)
    rig.restart()
    node[0].set(b"b")
    assert rig.connect(REGISTERED, age=FOR_EVER).run() == ["b=v"]


def test_the_end_of_a_backfill_is_saved_at_once(node: FakeNode) -> None:
    rig = Rig(node)
    line = rig.connect(REGISTERED | ACK)
    line.run()
    rig.restart()
    assert rig.connect(REGISTERED | ACK).run() == ["opaque 0!"]
