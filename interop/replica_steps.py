"""What tests of replication do again and again, on pairs of nodes with a few vBuckets."""

from __future__ import annotations

from collections.abc import Callable

from interop import upr_wire as u
from interop.comparison import Holding, expect_equal
from interop.follower import Follower, expected_rollback
from interop.load import Load, lost
from interop.replica_pair import TAKEN, Node, Standing, standing_of, states_of, wait_until_level
from interop.waiting import wait_until

VBUCKETS = 16
ALL = range(VBUCKETS)
OPTIONS = ("--vbuckets", str(VBUCKETS), "--set", "upr.redial_max_s=0.3")


def after(load: Load, count: int, timeout_s: float = 60.0) -> None:
    """Wait until so many more writes were acknowledged."""
    goal = len(load.acknowledged) + count
    done: Callable[[], bool] = lambda: len(load.acknowledged) >= goal  # noqa: E731
    wait_until(done, lambda: f"{len(load.acknowledged)} of {goal} writes", timeout_s)


def standing(node: Node) -> dict[int, Standing]:
    with node.wire() as wire:
        return standing_of(wire)


def logs(held: dict[int, Standing]) -> dict[int, tuple[tuple[int, int], ...]]:
    return {number: each.log for number, each in held.items()}


def active_at(node: Node) -> list[int]:
    with node.wire() as wire:
        return [number for number, state in states_of(wire, ALL).items() if state == u.ACTIVE]


def rollbacks_of(node: Node) -> int:
    """How often a node was told to roll a vBucket back since it began."""
    with node.wire() as wire:
        return int(wire.texts(b"replication")["rollbacks"])


def lines_of(node: Node) -> int:
    """How many of its sources a node is connected to."""
    with node.wire() as wire:
        return int(wire.texts(b"replication")["open"])


def expect_level(active: Node, replica: Node, *loads: Load) -> Holding:
    """Wait until the replica says that it is level; both must hold the same, and all promised."""
    standing = wait_until_level(active, replica)
    held = expect_equal(active.upr, replica.upr, ALL)
    logs = {number: each.log for number, each in standing.items()}
    complaints = lost(loads, held, logs)
    assert not complaints, "\n".join(complaints[:10])
    return held


def expected_rollbacks(follower: Follower, standings: dict[int, Standing]) -> list[tuple[int, int]]:
    """What the node has to answer, by its failover logs and the follower's place alone."""
    points = {
        number: expected_rollback(
            follower.place(number), follower.uuid(number), held.log, held.seqno
        )
        for number, held in standings.items()
    }
    return sorted((number, point) for number, point in points.items() if point is not None)


def settle(source: Node, target: Node, outcome: dict[int, int]) -> None:
    """What an operator does after a takeover that broke: what is active nowhere goes on here."""
    with source.wire() as here, target.wire() as there:
        before, after_it = states_of(here, ALL), states_of(there, ALL)
        for number, result in outcome.items():
            assert (after_it[number] == u.ACTIVE) == (result == TAKEN), (number, result, after_it)
            assert (before[number], after_it[number]).count(u.ACTIVE) <= 1
            if result != TAKEN and before[number] != u.ACTIVE:
                here.set_state(number, u.ACTIVE)
