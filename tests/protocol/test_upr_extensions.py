"""Barriers, rounds, leases, the value of a stream request: golden bytes, round trips, refusals."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.golden.upr_extensions import BY_NUMBER, KNOWN_VERSIONS, VECTORS
from tests.protocol.layouts import PAIRS, check_vector
from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.model import TERM_MAX, FailoverEntry
from uprmc.protocol import upr_extensions
from uprmc.protocol.header import Frame, RequestFrame, ResponseFrame, decode_frame
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.upr_extensions import (
    STREAM_OPTIONS_MAX_BYTES,
    LeasedVBucket,
    StreamOptions,
    decode_lease_grant,
    decode_lease_vbuckets,
    decode_stream_options,
    encode_lease_grant,
    encode_lease_vbuckets,
    encode_stream_options,
)

U16, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)
U0, U1 = 0x00001122334455AA, 0x0000A1B2C3D4E5F6
LEASE = 0x1122334455667788

# --- the vectors --------------------------------------------------------------------------------

#: Number -> (the frame without its extras, name of their layout, what stands in them).
MEANINGS: dict[str, tuple[Frame, str, dict[str, int]]] = {
    "X1q": (RequestFrame(0xE8, b"c1", opaque=0x21), "", {}),
    "X1r": (
        ResponseFrame(0xE8, opaque=0x21),
        "BarrierAddReplyExtras",
        {"cycle": 7, "vbucket": 5, "unused": 0},
    ),
    "X2q": (
        RequestFrame(0xE9, b"c1", opaque=0x21),
        "BarrierReachedExtras",
        {"cycle": 8, "frames": 300},
    ),
    "X3q": (
        RequestFrame(0xEA, vbucket=5, opaque=0x1000),
        "PartitionStartExtras",
        {"first_seqno": 10, "last_seqno": 12, "cycle": 8},
    ),
    "X4q": (
        RequestFrame(0xEB, opaque=0x11),
        "RoundCompleteExtras",
        {"cycle": 8, "visited": 3, "skipped": 1021},
    ),
    "X5q": (
        RequestFrame(0xEC, vbucket=5, opaque=0x1000),
        "SnapshotEndExtras",
        {"end_seqno": 12, "items": 2},
    ),
    "X6q": (
        RequestFrame(0xE4, value=b"\x00\x05\x03\x84", opaque=0x22),
        "LeaseAcquireExtras",
        {"lifetime_s": 600},
    ),
    "X6s": (
        RequestFrame(0xE4, value=b"\x00\x05", opaque=0x22),
        "LeaseAcquireSparingExtras",
        {"lifetime_s": 600, "spare": 2},
    ),
    "X6r": (
        ResponseFrame(
            0xE4,
            value=struct.pack(">HQQQ", 5, U1, 100, 7),
            opaque=0x22,
        ),
        "LeaseGrantExtras",
        {"lease": LEASE, "lifetime_s": 300},
    ),
    "X7q": (
        RequestFrame(0xE5, opaque=0x23),
        "LeaseRenewExtras",
        {"lease": LEASE, "lifetime_s": 600},
    ),
    "X7r": (
        ResponseFrame(0xE5, opaque=0x23),
        "LeaseGrantExtras",
        {"lease": LEASE, "lifetime_s": 600},
    ),
    "X8q": (RequestFrame(0xE6, opaque=0x24), "LeaseReleaseExtras", {"lease": LEASE}),
    "X8r": (ResponseFrame(0xE6, opaque=0x24), "", {}),
}


#: Name of a layout -> name of its struct.
def test_all_vectors_have_a_meaning() -> None:
    assert list(MEANINGS) == [vector.number for vector in VECTORS]


@pytest.mark.parametrize("number", MEANINGS)
def test_a_vector_means_what_the_table_says_both_ways(number: str) -> None:
    frame, name, fields = MEANINGS[number]
    where = ("extras", *PAIRS[name], fields) if name else ()
    check_vector(BY_NUMBER[number].packet, frame, *where)


def test_numbers_are_the_references() -> None:
    """0xe8 to 0xef; the three of the leases and GET_VERSION lie below them."""
    assert [opcode.name for opcode in Opcode if 0xE4 <= opcode <= 0xEF] == [
        "LEASE_ACQUIRE",
        "LEASE_RENEW",
        "LEASE_RELEASE",
        "GET_VERSION",
        "BARRIER_ADD",
        "BARRIER_REACHED",
        "PARTITION_START",
        "ROUND_COMPLETE",
        "SNAPSHOT_END",
        "HWT_REPORT",
        "HWT_READ",
        "HWT_REPLICATE",
    ]


# --- what a lease names -------------------------------------------------------------------------


def test_the_values_of_the_lease_vectors() -> None:
    asked = decode_frame(BY_NUMBER["X6q"].packet).value
    assert decode_lease_vbuckets(asked) == [5, 900]
    assert encode_lease_vbuckets([5, 900]) == asked
    granted = decode_frame(BY_NUMBER["X6r"].packet).value
    assert decode_lease_grant(granted) == [LeasedVBucket(5, U1, 100, 7)]
    assert encode_lease_grant([LeasedVBucket(5, U1, 100, 7)]) == granted


@given(st.lists(U16, max_size=50))
def test_leased_numbers_survive_bytes(numbers: list[int]) -> None:
    value = encode_lease_vbuckets(numbers)
    assert decode_lease_vbuckets(value) == numbers
    assert list(upr_extensions.LeaseAcquireValue.parse(value).entries) == numbers


@given(st.lists(st.builds(LeasedVBucket, U16, U64, U64, U64), max_size=10))
def test_a_grant_survives_bytes(leased: list[LeasedVBucket]) -> None:
    value = encode_lease_grant(leased)
    assert decode_lease_grant(value) == leased
    parsed = upr_extensions.LeaseGrantValue.parse(value).entries
    assert [(each.vbucket, each.purge_seqno) for each in parsed] == [
        (each.vbucket, each.purge_seqno) for each in leased
    ]


@pytest.mark.parametrize(
    ("decode", "value"),
    [(decode_lease_vbuckets, bytes(3)), (decode_lease_grant, bytes(25))],
)
def test_a_torn_entry_is_refused(decode: Callable[[bytes], object], value: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed"):
        decode(value)


def test_a_vbucket_that_does_not_fit_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_lease_vbuckets([0x10000])
    with pytest.raises(LocalProtocolError):
        encode_lease_grant([LeasedVBucket(0, -1, 0, 0)])


# --- the value of a stream request --------------------------------------------------------------


@pytest.mark.acceptance("P07")
def test_the_references_example_is_read() -> None:
    versions = (FailoverEntry(U1, 100), FailoverEntry(U0, 0))
    assert decode_stream_options(KNOWN_VERSIONS) == StreamOptions(versions)


def test_options_are_written_as_the_reference_does() -> None:
    options = StreamOptions([FailoverEntry(U1, 100)], whole_log=False, lease=LEASE)
    assert encode_stream_options(options) == (
        b'{"known_versions":[{"id":"0000a1b2c3d4e5f6","seq":100}],'
        b'"log":"current","lease":"1122334455667788"}'
    )


def test_a_term_is_written_as_a_number() -> None:
    assert encode_stream_options(StreamOptions(term=7)) == b'{"term":7}'
    assert decode_stream_options(b'{"term":7}') == StreamOptions(term=7)
    assert decode_stream_options(b'{"term":%d}' % TERM_MAX).term == TERM_MAX


@pytest.mark.parametrize("term", ["-1", '"7"', "7.0", "true", "null", str(TERM_MAX + 1)])
def test_what_is_no_term_is_refused(term: str) -> None:
    with pytest.raises(RemoteProtocolError, match="term"):
        decode_stream_options(b'{"term":%s}' % term.encode())


def test_options_that_say_nothing_are_no_value_at_all() -> None:
    assert encode_stream_options(StreamOptions()) == b""
    assert decode_stream_options(b"") == decode_stream_options(b"{}") == StreamOptions()


OPTIONS = st.builds(
    StreamOptions,
    st.lists(st.builds(FailoverEntry, U64, U64), max_size=30).map(tuple),
    st.booleans(),
    U64,
    st.integers(0, TERM_MAX),
)


@given(OPTIONS)
def test_options_survive_bytes(options: StreamOptions) -> None:
    assert decode_stream_options(encode_stream_options(options)) == options


def test_ids_may_be_written_in_capitals() -> None:
    assert decode_stream_options(b'{"lease":"00000000ABCDEF01"}').lease == 0xABCDEF01


def version(**entry: Any) -> bytes:
    return json.dumps({"known_versions": [entry]}).encode()


REFUSED = {
    "no JSON": b"latest",
    "cut short": KNOWN_VERSIONS[:-1],
    "no text at all": b"\xff\xfe\x00",
    "no object": b"[]",
    "null": b"null",
    "a name nobody knows": b'{"collections":["0"]}',
    "another log": b'{"log":"short"}',
    "a log of lists": b'{"log":[]}',
    "a lease without letters": b'{"lease":5}',
    "a lease too short": b'{"lease":"1122"}',
    "a lease with a sign": b'{"lease":"-122334455667788"}',
    "a lease with gaps": b'{"lease":"11223344 5566778"}',
    "a lease with gaps between bytes": b'{"lease":"1122334455 66 77"}',
    "a lease with underscores": b'{"lease":"112233445566_788"}',
    "a lease in other digits": '{"lease":"\u0661122334455667788"}'.encode(),
    "lease 0": b'{"lease":"0000000000000000"}',
    "no lease": b'{"lease":null}',
    "versions that are no list": b'{"known_versions":{}}',
    "a version that is none": b'{"known_versions":[5]}',
    "a version without seq": version(id="0" * 16),
    "a version without id": version(seq=1),
    "a version with more": version(id="0" * 16, seq=1, high=2),
    "a seqno below 0": version(id="0" * 16, seq=-1),
    "a seqno above 64 bits": version(id="0" * 16, seq=2**64),
    "a seqno with a fraction": version(id="0" * 16, seq=1.0),
    "a seqno in letters": version(id="0" * 16, seq="1"),
    "a seqno that is true": version(id="0" * 16, seq=True),
    "an id as a number": version(id=5, seq=1),
    "a seqno of many digits": b'{"known_versions":[{"id":"%b","seq":1%b}]}'
    % (b"0" * 16, b"0" * 9000),
    "nested too deep": b"[" * STREAM_OPTIONS_MAX_BYTES,
    "too long": KNOWN_VERSIONS + b" " * STREAM_OPTIONS_MAX_BYTES,
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_is_no_list_of_options_is_refused(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_stream_options(value)


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=17)
    | st.text("0123456789abcdefABCDEF \t_-+x", min_size=16, max_size=16)
    | st.sampled_from(["full", "current"])
)
NAMES = st.sampled_from(["known_versions", "log", "lease", "id", "seq", "sid"])
DOCUMENTS = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(DOCUMENTS)
@example({"known_versions": [{"id": "0000 1122 334455", "seq": 1}]})
def test_any_document_is_read_or_refused_and_nothing_else(document: Any) -> None:
    """What is read is written again as the same options."""
    try:
        options = decode_stream_options(json.dumps(document).encode())
    except RemoteProtocolError:
        return
    assert decode_stream_options(encode_stream_options(options)) == options
    ids = [entry["id"] for entry in document.get("known_versions", ())]
    assert [f"{each.uuid:016x}" for each in options.known_versions] == [i.lower() for i in ids]


@pytest.mark.parametrize(
    "decode", [decode_stream_options, decode_lease_vbuckets, decode_lease_grant]
)
@given(value=st.binary(max_size=200))
def test_decoders_raise_nothing_but_our_own_error(
    decode: Callable[[bytes], object], value: bytes
) -> None:
    with suppress(RemoteProtocolError):
        decode(value)


@pytest.mark.parametrize(
    "options",
    [
        StreamOptions([FailoverEntry(2**64, 0)]),
        StreamOptions([FailoverEntry(0, -1)]),
        StreamOptions(lease=2**64),
    ],
)
def test_options_above_64_bits_are_our_own_error(options: StreamOptions) -> None:
    with pytest.raises(LocalProtocolError, match="wire"):
        encode_stream_options(options)
