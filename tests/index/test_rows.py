"""Keys and values of the trees' rows, taken apart again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.index.oracle import shown_id
from uprmc.index.collation import sort_key
from uprmc.index.model import Emission
from uprmc.index.rows import (
    id_bytes,
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


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("ä".encode(), "ä"),
        (b"\xff\x00", "\uefff\x00"),
        (b"a\x80b\xc3", "a\uef80b\uefc3"),
        ("\uef7f\uf000".encode(), "\uef7f\uf000"),
        ("\uef80".encode(), "\uefee\uefbe\uef80"),  # what stands for a byte is shown as its bytes
    ],
)
def test_ids_that_are_no_utf_8_are_shown_with_private_characters(key: bytes, shown: str) -> None:
    assert id_text(key) == shown == shown_id(key)
    assert id_bytes(shown) == key


@given(st.lists(st.sampled_from(b"a\x80\xbe\xbf\xc3\xee\xef\xff"), max_size=6))
def test_every_id_has_a_text_of_its_own_that_is_utf_8(some: list[int]) -> None:
    key = bytes(some)
    assert id_text(key).encode().decode() == shown_id(key)
    assert id_bytes(id_text(key)) == key


def test_half_a_character_belongs_to_no_id() -> None:
    with pytest.raises(UnicodeError):
        id_bytes("\ud800")
