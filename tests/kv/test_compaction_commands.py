"""COMPACT_DB over the wire: what it drops, when it answers, and what it answers otherwise."""

from __future__ import annotations

import struct

import pytest

from interop.wire import DELETE, GET, SET, frame, store
from tests.kv.binary_peer import Peer, answer, error
from tests.kv.harness import NOON, Rig
from uprmc.model import VBucketState

COMPACT_DB = 0xB3


def compact_db(
    vbucket: int = 0, before_s: int = 0, upto_seqno: int = 0, drop_deletes: int = 0, cas: int = 0
) -> bytes:
    extras = struct.pack(">QQB7x", before_s, upto_seqno, drop_deletes)
    return frame(COMPACT_DB, extras=extras, vbucket=vbucket, cas=cas)


def run(rig: Rig) -> None:
    """Compact until there is nothing to do."""
    compactor = rig.bucket.compactor
    while compactor.waiting or rig.bucket.flusher.pending:
        while (reading := compactor.begin()) is not None:
            compactor.read(reading)
            compactor.finish(reading)
        rig.flush()


def stored(rig: Rig, number: int = 0) -> list[tuple[bytes, int]]:
    view = rig.store.view()
    found = [(item.key, item.seqno) for item in view.changes_after(number, 0)]
    view.close()
    return found


def with_tombstones() -> tuple[Rig, Peer]:
    """Return a rig whose vBucket 0 has tombstones 4, 5, 6 of 12:00, 12:01, 12:02, and newer 7."""
    rig = Rig()
    peer = Peer(rig, by_key=False)
    for key in (b"a", b"b", b"c"):
        peer.ask(store(SET, key, b"v"))
    for key in (b"a", b"b", b"c"):
        peer.ask(frame(DELETE, key))
        rig.clock.time += 60
    peer.ask(store(SET, b"last", b"v"))
    rig.flush()
    return rig, peer


@pytest.mark.parametrize(
    ("request_", "left"),
    [
        (compact_db(), [4, 5, 6]),
        (compact_db(before_s=int(NOON) + 60), [5, 6]),
        (compact_db(upto_seqno=5), [6]),
        (compact_db(before_s=int(NOON) + 61, upto_seqno=4), [5, 6]),
        (compact_db(before_s=int(NOON) + 1, upto_seqno=9), [5, 6]),
        (compact_db(drop_deletes=1), []),
        (compact_db(drop_deletes=0xFF), []),
        (compact_db(before_s=2**64 - 1, upto_seqno=2**64 - 1), []),
    ],
)
def test_it_drops_what_it_names_and_answers_when_that_is_done(
    request_: bytes, left: list[int]
) -> None:
    rig, peer = with_tombstones()
    assert peer.say(request_) == b""
    run(rig)
    assert peer.say() == answer(COMPACT_DB)
    assert [seqno for _, seqno in stored(rig)] == [*left, 7]
    assert rig.bucket.vbuckets[0].purge_seqno == max({4, 5, 6} - set(left), default=0)
    rig.check()


def test_the_frame_of_the_reference_is_understood() -> None:
    """Vector V28."""
    rig = Rig(engine__vbuckets=8)
    peer = Peer(rig, by_key=False)
    assert not peer.say(
        bytes.fromhex(
            "80b3000018000005000000180000002000000000000000000000000000000000"
            "00000000000000640000000000000000"
        )
    )
    run(rig)
    assert peer.say().hex() == "81b300000000000000000000000000200000000000000000"


def test_it_is_not_answered_before_it_is_on_disk_and_later_commands_wait() -> None:
    rig, peer = with_tombstones()
    assert peer.say(compact_db(drop_deletes=1), frame(GET, b"last")) == b""
    reading = rig.bucket.compactor.begin()
    assert reading is not None
    rig.bucket.compactor.read(reading)
    rig.bucket.compactor.finish(reading)
    assert peer.say() == b""
    rig.flush()
    first, second = peer.ask()
    assert (first.opcode, first.status) == (COMPACT_DB, 0)
    assert (second.opcode, second.value) == (GET, b"v")


@pytest.mark.parametrize("by_key", [False, True])
def test_the_field_names_the_vbucket_on_either_listener(by_key: bool) -> None:
    rig, _ = with_tombstones()
    peer = Peer(rig, by_key=by_key)
    peer.say(compact_db(0, drop_deletes=1), compact_db(1, drop_deletes=1))
    run(rig)
    assert [reply.status for reply in peer.ask()] == [0, 0]
    assert stored(rig) == [(b"last", 7)]


def test_a_vbucket_that_is_absent_is_not_ours() -> None:
    peer = Peer(Rig(), by_key=False)
    for number in (4, 0xFFFF):
        assert peer.say(compact_db(number)) == error(COMPACT_DB, 0x07)


def test_a_replica_is_compacted_as_far_as_its_source_was() -> None:
    rig, peer = with_tombstones()
    rig.bucket.set_state(0, VBucketState.REPLICA)
    rig.bucket.vbuckets[0].purge_seqno = 5
    peer.say(compact_db(drop_deletes=1))
    run(rig)
    assert peer.say() == answer(COMPACT_DB)
    assert [seqno for _, seqno in stored(rig)] == [6, 7]


def test_during_warm_up_it_has_to_be_tried_again() -> None:
    peer = Peer(Rig(warm=False), by_key=False)
    assert peer.say(compact_db()) == error(COMPACT_DB, 0x86)


def test_one_that_was_given_up_has_to_be_tried_again_and_the_conversation_goes_on() -> None:
    rig, peer = with_tombstones()
    assert peer.say(compact_db(drop_deletes=1), frame(GET, b"last")) == b""
    reading = rig.bucket.compactor.begin()
    assert reading is not None
    rig.bucket.compactor.failed(reading)
    first, second = peer.ask()
    assert (first.status, second.status) == (0x86, 0)
    assert len(stored(rig)) == 4


def test_a_manager_whose_session_is_over_is_refused() -> None:
    rig, peer = with_tombstones()
    rig.services.control.token = 7
    assert peer.say(compact_db(cas=6)) == error(COMPACT_DB, 0x02)
    peer.say(compact_db(cas=7, drop_deletes=1))
    run(rig)
    assert peer.say() == answer(COMPACT_DB)
    assert stored(rig) == [(b"last", 7)]


@pytest.mark.parametrize("length", [0, 16, 17, 23, 25])
def test_extras_of_another_length_are_refused(length: int) -> None:
    _, peer = with_tombstones()
    (reply,) = peer.ask(frame(COMPACT_DB, extras=bytes(length)))
    assert reply.status == 0x04
    assert not peer.closed


def test_a_peer_that_has_gone_meanwhile_is_not_missed() -> None:
    rig, peer = with_tombstones()
    peer.say(compact_db(drop_deletes=1))
    peer.session.connection_lost()
    run(rig)
    assert stored(rig) == [(b"last", 7)]
