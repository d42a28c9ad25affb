"""Sizes, times and switches as people write them: ``512MB``, ``1.5G``, ``500ms``, ``2h``, ``on``.

Settings, the command line and the options of Spark are read by the same functions. Each raises
`ValueError`, whose text names what was expected: ``a size such as 512M, 1.5G or 65536``.

A size counts in powers of two whatever its suffix: ``M``, ``MB`` and ``MiB`` are the same. The
caller checks whether a number is in range.
"""

from __future__ import annotations

import re
from decimal import Decimal

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


def seconds(text: str) -> float:
    """Return seconds; a number without a unit is one."""
    found = _TIME.fullmatch(text.strip().lower())
    if found is None or found[2] not in _SECONDS:
        raise ValueError("a time such as 5, 0.5, 500ms, 5s, 5m or 2h")
    return float(found[1]) * _SECONDS[found[2]]


def switch(text: str) -> bool:
    """Return whether something is on."""
    found = _SWITCHES.get(text.strip().lower())
    if found is None:
        raise ValueError("on or off, yes or no, true or false")
    return found
