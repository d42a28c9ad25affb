"""What a client negotiates or asks beyond memcached: HELLO, locks, observing what is persisted."""

from __future__ import annotations

import json
import struct

import pytest

from tests.kv.binary_peer import Peer, answer, counter, error, frame, get_hit, store, u32, u64
from tests.kv.harness import NOON, Rig
from uprmc.engine.failover_log import branched
from uprmc.protocol.opcodes import Status

GET, SET, ADD, REPLACE, DELETE, INCR, NOOP, GETK = 0, 1, 2, 3, 4, 5, 0x0A, 0x0C
APPEND, SETQ, HELLO, TOUCH, GAT = 0x0E, 0x11, 0x1F, 0x1C, 0x1D
OBSERVE_SEQNO, OBSERVE, GETL, UNLOCK = 0x91, 0x92, 0x94, 0x95
SET_WITH_META, SETQ_WITH_META, ERROR_MAP = 0xA2, 0xA3, 0xFE

NODELAY, SEQNOS, XERROR, JSON = 0x03, 0x04, 0x07, 0x0B
ALL_ONES = 2**64 - 1

#: The least time that a change waits for its commit, as an observer is told.
PERSIST_MS = 20


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig)


def hello(*features: int, agent: bytes = b"agent") -> bytes:
    return frame(HELLO, agent, struct.pack(f">{len(features)}H", *features))


def granted(*features: int) -> bytes:
    return answer(HELLO, value=struct.pack(f">{len(features)}H", *features))


# --- HELLO --------------------------------------------------------------------------------------


def test_hello_grants_what_we_have_in_the_order_asked_and_once(peer: Peer) -> None:
    asked = [3, 6, 7, 8, 0x0B, 0x0C, 0x10, 0x0F, 0x11, 0x12, 7, 0x0E, 0x0D, 0x0A, 4, 1, 0xFFFF]
    assert peer.say(hello(*asked)) == granted(3, 7, 8, 0x0B, 4, 1)
    assert peer.say(hello()) == granted()
    assert peer.say(hello(XERROR, agent=b"")) == granted(XERROR)


@pytest.mark.parametrize(("newest", "version"), [(1, 1), (2, 2), (0xFFFF, 2)])
def test_the_error_map_tells_of_every_status_what_sdks_must_find(
    peer: Peer, newest: int, version: int
) -> None:
    peer.say(hello(XERROR, JSON))
    said = peer.say(frame(ERROR_MAP, value=newest.to_bytes(2)))
    assert said[5] == 1  # the datatype is JSON
    found = json.loads(said[24:])
    assert (found["version"], found["revision"]) == (version, 1)
    wanted = {f"{status:x}" for status in Status} - {"0"}
    assert found["errors"].keys() == wanted
    for each in found["errors"].values():
        assert each["name"]
        assert each["desc"]
        assert all(isinstance(attribute, str) for attribute in each["attrs"])
    assert "retry-later" in found["errors"]["86"]["attrs"]
    assert "fetch-config" in found["errors"]["7"]["attrs"]


@pytest.mark.parametrize("value", [b"\0\0", b"\2", b"\0\2\0"])
def test_a_version_of_the_error_map_that_is_none_is_refused(peer: Peer, value: bytes) -> None:
    assert peer.say(frame(ERROR_MAP, value=value), frame(NOOP)) == error(ERROR_MAP, 4) + answer(
        NOOP
    )


def test_a_hello_of_an_odd_length_is_refused_and_the_conversation_goes_on(peer: Peer) -> None:
    assert peer.say(frame(HELLO, b"a", b"\0\x03\0"), frame(NOOP)) == error(HELLO, 4) + answer(NOOP)


def test_after_hello_changes_tell_their_place_in_the_order(peer: Peer) -> None:
    rig = peer.rig
    peer.say(hello(SEQNOS))
    vbucket = rig.bucket.of_key(b"k")
    uuid = vbucket.failover_log[0].uuid

    def place(seqno: int) -> bytes:
        return u64(uuid) + u64(seqno)

    def cas() -> int:
        item = rig.item(b"k")
        assert item is not None
        return item.cas

    assert peer.say(store(SET, b"k", b"1")) == answer(SET, extras=place(1), cas=cas())
    assert peer.say(counter(INCR, b"k", 1)) == answer(
        INCR, extras=place(2), value=u64(2), cas=cas()
    )
    assert peer.say(frame(APPEND, b"k", b"0")) == answer(APPEND, extras=place(3), cas=cas())
    assert peer.say(store(SETQ, b"k", b"1")) == b""
    (deleted,) = peer.ask(frame(DELETE, b"k"))
    tombstone = vbucket.table.find(b"k")
    assert tombstone is not None
    assert (deleted.extras, deleted.cas) == (place(5), tombstone.cas)
    assert peer.say(store(ADD, b"k", b"2")) == answer(ADD, extras=place(6), cas=cas())
    assert peer.say(store(ADD, b"k", b"2")) == error(ADD, 2)
    assert peer.say(frame(GET, b"k")) == get_hit(GET, b"2", cas())


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("features", [[], [NODELAY], [XERROR]])
def test_after_hello_delete_answers_the_cas_of_the_deletion(
    rig: Rig, by_key: bool, features: list[int]
) -> None:
    """Whatever was asked for: memcached and servers of 2014, which answer 0, know no HELLO."""
    peer = Peer(rig, by_key=by_key)
    number = rig.bucket.vbucket_of(b"k")

    def deleted() -> int:
        peer.ask(store(SET, b"k", b"1", vbucket=number))
        (reply,) = peer.ask(frame(DELETE, b"k", vbucket=number))
        return reply.cas

    assert deleted() == 0
    peer.ask(hello(*features))
    cas = deleted()
    tombstone = rig.bucket.of_key(b"k").table.find(b"k")
    assert tombstone is not None
    assert cas == tombstone.cas != 0
    assert peer.say(frame(DELETE, b"k", vbucket=number)) == error(DELETE, 1)


def test_after_hello_versions_from_elsewhere_tell_their_place_and_quiet_ones_say_nothing(
    peer: Peer,
) -> None:
    vbucket = peer.rig.bucket.of_key(b"k")
    uuid = vbucket.failover_log[0].uuid
    now = int(peer.rig.clock.now()) * 10**9

    def version(opcode: int, rev: int) -> bytes:
        return frame(opcode, b"k", b"v", struct.pack(">IIQQ", 0, 0, rev, now + rev))

    peer.say(hello(SEQNOS))
    for seqno, rev in ((1, 1), (3, 5)):
        expected = answer(SET_WITH_META, extras=u64(uuid) + u64(seqno), cas=now + rev)
        assert peer.say(version(SET_WITH_META, rev)) == expected
        assert peer.say(version(SETQ_WITH_META, rev + 1)) == b""
        assert vbucket.high_seqno == seqno + 1


@pytest.mark.parametrize("together", [False, True])
def test_what_hello_grants_holds_for_the_very_next_command(rig: Rig, together: bool) -> None:
    peer = Peer(rig)
    first, second = hello(SEQNOS), store(SET, b"k", b"1")
    said = peer.say(first, second) if together else peer.say(first) + peer.say(second)
    assert len(said) == len(granted(SEQNOS)) + 24 + 16


def test_a_second_hello_takes_back_what_it_does_not_ask_for(peer: Peer) -> None:
    said = peer.say(hello(SEQNOS, XERROR, JSON), hello(), store(SET, b"k", b"1"))
    assert len(said) == len(granted(SEQNOS, XERROR, JSON)) + len(granted()) + 24
    assert not peer.session.negotiated.lock_errors
    assert peer.session.negotiated.datatypes == 0


def test_the_json_bit_is_kept_for_those_who_know_it(peer: Peer) -> None:
    def json(request: bytes, bits: int) -> bytes:
        return request[:5] + bytes([bits]) + request[6:]

    old = Peer(peer.rig)
    peer.say(hello(JSON))
    peer.ask(json(store(SET, b"k", b"{}"), 0x03))
    item = peer.rig.item(b"k")
    assert item is not None
    assert item.datatype == 1  # snappy was not granted
    hit = get_hit(GET, b"{}", item.cas)
    assert peer.say(frame(GET, b"k")) == json(hit, 1)
    assert old.say(frame(GET, b"k")) == hit
    old.ask(json(store(SET, b"k", b"{}"), 0x01))
    item = peer.rig.item(b"k")
    assert item is not None
    assert item.datatype == 0


# --- locks --------------------------------------------------------------------------------------


@pytest.fixture
def locked(peer: Peer) -> tuple[Peer, int, int]:
    """A peer, the CAS of the document k and the CAS that opens its lock."""
    cas = peer.put(b"k", b"5", flags=9)
    (reply,) = peer.ask(frame(GETL, b"k", extras=u32(20)))
    assert (reply.status, reply.value, reply.extras) == (0, b"5", u32(9))
    assert reply.cas not in (cas, ALL_ONES)
    return peer, cas, reply.cas


def xerror(rig: Rig) -> Peer:
    peer = Peer(rig)
    peer.say(hello(XERROR))
    return peer


def test_a_locked_document_is_read_with_a_hidden_cas(locked: tuple[Peer, int, int]) -> None:
    peer, _, lock = locked
    hidden = get_hit(GET, b"5", ALL_ONES, flags=9)
    assert peer.say(frame(GET, b"k")) == hidden
    assert peer.say(frame(GETK, b"k")) == get_hit(GETK, b"5", ALL_ONES, flags=9, key=b"k")
    assert Peer(peer.rig).say(frame(GET, b"k")) == hidden
    assert peer.say(frame(UNLOCK, b"k", cas=lock)) == answer(UNLOCK, value=b"UNLOCKED")


CHANGES = [
    store(SET, b"k", b"9"),
    store(REPLACE, b"k", b"9"),
    frame(DELETE, b"k"),
    frame(APPEND, b"k", b"9"),
    counter(INCR, b"k", 1),
    frame(TOUCH, b"k", extras=u32(9)),
    frame(GAT, b"k", extras=u32(9)),
]


@pytest.mark.parametrize("request_", CHANGES)
def test_a_lock_refuses_every_foreign_change(
    locked: tuple[Peer, int, int], request_: bytes
) -> None:
    peer, _, _ = locked
    assert peer.say(request_) == error(request_[1], 2)
    assert xerror(peer.rig).say(request_) == error(request_[1], 9)
    item = peer.rig.item(b"k")
    assert item is not None
    assert (item.value, item.expiry) == (b"5", 0)


def test_add_on_a_locked_document_says_that_it_exists(locked: tuple[Peer, int, int]) -> None:
    peer, _, _ = locked
    assert peer.say(store(ADD, b"k", b"9")) == error(ADD, 2)
    assert xerror(peer.rig).say(store(ADD, b"k", b"9")) == error(ADD, 2)


def test_a_second_lock_is_a_temporary_failure_or_told_as_it_is(
    locked: tuple[Peer, int, int],
) -> None:
    peer, _, _ = locked
    assert peer.say(frame(GETL, b"k")) == answer(GETL, 0x86, value=b"LOCK_ERROR")
    assert xerror(peer.rig).say(frame(GETL, b"k")) == error(GETL, 9)


@pytest.mark.parametrize("request_", [*CHANGES[:2], CHANGES[3]])
def test_a_write_with_the_lock_cas_opens_the_lock(
    locked: tuple[Peer, int, int], request_: bytes
) -> None:
    peer, _, lock = locked
    opened = request_[:16] + u64(lock) + request_[24:]
    (reply,) = peer.ask(opened)
    assert reply.status == 0
    assert peer.ask(frame(GET, b"k"))[0].cas == reply.cas


def test_unlock_without_the_right_cas(locked: tuple[Peer, int, int]) -> None:
    peer, cas, lock = locked
    modern = xerror(peer.rig)
    for wrong in (0, cas, lock + 1):
        request = frame(UNLOCK, b"k", cas=wrong)
        assert peer.say(request) == answer(UNLOCK, 0x86, value=b"UNLOCK_ERROR")
        assert modern.say(request) == error(UNLOCK, 9)
    assert modern.say(frame(UNLOCK, b"k", cas=lock)) == answer(UNLOCK, value=b"UNLOCKED")
    request = frame(UNLOCK, b"k", cas=lock)
    assert peer.say(request) == answer(UNLOCK, 0x86, value=b"UNLOCK_ERROR")
    assert modern.say(request) == error(UNLOCK, 0x0E)


def test_locks_of_what_is_not_there(peer: Peer) -> None:
    assert peer.say(frame(GETL, b"nk")) == error(GETL, 1)
    assert peer.say(frame(UNLOCK, b"nk", cas=1)) == error(UNLOCK, 1)


@pytest.mark.parametrize(
    ("extras", "seconds"), [(b"", 15), (u32(0), 15), (u32(1), 1), (u32(30), 30), (u32(31), 15)]
)
def test_how_long_a_lock_holds(peer: Peer, extras: bytes, seconds: int) -> None:
    peer.put(b"k", b"v")
    peer.ask(frame(GETL, b"k", extras=extras))
    peer.rig.clock.time += seconds - 0.5
    assert peer.say(store(SET, b"k", b"9")) == error(SET, 2)
    peer.rig.clock.time += 0.5
    assert peer.ask(store(SET, b"k", b"9"))[0].status == 0


# --- OBSERVE ------------------------------------------------------------------------------------


def observe(*keys: tuple[int, bytes]) -> bytes:
    parts = [struct.pack(">HH", number, len(key)) + key for number, key in keys]
    return frame(OBSERVE, value=b"".join(parts), opaque=8)


def observed(*states: tuple[int, bytes, int, int]) -> bytes:
    parts = [
        struct.pack(">HH", number, len(key)) + key + bytes([state]) + u64(cas)
        for number, key, state, cas in states
    ]
    waits = any(state in (0, 0x81) for _, _, state, _ in states)
    return answer(OBSERVE, value=b"".join(parts), opaque=8, cas=PERSIST_MS << 32 if waits else 0)


@pytest.mark.acceptance("D20")
def test_observe_tells_what_is_persisted_and_a_stalled_disk_stalls_nobody(rig: Rig) -> None:
    peer = Peer(rig, by_key=False)
    cas = peer.ask(store(SET, b"k", b"v", vbucket=2))[0].cas  # answered; nothing is on disk
    asked = observe((2, b"k"), (2, b"nk"), (1, b"k"))
    missing = (2, b"nk", 0x80, 0), (1, b"k", 0x80, 0)
    assert peer.say(asked) == observed((2, b"k", 0, cas), *missing)
    rig.flush()
    assert peer.say(asked) == observed((2, b"k", 1, cas), *missing)
    peer.ask(frame(DELETE, b"k", vbucket=2))
    tombstone = rig.bucket.vbuckets[2].table.find(b"k")
    assert tombstone is not None
    assert peer.say(observe((2, b"k"))) == observed((2, b"k", 0x81, tombstone.cas))
    rig.flush()
    assert peer.say(observe((2, b"k"))) == observed((2, b"k", 0x80, 0))


def test_observe_of_an_ejected_and_of_a_rewritten_document(rig: Rig) -> None:
    peer = Peer(rig)
    cas = peer.put(b"k", b"v")
    rig.eject(b"k")
    assert peer.say(observe((999, b"k"))) == observed((999, b"k", 1, cas))  # the key decides
    cas = peer.put(b"k", b"w")
    assert peer.say(observe((0, b"k"))) == observed((0, b"k", 0, cas))


@pytest.mark.parametrize("value", [b"\0", b"\0\0\0\x05key", b"\0\0\0\x01kk"])
def test_a_torn_observe_is_refused(peer: Peer, value: bytes) -> None:
    assert peer.say(frame(OBSERVE, value=value)) == error(OBSERVE, 4)
    assert not peer.closed


def test_observe_in_a_vbucket_that_is_absent(rig: Rig) -> None:
    assert Peer(rig, by_key=False).say(observe((4, b"k"))) == error(OBSERVE, 7, opaque=8)


@pytest.mark.acceptance("D20")
def test_observe_seqno_tells_how_far_a_vbucket_is_persisted(rig: Rig) -> None:
    peer = Peer(rig, by_key=False)
    uuid = rig.bucket.vbuckets[3].failover_log[0].uuid
    request = frame(OBSERVE_SEQNO, value=u64(uuid), vbucket=3)

    def said(persisted: int, current: int) -> bytes:
        numbers = struct.pack(">BHQQQ", 0, 3, uuid, persisted, current)
        return answer(OBSERVE_SEQNO, value=numbers)

    rig.flush()
    assert peer.say(request) == said(0, 0)
    for number in range(5):
        peer.ask(store(SET, b"k%d" % number, b"v", vbucket=3))
    assert peer.say(request) == said(0, 5)
    rig.flush()
    peer.ask(store(SET, b"k9", b"v", vbucket=3))
    assert peer.say(request) == said(5, 6)


def test_observe_seqno_after_failovers_names_the_end_of_the_old_branch(rig: Rig) -> None:
    peer = Peer(rig, by_key=False)
    vbucket = rig.bucket.vbuckets[1]
    first = vbucket.failover_log[0].uuid
    for number in range(9):
        peer.ask(store(SET, b"k%d" % number, b"v", vbucket=1))
    rig.flush()
    vbucket.failover_log = branched(vbucket.failover_log, 0xAAAA, 4, 25)
    vbucket.failover_log = branched(vbucket.failover_log, 0xBBBB, 7, 25)

    def said(uuid: int) -> bytes:
        return peer.say(frame(OBSERVE_SEQNO, value=u64(uuid), vbucket=1))

    def failed_over(old: int, last: int) -> bytes:
        numbers = struct.pack(">BHQQQQQ", 1, 1, 0xBBBB, 9, 9, old, last)
        return answer(OBSERVE_SEQNO, value=numbers)

    assert said(first) == failed_over(first, 4)
    assert said(0xAAAA) == failed_over(0xAAAA, 7)
    assert said(0xBBBB) == answer(OBSERVE_SEQNO, value=struct.pack(">BHQQQ", 0, 1, 0xBBBB, 9, 9))
    assert said(0xCCCC) == error(OBSERVE_SEQNO, 1)


def test_observe_seqno_wants_one_number_and_a_vbucket_that_is_there(rig: Rig) -> None:
    peer = Peer(rig, by_key=False)
    assert peer.say(frame(OBSERVE_SEQNO, value=b"1234567")) == error(OBSERVE_SEQNO, 4)
    assert peer.say(frame(OBSERVE_SEQNO, value=u64(1), vbucket=4)) == error(OBSERVE_SEQNO, 7)
    assert not peer.closed


def test_a_lock_lapses_with_the_clock_and_not_with_the_day(peer: Peer) -> None:
    assert peer.rig.clock.time == NOON
    peer.put(b"k", b"v")
    lock = peer.ask(frame(GETL, b"k"))[0].cas
    peer.rig.clock.time += 16
    assert xerror(peer.rig).say(frame(UNLOCK, b"k", cas=lock)) == error(UNLOCK, 0x0E)
