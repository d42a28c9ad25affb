"""Taking over: one verdict for each vBucket, and what is followed before and after."""

from __future__ import annotations

import json

import pytest

from tests.upr.replication_rig import A, B, World
from uprmc.errors import InvalidArguments, TemporaryFailure
from uprmc.model import VBucketState
from uprmc.protocol import control
from uprmc.protocol.header import ResponseFrame
from uprmc.protocol.replication import Outcome

ACTIVE, REPLICA, PENDING, DEAD = VBucketState
TAKEN, REFUSED, INTERRUPTED = Outcome


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def take(world: World, number: int) -> None:
    """Do what a link does with the last word of the source."""
    world.bucket.set_state(number, ACTIVE, takeover=True)


def test_what_is_taken_is_told_and_followed_no_more(world: World) -> None:
    world.follow(A, [0, 1, 2])
    regular = world.calls[0].opens()
    regular.begins(0, 1, 2)
    told = world.take_over(A, [0, 1])
    assert regular.left == [[0], [1]]
    assert [world.standing(number) for number in (0, 1, 2)] == ["handover", "handover", "streaming"]
    link = world.calls[1].opens()
    assert link.taking == [[0, 1]]
    for number in (0, 1):
        link.begins(number)
        take(world, number)
        link.owner.taken(number)
    world.rig.flush()
    assert told == [({0: TAKEN, 1: TAKEN}, "")]
    assert world.followed() == {A: [2]}
    assert regular.left == [[0], [1]]
    assert world.changes == [(A, "vBuckets 0-2 follow it"), (A, "vBuckets 0-1 taken over from it")]


@pytest.mark.parametrize("times", [0.5, 1, 2])
def test_nothing_is_taken_from_a_source_with_another_number_of_vbuckets(
    world: World, times: float
) -> None:
    """Its keys would be looked for in other vBuckets here."""
    told = world.take_over(A, [0, 1])
    link = world.calls[0].connects()
    link.granted = {control.VERSIONS}
    link.opens()
    assert link.taking == [], "not before it is known"
    count = int(world.bucket.settings.engine.vbuckets * times)
    document = {"vBucketServerMap": {"vBucketMap": [[0]] * count, "serverList": ["a:1"]}}
    ((opcode, answered),) = link.questions
    answered(ResponseFrame(opcode, value=json.dumps(document).encode()))
    if times == 1:
        assert link.taking == [[0, 1]]
    else:
        assert link.taking == []
        world.rig.flush()
        ((outcomes, why),) = told
        assert set(outcomes.values()) == {REFUSED}
        assert f"it has {count} vBuckets" in why


def test_the_line_of_a_takeover_ends_with_it(world: World) -> None:
    world.take_over(A, [0, 1])
    link = world.calls[0].opens()
    world.wait(0.2)
    assert len(link.ticks) >= 2
    link.begins(0, 1)
    take(world, 0)
    link.owner.taken(0)
    assert not world.calls[0].abandoned
    link.ends(1)
    assert world.calls[0].abandoned
    assert world.replication.handovers == []


def test_a_source_that_hangs_up_is_not_hung_up_on(world: World) -> None:
    world.take_over(A, [0])
    world.calls[0].opens().closes()
    assert world.replication.handovers == []
    assert not world.calls[0].abandoned


def test_absent_and_dead_and_empty_vbuckets_become_replicas_first(world: World) -> None:
    world.bucket.set_state(1, DEAD)
    world.bucket.set_state(2, DEAD)
    world.bucket.remove(2, lambda _: None)
    world.take_over(A, [0, 1, 2])
    assert world.states() == [REPLICA, REPLICA, REPLICA, ACTIVE]


def test_what_is_active_here_with_changes_is_nothing_to_take(world: World) -> None:
    world.write(1)
    with pytest.raises(InvalidArguments, match="vBucket 1: active here"):
        world.take_over(A, [0, 1])
    assert world.states() == [ACTIVE] * 4
    assert world.calls == []


def test_a_stream_that_was_refused_has_changed_nothing(world: World) -> None:
    world.follow(A, [0, 1])
    world.calls[0].opens().begins(0, 1)
    told = world.take_over(A, [0, 1])
    link = world.calls[1].opens()
    link.ends(0, "not its vBucket")
    assert told == []
    link.begins(1)
    take(world, 1)
    link.owner.taken(1)
    world.rig.flush()
    assert told == [({0: REFUSED, 1: TAKEN}, "vBucket 0: not its vBucket")]
    assert world.replication.last_handover_error == f"{A}: vBucket 0: not its vBucket"
    assert (world.states()[0], world.followed()) == (REPLICA, {A: [0]})


def test_what_was_begun_and_not_taken_is_interrupted_and_a_replica_again(world: World) -> None:
    world.follow(A, [0])
    regular = world.calls[0].opens()
    told = world.take_over(A, [0])
    link = world.calls[1].opens()
    link.begins(0)
    world.bucket.set_state(0, PENDING)
    link.closes("connection lost")
    world.rig.flush()
    assert told == [({0: INTERRUPTED}, "vBucket 0: connection lost")]
    assert world.states()[0] is REPLICA
    world.wait(0.2)
    assert regular.asked == [[0], [0]]
    world.bucket.set_state(0, ACTIVE)
    assert world.followed() == {}


def test_what_is_active_here_when_the_line_breaks_was_taken(world: World) -> None:
    told = world.take_over(A, [0, 1])
    link = world.calls[0].opens()
    link.begins(0, 1)
    take(world, 0)
    link.closes()
    world.rig.flush()
    assert told[0][0] == {0: TAKEN, 1: INTERRUPTED}


def test_a_source_that_is_not_reached_refuses_all(world: World) -> None:
    told = world.take_over(A, [0, 1])
    world.calls[0].failed("connection refused")
    world.rig.flush()
    assert told == [({0: REFUSED, 1: REFUSED}, "vBucket 1: connection refused")]
    world.wait(60)
    assert len(world.calls) == 1


def test_a_source_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, upr__dial_timeout_s=3.0)
    told = world.take_over(A, [0])
    link = world.calls[0].connects()
    world.wait(3.2)
    world.rig.flush()
    ((outcomes, why),) = told
    assert outcomes == {0: REFUSED}
    assert why.startswith("vBucket 0: no answer for 3 s: ")
    assert world.calls[0].abandoned
    link.opens()
    assert link.taking == []


def test_once_it_has_begun_it_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, upr__dial_timeout_s=3.0)
    told = world.take_over(A, [0])
    link = world.calls[0].opens()
    link.begins(0)
    for _ in range(5):
        world.wait(59)
        link.steps += 1
    assert told == []


def test_meanwhile_other_commands_about_it_have_to_wait(world: World) -> None:
    world.take_over(A, [0, 1])
    for command in (
        lambda: world.follow(B, [1, 2]),
        lambda: world.stop([0]),
        lambda: world.take_over(B, [1]),
    ):
        with pytest.raises(TemporaryFailure, match=r"vBuckets? [01]: a takeover is going on"):
            command()
    world.follow(B, [2])
    assert world.followed() == {B: [2]}


def test_a_failover_does_not_wait_for_a_takeover(world: World) -> None:
    world.follow(A, [0, 1])
    world.calls[0].opens()
    told = world.take_over(A, [0, 1])
    link = world.calls[1].opens()
    link.begins(0, 1)
    ((branches, _),) = world.fail_over(0)
    assert [branch.vbucket for branch in branches] == [0]
    assert link.left == [[0]]
    assert (world.states()[0], told) == (ACTIVE, [])
    take(world, 1)
    link.owner.taken(1)
    world.rig.flush()
    assert told[0][0] == {0: INTERRUPTED, 1: TAKEN}
    assert world.states()[0] is ACTIVE
    assert world.followed() == {}


def test_who_makes_it_active_by_another_command_meanwhile_is_obeyed(world: World) -> None:
    world.follow(A, [0])
    world.calls[0].opens()
    told = world.take_over(A, [0])
    link = world.calls[1].opens()
    link.begins(0)
    world.bucket.set_state(0, ACTIVE)
    link.ends(0, "somebody else changed it")
    world.rig.flush()
    assert told[0][0] == {0: TAKEN}
    assert world.followed() == {}


def test_there_are_as_many_takeovers_as_sources_and_not_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, upr__sources=2)
    world.take_over(A, [0])
    world.take_over(A, [1])
    with pytest.raises(TemporaryFailure, match="2 takeovers are going on"):
        world.take_over(A, [2])
    world.calls[0].failed("gone")
    world.wait(0.2)
    world.take_over(A, [2])


def test_a_verdict_is_given_when_the_state_is_on_disk_however_long_that_takes(
    world: World,
) -> None:
    told = world.take_over(A, [0])
    link = world.calls[0].opens()
    link.begins(0)
    take(world, 0)
    link.closes()
    world.rig.fail_flush()
    assert told == []
    world.rig.flush()
    assert told[0][0] == {0: TAKEN}


def test_who_kills_it_meanwhile_is_obeyed(world: World) -> None:
    world.follow(A, [0])
    world.calls[0].opens()
    world.take_over(A, [0])
    link = world.calls[1].opens()
    link.begins(0)
    world.bucket.set_state(0, DEAD)
    link.ends(0, "somebody else changed it")
    assert (world.states()[0], world.followed()) == (DEAD, {})


def test_a_verdict_is_given_once(world: World) -> None:
    told = world.take_over(A, [0])
    link = world.calls[0].opens()
    owner = link.owner
    link.ends(0, "first")
    owner.ended(0, "second", True)
    owner.taken(0)
    link.closes()
    world.rig.flush()
    assert told == [({0: REFUSED}, "vBucket 0: first")]
