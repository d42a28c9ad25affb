"""Turn a construct declaration into the `struct.Struct` that hot code uses.

construct declares each layout, but takes 12 us for a header; `struct` takes 0.14 us. Deriving the
one from the other at import, and comparing them there, keeps the declaration single.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any, NamedTuple

import construct

from uprmc.errors import LocalProtocolError

#: Wrappers that name, fix, default or interpret a number without changing its place or width.
_TRANSPARENT = (construct.Renamed, construct.Const, construct.Default, construct.Enum)


_UNSIGNED = {1: "B", 2: "H", 4: "L", 8: "Q"}


class _Field(NamedTuple):
    name: str
    code: str
    constant: Any


def derive(layout: construct.Struct) -> struct.Struct:
    """Return the big-endian `struct.Struct` with the fields of `layout`, in order.

    Constants are fields too, so unpacking gives one value for each subcon and packing takes one.

    Raises:
        LocalProtocolError: a field has no name, is of variable width or not big-endian, or the two
            forms do not agree on size, names or values.
    """
    fields = [_field(subcon) for subcon in layout.subcons]
    derived = struct.Struct(">" + "".join(field.code for field in fields))
    _check_agreement(layout, derived, fields)
    return derived


def derive_merged(
    layout: construct.Struct, *groups: tuple[str, ...], unread: Collection[int] = ()
) -> struct.Struct:
    """Return a struct over the same bytes that reads each group of adjacent fields as one number.

    The number is unsigned, its most significant bytes are the group's first field. Fewer numbers
    cost less: the hot path compares magic and opcode in one go.

    Args:
        layout: the declaration.
        groups: names of fields.
        unread: indices of groups that the struct skips: there is no number for them.

    Raises:
        LocalProtocolError: as `derive`; or the groups are not all fields in order, or a group that
            is read is not 1, 2, 4 or 8 bytes wide.
    """
    fields = [_field(subcon) for subcon in layout.subcons]
    if [name for group in groups for name in group] != [field.name for field in fields]:
        raise LocalProtocolError(f"the groups {groups!r} are not the fields of {layout!r} in order")
    widths = {field.name: struct.calcsize(">" + field.code) for field in fields}
    sizes = [sum(widths[name] for name in group) for group in groups]
    codes = [
        f"{size}x" if index in unread else _UNSIGNED.get(size, "")
        for index, size in enumerate(sizes)
    ]
    if not all(codes):
        raise LocalProtocolError(f"groups of {sizes} bytes are not numbers")
    merged = struct.Struct(">" + "".join(codes))
    if merged.size != derive(layout).size:
        raise LocalProtocolError(f"{merged.format!r} is {merged.size} B, not {layout.sizeof()}")
    return merged


def _field(subcon: Any) -> _Field:
    name, constant = subcon.name, None
    if not name:
        raise LocalProtocolError(f"a field has no name: {subcon!r}")
    while isinstance(subcon, _TRANSPARENT):
        if isinstance(subcon, construct.Const):
            constant = subcon.value
        subcon = subcon.subcon
    return _Field(name, _format_code(name, subcon), constant)


def _format_code(name: str, subcon: Any) -> str:
    if isinstance(subcon, construct.FormatField):
        order, code = subcon.fmtstr[0], subcon.fmtstr[1:]
        if order != ">" and subcon.length > 1:
            raise LocalProtocolError(f"field {name!r} is not big-endian: {subcon.fmtstr!r}")
        return str(code)
    if isinstance(subcon, construct.Bytes) and isinstance(subcon.length, int):
        return f"{subcon.length}s"
    raise LocalProtocolError(f"field {name!r} is neither a number nor of fixed width: {subcon!r}")


def _check_agreement(
    layout: construct.Struct, derived: struct.Struct, fields: list[_Field]
) -> None:
    if derived.size != layout.sizeof():
        raise LocalProtocolError(f"{derived.format!r} is {derived.size} B, not {layout.sizeof()}")
    values = _distinct_values(derived, fields)
    sample = derived.pack(*values)
    parsed = layout.parse(sample)
    if [_plain(parsed[field.name]) for field in fields] != values:
        raise LocalProtocolError(f"{derived.format!r} parses differently from {layout!r}")
    if layout.build(parsed) != sample:
        raise LocalProtocolError(f"{derived.format!r} builds differently from {layout!r}")


def _distinct_values(derived: struct.Struct, fields: list[_Field]) -> list[Any]:
    """Return values whose bytes all differ, except constants, so that swapped fields show."""
    distinct = derived.unpack(bytes(place % 255 + 1 for place in range(derived.size)))
    return [
        value if field.constant is None else field.constant
        for field, value in zip(fields, distinct, strict=True)
    ]


def _plain(value: Any) -> Any:
    """Return the number behind a named one (`construct.Enum` parses to text)."""
    return int(value) if isinstance(value, construct.EnumIntegerString) else value
