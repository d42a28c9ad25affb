"""Keys of the index stand in the order of the oracle, which follows CouchDB's documentation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.index.cases import KEYS
from tests.index.oracle import compare
from uprmc.index.collation import sort_key


@pytest.mark.parametrize("collation", ["unicode", "raw"])
@given(one=KEYS, other=KEYS)
def test_bytes_of_keys_stand_in_the_order_of_the_keys(collation: Any, one: Any, other: Any) -> None:
    left, right = sort_key(one, collation), sort_key(other, collation)
    assert (left > right) - (left < right) == compare(one, other, collation)


@pytest.mark.parametrize("collation", ["unicode", "raw"])
@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)), st.data())
def test_printable_ascii_is_ordered_as_the_unicode_table_says(
    collation: Any, one: str, data: st.DataObject
) -> None:
    other = data.draw(st.permutations(one).map("".join) if len(one) < 8 else st.just(one[::-1]))
    left, right = sort_key(one, collation), sort_key(other, collation)
    assert (left > right) - (left < right) == compare(one, other, collation)
