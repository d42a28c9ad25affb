"""What the texts of options mean: numbers, names, places, lists; and what to say of wrong ones.

Options arrive from Spark as texts, whatever a program gave. `options` has the tables of which there
are; here is one reader for each kind of value that only Spark's options have, and `uprmc.units` has
the others. A reader raises `ValueError` with what was expected, and `options` says of which option.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from uprmc.places import parsed

#: More than this many vBuckets has no node.
VBUCKETS_MAX = 65_536


def nearest(word: str, words: list[str]) -> str:
    """Return which of the words somebody may have meant; empty if none comes near."""
    lowered = {each.lower(): each for each in words}
    found = get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.5)
    return lowered[found[0]] if found else ""


def text(value: str) -> str:
    """Any text but an empty one."""
    if not value:
        raise ValueError("something that is not empty")
    return value


def whole(value: str) -> int:
    """A whole number; underscores may group its digits."""
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number") from None


def names(value: str) -> tuple[str, ...]:
    """Names with commas between them, none twice."""
    found = tuple(each.strip() for each in value.split(","))
    if not all(found):
        raise ValueError("names with commas between them")
    twice = next((each for each in found if found.count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"each name once ({twice} is there twice)")
    return found


def places(value: str) -> tuple[str, ...]:
    """HOST:PORT, several with commas between them."""
    return tuple(dict.fromkeys(_place(each.strip()) for each in value.split(",")))


def _place(value: str) -> str:
    try:
        parsed(value)
    except ValueError:
        raise ValueError(
            f"HOST:PORT, several with commas between them ({value!r} is none)"
        ) from None
    return value


def vbuckets(value: str) -> tuple[int, ...]:
    """Numbers and ranges: ``0-511,600``; sorted, each once."""
    found: set[int] = set()
    for each in value.split(","):
        first, dash, last = (part.strip() for part in each.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError("vBuckets such as 0-511,600")
        low, high = int(first), int(last or first)
        if low > high or high >= VBUCKETS_MAX:
            raise ValueError(f"vBuckets from 0 to {VBUCKETS_MAX - 1}, ranges upwards")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def one_of(*words: str, aliases: dict[str, str] | None = None) -> Callable[[str], str]:
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
