"""A derived struct is the construct declaration, only faster; what it cannot be is refused."""

from __future__ import annotations

import struct
from typing import Any

import construct
import pytest

from uprmc.errors import LocalProtocolError
from uprmc.protocol import binary, header
from uprmc.protocol.derive import derive, derive_merged


def test_wrappers_are_seen_through() -> None:
    layout = construct.Struct(
        "magic" / construct.Const(b"MC"),
        "kind" / construct.Enum(construct.Int8ub, hello=3),
        "count" / construct.Default(construct.Int16ub, 7),
        "raw" / construct.Bytes(3),
        "shift" / construct.Int32sb,
    )
    assert derive(layout).format == ">2sBH3sl"


def test_one_byte_has_no_order() -> None:
    assert derive(construct.Struct("a" / construct.Int8ul)).format == ">B"


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (construct.Int16ul, "'x' is not big-endian"),
        (construct.Int32sl, "'x' is not big-endian"),
        (construct.GreedyBytes, "'x' is neither a number nor of fixed width"),
        (construct.Bytes(construct.this.n), "'x' is neither a number nor of fixed width"),
        (construct.VarInt, "'x' is neither a number nor of fixed width"),
        (construct.Int24ub, "'x' is neither a number nor of fixed width"),
        (construct.Array(2, construct.Int8ub), "'x' is neither a number nor of fixed width"),
        (construct.Rebuild(construct.Int8ub, 1), "'x' is neither a number nor of fixed width"),
    ],
)
def test_what_struct_cannot_say_is_refused(field: Any, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        derive(construct.Struct("n" / construct.Int8ub, "x" / field))


def test_a_field_without_a_name_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="no name"):
        derive(construct.Struct(construct.Padding(2)))


def test_a_wrapper_that_computes_is_caught_by_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the walk over the subcons went wrong, the comparison at import would still notice."""
    monkeypatch.setattr("uprmc.protocol.derive._format_code", lambda name, subcon: "L")
    with pytest.raises(LocalProtocolError, match="parses differently"):
        derive(construct.Struct("a" / construct.Float32b))
    with pytest.raises(LocalProtocolError, match="is 4 B, not 8"):
        derive(construct.Struct("a" / construct.Int64ub))


def test_swapped_fields_are_caught_by_comparing() -> None:
    class Swapping(construct.Struct):
        def _build(self, obj, stream, context, path):  # type: ignore[no-untyped-def]
            return super()._build({"a": obj["b"], "b": obj["a"]}, stream, context, path)

    with pytest.raises(LocalProtocolError, match="builds differently"):
        derive(Swapping("a" / construct.Int8ub, "b" / construct.Int8ub))


def test_derived_structs_are_plain_structs() -> None:
    assert isinstance(header.REQUEST_HEADER, struct.Struct)


MERGED = {
    "request header": (header.RequestHeader, header.MERGED_REQUEST_HEADER, ">HHHHLLQ"),
    "response header": (header.ResponseHeader, header.MERGED_RESPONSE_HEADER, ">QLLQ"),
    "beginning of a response": (header.ResponseBegin, header.MERGED_RESPONSE_BEGIN, ">QLL"),
}


@pytest.mark.parametrize("name", MERGED)
def test_a_merged_struct_reads_the_same_bytes_as_the_declared_fields(name: str) -> None:
    layout, merged, form = MERGED[name]
    assert merged.format == form
    plain = derive(layout)
    sample = plain.pack(*plain.unpack(bytes(range(1, plain.size + 1))))
    assert merged.pack(*merged.unpack(sample)) == sample
    number = merged.unpack(sample)[0]
    width = merged.size - struct.calcsize(form[0] + form[2:])
    assert number.to_bytes(width, "big") == sample[:width]


def test_merged_groups_must_be_all_fields_in_order() -> None:
    with pytest.raises(LocalProtocolError, match="in order"):
        derive_merged(binary.StoreExtras, ("expiration",), ("flags",))
    with pytest.raises(LocalProtocolError, match="in order"):
        derive_merged(binary.StoreExtras, ("flags",))


def test_merged_groups_must_be_as_wide_as_a_number() -> None:
    with pytest.raises(LocalProtocolError, match="not numbers"):
        derive_merged(binary.ArithmeticExtras, ("delta", "initial"), ("expiration",))


def test_groups_that_are_not_read_are_passed_over_and_may_be_of_any_width() -> None:
    scan = derive_merged(
        header.RequestHeader,
        ("magic", "opcode"),
        ("key_length", "extras_length", "datatype", "vbucket"),
        ("body_length",),
        ("opaque", "cas"),
        unread=(1, 3),
    )
    frame = header.encode_request(0x57, key=b"key", value=b"value")
    assert scan.unpack_from(frame) == (0x8057, 8)
    assert scan.size == 24
