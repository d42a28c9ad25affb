"""What a node follows, as the local document that keeps it over restarts.

JSON with a version: ``{"version": 1, "sources": {"HOST:PORT": [[0, 511], [600, 600]]}}``; the pairs
are the first and last vBucket of each run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from uprmc.units import ranges_of

#: The local document's name.
NAME = b"uprmc/replication"

_VERSION = 1
_NUMBER_MAX = 0xFFFF


def encode(followed: Mapping[str, Iterable[int]]) -> bytes | None:
    """Return the document that says which vBuckets follow which source, ``None`` for nothing."""
    sources = {place: ranges_of(numbers) for place, numbers in followed.items()}
    if not any(sources.values()):
        return None
    return json.dumps({"version": _VERSION, "sources": sources}, sort_keys=True).encode()


def decode(document: bytes | None) -> dict[int, str]:
    """Return vBucket -> source; raises `ValueError`, one line, for what we have not written."""
    if document is None:
        return {}
    try:
        found = json.loads(document)
        version, sources = found["version"], found["sources"]
        if version != _VERSION:
            raise ValueError(f"it has version {version} and this uprmc knows {_VERSION}")
        return {
            number: _text(place)
            for place, ranges in sources.items()
            for first, last in ranges
            for number in _numbers(first, last)
        }
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("it does not have the form that this uprmc writes") from None


def _text(place: object) -> str:
    if not isinstance(place, str):
        raise TypeError(place)
    return place


def _numbers(first: object, last: object) -> range:
    if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last <= _NUMBER_MAX):
        raise TypeError(first, last)
    return range(first, last + 1)
