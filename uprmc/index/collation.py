"""Order of JSON values, as bytes that sort alike.

null < false < true < numbers < strings < arrays < objects. Arrays are compared element by element
and a shorter one comes first; objects likewise, member by member in the order that they were
written in, name before value. Numbers are compared exactly, however large: 2^53 + 1 is above 2^53,
and 1, 1.0 and 1e0 are one key. Strings have two orders: `unicode` (see below) and `raw`, which
is that of their code points.

A sort key describes itself: the end of each element can be found without the value, so no sort
key is a prefix of another one, and the first elements of an array can be cut out of its key (which
is how rows are grouped).

==== ========================================================================================
tag  what follows
==== ========================================================================================
10   null
11   false
12   true
1c   not a number: nothing
1d   an integer below every double: complement of the length (4), complement of the bytes
1e   a negative number: complement of the double (8), rest
1f   another number: the double (8), rest
20   an integer above every double: length (4), bytes
30   a string: bytes other than 00, then 00
40   an array: elements, then 00
50   an object: names (as strings) and values in turn, then 00
==== ========================================================================================

The double is the number rounded down; the rest is what that left out: its length (1) and bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple, Protocol

__all__ = [
    "HIGHEST",
    "LOWEST",
    "MAX_DEPTH",
    "Collation",
    "after_prefix",
    "array_key",
    "group_prefix",
    "number_key",
    "prefix_bounds",
    "raw_text",
    "sort_key",
    "sort_key_end",
    "unicode_text",
]

# --- strings --------------------------------------------------------------------------------------
# Order of strings, as bytes other than 00 that sort alike.
#
# `unicode_text` follows the Unicode Collation Algorithm with its default table (version 10, from
# the library pyuca): letters before case, so "apple" < "Apple" < "Zebra" < "zoo". Weights of three
# levels are written one after the other:
#
#     primary [01 secondary [01 tertiary [01 code points]]]
#
# A level that is empty, and all that follow it, are left out; weights that say "nothing special"
# (no accent, lower case) are left out at the end of their level. So the key of plain lower-case
# text is as long as the text. Printable ASCII characters have primary weights of one byte; other
# weights that lie between two of theirs have a byte between those, and two more. Code points are
# there so that strings which the algorithm holds for equal are different keys.
#
# The order of ASCII characters is written here, too, so a key of a string of ASCII needs no more
# than two `bytes.translate`, and an index that has no others never reads the library's table. A
# test compares both.


_LEVEL = b"\x01"
#: Printable ASCII characters in the order of their primary weights; capitals have those of small
#: letters.
_ASCII_ORDER = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz"
#: The least weights of their levels: no accent, lower case; and the weight of a capital.
_PLAIN, _LOWER, _UPPER = 0x20, 0x02, 0x08
#: Digits of weights that need more than one byte; 00 and 01 end something.
_BASE = 254
#: Longer strings are not kept in the cache of keys, which is bounded by these two.
_CACHED_CHARACTERS, _CACHED_STRINGS = 128, 16_384


def raw_text(text: str) -> bytes:
    """Return bytes in the order of code points."""
    return _without_zero(text.encode("utf-8", "surrogatepass"))


def _without_zero(raw: bytes) -> bytes:
    if b"\x01" in raw:
        raw = raw.replace(b"\x01", b"\x01\x02")
    return raw.replace(b"\0", b"\x01\x01") if b"\0" in raw else raw


def unicode_text(text: str) -> bytes:
    """Return bytes in the order of the Unicode Collation Algorithm."""
    if text.isascii() and text.isprintable():
        raw = text.encode("ascii")
        primary = raw.translate(_PRIMARY)
        if raw == raw.lower():
            return primary
        return primary + _LEVEL + _LEVEL + raw.translate(_TERTIARY).rstrip(b"\x02")
    if len(text) > _CACHED_CHARACTERS:
        return _collated(text)
    return _remembered(text)


class _Collator(Protocol):
    def sort_key(self, string: str) -> tuple[int, ...]:
        """Return the weights of all levels with 0 between them."""


def _own_byte(index: int) -> int:
    """Return the byte of a weight that has one to itself; those between are 2 + even numbers."""
    return 3 + 2 * index


def _primary_bytes() -> bytes:
    table = bytearray(256)
    for index, character in enumerate(_ASCII_ORDER):
        table[ord(character)] = table[ord(character.upper())] = _own_byte(index)
    return bytes(table)


_PRIMARY = _primary_bytes()
_TERTIARY = bytes(_UPPER if chr(code) in ascii_uppercase else _LOWER for code in range(256))


class _Tables(NamedTuple):
    """What takes 0.2 s to be read and is only needed for other characters."""

    collator: _Collator  # the library's
    weights: list[int]  # primary weights of printable ASCII characters, rising


@cache
def _tables() -> _Tables:
    from pyuca.collator import Collator_10_0_0

    collator: _Collator = Collator_10_0_0()
    return _Tables(collator, [collator.sort_key(character)[0] for character in _ASCII_ORDER])


@lru_cache(maxsize=_CACHED_STRINGS)
def _remembered(text: str) -> bytes:
    return _collated(text)


def _collated(text: str) -> bytes:
    tables = _tables()
    first, second, third = _levels(tables.collator.sort_key(text))
    levels = [
        b"".join([_primary(weight, tables.weights) for weight in first]),
        b"".join([_digits(weight) for weight in _trimmed(second, _PLAIN)]),
        bytes(_trimmed(third, _LOWER)),
        _without_zero(text.encode("utf-8", "surrogatepass")),
    ]
    return _LEVEL.join(levels)


def _levels(weights: tuple[int, ...]) -> list[list[int]]:
    levels: list[list[int]] = [[]]
    for weight in weights:
        if weight:
            levels[-1].append(weight)
        else:
            levels.append([])
    return [*levels, [], []][:3]


def _primary(weight: int, known: list[int]) -> bytes:
    index = bisect_right(known, weight) - 1
    if index >= 0 and known[index] == weight:
        return bytes([_own_byte(index)])
    below = known[index] if index >= 0 else 0
    return bytes([_own_byte(index) + 1]) + _digits(weight - below)


def _digits(number: int) -> bytes:
    high, low = divmod(number, _BASE)
    return bytes([high + 2, low + 2])


def _trimmed(weights: list[int], plain: int) -> list[int]:
    end = len(weights)
    while end and weights[end - 1] == plain:
        end -= 1
    return weights[:end]


# --- collation ------------------------------------------------------------------------------------


Collation = Literal["unicode", "raw"]

#: Below and above every sort key and every row key.
LOWEST, HIGHEST = b"", b"\xff"
#: Keys nested deeper are refused: what walks through them is recursive.
MAX_DEPTH = 200

_NULL, _FALSE, _TRUE = b"\x10", b"\x11", b"\x12"
_BELOW, _NEGATIVE, _POSITIVE, _ABOVE = 0x1D, 0x1E, 0x1F, 0x20
_STRING, _ARRAY, _OBJECT = 0x30, 0x40, 0x50
_END = b"\0"

_double = struct.Struct(">d").pack
_whole = struct.Struct(">BdB").pack
_EXACT = 2**53
_INVERT = bytes(255 - byte for byte in range(256))

_Text = Callable[[str], bytes]


def sort_key(value: Any, collation: Collation = "unicode") -> bytes:
    """Return the bytes that stand for a JSON value in the order of keys.

    Raises:
        ValueError: it is nested deeper than `MAX_DEPTH`, or is no JSON value.
    """
    text = unicode_text if collation == "unicode" else raw_text
    if type(value) is str:
        return b"0" + text(value) + _END
    parts: list[bytes] = []
    _walk(value, text, parts, MAX_DEPTH)
    return b"".join(parts)


def array_key(elements: Sequence[bytes]) -> bytes:
    """Return the sort key of an array whose elements have these."""
    return b"@" + b"".join(elements) + _END


def _walk(value: Any, text: _Text, parts: list[bytes], depth: int) -> None:
    kind = type(value)
    if kind is str:
        parts += (b"0", text(value), _END)
    elif kind is int or kind is float:
        parts.append(number_key(value))
    elif value is None:
        parts.append(_NULL)
    elif kind is bool:
        parts.append(_TRUE if value else _FALSE)
    elif not depth:
        raise ValueError(f"a key may be nested {MAX_DEPTH} deep")
    elif kind is list or kind is tuple:
        parts.append(b"@")
        for element in value:
            if type(element) is str:  # what follows, without a call for what is most frequent
                parts += (b"0", text(element), _END)
            elif type(element) is int and 0 <= element <= _EXACT:
                parts.append(_whole(_POSITIVE, element, 0))
            else:
                _walk(element, text, parts, depth - 1)
        parts.append(_END)
    elif kind is dict:
        parts.append(b"P")
        for name, member in value.items():
            parts += (b"0", text(name), _END)
            _walk(member, text, parts, depth - 1)
        parts.append(_END)
    else:
        raise ValueError(f"{kind.__name__} is no JSON value")


def number_key(value: float) -> bytes:
    """Return the sort key of a number."""
    if type(value) is int and not -_EXACT <= value <= _EXACT:
        return _large(value)
    if value >= 0:
        return _whole(_POSITIVE, value + 0.0, 0)  # 0.0 makes -0.0 positive
    if value < 0:
        return b"\x1e" + _double(-value).translate(_INVERT) + _END
    return b"\x1c"


def _large(value: int) -> bytes:
    """Return the key of an integer that a double may not hold exactly."""
    try:
        near = float(value)
    except OverflowError:
        return _huge(value)
    if int(near) > value:
        near = _next_below(near)
    rest = value - int(near)
    size = (rest.bit_length() + 7) // 8
    head = b"\x1f" + _double(near) if near > 0 else b"\x1e" + _double(-near).translate(_INVERT)
    return head + bytes([size]) + rest.to_bytes(size, "big")


def _next_below(near: float) -> float:
    import math

    return math.nextafter(near, -math.inf)


def _huge(value: int) -> bytes:
    """Return the key of an integer that lies outside of the range of doubles."""
    size = (value.bit_length() + 7) // 8
    body = size.to_bytes(4, "big") + abs(value).to_bytes(size, "big")
    return b"\x20" + body if value > 0 else b"\x1d" + body.translate(_INVERT)


def sort_key_end(key: bytes, start: int = 0) -> int:
    """Return where the sort key ends that begins at `start`, whatever follows it."""
    depth = 0
    while True:
        tag = key[start]
        if tag == _STRING:
            start = key.index(0, start) + 1
        elif tag in (_POSITIVE, _NEGATIVE):
            start += 10 + key[start + 9]
        elif tag in (_ARRAY, _OBJECT):
            depth += 1
            start += 1
            if key[start]:
                continue
            start, depth = start + 1, depth - 1
        elif tag in (_ABOVE, _BELOW):
            size = int.from_bytes(key[start + 1 : start + 5], "big")
            start += 5 + (size if tag == _ABOVE else size ^ 0xFFFFFFFF)
        else:
            start += 1
        while depth and not key[start]:
            start, depth = start + 1, depth - 1
        if not depth:
            return start


def group_prefix(key: bytes, level: int | None) -> bytes:
    """Return what rows of one group share: a prefix of their keys that no other row has.

    Args:
        key: a sort key, or a row key (which begins with one).
        level: how many first elements of arrays tell groups apart, other keys count as a whole;
            ``None`` = the whole key always, 0 = all rows are one group.
    """
    if level == 0:
        return b""
    if level is None or key[0] != _ARRAY:
        return key[: sort_key_end(key)]
    end = 1
    for _ in range(level):
        if not key[end]:
            return key[: end + 1]
        end = sort_key_end(key, end)
    return key[:end]


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the least bytes above everything that begins with `prefix`; ``None`` = no end."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def prefix_bounds(values: list[Any], collation: Collation = "unicode") -> tuple[bytes, bytes]:
    """Return the range (the end is not in it) of keys of all arrays that begin with `values`."""
    low = sort_key(values, collation)[:-1]
    return low, after_prefix(low) or HIGHEST
