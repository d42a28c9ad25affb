"""Values of options and arguments."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tests.cli.here import runner
from uprmc import units
from uprmc.cli.arguments import (
    NAMES,
    PLACE,
    PLACES,
    PREFIX,
    SIZE,
    VBUCKETS,
    KeyPattern,
    Read,
    each_once,
    seconds,
    whole,
)
from uprmc.cli.main import SECTIONS, uprmc


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (SIZE, "1.5G", 3 * 2**29),
        (seconds(), "500ms", 0.5),
        (whole(), "1_000", 1_000),
        (NAMES, "key, value", ("key", "value")),
        (PLACES, "a:1,[::1]:2", ("a:1", "[::1]:2")),
        (PLACES, "localhost, ::1, [::2]", ("localhost:11210", "[::1]:11210", "[::2]:11210")),
        (PLACE, "10.0.0.1", "10.0.0.1:11210"),
        (PREFIX, "user:", "user:"),
        (PREFIX, "user:*", "user:"),
        (PREFIX, r"star\*", "star*"),
        (PREFIX, r"back\slash\\*", "back\\slash\\"),
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
        (whole(most=2**64 - 1), f"{2**64}", f"'{2**64}' is more than {2**64 - 1}"),
        (whole(), "1.5", "'1.5' is not a whole number"),
        (PLACE, "11210", "'11210' is not HOST:PORT"),
        (PREFIX, "a*b", "is not how keys begin: a star may only be at its end"),
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


@pytest.mark.parametrize(
    ("text", "meant", "others"),
    [
        ("user:1", [b"user:1"], [b"user:", b"user:11"]),
        ("user:*", [b"user:", b"user:1", b"user:*"], [b"user", b"a-user:1"]),
        ("*:1", [b":1", b"user:1"], [b"user:11"]),
        ("a*b*c", [b"abc", b"a1b2c", b"abbcbc"], [b"ac", b"acb", b"ab"]),
        ("ab*ba", [b"abba", b"abxba"], [b"aba"]),
        ("*", [b"", b"x"], []),
        (r"a\*", [b"a*"], [b"a", b"ab"]),
        (r"a\\*", [b"a\\", b"a\\b"], [b"a*"]),
        (r"a\b", [b"a\\b"], [b"ab"]),
        ("größe*", ["größe-1".encode()], [b"gr"]),
    ],
)
def test_a_star_stands_for_anything_in_a_key(
    text: str, meant: list[bytes], others: list[bytes]
) -> None:
    pattern = KeyPattern(text, whole=True)
    assert [key for key in [*meant, *others] if pattern.matches(key)] == meant
    assert (pattern.key is not None) == (len(meant) == 1 and "*" not in text.replace(r"\*", ""))


def test_without_a_star_a_list_of_keys_takes_how_they_begin() -> None:
    pattern = KeyPattern("user:", whole=False)
    assert pattern.matches(b"user:1")
    assert KeyPattern("", whole=False).matches(b"anything")
    assert not pattern.matches(b"user")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hlep"], "did you mean help?"),
        (["versoin"], "did you mean version?"),
        (["delete", "k"], "did you mean del?"),
        (["promote"], "did you mean failover?"),
        (["info"], "did you mean stats?"),
        (["dell"], "'uprmc --help' lists them"),
        (["de"], "'uprmc --help' lists them"),
        (["flsh"], "'uprmc --help' lists them"),
        (["restor"], "'uprmc --help' lists them"),
        (["takover"], "'uprmc --help' lists them"),
        (["replicat"], "'uprmc --help' lists them"),
        (["xdcr", "delet"], "'uprmc xdcr --help' lists them"),
        (["vbucket", "remov"], "'uprmc vbucket --help' lists them"),
        (["vbucket", "remove"], "did you mean rm?"),
        (["help", "sevre"], "did you mean serve?"),
        (["help", "get", "k"], "'uprmc get' has no verbs of its own"),
    ],
)
def test_a_misprint_is_never_taken_for_a_verb_that_takes_something_away(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert runner(capsys)(*words).refused().endswith(said)


def test_help_and_version_are_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    here = runner(capsys)
    assert here("help").out == here("--help").out
    assert here("help", "xdcr", "create").out == here("xdcr", "create", "--help").out
    assert here("version").out == here("--version").out
