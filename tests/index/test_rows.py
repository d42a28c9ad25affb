"""Keys and values of the trees' rows, taken apart again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from uprmc.index.collation import sort_key
from uprmc.index.model import Emission
from uprmc.index.rows import (
    id_key,
    id_text,
    id_value,
    json_values,
    row_bounds,
    row_key,
    row_value,
    rows_of,
    split_id_key,
    split_id_value,
    split_row_key,
    split_row_value,
)

ids = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 2, 255]), max_size=6).map(bytes)
vbuckets = st.integers(0, 65535)


@given(st.text(max_size=3), ids, vbuckets, st.integers(0, 2**32 - 1))
def test_a_row_s_key_is_taken_apart(key: str, doc_key: bytes, vbucket: int, n: int) -> None:
    whole = row_key(sort_key(key), doc_key, n, vbucket)
    assert split_row_key(whole) == (sort_key(key), doc_key, vbucket, n)


places = st.tuples(st.integers(-2, 2), ids, vbuckets, st.integers(0, 300))


@given(places, places)
def test_rows_are_in_the_order_of_key_then_id_then_emission(
    one: tuple[int, bytes, int, int], other: tuple[int, bytes, int, int]
) -> None:
    def key(place: tuple[int, bytes, int, int]) -> bytes:
        number, doc_key, vbucket, n = place
        return row_key(sort_key(number), doc_key, n, vbucket)

    assert (key(one) < key(other)) == (one < other)


@given(places, places)
def test_the_bounds_of_a_key_have_its_rows_and_no_others(
    one: tuple[int, bytes, int, int], other: tuple[int, bytes, int, int]
) -> None:
    number, doc_key, vbucket, n = other
    row = row_key(sort_key(number), doc_key, n, vbucket)
    low, high = row_bounds(sort_key(one[0]))
    assert (low <= row < high) == (number == one[0])
    low, high = row_bounds(sort_key(one[0]), one[1])
    assert (low <= row < high) == (other[:2] == one[:2])


@given(ids, st.binary(), st.binary())
def test_a_row_s_value_is_taken_apart(doc_key: bytes, key: bytes, value: bytes) -> None:
    whole = row_value(doc_key, key, value)
    assert split_row_value(whole) == (doc_key, key, value)
    assert json_values([whole]) == [value]


@given(st.lists(st.lists(st.binary(max_size=4), max_size=3), max_size=4))
def test_what_a_document_emitted_is_taken_apart(emitted: list[list[bytes]]) -> None:
    value = id_value(emitted)
    assert split_id_value(value) == emitted
    empty = id_value([[] for _ in emitted])
    assert (len(value) == len(empty)) == (not any(emitted))


@given(ids, vbuckets, st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=3))
def test_a_document_s_rows_are_those_that_the_single_functions_make(
    doc_key: bytes, vbucket: int, views: list[list[int]]
) -> None:
    emitted = [[Emission(sort_key(n), b"%d" % n, b"v%d" % n) for n in of_view] for of_view in views]
    (entry,), rows = rows_of([doc_key], [vbucket], [emitted], len(views))
    assert rows == [
        [
            (
                row_key(row.sort_key, doc_key, n, vbucket),
                vbucket,
                row_value(doc_key, row.key, row.value),
            )
            for n, row in enumerate(of_view)
        ]
        for of_view in emitted
    ]
    assert entry == (
        id_key(vbucket, doc_key),
        vbucket,
        id_value([[row[0] for row in of_view] for of_view in rows]),
    )
    assert split_id_key(entry[0]) == (vbucket, doc_key)


def test_ids_that_are_no_utf_8_are_shown_with_lone_surrogates() -> None:
    assert id_text("ä".encode()) == "ä"
    assert id_text(b"\xff\x00") == "\udcff\x00"
