"""Values that are rows: many entries of one layout, one after the other.

Rows of fixed width are read and written with their derived struct, because one value may contain
tens of thousands of them and construct takes about 10 us for each; construct handles the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

from construct import ConstructError
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError


def pack_rows(row: struct.Struct, entries: Iterable[Iterable[int]]) -> bytes:
    """Return entries as a value; raises `LocalProtocolError` when a number does not fit."""
    try:
        return b"".join([row.pack(*entry) for entry in entries])
    except struct.error as error:
        raise LocalProtocolError(f"cannot be put on the wire: {error}") from None


def unpack_rows(row: struct.Struct, value: bytes) -> Iterator[tuple[int, ...]]:
    """Yield the entries of a value; raises `RemoteProtocolError` if the last one is cut."""
    if len(value) % row.size:
        raise RemoteProtocolError(f"a value of {len(value)} bytes is malformed: {row.size} each")
    return row.iter_unpack(value)


def parse_rows(layout: Layout, value: bytes) -> Any:
    """Return the entries that construct finds; raises `RemoteProtocolError`."""
    try:
        return layout.parse(value).entries
    except ConstructError as error:
        raise RemoteProtocolError(f"a value of {len(value)} bytes is malformed: {error}") from None


def build_rows(layout: Layout, entries: list[Any]) -> bytes:
    """Return entries as built by construct; raises `LocalProtocolError`."""
    try:
        value: bytes = layout.build({"entries": entries})
    except ConstructError as error:
        raise LocalProtocolError(f"cannot be put on the wire: {error}") from None
    return value
