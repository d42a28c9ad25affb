"""The 24-byte frame header, complete frames, and the structs with which the hot path reads them.

Both header structs hold nine numbers in this order: magic, opcode, key length, extras length,
datatype, vBucket (request) or status (response), body length, opaque, CAS. The body that follows
is extras, key, value; the body length counts all three.

Hot code uses the bound functions `unpack_request` (a buffer and an offset) and `pack_response`.
Frames as objects, `encode_request`, `encode_response` and the construct packets `Request` and
`Response` are for tests, tools and clients.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from construct import Bytes, Check, Const, Default, Int8ub, Int16ub, Int32ub, Int64ub, Rebuild
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.derive import derive, derive_merged
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, MAGIC_RESPONSE, status_text

#: The text of a node's error is shown up to this length.
_WORDS_MAX_BYTES = 200


def _header(magic: int, third: str) -> Layout:
    return Layout(
        "magic" / Const(magic, Int8ub),
        "opcode" / Int8ub,
        "key_length" / Int16ub,
        "extras_length" / Int8ub,
        "datatype" / Default(Int8ub, 0),
        third / Default(Int16ub, 0),
        "body_length" / Int32ub,
        "opaque" / Default(Int32ub, 0),
        "cas" / Default(Int64ub, 0),
    )


RequestHeader = _header(MAGIC_REQUEST, "vbucket")
ResponseHeader = _header(MAGIC_RESPONSE, "status")

REQUEST_HEADER = derive(RequestHeader)
RESPONSE_HEADER = derive(ResponseHeader)

#: A response header without its CAS.
ResponseBegin = Layout(*ResponseHeader.subcons[:-1])

#: The request header in seven numbers: (magic, opcode), key length, (extras length, datatype),
#: vBucket, body length, opaque, CAS.
MERGED_REQUEST_HEADER = derive_merged(
    RequestHeader,
    ("magic", "opcode"),
    ("key_length",),
    ("extras_length", "datatype"),
    ("vbucket",),
    ("body_length",),
    ("opaque",),
    ("cas",),
)

#: The response header in four: everything before the body length, body length, opaque, CAS.
MERGED_RESPONSE_HEADER = derive_merged(
    ResponseHeader,
    ("magic", "opcode", "key_length", "extras_length", "datatype", "status"),
    ("body_length",),
    ("opaque",),
    ("cas",),
)

#: The response header up to the CAS. A record's tail goes on from there.
MERGED_RESPONSE_BEGIN = derive_merged(
    ResponseBegin,
    ("magic", "opcode", "key_length", "extras_length", "datatype", "status"),
    ("body_length",),
    ("opaque",),
)


def response_head(opcode: int, extras_length: int = 0, status: int = 0, key_length: int = 0) -> int:
    """Return the first number of `MERGED_RESPONSE_HEADER` for a reply without a datatype."""
    packed = pack_response(MAGIC_RESPONSE, opcode, key_length, extras_length, 0, status, 0, 0, 0)
    return int(MERGED_RESPONSE_HEADER.unpack(packed)[0])


def request_head(opcode: int) -> int:
    """Return the first number of `MERGED_REQUEST_HEADER`."""
    packed = pack_request(MAGIC_REQUEST, opcode, 0, 0, 0, 0, 0, 0, 0)
    return int(MERGED_REQUEST_HEADER.unpack(packed)[0])


unpack_request = REQUEST_HEADER.unpack_from
unpack_response = RESPONSE_HEADER.unpack_from
pack_request = REQUEST_HEADER.pack
pack_response = RESPONSE_HEADER.pack


def _with_lengths(packet: Any) -> dict[str, Any]:
    extras, key, value = (packet.get(part, b"") for part in ("extras", "key", "value"))
    return {
        **packet.header,
        "key_length": len(key),
        "extras_length": len(extras),
        "body_length": len(extras) + len(key) + len(value),
    }


def _value_length(packet: Any) -> int:
    header = packet.header
    return int(header.body_length - header.extras_length - header.key_length)


def _packet(header: Layout) -> Layout:
    return Layout(
        "header" / Rebuild(header, _with_lengths),
        Check(lambda packet: _value_length(packet) >= 0),
        "extras" / Default(Bytes(lambda packet: packet.header.extras_length), b""),
        "key" / Default(Bytes(lambda packet: packet.header.key_length), b""),
        "value" / Default(Bytes(_value_length), b""),
    )


#: A complete packet for construct: ``header`` (its three lengths are computed when building and
#: checked when parsing), ``extras``, ``key``, ``value``.
Request = _packet(RequestHeader)
Response = _packet(ResponseHeader)


def encode_request(
    opcode: int,
    *,
    key: bytes = b"",
    extras: bytes = b"",
    value: bytes = b"",
    vbucket: int = 0,
    opaque: int = 0,
    cas: int = 0,
    datatype: int = 0,
) -> bytes:
    """Return one request packet; raises `LocalProtocolError` when a field does not fit."""
    return _encoded(
        pack_request, MAGIC_REQUEST, opcode, vbucket, key, extras, value, opaque, cas, datatype
    )


def encode_response(
    opcode: int,
    status: int = 0,
    *,
    key: bytes = b"",
    extras: bytes = b"",
    value: bytes = b"",
    opaque: int = 0,
    cas: int = 0,
    datatype: int = 0,
) -> bytes:
    """Return one response packet; raises `LocalProtocolError` when a field does not fit."""
    return _encoded(
        pack_response, MAGIC_RESPONSE, opcode, status, key, extras, value, opaque, cas, datatype
    )


def _encoded(
    pack: Callable[..., bytes],
    magic: int,
    opcode: int,
    third: int,
    key: bytes,
    extras: bytes,
    value: bytes,
    opaque: int,
    cas: int,
    datatype: int,
) -> bytes:
    key_length, extras_length = len(key), len(extras)
    body_length = key_length + extras_length + len(value)
    try:
        header = pack(
            magic, opcode, key_length, extras_length, datatype, third, body_length, opaque, cas
        )
    except struct.error as error:
        raise LocalProtocolError(
            f"opcode {opcode:#x}: a header field does not fit: {error}"
        ) from None
    return b"".join((header, extras, key, value))


class RequestFrame(NamedTuple):
    """One request.

    `vbucket` is that of the header; where a node computes it from the key, it is that one.
    """

    opcode: int
    key: bytes = b""
    extras: bytes = b""
    value: bytes = b""
    vbucket: int = 0
    opaque: int = 0
    cas: int = 0
    datatype: int = 0

    def encode(self, opaque: int | None = None) -> bytes:
        """Return the packet's bytes, with this opaque if one is given.

        Raises:
            LocalProtocolError: a field does not fit.
        """
        return encode_request(
            self.opcode,
            key=self.key,
            extras=self.extras,
            value=self.value,
            vbucket=self.vbucket,
            opaque=self.opaque if opaque is None else opaque,
            cas=self.cas,
            datatype=self.datatype,
        )


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """One response. `status` is a `Status` number or one without a name here."""

    opcode: int
    status: int = 0
    key: bytes = b""
    extras: bytes = b""
    value: bytes = b""
    opaque: int = 0
    cas: int = 0
    datatype: int = 0

    def encode(self) -> bytes:
        """Return the packet's bytes; raises `LocalProtocolError` when a field does not fit."""
        return encode_response(
            self.opcode,
            self.status,
            key=self.key,
            extras=self.extras,
            value=self.value,
            opaque=self.opaque,
            cas=self.cas,
            datatype=self.datatype,
        )

    @property
    def reason(self) -> str:
        """Why the request was refused: the node's text if there is one, and the status."""
        text = self.value.decode("utf-8", "replace") if len(self.value) <= _WORDS_MAX_BYTES else ""
        if text and text.isprintable():
            return f"{text} ({self.status:04x})"
        return status_text(self.status)


Frame = RequestFrame | ResponseFrame


def decode_frame(packet: bytes) -> Frame:
    """Return the frame in `packet`, which must contain nothing else.

    Raises:
        RemoteProtocolError: an unknown magic, or lengths that contradict each other.
    """
    if len(packet) < HEADER_BYTES:
        raise RemoteProtocolError(
            f"{len(packet)} bytes are not a frame: a header has {HEADER_BYTES}"
        )
    magic, opcode, key_length, extras_length, datatype, third, body_length, opaque, cas = (
        unpack_request(packet)
    )
    key_start = HEADER_BYTES + extras_length
    value_start = key_start + key_length
    if value_start > len(packet) or HEADER_BYTES + body_length != len(packet):
        raise RemoteProtocolError(
            f"opcode {opcode:#x}: extras {extras_length} + key {key_length} do not fit into a body "
            f"of {body_length}, or {len(packet) - HEADER_BYTES} bytes came instead"
        )
    extras, key = packet[HEADER_BYTES:key_start], packet[key_start:value_start]
    value = packet[value_start:]
    if magic == MAGIC_REQUEST:
        return RequestFrame(opcode, key, extras, value, third, opaque, cas, datatype)
    if magic == MAGIC_RESPONSE:
        return ResponseFrame(opcode, third, key, extras, value, opaque, cas, datatype)
    raise RemoteProtocolError(f"unknown magic {magic:#04x}")
