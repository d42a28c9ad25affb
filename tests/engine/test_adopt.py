"""Many finished versions at once: the same as one by one, and who waits is told of whole states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contents import adopt_all, decoded, receive_all, table_of
from tests.engine.support import Node
from uprmc.engine import replica
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.errors import StoreFull
from uprmc.model import Item, Life, SnapshotRange, VBucketState
from uprmc.record import pack

versions = st.tuples(
    st.sampled_from([b"a", b"b", b"c", b"long key"]),
    st.none() | st.binary(max_size=3),
    st.integers(1, 2**40),
    st.integers(0, 9),
    st.integers(1, 90),
)
#: Portions of versions, and what is done between two of them.
portions = st.lists(
    st.tuples(
        st.lists(versions, max_size=8),
        st.sampled_from(["nothing", "flush", "view", "eject", "lock", "begin"]),
    ),
    max_size=6,
)


def items_of(portion: list[tuple[bytes, bytes | None, int, int, int]], seqno: int) -> list[Item]:
    """Number versions from above `seqno` on."""
    items = []
    for key, value, cas, rev, gap in portion:
        seqno += gap
        life = Life.LIVE if value is not None else Life.EXPIRED
        items.append(Item(key, value, 0, 0, cas, seqno, rev, 0, life))
    return items


def disturb(node: Node, what: str) -> None:
    vbucket = node.vbucket
    if what == "flush":
        node.flush()
    elif what == "view":
        vbucket.queue.open_view()
    elif what == "begin":
        flush = node.bucket.flusher.begin()
        if flush is not None:
            node.bucket.flusher.failed(flush, StoreFull("full"))
    elif what == "lock" and vbucket.find(b"a") is not None and b"a" not in vbucket.locks:
        item = vbucket.table.find(b"a")
        if item is not None and item.value is not None:
            vbucket.lock(b"a", 10)
    elif what == "eject":
        for item in list(table_of(vbucket).values()):
            if item.value and item.seqno <= vbucket.persisted_seqno:
                vbucket.eject(item.key)


def all_of(node: Node) -> tuple[object, ...]:
    vbucket, account = node.vbucket, node.bucket.account
    queue = vbucket.queue
    return (
        dict(table_of(vbucket)),
        decoded(queue.since(0)),
        (queue.live, queue.retired, queue.high_seqno, queue.persisted),
        (vbucket.high_seqno, vbucket.table.tombstones, vbucket.table.absent, vbucket.deletions),
        (vbucket.max_deleted_rev, set(vbucket.locks), vbucket.dirty),
        (account.used, account.last_cas),
    )


@given(steps=portions)
def test_many_at_once_are_the_same_as_one_by_one(
    steps: list[tuple[list[tuple[bytes, bytes | None, int, int, int]], str]],
) -> None:
    together, single = Node(), Node()
    for node in (together, single):
        node.bucket.set_state(0, VBucketState.REPLICA)
    for portion, what in steps:
        items = items_of(portion, together.vbucket.high_seqno)
        adopt_all(together.vbucket, items)
        for item in items:
            single.vbucket.adopt(pack(item))
        for node in (together, single):
            disturb(node, what)
        assert all_of(together) == all_of(single)
    together.vbucket.queue.check()


class Follower:
    """Counts what it is told."""

    def __init__(self, vbucket: VBucket) -> None:
        self.told = 0
        self._vbucket = vbucket
        vbucket.watchers.append(self)
        vbucket.waiting.append(self)

    def changed(self) -> None:
        self.told += 1
        assert self._vbucket.receiving is None
        self._vbucket.waiting.append(self)

    def interrupted(self, why: Interruption) -> None:
        raise AssertionError(why)


def version(seqno: int) -> Item:
    return Item(b"%d" % seqno, b"v", 0, 0, seqno, seqno, 1)


@pytest.mark.parametrize("single", [False, True])
def test_who_follows_a_replica_is_told_of_whole_states_only(node: Node, single: bool) -> None:
    vbucket = node.bucket.set_state(0, VBucketState.REPLICA)
    follower = Follower(vbucket)
    portions = [range(1, 4), range(4, 9), range(9, 11)]
    for end, portion in ((10, portions[0]), (10, portions[1]), (10, portions[2])):
        items = [version(seqno) for seqno in portion]
        if single:
            for item in items:
                replica.apply(vbucket, item, SnapshotRange(1, end))
        else:
            receive_all(vbucket, items, SnapshotRange(1, end))
        assert follower.told == (portion is portions[2])


def test_nothing_is_taken_and_nobody_told_of_it(node: Node) -> None:
    node.flush()
    follower = Follower(node.vbucket)
    adopt_all(node.vbucket, [])
    assert (follower.told, node.vbucket.dirty) == (0, False)
