"""Following nodes: everything comes, is saved, and goes on where it was, here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.client.consumer_world import (
    ACTIVE,
    DEAD,
    REPLICA,
    DurableMirror,
    Mirror,
    World,
    live,
    node,
    replicate,
    standby,
    write,
)
from tests.contents import table_of
from tests.kv.harness import Rig
from uprmc.client.position import Position
from uprmc.model import SnapshotRange


def test_everything_that_is_there_comes_and_then_what_follows() -> None:
    rig, mirror = node(), Mirror()
    write(rig, 0, a="1", b="2")
    write(rig, 3, c="3")
    world = World(mirror, rig)
    world.settle()
    assert mirror.docs == {0: {b"a": b"1", b"b": b"2"}, 3: {b"c": b"3"}}
    write(rig, 0, a="", d="4")
    world.settle()
    assert mirror.of(0) == live(rig)


def test_a_change_says_all_about_a_document() -> None:
    rig, mirror = node(), Mirror()
    part = rig.bucket.vbuckets[2]
    part.store(b"k", b"v", 7, 2_000_000_000)
    world = World(mirror, rig)
    world.settle()
    item = table_of(part)[b"k"]
    uuid = part.failover_log[0].uuid
    found = ("set", 2, 1, uuid, b"k", b"v", 1, item.cas, 7, 2_000_000_000, 0, None)
    assert mirror.changes == [found]


@pytest.mark.acceptance("D13")
def test_the_position_of_a_whole_snapshot_is_saved_with_the_failover_log() -> None:
    rig, world = _filled()
    saved = world.state.load()[0]
    assert (saved.seqno, saved.snapshot) == (3, SnapshotRange(3, 3))
    assert saved.log == rig.bucket.vbuckets[0].failover_log


@pytest.mark.parametrize("end", [World.restart, World.cut])
def test_after_a_restart_or_a_cut_it_goes_on_where_it_was(end: Callable[[World], None]) -> None:
    rig, world = _filled()
    mirror = world.handler
    assert isinstance(mirror, Mirror)
    end(world)
    write(rig, 0, d="4")
    world.settle(1)
    assert [change.seqno for change in mirror.changes] == [1, 2, 3, 4]
    assert mirror.told("rollback") == []


def test_from_now_on_only_what_is_new_comes_and_a_restart_goes_on_there() -> None:
    rig, mirror = node(), Mirror()
    write(rig, 0, a="1", b="2")
    world = World(mirror, rig, start="now")
    world.settle()
    assert mirror.changes == []
    write(rig, 0, c="3")
    world.settle()
    assert [change.seqno for change in mirror.changes] == [3]
    world.restart(start="checkpoint")
    write(rig, 0, d="4")
    world.settle()
    assert [change.seqno for change in mirror.changes] == [3, 4]


def test_a_position_is_where_it_begins() -> None:
    rig, mirror = node(), Mirror()
    write(rig, 0, a="1", b="2", c="3")
    uuid = rig.bucket.vbuckets[0].failover_log[0].uuid
    world = World(mirror, rig, start={0: Position(2, uuid)}, vbuckets=frozenset({0}))
    world.settle()
    assert [change.seqno for change in mirror.changes] == [3]
    assert world.core.positions() == {0: Position(3, uuid)}


def test_from_the_beginning_drops_what_was_there_first() -> None:
    _, world = _filled()
    mirror = world.handler
    assert isinstance(mirror, Mirror)
    world.restart(start="beginning")
    world.settle()
    assert mirror.told("rollback") == [(0, 0)]
    assert [change.seqno for change in mirror.changes] == [1, 2, 3, 1, 2, 3]


def test_a_vbucket_that_is_made_later_is_followed_too() -> None:
    rig, mirror = node(), Mirror()
    rig.bucket.set_state(3, DEAD)
    world = World(mirror, rig)
    world.settle(2)
    rig.bucket.set_state(3, ACTIVE)
    write(rig, 3, a="1")
    world.settle(3)
    assert mirror.of(3) == {b"a": b"1"}


# --- snapshots ------------------------------------------------------------------------------------


@pytest.mark.acceptance("P15")
def test_each_snapshot_has_one_beginning_and_one_end() -> None:
    rig, world = _filled()
    mirror = world.handler
    assert isinstance(mirror, Mirror)
    write(rig, 0, a="5", b="6")
    world.settle()
    assert mirror.told("snapshot_begin") == [(0, 0, 3, False), (0, 4, 5, False)]
    assert mirror.told("snapshot_end") == [(0, 3), (0, 5)]


@pytest.mark.acceptance("D45")
def test_in_mid_snapshot_the_last_whole_one_is_saved() -> None:
    world = _inside_of_a_snapshot(Mirror())
    saved = world.state.load()[0]
    assert (saved.seqno, saved.snapshot) == (2, SnapshotRange(2, 2))


@pytest.mark.acceptance("D45")
def test_in_mid_snapshot_the_bounds_are_saved_if_the_handler_can_be_durable_there() -> None:
    world = _inside_of_a_snapshot(DurableMirror())
    saved = world.state.load()[0]
    assert saved.snapshot.start == 2 < saved.seqno < saved.snapshot.end == 42
    mirror = world.handler
    assert isinstance(mirror, Mirror)
    last = mirror.changes[-1].seqno
    assert saved.seqno == last
    mirror.changes.clear()
    world.restart(buffer_bytes=1 << 20)
    world.settle()
    assert mirror.changes[0].seqno == last + 1
    assert mirror.told("rollback") == []


def _inside_of_a_snapshot(mirror: Mirror) -> World:
    """Stop where the node waits for an acknowledgement."""
    rig = node()
    write(rig, 0, a="1", b="2")
    world = World(mirror, rig, vbuckets=frozenset({0}), buffer_bytes=1000)
    world.settle()
    session = next(iter(world._ends))
    session.dealt_with = lambda: None  # type: ignore[method-assign]
    write(rig, 0, **{f"key{n}": "x" * 50 for n in range(40)})
    world.settle()
    assert 2 < mirror.changes[-1].seqno < 42
    return world


# --- several nodes --------------------------------------------------------------------------------


@pytest.mark.acceptance("D33")
def test_a_vbucket_that_moves_is_followed_to_its_new_node() -> None:
    old, new, mirror = node(), standby(1000), Mirror()
    write(old, 0, a="1")
    world = World(mirror, old, new)
    world.settle()
    replicate(old, new)
    old.bucket.set_state(0, REPLICA)
    new.bucket.set_state(0, ACTIVE, takeover=True)
    write(new, 0, b="2")
    world.settle(3)
    assert mirror.of(0) == live(new) == {b"a": b"1", b"b": b"2"}
    assert [change.seqno for change in mirror.changes] == [1, 2]
    assert mirror.told("rollback") == []


@pytest.mark.acceptance("D33")
def test_a_node_that_dies_is_left_for_the_one_that_took_over() -> None:
    old, new, mirror = node(), standby(1000), Mirror()
    write(old, 0, a="1")
    replicate(old, new)
    world = World(mirror, old, new)
    world.settle()
    world.lose_node("node0:1")
    new.bucket.set_state(0, ACTIVE)
    write(new, 0, b="2")
    world.settle(3)
    assert mirror.of(0) == live(new)
    assert mirror.told("rollback") == []


def test_metrics_tell_how_far_behind_we_are() -> None:
    _, world = _filled()
    world.settle(3)
    level = world.core.metrics(world.now)
    assert (level.lag_items, level.lag_bytes, level.lag_s) == (0, 0, 0.0)
    assert level.vbuckets[0].seqno == level.vbuckets[0].ring_covers_seqnos == 3
    session = next(iter(world._ends))
    world._ends[session].take = lambda data: b""  # type: ignore[method-assign]
    world.core.streams.routes[0].high_seqno = 13
    world.settle(3)
    behind = world.core.metrics(world.now)
    assert behind.vbuckets[0].lag_items == 10
    assert behind.vbuckets[0].lag_bytes > 100
    assert behind.vbuckets[0].lag_s >= 3


def _filled() -> tuple[Rig, World]:
    rig = node()
    write(rig, 0, a="1", b="2", c="3")
    world = World(Mirror(), rig)
    world.settle()
    return rig, world
