"""Counters as memcached keeps them: every row of the reference's table, and the edges around."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.support import Node
from uprmc.engine.vbucket import counter_text, parse_counter, shifted

# stored, deltas, stored afterwards
TABLE = [
    (b"100", [-1], b"99 "),
    (b"99 ", [-95], b"4  "),
    (b"1  ", [1], b"2  "),
    (b"2  ", [1_000], b"1002"),
    (b"0  ", [5], b"5  "),
    (b"99", [1], b"100"),
    (b"18446744073709551615", [1], b"0" + 19 * b" "),
    (b"10", [-1], b"9 "),
    (b"10", [-1, 1], b"10"),
    (b" 12", [1], b"13 "),
    (b"12 ", [1], b"13 "),
    (b"00000000000000000001", [1], b"2" + 19 * b" "),
    (b"1\n  ", [1], b"2   "),
    (b"000000000000000000001", [1], b"2" + 20 * b" "),
    (b"5", [-9], b"0"),
    (b"18446744073709551610", [10], b"4" + 19 * b" "),
    (b"0", [2**64 - 1], b"18446744073709551615"),
    (b"18446744073709551615", [-(2**64 - 1)], b"0" + 19 * b" "),
]


@pytest.mark.parametrize(("stored", "deltas", "afterwards"), TABLE)
def test_each_row_of_the_table(
    node: Node, stored: bytes, deltas: list[int], afterwards: bytes
) -> None:
    node.set(b"k", stored)
    for delta in deltas:
        number, item = node.vbucket.add_delta(b"k", delta)
    assert item.value == afterwards
    assert number == int(afterwards)
    node.check()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"0", 0),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", None),
        (b"\t\n\v\f\r 7", 7),
        (b"7\x00", None),
        (b"7 x", 7),
        (b"", None),
        (b"  ", None),
        (b"x7", None),
        ("\uff17".encode(), None),
        (b"9" * 10_000, None),
    ],
)
def test_what_counts_as_a_number(value: bytes, number: int | None) -> None:
    assert parse_counter(value) == number


@given(number=st.integers(0, 2**64 - 1), delta=st.integers(0, 2**64 - 1))
def test_up_wraps_and_down_stops(number: int, delta: int) -> None:
    assert shifted(number, delta) == (number + delta) % 2**64
    assert shifted(number, -delta) == max(number - delta, 0)


@given(number=st.integers(0, 2**64 - 1), length=st.integers(0, 40))
def test_what_is_stored_reads_back_and_never_shrinks(number: int, length: int) -> None:
    text = counter_text(number, length)
    assert parse_counter(text) == number
    assert len(text) == max(length, len(str(number)))
