"""Sets of vBuckets as integers: bit n stands for vBucket n."""

from __future__ import annotations

from collections.abc import Iterable

_ONE = ord("1")


def bitmap(vbuckets: Iterable[int]) -> int:
    """Return the bitmap of some vBuckets."""
    found = sorted(vbuckets)
    if not found:
        return 0
    last = found[-1]
    digits = bytearray(b"0" * (last + 1))
    for vbucket in found:
        digits[last - vbucket] = _ONE
    return int(digits, 2)


def numbers(bits: int) -> list[int]:
    """Return the vBuckets of a bitmap, by rising number."""
    return [n for n, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]
