"""Values as people write them: ``512MB``, ``1.5G``, ``500ms``, ``2h``, ``on``, ``1_000``, words.

Settings, the command line and the options of Spark are read by the same functions. Each raises
`ValueError`, whose text names what was expected: ``a size such as 512M, 1.5G or 65536``.
`uprmc.places` reads addresses and `uprmc.remote.ranges` vBuckets in the same way.

A size counts in powers of two whatever its suffix: ``M``, ``MB`` and ``MiB`` are the same. The
caller checks whether a number is in range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches

_NUMBER = r"([-+]?(?:0*\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:e[-+]?\d{1,3})?)"

_SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(_NUMBER + r"\s*([kmgt]?)(?:i?b)?", re.ASCII)

_SECONDS = {
    **dict.fromkeys(("", "s", "sec"), 1.0),
    **dict.fromkeys(("m", "min"), 60.0),
    "ms": 0.001,
    "h": 3_600.0,
    "d": 86_400.0,
}
_TIME = re.compile(_NUMBER + r"\s*([a-z]*)", re.ASCII)

_EPOCH = datetime.fromtimestamp(0, UTC)

_SWITCHES = {
    **dict.fromkeys(("on", "yes", "true", "1"), True),
    **dict.fromkeys(("off", "no", "false", "0"), False),
}


def size(text: str) -> int:
    """Return bytes."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError("a size such as 512M, 1.5G or 65536")
    number, unit = found[1], _SIZES[found[2]]
    try:
        return int(number) * unit
    except ValueError:
        return int(Decimal(number) * unit)


def size_text(value: float) -> str:
    """Return bytes in the largest unit that divides them: ``512 MiB``."""
    for name in "tgmk":
        if value and value % _SIZES[name] == 0:
            return f"{int(value) // _SIZES[name]} {name.upper()}iB"
    return f"{value:.15g}"


def seconds(text: str) -> float:
    """Return seconds; a number without a unit is one."""
    found = _TIME.fullmatch(text.strip().lower())
    number = math.inf if found is None else float(found[1])
    if found is None or found[2] not in _SECONDS or math.isinf(number):
        raise ValueError("a time such as 5, 0.5, 500ms, 5s, 5m or 2h")
    return number * _SECONDS[found[2]]


def moment(text: str) -> int:
    """Return microseconds since 1970 of a point in time; a whole number is milliseconds."""
    words = text.strip()
    try:
        if words.isascii() and words.lstrip("-").isdecimal():
            found = _EPOCH + timedelta(milliseconds=int(words))
        else:
            found = datetime.fromisoformat(words)
        return (found - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError, OverflowError):  # TypeError: a time without a zone
        raise ValueError(
            "a time with its zone such as 2026-11-26T15:00:00Z or 2026-11-26T16:00:00+01:00, or "
            "milliseconds since 1970"
        ) from None


def switch(text: str) -> bool:
    """Return whether something is on."""
    found = _SWITCHES.get(text.strip().lower())
    if found is None:
        raise ValueError("on or off, yes or no, true or false")
    return found


def whole(value: str) -> int:
    """A whole number; underscores may group its digits."""
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number") from None


def text(value: str) -> str:
    """Any text but an empty one."""
    if not value:
        raise ValueError("a text that is not empty")
    return value


def names(value: str) -> tuple[str, ...]:
    """Names with commas between them, none twice."""
    found = tuple(each.strip() for each in value.split(","))
    if not all(found):
        raise ValueError("a list of names with commas between them")
    twice = next((each for each in found if found.count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"a list with each name once ({twice} is there twice)")
    return found


def one_of(*words: str, aliases: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """Return a reader that takes these words, in any case."""
    lowered = {each.lower(): each for each in words}

    def reader(value: str) -> str:
        word = value.lower()
        if aliases and word in aliases:
            return aliases[word]
        if word in lowered:
            return lowered[word]
        meant = nearest(value, list(words))
        hint = f"; did you mean {meant}?" if meant else ""
        raise ValueError(f"one of {', '.join(words)}{hint}")

    return reader


def nearest(word: str, words: list[str]) -> str:
    """Return which of the words may have been meant; empty if none comes near."""
    lowered = {each.lower(): each for each in words}
    found = get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.5)
    return lowered[found[0]] if found else ""


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return (first, last) of each run of neighbours, ascending."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def in_ranges(numbers: Iterable[int]) -> str:
    """Return ``0,8-11``."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in ranges_of(numbers)
    )
