"""A vBucket handed over: both steps, writes in between, refusals, connections that are lost.

Source: UPR reference 2.10, 4.4; row D52.
"""

from __future__ import annotations

import pytest

from tests.contents import table_of
from tests.upr.peer import (
    ACK,
    ACTIVE,
    DEAD,
    DISK,
    MARKER,
    MEMORY,
    MUTATION,
    NOT_MY_VBUCKET,
    OK,
    PENDING,
    REPLICA,
    SET_STATE,
    STREAM_END,
    STREAM_REQUEST,
    TAKEOVER,
    Frame,
    Peer,
    Rig,
    bystander,
    check_stream,
    fill,
    frame,
    items,
    kinds,
    marked,
    only,
    response,
    seqnos,
    stream_request,
    untouched,
    upr_rig,
    write,
)
from uprmc.errors import StoreError

OPAQUE = 0x1001
ACK_MARKER = response(MARKER, opaque=OPAQUE)
ACK_STATE = response(SET_STATE, opaque=OPAQUE)


@pytest.fixture
def rig() -> Rig:
    return upr_rig()


def state(rig: Rig, vbucket: int = 0) -> int:
    return rig.bucket.vbuckets[vbucket].state


def begin(rig: Rig, **options: bytes) -> tuple[Peer, list[Frame]]:
    peer = Peer.open(rig)
    peer.controls(**options)
    return peer, peer.stream(0, 0, 1, flags=TAKEOVER, opaque=OPAQUE)


def died(rig: Rig, peer: Peer) -> list[Frame]:
    """Let the target be pending, and our death come to disk; return what is sent meanwhile."""
    frames = peer.say(ACK_STATE)
    rig.flush()
    return frames + peer.drain()


@pytest.mark.acceptance("D52")
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_takeover_goes_through_its_five_steps(rig: Rig, on_disk: bool) -> None:
    fill(rig, 0, 3)
    if on_disk:
        rig.flush()
    log = rig.bucket.vbuckets[0].failover_log
    peer, frames = begin(rig)
    stream = peer.side.feed.streams[0]
    assert kinds(frames) == [MARKER, MUTATION, MUTATION, MUTATION]
    assert marked(frames)[0][2] == (DISK | ACK if on_disk else MEMORY | 4 | ACK)
    assert state(rig) == ACTIVE
    write(rig, 0, b"in step 1")
    frames = peer.drain()
    assert [each.kind & ACK for each in only(frames, MARKER)] == [ACK]
    assert peer.say(ACK_MARKER) == [], "one of two markers is answered"
    (asked,) = peer.say(ACK_MARKER)
    assert (asked.opcode, asked.state, asked.opaque) == (SET_STATE, PENDING, OPAQUE)
    assert stream.state.value == "takeover-wait"
    write(rig, 0, b"in step 2")
    assert peer.drain() == [], "nothing is sent while the target changes its state"
    frames = died(rig, peer)
    assert state(rig) == DEAD, "writes stop"
    assert seqnos(frames) == [5]
    assert marked(frames) == [(5, 5, MEMORY | ACK)]
    (asked,) = peer.say(ACK_MARKER)
    assert (asked.opcode, asked.state) == (SET_STATE, ACTIVE)
    (end,) = peer.say(ACK_STATE)
    assert (end.opcode, end.reason, end.opaque) == (STREAM_END, 0, OPAQUE)
    assert rig.bucket.vbuckets[0].failover_log == log
    assert check_stream([each for each in peer.received if not each.is_reply]) == 5
    assert peer.side.feed.streams == {}


def test_writes_are_refused_once_the_target_is_pending(rig: Rig) -> None:
    peer, (asked,) = begin(rig)
    put = frame(0x01, key=b"k", value=b"v", extras=bytes(8))
    assert asked.opcode == SET_STATE
    assert peer.say(put)[0].status == OK
    peer.say(ACK_STATE)
    assert peer.say(put)[0].status == NOT_MY_VBUCKET


def test_an_empty_vbucket_is_handed_over_without_a_marker(rig: Rig) -> None:
    peer, frames = begin(rig)
    frames += died(rig, peer)
    frames += peer.say(ACK_STATE)
    assert kinds(frames) == [SET_STATE, SET_STATE, STREAM_END]
    assert [each.state for each in only(frames, SET_STATE)] == [PENDING, ACTIVE]


def test_the_target_is_not_active_before_our_death_is_on_disk(rig: Rig) -> None:
    """Else a crash here would make two of it; a commit that fails is tried again."""
    peer, _ = begin(rig)
    assert peer.say(ACK_STATE) == []
    assert state(rig) == DEAD
    flush = rig.bucket.flusher.begin()
    assert flush is not None
    rig.bucket.flusher.failed(flush, StoreError("broken"))
    assert peer.drain() == []
    rig.flush()
    assert [each.state for each in only(peer.drain(), SET_STATE)] == [ACTIVE]


def test_a_takeover_has_no_end_of_its_own(rig: Rig) -> None:
    fill(rig, 0, 3)
    peer, _ = begin(rig)
    assert peer.side.feed.streams[0].end_seqno == 2**64 - 1


def test_our_own_change_of_state_ends_only_the_other_streams(rig: Rig) -> None:
    other = Peer.open(rig, b"other")
    other.stream(0)
    peer, _ = begin(rig)
    peer.say(ACK_STATE)
    assert [each.reason for each in only(other.drain(), STREAM_END)] == [2]
    assert STREAM_END not in kinds(peer.received)


@pytest.mark.parametrize("step", [1, 2])
def test_a_state_that_is_refused_ends_the_takeover(rig: Rig, step: int) -> None:
    undisturbed = bystander(rig)
    peer, _ = begin(rig)
    if step == 2:
        died(rig, peer)
    (end,) = peer.say(response(SET_STATE, 0x04, opaque=OPAQUE))
    assert (end.opcode, end.reason) == (STREAM_END, 2)
    assert state(rig) == (ACTIVE if step == 1 else DEAD)
    assert not peer.closed
    undisturbed()


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_lost_connection_leaves_the_source_as_it_is(rig: Rig, step: int) -> None:
    fill(rig, 0, 3)
    log = rig.bucket.vbuckets[0].failover_log
    peer, _ = begin(rig)
    for answer in [ACK_MARKER, ACK_STATE, ACK_STATE][:step]:
        peer.say(answer)
    peer.lose()
    assert state(rig) == (ACTIVE if step < 2 else DEAD)
    assert rig.bucket.vbuckets[0].failover_log == log
    untouched(rig)


def test_the_manager_may_change_the_state_meanwhile(rig: Rig) -> None:
    peer, _ = begin(rig)
    rig.bucket.set_state(0, REPLICA)
    assert [each.reason for each in only(peer.drain(), STREAM_END)] == [2]
    assert peer.say(ACK_STATE) == []
    assert state(rig) == REPLICA


def test_after_we_are_dead_the_manager_may_take_it_back(rig: Rig) -> None:
    fill(rig, 0, 1)
    peer, _ = begin(rig)
    peer.say(ACK_MARKER)
    peer.say(ACK_STATE)
    rig.bucket.set_state(0, ACTIVE)
    assert [each.reason for each in only(peer.drain(), STREAM_END)] == [2]


def test_answers_that_nobody_waits_for_mean_nothing(rig: Rig) -> None:
    fill(rig, 0, 2)
    peer, _ = begin(rig)
    assert peer.say(ACK_STATE, response(SET_STATE, 1, opaque=OPAQUE)) == []
    assert peer.say(response(MARKER, opaque=9), response(0x57, 1, opaque=OPAQUE)) == []
    assert state(rig) == ACTIVE
    assert kinds(peer.say(ACK_MARKER)) == [SET_STATE]


def test_a_snapshot_that_was_announced_twice_is_answered_once(rig: Rig) -> None:
    """A reading was given up half way; the target answers when it holds the whole snapshot."""
    fill(rig, 0, 40, b"x" * 200)
    rig.flush()
    peer, _ = begin(rig, connection_buffer_size=b"2000")
    rig.services.upr.release_views()
    write(rig, 0, b"later")
    peer.controls(connection_buffer_size=b"0")
    assert len(marked(peer.received)) == 2
    assert seqnos(peer.received)[-1] == 41
    assert kinds(peer.say(ACK_MARKER)) == [SET_STATE]


@pytest.mark.acceptance("D52")
def test_a_vbucket_that_is_written_all_the_time_is_handed_over(rig: Rig) -> None:
    fill(rig, 0, 1)
    peer, frames = begin(rig)
    for n in range(20):
        write(rig, 0, b"busy %d" % n)
        frames += peer.drain()
    assert len(marked(frames)) == 8
    assert peer.say(*[ACK_MARKER] * 7) == [], "one of eight is not answered"
    (asked,) = peer.say(ACK_MARKER)
    assert (asked.opcode, asked.state) == (SET_STATE, PENDING)
    assert peer.side.feed.streams[0].behind
    rest = died(rig, peer)
    assert state(rig) == DEAD
    assert seqnos(rest) == list(range(9, 22)), "what was written meanwhile follows"
    (asked,) = peer.say(ACK_MARKER)
    assert (asked.opcode, asked.state) == (SET_STATE, ACTIVE)
    assert kinds(peer.say(ACK_STATE)) == [STREAM_END]


def test_the_last_snapshot_before_that_is_sent_to_its_end(rig: Rig) -> None:
    """Its reading was given up half way: what was announced is whole only with the rest."""
    fill(rig, 0, 1)
    peer, frames = begin(rig)
    for n in range(6):
        write(rig, 0, b"busy %d" % n)
        frames += peer.drain()
    peer.controls(connection_buffer_size=b"600")
    fill(rig, 0, 40, b"x" * 200)
    frames += peer.drain()
    assert len(marked(frames)) == 8
    rig.services.upr.release_views()
    peer.controls(connection_buffer_size=b"0")
    frames = [each for each in peer.received if not each.is_reply]
    assert check_stream(frames) == 47
    assert kinds(peer.say(*[ACK_MARKER] * 8)) == [SET_STATE]


def test_a_takeover_in_rounds_hands_over_too(rig: Rig) -> None:
    fill(rig, 0, 2)
    fill(rig, 1, 2)
    peer = Peer.open(rig)
    peer.controls(uprmc_rounds=b"true")
    peer.stream(1)
    frames = peer.stream(0, flags=TAKEOVER, opaque=OPAQUE)
    assert len(items(frames)) == 2
    assert kinds(peer.say(ACK_MARKER)) == [SET_STATE]
    write(rig, 1, b"k")
    assert seqnos(peer.drain()) == [3]
    assert kinds(died(rig, peer)) == [SET_STATE]
    assert kinds(peer.say(ACK_STATE)) == [STREAM_END]


@pytest.mark.acceptance("D52")
def test_between_two_nodes_nothing_is_lost_and_the_log_stays(rig: Rig) -> None:
    """Source and target speak to each other over a splice, as a manager's proxy makes it."""
    target = upr_rig()
    target.bucket.set_state(0, REPLICA)
    fill(rig, 0, 20)
    rig.flush()
    source = Peer.open(rig, b"source")
    sink = Peer.open(target, b"sink", 0)
    sink.send(frame(0x51, extras=bytes([0, 0, 0, TAKEOVER]), opaque=0xADD))
    writes = 0
    for _ in range(100):
        source.send(*(raw(each) for each in splice(sink)))
        sink.send(*(raw(each) for each in splice(source)))
        target.flush()  # neither promises what is not on disk
        if rig.bucket.vbuckets[0].state == DEAD:
            rig.flush()
        if rig.bucket.vbuckets[0].state == ACTIVE and writes < 5:
            write(rig, 0, b"during %d" % writes)
            writes += 1
    mine, theirs = rig.bucket.vbuckets[0], target.bucket.vbuckets[0]
    assert (mine.state, theirs.state) == (DEAD, ACTIVE)
    assert mine.failover_log == theirs.failover_log
    assert mine.high_seqno == theirs.high_seqno == 20 + writes
    assert {k: (i.value, i.cas, i.rev) for k, i in table_of(mine).items()} == {
        k: (i.value, i.cas, i.rev) for k, i in table_of(theirs).items()
    }
    assert source.side.feed.streams == {}
    answers = [each for each in sink.received if each.opcode == 0x51]
    assert [(each.status, each.opaque) for each in answers] == [(OK, 0xADD)]


def splice(peer: Peer) -> list[Frame]:
    """What goes to the other node: all but the answer that the manager waits for."""
    return [each for each in peer.drain() if each.opcode != 0x51]


def raw(each: Frame) -> bytes:
    return frame(
        each.opcode,
        key=each.key,
        value=each.value,
        extras=each.extras,
        vbucket=each.number,
        opaque=each.opaque,
        cas=each.cas,
        datatype=each.datatype,
        magic=each.magic,
    )


def test_a_takeover_is_asked_for_like_a_stream(rig: Rig) -> None:
    peer = Peer.open(rig)
    (answer, _) = peer.say(stream_request(0, flags=TAKEOVER))
    assert (answer.opcode, answer.status) == (STREAM_REQUEST, OK)
