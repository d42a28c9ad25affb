"""Who follows a pushed copy by UPR sees the master's states, and never half of one.

Most cases are ``transcripts/*.push``, in the form of `tests.transcripts`. Commands:

    copy pending                    what the node's vBuckets are; replicas unless it is said
    push opaque 2, a, start 1 vb1   the master's messages: a key is a document, ``-a`` a deletion
    follow, stream: a b, drain:     who follows by UPR: the keys that come, from seqno 0 or then;
                                    ``stream 1:`` from there, by the history noted as `before`
    lose, connect, crash, flush     the master's connection, the node, its disk
    state active                    an operator changes vBucket 0

Expressions name `vbucket`, `receiving`, `whole`, `high`, `log`, `marked`, `ended`, `uuid`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tap_adapter.push_rig import (
    ACTIVE,
    NOT_MY_VBUCKET,
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
from tests.transcripts import Script, cases
from tests.upr import peer as upr
from tests.upr.peer import Frame, Peer, check_stream, items, marked, only, seqnos
from tests.upr.replication_rig import A, World
from uprmc.engine.replica import apply
from uprmc.model import Item, SnapshotRange, VBucketState

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


class Play(Script):
    """One case."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = PushRig(REPLICA)
        self.peer: Peer | None = None
        self.frames: list[Frame] = []

    def names(self) -> dict[str, Any]:
        vbucket = self.rig.vbucket
        names: dict[str, Any] = {"vbucket": vbucket, "rig": self.rig, "log": vbucket.failover_log}
        names |= {"receiving": vbucket.receiving, "whole": vbucket.whole_seqno}
        names |= {"high": vbucket.high_seqno, "uuid": upr.uuid_of(self.rig.rig)}
        names |= {"marked": [each[:2] for each in marked(self.frames)], "ended": ended(self.frames)}
        names["closed"] = self.rig.pushes.last_closed
        return names

    def do(self, command: str) -> None:
        name, colon, rest = command.partition(":")
        if colon and name in ("stream", "stream 1", "drain"):
            assert self.peer is not None
            if name == "stream 1":
                self.frames = self.peer.stream(0, 1, uuid=self.noted["before"])
                check_stream(self.frames, 1)
            else:
                self.frames = self.peer.stream() if name == "stream" else self.peer.drain()
            assert keys(self.frames) == [each.encode() for each in rest.split()]
        elif command.startswith("push "):
            self.rig.push(*(message_in(each.split()) for each in command[5:].split(",")))
        else:
            super().do(command)

    def do_copy(self, state: str) -> None:
        self.rig = PushRig(VBucketState[state.upper()])

    def do_follow(self) -> None:
        self.peer = follow(self.rig)

    def do_lose(self) -> None:
        self.rig.lose()

    def do_connect(self) -> None:
        self.rig.connect()

    def do_crash(self) -> None:
        self.rig.crash()

    def do_flush(self) -> None:
        self.rig.rig.flush()

    def do_state(self, state: str) -> None:
        self.rig.bucket.set_state(0, VBucketState[state.upper()])


def message_in(words: list[str]) -> bytes:
    """Return the message of ``start 7 vb1``, ``a``, ``-a`` ..."""
    vbucket = int(words.pop()[2:]) if words[-1].startswith("vb") else 0
    name, *numbers = words
    if name == "flush":
        return message(0x43)
    if name == "set":
        return vbucket_set(VBucketState[numbers[0].upper()], vbucket)
    if numbers:
        return {"opaque": opaque, "start": start, "end": end}[name](int(numbers[0]), vbucket)
    if name.startswith("-"):
        return delete(name[1:].encode(), vbucket=vbucket)
    return mutation(name.encode(), vbucket=vbucket)


@pytest.mark.parametrize("commands", cases(Path(__file__).parent / "transcripts", "*.push"))
def test_a_follower_sees_what_the_transcript_says(commands: list[str]) -> None:
    play = Play()
    for command in commands:
        play.do(command)


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


def test_opaque_1_ends_streams_and_sends_their_peers_back_to_0(rig: PushRig) -> None:
    rig.push(mutation(b"a"))
    peer = follow(rig)
    assert keys(peer.stream()) == [b"a"]
    uuid = upr.uuid_of(rig.rig)
    rig.push(opaque(2), opaque(1))
    assert ended(peer.drain())
    answer = peer.say(upr.stream_request(0, 1, uuid=uuid))[0]
    assert (answer.status, answer.value) == (upr.ROLLBACK, bytes(8))


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
