"""TAP: golden bytes of every message both ways, layouts, and what is refused.

The vectors' meanings are told as arguments of our own functions; that other programs read them
alike is what makes them golden. TAP_CONNECT has more in ``test_tap_connect.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import construct
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.tap import BY_NUMBER, VECTORS
from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.model import VBucketState
from uprmc.protocol import tap
from uprmc.protocol.header import RequestFrame, ResponseFrame, decode_frame, encode_request
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.tap import (
    PUSHED,
    Connect,
    TapFlag,
    TapMessage,
    TapOpaque,
    decode_connect,
    decode_filter,
    decode_message,
    encode_connect,
    tap_message,
)

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
CAS = 0x0102030405060708
ACK, NO_VALUE, ORDER = TapFlag.ACK, TapFlag.NO_VALUE, TapFlag.NETWORK_BYTE_ORDER
ITEM_OPCODES = (Opcode.TAP_MUTATION, Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END)


def section(layout: struct.Struct, *numbers: int) -> bytes:
    packed: bytes = layout.pack(*numbers)
    return packed


REV_7_NRU_2 = section(tap.TAP_MUTATION_SPECIFIC, 7, 2)
REV_7 = section(tap.TAP_REVISION_SPECIFIC, 7)
ID_10 = section(tap.TAP_CHECKPOINT_VALUE, 10)

#: Number -> TAP_CONNECT, its opaque.
CONNECTS: dict[str, tuple[Connect, int]] = {
    "1": (Connect(b"node1", 0x111), 0),
    "2": (
        Connect(b"backup_1", 0x1D5, 2**64 - 1, (3, 5), {3: 9}, closed_only=True),
        0,
    ),
    "3": (Connect(b"mv_3", 0x5C, vbuckets=(3,)), 0),
}

#: The same, read from real peers who write things that we would not.
FOREIGN_CONNECTS: dict[str, tuple[Connect, int]] = {
    "23a": (Connect(b"replica1", 0x14, vbuckets=(0,)), 0xFECAFECA),
    "23b": (Connect(b"mv_0", 0x1C, vbuckets=(0,)), 0xFECAFECA),
    "23c": (Connect(b"reg1", 0xD4, vbuckets=(0,)), 0xFECAFECA),
}

#: Number -> a message of a producer.
MESSAGES: dict[str, TapMessage] = {
    "4": TapMessage(0x41, 3, 42, CAS, ACK | ORDER, 255, 0xDEADBEEF, 0, REV_7_NRU_2, b"k1", b"v1"),
    "5": TapMessage(0x41, 3, 43, CAS, 0, 255, 0xEFBEADDE, 1_700_000_000, REV_7_NRU_2, b"k1", b"v1"),
    "6": TapMessage(
        0x41, 3, 44, CAS, NO_VALUE | ORDER, 255, 0xDEADBEEF, 0, REV_7_NRU_2, b"k1", b""
    ),
    "7": TapMessage(
        0x42, 3, 45, 0, ACK, 255, 0, 0, section(tap.TAP_REVISION_SPECIFIC, 8), b"k1", b""
    ),
    "8": TapMessage(0x43, 0, 46, 0, ACK, 255, 0, 0, b"", b"", b""),
    "9": TapMessage(0x44, 0, 1, 0, ACK, 255, 0, 0, bytes(4), b"", b""),
    "10": TapMessage(0x44, 3, 5, 0, ACK, 255, 0, 0, b"\0\0\0\1", b"", b""),
    "11": TapMessage(0x44, 3, 47, 0, ACK, 255, 0, 0, b"\0\0\0\x08", b"", b""),
    "12": TapMessage(0x45, 3, 4, 0, ACK, 255, 0, 0, b"\0\0\0\3", b"", b""),
    "13": TapMessage(0x45, 3, 49, 0, ACK, 255, 0, 0, b"\0\0\0\1", b"", b""),
    "14": TapMessage(
        0x46,
        3,
        50,
        0,
        ACK,
        255,
        0,
        0,
        section(tap.TAP_REVISION_SPECIFIC, 5),
        b"checkpoint_start",
        ID_10,
    ),
    "15": TapMessage(0x47, 3, 51, 0, ACK, 255, 0, 0, b"", b"checkpoint_end", ID_10),
    "24": TapMessage(0x41, 0, 1, 0, ORDER, 255, 0x01020304, 0, REV_7, b"legacy1", b"from-master"),
}

#: Number -> what our functions make of it.
WRITTEN: dict[str, Callable[[], bytes]] = {
    "8": lambda: tap.flush_message(46, ACK),
    "9": lambda: tap.opaque_message(TapOpaque.ENABLE_AUTO_NACK, 0, 1, ACK),
    "10": lambda: tap.opaque_message(TapOpaque.INITIAL_VBUCKET_STREAM, 3, 5, ACK),
    "11": lambda: tap.opaque_message(TapOpaque.CLOSE_BACKFILL, 3, 47, ACK),
    "12": lambda: tap.state_message(VBucketState.PENDING, 3, 4, ACK),
    "13": lambda: tap.state_message(VBucketState.ACTIVE, 3, 49, ACK),
    "14": lambda: tap.checkpoint_start(10, 3, 50, ACK, deleted_rev=5),
    "15": lambda: tap.checkpoint_end(10, 3, 51, ACK),
    "16": lambda: encode_request(Opcode.NOOP),
    "17": lambda: tap.tap_answer(Opcode.TAP_MUTATION, 42),
    "18": lambda: tap.tap_answer(
        Opcode.TAP_MUTATION, 42, Status.TEMPORARY_FAILURE, b"Temporary failure"
    ),
    "19": lambda: tap.tap_answer(Opcode.TAP_CONNECT, 0, Status.NOT_SUPPORTED, b"Not supported"),
    "20": lambda: encode_request(Opcode.DEREGISTER_TAP_CLIENT, key=b"backup_1", opaque=9),
    "21": lambda: encode_request(
        Opcode.CHANGE_VB_FILTER,
        key=b"node1",
        value=tap.TAP_COUNT.pack(2)
        + tap.TAP_CHECKPOINT_ENTRY.pack(3, 0)
        + tap.TAP_CHECKPOINT_ENTRY.pack(5, 0),
        opaque=10,
    ),
}


def packet(number: str) -> bytes:
    return BY_NUMBER[number].packet


def read_message(frame_bytes: bytes) -> TapMessage:
    """Read a whole message as a connection does: by its header's lengths and nothing else."""
    frame = decode_frame(frame_bytes)
    assert isinstance(frame, RequestFrame)
    return decode_message(
        frame.opcode,
        frame.vbucket,
        frame.opaque,
        frame.cas,
        frame.extras,
        len(frame.key),
        frame.key + frame.value,
    )


def encode_message(message: TapMessage) -> bytes:
    item = (message.item_flags, message.expiration) if message.opcode in ITEM_OPCODES else None
    return tap_message(
        message.opcode,
        specific=message.specific,
        flags=message.flags,
        vbucket=message.vbucket,
        opaque=message.opaque,
        cas=message.cas,
        key=message.key,
        value=message.value,
        item=item,
        ttl=message.ttl,
    )


# --- the vectors --------------------------------------------------------------------------------


def test_every_vector_of_the_reference_has_a_meaning_here() -> None:
    told = {*CONNECTS, *FOREIGN_CONNECTS, *MESSAGES, *WRITTEN, "22"}
    assert told == {vector.number for vector in VECTORS}
    assert {int(number.rstrip("abc")) for number in told} == set(range(1, 25))


@pytest.mark.acceptance("D56")
@pytest.mark.parametrize("number", MESSAGES)
def test_a_vector_is_read_and_written_as_the_table_says(number: str) -> None:
    assert read_message(packet(number)) == MESSAGES[number]
    assert encode_message(MESSAGES[number]) == packet(number)
    assert MESSAGES[number].wants_ack is (number not in {"5", "6", "24"})


@pytest.mark.parametrize("number", WRITTEN)
def test_our_functions_write_the_vector(number: str) -> None:
    assert WRITTEN[number]() == packet(number)


@pytest.mark.parametrize("number", CONNECTS | FOREIGN_CONNECTS)
def test_a_connect_is_read_as_the_table_says(number: str) -> None:
    frame = decode_frame(packet(number))
    expected, opaque = (CONNECTS | FOREIGN_CONNECTS)[number]
    assert frame.opcode == Opcode.TAP_CONNECT
    assert frame.opaque == opaque
    assert decode_connect(frame.key, frame.extras, frame.value) == expected


@pytest.mark.parametrize("number", CONNECTS | FOREIGN_CONNECTS)
def test_a_connect_is_written_as_the_table_says(number: str) -> None:
    """vbucketmigrator leaves out what may be left out, too."""
    connect, opaque = (CONNECTS | FOREIGN_CONNECTS)[number]
    assert encode_connect(connect, opaque) == packet(number)


def test_the_answers_of_the_vectors_are_read() -> None:
    frames = {number: decode_frame(packet(number)) for number in ("17", "18", "19", "22")}
    assert frames == {
        "17": ResponseFrame(0x41, opaque=42),
        "18": ResponseFrame(0x41, 0x86, value=b"Temporary failure", opaque=42),
        "19": ResponseFrame(0x40, 0x83, value=b"Not supported"),
        "22": ResponseFrame(0x44, key=b"b95e1b0e-4376-43a6-8047-2be6efb8699e", opaque=1),
    }


def test_the_filter_of_the_vector_is_read() -> None:
    frame = decode_frame(packet("21"))
    assert frame.key == b"node1"
    assert decode_filter(frame.value) == {3: 0, 5: 0}


# --- layouts ------------------------------------------------------------------------------------


@given(U16, U16, U8, U32, U32)
def test_the_extras_survive_bytes_by_both_codecs(
    size: int, flags: int, ttl: int, item_flags: int, expiration: int
) -> None:
    short = tap.TAP_EXTRAS.pack(size, flags, ttl, bytes(3))
    assert tap.TapExtras.build({"specific_bytes": size, "flags": flags, "ttl": ttl}) == short
    long = tap.TapItemExtras.build(
        {
            "specific_bytes": size,
            "flags": flags,
            "ttl": ttl,
            "item_flags": item_flags,
            "expiration": expiration,
        }
    )
    assert long == tap.TAP_ITEM_EXTRAS.pack(size, flags, ttl, bytes(3), item_flags, expiration)
    assert long[:8] == short


def test_the_frame_of_a_mutation_is_header_extras_and_section() -> None:
    start = packet("4")[: tap.TAP_MUTATION_FRAME.size]
    numbers = tap.TAP_MUTATION_FRAME.unpack(start)
    assert numbers[-2:] == (7, 2)
    assert numbers == tuple(tap.TapMutationFrame.parse(start)[each.name] for each in _fields())
    assert tap.TAP_DELETE_FRAME.unpack(packet("7")[:40])[-1] == 8


def _fields() -> list[construct.Renamed]:
    fields: list[construct.Renamed] = tap.TapMutationFrame.subcons
    return fields


def test_numbers_are_the_tables() -> None:
    assert [each.name for each in Opcode if 0x40 <= each <= 0x47] == [
        "TAP_CONNECT",
        "TAP_MUTATION",
        "TAP_DELETE",
        "TAP_FLUSH",
        "TAP_OPAQUE",
        "TAP_VBUCKET_SET",
        "TAP_CHECKPOINT_START",
        "TAP_CHECKPOINT_END",
    ]
    assert list(PUSHED) == list(range(0x41, 0x48))
    assert list(map(int, TapOpaque)) == [0, 1, 2, 3, 4, 7, 8]
    assert list(map(int, TapFlag)) == [1, 2, 4]


# --- messages -----------------------------------------------------------------------------------


@st.composite
def messages(draw: st.DrawFn) -> TapMessage:
    opcode = draw(st.sampled_from(PUSHED))
    item_flags, expiration = (draw(U32), draw(U32)) if opcode in ITEM_OPCODES else (0, 0)
    return TapMessage(
        opcode,
        draw(U16),
        draw(U32),
        draw(U64),
        draw(U16),
        draw(U8),
        item_flags,
        expiration,
        draw(st.binary(max_size=20)),
        draw(st.binary(max_size=20)),
        draw(st.binary(max_size=20)),
    )


@given(messages())
def test_a_message_survives_bytes(message: TapMessage) -> None:
    assert read_message(encode_message(message)) == message


@given(messages())
def test_a_message_says_all_its_lengths(message: TapMessage) -> None:
    """The section is in the body's length and not in that of the header's extras."""
    frame = encode_message(message)
    extras = 16 if message.opcode in ITEM_OPCODES else 8
    section_bytes, key, value = len(message.specific), len(message.key), len(message.value)
    assert frame[2:5] == key.to_bytes(2, "big") + bytes((extras,))
    assert int.from_bytes(frame[8:12], "big") == len(frame) - 24
    assert len(frame) - 24 == extras + section_bytes + key + value
    assert int.from_bytes(frame[24:26], "big") == section_bytes


@given(messages(), st.data())
def test_every_truncation_of_a_message_is_refused(message: TapMessage, data: st.DataObject) -> None:
    whole = encode_message(message)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RemoteProtocolError):
        read_message(whole[:end])


@given(messages())
def test_a_body_that_ends_before_the_value_is_refused(message: TapMessage) -> None:
    """Also when the header agrees with what came: then it is the section that does not fit."""
    extras = encode_message(message)[24:][: 16 if message.opcode in ITEM_OPCODES else 8]
    rest = message.specific + message.key
    for end in range(len(rest)):
        with pytest.raises(RemoteProtocolError, match="section"):
            decode_message(message.opcode, 0, 0, 0, extras, len(message.key), rest[:end])
    assert decode_message(message.opcode, 0, 0, 0, extras, len(message.key), rest).value == b""


@pytest.mark.parametrize("opcode", PUSHED)
def test_extras_of_another_length_are_refused(opcode: int) -> None:
    allowed = {
        Opcode.TAP_MUTATION: {16},
        Opcode.TAP_CHECKPOINT_START: {8, 16},
        Opcode.TAP_CHECKPOINT_END: {8, 16},
    }.get(Opcode(opcode), {8})
    for length in range(30):
        if length in allowed:
            decode_message(opcode, 0, 0, 0, bytes(length), 0, b"")
        else:
            with pytest.raises(RemoteProtocolError):
                decode_message(opcode, 0, 0, 0, bytes(length), 0, b"")


def test_a_mutation_without_a_section_is_one_of_a_master_before_1_8() -> None:
    """A decoder takes the section's length as it is told."""
    message = read_message(
        tap_message(Opcode.TAP_MUTATION, key=b"k", value=b"v", item=(1, 2), opaque=3)
    )
    assert (message.specific, message.key, message.value) == (b"", b"k", b"v")


def test_a_checkpoint_in_the_form_of_the_old_document_is_read() -> None:
    message = read_message(tap_message(Opcode.TAP_CHECKPOINT_START, value=ID_10))
    assert (message.key, message.value, message.expiration) == (b"", ID_10, 0)


@given(U8, U16, st.binary(max_size=20), st.integers(0, 30), st.binary(max_size=40))
def test_reading_a_message_raises_nothing_but_our_own_error(
    opcode: int, vbucket: int, extras: bytes, key_length: int, rest: bytes
) -> None:
    with suppress(RemoteProtocolError):
        decode_message(opcode, vbucket, 0, 0, extras, key_length, rest)


@pytest.mark.parametrize(
    "wrong",
    [
        {"flags": 0x10000},
        {"ttl": 256},
        {"vbucket": 0x10000},
        {"opaque": 2**32},
        {"cas": -1},
        {"item": (2**32, 0)},
        {"key": bytes(0x10000)},
        {"specific": bytes(0x10000)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_does_not_fit_is_our_own_error(wrong: dict[str, int]) -> None:
    with pytest.raises(LocalProtocolError, match="wire"):
        tap_message(Opcode.TAP_MUTATION, **wrong)  # type: ignore[arg-type]
