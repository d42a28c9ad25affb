"""A vBucket is handed over to this node: what was received is on disk before anything is promised.

Source: UPR reference 4.4; row D52.
"""

from __future__ import annotations

import struct

import pytest

from tests.contents import table_of
from tests.upr.link_rig import Pair, Script, failover_log, replica_rig
from tests.upr.peer import (
    ACK,
    ACTIVE,
    DEAD,
    MARKER,
    MEMORY,
    PENDING,
    REPLICA,
    SET_STATE,
    STREAM_END,
    Frame,
    Rig,
    fill,
    frame,
    marker,
    mutation,
    untouched,
    upr_rig,
    write,
)
from uprmc.model import FailoverEntry, VBucketState


@pytest.fixture
def target() -> Rig:
    return replica_rig()


def state_of(rig: Rig, number: int = 0) -> VBucketState:
    return rig.bucket.vbuckets[number].state


def set_state(opaque: int, state: VBucketState) -> bytes:
    return frame(SET_STATE, extras=bytes([state]), opaque=opaque)


def end(opaque: int, reason: int = 0) -> bytes:
    return frame(STREAM_END, extras=struct.pack(">I", reason), opaque=opaque)


def received(target: Rig) -> tuple[Script, int]:
    """A takeover whose first snapshot has come, unpersisted; and the stream's opaque."""
    script = Script(target)
    opaque = script.follow(log=failover_log((0xA, 0)), takeover=True)
    (answer,) = script.say(marker(0, opaque, 1, 1, MEMORY | ACK), mutation(0, opaque, 1, b"a"))
    assert (answer.is_reply, answer.opcode) == (True, MARKER)
    return script, opaque


def answers(frames: list[Frame]) -> list[tuple[int, int, int]]:
    return [(each.opcode, each.status, each.opaque) for each in frames if each.is_reply]


# --- two nodes ------------------------------------------------------------------------------------


@pytest.mark.acceptance("D52")
def test_a_vbucket_changes_hands_with_everything_and_the_same_history(target: Rig) -> None:
    source = upr_rig()
    fill(source, 0, 500)
    log = source.bucket.vbuckets[0].failover_log
    pair = Pair(source, target)
    pair.run()
    pair.link.take_over([0])
    assert pair.run() == [("began", 0), ("taken", 0)]
    assert (state_of(source), state_of(target)) == (DEAD, ACTIVE)
    assert target.bucket.vbuckets[0].failover_log == log
    assert target.bucket.vbuckets[0].high_seqno == 500
    assert table_of(target.bucket.vbuckets[0]) == table_of(source.bucket.vbuckets[0])
    view = target.store.view()
    header = view.header(0)
    view.close()
    assert header is not None
    assert (header.state, header.high_seqno) == (ACTIVE, 500)
    assert pair.link.streams == {}


def test_what_is_written_while_it_is_handed_over_comes_too(target: Rig) -> None:
    source = upr_rig()
    fill(source, 0, 200)
    pair = Pair(source, target, cut=100)
    pair.run()
    pair.link.take_over([0])
    written = 0
    while state_of(source) == ACTIVE:
        write(source, 0, b"meanwhile%d" % written)
        written += 1
        pair.turn()
    assert pair.run()[-1] == ("taken", 0)
    keys = set(table_of(target.bucket.vbuckets[0]))
    assert {b"meanwhile%d" % n for n in range(written)} <= keys
    assert target.bucket.vbuckets[0].high_seqno == source.bucket.vbuckets[0].high_seqno


def test_a_replica_that_is_nearly_level_is_kept(target: Rig) -> None:
    source = upr_rig()
    fill(source, 0, 100)
    pair = Pair(source, target)
    pair.run()
    pair.link.follow([0])
    pair.run()
    pair.link.leave([0])
    write(source, 0, b"more")
    pair.link.take_over([0])
    pair.run()
    assert state_of(target) == ACTIVE
    assert pair.link.items == 101


@pytest.mark.acceptance("D52")
@pytest.mark.parametrize("turns", range(1, 9))
def test_cut_at_any_moment_at_most_one_is_active_and_nothing_is_lost(
    target: Rig, turns: int
) -> None:
    source = upr_rig()
    fill(source, 0, 20)
    pair = Pair(source, target)
    pair.run()
    pair.link.take_over([0])
    for _ in range(turns):
        pair.turn()
    events = pair.lose()
    active = state_of(target) == ACTIVE
    assert (("taken", 0) in [*events, *pair.owner.take()]) is active
    assert not (active and state_of(source) == ACTIVE)
    holder = target if active else source
    assert len(table_of(holder.bucket.vbuckets[0])) == 20
    target.flush()
    untouched(target)


# --- persist before promise -----------------------------------------------------------------------


@pytest.mark.parametrize("state", [PENDING, ACTIVE])
def test_the_state_is_changed_and_answered_only_when_all_is_on_disk(
    target: Rig, state: VBucketState
) -> None:
    script, opaque = received(target)
    assert script.say(set_state(opaque, state)) == []
    assert state_of(target) == REPLICA, "what was received is not on disk"
    target.fail_flush()
    assert script.sent() == []
    assert state_of(target) == REPLICA
    flusher = target.bucket.flusher
    flush = flusher.begin()
    assert flush is not None
    flusher.commit(flush)
    flusher.finish(flush)
    assert state_of(target) == state
    target.fail_flush()
    assert script.sent() == [], "the state is not on disk"
    target.flush()
    assert answers(script.sent()) == [(SET_STATE, 0, opaque)]
    assert target.bucket.vbuckets[0].failover_log == (FailoverEntry(0xA, 0),)


def test_a_long_queue_is_on_disk_to_its_end(target: Rig) -> None:
    rig = replica_rig(flush__batch_items=64)
    script, opaque = received(rig)
    changes = [mutation(0, opaque, n, b"%d" % n) for n in range(2, 1_000)]
    script.say(marker(0, opaque, 2, 999, MEMORY | ACK), *changes)
    script.say(set_state(opaque, ACTIVE))
    flusher = rig.bucket.flusher
    while state_of(rig) == REPLICA:
        flush = flusher.begin()
        assert flush is not None
        flusher.commit(flush)
        flusher.finish(flush)
    assert rig.bucket.vbuckets[0].persisted_seqno == 999


def test_it_is_taken_when_the_source_has_ended_the_stream(target: Rig) -> None:
    script, opaque = received(target)
    script.say(set_state(opaque, ACTIVE))
    target.flush()
    script.sent()
    assert script.owner.take() == []
    script.say(end(opaque))
    assert script.owner.take() == [("taken", 0)]
    assert script.link.streams == {}
    script.link.connection_lost()
    assert [event[0] for event in script.owner.take()] == ["closed"], "it is told once"


def test_it_is_taken_though_the_connection_ends_before_the_last_word(target: Rig) -> None:
    script, opaque = received(target)
    script.say(set_state(opaque, ACTIVE))
    target.flush()
    script.link.connection_lost()
    assert script.owner.take() == [("taken", 0), ("closed", "the connection was lost")]


@pytest.mark.parametrize("how", ["lost", "ended", "left"])
def test_it_never_becomes_active_when_the_stream_is_gone_before_all_is_on_disk(
    target: Rig, how: str
) -> None:
    script, opaque = received(target)
    script.say(set_state(opaque, ACTIVE))
    if how == "lost":
        script.link.connection_lost()
    elif how == "ended":
        script.say(end(opaque, 2))
    else:
        script.link.leave([0])
    target.flush()
    target.flush()
    assert state_of(target) == REPLICA
    events = [event[0] for event in script.owner.take()]
    assert events == {"lost": ["closed"], "ended": ["ended"], "left": []}[how]
    assert answers(script.sent()) == []


def test_pending_is_followed_by_more(target: Rig) -> None:
    script, opaque = received(target)
    script.say(set_state(opaque, PENDING))
    target.flush()
    assert answers(script.sent()) == [(SET_STATE, 0, opaque)]
    more = [marker(0, opaque, 2, 2, MEMORY | ACK), mutation(0, opaque, 2, b"b")]
    assert answers(script.say(*more)) == [(MARKER, 0, opaque)]
    script.say(set_state(opaque, ACTIVE))
    target.flush()
    assert answers(script.sent()) == [(SET_STATE, 0, opaque)]
    assert sorted(table_of(target.bucket.vbuckets[0])) == [b"a", b"b"]


@pytest.mark.parametrize("answered", [False, True])
def test_nothing_more_is_taken_from_the_source_once_we_are_to_be_active(
    target: Rig, answered: bool
) -> None:
    script, opaque = received(target)
    script.say(set_state(opaque, ACTIVE))
    if answered:
        target.flush()
        write(target, 0, b"ours")
    script.say(marker(0, opaque, 2, 9), mutation(0, opaque, 9, b"theirs"))
    assert script.link.closing
    assert b"theirs" not in table_of(target.bucket.vbuckets[0])
    target.check()


def test_it_is_not_handed_over_in_mid_snapshot(target: Rig) -> None:
    script, opaque = received(target)
    script.say(marker(0, opaque, 2, 3, MEMORY | ACK), mutation(0, opaque, 2, b"b"))
    script.say(set_state(opaque, ACTIVE))
    assert "middle of a snapshot" in script.link.error
    target.flush()
    assert state_of(target) == REPLICA


def test_a_stream_that_is_only_followed_is_not_handed_over(target: Rig) -> None:
    script = Script(target)
    opaque = script.follow()
    script.say(set_state(opaque, ACTIVE))
    assert "was not requested" in script.link.error
    target.flush()
    assert state_of(target) == REPLICA


@pytest.mark.parametrize("number", [0, 5, 255])
def test_a_state_that_is_none_ends_the_link(target: Rig, number: int) -> None:
    script, opaque = received(target)
    script.say(frame(SET_STATE, extras=bytes([number]), opaque=opaque))
    assert script.link.closing
    target.flush()
    assert state_of(target) == REPLICA


def test_asked_twice_it_hangs_up(target: Rig) -> None:
    script, opaque = received(target)
    script.say(set_state(opaque, PENDING), set_state(opaque, PENDING))
    assert script.link.closing
