"""Headers and whole packets: golden bytes, round trips, limits of the fields."""

from __future__ import annotations

import construct
import pytest
from hypothesis import given

from tests.golden.binary_frames import FRAMES as GOLDEN
from tests.golden.binary_frames import Golden
from tests.protocol.layouts import fields_of
from tests.protocol.strategies import FRAMES
from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.header import (
    Frame,
    Request,
    RequestFrame,
    Response,
    decode_frame,
    encode_request,
    encode_response,
    pack_request,
    pack_response,
    unpack_request,
    unpack_response,
)
from uprmc.protocol.opcodes import HEADER_BYTES


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_golden_packets_mean_what_the_reference_says(golden: Golden) -> None:
    assert decode_frame(golden.packet) == golden.frame
    assert golden.frame.encode() == golden.packet


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_construct_reads_and_builds_the_golden_packets_too(golden: Golden) -> None:
    packet = _layout_of(golden.frame)
    parsed = packet.parse(golden.packet)
    fields = {**parsed.header, **{part: parsed[part] for part in ("key", "extras", "value")}}
    assert {name: fields[name] for name in fields_of(golden.frame)} == fields_of(golden.frame)
    assert packet.build(parsed) == golden.packet


@given(FRAMES)
def test_a_frame_survives_bytes(frame: Frame) -> None:
    assert decode_frame(frame.encode()) == frame


@given(FRAMES)
def test_construct_and_struct_write_the_same_packet(frame: Frame) -> None:
    fields = fields_of(frame)
    body = {part: fields.pop(part) for part in ("key", "extras", "value")}
    assert _layout_of(frame).build({"header": fields, **body}) == frame.encode()


def _layout_of(frame: Frame) -> construct.Struct:
    return Request if isinstance(frame, RequestFrame) else Response


def test_construct_computes_lengths_and_defaults() -> None:
    assert Request.build({"header": {"opcode": 0x0A}}) == encode_request(0x0A)


def test_construct_refuses_lengths_that_contradict_each_other() -> None:
    packet = bytearray(encode_request(0x00, key=b"k"))
    packet[3] = 2
    with pytest.raises(construct.CheckError):
        Request.parse(bytes(packet))


def test_hot_helpers_read_in_place_and_write_a_header() -> None:
    fields = (0x80, 1, 2, 3, 4, 5, 6, 7, 8)
    assert unpack_request(b"??" + pack_request(*fields), 2) == fields
    assert unpack_response(pack_response(*fields)) == fields
    assert len(pack_response(*fields)) == HEADER_BYTES


@pytest.mark.parametrize(
    "fields",
    [
        {"key": bytes(0x10000)},
        {"extras": bytes(0x100)},
        {"opaque": 2**32},
        {"cas": -1},
        {"datatype": 256},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_field_that_does_not_fit_is_our_own_error(fields: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError, match="opcode 0x1: a header field does not fit"):
        encode_request(0x01, **fields)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError):
        encode_response(0x01, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", "not a frame"),
        (bytes(23), "not a frame"),
        (b"\x82" + bytes(23), "unknown magic 0x82"),
        (encode_request(0x00, key=b"key")[:-1], "2 bytes came instead"),
        (encode_request(0x00, key=b"key") + b"!", "4 bytes came instead"),
        (b"\x80\x00\x00\x01" + bytes(20), "do not fit into a body of 0"),
    ],
)
def test_bytes_that_are_no_single_frame_are_refused(packet: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        decode_frame(packet)
