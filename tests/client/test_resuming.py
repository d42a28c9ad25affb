"""What a consumer that comes back is given: what is new, and nothing else."""

from __future__ import annotations

import pytest

from tests.client.consumer_world import (
    CrashingState,
    Mirror,
    World,
    fail_over,
    node,
    replicate,
    standby,
    write,
)


@pytest.mark.acceptance("P20")
@pytest.mark.parametrize("restarts", [False, True], ids=["reconnected", "restarted"])
def test_an_index_computes_anew_only_what_has_changed(restarts: bool) -> None:
    """Its map function is called once for each new version after a break."""
    active, mapped = node(), Mirror()
    world = World(mapped, active, vbuckets=frozenset({0}))
    for number in range(50):
        write(active, **{f"k{number}": "old"})
    world.settle(1)
    before = len(mapped.changes)
    world.cut()
    if restarts:
        world.restart()
    for number in range(3):
        write(active, **{f"k{number}": "new"})
    world.settle(1)
    assert (before, len(mapped.changes)) == (50, 53)


def test_now_is_decided_once_although_nothing_came_before_the_break() -> None:
    active, mirror = node(), Mirror()
    write(active, old="1")
    world = World(mirror, active, vbuckets=frozenset({0}), start="now")
    world.settle(1)
    world.cut()
    write(active, new="2")
    world.settle(1)
    assert mirror.of(0) == {b"new": b"2"}


@pytest.mark.parametrize("shared", [0, 1])
def test_of_a_history_that_was_lost_now_keeps_what_both_nodes_share(shared: int) -> None:
    """Nothing was handed over, so nothing is undone and no document from before "now" comes."""
    active, replica, mirror = node(), standby(500), Mirror()
    if shared:
        write(active, old="1")
    replicate(active, replica)
    write(active, lost="1")
    world = World(mirror, active, replica, vbuckets=frozenset({0}), start="now")
    world.settle(1)
    world.lose_node("node0:1")
    fail_over(active, replica)
    write(replica, new="2")
    world.settle(3)
    assert mirror.of(0) == {b"new": b"2"}
    assert mirror.told("rollback") == mirror.told("undo") == []


@pytest.mark.acceptance("D45")
@pytest.mark.parametrize("shared", [False, True], ids=["own file", "shared transaction"])
def test_a_reached_position_is_saved_when_nothing_has_come_for_a_while(shared: bool) -> None:
    """Changes that come in quick succession share a commit; a shared transaction has all of it."""
    active, state = node(), CrashingState()
    state.shared = shared  # type: ignore[attr-defined]
    world = World(Mirror(), active, state=state, vbuckets=frozenset({0}))
    write(active, a="1")
    world.settle(1)
    written = write(active, a="2")
    (session,) = world.core.nodes.sessions()
    world._carry(session)
    world._carry(session)
    assert world.handler.of(0) == {b"a": b"2"}  # type: ignore[attr-defined]
    seqnos = [state.load()[0].seqno]
    for later in (0.99, 1.01):
        world.drive(world.core.idle(world.now + later))
        seqnos.append(state.load()[0].seqno)
    assert seqnos == ([written] * 3 if shared else [written - 1, written - 1, written])
