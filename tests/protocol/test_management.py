"""Bodies of the management and metadata commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.model import VBucketState
from uprmc.protocol import management as m
from uprmc.protocol.management import WithMeta

U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@pytest.mark.parametrize(
    ("extras", "value"),
    [
        ("00000002", ""),  # V21: old tools put it into the extras
        ("", "00000002"),  # or into the value
        ("02", ""),  # today
        ("02", "7b7d"),  # with JSON behind it
    ],
)
def test_a_state_is_asked_for_in_three_forms(extras: str, value: str) -> None:
    state = m.decode_vbucket_state(bytes.fromhex(extras), bytes.fromhex(value))
    assert state is VBucketState.REPLICA


@pytest.mark.parametrize(
    ("extras", "value"),
    [
        ("", ""),
        ("00000002", "00"),
        ("", "000002"),
        ("", "0000000002"),
        ("00000000", ""),
        ("00000005", ""),
        ("02000000", ""),
        ("00", ""),
        ("05", ""),
    ],
)
def test_no_other_form_and_no_other_state_is_accepted(extras: str, value: str) -> None:
    with pytest.raises(RemoteProtocolError):
        m.decode_vbucket_state(bytes.fromhex(extras), bytes.fromhex(value))


def test_seqnos_are_the_references_v23() -> None:
    value = bytes.fromhex("000000000000000054320005000000000000000c")
    assert m.decode_vbucket_seqnos(value) == [(0, 21554), (5, 12)]
    assert m.encode_vbucket_seqnos([(0, 21554), (5, 12)]) == value
    with pytest.raises(RemoteProtocolError):
        m.decode_vbucket_seqnos(value[:-1])


@given(st.lists(st.tuples(U16, U64), max_size=5))
def test_seqnos_survive_bytes(seqnos: list[tuple[int, int]]) -> None:
    assert m.decode_vbucket_seqnos(m.encode_vbucket_seqnos(seqnos)) == seqnos


@given(st.lists(st.tuples(U16, U64, U64), max_size=5))
def test_seqnos_with_terms_survive_bytes(rows: list[tuple[int, int, int]]) -> None:
    value = m.encode_vbucket_seqno_terms(rows)
    assert len(value) == 18 * len(rows)
    assert m.decode_vbucket_seqno_terms(value) == rows
    with pytest.raises(RemoteProtocolError):
        m.decode_vbucket_seqno_terms(value + b"x")


def test_keys_are_a_length_and_the_key_each() -> None:
    assert m.encode_keys([b"a", b"bc"]) == b"\0\x01a\0\x02bc"
    with pytest.raises(LocalProtocolError):
        m.encode_keys([bytes(0x10000)])


def test_metadata_is_the_references_v24() -> None:
    extras = bytes.fromhex("000000070000000000000000000000090000000000000099")
    assert m.decode_with_meta(extras) == WithMeta(7, 0, 9, 0x99)


@given(st.builds(WithMeta, U32, U32, U64, U64, U32, U16))
def test_metadata_is_read_from_each_of_its_four_lengths(meta: WithMeta) -> None:
    base = meta[:4]
    assert m.decode_with_meta(m.WITH_META_EXTRAS.pack(*base)) == WithMeta(*base)
    nmeta = m.WITH_META_NMETA_EXTRAS.pack(*base, meta.nmeta)
    assert m.decode_with_meta(nmeta) == WithMeta(*base, nmeta=meta.nmeta)
    options = m.WITH_META_OPTIONS_EXTRAS.pack(*base, meta.options)
    assert m.decode_with_meta(options) == WithMeta(*base, options=meta.options)
    both = m.WITH_META_OPTIONS_NMETA_EXTRAS.pack(*meta)
    assert m.decode_with_meta(both) == meta


@pytest.mark.parametrize("length", [0, 23, 25, 27, 29, 31])
def test_metadata_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        m.decode_with_meta(bytes(length))


def test_compaction_is_the_references_v28() -> None:
    extras = bytes.fromhex("000000000000000000000000000000640000000000000000")
    assert m.COMPACT_EXTRAS.unpack(extras) == (0, 100, 0, bytes(7))


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=20)), max_size=4))
def test_extended_metadata_survives_bytes(entries: list[tuple[int, bytes]]) -> None:
    coded = [bytes([number]) + len(data).to_bytes(2, "big") + data for number, data in entries]
    assert m.decode_extended_meta(b"\x01" + b"".join(coded)) == entries


@pytest.mark.parametrize("value", [b"", b"\x02", b"\x01\x01", b"\x01\x01\0\x08\0"])
def test_extended_metadata_of_another_version_or_torn_is_refused(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        m.decode_extended_meta(value)
