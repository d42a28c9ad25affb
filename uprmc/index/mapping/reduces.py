"""The built-in reduces: `_count`, `_sum`, `_stats`, `_approx_count_distinct`.

What is stored in a tree's inner nodes is compact JSON; what is shown for it is `finish`'s. A
reduction that cannot be made is ``None`` for that view only, and so is every one above it.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Protocol

from uprmc.index.json_text import dumps, loads
from uprmc.index.model import Entry
from uprmc.index.rows import json_values, split_row_value

__all__ = [
    "NO_SKETCHES",
    "Reduce",
    "ReduceError",
    "built_in",
    "estimate",
    "has_sketches",
    "of_keys",
    "union",
]

# --- sketches -------------------------------------------------------------------------------------
# HyperLogLog sketches of keys, by the DataSketches library, which is an extra.
#
# A sketch is kept as a JSON string in base64: small while there are few keys, about 2.7 kB for
# many. It estimates within about 2 % (one standard deviation at 2048 registers).


#: Binary logarithm of the number of registers, as CouchDB's.
_REGISTERS = 11

NO_SKETCHES = "_approx_count_distinct needs the extra uprmc[sketches]"


@cache
def _library() -> Any:
    try:
        import datasketches
    except ImportError:
        raise ValueError(NO_SKETCHES) from None
    return datasketches


def has_sketches() -> bool:
    """Whether the library is installed."""
    try:
        _library()
    except ValueError:
        return False
    return True


def of_keys(keys: Iterable[bytes]) -> bytes:
    """Return the sketch of keys, each as JSON."""
    library = _library()
    sketch = library.hll_sketch(_REGISTERS, library.tgt_hll_type.HLL_8)
    for key in keys:
        sketch.update(key.decode())
    return _text(sketch)


def union(texts: Iterable[bytes]) -> bytes:
    """Return the sketch of all keys of sketches."""
    library = _library()
    union = library.hll_union(_REGISTERS)
    for text in texts:
        union.update(_sketch(text))
    return _text(union.get_result(library.tgt_hll_type.HLL_8))


def estimate(text: bytes) -> float:
    """Return about how many different keys a sketch has seen.

    A sketch that saw its keys one by one estimates a little better than one that was merged. The
    answer must not depend on where a tree's nodes end, so it is always that of a merged one.
    """
    return float(_sketch(union([text, text])).get_estimate())


def _sketch(text: bytes) -> Any:
    return _library().hll_sketch.deserialize(b64decode(text[1:-1]))


def _text(sketch: Any) -> bytes:
    return b'"' + b64encode(sketch.serialize_compact()) + b'"'


# --- reduces --------------------------------------------------------------------------------------


_value = attrgetter("value")

#: Of a value that cannot be reduced, the part that an error text shows.
_SHOWN = 100


class ReduceError(ValueError):
    """A reduction cannot be made; the text says why, without naming the view."""


class Reduce(Protocol):
    """One reduce of a view. Its calls raise `ReduceError`, or `ValueError` for unfit values."""

    def reduce(self, entries: Sequence[Entry]) -> bytes:
        """Return what is stored for rows."""

    def rereduce(self, reductions: Sequence[bytes]) -> bytes:
        """Return what is stored for reductions, at least one."""

    def finish(self, reduction: bytes) -> bytes:
        """Return what is shown for a stored reduction, as JSON."""

    def close(self) -> None:
        """End child processes."""


def built_in(name: str) -> Reduce:
    """Return the built-in reduce of that name."""
    return _BUILT_IN[name]()


class _Shown:
    """A reduce whose reductions are shown as they are stored."""

    def finish(self, reduction: bytes) -> bytes:
        return reduction

    def close(self) -> None:
        pass


class Count(_Shown):
    """How many rows there are."""

    def reduce(self, entries: Sequence[Entry]) -> bytes:
        return b"%d" % len(entries)

    def rereduce(self, reductions: Sequence[bytes]) -> bytes:
        return b"%d" % sum(map(int, reductions))


class Sum(_Shown):
    """The sum of numbers; arrays of numbers are added element by element, a number to the first."""

    def reduce(self, entries: Sequence[Entry]) -> bytes:
        return dumps(_total(json_values(map(_value, entries))))

    def rereduce(self, reductions: Sequence[bytes]) -> bytes:
        return dumps(_total(reductions))


def _total(texts: Sequence[bytes]) -> Any:
    try:
        return sum(map(int, texts))  # most values are integers, and this is twice as fast
    except ValueError:
        pass
    values = [loads(text) for text in texts]
    if all(type(value) in _NUMBERS for value in values):
        return _sum(values)
    return _total_of_arrays(values)


def _sum(numbers: Sequence[Any]) -> Any:
    """Return an exact sum of integers, and of others one that does not depend on their order."""
    if float not in map(type, numbers):
        return sum(numbers)
    try:
        return _finite(math.fsum(numbers))
    except OverflowError:
        return _finite(math.inf)


def _total_of_arrays(values: Sequence[Any]) -> list[Any]:
    totals: list[Any] = []
    for value in values:
        parts = value if isinstance(value, list) else [value]
        totals += [0] * (len(parts) - len(totals))
        for place, part in enumerate(parts):
            totals[place] = _finite(totals[place] + _number(part))
    return totals


class StatsReduce(_Shown):
    """Sum, count, least, greatest and sum of squares of numbers."""

    def reduce(self, entries: Sequence[Entry]) -> bytes:
        values = [_number(loads(text)) for text in json_values(map(_value, entries))]
        if not values:
            return dumps({"sum": 0, "count": 0, "min": None, "max": None, "sumsqr": 0})
        return dumps(
            {
                "sum": _finite(sum(values)),
                "count": len(values),
                "min": min(values),
                "max": max(values),
                "sumsqr": _finite(sum(value * value for value in values)),
            }
        )

    def rereduce(self, reductions: Sequence[bytes]) -> bytes:
        parts = [part for part in map(loads, reductions) if part["count"]]
        if not parts:
            return reductions[0]
        return dumps(
            {
                "sum": _finite(sum(part["sum"] for part in parts)),
                "count": sum(part["count"] for part in parts),
                "min": min(part["min"] for part in parts),
                "max": max(part["max"] for part in parts),
                "sumsqr": _finite(sum(part["sumsqr"] for part in parts)),
            }
        )


class ApproximateDistinct(_Shown):
    """About how many different keys there are; the sketch is what is stored."""

    def reduce(self, entries: Sequence[Entry]) -> bytes:
        return of_keys(split_row_value(entry.value)[1] for entry in entries)

    def rereduce(self, reductions: Sequence[bytes]) -> bytes:
        return union(reductions)

    def finish(self, reduction: bytes) -> bytes:
        return b"%d" % round(estimate(reduction))


_NUMBERS = (int, float)

_BUILT_IN: dict[str, Callable[[], Reduce]] = {
    "_count": Count,
    "_sum": Sum,
    "_stats": StatsReduce,
    "_approx_count_distinct": ApproximateDistinct,
}


def _number(value: Any) -> Any:
    if type(value) in _NUMBERS:
        return value
    text = dumps(value).decode(errors="replace")
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    raise ReduceError(f"a value is no number: {shown}")


def _finite(value: Any) -> Any:
    if type(value) is float and not math.isfinite(value):
        raise ReduceError("the sum is larger than a number can be")
    return value
