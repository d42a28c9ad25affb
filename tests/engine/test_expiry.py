"""Expiry times as memcached's clients write them."""

from __future__ import annotations

import pytest

from uprmc.engine.memory import LONG_AGO, RELATIVE_MAX_S, absolute_expiry

NOW = 1_700_000_000.75


@pytest.mark.parametrize(
    ("exptime", "expected"),
    [
        (0, 0),
        (1, 1_700_000_001),
        (RELATIVE_MAX_S, 1_700_000_000 + 2_592_000),
        (RELATIVE_MAX_S + 1, RELATIVE_MAX_S + 1),
        (1_699_999_999, 1_699_999_999),
        (1_800_000_000, 1_800_000_000),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFB, 0xFFFFFFFB),
        (-1, LONG_AGO),
        (-(2**31), LONG_AGO),
    ],
)
def test_small_numbers_count_from_now_large_ones_are_a_date(exptime: int, expected: int) -> None:
    assert absolute_expiry(exptime, NOW) == expected


def test_thirty_days_is_the_border() -> None:
    assert RELATIVE_MAX_S == 2_592_000


def test_a_negative_time_has_passed_whatever_the_clock_says() -> None:
    assert 0 < absolute_expiry(-1, 2.0) <= 2.0
