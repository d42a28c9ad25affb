"""Two real nodes, one the replica of the other, over a line that is cut, slow and silent.

Nodes are killed with ``kill -9`` under load, again and again (``--kills N``), and whatever
happened, they are compared at the end as any consumer sees them: key by key, with all metadata,
seqnos and deletions. Nodes dial one another through the proxy; scripts talk to them directly.

Proves: a replica comes level after any trouble of its source, its line or itself, in a chain too,
and rolls back what its source has lost; what was acknowledged and not lost is there.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random

import pytest

from interop.load import Load
from interop.proxy import Way
from interop.replica_pair import (
    Node,
    ReplicaPair,
    fail_over,
    observe_seqno,
    replicate,
    standing_of,
    wait_until_level,
)
from interop.replica_steps import (
    ALL,
    OPTIONS,
    VBUCKETS,
    after,
    expect_level,
    rollbacks_of,
    standing,
)
from interop.waiting import wait_until


@pytest.mark.acceptance("P16")
def test_a_replica_comes_level_over_a_line_that_is_cut_at_random_bytes(pair: ReplicaPair) -> None:
    random, line = Random(7), pair.to_a
    with Load([pair.a.upr], VBUCKETS, rate=4_000) as load:
        for _ in range(15):
            line.cut_after(random.randrange(1, random.choice((300, 5_000, 200_000))))
            assert line.wait_for_cut(30), pair.b.log()
        line.slow(delay_s=0.02)
        after(load, 1_000)
        line.slow(bytes_per_s=100_000)
        for _ in range(3):
            line.cut_after(random.randrange(1, 30_000))
            assert line.wait_for_cut(30), pair.b.log()
        line.slow()
        after(load, 500)
    assert line.cuts == 18
    expect_level(pair.a, pair.b, load)


def test_a_replica_comes_back_when_its_source_refused_or_said_nothing(pair: ReplicaPair) -> None:
    line = pair.to_a
    with Load([pair.a.upr], VBUCKETS, rate=2_000) as load:
        after(load, 500)
        line.refuse()
        line.cut()
        after(load, 1_000)
        line.refuse(False)
        after(load, 500)
        for way in Way:
            line.silence(way)
            after(load, 500)
            line.silence()
    expect_level(pair.a, pair.b, load)


def test_a_line_that_went_dead_is_noticed_and_dialled_anew(tmp_path: Path, peer: str) -> None:
    if peer != "uprmc":
        pytest.skip("memcached does not speak UPR")
    with ReplicaPair(tmp_path, *OPTIONS, "--set", "upr.dial_timeout_s=3") as pair:
        line = pair.to_a
        replicate(pair.b, pair.dialled(pair.a))
        with Load([pair.a.upr], VBUCKETS, rate=500) as load:
            after(load, 100)
            dialled = line.accepted
            line.silence(*Way)
            wait_until(lambda: line.accepted > dialled, pair.b.log)
            line.silence()
        expect_level(pair.a, pair.b, load)


@pytest.mark.acceptance("D50", "D51")
def test_kill_9_of_either_side_under_load_again_and_again_ends_equal(
    pair: ReplicaPair, request: pytest.FixtureRequest
) -> None:
    kills: int = request.config.getoption("--kills")
    random, undone = Random(kills), 0
    with Load([pair.a.upr], VBUCKETS, rate=4_000, keys=3_000) as load:
        for number in range(kills):
            after(load, random.randrange(1, 1_500))
            victim = random.choice((pair.a, pair.a, pair.b))
            other = pair.b if victim is pair.a else pair.a
            promised = persisted(victim) if victim is pair.a else {}
            undone += rollbacks_of(pair.b)
            victim.kill()
            if random.random() < 0.2:
                other.kill()
                other.start()
            victim.start()
            if victim is pair.a:
                expect_kept(victim, promised)
            if number % 5 == 4:
                load.pause()
                expect_level(pair.a, pair.b, load)
                load.resume()
        after(load, 100)
    assert pair.a.kills + pair.b.kills >= kills
    assert undone, "the replica was never ahead of its source, so nothing was shown"
    held = expect_level(pair.a, pair.b, load)
    assert {"document", "deletion"} <= {version.kind for version in held.values()}


@pytest.mark.acceptance("D54")
def test_a_chain_whose_links_are_killed_ends_equal_and_outlives_its_head(
    pair: ReplicaPair, tmp_path: Path
) -> None:
    random, third = Random(5), Node(tmp_path / "c", *OPTIONS)
    with contextlib.ExitStack() as stack:
        stack.callback(third.end)
        third.start()
        replicate(third, pair.dialled(pair.b))
        with Load([pair.a.upr], VBUCKETS, rate=3_000) as first:
            for victim in (pair.b, pair.a, third, pair.b):
                after(first, random.randrange(100, 1_000))
                random.choice((pair.to_a, pair.to_b)).cut_after(random.randrange(1, 50_000))
                victim.kill()
                victim.start()
        wait_until_level(pair.a, pair.b)
        expect_level(pair.a, third, first)
        pair.a.kill()
        fail_over(pair.b, ALL)
        with Load([pair.b.upr], VBUCKETS, rate=3_000, seed=2) as second:
            after(second, 500)
        expect_level(pair.b, third, first, second)
        third.stop()


def persisted(node: Node) -> dict[int, int]:
    """What a node says is on its disk."""
    with node.wire() as wire:
        return {
            number: observe_seqno(wire, number, held.log[0][0])[0]
            for number, held in standing_of(wire).items()
        }


def expect_kept(node: Node, promised: dict[int, int]) -> None:
    """What a node had said is on its disk belongs to the history that it goes on from."""
    for number, held in standing(node).items():
        assert held.log[0][1] >= promised[number], (number, held, promised[number])
