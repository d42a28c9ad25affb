"""Sets of vBuckets as integers: bit n stands for vBucket n."""

from __future__ import annotations

from collections.abc import Iterable


def bitmap(vbuckets: Iterable[int]) -> int:
    """Return the bitmap of some vBuckets."""
    found = 0
    for vbucket in vbuckets:
        found |= 1 << vbucket
    return found


def numbers(bits: int) -> list[int]:
    """Return the vBuckets of a bitmap, by rising number."""
    return [n for n, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]
