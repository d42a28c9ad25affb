"""What travels to replicas beside documents: the purge seqno and the floor of revisions.

Source: `docs/extensions.md`, VBUCKET_FACTS; ruling "deletions outrank what came before them".
"""

from __future__ import annotations

import struct

import pytest

from tests.upr.link_rig import Pair, Script, replica_rig
from tests.upr.peer import (
    ACTIVE,
    ADD_STREAM,
    CONTROL,
    DISK,
    MARKER,
    MEMORY,
    REPLICA,
    ROLLBACK,
    STREAM_REQUEST,
    Frame,
    Peer,
    Rig,
    fill,
    frame,
    kinds,
    marker,
    mutation,
    only,
    response,
    upr_rig,
    write,
)
from uprmc.engine.tombstones import PurgeRule
from uprmc.model import VBucketHeader

FACTS = 0xD6
LOG = struct.pack(">QQ", 0xA, 0)
EVERY = PurgeRule(every=True)


def facts(opaque: int, purge_seqno: int, rev_floor: int) -> bytes:
    extras = struct.pack(">QQ", purge_seqno, rev_floor)
    return frame(FACTS, extras=extras, vbucket=0, opaque=opaque)


def told(frames: list[Frame]) -> list[tuple[int, int]]:
    return [struct.unpack(">QQ", each.extras) for each in only(frames, FACTS)]


def bury(rig: Rig, key: bytes, rev: int) -> None:
    """Delete a document at a revision, drop its tombstone, and leave another document behind."""
    vbucket = rig.bucket.vbuckets[0]
    for _ in range(rev - 1):
        write(rig, 0, key)
    assert vbucket.delete(key).rev == rev
    write(rig, 0, b"last")
    rig.flush()
    rig.bucket.compact(0, EVERY, lambda _: None)
    compactor = rig.bucket.compactor
    while compactor.waiting or rig.bucket.flusher.pending:
        while (scan := compactor.begin()) is not None:
            compactor.read(scan)
            compactor.finish(scan)
        rig.flush()


def header(rig: Rig) -> VBucketHeader:
    view = rig.bucket.store.view()
    found = view.header(0)
    view.close()
    assert found is not None
    return found


# --- the producer's side ------------------------------------------------------------------------


def test_facts_come_before_a_marker_and_again_when_they_differ() -> None:
    rig = upr_rig()
    fill(rig, 0, 3)
    peer = Peer.open(rig)
    peer.controls(uprmc_vbucket_facts=b"true")
    frames = peer.stream(0)
    assert kinds(frames)[:2] == [FACTS, MARKER]
    assert told(frames) == [(0, 0)]
    write(rig, 0, b"k")
    assert told(peer.drain()) == []
    rig.bucket.vbuckets[0].delete(b"k")
    write(rig, 0, b"l")
    assert told(peer.drain()) == [(0, 2)]


def test_who_has_not_asked_never_sees_facts() -> None:
    rig = upr_rig()
    fill(rig, 0, 3)
    assert told(Peer.open(rig).stream(0)) == []


# --- the receivers' side ------------------------------------------------------------------------


class Spliced:
    """A consumer to which a manager has added a stream, and its source."""

    def __init__(self, rig: Rig, status: int = 0, value: bytes = LOG) -> None:
        rig.bucket.set_state(0, REPLICA)
        self._peer = Peer.open(rig, b"repl", 0)
        asked = self._peer.say(frame(ADD_STREAM, extras=bytes(4), vbucket=0, opaque=0xADD))
        self.wishes = {each.key: each.value for each in only(asked, CONTROL)}
        self.opaque = only(asked, STREAM_REQUEST)[0].opaque
        self.say(response(STREAM_REQUEST, status, opaque=self.opaque, value=value))

    def say(self, *frames: bytes) -> None:
        self._peer.say(*frames)

    @property
    def closed(self) -> bool:
        return self._peer.closed


class Dialled:
    """A link that follows a source."""

    def __init__(self, rig: Rig) -> None:
        self._script = Script(rig)
        self.opaque = self._script.follow(log=LOG)

    def say(self, *frames: bytes) -> None:
        self._script.say(*frames)

    @property
    def closed(self) -> bool:
        return self._script.link.closing


Receiver = Spliced | Dialled


@pytest.fixture
def target() -> Rig:
    return replica_rig()


@pytest.fixture(params=[Spliced, Dialled])
def receiver(request: pytest.FixtureRequest, target: Rig) -> Receiver:
    return request.param(target)


def test_a_spliced_consumer_asks_for_both(target: Rig) -> None:
    wishes = Spliced(target).wishes
    assert wishes[b"max_marker_version"] == b"2.2"
    assert wishes[b"uprmc_vbucket_facts"] == b"true"


def test_a_receiver_keeps_both(receiver: Receiver, target: Rig) -> None:
    opaque = receiver.opaque
    receiver.say(facts(opaque, 2, 20), marker(0, opaque, 0, 3), mutation(0, opaque, 3, b"k"))
    target.flush()
    stored = header(target)
    assert (stored.max_deleted_rev, stored.purge_seqno) == (20, 2)
    target.bucket.set_state(0, ACTIVE)
    assert target.bucket.vbuckets[0].store(b"new", b"v", 0, 0).rev == 21


def test_a_snapshot_that_is_purged_beyond_its_end_is_not_taken(
    receiver: Receiver, target: Rig
) -> None:
    opaque = receiver.opaque
    receiver.say(facts(opaque, 4, 1), marker(0, opaque, 0, 3), mutation(0, opaque, 3, b"k"))
    assert target.bucket.vbuckets[0].high_seqno == 0


def test_a_revision_beyond_all_bounds_ends_the_connection(receiver: Receiver, target: Rig) -> None:
    receiver.say(facts(receiver.opaque, 0, 2**63))
    assert receiver.closed
    assert target.bucket.vbuckets[0].max_deleted_rev == 0


def test_a_receiver_that_must_start_over_keeps_its_floor(target: Rig) -> None:
    spliced = Spliced(target)
    opaque = spliced.opaque
    spliced.say(facts(opaque, 0, 20), marker(0, opaque, 0, 3), mutation(0, opaque, 3, b"k"))
    target.flush()
    Spliced(target, ROLLBACK, bytes(8))
    assert target.bucket.vbuckets[0].high_seqno == 0
    assert target.bucket.vbuckets[0].max_deleted_rev == 20


# --- sources that tell nothing ------------------------------------------------------------------


def test_of_a_silent_source_the_first_snapshot_off_its_disk_counts_as_purged(
    receiver: Receiver, target: Rig
) -> None:
    part, opaque = target.bucket.vbuckets[0], receiver.opaque
    receiver.say(marker(0, opaque, 0, 3, DISK), mutation(0, opaque, 2, b"a"))
    assert part.purge_seqno == 3
    receiver.say(marker(0, opaque, 0, 6, DISK), mutation(0, opaque, 6, b"b"))
    assert part.purge_seqno == 6, "it was announced again, from a later reading"
    receiver.say(marker(0, opaque, 7, 9, DISK), mutation(0, opaque, 9, b"c"))
    assert part.purge_seqno == 6


def test_a_silent_source_has_purged_nothing_of_what_it_sends_from_memory(
    receiver: Receiver, target: Rig
) -> None:
    opaque = receiver.opaque
    receiver.say(marker(0, opaque, 0, 3, MEMORY), mutation(0, opaque, 3, b"a"))
    assert target.bucket.vbuckets[0].purge_seqno == 0


def test_a_source_that_tells_is_believed(receiver: Receiver, target: Rig) -> None:
    opaque = receiver.opaque
    receiver.say(facts(opaque, 1, 0), marker(0, opaque, 0, 3, DISK), mutation(0, opaque, 3, b"a"))
    assert target.bucket.vbuckets[0].purge_seqno == 1


# --- node to node -------------------------------------------------------------------------------


def follow(source: Rig, target: Rig) -> Pair:
    pair = Pair(source, target)
    pair.run()
    pair.link.follow([0])
    pair.run()
    assert target.bucket.vbuckets[0].high_seqno == source.bucket.vbuckets[0].high_seqno
    return pair


def test_a_promoted_replica_outranks_deletions_that_it_never_saw() -> None:
    source, target = upr_rig(), replica_rig()
    bury(source, b"gone", 20)
    follow(source, target)
    target.bucket.set_state(0, ACTIVE)
    assert target.bucket.vbuckets[0].store(b"gone", b"v", 0, 0).rev == 21


def test_so_does_a_replica_of_a_replica() -> None:
    source, middle, target = upr_rig(), replica_rig(), replica_rig()
    bury(source, b"gone", 20)
    follow(source, middle)
    follow(middle, target)
    target.bucket.set_state(0, ACTIVE)
    assert target.bucket.vbuckets[0].store(b"gone", b"v", 0, 0).rev == 21


def test_so_does_a_node_that_takes_a_vbucket_over() -> None:
    source, target = upr_rig(), replica_rig()
    bury(source, b"gone", 20)
    pair = Pair(source, target)
    pair.run()
    pair.link.take_over([0])
    pair.run()
    part = target.bucket.vbuckets[0]
    assert part.state == ACTIVE
    assert part.store(b"gone", b"v", 0, 0).rev == 21
