"""Which node a consumer follows, and when it says that it cannot have everything."""

from __future__ import annotations

import re

import pytest

from tests.client.consumer_world import (
    ACTIVE,
    DEAD,
    REPLICA,
    CrashingState,
    Mirror,
    World,
    live,
    node,
    replicate,
    standby,
)
from tests.client.consumer_world import write as store
from tests.client.fake_producer import FakeProducer, Joined
from tests.kv.harness import Rig
from tests.upr.peer import Frame, response
from uprmc.client.errors import NotActive
from uprmc.model import FailoverEntry
from uprmc.protocol.upr_many import StreamStart
from uprmc.upr.peer import Answer
from uprmc.upr.producer import Producer

ALL = range(4)
NO_MEMORY = 0x82


def failed_over(crashes: int = 5) -> tuple[Rig, Rig]:
    """An active that was not told that its replica was promoted, and the replica.

    Since then the old one has crashed: its failover log is the longer one. Both were written to.
    """
    old, new = node(), standby(1000)
    for number in ALL:
        store(old, number, a="1")
        replicate(old, new, number)
        promoted = new.bucket.vbuckets[number]
        promoted.known_term = promoted.term = old.bucket.vbuckets[number].term
        new.bucket.set_state(number, ACTIVE)
        crash(old, number, crashes)
        store(old, number, lost="1")
        store(new, number, b="2")
    return old, new


def crash(rig: Rig, number: int, times: int) -> None:
    """What unclean starts leave in a failover log."""
    vbucket = rig.bucket.vbuckets[number]
    for each in range(times):
        entry = FailoverEntry(9000 + 10 * number + each, vbucket.high_seqno)
        vbucket.failover_log = (entry, *vbucket.failover_log)


def followed(mirror: Mirror, rig: Rig) -> bool:
    return all(followed_in(mirror, rig, number) for number in ALL)


def followed_in(mirror: Mirror, rig: Rig, number: int) -> bool:
    return mirror.of(number) == live(rig, number)


# --- who is right ---------------------------------------------------------------------------------


@pytest.mark.acceptance("D33")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("until_now", [True, False])
def test_a_deposed_active_that_has_crashed_since_is_not_followed(
    order: tuple[int, int], until_now: bool
) -> None:
    rigs, mirror = failed_over(), Mirror()
    world = World(mirror, *(rigs[each] for each in order), until_now=until_now)
    if until_now:
        world.until(lambda: world.core.streams.finished)
    else:
        world.settle(3)
    assert followed(mirror, rigs[1])
    assert all(change.key != b"lost" for change in mirror.changes)
    world.settle()
    assert {each.state for each in rigs[0].bucket.vbuckets.values()} == {DEAD}


@pytest.mark.acceptance("D33")
def test_nobody_is_followed_before_every_node_has_told() -> None:
    """The deposed one answers at once and never restarted; the other one takes its time."""
    (old, new), mirror = failed_over(crashes=0), Mirror()
    world = World(mirror, old, new, until_now=True)
    slow = world._carry
    world._carry = lambda session: (  # type: ignore[method-assign]
        slow(session) if session.place == "node0:1" or world.now > 1003 else False
    )
    world.settle(2)
    assert not mirror.changes
    world.until(lambda: world.core.streams.finished)
    assert followed(mirror, new)


def test_a_node_that_never_tells_is_waited_for_five_seconds() -> None:
    rig, mirror = node(), Mirror()
    store(rig, 0, a="1")
    world = World(mirror, rig, standby(1000))
    carry = world._carry
    world._carry = lambda session: (  # type: ignore[method-assign]
        carry(session) if session.place == "node0:1" else False
    )
    world.settle(4.9)
    assert not mirror.changes
    world.settle(0.3)
    assert mirror.of(0) == live(rig)


def test_a_node_that_shares_no_history_with_the_promoted_one_is_left_alone() -> None:
    stranger, right, mirror = node(), standby(1000), Mirror()
    for number in ALL:
        store(stranger, number, a="1")
        vbucket = right.bucket.vbuckets[number]
        vbucket.known_term = 5
        right.bucket.set_state(number, ACTIVE)
        store(right, number, b="2")
    world = World(mirror, stranger, right)
    world.settle(3)
    assert followed(mirror, right)
    assert {each.state for each in stranger.bucket.vbuckets.values()} == {ACTIVE}


def test_a_connection_that_was_kept_and_ends_is_dialled_once_more() -> None:
    """The right node hangs up and is back at once; the deposed one claims its vBuckets."""
    (old, new), mirror = failed_over(), Mirror()
    for number in ALL:
        old.bucket.set_state(number, DEAD)
    world = World(mirror, old, new)
    world.settle(1)
    for number in ALL:
        claims_again(old, number)
    for _ in range(8):
        for session in [each for each in world._ends if each.place == "node1:1"]:
            world.cut(session)
        store(new, 0, more=str(world.now))
        world.settle(1)
    world.settle(6)
    assert followed(mirror, new)
    assert all(change.key != b"lost" for change in mirror.changes)


def claims_again(rig: Rig, number: int) -> None:
    """A deposed active restarts: it believes in itself, and its term is the old one."""
    vbucket = rig.bucket.vbuckets[number]
    term, log = vbucket.term, vbucket.failover_log
    rig.bucket.set_state(number, ACTIVE)
    vbucket.term = vbucket.known_term = term
    vbucket.failover_log = log


@pytest.mark.acceptance("D33")
def test_a_term_is_kept_with_the_position_and_a_deposed_node_alone_is_not_followed() -> None:
    (old, new), mirror, state = failed_over(), Mirror(), CrashingState()
    world = World(mirror, old, new, state=state)
    world.settle(2)
    assert {saved.term for saved in state.load().values()} == {2}
    mirror.changes.clear()
    for number in ALL:
        claims_again(old, number)
    world.down.add("node1:1")
    world.restart(until_now=True)
    world.settle(5)
    assert not mirror.changes
    assert followed(mirror, new)
    error = world.core.streams.hopeless(world.now, 3.0)
    assert isinstance(error, NotActive)
    assert "vBucket 0: node0:1 served it before another node was promoted" in str(error)
    assert "term 1, and there is a term 2" in str(error)
    assert str(error).endswith("node1:1 is down")
    states = {vbucket.state for vbucket in old.bucket.vbuckets.values()}
    assert states == {DEAD}, "it has learned from the consumer that it was deposed"


def test_a_stream_request_says_the_highest_term_that_is_known() -> None:
    (_, new), mirror, asked = failed_over(), Mirror(), []
    world = World(mirror, new, vbuckets=frozenset({0}))
    start = Producer.start

    def noted(producer: Producer, wanted: StreamStart) -> Answer:
        asked.append(wanted.options.term)
        return start(producer, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Producer, "start", noted)
        world.settle(1)
        new.bucket.set_state(0, REPLICA)
        world.settle(1)
        new.bucket.set_state(0, ACTIVE)
        world.settle(2)
    assert followed_in(mirror, new, 0)
    assert asked == [2, 3]


@pytest.mark.parametrize("term", [2, 1], ids=["by its term", "by its history"])
def test_a_better_claim_is_moved_to_while_streams_run(term: int) -> None:
    (old, new), mirror = failed_over(crashes=0), Mirror()
    for number in ALL:
        new.bucket.set_state(number, DEAD)
    world = World(mirror, old, new)
    world.settle(1)
    assert followed(mirror, old)
    for number in ALL:
        new.bucket.set_state(number, ACTIVE)
        new.bucket.vbuckets[number].term = term
    world.settle(3)
    assert followed(mirror, new)


def test_of_two_promoted_by_hand_none_is_followed_and_both_are_named() -> None:
    old, new = failed_over()
    for number in ALL:
        old.bucket.vbuckets[number].term = 2
    mirror = Mirror()
    world = World(mirror, old, new, until_now=True)
    world.settle(5)
    assert not mirror.changes
    assert "node1:1 both have it" in world.core.metrics(world.now).vbuckets[3].refusal
    error = world.core.streams.hopeless(world.now, 3.0)
    assert isinstance(error, NotActive)
    assert error.vbuckets == (0, 1, 2, 3)
    assert "vBucket 0: node0:1 and node1:1 both have it active with term 2" in str(error)


# --- everything up to now -------------------------------------------------------------------------


def halves() -> tuple[Rig, Rig]:
    """Two nodes with two vBuckets each."""
    one, two = node(), node(1000)
    for number in (0, 1):
        store(one, number, a="1")
        two.bucket.set_state(number, REPLICA)
    for number in (2, 3):
        store(two, number, b="2")
        one.bucket.set_state(number, REPLICA)
    return one, two


@pytest.mark.acceptance("D16", "D33")
@pytest.mark.parametrize("down", [True, False])
def test_up_to_now_needs_all_vbuckets_or_lists_those_that_are_missing(down: bool) -> None:
    mirror = Mirror()
    world = World(mirror, *halves(), until_now=True)
    if down:
        world.down.add("node1:1")
        world.settle(5)
        assert not world.core.streams.finished
        error = world.core.streams.hopeless(world.now, 3.0)
        assert isinstance(error, NotActive)
        assert error.vbuckets == (2, 3)
        words = "vBuckets 2-3 are active at none of node0:1, node1:1.*; node1:1 is down"
        assert re.match(words, str(error))
        assert world.core.streams.hopeless(world.now, 30.0) is None
    else:
        world.until(lambda: world.core.streams.finished)
        assert len(mirror.changes) == 4


def test_up_to_now_at_a_node_of_replicas_is_an_error() -> None:
    world = World(Mirror(), standby(0), until_now=True)
    world.settle(5)
    assert not world.core.streams.finished
    error = world.core.streams.hopeless(world.now, 3.0)
    assert isinstance(error, NotActive)
    assert error.vbuckets == (0, 1, 2, 3)


def test_up_to_now_at_a_node_without_vbuckets_is_an_error() -> None:
    rig = node()
    for number in ALL:
        rig.bucket.set_state(number, DEAD)
    world = World(Mirror(), rig, until_now=True)
    world.settle(5)
    assert not world.core.streams.finished
    assert isinstance(world.core.streams.hopeless(world.now, 3.0), NotActive)


@pytest.mark.acceptance("D16")
def test_a_barrier_does_not_wait_for_a_question_that_another_one_asked() -> None:
    """What the nodes have and the cookie are one round trip."""
    rig = node()
    world = World(Mirror(), rig)
    world.settle(2)
    one = world.core.barrier()
    world.drive(world.core.turn(world.now))
    (session,) = world.core.nodes.sessions()
    assert session.polling
    other = world.core.barrier()
    world.drive(world.core.turn(world.now))
    world._carry(session)
    assert one.done
    assert other.done


@pytest.mark.acceptance("D16")
def test_a_barrier_goes_on_when_a_vbucket_turns_out_to_be_at_another_node() -> None:
    one, two = node(), standby(500)
    world = World(Mirror(), one, two)
    store(one, a="1")
    world.settle(1)
    replicate(one, two)
    two.bucket.set_state(0, ACTIVE)  # and the other one does not know
    store(two, a="2")
    barrier = world.core.barrier()
    world.settle()
    assert barrier.done
    assert barrier.error is None
    assert world.handler.of(0) == {b"a": b"2"}  # type: ignore[attr-defined]


def test_a_barrier_waits_for_all_vbuckets_and_is_broken_when_some_are_nowhere() -> None:
    world = World(Mirror(), *halves())
    world.settle(1)
    reached = world.core.barrier()
    world.settle(1)
    assert reached.done
    assert reached.error is None
    world.lose_node("node1:1")
    world.settle(1)
    barrier = world.core.barrier()
    world.settle(5)
    assert not barrier.done
    world.core.streams.give_up_barriers(world.now, 30.0)
    assert not barrier.done
    world.core.streams.give_up_barriers(world.now, 3.0)
    assert barrier.done
    assert isinstance(barrier.error, NotActive)
    assert barrier.error.vbuckets == (2, 3)


def test_a_barrier_of_a_consumer_that_never_saw_some_vbuckets_waits_for_them_too() -> None:
    one, two = halves()
    world = World(Mirror(), one, two)
    world.down.add("node1:1")
    world.settle(1)
    barrier = world.core.barrier()
    world.settle(5)
    world.core.streams.give_up_barriers(world.now, 3.0)
    assert isinstance(barrier.error, NotActive)
    world.down.clear()
    world.settle(6)
    again = world.core.barrier()
    world.settle(2)
    assert again.done
    assert again.error is None


# --- refusals -------------------------------------------------------------------------------------


def test_the_words_of_a_refusal_are_in_error_metrics_and_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(asked: Frame) -> bytes:
        return response(asked.opcode, NO_MEMORY, opaque=asked.opaque, value=b"not today")

    joined = Joined(Mirror(), FakeProducer(refuse), until_now=True)
    for _ in range(100):
        joined.settle()
        joined.now += 0.1
    words = "vBucket 0: fake:1 does not stream it: not today (0082)"
    assert joined.core.metrics(joined.now).vbuckets[0].refusal == words
    assert [record.getMessage() for record in caplog.records] == [words], "once"
    error = joined.core.streams.hopeless(joined.now, 3.0)
    assert isinstance(error, NotActive)
    assert words in str(error)


def test_a_node_that_takes_fewer_histories_is_asked_with_one() -> None:
    """`upr.known_versions` is 2 there, and the consumer knows five."""
    rig, mirror = node(**{"upr.known_versions": 2}), Mirror()
    crash(rig, 0, 4)
    store(rig, 0, a="1")
    crash(rig, 0, 1)
    world = World(mirror, rig, vbuckets=frozenset({0}))
    world.settle(1)
    store(rig, 0, b="2")
    world.cut()
    world.settle(2)
    assert mirror.of(0) == live(rig)
    assert world.core.metrics(world.now).vbuckets[0].refusal == ""
