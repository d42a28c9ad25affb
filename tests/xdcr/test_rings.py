"""Links in both directions and in rings: what is counted, and what does not come back."""

from __future__ import annotations

import pytest

from tests.system.test_replication import delete
from tests.xdcr.cluster import DataCentres, all_equal, documents, write
from uprmc.server.node import Node
from uprmc.xdcr.link import Link


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
