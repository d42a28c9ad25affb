"""The conversation around a stream: frames found, connects checked, answers handed on.

The registry and the producer are played; `test_registry` has the real ones.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop.wire import frame, split_replies
from tests.kv.binary_peer import answer
from tests.kv.harness import drained, talk
from tests.tap_adapter.side_commands import SideCommands
from uprmc import MEMCACHED_VERSION
from uprmc.errors import InvalidArguments, TemporaryFailure
from uprmc.protocol.tap import Connect
from uprmc.tap_adapter.session import FRAME_MAX_BYTES, UNSENT_MAX_BYTES, TapSession

CONNECT, MUTATION, OPAQUE, NOOP = 0x40, 0x41, 0x44, 0x0A

#: Reference, vector 22: an answer of spymemcached, with a key.
SPY_ACK = bytes.fromhex(
    "81440024000000000000002400000001000000000000000062393565316230652d343337362d343361362d38303437"
    "2d326265366566623836393965"
)

BACKFILL, DUMP, LIST, TAKEOVER, ACK, CHECKPOINT, REGISTERED = 1, 2, 4, 8, 0x10, 0x40, 0x80


def connect(flags: int = ACK, data: bytes = b"", name: bytes = b"replica1") -> bytes:
    return frame(CONNECT, name, data, struct.pack(">I", flags), opaque=9)


class Producer:
    """Sends what the test puts into `stream`; writes down what it hears."""

    def __init__(self) -> None:
        self.closed = ""
        self.ends_unasked = False
        self.stream: list[bytes] = []
        self.answers: list[tuple[int, int, int]] = []
        self.ticks: list[float] = []
        self.budgets: list[int] = []

    def fill(self, out: list[bytes], budget: int) -> int:
        self.budgets.append(budget)
        out += self.stream
        sent = sum(map(len, self.stream))
        self.stream = []
        return sent

    def answered(self, opcode: int, opaque: int, status: int) -> None:
        self.answers.append((opcode, opaque, status))

    def tick(self, now: float) -> None:
        self.ticks.append(now)


@dataclass
class Opened:
    producer: Producer


@dataclass
class Door(SideCommands):
    """Opens what is asked for, unless it is told not to."""

    refusal: Exception | None = None
    connects: list[Connect] = field(default_factory=list)
    opened: list[Opened] = field(default_factory=list)
    closed: list[Opened] = field(default_factory=list)
    refused_names: list[bytes] = field(default_factory=list)
    groups: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    pushes_refused: int = 0

    def open(self, connect: Connect, wake: object) -> Opened:
        if self.refusal is not None:
            raise self.refusal
        self.connects.append(connect)
        self.opened.append(Opened(Producer()))
        return self.opened[-1]

    def close(self, opened: Opened) -> None:
        self.closed.append(opened)

    def refused(self, name: bytes, why: str) -> None:
        self.refused_names.append(name)

    def statistics(self, words: str) -> list[tuple[str, str]] | None:
        return self.groups.get(words)


class Client:
    """One conversation with a registry."""

    def __init__(self, registry: Door | None = None) -> None:
        self.registry = registry or Door()
        self.misuse: list[str] = []
        self.session = TapSession(cast(Any, self.registry), lambda: None, self.misuse.append)

    def say(self, *frames: bytes) -> bytes:
        return talk(self.session, b"".join(frames))

    @property
    def producer(self) -> Producer:
        return self.registry.opened[-1].producer


def connected() -> Client:
    client = Client()
    assert client.say(connect()) == b""
    return client


# --- TAP_CONNECT --------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_a_connect_that_succeeds_is_answered_by_the_stream_alone() -> None:
    client = Client()
    assert client.say(connect(ACK | LIST, struct.pack(">HHH", 2, 3, 5))) == b""
    assert client.registry.connects == [Connect(b"replica1", ACK | LIST, vbuckets=(3, 5))]
    client.producer.stream = [b"fra", b"me"]
    assert drained(client.session) == b"frame"


def test_a_connect_without_extras_has_no_flags() -> None:
    client = Client()
    client.say(frame(CONNECT))
    assert client.registry.connects == [Connect()]


REFUSED = [
    (0x200, b""),
    (ACK | 0x8000_0000, b""),
    (DUMP | TAKEOVER | LIST, struct.pack(">HH", 1, 3)),
    (TAKEOVER, b""),
    (TAKEOVER, struct.pack(">HH", 1, 3)),
    (LIST, b""),
    (LIST, b"\0"),
    (LIST, struct.pack(">HH", 2, 3)),
    (LIST, struct.pack(">HHH", 1, 3, 5)),
    (CHECKPOINT, struct.pack(">HH", 1, 3)),
    (ACK, b"x"),
    (REGISTERED, b"\0\0"),
]


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize(("flags", "data"), REFUSED)
def test_an_impossible_connect_is_answered_not_supported_and_closed(
    flags: int, data: bytes
) -> None:
    client = Client()
    expected = bytes.fromhex(  # reference, vector 19
        "81400000000000830000000d0000000900000000000000004e6f7420737570706f72746564"
    )
    assert client.say(connect(flags, data)) == expected
    assert client.session.closing
    assert (client.registry.opened, client.registry.refused_names) == ([], [b"replica1"])


@pytest.mark.parametrize("length", range(8))
def test_backfill_without_its_time_is_closed_without_a_word(length: int) -> None:
    client = Client()
    assert client.say(connect(BACKFILL, bytes(length))) == b""
    assert (client.session.closing, client.registry.opened) == (True, [])
    assert len(client.misuse) == 1


def test_extras_of_another_length_are_refused() -> None:
    client = Client()
    assert client.say(frame(CONNECT, b"n", extras=bytes(3)))[6:8] == b"\0\x83"
    assert client.session.closing


def test_a_name_of_300_bytes_is_refused() -> None:
    client = Client()
    assert client.say(connect(name=b"n" * 300)) == answer(
        CONNECT, 0x04, value=b"Invalid arguments", opaque=9
    )
    assert client.session.closing


@pytest.mark.parametrize(
    ("why", "status"), [(TemporaryFailure("full"), 0x86), (InvalidArguments("name"), 0x04)]
)
def test_what_the_door_refuses_is_answered_and_closed(why: Exception, status: int) -> None:
    client = Client(Door(refusal=why))
    (reply,), _ = split_replies(client.say(connect(), frame(NOOP)))
    assert (reply.opcode, reply.status, reply.opaque) == (CONNECT, status, 9)
    assert client.session.closing


def test_a_second_connect_ends_the_connection() -> None:
    client = connected()
    assert client.say(connect()) == b""
    assert client.session.closing
    assert len(client.registry.closed) == 1


def test_what_was_not_sent_before_the_handover_goes_out_first() -> None:
    client = Client()
    client.session.inherit([b"old"], 3)
    client.session.receive_data(connect())
    client.producer.stream = [b"new"]
    assert client.session.data_to_send(100) == [b"old", b"new"]
    assert client.producer.budgets == [97]


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.acceptance("D56")
def test_answers_are_handed_on_whatever_key_and_body_they_have() -> None:
    client = connected()
    nack = answer(MUTATION, 0x86, value=b"Temporary failure", opaque=42)
    client.say(SPY_ACK, nack, answer(MUTATION, opaque=43))
    assert client.producer.answers == [(OPAQUE, 1, 0), (MUTATION, 42, 0x86), (MUTATION, 43, 0)]


def test_answers_to_keepalives_and_to_nothing_are_ignored() -> None:
    client = connected()
    client.say(answer(NOOP), answer(0x99), answer(CONNECT))
    assert client.producer.answers == []
    assert not client.session.closing


@given(st.lists(st.integers(0, 160), max_size=8))
def test_answers_may_be_cut_anywhere(cuts: list[int]) -> None:
    client = connected()
    data = SPY_ACK + answer(OPAQUE, opaque=2) + SPY_ACK
    places = sorted({0, len(data), *[cut for cut in cuts if cut < len(data)]})
    for start, end in pairwise(places):
        client.say(data[start:end])
    assert [opaque for _, opaque, _ in client.producer.answers] == [1, 2, 1]


def test_a_frame_may_have_64_kib_and_not_a_byte_more() -> None:
    for excess in (0, 1):
        client = connected()
        body = bytes(FRAME_MAX_BYTES - 24 + excess)
        client.say(answer(OPAQUE, opaque=1, value=body))
        assert client.session.closing == bool(excess)
        assert len(client.producer.answers) == 1 - excess


def test_a_frame_that_is_too_long_is_not_waited_for() -> None:
    client = connected()
    client.say(answer(OPAQUE, value=bytes(FRAME_MAX_BYTES))[:24])
    assert client.session.closing


def test_another_magic_ends_the_connection() -> None:
    client = connected()
    client.say(b"\x42" * 24)
    assert (client.session.closing, len(client.misuse)) == (True, 1)


@pytest.mark.parametrize("said", [b"version\r\n", b"v"])
@pytest.mark.parametrize("before", [b"", frame(NOOP), connect()])
def test_a_client_of_text_is_hung_up_on_at_once(before: bytes, said: bytes) -> None:
    client = Client()
    client.say(before + said)
    assert (client.session.closing, len(client.misuse)) == (True, 1)


def test_the_rest_of_a_frame_may_begin_with_anything() -> None:
    client = Client()
    request = frame(NOOP, opaque=0x41424344)
    for place in range(len(request)):
        assert not client.session.closing
        client.say(request[place : place + 1])
    assert not client.misuse


# --- the stream's life --------------------------------------------------------------------------


def test_a_producer_that_is_done_is_hung_up_on_after_its_last_bytes() -> None:
    client = connected()
    client.producer.stream = [b"last"]
    client.producer.closed = "the dump is complete"
    assert client.session.data_to_send(100) == [b"last"]
    assert client.session.closing
    assert client.registry.closed == client.registry.opened


def test_a_stream_is_let_go_once_however_it_ends() -> None:
    client = connected()
    client.session.connection_lost()
    client.session.connection_lost()
    client.session.tick(5.0)
    client.say(SPY_ACK)
    assert len(client.registry.closed) == 1
    assert client.registry.opened[0].producer.ticks == []


def test_after_the_producer_was_disconnected_nothing_is_handed_to_it() -> None:
    client = connected()
    client.producer.closed = "another connection has taken the name"
    client.session.receive_data(SPY_ACK)
    assert client.producer.answers == []


def test_the_time_is_handed_on_while_there_is_a_stream() -> None:
    client = Client()
    client.session.tick(1.0)
    client.say(connect())
    client.session.tick(2.0)
    assert client.producer.ticks == [2.0]


def test_a_connection_that_never_connected_may_be_lost() -> None:
    client = Client()
    client.session.connection_lost()
    assert client.registry.closed == []


# --- other commands -----------------------------------------------------------------------------


def test_before_and_after_the_connect_simple_commands_are_answered() -> None:
    for client in (Client(), connected()):
        assert client.say(frame(NOOP, opaque=3)) == answer(NOOP, opaque=3)
        (version,), _ = split_replies(client.say(frame(0x0B)))
        assert (version.status, version.value) == (0, MEMCACHED_VERSION.encode())
        assert client.say(frame(0x1F, b"agent", b"\0\7")) == answer(0x1F)
        (mechanisms,), _ = split_replies(client.say(frame(0x20)))
        assert mechanisms.status == 0x81
        assert not client.session.closing


def test_commands_that_nobody_needs_here_are_unknown_and_the_connection_stays() -> None:
    client = Client()
    replies, _ = split_replies(client.say(frame(0x00, b"key"), frame(0x99)))
    assert [reply.status for reply in replies] == [0x81, 0x81]
    assert not client.session.closing


def test_who_pushes_to_an_adapter_is_told_that_it_takes_nothing() -> None:
    client = Client()
    pushed = [frame(opcode, b"k", bytes(8), bytes(16)) for opcode in range(MUTATION, 0x48)]
    replies, _ = split_replies(client.say(*pushed))
    assert {reply.status for reply in replies} == {0x83}
    assert (len(replies), client.registry.pushes_refused) == (7, 7)
    assert not client.session.closing


def test_a_misshapen_command_is_refused_as_on_the_listeners() -> None:
    client = Client()
    assert client.say(frame(NOOP, b"key")) == answer(NOOP, 0x04, value=b"Invalid arguments")
    assert client.session.closing


@pytest.mark.parametrize(("opcode", "reply"), [(0x07, answer(0x07)), (0x17, b"")])
def test_quit_hangs_up(opcode: int, reply: bytes) -> None:
    client = connected()
    assert (
        client.say(
            frame(opcode),
        )
        == reply
    )
    assert (client.session.closing, len(client.registry.closed)) == (True, 1)


def test_statistics_are_those_of_the_registry() -> None:
    client = Client(Door(groups={"tap": [("ep_tap_count", "1")]}))
    assert client.say(frame(0x10, b"tap")) == (
        answer(0x10, key=b"ep_tap_count", value=b"1") + answer(0x10)
    )
    assert client.say(frame(0x10, b"bogus")) == answer(0x10, 0x01, value=b"Not found")


def test_clients_are_managed_by_name_on_any_connection() -> None:
    client = Client()
    good = struct.pack(">HHQ", 1, 3, 0)
    assert client.say(frame(0x9E, b"old")) == answer(0x9E)
    assert client.say(frame(0x9F)) == answer(0x9F)
    assert client.say(frame(0xB0, b"known", good)) == answer(0xB0)
    for name, value in ((b"unknown", good), (b"known", good[:-1])):
        assert client.say(frame(0xB0, name, value)) == answer(
            0xB0, 0x04, value=b"Invalid arguments"
        )
    assert client.registry.said == [b"old", "reset", (b"known", {3: 0})]


def test_who_does_not_read_his_answers_is_not_read() -> None:
    client = Client()
    each = len(answer(NOOP))
    count = UNSENT_MAX_BYTES // each + 1
    client.session.receive_data(frame(NOOP) * (count + 5))
    assert client.session.input_full
    assert len(drained(client.session)) == (count + 5) * each
    assert not client.session.input_full
    client.session.receive_data(frame(NOOP) * (count - 1))
    assert not client.session.input_full


# --- anything -----------------------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                frame,
                st.sampled_from([CONNECT, MUTATION, OPAQUE, NOOP, 0x9E, 0xB0, 0x10]),
                st.binary(max_size=6),
                st.binary(max_size=20),
                st.sampled_from([b"", bytes(4), b"\0\0\0\x14", b"\0\0\1\xff"]),
                magic=st.sampled_from([0x80, 0x81]),
            ),
        ),
        max_size=6,
    )
)
def test_nothing_that_a_client_sends_raises(pieces: list[bytes]) -> None:
    client = Client()
    for piece in pieces:
        client.say(piece)
    client.session.connection_lost()
    assert len(client.registry.closed) == len(client.registry.opened)
