"""Segments: what is put in comes out, in pieces that fit on a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.store_values import live
from uprmc.errors import StoreCorrupt
from uprmc.record import SEQNO, pack
from uprmc.storage.segments import SEGMENT_BYTES, SHARING_BYTES, join, packed, split, without

lengths = st.lists(
    st.integers(0, 700) | st.integers(SHARING_BYTES - 60, SHARING_BYTES) | st.integers(2_000, 9_000)
)


def records_of(sizes: list[int]) -> list[bytes]:
    return [pack(live(b"k%d" % at, at, bytes(size))) for at, size in enumerate(sizes, start=1)]


def test_a_segment_is_laid_out_as_documented() -> None:
    one, two = records_of([1, 2])
    lengths = len(one).to_bytes(4, "big") + len(two).to_bytes(4, "big")
    assert join([one, two]) == b"\x00\x02" + lengths + one + two


@given(lengths)
def test_records_come_out_as_they_were_under_the_seqno_of_the_last_one(sizes: list[int]) -> None:
    records = records_of(sizes)
    found: list[bytes] = []
    for seqno, segment in packed(records):
        inside = split(segment)
        assert seqno == inside[-1][SEQNO]
        assert len(inside) == 1 or len(segment) <= SEGMENT_BYTES
        assert len(inside) == 1 or max(map(len, inside)) <= SHARING_BYTES
        found += inside
    assert found == records


def test_small_records_fill_their_segments() -> None:
    segments = [segment for _, segment in packed(records_of([100] * 300))]
    assert all(len(segment) > SEGMENT_BYTES - 200 for segment in segments[:-1])


def test_what_is_stale_is_left_out() -> None:
    one, two, three = records_of([1, 2, 3])
    assert without([one, two, three], {two[SEQNO]}) == [one, three]
    assert without([one, two], ()) == [one, two]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.data())
def test_a_segment_that_was_cut_is_never_taken_for_one(
    sizes: list[int], data: st.DataObject
) -> None:
    segment = join(records_of(sizes))
    with pytest.raises(StoreCorrupt):
        split(segment[: data.draw(st.integers(0, len(segment) - 1))])


@pytest.mark.parametrize("segment", [b"\0\0", b"\0\1\0\0\0\5hello", bytes(60)])
def test_what_is_no_segment_is_not_taken_for_one(segment: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        split(segment)


def test_a_record_of_another_version_is_not_read() -> None:
    (record,) = records_of([5])
    with pytest.raises(StoreCorrupt, match="version 3"):
        split(join([b"\x03" + record[1:]]))
