"""Segments: what is put in comes out, in pieces that fit on a page."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest as checksum

from tests.contracts.store_values import live
from uprmc.core import form
from uprmc.errors import StoreCorrupt
from uprmc.record import SEQNO, key_of, pack
from uprmc.storage.segments import ALONE, SEGMENT_BYTES, SHARING_BYTES, join

PREFIX = b"\1\2"

lengths = st.lists(
    st.integers(0, 700) | st.integers(SHARING_BYTES - 60, SHARING_BYTES) | st.integers(2_000, 9_000)
)


@pytest.fixture(scope="module", params=[form.INTERPRETED, form.COMPILED])
def segments(request: pytest.FixtureRequest) -> Any:
    """The functions of segments, in each form."""
    if request.param == form.COMPILED and form.FORM != form.COMPILED:
        pytest.skip("the compiled core is not in use: no C compiler, or UPRMC_CORE")
    spec = importlib.util.find_spec("uprmc.storage.segments")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "FORM", request.param)
        spec.loader.exec_module(module)
    return module


def records_of(sizes: list[int]) -> list[bytes]:
    return [pack(live(b"k%d" % at, at, bytes(size))) for at, size in enumerate(sizes, start=1)]


def test_a_segment_is_laid_out_as_documented() -> None:
    one, two = records_of([1, 2])
    key = PREFIX + two[SEQNO]
    sums = [checksum(each, 0x0102) % 2**32 for each in (one, two)]
    numbers = [len(one), len(two), *sums]
    content = b"\x00\x02" + b"".join(each.to_bytes(4, "big") for each in numbers) + one + two
    assert join(key, [one, two]) == checksum(content, checksum(key)).to_bytes(8, "big") + content


@given(lengths)
def test_records_come_out_as_they_were_under_the_seqno_of_the_last_one(
    segments: Any, sizes: list[int]
) -> None:
    records = records_of(sizes)
    found: list[bytes] = []
    for key, segment in segments.packed(PREFIX, records):
        inside = segments.split(segment)
        assert key == PREFIX + inside[-1][SEQNO]
        assert len(inside) == 1 or len(segment) <= SEGMENT_BYTES
        assert len(inside) == 1 or max(map(len, inside)) <= SHARING_BYTES
        found += inside
    assert found == records


def test_small_records_fill_their_segments(segments: Any) -> None:
    made = [segment for _, segment in segments.packed(PREFIX, records_of([100] * 300))]
    assert all(len(segment) > SEGMENT_BYTES - 200 for segment in made[:-1])


def test_entries_say_where_records_are_in_the_order_of_their_keys(segments: Any) -> None:
    small, large, last = records_of([1, SHARING_BYTES, 2])
    places = {small: small[SEQNO], large: large[SEQNO] + ALONE, last: last[SEQNO]}
    expected = [(PREFIX + key_of(record), place) for record, place in places.items()]
    assert segments.entries(PREFIX, [last, large, small]) == expected


def test_what_is_stale_is_left_out(segments: Any) -> None:
    one, two, three = records_of([1, 2, 3])
    marks = segments.marks_upto(
        (PREFIX + record[SEQNO] for record in (two, three)), PREFIX + two[SEQNO]
    )
    assert segments.without([one, two, three], marks) == [one, three]
    assert segments.without([one, two], []) == [one, two]


@given(
    st.lists(st.integers(1, 2**64 - 1), unique=True, max_size=9), st.sets(st.integers(1, 2**64 - 1))
)
def test_a_mark_leaves_out_the_record_of_its_seqno_and_no_other(
    segments: Any, seqnos: list[int], others: set[int]
) -> None:
    (one,) = records_of([1])
    front, tail = one[: SEQNO.start], one[SEQNO.stop :]
    records = [front + seqno.to_bytes(8, "big") + tail for seqno in sorted(seqnos)]
    stale = {*seqnos[::2], *others}
    marks = [PREFIX + seqno.to_bytes(8, "big") for seqno in sorted(stale)]
    left = [int.from_bytes(each[SEQNO], "big") for each in segments.without(records, marks)]
    assert left == [seqno for seqno in sorted(seqnos) if seqno not in stale]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.data())
def test_a_segment_that_was_cut_is_never_taken_for_one(
    segments: Any, sizes: list[int], data: st.DataObject
) -> None:
    segment = join(PREFIX + bytes(8), records_of(sizes))
    with pytest.raises(StoreCorrupt):
        segments.split(segment[: data.draw(st.integers(0, len(segment) - 1))])


@given(st.lists(st.integers(0, 90), min_size=1, max_size=9), st.data())
def test_a_flipped_bit_is_noticed_and_only_its_record_is_lost(
    segments: Any, sizes: list[int], data: st.DataObject
) -> None:
    records = records_of(sizes)
    ((key, segment),) = segments.packed(PREFIX, records)
    assert segments.is_intact(key, segment)
    assert not segments.is_intact(b"\1\3" + key[2:], segment)
    bit = data.draw(st.integers(0, 8 * len(segment) - 1))
    damaged = bytearray(segment)
    damaged[bit // 8] ^= 1 << bit % 8
    assert not segments.is_intact(key, bytes(damaged))
    sound = segments.sound(key, bytes(damaged))
    assert set(sound) <= set(records)
    if bit // 8 >= len(segment) - sum(map(len, records)):
        assert len(sound) == len(records) - 1


def test_a_spoiled_record_is_taken_for_damaged_and_others_are_not(segments: Any) -> None:
    one, two, three = records_of([1, 2, 3])
    segment = segments.join(PREFIX + three[SEQNO], [one, two, three], {two})
    assert not segments.is_intact(PREFIX + three[SEQNO], segment)
    assert segments.sound(PREFIX + three[SEQNO], segment) == [one, three]


@pytest.mark.parametrize(
    "segment", [b"\0\0", b"\0\1\0\0\0\5hello", bytes(60), bytes(9) + b"\1" + bytes(54)]
)
def test_what_is_no_segment_is_not_taken_for_one(segments: Any, segment: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        segments.split(segment)


def test_a_record_of_another_version_is_not_read(segments: Any) -> None:
    (record,) = records_of([5])
    with pytest.raises(StoreCorrupt, match="version 3"):
        segments.split(join(PREFIX + bytes(8), [b"\x03" + record[1:]]))
