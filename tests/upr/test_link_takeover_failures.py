"""Takeovers that go wrong: nobody is left waiting, and never are two active."""

from __future__ import annotations

import pytest

from tests.upr.link_rig import Pair, Script, failover_log, replica_rig
from tests.upr.peer import SET_STATE, frame, marker, mutation, upr_rig, write
from tests.upr.replication_rig import A, World
from uprmc.errors import TemporaryFailure
from uprmc.model import VBucketState
from uprmc.protocol.replication import Outcome

ACTIVE, REPLICA, PENDING, DEAD = VBucketState
TAKEN, REFUSED, INTERRUPTED = Outcome


@pytest.mark.acceptance("D52")
def test_a_replica_hands_nothing_over() -> None:
    source, target = upr_rig(), replica_rig()
    write(source, 0, b"a", b"b")
    source.bucket.set_state(0, REPLICA)
    pair = Pair(source, target)
    pair.run()
    pair.link.take_over([0])
    assert pair.run() == [("ended", 0, "the source refuses: Not my vbucket (0007)", True)]
    assert source.bucket.vbuckets[0].state is REPLICA
    assert target.bucket.vbuckets[0].state is REPLICA


def test_what_a_failed_link_was_about_to_take_is_left_when_its_owner_leaves_it() -> None:
    target = replica_rig()
    script = Script(target)
    opaque = script.follow(log=failover_log((0xA, 0)), takeover=True)
    script.say(marker(0, opaque, 1, 1), mutation(0, opaque, 1, b"a"))
    script.say(frame(SET_STATE, extras=bytes([ACTIVE]), opaque=opaque))
    script.say(b"nonsense" * 4)
    assert script.link.closing
    script.link.leave([0])
    target.flush()
    assert target.bucket.vbuckets[0].state is REPLICA


def test_a_failed_link_is_left_by_a_takeover_that_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    told = world.take_over(A, [0])
    taking = world.calls[0].opens()
    taking.begins(0)
    taking.open, taking.closing = False, True
    world.replication.handovers[0].give_up([0], "for a test")
    assert taking.left == [[0]]
    world.rig.flush()
    assert told == [({0: INTERRUPTED}, "vBucket 0: for a test")]


# --- nothing gets on ------------------------------------------------------------------------------


def test_a_takeover_that_stands_still_is_given_up_after_a_minute_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    told = world.take_over(A, [0, 1])
    link = world.calls[0].opens()
    link.begins(0)
    link.steps += 1
    world.wait(1)
    link.steps += 1
    world.wait(59.8)
    assert told == []
    world.wait(0.5)
    world.rig.fail_flush()  # nothing was taken, so the disk is asked once
    ((outcomes, why),) = told
    assert outcomes == {0: INTERRUPTED, 1: REFUSED}
    assert "no progress for 60 s: does the source persist" in why
    assert link.left == [[0, 1]]
    assert world.calls[0].abandoned
    assert world.states()[:2] == [REPLICA, REPLICA]


def test_the_line_says_when_it_is_this_node_that_does_not_persist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    told = world.take_over(A, [0])
    world.calls[0].opens().begins(0)
    world.bucket.flusher.pause()
    world.wait(61)
    assert told[0][1].endswith("persistence is stopped here, start it")


def test_what_was_taken_and_is_not_on_disk_has_its_verdict_when_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    told = world.take_over(A, [0, 1])
    link = world.calls[0].opens()
    link.begins(0, 1)
    world.bucket.flusher.pause()
    world.bucket.set_state(0, ACTIVE, takeover=True)
    world.wait(61)
    assert (told, world.replication.handovers) == ([], [])
    world.rig.flush()
    assert told[0][0] == {0: TAKEN, 1: INTERRUPTED}


def test_without_persistence_no_takeover_begins_here(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.bucket.flusher.pause()
    with pytest.raises(TemporaryFailure, match="persistence is stopped on this node: start it"):
        world.take_over(A, [0])
    assert (world.calls, world.states()[0]) == ([], ACTIVE)


def test_without_persistence_at_the_source_nothing_is_given_away() -> None:
    source, target = upr_rig(), replica_rig()
    write(source, 0, b"a")
    source.bucket.flusher.pause()
    pair = Pair(source, target)
    pair.run()
    pair.link.take_over([0])
    assert pair.run() == [("ended", 0, "the source refuses: Temporary failure (0086)", True)]
    assert source.bucket.vbuckets[0].state is ACTIVE


def test_keep_alives_and_seqnos_are_no_sign_that_anything_gets_on() -> None:
    source, target = upr_rig(), replica_rig()
    write(source, 0, b"a")
    pair = Pair(source, target)
    pair.run()
    pair.link.take_over([0])
    pair.auto_flush = False
    pair.run()
    steps = pair.link.steps
    for _ in range(10):
        pair.tick(1.0)
        pair.run()
    assert pair.link.source_seqnos[0] == 1
    assert pair.link.steps == steps
    pair.auto_flush = True
    pair.run()
    assert pair.link.steps > steps


def test_a_vbucket_that_is_made_anew_during_a_takeover_is_followed_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.follow(A, [0])
    world.calls[0].opens().begins(0)
    world.take_over(A, [0, 1])
    world.bucket.set_state(0, DEAD)
    world.bucket.remove(0, lambda _: None)
    anew = world.bucket.set_state(0, REPLICA)
    world.calls[1].opens().closes()
    assert world.followed() == {A: [0]}
    world.bucket.set_state(0, ACTIVE)
    assert world.followed() == {}
    assert anew.watchers == []
