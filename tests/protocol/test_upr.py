"""The reference's vectors, both ways and by both codecs; round trips; what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import construct
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.upr_frames import BY_NUMBER, VECTORS
from tests.protocol.layouts import check_vector, plain
from tests.protocol.upr_meanings import BYE_CAS, MAX, MEANINGS, TTL_CAS, U0, U1
from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.model import TERM_MAX, FailoverEntry
from uprmc.protocol import binary, management, upr
from uprmc.protocol.header import RequestFrame, RequestHeader, decode_frame
from uprmc.protocol.upr import (
    StreamRequest,
    decode_failover_log,
    decode_stream_request,
    encode_failover_log,
    frame_head,
    frame_place,
    snapshot_marker,
)

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))


def test_all_thirty_vectors_have_a_meaning() -> None:
    assert list(MEANINGS) == [vector.number for vector in VECTORS]
    assert {number[1:-1] for number in MEANINGS} == {str(number) for number in range(1, 31)}


@pytest.mark.parametrize("number", MEANINGS)
def test_a_vector_means_what_the_table_says_both_ways(number: str) -> None:
    check_vector(BY_NUMBER[number].packet, *MEANINGS[number])


#: Bodies composed by hand from the tables where the vectors hold nothing but zeros.
DISTINCT = [
    (
        upr.StreamRequestExtras,
        upr.STREAM_REQUEST_EXTRAS,
        (
            "00000051 00000000 0000000000000014 0000000000000063 0000a1b2c3d4e5f6"
            "000000000000000a 000000000000001e"
        ),
        (0x51, 0, 20, 99, U1, 10, 30),
    ),
    (
        upr.FirstStreamRequestExtras,
        upr.FIRST_STREAM_REQUEST_EXTRAS,
        "00000003 00000000 0000000000000014 0000000000000063 0000a1b2c3d4e5f6 0000000000000028",
        (3, 0, 20, 99, U1, 40),
    ),
    (
        upr.MutationExtras,
        upr.MUTATION_EXTRAS,
        "000000000000000b 0000000000000002 0000cafe 65a00000 0000000f 0007 03",
        (11, 2, 0xCAFE, 0x65A00000, 15, 7, 3),
    ),
    (
        upr.DeletionExtras,
        upr.DELETION_EXTRAS,
        "000000000000000c 0000000000000003 0007",
        (12, 3, 7),
    ),
    (upr.OpenExtras, upr.OPEN_EXTRAS, "00000009 00000021", (9, 0x21)),
]


@pytest.mark.parametrize(("layout", "derived", "text", "numbers"), DISTINCT)
def test_fields_that_the_vectors_leave_empty_stand_where_the_tables_say(
    layout: construct.Struct, derived: struct.Struct, text: str, numbers: tuple[int, ...]
) -> None:
    body = bytes.fromhex(text)
    assert derived.unpack(body) == numbers
    assert derived.pack(*numbers) == body
    assert tuple(plain(layout.parse(body)).values()) == numbers


# --- the vectors as our own plain values --------------------------------------------------------


def body_of(number: str) -> bytes:
    frame = decode_frame(BY_NUMBER[number].packet)
    return frame.extras or frame.value


@pytest.mark.parametrize("number", ["V4r", "V5r"])
def test_a_failover_log_is_read_newest_first(number: str) -> None:
    log = (FailoverEntry(U1, 100), FailoverEntry(U0, 0))
    assert decode_failover_log(body_of(number)) == log
    assert encode_failover_log(log) == body_of(number)


@pytest.mark.parametrize(
    ("number", "request_"),
    [
        ("V5q", StreamRequest(0, 10, MAX, U1, 10, 10)),
        ("V6q", StreamRequest(0, 150, MAX, U0, 120, 150)),
        ("V7q", StreamRequest(0, 9, 3, U1, 9, 9)),
    ],
)
def test_stream_requests_of_the_vectors(number: str, request_: StreamRequest) -> None:
    assert decode_stream_request(body_of(number)) == request_
    assert request_.encode() == body_of(number)


def test_a_first_generation_request_holds_no_partial_snapshot() -> None:
    """V29: the snapshot begins and ends where the stream starts."""
    assert decode_stream_request(body_of("V29q")) == StreamRequest(0, 10, MAX, U1, 10, 10)


def test_observed_and_listed_seqnos_of_the_vectors() -> None:
    assert management.decode_vbucket_seqnos(body_of("V23r")) == [(0, 21554), (5, 12)]
    assert management.encode_vbucket_seqnos([(0, 21554), (5, 12)]) == body_of("V23r")
    assert binary.decode_observe_request(body_of("V27q")) == [binary.ObservedKey(5, b"k")]
    assert management.decode_with_meta(body_of("V24q")) == management.WithMeta(7, 0, 9, 0x99)


# --- frames in one piece ------------------------------------------------------------------------


def test_a_marker_in_one_piece_is_v8() -> None:
    assert snapshot_marker(5, 0x1000, 10, 12, 0x05) == BY_NUMBER["V8q"].packet


def test_a_mutation_in_one_piece_is_v9() -> None:
    packet = upr.MUTATION_FRAME.pack(
        frame_head(0x57),
        len(b"hello"),
        frame_place(upr.MUTATION_EXTRAS.size, 5, datatype=1),
        31 + len(b'hello{"a":1}'),
        0x1000,
        0x0102030405060708,
        *(11, 2, 0xCAFE, 0, 0, 0, 0),
    )
    assert packet + b'hello{"a":1}' == BY_NUMBER["V9q"].packet


@pytest.mark.parametrize(
    ("number", "opcode", "key", "cas", "seqnos"),
    [
        ("V10q", 0x58, b"bye", BYE_CAS, (12, 3)),
        ("V11q", 0x59, b"ttl", TTL_CAS, (13, 4)),
    ],
)
def test_a_deletion_in_one_piece_is_v10_and_v11(
    number: str, opcode: int, key: bytes, cas: int, seqnos: tuple[int, int]
) -> None:
    place = frame_place(upr.DELETION_EXTRAS.size, 5)
    numbers = (frame_head(opcode), len(key), place, 18 + len(key), 0x1000, cas, *seqnos, 0)
    packet = upr.DELETION_FRAME.pack(*numbers) + key
    assert packet == BY_NUMBER[number].packet
    assert upr.DELETION_FRAME.unpack_from(packet) == numbers


MERGED = [
    (0x57, upr.MutationExtras, upr.MutationFrame, upr.MUTATION_FRAME),
    (0x58, upr.DeletionExtras, upr.DeletionFrame, upr.DELETION_FRAME),
    (0x56, upr.SnapshotMarkerExtras, upr.MarkerFrame, upr.MARKER_FRAME),
]
PLACES = st.fixed_dictionaries(
    {
        "key_length": U16,
        "datatype": U8,
        "vbucket": U16,
        "body_length": U32,
        "opaque": U32,
        "cas": U64,
    }
)


@pytest.mark.parametrize(("opcode", "extras", "layout", "merged"), MERGED)
@given(header=PLACES, data=st.data())
def test_a_frame_in_one_piece_is_what_construct_builds(
    opcode: int,
    extras: construct.Struct,
    layout: construct.Struct,
    merged: struct.Struct,
    header: dict[str, int],
    data: st.DataObject,
) -> None:
    size = extras.sizeof()
    fields = {
        str(subcon.name): data.draw(st.integers(0, 256 ** subcon.sizeof() - 1))
        for subcon in extras.subcons
    }
    packed = merged.pack(
        frame_head(opcode),
        header["key_length"],
        frame_place(size, header["vbucket"], header["datatype"]),
        header["body_length"],
        header["opaque"],
        header["cas"],
        *fields.values(),
    )
    whole = {"magic": 0x80, "opcode": opcode, "extras_length": size, **header, **fields}
    assert packed == layout.build(whole)
    assert packed == RequestHeader.build(whole) + extras.build(fields)
    assert plain(layout.parse(packed)) == whole


@given(U16, U32, U64, U64, U32)
def test_a_marker_is_44_bytes_whatever_it_says(
    vbucket: int, opaque: int, start: int, end: int, kind: int
) -> None:
    frame = decode_frame(snapshot_marker(vbucket, opaque, start, end, kind))
    extras = upr.SNAPSHOT_MARKER_EXTRAS.pack(start, end, kind)
    assert frame == RequestFrame(0x56, extras=extras, vbucket=vbucket, opaque=opaque)
    assert len(frame.encode()) == 44


# --- round trips and refusals -------------------------------------------------------------------


@given(st.builds(StreamRequest, U32, U64, U64, U64, U64, U64))
def test_a_stream_request_survives_bytes(request_: StreamRequest) -> None:
    assert decode_stream_request(request_.encode()) == request_


LOGS = st.lists(st.builds(FailoverEntry, U64, U64), min_size=1, max_size=25)


@given(LOGS)
def test_a_failover_log_survives_bytes_by_both_codecs(log: list[FailoverEntry]) -> None:
    value = encode_failover_log(log)
    assert decode_failover_log(value) == tuple(log)
    assert value == b"".join(upr.FAILOVER_ENTRY.pack(*entry) for entry in log)
    parsed = upr.FailoverLogValue.parse(value).entries
    assert [(entry.uuid, entry.seqno) for entry in parsed] == log


@given(LOGS, st.integers(1, 15))
def test_a_torn_failover_log_is_refused(log: list[FailoverEntry], missing: int) -> None:
    with pytest.raises(RemoteProtocolError, match="a failover log of"):
        decode_failover_log(encode_failover_log(log)[:-missing])


def test_a_failover_log_is_never_empty() -> None:
    with pytest.raises(RemoteProtocolError, match="of 0 bytes"):
        decode_failover_log(b"")


@pytest.mark.parametrize("length", [0, 39, 41, 47, 49, 96])
def test_a_stream_request_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{length} bytes of extras"):
        decode_stream_request(bytes(length))


@pytest.mark.parametrize("decode", [decode_stream_request, decode_failover_log])
@given(body=st.binary(max_size=100) | st.sampled_from([40, 48, 64]).map(bytes))
def test_decoders_raise_nothing_but_our_own_error(
    decode: Callable[[bytes], object], body: bytes
) -> None:
    with suppress(RemoteProtocolError):
        decode(body)


def test_what_does_not_fit_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError, match="wire"):
        encode_failover_log([FailoverEntry(2**64, 0)])
    with pytest.raises(LocalProtocolError, match="wire"):
        StreamRequest(0, -1, 0, 0, 0, 0).encode()
    with pytest.raises(LocalProtocolError, match="wire"):
        StreamRequest(2**32, 0, 0, 0, 0, 0).encode()


@given(st.integers(0, TERM_MAX))
def test_a_term_survives_bytes_and_a_producer_without_terms_counts_as_0(term: int) -> None:
    assert upr.decode_term(upr.TERM_EXTRAS.pack(term)) == term
    assert upr.decode_term(b"") == 0


@pytest.mark.parametrize("extras", [bytes(4), bytes(9), b"\x80" + bytes(7), b"\xff" * 8])
def test_what_is_no_term_is_refused(extras: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="term"):
        upr.decode_term(extras)
