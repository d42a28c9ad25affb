"""Counters as memcached keeps them: decimal text, 64 bits, perhaps padded with blanks.

Source: `reference/memcached.md` 2.6.
"""

from __future__ import annotations

import re

_LIMIT = 2**64
_COUNTER = re.compile(rb"[ \t\n\v\f\r]*([0-9]+)(?:[ \t\n\v\f\r]|\Z)")


def parse_counter(value: bytes) -> int | None:
    """Return the number a value stands for; ``None`` if it is none, or 2**64 or more."""
    match = _COUNTER.match(value)
    if match is None or len(match[1]) > 40:
        return None
    number = int(match[1])
    return number if number < _LIMIT else None


def shifted(number: int, delta: int) -> int:
    """Add `delta`; going up wraps at 2**64, going down stops at 0."""
    return (number + delta) % _LIMIT if delta >= 0 else max(0, number + delta)


def counter_text(number: int, least_length: int) -> bytes:
    """Return the value to store: no shorter than `least_length`, padded on the right."""
    return (b"%d" % number).ljust(least_length)
