"""Handlers that take batches hold the same as those that take changes one by one."""

from __future__ import annotations

from typing import Any

from tests.client.consumer_world import BatchMirror, World, live, node, write
from uprmc.client.handler import Handler


def test_everything_that_is_there_comes_and_then_what_follows() -> None:
    rig, mirror = node(), BatchMirror()
    write(rig, 0, a="1", b="2")
    write(rig, 3, c="3")
    world = World(mirror, rig)
    world.settle()
    assert mirror.docs == {0: {b"a": b"1", b"b": b"2"}, 3: {b"c": b"3"}}
    assert [batch.whole for batch in mirror.batches if batch.whole] == [{0: 2, 3: 1}]
    write(rig, 0, a="", d="4")
    world.settle()
    assert mirror.of(0) == live(rig)
    assert mirror.batches[-1].whole == {0: 4}
    assert world.state.load()[0].seqno == 4


def test_nothing_else_is_called_for_changes() -> None:
    rig, mirror = node(), BatchMirror()
    write(rig, 0, a="1")
    World(mirror, rig).settle()
    assert mirror.told("snapshot_begin") == mirror.told("snapshot_end") == []


def test_a_list_of_that_name_makes_no_handler_of_batches() -> None:
    class Keeping(Handler):
        def __init__(self) -> None:
            self.changes: list[Any] = []

        def mutation(self, change: Any) -> None:
            self.changes.append(change)

    rig, handler = node(), Keeping()
    write(rig, 0, a="1")
    World(handler, rig).settle()
    assert [change.key for change in handler.changes] == [b"a"]
