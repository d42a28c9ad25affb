"""Values of options and arguments."""

from __future__ import annotations

from typing import Any

import click
import pytest

from uprmc import units
from uprmc.cli.arguments import NAMES, PLACES, SIZE, VBUCKETS, Read, each_once, seconds, whole


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (SIZE, "1.5G", 3 * 2**29),
        (seconds(), "500ms", 0.5),
        (whole(), "1_000", 1_000),
        (NAMES, "key, value", ("key", "value")),
        (PLACES, "a:1,[::1]:2", ("a:1", "[::1]:2")),
        (VBUCKETS, "7,0-1", (0, 1, 7)),
    ],
)
def test_a_value_is_read_as_settings_are(kind: Read, text: str, value: Any) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (SIZE, "much", "'much' is not a size such as"),
        (SIZE, "0", "'0' is less than 1"),
        (seconds(1.0), "500ms", "'500ms' is less than 1 s"),
        (seconds(), "9999999", "'9999999' is more than 1000000 s"),
        (whole(most=3), "4", "'4' is more than 3"),
        (whole(), "1.5", "'1.5' is not a whole number"),
        (VBUCKETS, "5-3", "'5-3' is not a list of vBuckets"),
        (Read(units.one_of("fail", "rewind"), "WORD"), "rewnd", "did you mean rewind"),
    ],
)
def test_what_a_value_should_be_is_said(kind: Read, text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        kind.convert(text, None, None)


def test_several_sets_are_one() -> None:
    assert each_once([[3, 1], [2, 3]]) == [1, 2, 3]
