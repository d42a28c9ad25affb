"""Sizes, shapes and malformed packets: what closes, what is dropped, what is never buffered."""

from __future__ import annotations

import pytest

from tests.kv.binary_peer import LOUD, Peer, answer, error, frame, get_hit, store, u64
from tests.kv.harness import Rig, drained

GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ, NOOP, VERSION = range(12)
GETK, GETKQ, APPEND, PREPEND, STAT, SETQ, ADDQ, REPLACEQ, DELETEQ, INCRQ, DECRQ = range(0x0C, 0x17)
QUITQ, FLUSHQ, APPENDQ, PREPENDQ, VERBOSITY, TOUCH, GAT, GATQ = range(0x17, 0x1F)
GATK, GATKQ, GETL, UNLOCK = 0x23, 0x24, 0x94, 0x95

KEY = b"k" * 250
STORES = [SET, ADD, REPLACE, SETQ, ADDQ, REPLACEQ]
EXTENDS = [APPEND, PREPEND, APPENDQ, PREPENDQ]
LIMIT = 1_048_576


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def peer(rig: Rig) -> Peer:
    return Peer(rig)


def longest(key: bytes) -> int:
    """How long a value may be: the whole item counts about 50 bytes more."""
    return LIMIT - 50 - len(key)


@pytest.mark.parametrize("opcode", [GET, GETL, UNLOCK])
def test_a_key_of_250_bytes_is_fine_and_one_of_251_closes(rig: Rig, opcode: int) -> None:
    peer = Peer(rig)
    replies = peer.ask(frame(opcode, KEY), frame(NOOP))
    assert all(reply.status not in (4, 0x81) for reply in replies)
    assert not peer.closed
    assert peer.say(frame(opcode, KEY + b"k"), frame(NOOP)) == error(opcode, 4)
    assert peer.closed
    assert len(rig.misuse) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        frame(GETL, b""),
        frame(GETL, b"k", extras=u64(1)),
        frame(UNLOCK, b""),
        frame(UNLOCK, b"k", b"v"),
        frame(0x3D, extras=b"\0\0"),
        frame(0x50, b"name"),
        frame(0x53, extras=bytes(44)),
        frame(0x5E, b"enable_noop"),
        frame(0x91, value=b""),
        frame(0x92, b"k", b"v"),
        frame(0xA2, b"k", b"v", bytes(25)),
        frame(0xB3, extras=bytes(23)),
    ],
)
def test_a_wrong_shape_of_a_vbucket_servers_command_is_only_refused(
    peer: Peer, wrong: bytes
) -> None:
    peer.put(b"k", b"old")
    assert peer.say(frame(NOOP), wrong, frame(NOOP)) == (
        answer(NOOP) + error(wrong[1], 4) + answer(NOOP)
    )
    assert not peer.closed
    assert peer.value(b"k") == b"old"


@pytest.mark.parametrize("cut", range(25, 35))
def test_a_get_with_a_value_is_refused_wherever_it_is_cut(peer: Peer, cut: int) -> None:
    """The bytes that are there must not pass for the whole of it."""
    peer.put(b"abc", b"v")
    wrong = frame(GET, b"abc", b"1234567")
    first, second = peer.say(wrong[:cut]), peer.say(wrong[cut:], frame(NOOP))
    assert first + second == error(GET, 4)
    assert peer.closed


@pytest.mark.parametrize("magic", [0x00, 0x81, 0x7F, ord("v")])
def test_a_wrong_magic_closes_without_a_word_after_what_was_answered(
    peer: Peer, magic: int
) -> None:
    assert peer.say(frame(NOOP), frame(NOOP, magic=magic), frame(NOOP)) == answer(NOOP)
    assert peer.closed
    assert len(peer.rig.misuse) == 1


def test_the_magic_is_judged_only_when_a_header_is_there(peer: Peer) -> None:
    peer.say(frame(NOOP))
    assert peer.say(b"version\r\n" + b"x" * 14) == b""
    assert not peer.closed
    assert peer.say(b"x") == b""
    assert peer.closed


def test_a_large_unknown_body_is_dropped_as_it_comes(peer: Peer) -> None:
    assert peer.say(frame(0x6E, body_length=5_000_000)) == error(0x6E, 0x81)
    for _ in range(50):
        assert peer.say(b"x" * 100_000) == b""
        assert peer.session._held == 0
    assert peer.say(frame(NOOP)) == answer(NOOP)


# --- the item limit -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [b"k", KEY])
@pytest.mark.parametrize("opcode", [SET, SETQ, ADD, REPLACE])
def test_a_value_at_the_limit_is_stored_and_one_byte_more_is_not(
    peer: Peer, opcode: int, key: bytes
) -> None:
    peer.put(b"other", b"v")
    if opcode == REPLACE:
        peer.put(key, b"old")
    value = b"v" * longest(key)
    replies = peer.ask(store(opcode, key, value))
    assert [reply.status for reply in replies] == ([] if opcode == SETQ else [0])
    assert peer.value(key) == value
    assert peer.say(store(opcode, key, value + b"v"), frame(NOOP)) == (
        error(opcode, 3) + answer(NOOP)
    )


def test_a_value_that_is_too_large_is_not_buffered_in_pieces(peer: Peer) -> None:
    peer.put(b"k", b"old")
    size = 8_000_000
    whole = store(SET, b"k", b"v" * size, opaque=5)
    assert peer.say(whole[:30]) == b""  # header, part of the extras
    assert peer.say(whole[30:33]) == error(SET, 3, opaque=5)
    for start in range(33, len(whole), 60_000):
        assert peer.say(whole[start : start + 60_000]) == b""
        assert peer.session._held == 0
    assert peer.say(frame(GET, b"k")) == error(GET, 1)


@pytest.mark.parametrize("opcode", [SET, APPEND, 0x6E])
def test_a_refused_value_does_not_wait_for_the_length_of_an_earlier_frame(
    peer: Peer, opcode: int
) -> None:
    """A frame that came in two pieces leaves nothing behind that the next ones wait for."""
    whole = store(SETQ, b"k", b"v" * 40_000)
    assert peer.say(whole[:20_000]) + peer.say(whole[20_000:]) == b""
    extras = u64(0) if opcode == SET else b""
    refused = frame(opcode, b"k", b"v" * 2 * LIMIT, extras)
    status = 0x81 if opcode == 0x6E else 3
    assert peer.say(refused[:100_000]) == error(opcode, status)
    assert peer.say(refused[100_000:], frame(NOOP)) == answer(NOOP)


@pytest.mark.parametrize("opcode", [APPEND, PREPEND, APPENDQ, PREPENDQ])
def test_an_append_whose_sum_is_too_large_is_not_stored(peer: Peer, opcode: int) -> None:
    old = b"o" * (longest(b"k") - 10)
    peer.put(b"k", old)
    assert peer.say(frame(opcode, b"k", b"x" * 11)) == error(opcode, 5)
    assert peer.value(b"k") == old
    said = peer.say(frame(opcode, b"k", b"x" * 10))
    assert said == b"" if opcode in LOUD else peer.ask(frame(NOOP))[0].status == 0
    assert len(peer.value(b"k") or b"") == longest(b"k")


def test_the_item_limit_is_a_setting() -> None:
    peer = Peer(Rig(kv__max_item_bytes=2_000))
    assert peer.ask(store(SET, b"k", b"v" * 1_949))[0].status == 0
    assert peer.say(store(SET, b"k", b"v" * 1_950)) == error(SET, 3)
    assert peer.say(store(SET, b"k", b"v" * 2_001)) == error(SET, 3)


# --- the frame limit ----------------------------------------------------------------------------

FRAME_LIMIT = 2 * 1024 * 1024


@pytest.mark.parametrize(("over", "closes"), [(0, False), (1, True)])
@pytest.mark.parametrize(
    ("opcode", "extras", "status"), [(SET, 8, 3), (APPENDQ, 0, 3), (0x21, 0, 3), (0x6E, 0, 0x81)]
)
def test_a_frame_above_the_frame_limit_closes(
    opcode: int, extras: int, status: int, over: int, closes: bool
) -> None:
    peer = Peer(Rig(kv__max_frame_bytes=FRAME_LIMIT))
    body = FRAME_LIMIT - 24 + over
    header = frame(opcode, b"k", extras=b"\0" * extras, body_length=body)
    assert peer.say(header) == error(opcode, status)
    assert peer.closed is closes
    assert bool(peer.rig.misuse) is closes
    if not closes:
        assert peer.say(b"v" * (body - extras - 1), frame(NOOP)) == answer(NOOP)


def test_an_incomplete_frame_waits_for_its_rest(peer: Peer) -> None:
    whole = store(SET, b"k", b"value")
    for place in range(len(whole) - 1):
        assert peer.say(whole[place : place + 1]) == b""
    (reply,) = peer.ask(whole[-1:])
    assert peer.say(frame(GET, b"k")) == get_hit(GET, b"value", reply.cas)


def test_after_the_close_nothing_is_carried_out(peer: Peer) -> None:
    peer.say(frame(NOOP, magic=0))
    peer.session.receive_data(store(SETQ, b"k", b"v"))
    assert drained(peer.session) == b""
    assert peer.rig.item(b"k") is None
