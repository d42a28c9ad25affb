"""vBuckets as people write them."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.cli.arguments import each_once, in_ranges, named, vbucket_numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", [0]),
        ("65535", [65535]),
        ("3-3", [3]),
        ("0-3", [0, 1, 2, 3]),
        ("7,0-1", [7, 0, 1]),
        (" 1 , 2 ", [1, 2]),
    ],
)
def test_numbers_ranges_and_lists_are_understood(text: str, numbers: list[int]) -> None:
    assert vbucket_numbers(text) == numbers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no vBucket"),
        ("x", "'x' is no vBucket"),
        ("1,", "is no vBucket"),
        ("-1", "'-1' is no vBucket"),
        ("1-", "'1-' is no vBucket"),
        ("1-2-3", "'1-2-3' is no vBucket"),
        ("1.5", "is no vBucket"),
        ("٣", "is no vBucket"),
        ("65536", "no vBucket has a number above 65535"),
        ("9999999999", "is no vBucket"),
        ("5-3", "'5-3' runs backwards: say 3-5"),
    ],
)
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        vbucket_numbers(text)


@given(st.sets(st.integers(0, 0xFFFF), min_size=1))
def test_ranges_that_are_printed_can_be_read_back(numbers: set[int]) -> None:
    assert vbucket_numbers(in_ranges(numbers)) == sorted(numbers)


def test_neighbours_are_printed_as_ranges() -> None:
    assert in_ranges([5, 1, 2, 3, 8]) == "1-3,5,8"
    assert named([4]) == "vBucket 4"
    assert named([4, 5]) == "vBuckets 4-5"


def test_several_sets_are_one() -> None:
    assert each_once([[3, 1], [2, 3]]) == [1, 2, 3]
