"""Links in both directions and in rings: what is counted, and what does not come back."""

from __future__ import annotations

import pytest

from tests.system.test_replication import delete
from tests.xdcr.cluster import DataCentres, all_equal, documents, write
from uprmc.engine.tombstones import PurgeRule
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.model import Item, Life, Origin
from uprmc.record import pack
from uprmc.server.node import Node
from uprmc.xdcr.link import Link

#: A version that was under way when its deletion was purged.
UNDER_WAY = Demand(skip_conflicts=True)


def ring(centres: DataCentres, names: str) -> tuple[list[Node], list[Link]]:
    """Make nodes, each with a link to the next one."""
    nodes = [centres.start(name) for name in names]
    following = [*nodes[1:], nodes[0]]
    return nodes, [centres.link(a, b) for a, b in zip(nodes, following, strict=True)]


def sent(links: list[Link]) -> int:
    return sum(link.counters.docs_written for link in links)


def until_quiet(centres: DataCentres, links: list[Link]) -> None:
    """Wait until all links are level in one turn: then nothing is under way anywhere."""
    centres.until_level(*links)


@pytest.mark.acceptance("X09")
@pytest.mark.parametrize("names", ["ab", "abc"])
def test_each_change_travels_once_to_each_other_cluster_and_stops(
    centres: DataCentres, names: str
) -> None:
    nodes, links = ring(centres, names)
    write(nodes[0], 0, 100)
    write(nodes[1], 100, 100)
    centres.until_same(*nodes)
    until_quiet(centres, links)
    hops = len(nodes) - 1
    assert sent(links) == 200 * hops
    assert sum(link.counters.echoes_stopped for link in links) == 200
    for number in range(50):
        delete(nodes[0], b"k%d" % number)
    centres.until_same(*nodes)
    until_quiet(centres, links)
    assert sent(links) == 250 * hops
    assert sum(link.counters.echoes_stopped for link in links) == 250
    assert sum(link.counters.docs_failed_cr_target for link in links) == 0
    assert all_equal([documents(node) for node in nodes])


def test_writes_of_one_key_at_both_ends_end_with_one_version(centres: DataCentres) -> None:
    (a, b), links = ring(centres, "ab")
    for number in range(20):
        a.bucket.vbuckets[0].store(b"k%d" % number, b"from a", 0, 0)
        b.bucket.vbuckets[0].store(b"k%d" % number, b"from b", 0, 0)
    centres.until_same(a, b)
    until_quiet(centres, links)
    assert len(documents(a)) == 20


def purge(centres: DataCentres, nodes: list[Node]) -> int:
    """Drop every deletion that registered clients have seen; return how many."""
    dropped = 0
    for node in nodes:
        for name, link in node.links.by_name.items():
            if link.shipments:
                centres.command(node, "checkpoint", name=name)
        centres.until_on_disk(node)
        before = sum(node.bucket.flusher.tombstones.of(each).number for each in range(4))
        told: list[bool] = []
        for number in range(4):
            node.bucket.compact(number, PurgeRule(every=True), told.append)
        centres.loop.until(lambda told=told: len(told) == 4)
        dropped += before - sum(node.bucket.flusher.tombstones.of(n).number for n in range(4))
    return dropped


@pytest.mark.acceptance("X06")
@pytest.mark.acceptance("X09")
@pytest.mark.parametrize("names", ["ab", "abc"])
def test_a_purged_deletion_neither_returns_nor_circles(centres: DataCentres, names: str) -> None:
    nodes, links = ring(centres, names)
    write(nodes[0], 0, 40)
    centres.until_same(*nodes)
    dropped = 0
    for step in range(5):
        paused = links[step % len(links)]
        node = nodes[step % len(nodes)]
        centres.command(node, "pause", name="west")
        for number in range(step * 8, step * 8 + 8):
            delete(nodes[step % 2], b"k%d" % number)
        for each in nodes:
            write(each, 1000 + step * 100, 4)  # the newest deletion is never dropped
        dropped += purge(centres, nodes)
        centres.command(node, "resume", name="west")
        assert paused.state == "running"
        until_quiet(centres, links)
        dropped += purge(centres, nodes)
        centres.until_same(*nodes)
    assert dropped > 40
    deleted = {b"k%d" % number for number in range(40)}
    assert not deleted & documents(nodes[0]).keys()
    before = sent(links)
    write(nodes[0], 5000, 4)
    centres.until_same(*nodes)
    until_quiet(centres, links)
    assert sent(links) == before + 4 * (len(nodes) - 1)


@pytest.mark.acceptance("X06")
def test_an_older_version_that_comes_after_its_deletion_was_purged_is_deleted_again(
    centres: DataCentres,
) -> None:
    (a, b), links = ring(centres, "ab")
    write(b, 0, 1)
    centres.until_same(a, b)
    delete(a, b"k0")
    centres.until_same(a, b)
    write(a, 4, 1)  # the newest deletion is never dropped
    until_quiet(centres, links)
    assert purge(centres, [a]) == 1
    item = Item(b"k0", b"v", 0, 0, 1_000_000, 0, 1, origin=Origin(7, 1))
    accept_version(a.bucket, a.bucket.vbuckets[0], pack(item), UNDER_WAY)
    until_quiet(centres, links)
    assert b"k0" in documents(a)
    centres.command(b, "checkpoint", name="west")
    centres.until_same(a, b)
    assert b"k0" not in documents(a)
    write(a, 4, 1)
    centres.until_same(a, b)
    until_quiet(centres, links)
    assert purge(centres, [a]) == 1
    written, seqno = sent(links), a.bucket.vbuckets[0].high_seqno
    centres.command(b, "checkpoint", name="west")
    until_quiet(centres, links)
    assert (sent(links), a.bucket.vbuckets[0].high_seqno) == (written, seqno)


@pytest.mark.parametrize("deleted", [False, True])
def test_versions_that_differ_in_their_origin_only_end_as_one_although_they_are_looked_up(
    centres: DataCentres, deleted: bool
) -> None:
    a, b = centres.start("a"), centres.start("b")
    for node, value, origin, flags in ((a, b"from a", 7, 0), (b, b"from b", 5, 9 * deleted)):
        life = Life.DELETED if deleted and node is b else Life.LIVE
        value = b"" if life else value
        item = Item(b"k", value, flags, 0, 1_000_000, 0, 3, life=life, origin=Origin(origin, 1))
        accept_version(node.bucket, node.bucket.vbuckets[0], pack(item), Demand())
    at_once = {"set": {"optimistic_bytes": "0"}}
    links = [centres.link(a, b, **at_once), centres.link(b, a, **at_once)]
    centres.until_same(a, b)
    until_quiet(centres, links)
    assert documents(b)[b"k"][0] == b"from a"
