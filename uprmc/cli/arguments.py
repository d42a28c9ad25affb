"""vBuckets as people write them on a command line: ``5``, ``0-3``, ``0,8-11``."""

from __future__ import annotations

from collections.abc import Iterable

import click

from uprmc.consume.ranges import in_ranges, named

__all__ = [
    "VBUCKETS",
    "each_once",
    "in_ranges",
    "named",
    "vbucket_numbers",
]

#: The vBucket field of a frame has 16 bits.
_VBUCKET_MAX = 0xFFFF


#: How help shows `vbucket_numbers`.
VBUCKETS = "N|A-B"


def vbucket_numbers(text: str) -> list[int]:
    """Return the numbers that an argument names, in its order; raises `click.BadParameter`."""
    return [number for part in text.split(",") for number in _range(part.strip())]


def _range(text: str) -> range:
    first, dash, last = text.partition("-")
    ends = (first, last if dash else first)
    if not all(end.isascii() and end.isdecimal() and len(end) <= 5 for end in ends):
        raise click.BadParameter(f"{text!r} is no vBucket: say a number, 0-3 or 0,8-11")
    low, high = map(int, ends)
    if high > _VBUCKET_MAX:
        raise click.BadParameter(f"no vBucket has a number above {_VBUCKET_MAX}")
    if low > high:
        raise click.BadParameter(f"{text!r} runs backwards: say {high}-{low}")
    return range(low, high + 1)


def each_once(numbers: Iterable[Iterable[int]]) -> list[int]:
    """Return all numbers of several sets, in order."""
    return sorted({number for some in numbers for number in some})
