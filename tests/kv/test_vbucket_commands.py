"""vBuckets and their states, seqnos and documents, as managers and tools ask for them."""

from __future__ import annotations

import struct
import sys
from typing import Any

import pytest

from tests.contents import table_of
from tests.kv.binary_peer import Peer, answer, error, frame, store, u32, u64
from tests.kv.harness import NOON, Rig
from uprmc.engine.failover_log import branched
from uprmc.model import SnapshotRange, VBucketState

GET, SET, DELETE, NOOP, GETL = 0x00, 0x01, 0x04, 0x0A, 0x94
SET_VBUCKET, GET_VBUCKET, DEL_VBUCKET, SEQNOS = 0x3D, 0x3E, 0x3F, 0x48
REPLICA_GET, EVICT, LOG, RANDOM, PERSISTED, KEYS = 0x83, 0x93, 0x96, 0xB6, 0xB7, 0xB8
SET_TOKEN = 0xF4
OBSERVE_SEQNO, OBSERVE = 0x91, 0x92

OK, ENOENT, EEXISTS, EINVAL, NOT_MY, ERANGE, TMPFAIL = 0, 1, 2, 4, 7, 0x22, 0x86
ACTIVE, REPLICA, PENDING, DEAD = VBucketState
VBUCKETS = 4


@pytest.fixture
def rig() -> Rig:
    return Rig(engine__vbuckets=VBUCKETS)


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig, by_key=False)


def set_state(number: int, state: int, **more: Any) -> bytes:
    return frame(SET_VBUCKET, extras=u32(state), vbucket=number, **more)


def status(peer: Peer, *frames: bytes) -> int:
    (reply,) = peer.ask(*frames)
    return reply.status


def refused(opcode: int, status: int) -> bytes:
    """A refusal whose text is not in the peer's table."""
    texts = {ERANGE: b"Outside range"}
    return answer(opcode, status, value=texts[status])


# --- SET_VBUCKET, GET_VBUCKET -------------------------------------------------------------------


def test_states_are_the_references_v21_and_v22() -> None:
    peer = Peer(Rig(engine__vbuckets=8), by_key=False)
    asked = "803d0000040000050000000400000019000000000000000000000002"
    assert peer.say(bytes.fromhex(asked)).hex() == (
        "813d00000000000000000000000000190000000000000000"
    )
    asked = "803e000000000005000000000000001a0000000000000000"
    assert peer.say(bytes.fromhex(asked)).hex() == (
        "813e000000000000000000040000001a000000000000000000000002"
    )


@pytest.mark.parametrize("state", VBucketState)
@pytest.mark.parametrize("by_key", [False, True])
def test_each_state_can_be_set_in_each_form_and_read(
    rig: Rig, state: VBucketState, by_key: bool
) -> None:
    peer = Peer(rig, by_key=by_key)  # without a key the field counts on both listeners
    forms: list[dict[str, bytes]] = [
        {"extras": u32(state)},
        {"value": u32(state)},
        {"extras": bytes([state])},
        {"extras": bytes([state]), "value": b'{"topology":[["a"]]}'},
    ]
    for number, form in enumerate(forms):
        assert peer.say(frame(SET_VBUCKET, vbucket=number, **form)) == answer(SET_VBUCKET)
        assert rig.bucket.vbuckets[number].state is state
        assert peer.say(frame(GET_VBUCKET, vbucket=number)) == answer(GET_VBUCKET, value=u32(state))


def test_a_vbucket_that_is_absent_is_made(rig: Rig, peer: Peer) -> None:
    del rig.bucket.vbuckets[2], rig.bucket.active[2], rig.bucket.lookups[2]
    assert peer.say(frame(GET_VBUCKET, vbucket=2)) == error(GET_VBUCKET, NOT_MY)
    assert peer.say(set_state(2, ACTIVE)) == answer(SET_VBUCKET)
    assert status(peer, store(SET, b"k", b"v", vbucket=2)) == OK


@pytest.mark.acceptance("D10")
def test_a_failover_adds_a_branch_to_the_log_and_the_same_state_again_does_not(
    rig: Rig, peer: Peer
) -> None:
    def log() -> list[tuple[int, int]]:
        (reply,) = peer.ask(frame(LOG, vbucket=1))
        return list(struct.iter_unpack(">QQ", reply.value))

    ((first, start),) = log()
    assert start == 0
    peer.ask(store(SET, b"a", b"v", vbucket=1), store(SET, b"b", b"v", vbucket=1))
    assert peer.say(set_state(1, ACTIVE)) == answer(SET_VBUCKET)
    assert log() == [(first, 0)]
    peer.ask(set_state(1, REPLICA))
    assert log() == [(first, 0)]
    peer.ask(set_state(1, ACTIVE))
    (second, seqno), oldest = log()
    assert (seqno, oldest) == (2, (first, 0))
    assert second not in (0, first)


@pytest.mark.parametrize("number", [VBUCKETS, 1_024, 0xFFFF])
def test_a_number_that_no_vbucket_can_have_is_out_of_range(peer: Peer, number: int) -> None:
    assert peer.say(set_state(number, ACTIVE)) == refused(SET_VBUCKET, ERANGE)
    assert len(peer.rig.bucket.vbuckets) == VBUCKETS


@pytest.mark.parametrize(
    "form",
    [
        {"extras": u32(0)},
        {"extras": u32(5)},
        {"extras": b"\0"},
        {"extras": b"\x05"},
        {"extras": u32(2), "value": b"x"},
        {"value": b"abc"},
        {},
        {"extras": b"\x02", "value": b"no json"},
        {"extras": b"\x02", "value": b"[]"},
    ],
)
def test_a_state_that_there_is_not_is_refused(peer: Peer, form: dict[str, bytes]) -> None:
    request = frame(SET_VBUCKET, vbucket=1, **form)
    assert peer.say(request, frame(NOOP)) == error(SET_VBUCKET, EINVAL) + answer(NOOP)
    assert peer.rig.bucket.vbuckets[1].state is ACTIVE


def test_a_vbucket_is_named_by_text_in_the_key_too(rig: Rig) -> None:
    rig.bucket.set_state(3, PENDING)
    for by_key in (False, True):
        peer = Peer(rig, by_key=by_key)
        assert peer.say(frame(GET_VBUCKET, b"3")) == answer(GET_VBUCKET, value=u32(PENDING))
        assert peer.say(frame(GET_VBUCKET, b"4")) == error(GET_VBUCKET, NOT_MY)
        assert peer.say(frame(GET_VBUCKET, b"9" * 250)) == error(GET_VBUCKET, NOT_MY)
        for text in (b"x", b"-1", b"1 ", "\u0663".encode()):
            assert peer.say(frame(GET_VBUCKET, text)) == error(GET_VBUCKET, EINVAL)


def test_a_state_that_changes_takes_the_documents_away_from_clients(peer: Peer) -> None:
    assert status(peer, store(SET, b"k", b"v", vbucket=1)) == OK
    peer.ask(set_state(1, DEAD))
    assert status(peer, frame(GET, b"k", vbucket=1)) == NOT_MY
    peer.ask(set_state(1, ACTIVE))
    assert status(peer, frame(GET, b"k", vbucket=1)) == OK


# --- DEL_VBUCKET --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"", b"async=0"])
def test_a_deletion_is_answered_when_the_vbucket_is_gone_from_disk(
    rig: Rig, peer: Peer, value: bytes
) -> None:
    peer.ask(store(SET, b"k", b"v", vbucket=1), set_state(1, DEAD))
    rig.flush()
    delete = frame(DEL_VBUCKET, value=value, vbucket=1)
    assert peer.say(delete, frame(NOOP)) == b""
    assert Peer(rig).say(frame(NOOP)) == answer(NOOP)  # nobody else waits
    assert rig.store.view().header(1) is not None
    rig.flush()
    assert rig.store.view().header(1) is None
    assert peer.say() == answer(DEL_VBUCKET) + answer(NOOP)
    assert status(peer, frame(GET_VBUCKET, vbucket=1)) == NOT_MY


def test_a_deletion_that_the_disk_refuses_is_a_temporary_failure(rig: Rig, peer: Peer) -> None:
    peer.ask(set_state(1, DEAD))
    rig.flush()
    assert peer.say(frame(DEL_VBUCKET, vbucket=1)) == b""
    rig.fail_flush()
    assert peer.say() == error(DEL_VBUCKET, TMPFAIL)


@pytest.mark.parametrize("state", [ACTIVE, REPLICA, PENDING])
def test_only_a_dead_vbucket_can_be_deleted(peer: Peer, state: VBucketState) -> None:
    peer.ask(set_state(1, state))
    delete = frame(DEL_VBUCKET, vbucket=1)
    assert peer.say(delete, frame(NOOP)) == error(DEL_VBUCKET, EINVAL) + answer(NOOP)
    assert peer.rig.bucket.vbuckets[1].state is state


def test_a_vbucket_that_is_not_there_cannot_be_deleted(peer: Peer) -> None:
    for number in (VBUCKETS, 0xFFFF):
        request = frame(DEL_VBUCKET, vbucket=number)
        assert peer.say(request, frame(NOOP)) == error(DEL_VBUCKET, NOT_MY) + answer(NOOP)


@pytest.mark.parametrize("value", [b"async=1", b"async=", b"async=00", b"x"])
def test_a_deletion_says_nothing_else(peer: Peer, value: bytes) -> None:
    peer.ask(set_state(1, DEAD))
    assert peer.say(frame(DEL_VBUCKET, value=value, vbucket=1)) == error(DEL_VBUCKET, EINVAL)
    assert 1 in peer.rig.bucket.vbuckets


def test_a_peer_that_leaves_during_a_deletion_is_forgotten(rig: Rig, peer: Peer) -> None:
    peer.say(set_state(1, DEAD), frame(DEL_VBUCKET, vbucket=1), store(SET, b"k", b"v"))
    peer.session.connection_lost()
    rig.flush()
    assert 1 not in rig.bucket.vbuckets
    assert rig.bucket.vbuckets[0].item_count == 0


# --- the session token --------------------------------------------------------------------------


def test_states_are_changed_only_under_the_session_token(peer: Peer) -> None:
    peer.ask(frame(SET_TOKEN, extras=u64(77)))
    for cas, expected in ((0, OK), (77, OK), (76, EEXISTS)):
        assert status(peer, set_state(1, DEAD, cas=cas)) == expected
    assert status(peer, frame(DEL_VBUCKET, vbucket=1, cas=76)) == EEXISTS
    assert 1 in peer.rig.bucket.vbuckets
    peer.say(frame(DEL_VBUCKET, vbucket=1, cas=77))
    peer.rig.flush()
    assert peer.say() == answer(DEL_VBUCKET)


# --- GET_ALL_VB_SEQNOS --------------------------------------------------------------------------


def seqnos(peer: Peer, extras: bytes = b"") -> dict[int, int]:
    (reply,) = peer.ask(frame(SEQNOS, extras=extras))
    assert reply.status == OK
    pairs = list(struct.iter_unpack(">HQ", reply.value))
    assert pairs == sorted(pairs)
    return dict(pairs)


@pytest.fixture
def mixed(rig: Rig, peer: Peer) -> Peer:
    """vBucket 0 active at 2, 1 replica at 3, 2 pending, 3 dead."""
    for number, count in ((0, 2), (1, 3)):
        for key in range(count):
            peer.ask(store(SET, b"k%d" % key, b"v", vbucket=number))
    for number, state in ((1, REPLICA), (2, PENDING), (3, DEAD)):
        rig.bucket.set_state(number, state)
    return peer


def test_seqnos_of_all_that_live_or_of_one_state(mixed: Peer) -> None:
    living = {0: 2, 1: 3, 2: 0}
    for extras in (b"", u32(0), u32(0) + u32(0)):
        assert seqnos(mixed, extras) == living
    assert seqnos(mixed, u32(ACTIVE)) == {0: 2}
    assert seqnos(mixed, u32(REPLICA) + u32(0)) == {1: 3}
    assert seqnos(mixed, u32(PENDING)) == {2: 0}
    assert seqnos(mixed, u32(DEAD)) == {3: 0}


@pytest.mark.parametrize(("end", "seqno"), [(3, 3), (9, 1)])
def test_the_seqno_of_a_replica_ends_with_its_last_complete_snapshot(
    mixed: Peer, end: int, seqno: int
) -> None:
    mixed.rig.bucket.vbuckets[1].receiving = SnapshotRange(1, end)
    assert seqnos(mixed, u32(REPLICA)) == {1: seqno}


@pytest.mark.parametrize("extras", [u32(5), u32(0xFFFFFFFF), u32(0) + u32(8), u32(5) + u32(0)])
def test_seqnos_of_a_state_or_collection_that_there_is_not(peer: Peer, extras: bytes) -> None:
    assert peer.say(frame(SEQNOS, extras=extras)) == error(SEQNOS, EINVAL)


# --- GET_FAILOVER_LOG ---------------------------------------------------------------------------


@pytest.mark.acceptance("D24", "D10")
def test_failover_logs_come_from_the_vbuckets_that_are_owned() -> None:
    rig = Rig(engine__vbuckets=8)
    for number in (5, 6):
        rig.bucket.set_state(number, DEAD)
        rig.bucket.remove(number, lambda ok: None)
    rig.flush()
    vbucket = rig.bucket.vbuckets[2]
    vbucket.failover_log = branched(vbucket.failover_log, 0xABC, 0, 25)
    rig.bucket.set_state(3, REPLICA)
    asked = [frame(LOG, vbucket=number, opaque=number) for number in (1, 2, 3, 5, 6)]
    replies = Peer(rig).ask(*asked)
    assert [reply.opaque for reply in replies] == [1, 2, 3, 5, 6]
    assert [reply.status for reply in replies] == [OK, OK, OK, NOT_MY, NOT_MY]
    for number, reply in zip((1, 2, 3), replies, strict=False):
        log = rig.bucket.vbuckets[number].failover_log
        assert reply.value == b"".join(u64(entry.uuid) + u64(entry.seqno) for entry in log)
    assert replies[1].value.startswith(u64(0xABC) + u64(0))


# --- GET_REPLICA --------------------------------------------------------------------------------


@pytest.fixture
def replica(rig: Rig, peer: Peer) -> Peer:
    """A peer of a rig whose vBucket 1 is a replica with the documents k and gone."""
    peer.ask(
        store(SET, b"k", b"v", flags=9, vbucket=1),
        store(SET, b"gone", b"v", expiration=10, vbucket=1),
    )
    rig.bucket.set_state(1, REPLICA)
    return peer


def test_a_replica_gives_its_version_to_those_who_ask_for_it(replica: Peer) -> None:
    item = table_of(replica.rig.bucket.vbuckets[1])[b"k"]
    asked = frame(REPLICA_GET, b"k", vbucket=1)
    found = answer(REPLICA_GET, extras=u32(9), key=b"k", value=b"v", cas=item.cas)
    assert replica.say(asked) == found
    assert replica.say(frame(REPLICA_GET, b"nk", vbucket=1)) == error(REPLICA_GET, ENOENT)
    assert status(replica, frame(GET, b"k", vbucket=1)) == NOT_MY


@pytest.mark.parametrize("state", [ACTIVE, PENDING, DEAD])
def test_only_a_replica_is_asked_as_one(replica: Peer, state: VBucketState) -> None:
    replica.rig.bucket.set_state(1, state)
    asked = frame(REPLICA_GET, b"k", vbucket=1)
    assert replica.say(asked) == error(REPLICA_GET, NOT_MY)
    assert replica.say(frame(REPLICA_GET, b"k", vbucket=9)) == error(REPLICA_GET, NOT_MY)


def test_a_replica_expires_nothing_by_itself(replica: Peer) -> None:
    replica.rig.clock.time = NOON + 10
    vbucket = replica.rig.bucket.vbuckets[1]
    seqno = vbucket.high_seqno
    assert status(replica, frame(REPLICA_GET, b"gone", vbucket=1)) == ENOENT
    value = struct.pack(">HH", 1, 4) + b"gone"
    assert status(replica, frame(OBSERVE, value=value)) == OK
    assert vbucket.high_seqno == seqno
    assert not table_of(vbucket)[b"gone"].life


def test_a_replica_fetches_what_is_only_on_disk(replica: Peer) -> None:
    rig = replica.rig
    rig.flush()
    vbucket = rig.bucket.vbuckets[1]
    vbucket.eject(b"k")
    assert replica.say(frame(REPLICA_GET, b"k", vbucket=1)) == b""
    rig.fetch()
    (reply,) = replica.ask()
    assert (reply.status, reply.key, reply.value) == (OK, b"k", b"v")


# --- observing replicas -------------------------------------------------------------------------


def observe(number: int, key: bytes) -> bytes:
    return frame(OBSERVE, value=struct.pack(">HH", number, len(key)) + key)


def test_replicas_can_be_observed_because_clients_wait_for_theirs(replica: Peer) -> None:
    vbucket = replica.rig.bucket.vbuckets[1]
    uuid = vbucket.failover_log[0].uuid
    (reply,) = replica.ask(observe(1, b"k"))
    assert (reply.status, reply.value[5]) == (OK, 0)
    replica.rig.flush()
    (reply,) = replica.ask(observe(1, b"k"))
    assert (reply.status, reply.value[5], reply.cas) == (OK, 1, 0)
    (reply,) = replica.ask(frame(OBSERVE_SEQNO, value=u64(uuid), vbucket=1))
    assert reply.value == struct.pack(">BHQQQ", 0, 1, uuid, 2, 2)


def test_what_is_dead_or_absent_cannot_be_observed(replica: Peer) -> None:
    replica.rig.bucket.set_state(1, DEAD)
    for number in (1, VBUCKETS):
        assert replica.say(observe(number, b"k")) == error(OBSERVE, NOT_MY)
        asked = frame(OBSERVE_SEQNO, value=u64(1), vbucket=number)
        assert replica.say(asked) == error(OBSERVE_SEQNO, NOT_MY)


def test_an_observed_document_whose_time_has_come_is_deleted_and_that_is_not_on_disk_yet(
    rig: Rig, peer: Peer
) -> None:
    peer.ask(store(SET, b"k", b"v", expiration=10, vbucket=1))
    rig.flush()
    rig.clock.time = NOON + 10
    (reply,) = peer.ask(observe(1, b"k"))
    assert reply.value[5] == 0x81
    rig.flush()
    assert peer.ask(observe(1, b"k"))[0].value[5] == 0x80


def test_observe_estimates_when_everything_will_be_persisted() -> None:
    peer = Peer(Rig(flush__min_delay_s=0.25))
    peer.put(b"k", b"v")
    number = peer.rig.bucket.vbucket_of(b"k")
    assert peer.ask(observe(number, b"k"))[0].cas == 250 << 32
    assert peer.ask(observe(number, b"nk"))[0].cas == 0
    peer.rig.flush()
    assert peer.ask(observe(number, b"k"))[0].cas == 0


# --- EVICT_KEY ----------------------------------------------------------------------------------


def test_a_value_is_ejected_once_it_is_on_disk(rig: Rig, peer: Peer) -> None:
    peer.ask(store(SET, b"k", b"value", vbucket=1))
    evict = frame(EVICT, b"k", vbucket=1)
    dirty = answer(EVICT, EEXISTS, value=b"Can't eject: Dirty object.")
    assert peer.say(evict) == dirty
    rig.flush()
    used = rig.bucket.account.used
    assert peer.say(evict) == answer(EVICT, value=b"Ejected.")
    assert rig.bucket.account.used == used - len(b"value")
    assert rig.bucket.stats.value_ejects == 1
    assert peer.say(evict) == answer(EVICT, value=b"Already ejected.")
    assert peer.say(frame(GET, b"k", vbucket=1)) == b""
    rig.fetch()
    assert peer.ask()[0].value == b"value"
    rig.check()


def test_what_is_not_there_cannot_be_ejected(peer: Peer) -> None:
    assert peer.say(frame(EVICT, b"nk")) == answer(EVICT, ENOENT, value=b"Not found.")
    assert peer.say(frame(EVICT, b"nk", vbucket=9)) == error(EVICT, NOT_MY)


# --- GET_KEYS -----------------------------------------------------------------------------------


def keys(peer: Peer, first: bytes, extras: bytes = b"", number: int = 0) -> list[bytes]:
    (reply,) = peer.ask(frame(KEYS, first, extras=extras, vbucket=number))
    assert reply.status == OK
    found, rest = [], reply.value
    while rest:
        length = int.from_bytes(rest[:2])
        found.append(rest[2 : 2 + length])
        rest = rest[2 + length :]
    return found


def test_keys_come_in_order_from_the_given_one_on(peer: Peer) -> None:
    for key in (b"d", b"b", b"a", b"c", b"e"):
        peer.ask(store(SET, key, b"v"))
    peer.ask(store(SET, b"elsewhere", b"v", vbucket=1))
    peer.ask(store(SET, b"bb", b"v", expiration=1), frame(DELETE, b"d"))
    peer.rig.clock.time += 1
    assert keys(peer, b"a") == [b"a", b"b", b"c", b"e"]
    assert keys(peer, b"aa") == [b"b", b"c", b"e"]
    assert keys(peer, b"b", u32(2)) == [b"b", b"c"]
    assert keys(peer, b"f") == []
    assert keys(peer, b"a", u32(0)) == []


def test_no_more_keys_are_listed_than_the_limit_says() -> None:
    peer = Peer(Rig(kv__max_listed_keys=3), by_key=False)
    for number in range(5):
        peer.ask(store(SET, b"k%d" % number, b"v"))
    assert keys(peer, b"k") == keys(peer, b"k", u32(2**32 - 1)) == [b"k0", b"k1", b"k2"]


def test_keys_are_listed_by_a_thousand_unless_told_otherwise(peer: Peer) -> None:
    for number in range(1_001):
        peer.ask(store(SET, b"k%04d" % number, b"v"))
    assert len(keys(peer, b"k")) == 1_000
    assert len(keys(peer, b"k", u32(2_000))) == 1_001


@pytest.mark.parametrize("state", [REPLICA, PENDING, DEAD])
def test_only_an_active_vbucket_lists_its_keys(peer: Peer, state: VBucketState) -> None:
    peer.rig.bucket.set_state(1, state)
    assert peer.say(frame(KEYS, b"a", vbucket=1)) == error(KEYS, NOT_MY)


# --- GET_RANDOM_KEY -----------------------------------------------------------------------------


def test_a_random_document_is_any_of_those_that_live(peer: Peer) -> None:
    for number in range(8):
        peer.ask(store(SET, b"k%d" % number, b"v%d" % number, vbucket=number % 2, flags=number))
    peer.ask(frame(DELETE, b"k0"), store(SET, b"k1", b"v", vbucket=1, expiration=1))
    peer.rig.clock.time += 1
    peer.rig.bucket.set_state(1, REPLICA)
    seen = {}
    for _ in range(200):
        (reply,) = peer.ask(frame(RANDOM))
        assert reply.status == OK
        seen[reply.key] = (reply.value, reply.extras, reply.cas)
    table = table_of(peer.rig.bucket.vbuckets[0])
    assert seen == {b"k%d" % n: (b"v%d" % n, u32(n), table[b"k%d" % n].cas) for n in (2, 4, 6)}


def test_the_only_document_is_found_wherever_the_search_begins(peer: Peer) -> None:
    peer.ask(*(store(SET, b"k%d" % number, b"v") for number in range(5)))
    peer.ask(*(frame(DELETE, b"k%d" % number) for number in range(5) if number != 2))
    for _ in range(10):
        assert peer.ask(frame(RANDOM))[0].key == b"k2"


def test_nothing_there_is_nothing_found(peer: Peer) -> None:
    assert peer.say(frame(RANDOM)) == error(RANDOM, ENOENT)
    peer.ask(store(SET, b"k", b"v"), frame(DELETE, b"k"))
    assert peer.say(frame(RANDOM)) == error(RANDOM, ENOENT)
    peer.ask(store(SET, b"k", b"v", expiration=1))
    peer.rig.clock.time += 1
    assert peer.say(frame(RANDOM)) == error(RANDOM, ENOENT)


def test_a_random_document_is_fetched_if_need_be() -> None:
    peer = Peer(Rig())
    for number in range(20):
        peer.put(b"k%d" % number, b"v%d" % number)
    peer.rig.eject(*(b"k%d" % number for number in range(20)))
    assert peer.say(frame(RANDOM), frame(NOOP)) == b""
    assert peer.rig.fetch() == 1
    first, second = peer.ask()
    assert (first.status, first.value) == (OK, b"v" + first.key[1:])
    assert second.opcode == NOOP
    peer.rig.eject(first.key)
    peer.session.receive_data(frame(RANDOM))
    peer.rig.fetch(ok=False)
    assert peer.say() == error(RANDOM, TMPFAIL)


def test_a_random_document_that_goes_during_the_wait(rig: Rig) -> None:
    peer, other = Peer(rig), Peer(rig)
    peer.put(b"k", b"v")
    rig.eject(b"k")
    peer.session.receive_data(frame(RANDOM))
    other.ask(frame(DELETE, b"k"))
    rig.fetch()
    assert peer.say() == error(RANDOM, TMPFAIL)


def test_a_random_document_that_is_locked_hides_its_cas(peer: Peer) -> None:
    peer.ask(store(SET, b"k", b"v"), frame(GETL, b"k"))
    assert peer.ask(frame(RANDOM))[0].cas == 2**64 - 1


# --- SEQNO_PERSISTENCE --------------------------------------------------------------------------


def persisted(seqno: int, number: int = 1) -> bytes:
    return frame(PERSISTED, extras=u64(seqno), vbucket=number)


def test_what_is_on_disk_is_answered_at_once(rig: Rig, peer: Peer) -> None:
    assert peer.say(persisted(0)) == answer(PERSISTED)
    peer.ask(store(SET, b"k", b"v", vbucket=1))
    rig.flush()
    assert peer.say(persisted(1)) == answer(PERSISTED)
    assert peer.say(persisted(1, VBUCKETS)) == error(PERSISTED, NOT_MY)


def test_a_seqno_is_waited_for_and_nobody_else_waits(rig: Rig, peer: Peer) -> None:
    peer.ask(store(SET, b"k", b"v", vbucket=1))
    assert peer.say(persisted(1), frame(NOOP)) == b""
    assert Peer(rig).say(frame(NOOP)) == answer(NOOP)
    wakes = rig.wakes
    rig.flush()
    assert rig.wakes > wakes
    assert peer.say() == answer(PERSISTED) + answer(NOOP)


def test_a_seqno_that_is_not_there_yet_is_waited_for(rig: Rig, peer: Peer) -> None:
    rig.flush()
    assert peer.say(persisted(2)) == b""
    assert not rig.bucket.flusher.pending  # no commit is made for what cannot be in it
    other = Peer(rig, by_key=False)
    for key in (b"a", b"b"):
        assert peer.say() == b""
        other.ask(store(SET, key, b"v", vbucket=1))
    assert peer.say() == b""
    rig.flush()
    assert peer.say() == answer(PERSISTED)


def test_a_long_queue_is_on_disk_when_its_last_commit_is() -> None:
    rig = Rig(flush__batch_items=100)
    peer = Peer(rig, by_key=False)
    for number in range(1_000):
        peer.ask(store(SET, b"k%d" % number, b"v", vbucket=1))
    assert peer.say(persisted(2)) == b""
    flusher = rig.bucket.flusher
    said = []
    while not (said and said[-1]):
        flush = flusher.begin()
        assert flush is not None
        flusher.commit(flush)
        flusher.finish(flush)
        said.append(peer.say())
        assert bool(said[-1]) == (flusher.durable_seqno(rig.bucket.vbuckets[1]) >= 2)
    assert said[-1] == answer(PERSISTED)
    assert len(said) > 1


def test_the_wait_ends_after_the_time_out(rig: Rig, peer: Peer) -> None:
    peer.ask(store(SET, b"k", b"v", vbucket=1))
    peer.session.receive_data(persisted(1) + frame(NOOP))
    peer.session.tick(1_000.0)
    peer.session.tick(1_029.9)
    assert peer.say() == b""
    peer.session.tick(1_030.0)
    assert peer.say() == error(PERSISTED, TMPFAIL) + answer(NOOP)
    rig.flush()
    peer.session.tick(1_060.0)
    assert peer.say() == b""


def test_the_time_out_is_a_setting() -> None:
    peer = Peer(Rig(kv__persistence_timeout_s=2.0))
    peer.session.receive_data(persisted(1))
    peer.session.tick(5.0)
    peer.session.tick(7.0)
    assert peer.say() == error(PERSISTED, TMPFAIL)


def test_a_commit_that_fails_does_not_end_the_wait(rig: Rig, peer: Peer) -> None:
    peer.ask(store(SET, b"k", b"v", vbucket=1))
    peer.session.receive_data(persisted(1))
    rig.fail_flush()
    assert peer.say() == b""
    rig.flush()
    assert peer.say() == answer(PERSISTED)


def test_while_persistence_is_stopped_nothing_gathers_and_the_clock_goes_on(
    rig: Rig, peer: Peer
) -> None:
    peer.ask(store(SET, b"k", b"v", vbucket=1))
    rig.bucket.flusher.pause()
    waiting = len(rig.bucket.flusher._waiters)
    peer.session.receive_data(persisted(1))
    peer.session.tick(0.0)
    peer.session.tick(1.0)
    assert len(rig.bucket.flusher._waiters) == waiting
    rig.bucket.flusher.resume()
    peer.session.tick(2.0)
    rig.flush()
    assert peer.say() == answer(PERSISTED)


def test_looking_again_and_again_for_a_seqno_that_is_not_there_gathers_nothing(
    rig: Rig, peer: Peer
) -> None:
    peer.session.receive_data(persisted(1))
    for second in range(5):
        peer.session.tick(float(second))
    assert len(rig.bucket.vbuckets[1].waiting) == 1


@pytest.mark.parametrize("leaves", [True, False])
def test_a_wait_leaves_nothing_for_the_cyclic_collector(rig: Rig, leaves: bool) -> None:
    peer = Peer(rig, by_key=False)
    peer.ask(store(SET, b"k", b"v", vbucket=1))
    peer.session.receive_data(persisted(1))
    if leaves:
        peer.session.connection_lost()
    else:
        rig.flush()
        assert peer.say() == answer(PERSISTED)
    references = sys.getrefcount(peer.session)
    assert references == 2  # the peer's, and that of the call


@pytest.mark.parametrize("how", ["dead", "removed"])
def test_the_wait_ends_with_its_vbucket(rig: Rig, peer: Peer, how: str) -> None:
    peer.session.receive_data(persisted(5))
    rig.bucket.set_state(1, DEAD)
    if how == "removed":
        rig.bucket.remove(1, lambda ok: None)
        rig.bucket.set_state(1, ACTIVE)
    assert peer.say() == b""
    peer.session.tick(0.0)
    assert peer.say() == error(PERSISTED, TMPFAIL)


def test_a_change_of_state_does_not_end_the_wait(rig: Rig, peer: Peer) -> None:
    peer.session.receive_data(persisted(1))
    rig.bucket.set_state(1, REPLICA)
    rig.bucket.set_state(1, ACTIVE)
    peer.session.tick(0.0)
    Peer(rig, by_key=False).ask(store(SET, b"k", b"v", vbucket=1))
    rig.flush()
    assert peer.say() == answer(PERSISTED)


@pytest.mark.parametrize("seqno", [1, 9])
def test_a_peer_that_leaves_during_the_wait_is_forgotten(rig: Rig, peer: Peer, seqno: int) -> None:
    peer.ask(store(SET, b"k", b"v", vbucket=1))
    peer.session.receive_data(persisted(seqno) + store(SET, b"late", b"v"))
    peer.session.connection_lost()
    assert rig.bucket.vbuckets[1].waiting == []
    wakes = rig.wakes
    rig.flush()
    Peer(rig, by_key=False).ask(*(store(SET, b"k%d" % n, b"v", vbucket=1) for n in range(9)))
    rig.flush()
    peer.session.tick(1e9)
    assert peer.say() == b""
    assert rig.wakes == wakes
    assert rig.bucket.vbuckets[0].item_count == 0


# --- closed doors -------------------------------------------------------------------------------

MANAGING = [
    set_state(1, ACTIVE),
    frame(DEL_VBUCKET, vbucket=1),
    frame(SEQNOS),
    persisted(0),
    frame(GET_VBUCKET, vbucket=9),
    frame(LOG, vbucket=9),
]
READING = [
    frame(REPLICA_GET, b"k", vbucket=1),
    frame(EVICT, b"k", vbucket=1),
    frame(KEYS, b"k", vbucket=1),
    frame(RANDOM),
]


@pytest.mark.parametrize("request_", MANAGING + READING)
def test_during_warm_up_a_node_does_not_know_what_it_has(request_: bytes) -> None:
    peer = Peer(Rig(warm=False), by_key=False)
    assert peer.say(request_, frame(NOOP)) == error(request_[1], TMPFAIL) + answer(NOOP)


def test_during_warm_up_states_and_logs_can_be_read() -> None:
    peer = Peer(Rig(warm=False), by_key=False)
    assert peer.say(frame(GET_VBUCKET, vbucket=1)) == answer(GET_VBUCKET, value=u32(ACTIVE))
    assert status(peer, frame(LOG, vbucket=1)) == OK


def test_while_clients_are_shut_out_vbuckets_are_looked_after_all_the_same(rig: Rig) -> None:
    peer = Peer(rig, by_key=False)
    rig.bucket.shut_traffic_out()
    for request in READING:
        assert peer.say(request) == error(request[1], TMPFAIL)
    assert status(peer, set_state(1, REPLICA)) == OK
    assert status(peer, set_state(1, ACTIVE)) == OK
    assert seqnos(peer, u32(ACTIVE)) == dict.fromkeys(range(VBUCKETS), 0)
    assert status(peer, frame(GET, b"k", vbucket=1)) == TMPFAIL
