"""Deletions that are old enough go by themselves, on the active only."""

from __future__ import annotations

from dataclasses import replace

from tests.engine.support import Node, settings_of
from uprmc.config import PurgeSettings
from uprmc.model import VBucketState

AGE_S = 1_000


def node_of(vbuckets: int = 1) -> Node:
    """Return a node whose deletions stay for so long."""
    return Node(replace(settings_of(vbuckets), purge=PurgeSettings(min_age_s=AGE_S)))


def bury(node: Node, *keys: bytes, number: int = 0) -> None:
    """Leave persisted tombstones, and a document behind them."""
    vbucket = node.bucket.vbuckets[number]
    for key in keys:
        vbucket.store(key, b"v", 0, 0)
        vbucket.delete(key)
    vbucket.store(b"last", b"v", 0, 0)
    node.flush()


def purge(node: Node) -> int:
    """Have the purger come by, and everything done that it asks for; return the looks it took."""
    node.bucket.purger.begin()
    compactor, looks = node.bucket.compactor, 0
    while compactor.waiting:
        scan = compactor.begin()
        if scan is not None:
            compactor.read(scan)
            compactor.finish(scan)
            looks += 1
        node.flush()
    return looks


def test_deletions_go_when_they_are_old_enough_and_documents_stay() -> None:
    node = node_of()
    bury(node, b"a", b"b")
    node.clock.advance(AGE_S / 2)
    bury(node, b"c")
    node.clock.advance(AGE_S / 2)
    purge(node)
    assert set(node.stored()) == {b"a", b"b", b"c", b"last"}, "a second is missing yet"
    node.clock.advance(1)
    purge(node)
    assert set(node.stored()) == {b"c", b"last"}
    assert node.vbucket.purge_seqno == 4
    node.clock.advance(AGE_S)
    purge(node)
    assert set(node.stored()) == {b"last"}


def test_a_replica_purges_nothing_by_itself() -> None:
    node = node_of(2)
    for number in range(2):
        bury(node, b"a", number=number)
    node.bucket.set_state(1, VBucketState.REPLICA)
    node.flush()
    node.clock.advance(AGE_S + 1)
    purge(node)
    assert [set(node.stored(number)) for number in range(2)] == [{b"last"}, {b"a", b"last"}]
    node.bucket.set_state(1, VBucketState.ACTIVE)
    node.flush()
    purge(node)
    assert set(node.stored(1)) == {b"last"}


def test_nobody_looks_where_nothing_can_be_due() -> None:
    node = node_of(3)
    bury(node, b"a", number=0)
    bury(node, number=1)
    assert purge(node) == 1, "the others never had a deletion"
    node.clock.advance(AGE_S / 2)
    assert purge(node) == 0
    bury(node, b"new", number=0)
    assert purge(node) == 0
    node.clock.advance(AGE_S / 2 + 1)
    assert purge(node) == 1
    assert set(node.stored()) == {b"new", b"last"}


def test_it_goes_on_after_a_compaction_that_was_given_up() -> None:
    node = node_of(2)
    for number in range(2):
        bury(node, b"a", number=number)
    node.clock.advance(AGE_S + 1)
    node.bucket.purger.begin()
    del node.bucket.vbuckets[0]
    purge(node)
    assert set(node.stored(1)) == {b"last"}
    node.bucket.create(0, VBucketState.ACTIVE)
    bury(node, b"a", number=0)
    node.clock.advance(AGE_S + 1)
    purge(node)
    assert set(node.stored(0)) == {b"last"}
