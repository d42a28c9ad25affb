"""Values that are on disk: commands wait for them, and replies keep the order of the requests."""

from __future__ import annotations

import pytest

from tests.contents import table_of
from tests.kv.binary_peer import Peer, answer, counter, error, frame, get_hit, store, u32
from tests.kv.harness import NOON, Rig

GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ, NOOP, VERSION = range(12)
GETK, GETKQ, APPEND, PREPEND, STAT, SETQ, APPENDQ = 0x0C, 0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x19
TOUCH, GAT, GATQ, GATK, GATKQ, GETL = 0x1C, 0x1D, 0x1E, 0x23, 0x24, 0x94

WAITING = [
    *[frame(opcode, b"k") for opcode in (GET, GETQ, GETK, GETKQ, GETL)],
    *[frame(opcode, b"k", extras=u32(60)) for opcode in (GAT, GATQ, GATK, GATKQ, TOUCH)],
    *[frame(opcode, b"k", b"0") for opcode in (APPEND, PREPEND, APPENDQ)],
    counter(INCR, b"k", 1),
    counter(DECR, b"k", 1),
]


@pytest.fixture
def peer() -> Peer:
    """A peer of a node where k = 5 (flags 7) and a, b, c are ejected."""
    peer = Peer(Rig())
    peer.put(b"k", b"5", flags=7)
    for key in (b"a", b"b", b"c"):
        peer.put(key, b"value of " + key)
    peer.rig.eject(b"k", b"a", b"b", b"c")
    return peer


@pytest.mark.parametrize("request_", WAITING)
def test_a_command_waits_for_its_value_and_is_carried_out_once(peer: Peer, request_: bytes) -> None:
    rig = peer.rig
    seqno = rig.bucket.of_key(b"k").high_seqno
    assert peer.say(request_, frame(NOOP)) == b""
    assert peer.session.input_full
    assert rig.bucket.of_key(b"k").high_seqno == seqno
    assert rig.fetch() == 1
    assert rig.wakes == 1
    replies = peer.ask()
    assert [reply.opcode for reply in replies][-1] == NOOP
    assert all(reply.status == 0 for reply in replies)
    assert len(replies) == (1 if request_[1] == APPENDQ else 2)
    assert not peer.session.input_full
    changed = request_[1] in (GAT, GATQ, GATK, GATKQ, TOUCH, APPEND, PREPEND, APPENDQ, INCR, DECR)
    assert rig.bucket.of_key(b"k").high_seqno == seqno + changed
    assert rig.fetch() == 0
    rig.check()


@pytest.mark.parametrize("request_", WAITING)
def test_a_failing_disk_is_a_temporary_failure_and_no_loop(peer: Peer, request_: bytes) -> None:
    assert peer.say(request_, frame(NOOP)) == b""
    peer.rig.fetch(ok=False)
    assert peer.say() == error(request_[1], 0x86) + answer(NOOP)
    assert peer.rig.fetch() == 0
    assert not peer.rig.resident(b"k")


def test_each_of_several_failing_reads_is_answered_and_tried(peer: Peer) -> None:
    peer.session.receive_data(b"".join(frame(GET, key) for key in (b"a", b"b", b"c")))
    for _ in range(3):
        assert peer.rig.fetch(ok=False) == 1
    assert peer.say(frame(NOOP)) == error(GET, 0x86) * 3 + answer(NOOP)


def test_after_a_failure_the_next_read_has_its_own_chance(peer: Peer) -> None:
    peer.session.receive_data(frame(GET, b"a") + frame(GET, b"b"))
    peer.rig.fetch(ok=False)
    peer.rig.fetch()
    first, second = peer.ask()
    assert (first.status, second.value) == (0x86, b"value of b")


def test_a_read_whose_value_came_another_way_leaves_no_failure_to_the_next(peer: Peer) -> None:
    other = Peer(peer.rig)
    peer.session.receive_data(frame(GET, b"a"))
    fetch = peer.rig.bucket.fetcher.begin()
    assert fetch is not None
    assert other.ask(store(SET, b"a", b"new"))[0].status == 0
    peer.rig.bucket.fetcher.failed(fetch)
    assert peer.ask()[0].value == b"new"
    assert peer.say(frame(GET, b"b")) == b""
    peer.rig.fetch()
    assert peer.ask()[0].value == b"value of b"


def test_pipelined_requests_around_a_wait_keep_their_order(peer: Peer) -> None:
    there = peer.put(b"there", b"here")
    said = peer.say(
        frame(GET, b"there", opaque=1),
        frame(GETK, b"a", opaque=2),
        frame(GET, b"there", opaque=3),
        frame(GETQ, b"nk", opaque=4),
        frame(GETKQ, b"b", opaque=5),
        store(SETQ, b"b", b"new", opaque=6),
        frame(GET, b"b", opaque=7),
        frame(NOOP, opaque=8),
    )
    assert said == get_hit(GET, b"here", there, opaque=1)  # at once
    assert peer.rig.fetch_all() == 2
    replies = peer.ask()
    assert [reply.opaque for reply in replies] == [2, 3, 5, 7, 8]
    assert [reply.value for reply in replies] == [
        *(b"value of a", b"here", b"value of b", b"new", b""),
    ]


def test_input_that_comes_during_the_wait_is_kept(peer: Peer) -> None:
    request = store(SET, b"x", b"1")
    assert peer.say(frame(GET, b"a")) == b""
    assert peer.say(request[:20]) == peer.say(request[20:], frame(GET, b"x")[:10]) == b""
    assert peer.rig.item(b"x") is None
    peer.rig.fetch()
    assert [reply.opcode for reply in peer.ask(frame(GET, b"x")[10:])] == [
        GET,
        SET,
        GET,
    ]
    peer = Peer(peer.rig)
    assert peer.value(b"x") == b"1"


def test_a_partial_header_behind_the_wait(peer: Peer) -> None:
    assert peer.say(frame(GET, b"a"), frame(NOOP)[:10]) == b""
    peer.rig.fetch()
    assert [reply.value for reply in peer.ask()] == [b"value of a"]
    assert not peer.session.input_full
    assert peer.say(frame(NOOP)[10:]) == answer(NOOP)


def test_values_that_come_in_the_very_call_that_asks(peer: Peer) -> None:
    peer.rig.fetch_at_once()
    replies = peer.ask(frame(GET, b"a"), frame(GET, b"b"), frame(NOOP))
    assert [reply.value for reply in replies] == [b"value of a", b"value of b", b""]
    peer.rig.bucket.fetcher.on_wanted = lambda: (peer.rig.fetch(ok=False), None)[1]
    assert peer.say(frame(GET, b"c"), frame(NOOP)) == error(GET, 0x86) + answer(NOOP)


def test_a_document_that_changes_during_the_wait_is_answered_as_it_is_then(peer: Peer) -> None:
    peer.session.receive_data(frame(GET, b"a") + frame(GET, b"b") + frame(GET, b"c"))
    other = Peer(peer.rig)
    other.ask(frame(DELETE, b"a"))
    cas = other.put(b"b", b"new")
    peer.rig.fetch_all()
    assert peer.say() == error(GET, 1) + get_hit(GET, b"new", cas) + get_hit(
        GET, b"value of c", table_of(peer.rig.bucket.of_key(b"c"))[b"c"].cas
    )


def test_an_ejected_document_needs_no_value_to_be_replaced_deleted_or_expired(peer: Peer) -> None:
    replies = peer.ask(
        store(REPLACE, b"a", b"new"), frame(DELETE, b"b"), store(ADD, b"c", b"x"), frame(GET, b"a")
    )
    assert [reply.status for reply in replies] == [0, 0, 2, 0]
    peer.put(b"d", b"v", expiration=10)
    peer.rig.eject(b"d")
    peer.rig.clock.time = NOON + 10
    assert peer.say(frame(GET, b"d")) == error(GET, 1)
    assert peer.rig.fetch() == 0


def test_a_peer_that_leaves_during_the_wait_is_forgotten(peer: Peer) -> None:
    peer.session.receive_data(frame(GET, b"a") + store(SET, b"x", b"1"))
    peer.session.connection_lost()
    peer.rig.fetch()
    assert peer.say() == b""
    assert peer.rig.wakes == 0
    assert peer.rig.item(b"x") is None


def test_a_peer_that_leaves_during_a_flush_is_forgotten(peer: Peer) -> None:
    peer.session.receive_data(frame(FLUSH) + store(SET, b"x", b"1"))
    peer.session.connection_lost()
    peer.rig.flush()
    assert peer.rig.wakes == 0
    assert peer.rig.item(b"x") is None


def test_one_who_waits_does_not_hold_up_the_others(peer: Peer) -> None:
    peer.session.receive_data(frame(GET, b"a"))
    assert Peer(peer.rig).say(frame(NOOP)) == answer(NOOP)
