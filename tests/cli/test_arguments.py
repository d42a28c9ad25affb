"""Values of options and arguments."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tests.cli.here import runner
from uprmc import units
from uprmc.cli.arguments import NAMES, PLACES, SIZE, VBUCKETS, Read, each_once, seconds, whole
from uprmc.cli.main import SECTIONS, uprmc


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("remove k", "there is no verb 'remove': did you mean del?"),
        ("xdcr rm k", "'uprmc xdcr' has no verb 'rm': did you mean delete?"),
        ("gte k", "there is no verb 'gte': did you mean get?"),
        ("vbucket lst", "'uprmc vbucket' has no verb 'lst': did you mean list?"),
        ("data check", "'uprmc data' has no verb 'check': 'uprmc data --help' lists them"),
        ("takeover", "Missing option '--to'; 'uprmc takeover --help' tells what it is"),
        ("keys --foo", "No such option '--foo'; 'uprmc keys --help' lists them"),
        ("set", "Missing argument 'KEY'; say uprmc set [OPTIONS] KEY [VALUE]"),
        ("load", "UPRMC_OPTION Missing argument 'PATH...'; say uprmc load [OPTIONS] PATH..."),
        ("get k --tls-ca /dev/zero/x", "does not exist."),
        (f"get k --tls-ca {__file__}", "test_arguments.py: holds no PEM certificate"),
    ],
)
def test_a_wrong_command_line_says_what_would_be_right(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner(capsys)(*words.split()).refused().endswith(said)


def test_help_has_every_verb_in_one_section(capsys: pytest.CaptureFixture[str]) -> None:
    sorted_names = sorted(name for names in SECTIONS.values() for name in names)
    assert sorted_names == uprmc.list_commands(click.Context(uprmc))
    shown = runner(capsys)("--help").out.splitlines()
    assert max(map(len, shown)) < 80
    assert not [line for line in shown if line.endswith("...") and "VERB" not in line]


def test_several_sets_are_one() -> None:
    assert each_once([[3, 1], [2, 3]]) == [1, 2, 3]
