"""GET_VERSION: one document's newest version, as a stream would send it, with its seqno."""

from __future__ import annotations

import struct

import pytest

from tests.kv.binary_peer import Peer, Reply, answer, error, frame, u64
from tests.kv.harness import NOON, Rig
from uprmc.engine.replica import apply, return_to
from uprmc.model import CAS_LOCKED, Item, Life, SnapshotRange, VBucketState

GET_VERSION, DELETE, GETL, HELLO, NOOP, SET = 0xE7, 0x04, 0x94, 0x1F, 0x0A, 0x01
OK, NOT_FOUND, INVALID, NOT_MY_VBUCKET, LATER = 0x00, 0x01, 0x04, 0x07, 0x86
JSON = 0x0B
MAX = 2**64 - 1


@pytest.fixture
def rig() -> Rig:
    return Rig(engine__vbuckets=1)


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig, by_key=False)


def asked(key: bytes = b"k", upto: int = MAX) -> bytes:
    return frame(GET_VERSION, key, extras=u64(upto))


def version(seqno: int, rev: int, flags: int = 0, expiration: int = 0, life: int = 0) -> bytes:
    return struct.pack(">QQIIB", seqno, rev, flags, expiration, life)


def said(peer: Peer, request: bytes) -> Reply:
    (reply,) = peer.ask(request)
    return reply


def after_reading(peer: Peer, request: bytes) -> tuple[bytes, int]:
    """The bytes of the answer, and how many rounds of reading the disk it took."""
    assert peer.say(request) == b""
    rounds = peer.rig.fetch_all()
    return peer.say(), rounds


# --- documents ----------------------------------------------------------------------------------


def test_a_document_is_told_with_its_seqno_and_value(peer: Peer) -> None:
    peer.put(b"other", b"x")
    peer.put(b"k", b"first")
    cas = peer.put(b"k", b"value", flags=7, expiration=100)
    extras = version(3, 2, 7, int(NOON) + 100)
    expected = answer(GET_VERSION, extras=extras, value=b"value", cas=cas)
    assert peer.say(asked()) == expected


@pytest.mark.parametrize(("upto", "value"), [(2, b"value"), (1, b""), (0, b"")])
def test_a_value_above_the_seqno_is_left_out(peer: Peer, upto: int, value: bytes) -> None:
    peer.put(b"other", b"x")
    cas = peer.put(b"k", b"value")
    expected = answer(GET_VERSION, extras=version(2, 1), value=value, cas=cas)
    assert peer.say(asked(upto=upto)) == expected


def test_an_empty_value_is_told_like_any_other(peer: Peer) -> None:
    cas = peer.put(b"k", b"")
    assert peer.say(asked()) == answer(GET_VERSION, extras=version(1, 1), cas=cas)


def test_a_value_that_is_only_on_disk_is_fetched(rig: Rig, peer: Peer) -> None:
    cas = peer.put(b"k", b"value")
    rig.eject(b"k")
    expected = answer(GET_VERSION, extras=version(1, 1), value=b"value", cas=cas)
    assert after_reading(peer, asked()) == (expected, 1)


def test_a_value_that_is_not_wanted_is_not_fetched(rig: Rig, peer: Peer) -> None:
    cas = peer.put(b"k", b"value")
    rig.eject(b"k")
    assert peer.say(asked(upto=0)) == answer(GET_VERSION, extras=version(1, 1), cas=cas)
    assert rig.bucket.fetcher.waiting == 0


def test_a_value_that_cannot_be_read_is_a_temporary_failure(rig: Rig, peer: Peer) -> None:
    peer.put(b"k", b"value")
    rig.eject(b"k")
    assert peer.say(asked(), frame(NOOP)) == b""
    rig.fetch(ok=False)
    assert peer.say() == error(GET_VERSION, LATER) + answer(NOOP)


def test_the_datatype_is_told_to_who_knows_it(rig: Rig, peer: Peer) -> None:
    rig.bucket.vbuckets[0].store(b"k", b"{}", 0, 0, datatype=1)
    assert peer.say(asked())[5] == 0
    peer.say(frame(HELLO, b"agent", struct.pack(">H", JSON)))
    assert peer.say(asked())[5] == 1


# --- looking changes nothing --------------------------------------------------------------------


def test_a_document_that_has_expired_unnoticed_is_alive_yet(rig: Rig, peer: Peer) -> None:
    cas = peer.put(b"k", b"value", expiration=10)
    rig.clock.time += 11
    extras = version(1, 1, 0, int(NOON) + 10, Life.LIVE)
    assert peer.say(asked()) == answer(GET_VERSION, extras=extras, value=b"value", cas=cas)
    assert rig.bucket.vbuckets[0].high_seqno == 1, "nobody has expired it"


def test_a_lock_hides_nothing(peer: Peer) -> None:
    cas = peer.put(b"k", b"value")
    peer.say(frame(GETL, b"k"))
    assert said(peer, frame(0x00, b"k")).cas == CAS_LOCKED
    assert said(peer, asked()).cas == cas


# --- deletions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
def test_a_deletion_is_told_wherever_it_is(rig: Rig, peer: Peer, flushed: bool) -> None:
    peer.put(b"k", b"value", flags=7)
    peer.say(frame(DELETE, b"k"))
    tombstone = rig.bucket.vbuckets[0].table.find(b"k")
    assert tombstone is not None
    extras = version(2, 2, 7, int(NOON), Life.DELETED)
    expected = answer(GET_VERSION, extras=extras, cas=tombstone.cas)
    if not flushed:
        assert peer.say(asked()) == expected
        return
    rig.flush()
    assert rig.bucket.vbuckets[0].table.find(b"k") is None
    assert after_reading(peer, asked()) == (expected, 1)
    assert after_reading(peer, asked(upto=0)) == (expected, 1)


def test_an_expiration_is_told_as_such(rig: Rig, peer: Peer) -> None:
    peer.put(b"k", b"value", expiration=10)
    rig.clock.time += 11
    assert rig.bucket.vbuckets[0].find(b"k") is None
    assert said(peer, asked()).extras == version(2, 2, 0, int(NOON) + 11, Life.EXPIRED)


def test_what_never_was_is_not_found(rig: Rig, peer: Peer) -> None:
    missing = answer(GET_VERSION, NOT_FOUND, extras=u64(0), value=b"Not found")
    assert peer.say(asked()) == missing
    assert rig.bucket.fetcher.waiting == 0, "where nothing was deleted no disk is asked"
    peer.put(b"other", b"x")
    peer.say(frame(DELETE, b"other"))
    rig.flush()
    assert after_reading(peer, asked()) == (missing, 1)


def test_answers_keep_the_order_of_requests(rig: Rig, peer: Peer) -> None:
    peer.put(b"a", b"1")
    peer.put(b"b", b"2")
    rig.eject(b"a")
    rig.fetch_at_once()
    replies = peer.ask(asked(b"a"), asked(b"nobody"), asked(b"b"), frame(NOOP))
    assert [(each.status, each.value) for each in replies] == [
        (OK, b"1"),
        (NOT_FOUND, b"Not found"),
        (OK, b"2"),
        (OK, b""),
    ]


# --- where --------------------------------------------------------------------------------------


def test_a_replica_answers_even_in_mid_snapshot(rig: Rig, peer: Peer) -> None:
    rig.bucket.set_state(0, VBucketState.REPLICA)
    item = Item(b"k", b"value", 7, 0, 99, 5, 3)
    apply(rig.bucket.vbuckets[0], item, SnapshotRange(1, 10))
    expected = answer(GET_VERSION, extras=version(5, 3, 7), value=b"value", cas=99)
    assert peer.say(asked()) == expected


@pytest.mark.parametrize("state", [VBucketState.PENDING, VBucketState.DEAD])
def test_nobody_else_does(rig: Rig, peer: Peer, state: VBucketState) -> None:
    peer.put(b"k", b"value")
    rig.bucket.set_state(0, state)
    assert said(peer, asked()).status == NOT_MY_VBUCKET
    assert said(peer, frame(GET_VERSION, b"k", extras=u64(MAX), vbucket=7)).status == NOT_MY_VBUCKET


def test_while_clients_are_shut_out_it_has_to_wait() -> None:
    peer = Peer(Rig(warm=False), by_key=False)
    assert said(peer, asked()).status == LATER


def test_until_a_rollback_is_on_disk_it_has_to_wait(rig: Rig, peer: Peer) -> None:
    """What is on disk until then is not what is true."""
    for key in (b"j", b"k"):
        peer.put(key, b"value")
    rig.bucket.set_state(0, VBucketState.REPLICA)
    rig.flush()
    part = rig.bucket.vbuckets[0]
    return_to(part, 1, [], frozenset(), part.failover_log, None)
    assert said(peer, asked()).status == LATER
    rig.flush()
    assert said(peer, asked(b"j")).status == OK
    assert said(peer, asked()).status == NOT_FOUND


@pytest.mark.parametrize(
    "request_",
    [
        frame(GET_VERSION, b"", extras=u64(0)),
        frame(GET_VERSION, b"k", extras=bytes(7)),
        frame(GET_VERSION, b"k"),
        frame(GET_VERSION, b"k", b"v", u64(0)),
    ],
    ids=["no key", "short", "no seqno", "with a value"],
)
def test_another_shape_is_refused_and_the_conversation_goes_on(peer: Peer, request_: bytes) -> None:
    assert peer.say(request_, frame(NOOP)) == error(GET_VERSION, INVALID) + answer(NOOP)
