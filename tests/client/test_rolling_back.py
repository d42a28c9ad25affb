"""Rollback: what the node's history lost is undone, from the ring or from zero, nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.consumer_world import (
    DEAD,
    CrashingState,
    Mirror,
    World,
    fail_over,
    live,
    node,
    replicate,
    standby,
    write,
)
from tests.kv.harness import Rig
from uprmc.client.errors import RollbackRefused
from uprmc.model import FailoverEntry, SnapshotRange

ONLY_0: dict[str, Any] = {"vbuckets": frozenset({0})}


def _scripted(mirror: Mirror, lost: int = 0, **options: Any) -> tuple[Rig, Rig, World]:
    """A replica has seqnos 1 to 3; the consumer has more of the old active; the replica takes over.

    Changed: "a"; deleted: "b"; never existed on the new active: "new", and `lost` others.
    """
    old, new = node(), standby(1000)
    write(old, 0, a="1", b="2", c="3")
    replicate(old, new)
    world = World(mirror, old, new, **ONLY_0 | options)
    world.settle()
    write(old, 0, a="lost", b="", new="lost")
    if lost:
        write(old, 0, **{f"more{n:03}": "lost" for n in range(lost)})
    world.settle()
    mirror.diary.clear()
    fail_over(old, new)
    return old, new, world


# --- with the ring --------------------------------------------------------------------------------


@pytest.mark.acceptance("D15", "D46", "D48")
def test_changed_deleted_and_unknown_keys_all_end_right_without_starting_over() -> None:
    """What was lost is told with the new history, and its keys leave the ring."""
    mirror = Mirror()
    _, new, world = _scripted(mirror)
    assert isinstance(world.state, CrashingState)
    assert [key for _, key in world.state.ring()] == [b"a", b"b", b"c", b"a", b"b", b"new"]
    world.settle(3)
    assert world.state.ring() == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert mirror.told("branch") == [(0, new.bucket.vbuckets[0].failover_log[0].uuid, 4, 6)]
    assert mirror.of(0) == live(new) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert mirror.told("rollback") == [(0, 3)]
    assert sorted(mirror.told("undo")) == [(0, b"a", b"1"), (0, b"b", b"2"), (0, b"new", None)]
    assert [change.seqno for change in mirror.changes] == [1, 2, 3, 4, 5, 6]


@pytest.mark.acceptance("D49")
def test_afterwards_the_new_history_and_the_high_seqno_are_saved() -> None:
    mirror = Mirror()
    _, new, world = _scripted(mirror)
    write(new, 0, d="4", a="5")
    world.settle(3)
    saved = world.state.load()[0]
    assert saved.log == new.bucket.vbuckets[0].failover_log
    assert (saved.seqno, saved.snapshot) == (5, SnapshotRange(5, 5))
    assert mirror.of(0) == live(new)


def test_a_key_that_is_newer_than_the_rollback_seqno_stays_in_the_ring() -> None:
    """Else the loss of the new history, too, would leave what was fetched from it."""
    mirror = Mirror()
    _, new, world = _scripted(mirror)
    write(new, 0, x="4", a="5")
    assert isinstance(world.state, CrashingState)
    world.core.due(0.0)
    world.state.crash_at = 0
    world.settle(3)
    assert mirror.of(0) == live(new)
    assert (5, b"a") in world.state.ring()


@pytest.mark.acceptance("D15", "D47")
@pytest.mark.parametrize(("lost", "starts_over"), [(10, False), (11, True), (30, True)])
def test_the_size_of_the_ring_says_how_far_back_undoing_goes(lost: int, starts_over: bool) -> None:
    mirror = Mirror()
    old, new = node(), standby(1000)
    for number in range(5):
        write(old, 0, **{f"k{number}": "1"})
    replicate(old, new)
    world = World(mirror, old, new, ring_items=10, **ONLY_0)
    world.settle()
    for number in range(lost):
        write(old, 0, **{f"lost{number}": "1"})
        world.settle()
    assert world.core.metrics(world.now).vbuckets[0].ring_covers_seqnos == 10
    fail_over(old, new)
    mirror.diary.clear()
    world.settle(3)
    assert mirror.of(0) == live(new)
    assert mirror.told("rollback") == [(0, 0 if starts_over else 5)]
    assert len(mirror.told("undo")) == (0 if starts_over else 10)
    metrics = world.core.metrics(world.now).vbuckets[0]
    assert (metrics.rollbacks, metrics.restarts) == (1, starts_over)


# --- beyond the ring ------------------------------------------------------------------------------


@pytest.mark.acceptance("P19")
def test_a_foreign_history_empties_that_vbucket_only() -> None:
    rig, mirror = node(), Mirror()
    write(rig, 0, a="1")
    write(rig, 1, b="2")
    world = World(mirror, rig)
    world.settle()
    part = rig.bucket.vbuckets[0]
    part.failover_log = (FailoverEntry(0xF0, 0),)
    world.restart()
    mirror.diary.clear()
    mirror.of(0)[b"stale"] = b"of before"
    world.settle(1)
    assert mirror.told("rollback") == [(0, 0)]
    assert mirror.docs == {0: {b"a": b"1"}, 1: {b"b": b"2"}}
    assert world.state.load()[0].log == part.failover_log
    assert [change.vbucket for change in mirror.changes] == [0, 1, 0]


def test_a_flush_starts_every_vbucket_over() -> None:
    rig, mirror = node(), Mirror()
    write(rig, 0, a="1")
    world = World(mirror, rig, **ONLY_0)
    world.settle()
    rig.bucket.flush(0, lambda ok: None)
    rig.bucket.tick()
    write(rig, 0, b="2")
    world.settle(2)
    assert mirror.of(0) == live(rig) == {b"b": b"2"}


# --- where to -------------------------------------------------------------------------------------


@pytest.mark.acceptance("P10")
def test_it_goes_back_to_a_snapshot_end_at_or_below_what_it_was_told() -> None:
    """Snapshot ends 10, 25, 40; the node's history leaves ours after 30: on from 25."""
    mirror = Mirror()
    old, new = node(), standby(1000)
    world = World(mirror, old, new, **ONLY_0)
    for first, last in ((1, 10), (11, 25)):
        write(old, 0, **{f"k{n}": "1" for n in range(first, last + 1)})
        world.settle()
    write(old, 0, **{f"k{n}": "1" for n in range(26, 31)})
    replicate(old, new)
    write(old, 0, **{f"k{n}": "1" for n in range(31, 41)})
    world.settle()
    assert [end for _, end in mirror.told("snapshot_end")] == [10, 25, 40]
    fail_over(old, new)
    mirror.diary.clear()
    mirror.changes.clear()
    world.settle(3)
    assert mirror.told("rollback") == [(0, 25)]
    assert mirror.changes[0].seqno == 26
    assert mirror.of(0) == live(new)


def test_in_mid_snapshot_it_goes_back_to_before_that_snapshot() -> None:
    mirror = Mirror()
    old, new = node(), standby(1000)
    write(old, 0, a="1", b="2")
    world = World(mirror, old, new, buffer_bytes=1000, **ONLY_0)
    world.settle()
    session = next(each for each in world._ends if each.place == "node0:1")
    session.dealt_with = lambda: None  # type: ignore[method-assign]
    write(old, 0, **{f"key{n}": "x" * 50 for n in range(3)})
    replicate(old, new)
    write(old, 0, **{f"key{n}": "x" * 50 for n in range(40)})
    world.settle()
    assert mirror.told("snapshot_end")[-1] == (0, 2)
    assert mirror.changes[-1].seqno > 5
    mirror.diary.clear()
    fail_over(old, new)
    world.cut(session)
    world.settle(5)
    assert mirror.told("rollback") == [(0, 2)]
    assert mirror.of(0) == live(new)


@pytest.mark.acceptance("P09")
@pytest.mark.parametrize("granted", [True, False])
def test_after_two_missed_branches_the_common_point_is_found(granted: bool) -> None:
    """The consumer's newest history was lost; an older one is common. One version alone gives 0."""
    mirror = Mirror()
    one, two, three = node(), standby(1000), standby(2000)
    write(one, 0, a="1", b="2")
    replicate(one, two)
    replicate(one, three)
    world = World(mirror, one, two, three, **ONLY_0)
    world.settle()
    fail_over(one, two)
    write(two, 0, c="3", d="4")
    world.settle(2)
    assert mirror.of(0) == live(two)
    fail_over(two, three)  # which never heard of the second history
    write(three, 0, e="3")
    if not granted:
        for session in world._ends:
            session.granted.discard(b"uprmc_versions")
    mirror.diary.clear()
    world.settle(3)
    assert mirror.told("rollback") == [(0, 2)]
    assert mirror.of(0) == live(three) == {b"a": b"1", b"b": b"2", b"e": b"3"}


# --- who decides ----------------------------------------------------------------------------------


def test_a_refused_rollback_is_an_error_that_says_all() -> None:
    mirror = Mirror()
    _, _, world = _scripted(mirror, on_rollback="fail")
    before = world.state.load()
    with pytest.raises(RollbackRefused, match=r"after seqno 3 \(you are at 6\)") as caught:
        world.settle(3)
    assert (caught.value.vbucket, caught.value.held_seqno, caught.value.seqno) == (0, 6, 3)
    assert world.state.load() == before
    assert mirror.told("undo") == mirror.told("rollback") == []


def test_a_function_may_decide() -> None:
    asked = []

    def decide(vbucket: int, held: int, seqno: int) -> str:
        asked.append((vbucket, held, seqno))
        return "rewind"

    mirror = Mirror()
    _, new, world = _scripted(mirror, on_rollback=decide)
    world.settle(3)
    assert asked == [(0, 6, 3)]
    assert mirror.of(0) == live(new)


def test_a_rollback_may_be_taken_from_the_beginning_instead() -> None:
    mirror = Mirror()
    _, new, world = _scripted(mirror, on_rollback="restart")
    world.settle(3)
    assert mirror.told("undo") == []
    assert mirror.told("rollback") == [(0, 0)]
    assert mirror.of(0) == live(new)


class _Versioned(Mirror):
    """Returns to snapshot ends by itself."""

    native_rollback = True

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, dict[bytes, bytes]] = {}

    def snapshot_end(self, vbucket: int, end: int) -> None:
        super().snapshot_end(vbucket, end)
        self.states[end] = dict(self.of(vbucket))

    def rollback(self, vbucket: int, seqno: int) -> bool:
        super().rollback(vbucket, seqno)
        self.docs[vbucket] = dict(self.states[seqno]) if seqno else {}
        return True


def test_a_handler_that_can_return_by_itself_has_no_ring_and_no_undoing() -> None:
    mirror = _Versioned()
    _, new, world = _scripted(mirror)
    assert isinstance(world.state, CrashingState)
    assert world.state.ring() == []
    write(new, 0, x="4")
    world.settle(3)
    assert mirror.told("rollback") == [(0, 3)]
    assert mirror.told("undo") == []
    assert mirror.of(0) == live(new)


def test_such_a_handler_is_asked_to_return_to_what_is_saved_at_a_restart() -> None:
    mirror = _Versioned()
    _, new, world = _scripted(mirror)
    world.settle(3)
    mirror.of(0)[b"beyond"] = b"what was saved"
    mirror.diary.clear()
    world.restart()
    world.settle()
    assert mirror.told("rollback") == [(0, 3)]
    assert mirror.of(0) == live(new)


def test_documents_come_from_nodes_that_know_no_versions_too() -> None:
    mirror = Mirror()
    _, new, world = _scripted(mirror)
    write(new, 0, x="4", a="5")
    for session in world._ends:
        session.has_versions = False
    world.settle(3)
    assert mirror.of(0) == live(new)
    assert sorted(mirror.told("undo")) == [(0, b"a", b"5"), (0, b"b", b"2"), (0, b"new", None)]


def test_a_history_that_changes_while_documents_are_fetched_is_fetched_again() -> None:
    mirror = Mirror()
    _, new, world = _scripted(mirror)
    branched = []
    inner = mirror.undo

    def undo(vbucket: int, key: bytes, document: Any) -> None:
        inner(vbucket, key, document)
        if not branched:
            branched.append(key)
            new.bucket.set_state(0, DEAD)
            if key in new.bucket.vbuckets[0].table:
                new.bucket.vbuckets[0].table.remove(key)
            new.bucket.set_state(0, new.bucket.vbuckets[0].state.__class__.ACTIVE)

    mirror.undo = undo  # type: ignore[method-assign]
    world.settle(5)
    assert mirror.of(0) == live(new)
    assert len(mirror.told("undo")) > 3
