"""Who follows a pushed copy by UPR sees the master's states, and never half of one."""

from __future__ import annotations

import pytest

from tests.tap_adapter.push_rig import (
    ACTIVE,
    NOT_MY_VBUCKET,
    PENDING,
    REPLICA,
    PushRig,
    delete,
    end,
    message,
    mutation,
    opaque,
    start,
    vbucket_set,
)
from tests.upr import peer as upr
from tests.upr.peer import Frame, Peer, check_stream, items, marked, only, seqnos
from tests.upr.replication_rig import A, World
from uprmc.engine.replica import apply
from uprmc.model import FailoverEntry, Item, SnapshotRange

pytestmark = pytest.mark.acceptance("D56")


@pytest.fixture
def rig() -> PushRig:
    return PushRig(REPLICA)


def follow(rig: PushRig, name: bytes = b"idx:1") -> Peer:
    return Peer.open(rig.rig, name)


def keys(frames: list[Frame]) -> list[bytes]:
    return [each.key for each in items(frames)]


def ended(frames: list[Frame]) -> bool:
    return bool(only(frames, upr.STREAM_END))


# --- boundaries -----------------------------------------------------------------------------------


def test_a_backfill_is_one_snapshot(rig: PushRig) -> None:
    rig.push(opaque(0), opaque(2), opaque(1))
    peer = follow(rig)
    assert peer.stream() == []
    for number in range(50):
        rig.push(mutation(b"key%d" % number))
        assert peer.drain() == []
    rig.push(opaque(8))
    frames = peer.drain()
    assert [each[:2] for each in marked(frames)] == [(0, 50)]
    assert check_stream(frames) == 50


@pytest.mark.parametrize("flushed", [False, True])
def test_each_checkpoint_is_one_snapshot(rig: PushRig, flushed: bool) -> None:
    rig.push(opaque(2), opaque(1), mutation(b"a"), opaque(8))
    peer = follow(rig)
    frames = peer.stream()
    assert keys(frames) == [b"a"]
    for number in range(1, 4):
        rig.push(start(number), mutation(b"a", b"%d" % number))
        if flushed:
            rig.rig.flush()
        rig.push(mutation(b"b%d" % number))
        assert peer.drain() == []
        assert rig.vbucket.whole_seqno == 2 * number - 1
        rig.push(end(number))
        frames += peer.drain()
    assert [each[1] for each in marked(frames)] == [1, 3, 5, 7]
    assert check_stream(frames) == 7


def test_a_checkpoint_that_begins_at_once_does_not_starve_who_follows(rig: PushRig) -> None:
    """Boundaries come and go between two turns of the follower."""
    rig.push(opaque(2), opaque(1), mutation(b"a"), opaque(8))
    peer = follow(rig)
    frames = peer.stream()
    for number in range(1, 20):
        rig.push(*(mutation(b"k%d" % each) for each in range(40)), end(number), start(number + 1))
        rig.push(mutation(b"half"))
        frames += peer.drain()
    assert len(marked(frames)) > 10
    end_seqno = check_stream(frames)
    assert {each[1] for each in marked(frames)} <= {1, *range(41, 1000, 41)}
    assert end_seqno == rig.vbucket.whole_seqno


def test_a_checkpoint_start_ends_the_backfill(rig: PushRig) -> None:
    rig.push(opaque(2), opaque(1), mutation(b"a"), start(1))
    assert rig.vbucket.receiving is None
    rig.push(mutation(b"b"))
    assert rig.vbucket.receiving == SnapshotRange(1, 3)


def test_checkpoint_0_is_a_backfill_and_ends_none(rig: PushRig) -> None:
    rig.push(opaque(2), opaque(1), start(0), mutation(b"a"), start(0))
    assert rig.vbucket.whole_seqno == 0
    rig.push(start(1))
    assert rig.vbucket.whole_seqno == 1


def test_the_same_checkpoint_from_its_start_is_no_boundary(rig: PushRig) -> None:
    rig.push(opaque(2), start(7), mutation(b"a"), start(7))
    assert rig.vbucket.whole_seqno == 0
    rig.push(start(6))
    assert rig.vbucket.whole_seqno == 0
    rig.push(end(6))
    assert rig.vbucket.whole_seqno == 1


def test_a_master_that_follows_checkpoints_is_always_inside_of_one(rig: PushRig) -> None:
    """It comes back in the middle, and had the start acknowledged on its last connection."""
    rig.push(opaque(2), mutation(b"a"))
    assert rig.vbucket.receiving == SnapshotRange(0, 2)
    rig.push(end(12))
    assert rig.vbucket.receiving is None


def test_an_end_without_a_start_does_not_end_a_backfill(rig: PushRig) -> None:
    rig.push(opaque(2), opaque(1), mutation(b"a"), end(3))
    assert rig.vbucket.whole_seqno == 0
    assert rig.pushes.last_closed(rig.vbucket) == 0
    rig.push(opaque(8))
    assert rig.vbucket.whole_seqno == 1


def test_a_higher_checkpoint_ends_the_one_before(rig: PushRig) -> None:
    rig.push(opaque(2), start(7), mutation(b"a"), start(8), mutation(b"b"))
    assert rig.vbucket.receiving == SnapshotRange(1, 3)
    assert rig.pushes.last_closed(rig.vbucket) == 7


def test_the_end_of_a_backfill_within_a_checkpoint_is_no_boundary(rig: PushRig) -> None:
    rig.push(opaque(2), opaque(1), mutation(b"a"), start(1), mutation(b"b"), opaque(8))
    assert rig.vbucket.receiving == SnapshotRange(1, 3)


def test_checkpoints_count_without_opaque_2(rig: PushRig) -> None:
    rig.push(start(1), mutation(b"a"))
    assert rig.vbucket.receiving == SnapshotRange(0, 2)
    rig.push(end(1), mutation(b"b"))
    assert rig.vbucket.receiving is None


def test_without_checkpoints_every_version_is_passed_on_at_once(rig: PushRig) -> None:
    rig.push(mutation(b"first"))
    peer = follow(rig)
    frames = peer.stream()
    rig.push(mutation(b"a", flags=0x05))
    frames += peer.drain()
    rig.push(delete(b"a"), mutation(b"b"))
    frames += peer.drain()
    assert keys(frames) == [b"first", b"a", b"a", b"b"]
    check_stream(frames)


def test_vbuckets_have_their_own_boundaries(rig: PushRig) -> None:
    rig.push(opaque(2), start(1, 0), start(9, 1), mutation(b"a"), mutation(b"a", vbucket=1))
    rig.push(end(9, 1))
    assert rig.vbucket.whole_seqno == 0
    assert rig.bucket.vbuckets[1].whole_seqno == 1


def test_a_pending_vbucket_receives_snapshots_likewise() -> None:
    rig = PushRig(PENDING)
    rig.push(opaque(2), opaque(1), mutation(b"a"))
    assert rig.vbucket.receiving == SnapshotRange(0, 2)
    rig.push(opaque(8))
    assert rig.vbucket.receiving is None


def test_in_an_active_vbucket_nothing_is_held_back() -> None:
    rig = PushRig()
    peer = follow(rig)
    frames = peer.stream()
    rig.push(opaque(2), start(1), mutation(b"a"))
    frames += peer.drain()
    assert keys(frames) == [b"a"]
    assert not ended(frames)


# --- histories ------------------------------------------------------------------------------------


def test_opaque_1_ends_streams_and_sends_their_peers_back_to_0(rig: PushRig) -> None:
    rig.push(mutation(b"a"))
    peer = follow(rig)
    assert keys(peer.stream()) == [b"a"]
    uuid = upr.uuid_of(rig.rig)
    rig.push(opaque(2), opaque(1))
    assert ended(peer.drain())
    answer = peer.say(upr.stream_request(0, 1, uuid=uuid))[0]
    assert (answer.status, answer.value) == (upr.ROLLBACK, bytes(8))


def test_the_first_version_for_a_replica_begins_a_branch_of_its_own(rig: PushRig) -> None:
    """Its seqnos must not be mistaken for those of the node that it came from."""
    rig.push(mutation(b"a"))
    log = rig.vbucket.failover_log
    rig.push(mutation(b"b"))
    rig.reconnect()
    rig.push(mutation(b"c"))
    assert rig.vbucket.failover_log == log, "one is enough"
    rig.bucket.set_state(0, ACTIVE)
    rig.bucket.set_state(0, REPLICA)
    promoted = rig.vbucket.failover_log
    rig.push(mutation(b"d"))
    assert rig.vbucket.failover_log[1:] == promoted
    assert rig.vbucket.failover_log[0].seqno == 3


def test_what_a_crash_took_away_is_not_numbered_again_in_the_same_history(rig: PushRig) -> None:
    rig.push(mutation(b"a"), mutation(b"b"))
    rig.rig.flush()
    rig.push(mutation(b"lost"))
    peer = follow(rig)
    assert seqnos(peer.stream()) == [1, 2, 3]
    uuid = upr.uuid_of(rig.rig)
    rig.crash()
    rig.push(mutation(b"other"))
    assert rig.vbucket.high_seqno == 3
    again = follow(rig)
    answer = again.say(upr.stream_request(0, 3, uuid=uuid))[0]
    assert (answer.status, int.from_bytes(answer.value, "big")) == (upr.ROLLBACK, 2)
    frames = again.stream(0, 2, uuid=uuid)
    assert keys(frames) == [b"other"]


def test_a_restart_in_mid_snapshot_shows_no_half(rig: PushRig) -> None:
    rig.push(opaque(2), start(1), mutation(b"a"), end(1), start(2), mutation(b"b"))
    rig.rig.flush()
    rig.crash()
    assert rig.vbucket.receiving == SnapshotRange(1, 3)
    peer = follow(rig)
    assert peer.stream() == []
    rig.push(opaque(2), mutation(b"c"))
    assert ended(peer.drain()), "a new branch, where the last whole state was"
    assert rig.vbucket.failover_log[0].seqno == 1
    assert peer.stream() == []
    rig.push(end(2))
    frames = peer.drain()
    assert keys(frames) == [b"a", b"b", b"c"]
    assert [each[1] for each in marked(frames)] == [3]


def test_a_boundary_is_on_disk_even_if_no_version_follows(rig: PushRig) -> None:
    rig.push(opaque(2), start(1), mutation(b"a"))
    rig.rig.flush()
    rig.push(end(1))
    rig.rig.flush()
    rig.crash()
    assert rig.vbucket.receiving is None
    assert keys(follow(rig).stream()) == [b"a"]


# --- a master that is gone ------------------------------------------------------------------------


def half(rig: PushRig) -> Peer:
    """A follower at seqno 1; of the next checkpoint the master has sent a part, and is gone."""
    rig.push(opaque(2), opaque(1), mutation(b"a"), opaque(8))
    peer = follow(rig)
    assert keys(peer.stream()) == [b"a"]
    rig.push(start(4), mutation(b"b"))
    rig.lose()
    assert peer.drain() == []
    return peer


def test_a_master_that_comes_back_completes_its_checkpoint(rig: PushRig) -> None:
    peer = half(rig)
    rig.connect()
    rig.push(opaque(0), opaque(2), mutation(b"b"), mutation(b"c"))
    assert peer.drain() == []
    rig.push(end(4))
    frames = peer.drain()
    assert keys(frames) == [b"b", b"c"]
    assert not ended(frames)
    assert check_stream(frames, 1) == rig.vbucket.high_seqno


def test_a_master_may_send_the_whole_checkpoint_once_more(rig: PushRig) -> None:
    peer = half(rig)
    rig.connect()
    rig.push(opaque(2), start(4))
    assert rig.vbucket.whole_seqno == 1
    rig.push(mutation(b"b"), end(4))
    assert keys(peer.drain()) == [b"b"]


def test_a_master_without_checkpoints_completes_nothing(rig: PushRig) -> None:
    peer = half(rig)
    rig.connect()
    rig.push(mutation(b"c"))
    assert peer.drain() == []
    assert rig.vbucket.receiving == SnapshotRange(1, 4)


def test_a_master_that_begins_anew_ends_the_waiting(rig: PushRig) -> None:
    peer = half(rig)
    rig.connect()
    rig.push(opaque(2), opaque(1), mutation(b"z"), opaque(8))
    assert ended(peer.drain())
    assert keys(peer.stream()) == [b"z"]


def test_a_promotion_ends_the_waiting(rig: PushRig) -> None:
    """The half becomes part of the active's own history, which branches where all was whole."""
    peer = half(rig)
    uuid = upr.uuid_of(rig.rig)
    rig.bucket.set_state(0, ACTIVE)
    assert ended(peer.drain())
    assert rig.vbucket.failover_log[0].seqno == 1
    frames = peer.stream(0, 1, uuid=uuid)
    assert keys(frames) == [b"b"]
    assert check_stream(frames, 1) == 2


def test_a_promotion_by_the_master_on_another_connection_makes_it_whole(rig: PushRig) -> None:
    half(rig)
    rig.connect()
    rig.push(opaque(0), opaque(2), vbucket_set(ACTIVE))
    assert rig.vbucket.failover_log[0] == FailoverEntry(upr.uuid_of(rig.rig), 2)


def test_a_flush_in_mid_checkpoint_leaves_nothing_half(rig: PushRig) -> None:
    peer = half(rig)
    rig.connect()
    rig.push(opaque(2), message(0x43))
    assert ended(peer.drain())
    rig.push(mutation(b"x"), end(4))
    assert keys(peer.stream()) == [b"x"]


# --- UPR beside it --------------------------------------------------------------------------------


def test_what_a_consumer_connection_fills_is_not_filled_by_a_master(rig: PushRig) -> None:
    manager = Peer.open(rig.rig, b"spliced", 0)
    manager.say(upr.frame(upr.ADD_STREAM, extras=bytes(4)))
    for frame in (mutation(b"a"), opaque(1), vbucket_set(ACTIVE), start(1), end(1)):
        assert rig.refused(frame) == NOT_MY_VBUCKET
    rig.push(opaque(8), mutation(b"a", vbucket=1))
    manager.lose()
    rig.push(mutation(b"a"))


def test_what_follows_another_node_is_not_filled_by_a_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    rig = PushRig()
    rig.rig = world.rig
    rig.connect()
    world.replication.follow(A, [0], demote=False, done=lambda _: None)
    for frame in (mutation(b"a"), opaque(1), vbucket_set(ACTIVE), start(1), end(1)):
        assert rig.refused(frame) == NOT_MY_VBUCKET
    apply(rig.vbucket, Item(b"x", b"", 0, 0, 1, 1, 1), SnapshotRange(0, 5))
    rig.push(opaque(8))
    assert rig.vbucket.receiving == SnapshotRange(0, 5), "it is no snapshot of the master's"
    world.replication.stop([0], lambda _: None)
    world.replication.take_over(A, [1], lambda *_: None)
    assert rig.refused(mutation(b"a", vbucket=1)) == NOT_MY_VBUCKET
    rig.push(mutation(b"a"))


def test_an_external_consumer_may_ask_before_anything_was_pushed(rig: PushRig) -> None:
    """The branch of the first version costs it one reconnection and no data."""
    peer = follow(rig)
    assert peer.stream() == []
    rig.push(mutation(b"a"))
    assert ended(peer.drain())
    assert keys(peer.stream()) == [b"a"]


# --- checkpoints that are whole -------------------------------------------------------------------


def test_the_last_whole_checkpoint_is_known_until_something_else_happens(rig: PushRig) -> None:
    last_closed = rig.pushes.last_closed
    assert last_closed(rig.vbucket) == 0
    rig.push(opaque(2), mutation(b"a"), start(4), end(4), start(5), mutation(b"b"))
    assert last_closed(rig.vbucket) == 4
    rig.reconnect()
    assert last_closed(rig.vbucket) == 4
    rig.bucket.set_state(0, ACTIVE)
    assert last_closed(rig.vbucket) == 0
    rig.push(opaque(1, 1), start(3, 1), mutation(b"x", vbucket=1), end(3, 1))
    assert last_closed(rig.bucket.vbuckets[1]) == 3
    rig.push(opaque(1, 1))
    assert last_closed(rig.bucket.vbuckets[1]) == 0
