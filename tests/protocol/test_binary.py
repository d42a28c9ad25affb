"""Extras, values and shapes of the binary commands."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden import shapes
from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol import binary
from uprmc.protocol.binary import (
    SHAPES,
    KeyObservation,
    ObservedKey,
    Part,
    Refusal,
    decode_hello,
    decode_observe_reply,
    decode_observe_request,
    encode_hello,
    encode_observe_reply,
    encode_observe_request,
    shape_error,
)
from uprmc.protocol.opcodes import Feature, ObservedState, Opcode, Status

TORN = Refusal(Status.UNKNOWN_COMMAND, closes=True)
UNKNOWN = Refusal(Status.UNKNOWN_COMMAND, closes=False)
MISSHAPEN = Refusal(Status.INVALID_ARGUMENTS, closes=True)

U16 = st.integers(0, 2**16 - 1)
KEYS = st.binary(max_size=260)

# --- bodies -------------------------------------------------------------------------------------


def test_observe_bodies_are_the_references_v27() -> None:
    request, reply = (
        bytes.fromhex(text) for text in ("000500016b", "000500016b010000000000000099")
    )
    assert decode_observe_request(request) == [ObservedKey(5, b"k")]
    assert encode_observe_request([ObservedKey(5, b"k")]) == request
    seen = [KeyObservation(5, b"k", ObservedState.PERSISTED, 0x99)]
    assert decode_observe_reply(reply) == seen
    assert encode_observe_reply(seen) == reply


def test_observe_seqno_bodies_are_the_references_v26() -> None:
    reply = bytes.fromhex(
        "0100050000a1b2c3d4e5f6000000000000006e000000000000007000001122334455aa0000000000000064"
    )
    assert binary.OBSERVE_SEQNO_FAILOVER_REPLY.unpack(reply) == (
        *(1, 5, 0x0000A1B2C3D4E5F6, 110, 112),
        *(0x00001122334455AA, 100),
    )
    assert binary.ObserveSeqnoFailoverReply.parse(reply).last_old_seqno == 100


def test_observe_seqno_replies_have_27_and_43_bytes() -> None:
    assert binary.OBSERVE_SEQNO_REPLY.size == 27
    assert binary.OBSERVE_SEQNO_FAILOVER_REPLY.size == 43


@given(st.lists(st.builds(ObservedKey, U16, KEYS), max_size=5))
def test_observed_keys_survive_bytes(keys: list[ObservedKey]) -> None:
    assert decode_observe_request(encode_observe_request(keys)) == keys


@given(
    st.lists(
        st.builds(
            KeyObservation, U16, KEYS, st.sampled_from(ObservedState), st.integers(0, 2**64 - 1)
        ),
        max_size=5,
    )
)
def test_observations_survive_bytes(seen: list[KeyObservation]) -> None:
    assert decode_observe_reply(encode_observe_reply(seen)) == seen


@given(st.lists(st.builds(ObservedKey, U16, KEYS), min_size=1, max_size=3), st.data())
def test_a_torn_observe_entry_is_refused(keys: list[ObservedKey], data: st.DataObject) -> None:
    last = len(encode_observe_request(keys[-1:]))
    missing = data.draw(st.integers(1, last - 1))
    with pytest.raises(RemoteProtocolError, match="malformed"):
        decode_observe_request(encode_observe_request(keys)[:-missing])


def test_hello_is_a_row_of_numbers_known_or_not() -> None:
    value = bytes.fromhex("000400077777")
    assert decode_hello(value) == [Feature.MUTATION_SEQNO, Feature.XERROR, 0x7777]
    assert encode_hello([Feature.MUTATION_SEQNO, Feature.XERROR, 0x7777]) == value
    assert decode_hello(b"") == []


def test_hello_of_odd_length_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="malformed"):
        decode_hello(b"\x00\x04\x00")


def test_what_does_not_fit_into_a_value_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_hello([0x10000])
    with pytest.raises(LocalProtocolError):
        encode_observe_request([ObservedKey(0, bytes(0x10000))])


# --- shapes -------------------------------------------------------------------------------------

PARTS = {"0": Part.NONE, "1+": Part.REQUIRED, "any": Part.OPTIONAL}


def test_shapes_are_the_references_tables() -> None:
    expected = {
        int(opcode, 16): (frozenset(map(int, extras.split("|"))), PARTS[key], PARTS[value])
        for opcode, extras, key, value in shapes.ROWS
    }
    assert expected == SHAPES
    assert set(SHAPES) == set(Opcode)


@pytest.mark.parametrize(("opcode", "extras", "key", "value"), shapes.ROWS)
def test_every_combination_of_parts_is_judged_as_the_table_says(
    opcode: str, extras: str, key: str, value: str
) -> None:
    rules = {"0": {0}, "1+": {1, 250}, "any": {0, 1, 250}}
    sizes = itertools.product((0, 1, 3, 4, 5, 8, 16, 20, 21, 255), (0, 1, 250), (0, 1, 250))
    for extras_length, key_length, value_length in sizes:
        fits = (
            str(extras_length) in extras.split("|")
            and key_length in rules[key]
            and value_length in rules[value]
        )
        body_length = extras_length + key_length + value_length
        judged = shape_error(int(opcode, 16), extras_length, key_length, body_length)
        assert judged == (None if fits else MISSHAPEN)


@pytest.mark.parametrize("opcode", range(256))
def test_lengths_that_contradict_each_other_close_whatever_the_opcode(opcode: int) -> None:
    assert shape_error(opcode, 0, 2, 1) == TORN
    assert shape_error(opcode, 8, 1, 8) == TORN
    assert shape_error(opcode, 0, 0xFFFF, 0) == TORN


@pytest.mark.parametrize("opcode", range(256))
def test_a_key_over_250_bytes_closes_whatever_the_opcode(opcode: int) -> None:
    """Also for an opcode that nobody knows: memcached looks at the key first."""
    assert shape_error(opcode, 0, 251, 251) == MISSHAPEN


@pytest.mark.parametrize("opcode", sorted(set(range(256)) - set(Opcode)))
def test_an_unknown_opcode_is_answered_and_the_connection_goes_on(opcode: int) -> None:
    for lengths in ((0, 0, 0), (4, 250, 300), (255, 0, 255)):
        assert shape_error(opcode, *lengths) == UNKNOWN


@pytest.mark.parametrize(
    ("opcode", "lengths"),
    [
        (Opcode.APPEND, (8, 1, 10)),
        (Opcode.DELETE, (0, 1, 2)),
        (Opcode.SET, (0, 1, 1)),
        (Opcode.SET, (4, 1, 5)),
        (Opcode.NOOP, (0, 0, 1)),
        (Opcode.FLUSH, (8, 0, 8)),
        (Opcode.FLUSH, (4, 1, 5)),
        (Opcode.GAT, (0, 1, 1)),
        (Opcode.GETQ, (0, 0, 0)),
        (Opcode.STAT, (4, 0, 4)),
        (Opcode.SASL_AUTH, (0, 0, 4)),
    ],
)
def test_the_references_examples_of_wrong_shapes_close(
    opcode: int, lengths: tuple[int, int, int]
) -> None:
    assert shape_error(opcode, *lengths) == MISSHAPEN
