"""An active is lost, its replica takes over, and everybody goes on from there.

Nodes dial one another through a proxy that cuts and slows the line; scripts talk to them directly.

Proves: what the replica had whole is there after a failover; consumers fall back exactly as far as
the failover log says, ones of 2014 too; further replicas attach at once; the old active comes back
as a replica; this may be repeated at will, with takeovers in between.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random

import pytest

from interop.comparison import differences, everything_of
from interop.follower import Follower
from interop.load import Load, lost
from interop.replica_pair import (
    DEMOTE,
    TAKEN,
    Node,
    ReplicaPair,
    fail_over,
    replicate,
    take_over,
    verb,
    wait_until_level,
)
from interop.replica_steps import (
    ALL,
    OPTIONS,
    VBUCKETS,
    active_at,
    after,
    expect_level,
    expected_rollbacks,
    lines_of,
    logs,
    settle,
    standing,
)
from interop.waiting import wait_until


@pytest.mark.acceptance("D53", "D54", "P17", "P18")
def test_a_replica_that_lags_takes_over_and_everybody_ends_equal(
    pair: ReplicaPair, tmp_path: Path
) -> None:
    follower = Follower("follower", ALL)
    with contextlib.closing(follower):
        follower.connect(pair.a.upr)
        with Load([pair.a.upr], VBUCKETS, rate=4_000) as first:
            after(first, 2_000)
            pair.to_a.slow(bytes_per_s=150_000)  # the replica stays behind, in mid-snapshot
            after(first, 4_000)
            first.pause()
            follower.follow({number: held.seqno for number, held in standing(pair.a).items()})
            before = standing(pair.a)
            pair.to_a.refuse()
            pair.to_a.cut()
            wait_until(lambda: lines_of(pair.b) == 0, pair.b.log)
            whole = {number: held.seqno for number, held in standing(pair.b).items()}
            pair.a.kill()
        verb("failover", "--node", pair.b.upr, "--vbuckets", f"0-{VBUCKETS - 1}")
        assert active_at(pair.b) == [*ALL]
        promoted = standing(pair.b)
        for number, held in promoted.items():
            assert held.log[0][1] == whole[number]
            assert held.log[1:] == before[number].log
        assert not lost([first], everything_of(pair.b.upr, ALL), logs(promoted))
        expected = expected_rollbacks(follower, promoted)
        assert expected, "the replica was not behind"
        follower.connect(pair.b.upr)

        third = Node(tmp_path / "c", *OPTIONS)
        with contextlib.ExitStack() as stack:
            stack.callback(third.end)
            third.start()
            replicate(third, pair.dialled(pair.b))
            with Load([pair.b.upr], VBUCKETS, rate=3_000, seed=2) as second:
                after(second, 1_000)
                pair.a.start()
                old = ("--node", pair.a.upr, "--source", pair.dialled(pair.b))
                verb("replicate", *old, "--vbuckets", f"0-{VBUCKETS - 1}", "--demote")
                after(second, 1_000)
            everything = expect_level(pair.b, pair.a, first, second)
            expect_level(pair.b, third)
            third.stop()
        follower.follow({number: each.seqno for number, each in standing(pair.b).items()})
    assert sorted(follower.rollbacks) == expected
    assert differences(follower.versions(), everything) == []


@pytest.mark.acceptance("D33", "D54")
def test_a_client_of_2014_follows_the_promoted_replica(pair: ReplicaPair) -> None:
    from interop import test_upr_client as feb_2014

    with Load([pair.a.upr], VBUCKETS, rate=4_000, keys=300) as load:
        after(load, 2_000)
    high = wait_until_level(pair.a, pair.b)
    clients = []
    try:
        clients.append(feb_2014.upr.UprClient(pair.a.upr.host, pair.a.upr.port))
        feb_2014.answer(clients[0].open_producer("feb-2014"))
        followers = [feb_2014.Follower(clients[0], number) for number in ALL]
        for each in followers:
            assert each.begin()["status"] == feb_2014.OK
            each.follow(high[each.vbucket].seqno)
        pair.a.kill()
        fail_over(pair.b, ALL)
        clients.append(feb_2014.upr.UprClient(pair.b.upr.host, pair.b.upr.port))
        feb_2014.answer(clients[1].open_producer("feb-2014"))
        with Load([pair.b.upr], VBUCKETS, rate=4_000, keys=300, seed=2) as load:
            after(load, 1_000)
        with pair.b.wire() as kv:
            for each in followers:
                each.client = clients[1]
                assert each.begin()["status"] == feb_2014.OK, "it was level: nothing to undo"
                each.follow(kv.high_seqnos()[each.vbucket])
                feb_2014.expect_equal(kv, each)
    finally:
        for client in clients:
            client.conn.close(True)


@pytest.mark.acceptance("D33", "D50", "D54", "P17")
def test_roles_change_hands_again_and_again_and_everybody_ends_equal(
    pair: ReplicaPair, request: pytest.FixtureRequest
) -> None:
    rounds: int = max(3, request.config.getoption("--kills") // 2)
    random, active, replica = Random(rounds), pair.a, pair.b
    follower = Follower("follower", ALL)
    with contextlib.closing(follower):
        follower.connect(active.upr)
        with Load([pair.a.upr, pair.b.upr], VBUCKETS, rate=3_000) as load:
            for number in range(rounds):
                line = pair.to_a if active is pair.a else pair.to_b
                line.cut_after(random.randrange(1, 100_000))
                after(load, random.randrange(50, 800))
                if (number + random.randrange(2)) % 3 == 2:
                    hand_over(pair, active, replica)
                else:
                    line.slow(bytes_per_s=random.choice((20_000, 100_000, None)))
                    after(load, random.randrange(50, 800))
                    follower.follow({n: each.seqno for n, each in standing(active).items()})
                    lose_the_active(pair, active, replica)
                    line.slow()
                active, replica = replica, active
                load.pause()
                held = expect_level(active, replica, load)
                follow_on(follower, active)
                assert differences(follower.versions(), held) == []
                load.resume()
            after(load, 50)
        expect_level(active, replica, load)
    assert follower.rollbacks, "the follower was never ahead of the replica"


def hand_over(pair: ReplicaPair, active: Node, replica: Node) -> None:
    """In order, however often that takes; the old active follows the new one."""
    wanted = list(ALL)
    while wanted:
        outcome = take_over(replica, pair.dialled(active), wanted)
        settle(active, replica, outcome)
        wanted = [number for number in wanted if outcome[number] != TAKEN]
    replicate(active, pair.dialled(replica))


def lose_the_active(pair: ReplicaPair, active: Node, replica: Node) -> None:
    """``kill -9``, failover; the old active comes back and is told that it is none any more."""
    active.kill()
    fail_over(replica, ALL)
    active.start()
    replicate(active, pair.dialled(replica), flags=DEMOTE)


def follow_on(follower: Follower, active: Node) -> None:
    """The follower goes to the node that is active now, and is told what the log says."""
    held = standing(active)
    expected, before = expected_rollbacks(follower, held), len(follower.rollbacks)
    follower.connect(active.upr)
    follower.follow({number: each.seqno for number, each in held.items()})
    assert sorted(follower.rollbacks[before:]) == expected
