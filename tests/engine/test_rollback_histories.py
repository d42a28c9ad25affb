"""The rollback decision against plain lists of writes.

A peer that is told to go on must stand on the server's history, and end with the server's
documents. Planted faults show that the judges see: among them the reading of "several known
versions" in which only the server's entry counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.histories import Decide, Peer, World, copy_of, follow, upto
from tests.seeds import seeds
from uprmc import rollback
from uprmc.engine.failover_log import new_log
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange
from uprmc.rollback import ConsumerPosition, Rule, VBucketHoldings, rollback_point


@pytest.mark.acceptance("P03", "P08", "P09", "D14")
@pytest.mark.parametrize("rule", Rule)
@given(random=st.randoms(use_true_random=False))
def test_who_is_told_to_go_on_holds_a_prefix_and_misses_nothing(rule: Rule, random: Random) -> None:
    World(random, partial(rollback_point, rule=rule), purging=rule is Rule.CURRENT).tell(30)


@pytest.mark.acceptance("P09")
@given(random=st.randoms(use_true_random=False))
def test_with_every_version_nothing_is_dropped_that_is_shared(random: Random) -> None:
    """True while logs are whole and only whole snapshots are taken over."""

    world = World(random, rollback_point, purging=False, whole=True)
    for _ in range(40):
        world.tell(1)
        server = world.one(active=True)
        for peer in world.peers:
            shared = [b for b in peer.boundaries if same_until(peer, server, b)]
            following = copy_of(peer)
            follow(following, server, rollback_point, every_version=True)
            assert following.high_seqno == max(shared)


def same_until(one: Peer, other: Peer, seqno: int) -> bool:
    return upto(one.history, seqno) == upto(other.history, seqno)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("seed", seeds(default=10))
def test_long_stories_end_as_well(rule: Rule, seed: int) -> None:
    for part in range(10):
        decide = partial(rollback_point, rule=rule)
        World(Random(seed * 1000 + part), decide, purging=rule is Rule.CURRENT).tell(60)


# --- the judges see faults ----------------------------------------------------------------------


def only_the_servers_entry_counts(
    ours: Sequence[FailoverEntry], high: int, theirs: Sequence[FailoverEntry], _: int
) -> int | None:
    found = [rollback.shared_until(ours, high, (entry,), SEQNO_MAX) for entry in theirs]
    return next((seqno for seqno in found if seqno is not None), None)


def only_the_clients_entry_counts(
    ours: Sequence[FailoverEntry], high: int, theirs: Sequence[FailoverEntry], _: int
) -> int | None:
    known = {entry.uuid for entry in ours}
    end = high
    for entry in theirs:
        if entry.uuid in known:
            return min(end, high)
        end = entry.seqno
    return None


def the_greater_of_both_counts(
    ours: Sequence[FailoverEntry], high: int, theirs: Sequence[FailoverEntry], end: int
) -> int | None:
    return max(
        only_the_servers_entry_counts(ours, high, theirs, end) or 0,
        only_the_clients_entry_counts(ours, high, theirs, end) or 0,
    )


def faulty(shared_until: Callable[..., int | None]) -> Decide:
    """The decision as it is, with another way of comparing the logs."""

    def decide(position: ConsumerPosition, held: VBucketHoldings) -> int | None:
        known = position.known_versions or (FailoverEntry(position.uuid, 0),)
        if position.start_seqno == 0:
            return None
        if position.start_seqno < held.purge_seqno:
            return 0
        upper = shared_until(held.failover_log, held.high_seqno, known, SEQNO_MAX)
        agreed = position._replace(uuid=1, known_versions=())
        return 0 if upper is None else rollback_point(agreed, VBucketHoldings(new_log(1), upper, 0))

    return decide


def no_purge_check(position: ConsumerPosition, held: VBucketHoldings) -> int | None:
    return rollback_point(position, held, ignore_purged=True)


def snapshots_do_not_count(position: ConsumerPosition, held: VBucketHoldings) -> int | None:
    start = position.start_seqno
    return rollback_point(position._replace(snapshot=SnapshotRange(start, start)), held)


def the_snapshots_end_does_not_count(
    position: ConsumerPosition, held: VBucketHoldings
) -> int | None:
    point = rollback_point(position, held)
    upper = rollback.shared_until(
        held.failover_log, held.high_seqno, (FailoverEntry(position.uuid, 0),), SEQNO_MAX
    )
    return None if upper is not None and position.start_seqno <= upper else point


def any_known_branch_will_do(position: ConsumerPosition, held: VBucketHoldings) -> int | None:
    known = {entry.uuid for entry in held.failover_log}
    if position.uuid in known:
        position = position._replace(uuid=held.failover_log[0].uuid, known_versions=())
    return rollback_point(position, held)


def one_too_far(position: ConsumerPosition, held: VBucketHoldings) -> int | None:
    log = tuple(entry._replace(seqno=entry.seqno + 1) for entry in held.failover_log)
    return rollback_point(position, held._replace(failover_log=log))


FAULTS: list[Decide] = [
    faulty(only_the_servers_entry_counts),
    faulty(only_the_clients_entry_counts),
    faulty(the_greater_of_both_counts),
    no_purge_check,
    snapshots_do_not_count,
    the_snapshots_end_does_not_count,
    any_known_branch_will_do,
    one_too_far,
]


@pytest.mark.parametrize(
    "decide",
    FAULTS,
    ids=[
        "only the server's entry counts",
        "only the client's entry counts",
        "the greater of both counts",
        "no purge check",
        "snapshots do not count",
        "the snapshot's end does not count",
        "any known branch will do",
        "one too far",
    ],
)
def test_a_wrong_decision_is_caught(decide: Decide) -> None:
    assert caught(decide)


def test_the_stand_in_for_the_faults_is_right_when_the_comparison_is() -> None:
    assert not caught(faulty(rollback.shared_until), stories=200)


def caught(decide: Decide, stories: int = 2_000) -> bool:
    for seed in range(stories):
        try:
            World(Random(seed), decide, purging=True).tell(40)
        except AssertionError:
            return True
    return False
