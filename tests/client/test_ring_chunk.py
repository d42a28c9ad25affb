"""Ring entries as bytes: they come back as they were, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.client.ring_chunk import pack_entries, unpack_entries

ENTRIES = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=300)), min_size=1, max_size=20
)


@given(ENTRIES)
def test_entries_come_back_as_they_were(entries: list[tuple[int, bytes]]) -> None:
    assert unpack_entries(pack_entries(*zip(*entries, strict=True))) == entries


def test_a_chunk_has_the_bytes_that_were_promised() -> None:
    data = pack_entries([1, 2**64 - 1], [b"a", b"bc"])
    seqnos = "01 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff"
    assert data.hex(" ") == f"ea fc 97 f6 02 00 00 00 {seqnos} 01 00 02 00 61 62 63"


@given(ENTRIES, st.data())
def test_a_changed_or_torn_chunk_is_noticed(
    entries: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    packed = pack_entries(*zip(*entries, strict=True))
    place = data.draw(st.integers(0, len(packed) - 1))
    changed = bytearray(packed)
    changed[place] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(changed), packed[:place], packed + b"\0"):
        with pytest.raises(ValueError, match="a chunk"):
            unpack_entries(wrong)
