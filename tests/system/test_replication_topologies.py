"""Real nodes in the strange situations that operators bring about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.support import Loop
from tests.system.test_replication import (
    ACTIVE,
    DEAD,
    REPLICA,
    VBUCKETS,
    Cluster,
    contents,
    write,
)
from uprmc.protocol.replication import Outcome
from uprmc.server.node import Node


@pytest.fixture
def cluster(loop: Loop, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(loop, tmp_path)
    yield made
    made.close()


def streaming(node: Node) -> bool:
    sources = list(node.replication.sources.values())
    return bool(sources) and all(each.streaming == len(each.followed) for each in sources)


def pass_time(cluster: Cluster, seconds: float) -> None:
    done: list[int] = []
    cluster.loop.reactor.callLater(seconds, done.append, 1)
    cluster.loop.until(lambda: done)


def test_two_nodes_that_follow_each_other_come_to_rest(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    write(a, 0, 100)
    cluster.follow(b, a)
    cluster.until_equal(a, b)
    cluster.follow(a, b, demote=True)
    cluster.loop.until(lambda: streaming(a) and streaming(b))
    held = contents(a)
    before = [s.attempts for n in (a, b) for s in n.replication.sources.values()]
    pass_time(cluster, 0.5)
    assert contents(a) == contents(b) == held
    assert [s.attempts for n in (a, b) for s in n.replication.sources.values()] == before
    cluster.fail_over(a, *range(VBUCKETS))
    write(a, 100, 50, b"again")
    cluster.until_equal(a, b)


def test_a_node_that_follows_itself_by_another_name_keeps_what_it_has(cluster: Cluster) -> None:
    a = cluster.start("a", server__upr="0.0.0.0:0")
    write(a, 0, 100)
    held = [each.high_seqno for each in a.bucket.vbuckets.values()]
    port = a.addresses()["upr"].rpartition(":")[2]
    cluster.follow(a, f"127.0.0.2:{port}", demote=True)
    cluster.loop.until(lambda: streaming(a))
    pass_time(cluster, 0.3)
    assert [each.high_seqno for each in a.bucket.vbuckets.values()] == held
    assert a.replication.received.rollbacks == 0
    cluster.fail_over(a, *range(VBUCKETS))
    write(a, 0, 10)
    assert a.replication.sources == {}


@pytest.mark.acceptance("D52")
def test_a_replica_in_a_chain_gives_nothing_away(cluster: Cluster) -> None:
    a, b, c = (cluster.start(name) for name in "abc")
    write(a, 0, 100)
    cluster.follow(b, a)
    cluster.until_equal(a, b)
    outcomes = cluster.take_over(c, b, 0, 1)
    assert outcomes == {0: Outcome.REFUSED, 1: Outcome.REFUSED}
    assert "Not my vbucket" in c.replication.last_handover_error
    states = [node.bucket.vbuckets[0].state for node in (a, b, c)]
    assert states == [ACTIVE, REPLICA, REPLICA]


def test_persistence_that_stops_at_the_source_in_mid_takeover_ends_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uprmc.upr.handover._STILL_S", 0.5)
    a, b = cluster.start("a"), cluster.start("b")
    write(a, 0, 100)
    cluster.until_on_disk(a)
    cluster.follow(b, a)
    cluster.until_equal(a, b)
    cluster.until_on_disk(b)
    told: list[object] = []
    b.replication.take_over(a.addresses()["upr"], [0], lambda *said: told.append(said))
    cluster.loop.until(lambda: a.upr.producers and _takeovers(a))
    a.bucket.flusher.pause()
    cluster.loop.until(lambda: told)
    assert told[0][0] == {0: Outcome.INTERRUPTED}  # type: ignore[index]
    assert (a.bucket.vbuckets[0].state, b.bucket.vbuckets[0].state) == (DEAD, REPLICA)
    cluster.loop.until(lambda: not _takeovers(a))
    a.bucket.flusher.resume()
    a.bucket.set_state(0, ACTIVE)
    write(a, 200, 40)
    cluster.until_equal(a, b)


def _takeovers(node: Node) -> int:
    streams = [s for p in node.upr.producers.values() for s in p.feed.streams.values()]
    return sum(type(stream).__name__ == "TakeoverStream" for stream in streams)
