"""Text command lines: words and numbers. Refusals are in ``interop/dialects.txt``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uprmc.protocol import text_replies as replies
from uprmc.protocol.text import (
    StorageLine,
    TextSyntaxError,
    parse_arithmetic,
    parse_cache_memlimit,
    parse_delete,
    parse_exptime,
    parse_flags,
    parse_flush_all,
    parse_integer,
    parse_length,
    parse_retrieval,
    parse_storage,
    parse_touch,
    parse_touch_and_get,
    parse_unsigned64,
    parse_verbosity,
    split_words,
)

PARSERS: dict[bytes, Callable[[list[bytes]], Any]] = {
    **dict.fromkeys([b"set", b"add", b"replace", b"append", b"prepend", b"cas"], parse_storage),
    **dict.fromkeys([b"get", b"gets"], parse_retrieval),
    **dict.fromkeys([b"gat", b"gats"], parse_touch_and_get),
    **dict.fromkeys([b"incr", b"decr"], parse_arithmetic),
    b"delete": parse_delete,
    b"touch": parse_touch,
    b"flush_all": parse_flush_all,
    b"verbosity": parse_verbosity,
    b"cache_memlimit": parse_cache_memlimit,
}


def parsed(line: bytes) -> Any:
    words = split_words(line)
    return PARSERS[words[0]](words)


def outcome(words: list[bytes]) -> bytes:
    """Return the end of the refusal, empty when there is none to send."""
    try:
        PARSERS[words[0]](words)
    except TextSyntaxError as error:
        return error.reply[-2:]
    return b""


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"get a", [b"get", b"a"]),
        (b"get a\r", [b"get", b"a"]),
        (b"  get   a  b ", [b"get", b"a", b"b"]),
        (b"get a\tb", [b"get", b"a\tb"]),
        (b"get a\r\r", [b"get", b"a\r"]),
        (b"get \xc3\xa4\x01", [b"get", b"\xc3\xa4\x01"]),
        (b"", []),
        (b"\r", []),
        (b"   ", []),
    ],
)
def test_only_spaces_separate_words(line: bytes, words: list[bytes]) -> None:
    assert split_words(line) == words


@given(st.binary(max_size=40))
def test_words_are_never_empty_and_hold_no_space(line: bytes) -> None:
    assert all(word and b" " not in word for word in split_words(line))


# --- numbers ------------------------------------------------------------------------------------


@given(st.integers(-(2**66), 2**66))
def test_every_number_is_read_back_up_to_twenty_digits(number: int) -> None:
    fits = len(str(abs(number))) <= 20
    assert parse_integer(b"%d" % number) == (number if fits else None)


@pytest.mark.parametrize(
    ("word", "number"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"+7", 7),
        (b"007", 7),
        (b"\t7", 7),
        (b"7\tx", 7),
        (b"7\0x", 7),
        (b"0" * 5000, 0),
        (b"0" * 5000 + b"9", 9),
    ],
)
def test_numbers_are_read_as_c_reads_them(word: bytes, number: int) -> None:
    assert parse_integer(word) == number


@pytest.mark.parametrize(
    "word",
    [
        b"",
        b"x",
        b"-",
        b"+",
        b"--1",
        b"+-1",
        b"- 1",
        b"1x",
        b"1.5",
        b"1_0",
        b"0x10",
        b"1e3",
        b"\xb2",
    ],
)
def test_what_is_no_number_is_none(word: bytes) -> None:
    assert parse_integer(word) is None


@pytest.mark.parametrize("filling", [b"0", b"1", b" ", b"\t"])
def test_a_megabyte_of_almost_a_number_is_judged_at_once(filling: bytes) -> None:
    """Such a word may stand in a ``gat`` line; a backtracking pattern would take for ever."""
    assert parse_integer(filling * 2**20 + b"x") is None
    parse_integer(filling * 2**20)


@pytest.mark.parametrize(
    ("word", "flags"),
    [
        (b"4294967295", 4294967295),
        (b"4294967296", 0),
        (b"4294967303", 7),
        (b"18446744073709551615", 4294967295),
        (b"18446744073709551616", None),
        (b"-1", None),
        (b"x", None),
    ],
)
def test_flags_keep_their_low_32_bits(word: bytes, flags: int | None) -> None:
    assert parse_flags(word) == flags


@pytest.mark.parametrize(
    ("word", "exptime"),
    [
        (b"2592000", 2592000),
        (b"-1", -1),
        (b"2147483647", 2147483647),
        (b"2147483648", -2147483648),
        (b"4294967296", 0),
        (b"9223372036854775807", -1),
        (b"9223372036854775808", None),
        (b"-9223372036854775808", 0),
        (b"-9223372036854775809", None),
        (b"1.5", None),
    ],
)
def test_expiry_times_are_signed_32_bits(word: bytes, exptime: int | None) -> None:
    assert parse_exptime(word) == exptime


@pytest.mark.parametrize(
    ("word", "length"),
    [
        (b"0", 0),
        (b"2147483645", 2147483645),
        (b"2147483646", None),
        (b"4294967297", 1),
        (b"-1", None),
    ],
)
def test_data_lengths_end_below_2147483646(word: bytes, length: int | None) -> None:
    assert parse_length(word) == length


@pytest.mark.parametrize(
    ("word", "number"),
    [
        (b"0", 0),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", None),
        (b"-1", None),
    ],
)
def test_cas_and_delta_have_64_bits(word: bytes, number: int | None) -> None:
    assert parse_unsigned64(word) == number


# --- storage ------------------------------------------------------------------------------------


@given(
    st.binary(min_size=1, max_size=250).filter(lambda key: b" " not in key),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**31 - 3),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
def test_a_well_formed_cas_line_reads_back(
    key: bytes, flags: int, exptime: int, length: int, cas: int, noreply: bool
) -> None:
    line = b"cas %b %d %d %d %d" % (key, flags, exptime, length, cas)
    line += b" noreply" if noreply else b""
    assert parsed(line) == StorageLine(b"cas", key, flags, exptime, length, cas, noreply)


# --- the others ---------------------------------------------------------------------------------


@given(st.sampled_from(sorted(PARSERS)), st.lists(st.binary(max_size=12), max_size=8))
def test_any_line_is_either_read_or_refused(command: bytes, rest: list[bytes]) -> None:
    words = split_words(b" ".join([command, *rest]))
    assert outcome(words) in (b"", b"\r\n")


# --- replies ------------------------------------------------------------------------------------


def test_reply_lines_with_contents() -> None:
    assert replies.value_line(b"a", 4294967295, 0) == b"VALUE a 4294967295 0\r\n"
    assert replies.value_line_with_cas(b"a", 0, 1, 2**64 - 1) == (
        b"VALUE a 0 1 18446744073709551615\r\n"
    )
    assert replies.stat_line(b"pid", b"1") == b"STAT pid 1\r\n"
    assert replies.number_line(0) == b"0\r\n"
    assert replies.version_line(b"1.6.18") == b"VERSION 1.6.18\r\n"


def test_every_fixed_reply_is_one_whole_line() -> None:
    fixed = [value for name, value in vars(replies).items() if name.isupper()]
    assert len(fixed) > 30
    assert all(line.endswith(b"\r\n") and line.count(b"\n") == 1 for line in fixed)
