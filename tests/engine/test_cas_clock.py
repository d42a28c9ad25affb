"""CAS values: never twice for two values, whatever was lost, wherever the clock is set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support import BEGINNING, Node, settings_of
from uprmc.engine.cas_clock import AHEAD_MAX_S, JUMP, Timeline, beyond, reading
from uprmc.engine.replica import apply
from uprmc.engine.with_meta import Demand, accept_version
from uprmc.errors import InvalidArguments
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
    assert cas < NOW + AHEAD_MAX_S * NANOS


# --- a clock that is wrong for a while ------------------------------------------------------------

DAY_S = 24 * 3_600


def is_taken_elsewhere(item: Item, node: Node) -> bool:
    """Tell whether a node with a right clock would take a version."""
    return item.cas <= (BEGINNING + node.clock.monotonic() + AHEAD_MAX_S) * NANOS


def pass_time(node: Node, seconds: float) -> None:
    for _ in range(10):
        node.clock.advance(seconds / 10)
        node.bucket.tick()


@pytest.mark.parametrize("rule", ["revision", "timestamp"])
def test_a_clock_that_leaps_ahead_and_comes_back_moves_no_cas(rule: str) -> None:
    node = Node(settings_of(engine={"conflict_resolution": rule}))
    pass_time(node, 10)
    node.clock.step(30 * DAY_S)
    for _ in range(3):
        assert is_taken_elsewhere(node.set(b"a"), node)
        pass_time(node, 600)
    node.clock.step(-30 * DAY_S)
    pass_time(node, 1)
    assert is_taken_elsewhere(node.set(b"b"), node)
    assert node.set(b"c").cas >= reading(node.clock.now() - 2)


def test_a_promotion_during_a_leap_moves_no_cas_either(node: Node) -> None:
    pass_time(node, 10)
    node.clock.step(30 * DAY_S)
    node.bucket.set_state(0, VBucketState.REPLICA)
    node.bucket.set_state(0, VBucketState.ACTIVE)
    assert is_taken_elsewhere(node.set(b"a"), node)


def test_a_clock_that_was_behind_and_is_set_right_is_believed_after_an_hour(node: Node) -> None:
    pass_time(node, 10)
    node.clock.step(30 * DAY_S)
    pass_time(node, 3_500)
    assert node.set(b"a").cas < NOW + DAY_S * NANOS
    pass_time(node, 600)
    assert node.set(b"b").cas >= NOW + 30 * DAY_S * NANOS


def test_what_was_given_out_is_not_taken_back_when_the_clock_is_set_right(node: Node) -> None:
    node.clock.step(30 * DAY_S)
    node = node.restarted()
    wrong = node.set(b"a").cas
    assert wrong >= NOW + 30 * DAY_S * NANOS
    node.clock.step(-30 * DAY_S)
    pass_time(node, 1)
    assert node.set(b"a").cas > wrong
    node.stop()
    assert node.restarted().set(b"b").cas > wrong


def test_a_cas_far_in_the_future_is_taken_on_demand(node: Node) -> None:
    version = pack(Item(b"k", b"v", 0, 0, NOW + 90 * DAY_S * NANOS, 0, 1))
    with pytest.raises(InvalidArguments, match="far in the future"):
        accept_version(node.bucket, node.vbucket, version, Demand())
    accept_version(node.bucket, node.vbucket, version, Demand(any_cas=True))
    assert node.vbucket.get(b"k").cas == NOW + 90 * DAY_S * NANOS
    assert node.set(b"k").cas > NOW + 90 * DAY_S * NANOS


def test_a_clock_that_leaps_again_and_again_moves_the_time_by_half_a_day_an_hour() -> None:
    timeline, wall = Timeline(), BEGINNING
    for passed in range(1_000):
        timeline.look(wall, float(passed))
        wall += 40_000
        told = wall if wall <= timeline.until else timeline.instead
        assert told <= BEGINNING + passed + DAY_S


@given(st.integers(0, 2**62), st.floats(0, 4e9), st.integers(1, 2**48 - 1))
def test_a_jump_leaves_more_behind_than_anybody_writes_meanwhile(
    known: int, now_s: float, name: int
) -> None:
    cas = beyond(known, now_s, name)
    assert cas >= known + 2**32
    if known <= reading(now_s) + 12 * HOUR:
        assert cas >= max(known, reading(now_s)) + JUMP
