"""One check for every layout of fixed width, and frames of both directions as values."""

from __future__ import annotations

import struct
from dataclasses import asdict
from typing import Any

import construct
from hypothesis import strategies as st

from uprmc.protocol.header import Frame, RequestFrame


def check_layout(layout: construct.Struct, derived: struct.Struct, data: st.DataObject) -> None:
    """Draw numbers for all fields; both codecs must turn them into the same bytes and back."""
    fields = {str(subcon.name): data.draw(_values(subcon)) for subcon in layout.subcons}
    packed = derived.pack(*fields.values())
    assert packed == layout.build(fields)
    assert derived.unpack(packed) == tuple(fields.values())
    parsed = layout.parse(packed)
    assert {name: parsed[name] for name in fields} == fields


def _values(renamed: construct.Renamed) -> st.SearchStrategy[int]:
    if isinstance(renamed.subcon, construct.Const):
        return st.just(renamed.subcon.value)
    return st.integers(0, 256 ** renamed.sizeof() - 1)


def fields_of(frame: Frame) -> dict[str, Any]:
    """Return the fields of a frame by name."""
    return frame._asdict() if isinstance(frame, RequestFrame) else asdict(frame)


def changed(frame: Frame, **fields: Any) -> Frame:
    """Return the frame with some fields changed."""
    return type(frame)(**{**fields_of(frame), **fields})
