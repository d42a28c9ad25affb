"""REPLICATE, TAKEOVER, FAILOVER as bytes: who is asked, what is answered, in whose words."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from interop.wire import NOOP, Reply, frame
from tests.kv.binary_peer import Peer
from tests.upr.replication_rig import A, World
from uprmc.model import VBucketState

REPLICATE, TAKEOVER, FAILOVER = 0xD7, 0xD8, 0xD9
OK, EXISTS, INVALID, NOT_MINE, RANGE, NOT_SUPPORTED, TEMPORARY = 0, 2, 4, 7, 0x22, 0x83, 0x86
ACTIVE, REPLICA, _, DEAD = VBucketState


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def peer(world: World) -> Peer:
    return Peer(world.rig, by_key=False)


def vbuckets(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}H", *numbers)


def replicate(place: str = A, *numbers: int, flags: int = 0, **more: Any) -> bytes:
    extras = struct.pack(">I", flags)
    return frame(REPLICATE, place.encode(), vbuckets(*numbers), extras, **more)


def one(peer: Peer, request: bytes) -> Reply:
    """Ask, let everything get to disk, and return the answer."""
    found = peer.ask(request)
    if not found:
        peer.rig.flush()
        found = peer.ask()
    (reply,) = found
    return reply


def refused(peer: Peer, request: bytes) -> tuple[int, str]:
    (reply,) = peer.ask(request)
    return reply.status, reply.value.decode()


# --- REPLICATE ----------------------------------------------------------------------------------


def test_replicate_is_answered_when_it_is_written_down(world: World, peer: Peer) -> None:
    assert peer.ask(replicate(A, 1, 3), frame(NOOP)) == []
    world.rig.flush()
    first, second = peer.ask()
    assert (first.opcode, first.status, first.value) == (REPLICATE, OK, b"")
    assert second.opcode == NOOP
    assert world.followed() == {A: [1, 3]}


def test_without_numbers_it_is_all_of_the_node(world: World, peer: Peer) -> None:
    assert one(peer, replicate()).status == OK
    assert world.followed() == {A: [0, 1, 2, 3]}


def test_what_is_active_with_changes_is_named(world: World, peer: Peer) -> None:
    world.write(2)
    status, text = refused(peer, replicate())
    assert status == INVALID
    assert text.startswith("vBucket 2: active here, with changes")
    assert "--demote" in text
    assert one(peer, replicate(flags=2)).status == OK
    assert world.states()[2] is REPLICA


def test_stop_takes_vbuckets_and_no_source(world: World, peer: Peer) -> None:
    one(peer, replicate())
    assert one(peer, replicate("", 0, flags=1)).status == OK
    assert world.followed() == {A: [1, 2, 3]}
    status, text = refused(peer, replicate(A, flags=1))
    assert (status, "not a source" in text) == (INVALID, True)
    assert one(peer, replicate("", flags=1)).status == OK
    assert world.followed() == {}


def test_a_disk_that_refuses_is_told(world: World, peer: Peer) -> None:
    assert peer.ask(replicate()) == []
    world.rig.fail_flush()
    (reply,) = peer.ask()
    assert reply.status == TEMPORARY
    assert b"not on disk yet" in reply.value
    assert world.followed() == {A: [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (replicate("nowhere"), INVALID, "use HOST:PORT"),
        (replicate(""), INVALID, "use HOST:PORT"),
        (replicate(A, 4), RANGE, "vBucket 4: this node's highest is 3"),
        (replicate(A, flags=4), INVALID, "flags 0x4"),
        (frame(REPLICATE, A.encode(), b"\0\1\0", bytes(4)), INVALID, "malformed"),
        (frame(REPLICATE, b"\xff:1", b"", bytes(4)), INVALID, "use HOST:PORT"),
        (frame(TAKEOVER, b"nowhere", vbuckets(0)), INVALID, "use HOST:PORT"),
        (frame(TAKEOVER, A.encode(), b"\0"), INVALID, "malformed"),
        (frame(TAKEOVER, A.encode(), vbuckets(4)), RANGE, "vBucket 4"),
        (frame(FAILOVER, b"", vbuckets(4)), RANGE, "vBucket 4"),
        (frame(FAILOVER, b"", b"\0"), INVALID, "malformed"),
    ],
)
def test_nonsense_is_refused_in_words_and_changes_nothing(
    world: World, peer: Peer, request_: bytes, status: int, words: str
) -> None:
    got, text = refused(peer, request_)
    assert got == status
    assert words in text
    assert world.states() == [ACTIVE] * 4
    assert world.calls == []
    assert peer.ask(frame(NOOP))[0].status == OK


@pytest.mark.parametrize(
    "request_",
    [
        frame(REPLICATE, A.encode()),
        frame(REPLICATE, A.encode(), b"", bytes(8)),
        frame(TAKEOVER, A.encode()),
        frame(TAKEOVER, b"", vbuckets(0)),
        frame(TAKEOVER, A.encode(), vbuckets(0), bytes(4)),
        frame(FAILOVER),
        frame(FAILOVER, A.encode(), vbuckets(0)),
    ],
)
def test_a_frame_of_the_wrong_shape_is_refused(world: World, peer: Peer, request_: bytes) -> None:
    assert refused(peer, request_)[0] == INVALID
    assert world.states() == [ACTIVE] * 4


@pytest.mark.parametrize(
    "request_",
    [
        replicate(cas=5),
        frame(TAKEOVER, A.encode(), vbuckets(0), cas=5),
        frame(FAILOVER, b"", vbuckets(0), cas=5),
    ],
)
def test_another_managers_session_is_over(world: World, peer: Peer, request_: bytes) -> None:
    world.rig.services.control.token = 7
    status, text = refused(peer, request_)
    assert status == EXISTS
    assert "session token" in text
    assert world.states() == [ACTIVE] * 4
    assert one(peer, replicate(cas=7)).status == OK


def test_a_node_that_dials_nobody_says_so(world: World, peer: Peer) -> None:
    world.rig.services.replication = None
    assert refused(peer, replicate()) == (NOT_SUPPORTED, "this node opens no connections")


def test_during_warm_up_it_is_to_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(World(monkeypatch, warm=False).rig, by_key=False)
    for request in (replicate(), frame(FAILOVER, b"", vbuckets(0))):
        assert refused(peer, request)[0] == TEMPORARY


# --- TAKEOVER -----------------------------------------------------------------------------------


def test_a_takeover_is_answered_when_every_vbucket_is_decided(world: World, peer: Peer) -> None:
    assert peer.ask(frame(TAKEOVER, A.encode(), vbuckets(3, 0)), frame(NOOP)) == []
    link = world.calls[0].opens()
    assert link.taking == [[0, 3]]
    link.begins(0, 3)
    world.bucket.set_state(3, ACTIVE, takeover=True)
    link.owner.taken(3)
    world.rig.flush()
    assert peer.ask() == []
    link.ends(0)
    world.rig.flush()
    reply, noop = peer.ask()
    assert (reply.status, reply.value) == (OK, struct.pack(">4H", 0, 2, 3, 0))
    assert noop.opcode == NOOP


def test_a_source_that_cannot_be_reached_is_an_error_that_says_why(
    world: World, peer: Peer
) -> None:
    assert peer.ask(frame(TAKEOVER, A.encode(), vbuckets(0, 1))) == []
    world.calls[0].failed("connection refused")
    world.rig.flush()
    (reply,) = peer.ask()
    assert reply.status == TEMPORARY
    assert reply.value == f"{A}: vBucket 1: connection refused".encode()


def test_one_who_does_not_wait_for_the_answer_stops_nothing(world: World, peer: Peer) -> None:
    peer.ask(frame(TAKEOVER, A.encode(), vbuckets(0)))
    peer.session.connection_lost()
    link = world.calls[0].opens()
    link.begins(0)
    world.bucket.set_state(0, ACTIVE, takeover=True)
    link.owner.taken(0)
    world.rig.flush()
    assert world.states()[0] is ACTIVE
    assert world.replication.handovers == []


# --- FAILOVER -----------------------------------------------------------------------------------


@pytest.mark.acceptance("P17")
def test_a_failover_answers_the_new_branches(world: World, peer: Peer) -> None:
    one(peer, replicate(A, 1, 2))
    reply = one(peer, frame(FAILOVER, b"", vbuckets(2, 1)))
    logs = {number: world.bucket.vbuckets[number].failover_log for number in (1, 2)}
    rows = list(struct.iter_unpack(">HQQ", reply.value))
    assert rows == [(number, *logs[number][0]) for number in (1, 2)]
    assert [len(log) for log in logs.values()] == [2, 2]
    assert world.followed() == {}


def test_what_is_not_there_is_named(world: World, peer: Peer) -> None:
    world.bucket.set_state(1, DEAD)
    world.bucket.remove(1, lambda _: None)
    status, text = refused(peer, frame(FAILOVER, b"", vbuckets(0, 1)))
    assert status == NOT_MINE
    assert text.startswith("vBucket 1: not on this node")


def test_a_failover_that_the_disk_refuses_is_done_all_the_same(world: World, peer: Peer) -> None:
    one(peer, replicate())
    assert peer.ask(frame(FAILOVER, b"", vbuckets(0))) == []
    world.rig.fail_flush()
    (reply,) = peer.ask()
    assert reply.status == TEMPORARY
    assert world.states()[0] is ACTIVE


def test_a_failover_that_another_promotion_overtakes_is_not_called_done(
    world: World, peer: Peer
) -> None:
    assert peer.ask(frame(FAILOVER, b"", vbuckets(0, 1))) == []
    vbucket = world.bucket.vbuckets[1]
    world.bucket.learn_term(vbucket, vbucket.term + 1)
    world.rig.flush()
    (reply,) = peer.ask()
    assert reply.status == TEMPORARY
    assert reply.value == b"vBucket 1: another node was promoted in the meantime"
    assert world.states()[:2] == [ACTIVE, DEAD]


def test_other_commands_keep_the_texts_of_their_statuses(world: World, peer: Peer) -> None:
    assert refused(peer, frame(0x3D, b"", b"", struct.pack(">I", 9)))[1] == "Invalid arguments"
