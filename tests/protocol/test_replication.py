"""Markers of version 2.2, what is persisted, and our own commands: golden bytes, round trips."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.replication import BY_NUMBER, VECTORS
from tests.protocol.layouts import PAIRS, check_vector
from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.model import Life
from uprmc.protocol import replication
from uprmc.protocol.header import Frame, RequestFrame, ResponseFrame, decode_frame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.replication import (
    Branch,
    Outcome,
    ReplicateFlag,
    decode_branches,
    decode_outcomes,
    decode_vbuckets,
    encode_branches,
    encode_outcomes,
    encode_vbuckets,
)
from uprmc.protocol.upr import Marker, decode_marker, snapshot_marker, versioned_marker

U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
U0, U1 = 0x00001122334455AA, 0x0000A1B2C3D4E5F6
SOURCE = b"10.0.0.1:11210"
VBUCKETS = b"\x00\x05\x03\x84"

#: Number -> (the frame without the part that has a layout, that part, the layout, what it says).
MEANINGS: dict[str, tuple[Frame, str, str, dict[str, int]]] = {
    "R1q": (
        RequestFrame(0x56, extras=b"\x02", vbucket=5, opaque=0x1000),
        "value",
        "VersionedMarkerValue",
        {
            "start_seqno": 10,
            "end_seqno": 12,
            "kind": 5,
            "max_visible_seqno": 12,
            "high_completed_seqno": 0,
            "purge_seqno": 7,
            "high_prepared_seqno": 0,
        },
    ),
    "R2q": (
        RequestFrame(0x61, vbucket=5, opaque=0x1000),
        "extras",
        "SeqnoAcknowledgedExtras",
        {"seqno": 12},
    ),
    "R3q": (
        RequestFrame(0xE7, b"k", vbucket=5, opaque=0x25),
        "extras",
        "GetVersionExtras",
        {"upto_seqno": 100},
    ),
    "R3r": (
        ResponseFrame(0xE7, value=b"1", datatype=1, opaque=0x25, cas=0x0102030405060708),
        "extras",
        "GetVersionReplyExtras",
        {"by_seqno": 99, "rev_seqno": 2, "flags": 0xCAFE, "expiration": 0, "life": Life.LIVE},
    ),
    "R4r": (
        ResponseFrame(0xE7, opaque=0x26, cas=0x1112131415161718),
        "extras",
        "GetVersionReplyExtras",
        {
            "by_seqno": 12,
            "rev_seqno": 3,
            "flags": 0,
            "expiration": 0x65A00000,
            "life": Life.EXPIRED,
        },
    ),
    "R5q": (
        RequestFrame(0xD7, SOURCE, value=VBUCKETS, opaque=0x27, cas=9),
        "extras",
        "ReplicateExtras",
        {"flags": ReplicateFlag.DEMOTE},
    ),
    "R5r": (ResponseFrame(0xD7, opaque=0x27), "", "", {}),
    "R6q": (RequestFrame(0xD8, SOURCE, value=VBUCKETS, opaque=0x28), "", "", {}),
    "R6r": (
        ResponseFrame(0xD8, value=b"\x00\x05\x00\x00\x03\x84\x00\x02", opaque=0x28),
        "",
        "",
        {},
    ),
    "R7q": (RequestFrame(0xD9, value=VBUCKETS, opaque=0x29), "", "", {}),
    "R7r": (
        ResponseFrame(0xD9, value=struct.pack(">HQQHQQ", 5, U1, 100, 900, U0, 0), opaque=0x29),
        "",
        "",
        {},
    ),
}


def packet(number: str) -> bytes:
    return BY_NUMBER[number].packet


# --- the vectors --------------------------------------------------------------------------------


def test_all_vectors_have_a_meaning() -> None:
    assert list(MEANINGS) == [vector.number for vector in VECTORS]


@pytest.mark.parametrize("number", MEANINGS)
def test_a_vector_means_what_the_table_says_both_ways(number: str) -> None:
    frame, part, name, fields = MEANINGS[number]
    where = (part, *PAIRS[name], fields) if name else ()
    check_vector(packet(number), frame, *where)


def test_numbers_are_where_nobody_else_has_any() -> None:
    """0x61 is the field's own; ours lie at the far ends of gaps."""
    assert Opcode.UPR_SEQNO_ACKNOWLEDGED == 0x61
    assert [each.name for each in Opcode if 0xC6 <= each <= 0xDF] == [
        "XDCR",
        "VBUCKET_FACTS",
        "REPLICATE",
        "TAKEOVER",
        "FAILOVER",
        "TELL_TERMS",
        "LEASE_ROWS",
        "HWT_REPORTS",
        "STREAM_REQUESTS",
        "SNAPSHOTS",
    ]
    assert Opcode.GET_VERSION == 0xE7


# --- markers ------------------------------------------------------------------------------------


def test_a_marker_of_version_2_2_is_the_golden_one() -> None:
    assert versioned_marker(5, 0x1000, 10, 12, 0x05, 7) == packet("R1q")


def test_either_form_of_a_marker_is_read() -> None:
    today = decode_frame(packet("R1q"))
    assert decode_marker(today.extras, today.value) == Marker(10, 12, 5, 7)
    old = decode_frame(snapshot_marker(5, 0x1000, 10, 12, 0x05))
    assert decode_marker(old.extras, old.value) == Marker(10, 12, 5, 0)


@given(U16, U32, U64, U64, U32, U64)
def test_a_marker_survives_bytes(
    vbucket: int, opaque: int, one: int, other: int, kind: int, purge_seqno: int
) -> None:
    start, end = sorted((one, other))
    frame = decode_frame(versioned_marker(vbucket, opaque, start, end, kind, purge_seqno))
    assert isinstance(frame, RequestFrame)
    assert (frame.opcode, frame.vbucket, frame.opaque) == (0x56, vbucket, opaque)
    assert decode_marker(frame.extras, frame.value) == Marker(start, end, kind, purge_seqno)
    assert len(frame.encode()) == 77


NO_MARKERS = {
    "no extras": (b"", b""),
    "19 bytes": (bytes(19), b""),
    "21 bytes": (bytes(21), b""),
    "the old form with a value": (bytes(20), b"v"),
    "version 0": (b"\x00", bytes(36)),
    "version 0 with the value of 2.2": (b"\x00", bytes(52)),
    "version 3": (b"\x03", bytes(52)),
    "a value cut short": (b"\x02", bytes(51)),
    "a value too long": (b"\x02", bytes(53)),
    "no value": (b"\x02", b""),
    "an end before its start": (struct.pack(">QQI", 2, 1, 1), b""),
    "the same today": (b"\x02", struct.pack(">QQIQQQQ", 2, 1, 1, 1, 0, 0, 0)),
}


@pytest.mark.parametrize(("extras", "value"), NO_MARKERS.values(), ids=NO_MARKERS)
def test_what_is_no_marker_is_refused(extras: bytes, value: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"a marker of|a snapshot from"):
        decode_marker(extras, value)


@given(st.binary(max_size=21), st.binary(max_size=60))
def test_reading_a_marker_raises_nothing_but_our_own_error(extras: bytes, value: bytes) -> None:
    with suppress(RemoteProtocolError):
        decode_marker(extras, value)


# --- rows ---------------------------------------------------------------------------------------


def test_the_values_of_the_vectors() -> None:
    for number in ("R5q", "R6q", "R7q"):
        assert decode_vbuckets(decode_frame(packet(number)).value) == [5, 900]
    assert encode_vbuckets([5, 900]) == VBUCKETS
    outcomes = {5: Outcome.TAKEN, 900: Outcome.INTERRUPTED}
    came = decode_frame(packet("R6r")).value
    assert decode_outcomes(came) == outcomes
    assert encode_outcomes(outcomes.items()) == came
    branches = [Branch(5, U1, 100), Branch(900, U0, 0)]
    promoted = decode_frame(packet("R7r")).value
    assert decode_branches(promoted) == branches
    assert encode_branches(branches) == promoted


@given(st.lists(U16, max_size=50))
def test_vbucket_numbers_survive_bytes(numbers: list[int]) -> None:
    value = encode_vbuckets(numbers)
    assert decode_vbuckets(value) == numbers
    assert list(replication.VBucketsValue.parse(value).entries) == numbers


@given(st.dictionaries(U16, st.sampled_from(Outcome), max_size=20))
def test_outcomes_survive_bytes(outcomes: dict[int, Outcome]) -> None:
    value = encode_outcomes(outcomes.items())
    assert decode_outcomes(value) == outcomes
    parsed = replication.TakeoverReply.parse(value).entries
    assert {each.vbucket: each.outcome for each in parsed} == outcomes


@given(st.lists(st.builds(Branch, U16, U64, U64), max_size=20))
def test_branches_survive_bytes(branches: list[Branch]) -> None:
    value = encode_branches(branches)
    assert decode_branches(value) == branches
    parsed = replication.FailoverReply.parse(value).entries
    assert [Branch(each.vbucket, each.uuid, each.seqno) for each in parsed] == branches


@pytest.mark.parametrize(
    ("decode", "width"), [(decode_vbuckets, 2), (decode_outcomes, 4), (decode_branches, 18)]
)
@pytest.mark.parametrize("over", [-1, 1])
def test_a_torn_row_is_refused(decode: Callable[[bytes], object], width: int, over: int) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed"):
        decode(bytes(2 * width + over))


@pytest.mark.parametrize("decode", [decode_vbuckets, decode_outcomes, decode_branches])
@given(value=st.binary(max_size=100))
def test_reading_rows_raises_nothing_but_our_own_error(
    decode: Callable[[bytes], object], value: bytes
) -> None:
    with suppress(RemoteProtocolError):
        decode(value)


def test_what_does_not_fit_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError, match="wire"):
        encode_vbuckets([0x10000])
    with pytest.raises(LocalProtocolError, match="wire"):
        encode_branches([Branch(0, 2**64, 0)])
    with pytest.raises(LocalProtocolError, match="wire"):
        encode_outcomes([(-1, Outcome.TAKEN)])
