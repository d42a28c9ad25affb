"""What a node follows: who becomes a replica of whom, for how long, and what is kept of it."""

from __future__ import annotations

import json

import pytest

from tests.upr.replication_rig import A, B, World
from uprmc.errors import (
    CommandError,
    InvalidArguments,
    NotMyVBucket,
    RangeExceeded,
    TemporaryFailure,
)
from uprmc.model import SnapshotRange, VBucketState
from uprmc.upr import replication

ACTIVE, REPLICA, PENDING, DEAD = VBucketState


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def document(world: World) -> object:
    stored = world.rig.store.local(replication.FOLLOWED)
    return stored and json.loads(stored)


# --- following ----------------------------------------------------------------------------------


def test_a_fresh_node_follows_with_all_its_vbuckets_and_writes_it_down(world: World) -> None:
    assert world.follow() == [True]
    assert world.states() == [REPLICA] * 4
    assert world.followed() == {A: [0, 1, 2, 3]}
    assert document(world) == {"version": 1, "sources": {A: [[0, 3]]}}


def test_absent_vbuckets_are_made(world: World) -> None:
    world.bucket.set_state(2, DEAD)
    world.bucket.remove(2, lambda _: None)
    world.follow(A, [2])
    assert world.states() == [ACTIVE, ACTIVE, REPLICA, ACTIVE]


@pytest.mark.parametrize("state", [REPLICA, PENDING, DEAD])
def test_what_is_not_active_becomes_a_replica_whatever_it_holds(
    world: World, state: VBucketState
) -> None:
    world.write(1)
    world.bucket.set_state(1, state)
    world.follow(A, [1])
    assert world.states()[1] is REPLICA
    assert world.bucket.vbuckets[1].high_seqno == 1


def test_active_vbuckets_with_changes_are_not_given_up_unless_it_is_said(world: World) -> None:
    world.write(1)
    world.write(2)
    with pytest.raises(InvalidArguments, match=r"vBuckets 1-2: active here.*--demote"):
        world.follow()
    assert world.states() == [ACTIVE] * 4
    assert world.followed() == {}
    assert world.calls == []
    assert world.follow(demote=True) == [True]
    assert world.states() == [REPLICA] * 4
    assert world.bucket.vbuckets[1].high_seqno == 1


def test_the_waiter_is_told_when_it_is_on_disk_and_not_before(world: World) -> None:
    told: list[bool] = []
    world.replication.follow(A, [0], demote=False, done=told.append)
    assert (told, document(world)) == ([], None)
    world.rig.fail_flush()
    assert told == [False]
    world.rig.flush()
    assert document(world) == {"version": 1, "sources": {A: [[0, 0]]}}


def test_another_source_takes_the_place_of_the_first(world: World) -> None:
    world.follow(A, [0, 1])
    link = world.calls[0].opens()
    world.follow(B, [1])
    assert world.followed() == {A: [0], B: [1]}
    assert link.left == [[1]]
    assert document(world) == {"version": 1, "sources": {A: [[0, 0]], B: [[1, 1]]}}


def test_a_source_that_nobody_follows_any_more_is_hung_up_on(world: World) -> None:
    world.follow(A, [0, 1])
    world.follow(B, [0, 1])
    assert world.followed() == {B: [0, 1]}
    assert [call.abandoned for call in world.calls] == [True, False]


def test_following_again_what_streams_changes_nothing(world: World) -> None:
    world.follow(A, [0])
    link = world.calls[0].opens()
    link.begins(0)
    world.follow(A, [0])
    world.wait(1)
    assert (len(world.calls), link.asked, link.left) == (1, [[0]], [])


def test_an_operator_who_follows_again_has_a_refused_stream_asked_for_again(world: World) -> None:
    world.follow(A, [0])
    link = world.calls[0].opens()
    link.ends(0, "no", retry=False)
    world.wait(100)
    assert (world.standing(0), link.asked) == ("refused", [[0]])
    world.follow(A, [0])
    assert (world.standing(0), link.asked) == ("asked", [[0], [0]])


@pytest.mark.parametrize(
    "place",
    [
        *("", "host", ":11210", "host:", "host:0", "host:65536", "host:1e3", "a b:1", "a:1:2"),
        *("[::1]", "::1:11210", "http://a:80", "host:123456", "x" * 300 + ":1"),
    ],
)
def test_what_is_no_place_is_refused(world: World, place: str) -> None:
    with pytest.raises(InvalidArguments, match="use HOST:PORT"):
        world.follow(place)
    with pytest.raises(InvalidArguments, match="use HOST:PORT"):
        world.take_over(place)
    assert world.states() == [ACTIVE] * 4


@pytest.mark.parametrize("place", ["a:1", "10.0.0.1:65535", "[::1]:11210", "[fe80::1%eth0]:1"])
def test_a_host_and_a_port_are_a_place(world: World, place: str) -> None:
    world.follow(place)
    assert world.calls[0].place == place


def test_a_node_does_not_follow_itself(world: World) -> None:
    world.replication.is_own = lambda place: place == A
    with pytest.raises(InvalidArguments, match="is this node itself"):
        world.follow(A)
    assert world.states() == [ACTIVE] * 4


def test_a_vbucket_that_there_cannot_be_is_refused_with_the_highest(world: World) -> None:
    for command in (
        lambda: world.follow(A, [3, 4]),
        lambda: world.stop([4]),
        lambda: world.take_over(A, [4]),
        lambda: world.fail_over(4),
    ):
        with pytest.raises(RangeExceeded, match="vBucket 4: this node's highest is 3"):
            command()
    assert world.states() == [ACTIVE] * 4


def test_during_warm_up_everything_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, warm=False)
    for command in (world.follow, world.stop, world.take_over, lambda: world.fail_over(0)):
        with pytest.raises(TemporaryFailure, match="warming up"):
            command()


def test_there_are_as_many_sources_as_the_setting_says_and_not_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, upr__sources=2)
    world.follow(A, [0])
    world.follow(B, [1, 2])
    with pytest.raises(TemporaryFailure, match=r"upr\.sources"):
        world.follow("c:1", [3])
    assert world.states()[3] is ACTIVE
    with pytest.raises(TemporaryFailure, match=r"upr\.sources"):
        world.follow("c:1", [2])
    world.follow("c:1", [0])
    assert world.followed() == {B: [1, 2], "c:1": [0]}


# --- ends of it ---------------------------------------------------------------------------------


def test_stopping_leaves_replicas_that_follow_nobody(world: World) -> None:
    world.follow()
    link = world.calls[0].opens()
    assert world.stop([1, 2]) == [True]
    assert world.followed() == {A: [0, 3]}
    assert link.left == [[1], [2]]
    assert world.states() == [REPLICA] * 4
    assert world.stop() == [True]
    assert (world.followed(), world.calls[0].abandoned, document(world)) == ({}, True, None)


def test_stopping_what_follows_nobody_is_harmless(world: World) -> None:
    assert world.stop([0]) == [True]
    assert world.states() == [ACTIVE] * 4


@pytest.mark.parametrize("state", [ACTIVE, DEAD])
def test_who_makes_it_active_or_dead_by_another_command_ends_it_for_good(
    world: World, state: VBucketState
) -> None:
    world.follow(A, [0, 1])
    link = world.calls[0].opens()
    world.bucket.set_state(0, state)
    assert world.followed() == {A: [1]}
    assert link.left == [[0]]
    world.rig.flush()
    assert document(world) == {"version": 1, "sources": {A: [[1, 1]]}}
    world.bucket.set_state(0, REPLICA)
    world.wait(1)
    assert world.followed() == {A: [1]}


def test_the_new_state_and_the_end_of_following_are_in_one_commit(world: World) -> None:
    world.follow(A, [0])
    world.bucket.set_state(0, ACTIVE)
    flush = world.bucket.flusher.begin()
    assert flush is not None
    assert flush.batch.local == {replication.FOLLOWED: None}
    assert [change.vbucket for change in flush.batch.changes] == [0]


def test_a_removed_vbucket_is_followed_no_more_even_if_it_is_made_again(world: World) -> None:
    world.follow(A, [0])
    world.bucket.set_state(0, DEAD)
    world.bucket.remove(0, lambda _: None)
    world.bucket.set_state(0, REPLICA)
    assert world.followed() == {}


def test_a_pending_vbucket_is_followed_on(world: World) -> None:
    world.follow(A, [0])
    world.bucket.set_state(0, PENDING)
    assert world.followed() == {A: [0]}


def test_a_flush_of_everything_ends_nothing(world: World) -> None:
    world.follow(A, [0, 1])
    world.bucket.flush(0, lambda _: None)
    world.bucket.flush(0, lambda _: None)
    assert world.followed() == {A: [0, 1]}
    world.bucket.set_state(0, ACTIVE)
    assert world.followed() == {A: [1]}


def test_nothing_of_it_stays_at_a_vbucket(world: World) -> None:
    watchers = world.bucket.vbuckets[0].watchers
    world.follow(A, [0])
    world.stop([0])
    assert world.bucket.vbuckets[0].watchers == watchers == []


# --- restarts -----------------------------------------------------------------------------------


def test_what_was_followed_is_followed_after_a_restart(world: World) -> None:
    world.follow(A, [0, 1])
    world.follow(B, [2])
    world.replication.close()
    world.restart()
    world.replication.resume()
    assert world.followed() == {A: [0, 1], B: [2]}
    assert [call.place for call in world.calls[2:]] == [A, B]


def test_closing_hangs_up_and_forgets_nothing(world: World) -> None:
    world.follow(A, [0])
    call = world.calls[0]
    call.opens()
    told = world.take_over(B, [1])
    world.replication.close()
    assert [each.abandoned for each in world.calls] == [True, True]
    world.rig.flush()
    assert told
    world.wait(60)
    assert len(world.calls) == 2
    assert document(world) == {"version": 1, "sources": {A: [[0, 0]]}}


def test_a_vbucket_that_is_no_replica_after_all_is_left_alone(world: World) -> None:
    world.follow(A, [0, 1, 2])
    world.replication.close()
    for number, state in enumerate((ACTIVE, DEAD)):
        world.bucket.set_state(number, state)
    world.restart()
    world.replication.resume()
    assert world.followed() == {A: [2]}
    world.rig.flush()
    assert document(world) == {"version": 1, "sources": {A: [[2, 2]]}}


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (b"", "Expecting value"),
        (b"\xff", "codec"),
        (b"[]", "form"),
        (b"{}", "form"),
        (b"[" * 100_000, "form|Expecting"),
        (b'{"version": 2, "sources": {}}', "version 2 and this uprmc knows 1"),
        (b'{"version": 1, "sources": [1]}', "form"),
        (b'{"version": 1, "sources": {"a:1": [[1]]}}', "form|unpack"),
        (b'{"version": 1, "sources": {"a:1": [[1, 0]]}}', "form"),
        (b'{"version": 1, "sources": {"a:1": [[0, 65536]]}}', "form"),
        (b'{"version": 1, "sources": {"a:1": [["0", "1"]]}}', "form"),
    ],
)
def test_a_document_that_makes_no_sense_is_told_and_kept(
    world: World, stored: bytes, why: str
) -> None:
    told: list[bool] = []
    world.bucket.flusher.write_local(replication.FOLLOWED, stored, told.append)
    world.rig.flush()
    world.replication.resume()
    assert world.followed() == {}
    ((place, trouble),) = world.troubles
    assert place == ""
    assert "nothing is followed" in trouble
    with pytest.raises(ValueError, match=why):
        replication.decode_followed(stored)
    assert world.rig.store.local(replication.FOLLOWED) == stored


# --- failover -----------------------------------------------------------------------------------


@pytest.mark.acceptance("P17")
def test_each_failover_of_a_replica_is_one_entry_more_and_is_answered_from_disk(
    world: World,
) -> None:
    world.follow(A, [0, 1])
    before = [world.bucket.vbuckets[number].failover_log for number in (0, 1)]
    told = []
    world.replication.fail_over([0, 1], lambda *said: told.append(said))
    assert told == []
    world.rig.flush()
    ((branches, durable),) = told
    assert durable
    logs = [world.bucket.vbuckets[number].failover_log for number in (0, 1)]
    assert [log[1:] for log in logs] == before
    assert [(branch.uuid, branch.seqno) for branch in branches] == [log[0] for log in logs]
    assert (world.states()[:2], world.followed()) == ([ACTIVE, ACTIVE], {})
    assert document(world) is None


def test_a_failover_that_is_not_on_disk_yet_says_so(world: World) -> None:
    world.follow(A, [0])
    told = []
    world.replication.fail_over([0], lambda *said: told.append(said))
    world.rig.fail_flush()
    ((branches, durable),) = told
    assert not durable
    assert branches[0].uuid == world.bucket.vbuckets[0].failover_log[0].uuid


@pytest.mark.acceptance("D53")
def test_a_failover_in_the_middle_of_a_snapshot_branches_where_the_last_complete_one_ended(
    world: World,
) -> None:
    world.follow(A, [0])
    vbucket = world.bucket.vbuckets[0]
    vbucket.high_seqno, vbucket.receiving = 110, SnapshotRange(90, 120)
    ((branches, _),) = world.fail_over(0)
    assert [branch.seqno for branch in branches] == [90]
    assert vbucket.failover_log[0].seqno == 90


def test_an_active_vbucket_is_not_failed_over_twice(world: World) -> None:
    log = world.bucket.vbuckets[0].failover_log
    ((branches, _),) = world.fail_over(0)
    assert world.bucket.vbuckets[0].failover_log == log
    assert branches[0].uuid == log[0].uuid


def test_what_is_not_here_cannot_be_promoted(world: World) -> None:
    world.follow(A, [0])
    world.bucket.set_state(1, DEAD)
    world.bucket.remove(1, lambda _: None)
    with pytest.raises(NotMyVBucket, match="vBucket 1: not on this node"):
        world.fail_over(0, 1)
    assert (world.states()[0], world.followed()) == (REPLICA, {A: [0]})


def test_refusals_are_commands_errors_with_one_line(world: World) -> None:
    world.write(0)
    for command in (world.follow, lambda: world.take_over(A, [0]), lambda: world.fail_over(9)):
        with pytest.raises(CommandError) as refused:
            command()
        assert len(str(refused.value).splitlines()) == 1
