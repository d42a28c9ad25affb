"""vBuckets are handed over in order, under load, over a line that may be cut at any byte.

Proves: nothing that was acknowledged is lost, the failover log stays as it is, no consumer has to
roll back, and there is never more than one active; how long writes are refused is printed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random

import pytest

from interop.comparison import differences, everything_of
from interop.follower import Follower
from interop.load import Load, lost
from interop.replica_pair import (
    INTERRUPTED,
    TAKEN,
    ReplicaPair,
    logs_of,
    take_over,
    verb,
)
from interop.replica_steps import (
    ALL,
    VBUCKETS,
    active_at,
    after,
    expect_level,
    logs,
    settle,
    standing,
)
from uprmc.client.kv import KvClient
from uprmc.client.lease import Lease, LeaseRefused


@pytest.mark.acceptance("D33", "D52")
def test_a_takeover_under_load_loses_nothing_and_leaves_the_log_as_it_is(
    pair: ReplicaPair, record_property: Callable[[str, object], None]
) -> None:
    follower = Follower("follower", ALL)
    with contextlib.closing(follower):
        follower.connect(pair.a.upr)
        with Load([pair.a.upr, pair.b.upr], VBUCKETS, rate=2_000) as load:
            after(load, 2_000)
            before = logs(standing(pair.a))
            where = ("--node", pair.dialled(pair.a), "--to", pair.b.upr)
            verb("takeover", *where, "--vbuckets", f"0-{VBUCKETS - 1}", "--swap")
            after(load, 2_000)
        longest = max(each.longest_s for each in load.outages.values())
        record_property("longest_outage_ms", round(longest * 1_000))
        print(f"longest time without writes: {longest * 1_000:.0f} ms")
        assert set(load.outages) == set(ALL), "every vBucket has moved under load"
        assert longest < 5.0
        assert (active_at(pair.a), active_at(pair.b)) == ([], [*ALL])
        held = expect_level(pair.b, pair.a, load)
        assert logs(standing(pair.b)) == logs(standing(pair.a)) == before
        leave_and_follow(follower, pair)
    assert follower.rollbacks == []
    assert differences(follower.versions(), held) == []


def test_a_takeover_that_is_cut_at_random_bytes_leaves_one_active_and_loses_nothing(
    pair: ReplicaPair,
) -> None:
    random = Random(3)
    outcomes: list[int] = []
    with Load([pair.a.upr, pair.b.upr], VBUCKETS, rate=2_000) as load:
        after(load, 1_000)
        for number in range(80):
            if number >= 20 and {TAKEN, INTERRUPTED} <= set(outcomes):
                break
            source, target = (pair.b, pair.a) if number % 4 == 3 else (pair.a, pair.b)
            moving = active_at(source)
            line = pair.to_a if source is pair.a else pair.to_b
            if moving:
                line.cut_after(random.randrange(1, random.choice((2_000, 8_000, 40_000, 160_000))))
                outcome = take_over(target, pair.dialled(source), moving)
                outcomes += outcome.values()
                settle(source, target, outcome)
            expect_one_active(pair)
            after(load, 50)
    assert {TAKEN, INTERRUPTED} <= set(outcomes), "the cuts came too early or too late"
    held, logs = {}, {}
    for node in (pair.a, pair.b):
        numbers = active_at(node)
        held.update(everything_of(node.upr, numbers))
        with node.wire() as wire:
            logs.update(logs_of(wire, numbers))
    assert not lost([load], held, logs)


@pytest.mark.acceptance("D40")
@pytest.mark.parametrize("swap", [False, True])
def test_a_lease_of_the_source_is_read_on_after_the_takeover(pair: ReplicaPair, swap: bool) -> None:
    with KvClient([str(pair.a.upr)]) as kv:
        kv.set_many({b"document-%d" % n: b"before" for n in range(500)})
    with Lease(str(pair.a.upr), [], 600) as lease:
        first = list(lease.read())
        assert len(first) == 500
        where = ("--node", pair.dialled(pair.a), "--to", pair.b.upr)
        verb("takeover", *where, "--vbuckets", f"0-{VBUCKETS - 1}", *(["--swap"] * swap))
        assert (active_at(pair.a), active_at(pair.b)) == ([], [*ALL])
        with KvClient([str(pair.b.upr)]) as kv:
            kv.set_many({b"document-%d" % n: b"after" for n in range(500)})
        assert list(lease.read()) == first
    with pytest.raises(LeaseRefused, match="Not found"):
        list(lease.read())


def leave_and_follow(follower: Follower, pair: ReplicaPair) -> None:
    """Go from the old active to the new one, which has to have everything."""
    follower.connect(pair.b.upr)
    follower.follow({number: held.seqno for number, held in standing(pair.b).items()})


def expect_one_active(pair: ReplicaPair) -> None:
    assert sorted([*active_at(pair.a), *active_at(pair.b)]) == list(ALL)
