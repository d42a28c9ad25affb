"""Ring entries as bytes: they come back as they were, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.client.ring_chunk import ColumnReader, pack_entries, packed, unpack_entries

ENTRIES = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=300)), min_size=1, max_size=20
)


@given(ENTRIES)
def test_entries_come_back_as_they_were(entries: list[tuple[int, bytes]]) -> None:
    assert unpack_entries(pack_entries(*zip(*entries, strict=True))) == entries


def test_a_chunk_has_the_bytes_that_were_promised() -> None:
    data = pack_entries([258, 65_535], [b"a", b"bc"])
    assert data.hex(" ")[12:] == "02 00 00 80 48 02 01 ff ff 42 01 02 61 62 63"
    assert pack_entries([0], [b""]).hex(" ")[12:] == "01 00 00 80 30 30"


def test_a_chunk_of_an_older_version_is_read() -> None:
    seqnos = "01 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff"
    data = bytes.fromhex(f"ea fc 97 f6 02 00 00 00 {seqnos} 01 00 02 00 61 62 63")
    assert unpack_entries(data) == [(1, b"a"), (2**64 - 1, b"bc")]


@pytest.mark.parametrize("greatest", [0, 1, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1])
def test_a_column_has_the_smallest_numbers_that_will_do(greatest: int) -> None:
    numbers = [0, greatest]
    data = packed(numbers) + packed(numbers, numbers) + packed([7])
    assert len(data) == 4 + 2 * (greatest > 0) * next(
        size for size in (1, 2, 4, 8) if greatest < 1 << 8 * size
    )
    reader = ColumnReader(data, 0, compact=True)
    assert [*reader.column("", 2), *reader.column("", 2)] == numbers * 2
    assert [*reader.column("", 1)] == [7]


def test_a_column_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="a column"):
        ColumnReader(b"x\0\0", 0, compact=True).column("", 1)


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
