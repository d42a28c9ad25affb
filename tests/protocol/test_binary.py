"""Extras and values of the binary commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol import binary
from uprmc.protocol.binary import (
    KeyObservation,
    ObservedKey,
    decode_hello,
    decode_observe_reply,
    decode_observe_request,
    encode_hello,
    encode_observe_reply,
    encode_observe_request,
)
from uprmc.protocol.opcodes import Feature, ObservedState

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
    seen = binary.decode_observe_seqno(reply)
    assert seen == (0x0000A1B2C3D4E5F6, 110, 112, False)
    assert binary.decode_observe_seqno(b"\0" + reply[1:27])._replace(same_history=False) == seen
    with pytest.raises(RemoteProtocolError, match="42 bytes"):
        binary.decode_observe_seqno(reply[:-1])


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


def test_an_observe_of_more_keys_than_the_limit_is_refused() -> None:
    value = encode_observe_request([ObservedKey(1, b"k")] * 3)
    assert len(decode_observe_request(value, 3)) == 3
    with pytest.raises(RemoteProtocolError, match="too many"):
        decode_observe_request(value, 2)


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
