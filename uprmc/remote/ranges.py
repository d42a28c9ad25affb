"""vBucket numbers as people read and write them: ``5``, ``0-3``, ``0,8-11``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from uprmc.units import in_ranges, ranges_of

#: The vBucket field of a frame has 16 bits.
VBUCKETS_MAX = 0x10000

_RANGE = re.compile(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?")

#: A sentence names no more of them.
_NAMED_RUNS = 32


def parsed(text: str) -> tuple[int, ...]:
    """Return the numbers that a text names, ascending; raises `ValueError`: what was expected."""
    numbers: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not low <= high < VBUCKETS_MAX:
            raise ValueError(f"a list of vBuckets such as 5 or 0,8-11 (0 to {VBUCKETS_MAX - 1})")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def named(numbers: Iterable[int]) -> str:
    """Return ``vBucket 5`` or ``vBuckets 0-3,7``."""
    given = set(numbers)
    ranges = ranges_of(given)
    if len(ranges) > _NAMED_RUNS:
        return f"vBuckets {in_ranges(sorted(given)[:_NAMED_RUNS])}... ({len(given)} in all)"
    text = in_ranges(given)
    return f"vBucket {text}" if text.isdecimal() else f"vBuckets {text}"
