"""Order of strings, as bytes other than 00 that sort alike.

`unicode_text` follows the Unicode Collation Algorithm with its default table (version 10, from
the library pyuca): letters before case, so "apple" < "Apple" < "Zebra" < "zoo". Weights of three
levels are written one after the other:

    primary [01 secondary [01 tertiary [01 code points]]]

A level that is empty, and all that follow it, are left out; weights that say "nothing special" (no
accent, lower case) are left out at the end of their level. So the key of plain lower-case text is
as long as the text. Printable ASCII characters have primary weights of one byte; other weights
that lie between two of theirs have a byte between those, and two more. Code points are there
so that strings which the algorithm holds for equal are different keys.

The order of ASCII characters is written here, too, so a key of a string of ASCII needs no more than
two `bytes.translate`, and an index that has no others never reads the library's table. A test
compares both.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache, lru_cache
from string import ascii_uppercase
from typing import NamedTuple, Protocol

__all__ = ["raw_text", "unicode_text"]

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
    """What takes 0.2 s to be read and is only needed for other characters.

    Attributes:
        collator: the library's.
        weights: primary weights of printable ASCII characters, rising.
    """

    collator: _Collator
    weights: list[int]


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
