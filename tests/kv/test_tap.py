"""Where conversations of clients and TAP meet: who takes over, and who gets which bytes.

The adapter itself is played by `Guest`, which writes down what it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from interop.wire import frame, split_replies, store
from tests.kv.binary_peer import Peer, answer, error, u64
from tests.kv.harness import Rig, drained
from tests.tap_adapter.side_commands import SideCommands
from tests.upr.peer import opening
from uprmc.errors import OutOfPlace, RemoteProtocolError
from uprmc.model import VBucketState
from uprmc.ports import Session

CONNECT, MUTATION, DELETE, OPAQUE, CHECKPOINT_END = 0x40, 0x41, 0x42, 0x44, 0x47
LAST_CLOSED, DEREGISTER, RESET_CHAIN, CREATE, CHANGE_FILTER = 0x97, 0x9E, 0x9F, 0xAA, 0xB0

ITEM_EXTRAS = struct.pack(">HHBxxxII", 9, 1, 255, 0, 0)
MESSAGE = frame(MUTATION, b"k", b"\0" * 9 + b"value", ITEM_EXTRAS, vbucket=3, opaque=42, cas=5)


class Stream:
    """A session that writes down what it is fed."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.closing = False
        self.input_full = False
        self.successor: Session | None = None
        self.heard = b""
        self.out: list[bytes] = []

    def inherit(self, replies: list[bytes], unsent: int) -> None:
        assert sum(map(len, replies)) == unsent
        self.out = replies

    def receive_data(self, data: bytes) -> None:
        self.heard += data

    def tick(self, now: float) -> None: ...

    def data_to_send(self, budget: int) -> list[bytes]:
        out, self.out = self.out, []
        return out

    def buffered(self) -> tuple[int, int]:
        return 0, 0

    def connection_lost(self) -> None: ...


class Push:
    """Answers each message that asks for it."""

    def __init__(self) -> None:
        self.taken: list[tuple[object, ...]] = []
        self.closed = 0
        self.fails: Exception | None = None

    def take(
        self,
        opcode: int,
        vbucket: int,
        opaque: int,
        cas: int,
        extras: bytes,
        key_length: int,
        rest: bytes,
    ) -> bytes | None:
        if self.fails is not None:
            raise self.fails
        self.taken.append((opcode, vbucket, opaque, cas, extras, key_length, rest))
        return answer(opcode, opaque=opaque) if extras[3] & 1 else None

    def close(self) -> None:
        self.closed += 1


class Guest(SideCommands):
    """The adapter, as conversations see it."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[Stream] = []
        self.pushes: list[Push] = []

    def connect(
        self,
        wake: Callable[[], None],
        report: Callable[[str], None],
        over: Callable[[float], bool] | None = None,
    ) -> Stream:
        self.streams.append(Stream(self))
        return self.streams[-1]

    def consumer(self) -> Push:
        self.pushes.append(Push())
        return self.pushes[-1]

    def last_closed(self, number: int) -> int:
        return 7 if number == 2 else 0


def tap_peer(*, by_key: bool = True, enabled: bool = True) -> tuple[Peer, Guest]:
    rig, guest = Rig(), Guest()
    rig.services.tap = guest if enabled else None
    return Peer(rig, by_key=by_key), guest


@pytest.fixture(params=[True, False], ids=["memcached", "upr"])
def by_key(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# --- TAP_CONNECT --------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_a_connect_hands_itself_and_everything_behind_it_over(by_key: bool) -> None:
    peer, guest = tap_peer(by_key=by_key)
    connect = frame(CONNECT, b"name", extras=bytes(4))
    peer.session.receive_data(frame(0x0A) + connect + b"rest")
    (stream,) = guest.streams
    assert peer.session.successor is stream
    assert stream.heard == connect + b"rest"
    assert b"".join(stream.out) == answer(0x0A)


@pytest.mark.parametrize("cut", [24, 25, 30])
def test_a_connect_is_handed_over_as_soon_as_its_header_is_there(cut: int) -> None:
    peer, guest = tap_peer()
    connect = frame(CONNECT, b"name", extras=bytes(4))
    peer.session.receive_data(connect[:20])
    assert guest.streams == []
    peer.session.receive_data(connect[20:cut])
    assert guest.streams[0].heard == connect[:cut]


def test_a_connect_with_a_name_that_is_too_long_is_refused_and_closes() -> None:
    peer, guest = tap_peer()
    assert peer.say(frame(CONNECT, b"n" * 251, extras=bytes(4))) == error(CONNECT, 0x04)
    assert (peer.closed, guest.streams) == (True, [])
    fits, guest = tap_peer()
    fits.say(frame(CONNECT, b"n" * 250, extras=bytes(4)))
    assert len(guest.streams) == 1


def test_a_connect_whose_lengths_contradict_each_other_closes() -> None:
    peer, guest = tap_peer()
    assert peer.say(frame(CONNECT, b"name", key_length=9)) == error(CONNECT, 0x81)
    assert (peer.closed, guest.streams) == (True, [])


def test_where_tap_is_not_spoken_its_opcodes_are_unknown_and_the_connection_stays() -> None:
    peer, _ = tap_peer(enabled=False)
    for opcode in (CONNECT, *range(MUTATION, CHECKPOINT_END + 1)):
        assert peer.say(frame(opcode, b"name", extras=bytes(8))) == error(opcode, 0x81)
    assert peer.say(frame(DEREGISTER, b"name")) == error(DEREGISTER, 0x81)
    assert peer.say(frame(CHANGE_FILTER, b"name", b"v" * 12)) == error(CHANGE_FILTER, 0x81)
    assert peer.say(frame(RESET_CHAIN)) == error(RESET_CHAIN, 0x81)
    assert not peer.closed


def test_a_connection_of_upr_streams_speaks_no_tap() -> None:
    rig, guest = Rig(), Guest()
    rig.services.tap = guest
    peer = Peer(rig)
    peer.say(opening())
    successor = peer.session.successor
    assert successor is not None
    drained(successor)
    successor.receive_data(MESSAGE + frame(CONNECT, b"name", extras=bytes(4)))
    assert drained(successor) == error(MUTATION, 0x81, opaque=42) + error(CONNECT, 0x81)
    assert (guest.streams, guest.pushes) == ([], [])


# --- pushes -------------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_a_pushed_message_is_taken_with_the_vbucket_of_its_header(by_key: bool) -> None:
    peer, guest = tap_peer(by_key=by_key)
    assert peer.say(MESSAGE) == answer(MUTATION, opaque=42)
    rest = b"k" + b"\0" * 9 + b"value"
    assert guest.pushes[0].taken == [(MUTATION, 3, 42, 5, ITEM_EXTRAS, 1, rest)]


def test_between_pushed_messages_ordinary_commands_are_answered_in_their_order() -> None:
    peer, guest = tap_peer()
    replies, _ = split_replies(peer.say(MESSAGE, store(0x01, b"x", b"1"), frame(0x0A), MESSAGE))
    assert [reply.opcode for reply in replies] == [MUTATION, 0x01, 0x0A, MUTATION]
    assert len(guest.pushes) == 1


def test_a_message_that_asks_for_no_answer_gets_none() -> None:
    peer, guest = tap_peer()
    silent = struct.pack(">HHBxxx", 4, 0, 255)
    assert peer.say(frame(OPAQUE, value=bytes(4), extras=silent)) == b""
    assert len(guest.pushes[0].taken) == 1


@pytest.mark.parametrize("cuts", [range(1, len(MESSAGE)), [24], [len(MESSAGE) - 1]])
def test_a_message_is_taken_once_however_it_is_cut(cuts: range | list[int]) -> None:
    for cut in cuts:
        peer, guest = tap_peer()
        peer.session.receive_data(MESSAGE[:cut])
        peer.session.receive_data(MESSAGE[cut:])
        assert drained(peer.session) == answer(MUTATION, opaque=42)
        assert len(guest.pushes[0].taken) == 1


@pytest.mark.parametrize("why", [OutOfPlace("no"), RemoteProtocolError("no")])
def test_a_message_out_of_place_ends_the_connection_without_an_answer(why: Exception) -> None:
    peer, guest = tap_peer()
    peer.say(MESSAGE)
    guest.pushes[0].fails = why
    assert peer.say(MESSAGE) == b""
    assert (peer.closed, peer.rig.misuse) == (True, ["no"])


def test_a_message_above_the_item_limit_is_refused_unread_and_the_next_one_is_taken() -> None:
    rig, guest = Rig(kv__max_item_bytes=2_000), Guest()
    rig.services.tap = guest
    peer = Peer(rig)
    large = frame(MUTATION, b"k", b"\0" * 9 + b"v" * 3_000, ITEM_EXTRAS, opaque=1)
    assert peer.say(large, MESSAGE) == error(MUTATION, 0x03, opaque=1) + answer(MUTATION, opaque=42)
    assert [taken[2] for taken in guest.pushes[0].taken] == [42]


def test_the_largest_item_that_may_be_stored_may_be_pushed() -> None:
    rig, guest = Rig(kv__max_item_bytes=2_000), Guest()
    rig.services.tap = guest
    peer = Peer(rig)
    value = b"\0" * 9 + b"v" * 2_000
    peer.say(frame(MUTATION, b"k" * 250, value, ITEM_EXTRAS))
    assert len(guest.pushes[0].taken) == 1


def test_who_pushed_is_forgotten_with_the_connection_and_when_it_becomes_a_stream() -> None:
    for end in (
        lambda peer: peer.session.connection_lost(),
        lambda peer: peer.say(frame(CONNECT, b"name", extras=bytes(4))),
    ):
        peer, guest = tap_peer()
        peer.say(MESSAGE)
        end(peer)
        assert guest.pushes[0].closed == 1


# --- side commands ------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_a_client_is_deregistered_by_its_name() -> None:
    peer, guest = tap_peer()
    assert peer.say(frame(DEREGISTER, b"backup_1")) == answer(DEREGISTER)
    assert guest.said == [b"backup_1"]


def test_a_filter_is_changed_and_a_malformed_or_foreign_one_refused() -> None:
    peer, guest = tap_peer()
    good = struct.pack(">HHQHQ", 2, 3, 0, 5, 9)
    assert peer.say(frame(CHANGE_FILTER, b"known", good)) == answer(CHANGE_FILTER)
    assert guest.said == [(b"known", {3: 0, 5: 9})]
    for name, value in (
        (b"unknown", good),
        (b"known", good[:-1]),
        (b"known", good + b"x"),
        (b"known", b"\0\0"),
        (b"known", b""),
    ):
        assert peer.say(frame(CHANGE_FILTER, name, value)) == error(CHANGE_FILTER, 0x04)
    assert len(guest.said) == 1


def test_the_chain_is_reset() -> None:
    peer, guest = tap_peer()
    assert peer.say(frame(RESET_CHAIN)) == answer(RESET_CHAIN)
    assert guest.said == ["reset"]


def test_checkpoints_are_told_as_statistics_show_them() -> None:
    peer, _ = tap_peer(by_key=False)
    peer.rig.bucket.set_state(2, VBucketState.REPLICA)
    assert peer.say(frame(LAST_CLOSED)) == answer(LAST_CLOSED, value=u64(0))
    assert peer.say(frame(LAST_CLOSED, vbucket=2)) == answer(LAST_CLOSED, value=u64(7))
    assert peer.say(frame(LAST_CLOSED, vbucket=9)) == error(LAST_CLOSED, 0x07)
    assert peer.say(frame(CREATE)) == answer(CREATE, value=u64(1) + u64(0))
    assert peer.say(frame(CREATE, vbucket=2)) == error(CREATE, 0x07)


def test_checkpoints_are_told_without_tap_too_but_not_during_warm_up() -> None:
    assert Peer(Rig()).say(frame(LAST_CLOSED)) == answer(LAST_CLOSED, value=u64(0))
    cold = Peer(Rig(warm=False))
    assert cold.say(frame(LAST_CLOSED)) == error(LAST_CLOSED, 0x86)
    assert cold.say(frame(CREATE)) == error(CREATE, 0x86)


@pytest.mark.parametrize(("extras_length", "key_length", "body_length"), [(8, 0, 0), (8, 5, 8)])
def test_a_pushed_message_never_takes_its_parts_from_the_frame_behind_it(
    extras_length: int, key_length: int, body_length: int
) -> None:
    peer, guest = tap_peer()
    head = bytearray(frame(MUTATION, extras=bytes(body_length)))
    head[2:4], head[4] = key_length.to_bytes(2, "big"), extras_length
    assert peer.say(bytes(head) + bytes(8) + b"a key")[:2] == bytes([0x81, MUTATION])
    assert peer.closed
    assert all(not push.taken for push in guest.pushes)
