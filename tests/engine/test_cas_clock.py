"""CAS values: never twice for two values, whatever was lost, wherever the clock is set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support import BEGINNING, Node
from uprmc.engine.cas_clock import JUMP, beyond, reading
from uprmc.engine.replica import apply
from uprmc.engine.with_meta import CAS_AHEAD_MAX_S, Demand, accept_version
from uprmc.model import Item, SnapshotRange, VBucketState
from uprmc.record import pack, unpack

NANOS = 1_000_000_000
HOUR = 3_600 * NANOS
NOW = int(BEGINNING) * NANOS
MINUTE_AHEAD = NOW + 60 * NANOS


@pytest.fixture
def node() -> Node:
    return Node()


def take(node: Node, cas: int) -> Item:
    """Take a version of somebody whose clock is ahead."""
    version = Item(b"taken", b"v", 0, 0, cas, 0, 1)
    demand = Demand(skip_conflicts=True)
    return unpack(accept_version(node.bucket, node.vbucket, pack(version), demand))


def test_a_cas_dates_a_change_and_leaves_bits_to_count() -> None:
    assert reading(BEGINNING + 0.5) & 0xFFFF == 0
    assert 0 <= NOW + NANOS // 2 - reading(BEGINNING + 0.5) <= 0xFFFF


def test_changes_follow_the_clock_and_count_between_its_readings(node: Node) -> None:
    node.clock.advance(5)
    node.bucket.tick()
    first = node.set(b"a").cas
    assert first == reading(BEGINNING + 5)
    assert node.set(b"b").cas == first + 1


def test_a_clock_that_is_set_back_lowers_nothing(node: Node) -> None:
    before = node.set(b"a").cas
    node.clock.step(-3_600)
    node.bucket.tick()
    assert node.set(b"a").cas > before


def test_two_nodes_that_took_the_same_version_go_on_with_different_ones() -> None:
    one, other = Node(), Node()
    one.bucket.account.cas_step = 7
    for each in (one, other):
        take(each, MINUTE_AHEAD)
    ours, theirs = one.set(b"k").cas, other.set(b"k").cas
    assert min(ours, theirs) > MINUTE_AHEAD
    assert ours != theirs


def test_a_commit_keeps_the_highest_cas_that_was_ever_known(node: Node) -> None:
    take(node, MINUTE_AHEAD)
    node.vbucket.delete(b"taken")
    node.flush()
    assert node.header().max_cas == node.vbucket.max_cas > MINUTE_AHEAD


def test_the_cas_of_a_lock_is_kept_too(node: Node) -> None:
    node.set(b"k")
    _, cas = node.vbucket.lock(b"k", 10)
    node.flush()
    assert node.header().max_cas >= cas


@pytest.mark.acceptance("D04")
def test_after_a_crash_no_lost_cas_comes_again(node: Node) -> None:
    take(node, MINUTE_AHEAD)
    node.flush()
    lost = node.set(b"k").cas
    node = node.restarted()
    assert node.set(b"k").cas >= MINUTE_AHEAD + JUMP > lost


def test_a_stop_in_order_loses_none_and_jumps_nowhere(node: Node) -> None:
    take(node, MINUTE_AHEAD)
    last = node.set(b"k").cas
    node.stop()
    node = node.restarted()
    assert last < node.set(b"k").cas < last + JUMP


def test_a_promoted_replica_leaves_behind_what_its_active_lost() -> None:
    node = Node()
    node.bucket.set_state(0, VBucketState.REPLICA)
    apply(node.vbucket, Item(b"k", b"v", 0, 0, MINUTE_AHEAD, 1, 1), SnapshotRange(0, 1))
    node.bucket.set_state(0, VBucketState.ACTIVE)
    assert node.set(b"k").cas >= MINUTE_AHEAD + JUMP


def test_a_vbucket_that_is_handed_over_jumps_too() -> None:
    node = Node()
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.bucket.set_state(0, VBucketState.ACTIVE, takeover=True)
    assert node.set(b"k").cas >= NOW + JUMP


def test_many_promotions_do_not_add_up() -> None:
    node = Node()
    numbers = list(node.bucket.vbuckets)
    for number in numbers:
        node.bucket.set_state(number, VBucketState.REPLICA)
        node.bucket.set_state(number, VBucketState.ACTIVE)
    assert node.bucket.account.last_cas < NOW + JUMP + 5 * NANOS


def test_a_node_that_crashes_in_a_loop_stays_where_its_peers_take_its_versions() -> None:
    cas = NOW
    for _ in range(1_000):
        following = beyond(cas, BEGINNING, 2**48 - 1)
        assert following > cas + 2**32
        cas = following
    assert cas < NOW + CAS_AHEAD_MAX_S * NANOS


@given(st.integers(0, 2**62), st.floats(0, 4e9), st.integers(1, 2**48 - 1))
def test_a_jump_leaves_more_behind_than_anybody_writes_meanwhile(
    known: int, now_s: float, name: int
) -> None:
    cas = beyond(known, now_s, name)
    assert cas >= known + 2**32
    if known <= reading(now_s) + 12 * HOUR:
        assert cas >= max(known, reading(now_s)) + JUMP
