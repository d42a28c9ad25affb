"""Streams led by the hand: what a consumer sees of one chosen event."""

from __future__ import annotations

import pytest

from tests.sim import codec
from tests.sim.codec import Version, vbucket_of
from tests.sim.consumer import BARRED, PLAIN, ROUNDS
from tests.sim.desk import StreamsDesk as Desk
from tests.sim.stream_judges import Copy

pytestmark = pytest.mark.sim

_MARKER_BYTES, _MUTATION_BYTES, _DELETION_BYTES = 44, 55, 42


@pytest.mark.acceptance("P02")
def test_a_consumer_that_comes_back_is_sent_exactly_what_is_new() -> None:
    """Count and bytes: one message for each key that changed, and the markers around them."""
    desk = Desk(PLAIN)
    for number in range(20):
        desk.put("a", b"old%d" % number)
    desk.settle()
    account = desk.consumer.account
    items, snapshots = account.items, account.snapshots
    desk.consumer.asleep = True
    desk.hang_up()
    for value in (b"first", b"second", b"third"):
        desk.put("a", b"old3", value)
    desk.put("a", b"new", b"x" * 100)
    desk.delete("a", b"old4")
    desk.consumer.asleep = False
    desk.settle()
    sent, markers = account.items - items, account.snapshots - snapshots
    assert sent == 3
    connection = desk.consumer.connection
    assert connection is not None
    documents = (len(b"old3") + len(b"third")) + (len(b"new") + 100)
    expected = 2 * _MUTATION_BYTES + documents + _DELETION_BYTES + len(b"old4")
    assert connection.bytes == expected + markers * _MARKER_BYTES
    desk.finish()


@pytest.mark.acceptance("D10", "D11", "P17")
def test_each_unclean_start_adds_an_entry_and_a_clean_one_none() -> None:
    """Seen in the failover log that comes with a stream."""
    desk = Desk(PLAIN, vbuckets=1)
    lengths = []
    for end in (desk.crash, desk.stop, desk.crash, desk.crash, desk.stop):
        desk.put("a", b"k")
        desk.settle()
        end("a")
        desk.settle()
        lengths.append(len(desk.log(0)))
    assert lengths == [2, 2, 3, 4, 4]
    assert len({uuid for uuid, _ in desk.log(0)}) == 4
    assert desk.consumer.account.rollbacks == 0
    desk.finish()


@pytest.mark.acceptance("D12", "P06", "P18")
def test_what_was_lost_in_a_crash_is_rolled_back_and_its_branch_replaced() -> None:
    """The consumer has more than the node; it falls back to where the new branch begins."""
    desk = Desk(PLAIN, vbuckets=1)
    desk.put("a", b"kept")
    desk.settle()
    desk.run.node.bucket.flusher.pause()
    desk.put("a", b"lost")
    desk.put("a", b"kept", b"lost, too")
    desk.world.run_until(lambda: desk.consumer.copies[0].last == 3)
    desk.crash("a")
    desk.settle()
    assert desk.consumer.account.rollbacks == 1
    assert desk.consumer.account.from_zero == 0
    assert {key: doc.value for key, doc in desk.consumer.copies[0].docs.items()} == {b"kept": b"v"}
    assert [seqno for _, seqno in desk.log(0)] == [1, 0]
    desk.finish()


@pytest.mark.acceptance("P12", "P19")
def test_a_stranger_begins_anew_with_that_vbucket_and_keeps_the_others() -> None:
    """Its history is not ours."""
    desk = Desk(PLAIN)
    for number in range(12):
        desk.put("a", b"k%d" % number)
    desk.settle()
    one, other = desk.consumer.copies[0], desk.consumer.copies[1]
    items, held = desk.consumer.account.items, len(one.docs)
    assert held
    assert other.docs
    one.log = ((0xBAD, 0),)
    desk.hang_up()
    desk.settle()
    assert desk.consumer.account.rollbacks == 1
    assert desk.consumer.account.from_zero == 1
    assert desk.consumer.account.items - items == held
    desk.finish()


@pytest.mark.acceptance("D31")
def test_an_idle_connection_is_silent_and_wakes_at_once() -> None:
    """A minute without a frame; then a write is there within a few milliseconds."""
    desk = Desk(PLAIN, vbuckets=1)
    desk.put("a", b"k")
    desk.settle()
    connection = desk.consumer.connection
    assert connection is not None
    frames = connection.frames
    desk.world.run_for(60.0)
    assert connection.frames == frames
    desk.put("a", b"k", b"news")
    written_at = desk.world.now
    desk.world.run_until(lambda: desk.consumer.copies[0].last == 2)
    assert desk.world.now - written_at < 0.05
    desk.finish()


@pytest.mark.acceptance("D33", "D26")
def test_a_vbucket_that_stops_being_active_ends_its_stream_and_nothing_is_missed() -> None:
    """The consumer asks again until it is served, and goes on where it stood."""
    desk = Desk(PLAIN, vbuckets=1)
    desk.put("a", b"before")
    desk.settle()
    desk.set_state(0, codec.DEAD)
    ends = desk.consumer.account.ends
    desk.world.run_until(lambda: ends.get(codec.END_STATE) == 1)
    desk.set_state(0, codec.ACTIVE)
    desk.put("a", b"after")
    desk.settle()
    assert set(desk.consumer.copies[0].docs) == {b"before", b"after"}
    assert desk.consumer.account.rollbacks == 0
    assert desk.consumer.account.items == 2
    desk.finish()


@pytest.mark.acceptance("D35", "D36", "D38")
@pytest.mark.parametrize("kind", [BARRED, ROUNDS])
def test_a_hundred_cookies_come_back_in_order_and_at_once_when_nothing_is_left(
    kind: object,
) -> None:
    """The consumer judges order and truth; here it counts."""
    desk = Desk(kind)  # type: ignore[arg-type]
    for number in range(30):
        desk.put("a", b"k%d" % number)
    consumer = desk.consumer
    desk.settle()
    consumer.barriers_max = 0
    desk.world.run_until(lambda: not consumer.barriers)
    before = consumer.account.barriers
    for _ in range(100):
        assert consumer.connection is not None
        consumer.add_barrier(consumer.connection)
    desk.world.run_until(lambda: not consumer.barriers)
    assert consumer.account.barriers == before + 100
    desk.finish()


@pytest.mark.acceptance("D36", "D37")
def test_a_cookie_waits_for_vbuckets_that_the_round_has_passed_over_in_silence() -> None:
    """The turn is with vBucket 1, which may not read the disk yet, when vBucket 0 changes.

    Then vBucket 1 is gone: the round ends without having sent anything, and the cookie must not.
    """
    desk = Desk(ROUNDS)
    consumer, hub = desk.consumer, desk.run.node.upr
    consumer.barriers_max = 0
    low, high = (_key_of(number) for number in (0, 1))
    desk.put("a", low)
    desk.put("a", high)
    desk.settle()
    consumer.asleep = True
    desk.hang_up()
    desk.put("a", high, b"on disk")
    desk.world.run_until(lambda: desk.run.node.quiet)
    hub.backfills.used += hub.backfills.limit
    consumer.asleep = False
    desk.world.run_for(1.0)
    desk.put("a", low, b"in memory")
    assert consumer.connection is not None
    consumer.add_barrier(consumer.connection)
    desk.world.run_for(0.5)
    assert consumer.barriers
    desk.set_state(1, codec.DEAD)
    desk.world.run_for(0.5)
    hub.backfills.used -= hub.backfills.limit
    desk.world.run_until(lambda: not consumer.barriers)
    desk.set_state(1, codec.ACTIVE)
    desk.settle()
    desk.finish()


def _key_of(vbucket: int) -> bytes:
    keys = (b"key%d" % number for number in range(100))
    return next(key for key in keys if vbucket_of(key, 2) == vbucket)


@pytest.mark.acceptance("P10")
def test_a_consumer_falls_back_to_its_own_newest_snapshot_end() -> None:
    """Snapshot ends 10, 25, 40, told 30: it goes on from 25."""
    copy = Copy(keep=10)
    copy.log = ((2, 28), (1, 0))
    last = 0
    for end in (10, 25, 40):
        for seqno in range(last + 1, end + 1):
            key = b"k%d" % (seqno % 7)
            copy.apply(Version(key, seqno, 1, seqno, False, b"", 0, 0), (last + 1, end))
        copy.complete()
        last = end
        if end == 25:
            at_25 = dict(copy.docs)
    copy.roll_back(30)
    assert copy.last == 25
    assert copy.docs == at_25
    assert copy.log == ((1, 0),)
    assert copy.position(codec.NEVER, 0, versions=False) == codec.Position(
        25, codec.NEVER, 1, 25, 25
    )
