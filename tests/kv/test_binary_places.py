"""Where a command is carried out (two kinds of listener), and when it cannot be carried out."""

from __future__ import annotations

import pytest

from tests.kv.binary_peer import Peer, answer, counter, error, frame, get_hit, store, u32, u64
from tests.kv.harness import Rig
from uprmc.model import VBucketState

GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ, NOOP, VERSION = range(12)
GETK, APPEND, STAT, SETQ, DELETEQ, FLUSHQ = 0x0C, 0x0E, 0x10, 0x11, 0x14, 0x18
VERBOSITY, TOUCH, GAT, HELLO, GETL, UNLOCK = 0x1B, 0x1C, 0x1D, 0x1F, 0x94, 0x95

VBUCKETS = 4


def keyed(vbucket: int) -> list[bytes]:
    """Every command on a key, addressed to a vBucket."""
    return [
        frame(GET, b"k", vbucket=vbucket),
        frame(GETQ, b"k", vbucket=vbucket),
        frame(GETK, b"k", vbucket=vbucket),
        store(SET, b"k", b"1", vbucket=vbucket),
        store(SETQ, b"k", b"1", vbucket=vbucket),
        store(ADD, b"k", b"1", vbucket=vbucket),
        store(REPLACE, b"k", b"1", vbucket=vbucket),
        frame(APPEND, b"k", b"1", vbucket=vbucket),
        frame(DELETE, b"k", vbucket=vbucket),
        frame(DELETEQ, b"k", vbucket=vbucket),
        frame(INCR, b"k", extras=u64(1) * 2 + u32(0), vbucket=vbucket),
        frame(TOUCH, b"k", extras=u32(0), vbucket=vbucket),
        frame(GAT, b"k", extras=u32(0), vbucket=vbucket),
        frame(GETL, b"k", vbucket=vbucket),
        frame(UNLOCK, b"k", vbucket=vbucket, cas=1),
    ]


@pytest.fixture
def rig() -> Rig:
    return Rig(engine__vbuckets=VBUCKETS)


# --- two listeners ------------------------------------------------------------------------------


def test_the_memcached_listener_ignores_the_vbucket_field(rig: Rig) -> None:
    peer = Peer(rig)
    cas = peer.ask(store(SET, b"k", b"v", vbucket=1))[0].cas
    for number in (0, 1, 3, 4, 0xFFFF):
        assert peer.say(frame(GET, b"k", vbucket=number)) == get_hit(GET, b"v", cas)
    home = rig.bucket.vbucket_of(b"k")
    assert [v.item_count for v in rig.bucket.vbuckets.values()] == [
        int(number == home) for number in range(VBUCKETS)
    ]


def test_on_the_upr_listener_the_same_key_lives_in_two_vbuckets(rig: Rig) -> None:
    peer = Peer(rig, by_key=False)
    first = peer.ask(store(SET, b"k", b"one", vbucket=1))[0].cas
    second = peer.ask(store(ADD, b"k", b"two", vbucket=2))[0].cas
    assert peer.say(frame(GET, b"k", vbucket=1)) == get_hit(GET, b"one", first)
    assert peer.say(frame(GETK, b"k", vbucket=2)) == get_hit(GETK, b"two", second, key=b"k")
    assert peer.say(frame(GET, b"k", vbucket=3)) == error(GET, 1)
    peer.ask(frame(DELETE, b"k", vbucket=1))
    assert peer.say(frame(GET, b"k", vbucket=1)) == error(GET, 1)
    assert peer.say(frame(GET, b"k", vbucket=2)) == get_hit(GET, b"two", second)


@pytest.mark.parametrize("request_", keyed(VBUCKETS))
def test_a_vbucket_that_is_absent_is_not_mine(rig: Rig, request_: bytes) -> None:
    peer = Peer(rig, by_key=False)
    assert peer.say(request_, frame(NOOP)) == error(request_[1], 7) + answer(NOOP)


@pytest.mark.parametrize("state", [VBucketState.REPLICA, VBucketState.PENDING, VBucketState.DEAD])
@pytest.mark.parametrize("by_key", [False, True])
def test_a_vbucket_that_is_not_active_is_not_mine_either(state: VBucketState, by_key: bool) -> None:
    rig = Rig(warm=False)
    number = rig.bucket.vbucket_of(b"k")
    rig.bucket.vbuckets[number].state = state
    rig.bucket.let_traffic_in()
    peer = Peer(rig, by_key=by_key)
    for request in keyed(number):
        assert peer.say(request) == error(request[1], 7)


def test_a_node_of_one_vbucket(rig: Rig) -> None:
    peer = Peer(Rig(engine__vbuckets=1))
    cas = peer.put(b"any", b"v")
    assert peer.say(frame(GET, b"any", vbucket=17)) == get_hit(GET, b"v", cas)


# --- warm-up ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_key", [False, True])
def test_during_warm_up_data_commands_get_temporary_failure(by_key: bool) -> None:
    rig = Rig(warm=False)
    peer = Peer(rig, by_key=by_key)
    for request in [*keyed(0), frame(FLUSH), frame(FLUSHQ), frame(0x91, value=u64(1))]:
        assert peer.say(request) == error(request[1], 0x86)
    assert peer.say(frame(0x92, value=b"\0\0\0\x01k")) == error(0x92, 0x86)
    assert all(vbucket.high_seqno == 0 for vbucket in rig.bucket.vbuckets.values())


def test_during_warm_up_everything_without_data_works() -> None:
    rig = Rig(warm=False)
    peer = Peer(rig)
    assert peer.say(frame(NOOP)) == answer(NOOP)
    assert peer.say(frame(VERSION)) == answer(VERSION, value=b"1.2.3")
    assert peer.say(frame(STAT)).endswith(answer(STAT))
    assert peer.say(frame(VERBOSITY, extras=u32(1))) == answer(VERBOSITY)
    assert peer.ask(frame(HELLO, value=b"\0\x03"))[0].status == 0
    rig.bucket.let_traffic_in()
    assert peer.ask(store(SET, b"k", b"v"))[0].status == 0


# --- no room ------------------------------------------------------------------------------------


def test_while_the_disk_is_full_writes_fail_for_now_and_reads_go_on(rig: Rig) -> None:
    peer = Peer(rig)
    kept = peer.put(b"k", b"5")
    rig.flush()
    peer.put(b"accepted", b"v")
    rig.fail_flush()
    writes = [
        store(SET, b"k", b"1"),
        store(SETQ, b"k", b"1"),
        store(ADD, b"new", b"1"),
        store(REPLACE, b"k", b"1"),
        frame(APPEND, b"k", b"1"),
        counter(INCR, b"k", 1),
        counter(DECR, b"new", 1),
        frame(TOUCH, b"k", extras=u32(9)),
        frame(DELETE, b"k"),
        frame(DELETEQ, b"k"),
    ]
    for request in writes:
        answer = peer.say(request)
        assert (answer[1], answer[6:8]) == (request[1], b"\0\x86")
        assert answer[24:].startswith(b"Temporary failure: the disk refuses commits: ")
    assert peer.say(frame(GET, b"k")) == get_hit(GET, b"5", kept)
    assert peer.value(b"accepted") == b"v"
    rig.flush()  # there is room again
    assert [reply.status for reply in peer.ask(*writes[:1], *writes[2:6])] == [0] * 5


def test_above_the_memory_limit_writes_fail_for_now_and_deletes_work() -> None:
    rig = Rig(memory__quota=8 * 1024 * 1024)
    peer = Peer(rig)
    status, count = 0, 0
    while not status:
        count += 1
        status = peer.ask(store(SET, b"k%d" % count, b"v" * 100_000))[0].status
    assert status == 0x86
    assert count > 70
    assert peer.say(frame(APPEND, b"k1", b"x")) == error(APPEND, 0x86)
    assert peer.value(b"k1") == b"v" * 100_000
    for number in range(1, 10):
        assert peer.say(frame(DELETE, b"k%d" % number)) == answer(DELETE)
    assert peer.ask(store(SET, b"new", b"v"))[0].status == 0


def test_an_item_larger_than_the_whole_quota_never_fits() -> None:
    rig = Rig()
    peer = Peer(rig)
    peer.put(b"k", b"v")
    rig.bucket.account.mutation_limit = 1_000
    rig.bucket.account.write_limit = 0
    assert peer.say(store(SET, b"big", b"v" * 2_000)) == error(SET, 0x82)
    assert peer.say(store(SET, b"small", b"v")) == error(SET, 0x86)
