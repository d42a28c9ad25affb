"""vBuckets as people read and write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.remote.ranges import named, parsed
from uprmc.units import in_ranges


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", (0,)),
        ("65535", (65535,)),
        ("3-3", (3,)),
        ("0-3", (0, 1, 2, 3)),
        ("7,0-1,1", (0, 1, 7)),
        (" 1 , 2 - 3 ", (1, 2, 3)),
    ],
)
def test_numbers_ranges_and_lists_are_understood(text: str, numbers: tuple[int, ...]) -> None:
    assert parsed(text) == numbers


@pytest.mark.parametrize(
    "text",
    ["", "x", "1,", "-1", "1-", "1-2-3", "1.5", "\u0663", "65536", "9999999999", "5-3"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a list of vBuckets such as 5 or 0,8-11"):
        parsed(text)


@given(st.sets(st.integers(0, 0xFFFF), min_size=1))
def test_ranges_that_are_printed_can_be_read_back(numbers: set[int]) -> None:
    assert parsed(in_ranges(numbers)) == tuple(sorted(numbers))


def test_neighbours_are_printed_as_ranges() -> None:
    assert in_ranges([5, 1, 2, 3, 8]) == "1-3,5,8"
    assert named([4]) == "vBucket 4"
    assert named([4, 5]) == "vBuckets 4-5"
