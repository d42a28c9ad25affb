"""Real nodes on one reactor that fill each other over loopback."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import tcp

from tests.contents import table_of
from tests.server.support import Loop
from tests.server.test_dialer import certificate_for
from uprmc.config import build
from uprmc.engine.vbucket import VBucket
from uprmc.model import VBucketState
from uprmc.protocol.replication import Outcome
from uprmc.server import system
from uprmc.server.net.dialer import Call, DialledProtocol
from uprmc.server.node import Node
from uprmc.upr.handover import Handover
from uprmc.upr.intake import ReplicaStream
from uprmc.upr.link import LinkCall, ReplicaLink

ACTIVE, REPLICA, PENDING, DEAD = VBucketState
VBUCKETS = 4


class Cluster:
    """Nodes by name; each has a data directory that survives it."""

    def __init__(self, loop: Loop, directory: Path) -> None:
        self.loop = loop
        self.nodes: dict[str, Node] = {}
        self._directory = directory
        self._changes: dict[str, dict[str, Any]] = {}

    def start(self, name: str, **changes: Any) -> Node:
        place = "127.0.0.1:0"
        given = {
            "storage.data": str(self._directory / name),
            "engine.vbuckets": VBUCKETS,
            "flush.sync": False,
            "server.memcached": place,
            "server.upr": place,
            "server.http": "off",
            "server.views": "off",
            "upr.redial_max_s": 0.1,
        }
        names = {each.replace("__", "."): value for each, value in changes.items()}
        node = Node(self.loop.reactor, build({**given, **names}))
        self.loop.result(node.start(), 30.0)
        self.nodes[name] = node
        return node

    def stop(self, name: str) -> str:
        """Stop a node in order; return where its upr listener was."""
        node = self.nodes.pop(name)
        place = node.addresses()["upr"]
        self.loop.result(node.stop(), 30.0)
        return place

    def close(self) -> None:
        for name in list(self.nodes):
            with suppress(Exception):
                self.stop(name)

    # --- commands -------------------------------------------------------------------------------

    def follow(
        self, replica: Node, source: Node | str, *numbers: int, demote: bool = False
    ) -> None:
        place = source if isinstance(source, str) else source.addresses()["upr"]
        told: list[bool] = []
        replica.replication.follow(place, numbers or None, demote=demote, done=told.append)
        self.loop.until(lambda: told)
        assert told == [True]

    def take_over(self, target: Node, source: Node, *numbers: int) -> dict[int, Outcome]:
        told: list[Any] = []
        target.replication.take_over(
            source.addresses()["upr"], numbers, lambda *said: told.append(said)
        )
        self.loop.until(lambda: told)
        return told[0][0]

    def fail_over(self, node: Node, *numbers: int) -> None:
        told: list[Any] = []
        node.replication.fail_over(numbers, lambda *said: told.append(said))
        self.loop.until(lambda: told)
        assert told[0][1] is True

    def until_equal(self, *nodes: Node, limit_s: float = 30.0) -> None:
        self.loop.until(lambda: len({contents(node) for node in nodes}) == 1, limit_s)

    def until_on_disk(self, node: Node) -> None:
        told: list[bool] = []
        node.bucket.flusher.when_durable(told.append)
        self.loop.until(lambda: told)


def contents(node: Node) -> tuple[Any, ...]:
    """Everything that a replica must have as its source has it, tombstones on disk aside."""
    return tuple(_contents(vbucket) for _, vbucket in sorted(node.bucket.vbuckets.items()))


def _contents(vbucket: VBucket) -> tuple[Any, ...]:
    live = sorted(
        (item.key, item.value, item.seqno, item.rev, item.cas, item.flags, item.expiry)
        for item in table_of(vbucket).values()
        if not item.life
    )
    return vbucket.id, vbucket.high_seqno, vbucket.failover_log, vbucket.receiving, tuple(live)


def write(node: Node, first: int, count: int, value: bytes = b"v") -> None:
    """Store documents in turn in all vBuckets that are active there."""
    active = [vbucket for _, vbucket in sorted(node.bucket.active.items())]
    for number in range(first, first + count):
        active[number % len(active)].store(b"k%d" % number, value, number, 0)


def delete(node: Node, key: bytes) -> None:
    for vbucket in node.bucket.active.values():
        if vbucket.find(key) is not None:
            vbucket.delete(key)


@pytest.fixture
def cluster(loop: Loop, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(loop, tmp_path)
    yield made
    made.close()


# --- following ----------------------------------------------------------------------------------


@pytest.mark.acceptance("P16")
def test_a_replica_gets_what_there_is_and_what_comes_and_all_of_its_history(
    cluster: Cluster,
) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    write(a, 0, 200)
    a.bucket.set_state(1, REPLICA)
    a.bucket.set_state(1, ACTIVE)  # one more entry in its log
    cluster.until_on_disk(a)
    cluster.follow(b, a)
    cluster.until_equal(a, b)
    assert len(b.bucket.vbuckets[1].failover_log) == 2
    write(a, 100, 200, b"again")
    delete(a, b"k7")
    cluster.until_equal(a, b)
    assert {each.state for each in b.bucket.vbuckets.values()} == {REPLICA}


# --- takeover -----------------------------------------------------------------------------------


def test_a_takeover_of_what_the_source_does_not_serve_is_refused(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    write(a, 0, 20)
    a.bucket.set_state(1, DEAD)
    assert cluster.take_over(b, a, 0, 1) == {0: Outcome.TAKEN, 1: Outcome.REFUSED}
    assert "vBucket 1" in b.replication.last_handover_error
    assert b.bucket.vbuckets[1].state is REPLICA


def test_a_takeover_without_a_replica_before_brings_everything(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    write(a, 0, 400)
    before = _contents(a.bucket.vbuckets[2])
    assert cluster.take_over(b, a, 2) == {2: Outcome.TAKEN}
    assert _contents(b.bucket.vbuckets[2]) == before


# --- TLS ----------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return certificate_for(tmp_path, "127.0.0.1")


def test_replication_over_tls(cluster: Cluster, pair: tuple[str, str]) -> None:
    a = cluster.start("a", server__tls_cert=pair[0], server__tls_key=pair[1])
    b = cluster.start("b", upr__dial_ca=pair[0])
    write(a, 0, 500, b"v" * 1000)
    cluster.follow(b, a)
    cluster.until_equal(a, b)
    write(a, 100, 100, b"again")
    cluster.until_equal(a, b)


def why(cluster: Cluster, replica: Node, source: Node, limit_s: float = 5.0) -> str:
    cluster.follow(replica, source)
    (line,) = replica.replication.sources.values()
    cluster.loop.until(lambda: line.last_error, limit_s)
    return line.last_error


def test_a_tls_node_dialled_plainly_says_what_to_set(
    cluster: Cluster, pair: tuple[str, str]
) -> None:
    a = cluster.start("a", server__tls_cert=pair[0], server__tls_key=pair[1])
    b = cluster.start("b")
    assert "upr.dial_ca" in why(cluster, b, a)


def test_a_plain_node_dialled_with_tls_says_what_to_set(
    cluster: Cluster, pair: tuple[str, str]
) -> None:
    a = cluster.start("a")
    b = cluster.start("b", upr__dial_ca=pair[0], upr__dial_timeout_s=0.5)
    assert "TLS" in why(cluster, b, a)


def test_the_wrong_listener_is_no_danger(cluster: Cluster) -> None:
    a = cluster.start("a", server__http="127.0.0.1:0")
    b = cluster.start("b", upr__dial_timeout_s=0.3)
    cluster.follow(b, a.addresses()["http"])
    (source,) = b.replication.sources.values()
    cluster.loop.until(lambda: source.last_error)
    assert "upr listener" in source.last_error or "HTTP" in source.last_error
    cluster.follow(b, a.addresses()["memcached"])
    write(a, 0, 50)
    cluster.until_equal(a, b)


# --- the node -----------------------------------------------------------------------------------


def test_a_node_that_stops_hangs_up_and_says_nothing_of_it(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    cluster.follow(b, a)
    cluster.loop.until(lambda: len(a.upr.producers) == 1)
    cluster.stop("b")
    cluster.loop.until(lambda: not a.upr.producers)


def test_a_new_directory_may_begin_as_a_replica_and_an_old_one_is_left_alone(
    cluster: Cluster,
) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    place = a.addresses()["upr"]
    write(a, 0, 20)
    b.follow_if_new(place)
    cluster.until_equal(a, b)
    cluster.fail_over(b, *range(VBUCKETS))
    b.follow_if_new(place)
    a.follow_if_new(b.addresses()["upr"])
    assert (a.replication.sources, b.replication.sources) == ({}, {})


def test_dialled_connections_are_listed_with_the_others(cluster: Cluster) -> None:
    a, b = cluster.start("a"), cluster.start("b")
    cluster.follow(b, a)
    cluster.loop.until(lambda: b.connections.current == 1)
    (info,) = b.connections.infos()
    assert (info.listener, info.peer) == ("replication", a.addresses()["upr"])


KINDS = (
    Call,
    DialledProtocol,
    Handover,
    LinkCall,
    ReplicaLink,
    ReplicaStream,
    tcp.Client,
    tcp.Connector,
)


def _alive() -> Counter[str]:
    gc.unfreeze()  # frozen objects are not listed
    found = Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS))
    gc.freeze()
    return found


def test_lost_connections_and_takeovers_leave_nothing_without_the_collector(
    cluster: Cluster,
) -> None:
    gc.unfreeze()
    gc.collect()
    before = _alive()  # of other tests
    a, b = cluster.start("a"), cluster.start("b")
    write(a, 0, 50)
    a._work.collect = b._work.collect = lambda: None  # it would free young cycles

    def is_streaming() -> bool:
        return all(source.streaming == VBUCKETS for source in b.replication.sources.values())

    cluster.follow(b, a)
    counts = []
    for _ in range(3):
        cluster.loop.until(is_streaming)
        system.collect_young()
        cut(cluster, b)
        cluster.loop.until(is_streaming)
        cluster.take_over(b, a, 0)
        a.replication.stop([0], lambda _: None)
        cluster.take_over(a, b, 0)
        cluster.follow(b, a)
        cluster.loop.until(is_streaming)
        counts.append(_alive())
    assert counts[0] == counts[1] == counts[2]
    cluster.stop("b")
    for _ in range(3):
        cluster.loop.reactor.iterate(0)
    assert _alive() == before


def cut(cluster: Cluster, node: Node) -> None:
    """Break every connection of a node."""
    dialled = [each for each in node.connections if isinstance(each, DialledProtocol)]
    for each in dialled:
        each.abort()
    cluster.loop.until(_all_gone(node, dialled))


def _all_gone(node: Node, protocols: list[DialledProtocol]) -> Callable[[], bool]:
    return lambda: not set(node.connections) & set(protocols)
