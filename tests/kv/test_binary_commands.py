"""What binary commands do beside their replies, which are in ``interop/dialects.txt``."""

from __future__ import annotations

import pytest

from tests.kv.binary_peer import LOUD, Peer, answer, error, frame, get_hit, store, u32, u64
from tests.kv.harness import NOON, Rig

GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ, NOOP, VERSION = range(12)
GETK, GETKQ, APPEND, PREPEND, STAT, SETQ, ADDQ, REPLACEQ, DELETEQ, INCRQ, DECRQ = range(0x0C, 0x17)
QUITQ, FLUSHQ, APPENDQ, PREPENDQ, VERBOSITY, TOUCH, GAT, GATQ = range(0x17, 0x1F)
GATK, GATKQ = 0x23, 0x24


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig)


# --- reading ------------------------------------------------------------------------------------


def test_keys_and_values_may_hold_any_byte(peer: Peer) -> None:
    key, value = b"a b\x00\r\n\xff\x80", bytes(range(256))
    cas = peer.put(key, value)
    assert peer.say(frame(GETK, key)) == get_hit(GETK, value, cas, key=key)


# --- storing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opcode", "cas", "status"),
    [
        *[(opcode, "equal", 0) for opcode in (SET, ADD, REPLACE, APPEND, PREPEND, DELETE, INCR)],
        *[(opcode, "other", 2) for opcode in (SET, ADD, REPLACE, APPEND, PREPEND, DELETE, DECR)],
        *[(opcode, "missing", 1) for opcode in (SET, ADD, REPLACE, DELETE)],
        *[(opcode, "missing", 5) for opcode in (APPEND, PREPEND)],
        (INCR, "missing", 0),
        (DECR, "missing", 0),
    ],
)
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.acceptance("D17")
def test_the_cas_table(peer: Peer, opcode: int, cas: str, status: int, quiet: bool) -> None:
    sent = {loud: silent for silent, loud in LOUD.items()}[opcode] if quiet else opcode
    old = peer.put(b"k", b"5")
    wanted = {"equal": old, "other": old + 1, "missing": old}[cas]
    if cas == "missing":
        peer.say(frame(DELETE, b"k"))
    vbucket = peer.rig.bucket.of_key(b"k")
    before = vbucket.high_seqno
    extras, value = b"", b"9"
    if opcode in (SET, ADD, REPLACE):
        extras = u32(0) * 2
    elif opcode in (INCR, DECR):
        extras, value = u64(1) + u64(3) + u32(0), b""
    elif opcode == DELETE:
        value = b""
    said = peer.say(frame(sent, b"k", value, extras, cas=wanted))
    if status:
        assert said == error(sent, status)
        assert vbucket.high_seqno == before  # a refused change takes no seqno
        return
    assert (said == b"") is quiet
    assert vbucket.high_seqno == before + 1
    item = peer.rig.item(b"k")
    if opcode == DELETE:
        assert item is None
        return
    assert item is not None
    assert item.cas > old


# --- touch, flush, stat and the rest ------------------------------------------------------------


@pytest.mark.parametrize("extras", [b"", u32(0)])
def test_flush_answers_when_the_emptiness_is_on_disk(peer: Peer, extras: bytes) -> None:
    rig = peer.rig
    peer.put(b"k", b"v")
    rig.flush()
    assert peer.say(frame(FLUSH, extras=extras, opaque=8), frame(NOOP)) == b""
    assert peer.session.input_full
    assert rig.store.view().count() == 1
    other = Peer(rig)
    assert other.value(b"k") is None
    rig.flush()
    assert rig.store.view().count() == 0
    assert peer.say() == answer(FLUSH, opaque=8) + answer(NOOP)
    assert not peer.session.input_full
    assert rig.bucket.stats.cmd_flush == 1


def test_a_flush_that_the_disk_refuses_is_told(peer: Peer) -> None:
    peer.put(b"k", b"v")
    assert peer.say(frame(FLUSH), frame(NOOP)) == b""
    peer.rig.fail_flush()
    assert peer.say() == error(FLUSH, 0x86) + answer(NOOP)


@pytest.mark.parametrize("opcode", [FLUSH, FLUSHQ])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_later_flush_answers_at_once_and_takes_what_came_between(
    peer: Peer, opcode: int, absolute: bool
) -> None:
    when = u32(int(NOON) + 2 if absolute else 2)
    peer.put(b"old", b"v")
    assert peer.say(frame(opcode, extras=when)) == (answer(FLUSH) if opcode == FLUSH else b"")
    peer.put(b"between", b"v")
    peer.rig.clock.time += 1
    peer.rig.bucket.tick()
    assert peer.value(b"old") == peer.value(b"between") == b"v"
    peer.rig.clock.time += 1
    peer.rig.bucket.tick()
    assert peer.value(b"old") is peer.value(b"between") is None
    peer.put(b"after", b"v")
    peer.rig.bucket.tick()
    assert peer.value(b"after") == b"v"


def test_stat_answers_a_packet_for_each_name_and_an_empty_one(peer: Peer) -> None:
    assert peer.say(frame(STAT, opaque=4)) == (
        answer(STAT, key=b"version", value=b"1.2.3", opaque=4)
        + answer(STAT, key=b"blank", opaque=4)
        + answer(STAT, opaque=4)
    )


def test_stat_groups(peer: Peer) -> None:
    peer.rig.groups["items"] = []
    peer.rig.groups["failovers 3"] = [("vb_3:num_entries", "1")]
    assert peer.say(frame(STAT, b"items")) == answer(STAT)
    assert peer.say(frame(STAT, b" failovers  3 ")) == (
        answer(STAT, key=b"vb_3:num_entries", value=b"1") + answer(STAT)
    )
    for unknown in (b"bogus", b"cachedump 1 1", b"detail", b"\xff\xfe", b"\x00"):
        assert peer.say(frame(STAT, unknown, opaque=2)) == error(STAT, 1, opaque=2)
    assert peer.say(frame(NOOP)) == answer(NOOP)


def test_stat_reset_and_detail_are_commands_in_disguise(peer: Peer) -> None:
    assert peer.say(frame(STAT, b"reset")) == answer(STAT)
    assert peer.rig.resets == 1
    assert peer.say(frame(STAT, b"detail on")) == answer(STAT)
    assert peer.say(frame(STAT, b"detail off")) == answer(STAT)
    assert peer.say(frame(STAT, b"detail dump")) == (
        answer(STAT, key=b"detailed", value=b"END\r\n") + answer(STAT)
    )


def test_a_statistic_that_is_no_text_is_sent_as_the_bytes_it_was_made_from(peer: Peer) -> None:
    peer.rig.groups[""] = [("ep_dbname", b"/d\xe4ta".decode("utf-8", "surrogateescape"))]
    assert peer.say(frame(STAT)) == answer(STAT, key=b"ep_dbname", value=b"/d\xe4ta") + answer(STAT)


def test_noop_version_and_verbosity(peer: Peer) -> None:
    assert peer.say(frame(NOOP, opaque=0xFFFFFFFF)) == answer(NOOP, opaque=0xFFFFFFFF)
    assert peer.say(frame(VERSION, opaque=1)) == answer(VERSION, value=b"1.2.3", opaque=1)
    assert peer.say(frame(VERBOSITY, extras=u32(2))) == answer(VERBOSITY)
    assert peer.rig.verbosity == 2


def test_quit_answers_and_closes_and_quitq_only_closes(rig: Rig) -> None:
    for opcode, said in ((QUIT, answer(QUIT, opaque=6)), (QUITQ, b"")):
        peer = Peer(rig)
        assert peer.say(frame(opcode, opaque=6), frame(NOOP), store(SETQ, b"k", b"v")) == said
        assert peer.closed
        assert not peer.session.input_full
        assert rig.item(b"k") is None
        assert peer.say(frame(NOOP)) == b""
    assert rig.misuse == []


@pytest.mark.parametrize(
    "request_",
    [frame(0x20), frame(0x21, b"PLAIN", b"\0user\0secret"), frame(0x22, b"PLAIN", b"more")],
)
def test_a_login_is_refused_and_the_conversation_goes_on(peer: Peer, request_: bytes) -> None:
    assert peer.say(request_, frame(NOOP)) == error(request_[1], 0x81) + answer(NOOP)
