"""Sizes, times and switches as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc import units
from uprmc.model import vbucket_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("512M", 2**29),
        ("512m", 2**29),
        ("512MB", 2**29),
        ("512 MiB", 2**29),
        ("1.5G", 3 * 2**29),
        (".5k", 512),
        ("16T", 2**44),
        ("7b", 7),
        ("1e3", 1_000),
        ("-1k", -1_024),
        (" 4 kb ", 4_096),
    ],
)
def test_sizes_have_units(text: str, found: int) -> None:
    assert units.size(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *(("5", 5.0), ("0.1", 0.1), ("500ms", 0.5), ("5s", 5.0), ("5 sec", 5.0)),
        *(("5m", 300.0), ("5 min", 300.0), ("2h", 7_200.0), ("1.5d", 129_600.0)),
    ],
)
def test_times_have_units(text: str, found: float) -> None:
    assert units.seconds(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("1780000000123", "2026-05-28T20:26:40.123Z", "2026-05-28 22:26:40.123000+02:00"),
        *("20260528T202640.123Z", " 2026-05-28T20:26:40.123+00:00 "),
    ],
)
def test_a_point_in_time_has_a_zone_or_is_milliseconds(text: str) -> None:
    assert units.moment(text) == 1_780_000_000_123_000


@pytest.mark.parametrize("text", ["2026-05-28", "2026-05-28T20:26:40", "1.5", "9" * 18, "now"])
def test_a_point_in_time_without_a_zone_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a time with its zone"):
        units.moment(text)


@pytest.mark.parametrize("text", ["on", "YES", "true", "1", " On "])
def test_a_switch_is_on(text: str) -> None:
    assert units.switch(text)


@pytest.mark.parametrize("text", ["off", "No", "false", "0"])
def test_a_switch_is_off(text: str) -> None:
    assert not units.switch(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M",
        "12X",
        "1 2",
        "one",
        "nan",
        "inf",
        "1e9999",
        "-1e999x",
        "--1",
        "1.2.3",
        "\u0663",
        "9" * 5_000,
    ],
)
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        units.size(text)
    with pytest.raises(ValueError, match="a time such as"):
        units.seconds(text)
    with pytest.raises(ValueError, match="on or off"):
        units.switch(text)


@given(number=st.integers(0, 10**20 - 1))
def test_a_number_of_bytes_is_read_exactly(number: int) -> None:
    assert units.size(str(number)) == number


@given(number=st.integers(0, 2**60))
def test_a_size_is_shown_as_it_is_read(number: int) -> None:
    shown = [units.size_text(each) for each in (512, 2**29, 3 * 2**29, 2**44, number << 10)]
    assert shown[:4] == ["512", "512 MiB", "1536 MiB", "16 TiB"]
    assert units.size(shown[4]) == number << 10


def test_a_time_without_end_is_none() -> None:
    with pytest.raises(ValueError, match="a time such as"):
        units.seconds("1e999")


def test_a_key_has_the_same_vbucket_as_in_the_existing_ecosystem() -> None:
    found = [vbucket_of(key, 1_024) for key in (b"foo", b"hello", b"")]
    assert found == [115, 528, 0]
