"""One check for every layout of fixed width: construct and the derived struct say the same."""

from __future__ import annotations

import struct

import construct
from hypothesis import strategies as st


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
