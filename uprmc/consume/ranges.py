"""vBucket numbers as people read them: ``5``, ``0-3``, ``0,8-11``."""

from __future__ import annotations

from collections.abc import Iterable

#: A sentence names no more of them.
_NAMED_RUNS = 32


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


def named(numbers: Iterable[int]) -> str:
    """Return ``vBucket 5`` or ``vBuckets 0-3,7``."""
    given = set(numbers)
    ranges = ranges_of(given)
    if len(ranges) > _NAMED_RUNS:
        return f"vBuckets {in_ranges(sorted(given)[:_NAMED_RUNS])}... ({len(given)} in all)"
    text = in_ranges(given)
    return f"vBucket {text}" if text.isdecimal() else f"vBuckets {text}"
