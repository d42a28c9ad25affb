"""The memory pager: clean values leave, coldest first, and no more of them than needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contents import table_of
from tests.engine.support import Node, settings_of
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES
from uprmc.errors import OutOfMemory, TemporaryFailure
from uprmc.model import VBucketState
from uprmc.record import COLD, RECORD_OVERHEAD_BYTES, key_of

VALUE = bytes(1_000)


def full(count: int = 100, *, vbuckets: int = 1, slice_items: int = 10) -> Node:
    """A node with `count` clean documents, just above its high mark."""
    node = Node(settings_of(vbuckets=vbuckets, memory={"pager_slice": slice_items}))
    for number in range(count):
        node.bucket.vbuckets[number % vbuckets].store(b"%03d" % number, VALUE, 0, 0)
    node.flush()
    account = node.bucket.account
    account.high_mark = account.used - 1
    account.low_mark = account.used * 3 // 4
    return node


def run(node: Node) -> int:
    """Run the pager to its end; return the number of slices."""
    count = 1
    while node.bucket.evictor.run_slice():
        count += 1
    return count


def resident(node: Node, vbucket: int = 0) -> set[bytes]:
    table = table_of(node.bucket.vbuckets[vbucket])
    return {key for key, item in table.items() if item.value is not None}


def test_below_the_high_mark_nothing_happens() -> None:
    node = full()
    node.bucket.account.high_mark = node.bucket.account.used
    assert not node.bucket.evictor.needed
    assert not node.bucket.evictor.run_slice()
    assert node.bucket.stats.pager_runs == 0
    assert len(resident(node)) == 100


@pytest.mark.parametrize("slice_items", [1, 10, 1_000])
def test_ejection_stops_at_the_low_mark(slice_items: int) -> None:
    node = full(slice_items=slice_items)
    run(node)
    account = node.bucket.account
    assert account.low_mark - len(VALUE) <= account.used <= account.low_mark
    assert node.bucket.stats.value_ejects == node.vbucket.table.absent == 100 - len(resident(node))
    assert not node.bucket.evictor.needed
    node.check()


def test_nothing_is_lost() -> None:
    node = full()
    node.bucket.account.low_mark = 0
    run(node)
    assert resident(node) == set()
    assert node.vbucket.item_count == 100
    assert node.fetch(*(b"%03d" % number for number in range(100)))
    assert all(item.value == VALUE for item in table_of(node.vbucket).values())
    node.check()


def test_only_what_is_on_disk_leaves() -> None:
    node = full()
    dirty = {b"%03d" % number for number in range(0, 100, 2)}
    for key in dirty:
        node.set(key, VALUE)
    node.bucket.account.low_mark = 0
    run(node)
    assert resident(node) == dirty
    node.check()


def test_when_everything_is_dirty_a_run_ends_without_effect() -> None:
    node = Node()
    for number in range(50):
        node.set(b"%d" % number)
    node.bucket.account.high_mark = node.bucket.account.low_mark = 0
    run(node)
    assert node.bucket.stats.value_ejects == 0
    assert len(resident(node)) == 50
    assert not node.bucket.evictor.needed, "another run would find nothing either"
    node.flush()
    assert node.bucket.evictor.needed


def test_the_coldest_leave_first() -> None:
    node = full()
    hot = {b"%03d" % number for number in range(20)}
    for key in hot:
        node.vbucket.get(key)
    node.bucket.account.low_mark = node.bucket.account.used // 2
    run(node)
    assert hot <= resident(node)


def test_what_is_hot_leaves_too_when_the_rest_is_not_enough() -> None:
    node = full()
    for number in range(100):
        node.vbucket.get(b"%03d" % number)
    run(node)
    assert node.bucket.account.used <= node.bucket.account.low_mark


def test_replicas_give_first() -> None:
    node = full(vbuckets=2)
    node.bucket.vbuckets[0].state = VBucketState.ACTIVE
    node.bucket.vbuckets[1].state = VBucketState.REPLICA
    run(node)
    assert len(resident(node, 0)) == 50
    assert len(resident(node, 1)) < 50


def test_a_run_lets_others_have_their_turn() -> None:
    node = full(slice_items=10)
    assert run(node) > 10


def test_what_changes_during_a_run_is_not_ejected_by_it() -> None:
    node = full(slice_items=10)
    node.bucket.account.low_mark = 0
    node.bucket.evictor.run_slice()
    changed = {b"%03d" % number for number in range(100)}
    for key in changed:
        node.set(key, VALUE)
    run(node)
    assert resident(node) == changed
    node.check()


def test_a_version_that_was_replaced_and_written_during_a_run_does_not_come_back() -> None:
    node = full(slice_items=10)
    table = node.vbucket.table
    for record in list(table.records()):
        table.set_age(key_of(record), record, COLD)
    node.bucket.account.low_mark = 0
    node.bucket.evictor.run_slice()
    newer = {b"%03d" % number: node.set(b"%03d" % number, b"newer") for number in range(100)}
    node.flush()
    run(node)
    node.fetch(*newer)
    assert table_of(node.vbucket) == newer
    node.check()


def test_a_flush_of_everything_during_a_run_is_harmless() -> None:
    node = full(slice_items=10)
    node.bucket.account.low_mark = 0
    node.bucket.evictor.run_slice()
    node.bucket.flush(0, lambda _: None)
    node.set(b"005", VALUE)
    run(node)
    node.check()
    assert resident(node) == {b"005"}


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 5_000), min_size=1, max_size=60),
    share=st.floats(0.0, 1.0),
    slice_items=st.integers(1, 70),
    data=st.data(),
)
def test_the_account_is_right_whatever_is_ejected(
    sizes: list[int], share: float, slice_items: int, data: st.DataObject
) -> None:
    node = Node(settings_of(memory={"pager_slice": slice_items}))
    for number, size in enumerate(sizes):
        node.set(b"%d" % number, bytes(size))
    node.flush()
    account = node.bucket.account
    account.high_mark, account.low_mark = account.used - 1, int(account.used * share)
    before = node.stored()
    while node.bucket.evictor.run_slice():
        number = data.draw(st.integers(0, len(sizes) - 1))
        node.vbucket.find(b"%d" % number)
        node.check()
    reachable = account.used <= account.low_mark
    empty = {b"%d" % number for number, size in enumerate(sizes) if not size}
    assert reachable or resident(node) == empty, "ejecting an empty value would free nothing"
    for key in before:
        node.fetch(key)
    assert table_of(node.vbucket) == before
    node.check()


def test_when_keys_alone_fill_the_quota_the_pager_rests_and_writes_are_out_of_memory() -> None:
    node = Node(
        settings_of(memory={"quota": 400 * (2 * 4 + RECORD_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES)})
    )
    pager, account = node.bucket.evictor, node.bucket.account
    stored = 0
    while account.used <= account.write_limit:
        node.set(b"%04d" % stored, b"")
        stored += 1
    with pytest.raises(TemporaryFailure):
        node.set(b"more", b"")
    node.flush()
    assert pager.needed
    while pager.run_slice():
        pass
    assert not pager.needed, "another run would find nothing either"
    with pytest.raises(OutOfMemory):
        node.set(b"more", b"")
    for number in range(100):
        node.vbucket.delete(b"%04d" % number)
    node.flush()
    assert not account.exhausted
    assert node.set(b"more", b"").value == b""
