"""What is thrown away goes a little at a time, and what takes long does not depend on how much."""

from __future__ import annotations

import sys

from tests.contents import table_of
from tests.engine.support import Node, settings_of
from uprmc.engine.memory import Leftovers
from uprmc.model import VBucketState
from uprmc.record import pack


def steps_of(leftovers: Leftovers) -> int:
    """Free everything; return how many steps it took."""
    return sum(1 for _ in leftovers.steps())


def test_tables_and_lists_are_freed_in_steps() -> None:
    leftovers = Leftovers()
    thing = object()
    before = sys.getrefcount(thing)
    leftovers.add(dict.fromkeys(range(1_200), thing))
    leftovers.add([thing] * 1_200)
    leftovers.add([])
    steps = leftovers.steps()
    next(steps)
    assert before + 1_500 < sys.getrefcount(thing) < before + 2_400
    leftovers.add({b"k": thing})  # while others are taken apart
    assert sum(1 for _ in steps) >= 5
    assert sys.getrefcount(thing) == before
    assert not leftovers


def test_after_a_flush_of_everything_memory_is_free_at_once_and_freed_later() -> None:
    node = Node(settings_of(vbuckets=2))
    for vbucket in node.bucket.vbuckets.values():
        for number in range(2_000):
            vbucket.store(b"%d" % number, b"v", 0, 0)
    node.bucket.flush(0, lambda _: None)
    node.check()
    assert node.bucket.account.used == 0
    assert node.bucket.total_item_count == 0
    node.set(b"new")
    assert steps_of(node.bucket.account.leftovers) > 4
    node.check()
    assert list(table_of(node.vbucket)) == [b"new"]


def test_the_short_way_finds_what_is_stored_after_a_reset() -> None:
    node = Node(settings_of())
    node.set(b"old")
    node.bucket.flush(0, lambda _: None)
    assert node.bucket.lookups[0](b"old") is None
    written = node.set(b"new")
    assert node.bucket.lookups[0](b"new") == pack(written)
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.vbucket.reset(7)
    assert node.bucket.lookups == {}
