"""Order of keys: CouchDB's documented order, exact numbers, prefixes that group."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyuca.collator import Collator_10_0_0

from uprmc.index.collation import (
    HIGHEST,
    LOWEST,
    MAX_DEPTH,
    Collation,
    after_prefix,
    group_prefix,
    prefix_bounds,
    sort_key,
    sort_key_end,
    unicode_text,
)

LIBRARY = Collator_10_0_0()
BOTH: tuple[Collation, ...] = ("unicode", "raw")

#: As CouchDB's documentation of view collation has it, with more numbers.
DOCUMENTED: list[Any] = [
    None, False, True,
    -(10**400), -(2**1100) - 1, -(2**1100), -1e308, -(2**53) - 3, -(2**53) - 2, -(2**53) - 1,
    -(2**53), -1.5, -1, -5e-324, 0, 5e-324, 1e-9, 1, 1.5, 2, 3.0, 4, 2**53 - 1, 2**53, 2**53 + 1,
    2**53 + 2, 2**53 + 3, 2**64 - 1, 2**64, 2**64 + 1, 10**22, 10**22 + 1, 1e308, 2**1100,
    2**1100 + 1, 10**400,
    "", "a", "aa", "b", "ba", "bb",
    [], ["a"], ["a", None], ["a", 1], ["b"], ["b", "c"], ["b", "c", "a"], ["b", "d"],
    ["b", "d", "e"], [[]], [[], 1], [[1]], [{}],
    {}, {"a": 1}, {"a": 2}, {"b": 1}, {"b": 2}, {"b": 2, "a": 1}, {"b": 2, "c": 2},
]  # fmt: skip

#: Strings as the Unicode Collation Algorithm orders them.
UNICODE = ["", " ", "_", "-", "$", "0", "1", "10", "9", "a", "A", "á", "aa", "aA", "Aa", "ab",
           "Ab", "apple", "Apple", "b", "B", "résumé", "resumes", "Zebra", "zoo",
           "\N{GREEK SMALL LETTER ALPHA}", "я", "漢"]  # fmt: skip


@pytest.mark.parametrize("collation", BOTH)
def test_values_are_in_the_documented_order(collation: Literal["unicode", "raw"]) -> None:
    keys = [sort_key(value, collation) for value in DOCUMENTED]
    for (low, high), values in zip(pairwise(keys), pairwise(DOCUMENTED), strict=True):
        assert low < high, values


def test_strings_are_in_the_order_of_unicode_or_of_their_code_points() -> None:
    assert sorted(sorted(UNICODE), key=sort_key) == UNICODE
    assert sorted(UNICODE, key=lambda text: sort_key(text, "raw")) == sorted(UNICODE)


@pytest.mark.parametrize("collation", BOTH)
@pytest.mark.parametrize("same", [(1, 1.0), (0, -0.0), (2**60, 2.0**60), (1, json.loads("1e0"))])
def test_equal_numbers_are_one_key(same: tuple[float, float], collation: Collation) -> None:
    assert sort_key(same[0], collation) == sort_key(same[1], collation)


numbers = st.one_of(
    st.integers(),
    st.integers(-(2**1200), 2**1200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(lambda near, by: int(near) + by, st.floats(-1e300, 1e300), st.integers(-3, 3)),
)


@given(numbers, numbers)
def test_numbers_are_compared_exactly(one: float, other: float) -> None:
    left, right = sort_key(one), sort_key(other)
    assert (left < right) == (Fraction(one) < Fraction(other))
    assert (left == right) == (Fraction(one) == Fraction(other))


@given(st.text(), st.text())
def test_raw_order_is_that_of_code_points(one: str, other: str) -> None:
    assert (sort_key(one, "raw") < sort_key(other, "raw")) == (one < other)


def test_each_printable_ascii_character_has_the_weights_that_the_library_gives_it() -> None:
    printable = [chr(code) for code in range(0x20, 0x7F)]
    weights = {character: LIBRARY.sort_key(character) for character in printable}
    assert all(found[1:4] == (0, 0x20, 0) for found in weights.values()), "one plain weight each"
    primary = sorted({found[0] for found in weights.values()})
    for character, found in weights.items():
        rest = b"" if found[4] == 2 else bytes([1, 1, found[4]])
        assert unicode_text(character) == bytes([3 + 2 * primary.index(found[0])]) + rest


@given(st.text(max_size=6), st.text(max_size=6))
def test_unicode_order_is_the_library_s(one: str, other: str) -> None:
    collator = LIBRARY
    left, right = collator.sort_key(one), collator.sort_key(other)
    if left != right:
        assert (sort_key(one) < sort_key(other)) == (left < right)
    assert (sort_key(one) == sort_key(other)) == (one == other)


json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=4) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("collation", BOTH)
@given(json_values, json_values)
def test_no_key_is_a_prefix_of_another_and_each_says_where_it_ends(
    collation: Collation, one: Any, other: Any
) -> None:
    left, right = sort_key(one, collation), sort_key(other, collation)
    assert left == right or not (left.startswith(right) or right.startswith(left))
    assert sort_key_end(left + right) == len(left)
    assert sort_key_end(right + left, len(right)) == len(right + left)
    assert LOWEST < left < HIGHEST


@given(st.lists(json_values, max_size=4), st.integers(1, 3), st.binary(max_size=3))
def test_rows_of_a_group_share_the_first_elements_of_their_key(
    value: list[Any], level: int, rest: bytes
) -> None:
    prefix = group_prefix(sort_key(value) + rest, level)
    low, high = prefix_bounds(value[:level])
    if len(value) >= level:
        assert prefix == low
        assert low <= sort_key([*value, None]) < high
    else:
        assert prefix == sort_key(value)
    assert group_prefix(sort_key(value) + rest, None) == sort_key(value)
    assert group_prefix(sort_key(value) + rest, 0) == b""


@given(st.binary(max_size=3), st.binary(max_size=3))
def test_what_comes_after_a_prefix_is_above_all_that_begins_with_it(
    prefix: bytes, rest: bytes
) -> None:
    bound = after_prefix(prefix)
    if bound is None:
        assert not prefix.strip(b"\xff")
    else:
        assert prefix + rest < bound
        assert not bound.startswith(prefix)


@given(st.text(st.characters(codec="ascii")))
def test_the_short_way_for_ascii_gives_what_the_long_one_does(text: str) -> None:
    accented = unicode_text(text + "\u0301")  # goes the long way
    plain = unicode_text(text)
    assert accented > plain
    primary = accented.split(b"\1")[0]
    assert primary == plain.split(b"\1")[0]


def test_a_key_that_is_nested_too_deep_or_no_json_is_refused_in_one_line() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert sort_key_end(sort_key(value)) == len(sort_key(value))
    with pytest.raises(ValueError, match="nested 200 deep"):
        sort_key([value])
    with pytest.raises(ValueError, match="object is no JSON value"):
        sort_key(object())


def test_what_is_not_a_number_sorts_before_all_numbers() -> None:
    assert sort_key(True) < sort_key(math.nan) < sort_key(-(10**500))
    assert sort_key(1.7e308) < sort_key(math.inf)
    assert sort_key(-math.inf) < sort_key(-1.7e308)
