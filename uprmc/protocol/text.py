"""Command lines of the text protocol, parsed by pure functions.

A line goes through `split_words`; its first word chooses the `parse_...` function. The result is a
tuple of plain values, or a `TextSyntaxError` with the exact bytes of the answer. Data blocks and
the order of replies belong to the session. Meta commands are in `text_meta`, the reply lines in
`text_replies`.

Note: a refused line that ends in ``noreply`` is not answered.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from uprmc.errors import CommandError
from uprmc.protocol.opcodes import KEY_MAX_BYTES
from uprmc.protocol.text_replies import (
    BAD_DELETE_FORMAT,
    BAD_DELTA,
    BAD_EXPTIME,
    BAD_LINE_FORMAT,
    ERROR,
    MEMLIMIT_IN_BYTES,
    MEMLIMIT_TOO_SMALL,
)

#: Data lengths from here on are malformed, not merely too large.
LENGTH_LIMIT_BYTES = 2**31 - 2

#: Where a storage line has the length of its data block.
_LENGTH_AT = 4

#: Least cache_memlimit, in megabytes.
MEMLIMIT_LEAST_MB = 8

#: A larger one is taken for bytes.
MEMLIMIT_MOST_MB = 1_000_000_000

_NOREPLY = b"noreply"

#: White space, sign, digits, then the end of the word as C sees it; what follows is ignored.
#: Possessive, so that a long row of digits cannot make it try again and again.
_NUMBER = re.compile(rb"\s*+([+-]?)(?=[0-9])0*+([0-9]*+)(?:[\s\0]|\Z)")


class TextSyntaxError(CommandError):
    """A line cannot be carried out."""

    def __init__(self, reply: bytes, swallow: int = 0) -> None:
        super().__init__(reply, swallow)
        self.reply = reply  # the exact bytes of the answer, empty when the line asked for no reply
        #: Bytes of data after the line that must be dropped (only after a bad ``ms``; after other
        #: refused lines the data is read as commands, as in memcached).
        self.swallow = swallow


class StorageLine(NamedTuple):
    """A line that a data block follows."""

    command: bytes  # ``set``, ``add``, ``replace``, ``append``, ``prepend`` or ``cas``
    key: bytes  # 1 to 250 bytes
    flags: int  # 32 bits
    exptime: int  # seconds as sent, signed 32 bits; a negative number expires at once
    length: int  # bytes of the data block without its line end
    cas: int  # the CAS that ``cas`` compares with; 0 for the others
    noreply: bool  # do not answer, whatever happens


class TouchAndGetLine(NamedTuple):
    """``gat`` or ``gats``: a new expiry time for each of the keys, which may be none."""

    exptime: int
    keys: list[bytes]


class DeleteLine(NamedTuple):
    """``delete``."""

    key: bytes
    noreply: bool


class ArithmeticLine(NamedTuple):
    """``incr`` or ``decr`` by 0 to 2**64 - 1."""

    key: bytes
    delta: int
    noreply: bool


class TouchLine(NamedTuple):
    """``touch``; `exptime` as in `StorageLine`."""

    key: bytes
    exptime: int
    noreply: bool


class NumberLine(NamedTuple):
    """``flush_all``, ``verbosity`` or ``cache_memlimit`` with its one number."""

    number: int
    noreply: bool


# --- words --------------------------------------------------------------------------------------


def split_words(line: bytes) -> list[bytes]:
    r"""Return the words of a line without its ``\n``; one ``\r`` at the end is dropped too.

    Only spaces separate words; several count as one, and those at either end are ignored.
    """
    if line.endswith(b"\r"):
        line = line[:-1]
    words = line.split(b" ")
    return [word for word in words if word] if b"" in words else words


# --- numbers ------------------------------------------------------------------------------------


def parse_integer(word: bytes) -> int | None:
    """Return the number that `word` starts with, as C's ``strtol`` reads it.

    ``None`` for anything else, and for numbers of more than 20 digits, which fit nowhere.
    """
    if len(word) <= 20 and word.isdigit():
        return int(word)
    match = _NUMBER.match(word)
    if match is None or len(match[2]) > 20:
        return None
    magnitude = int(match[2] or b"0")
    return -magnitude if match[1] == b"-" else magnitude


def parse_unsigned64(word: bytes) -> int | None:
    """Return a number from 0 to 2**64 - 1, else ``None``: CAS values and deltas.

    As in memcached, a number below -2**63 counts from 2**64 downwards.
    """
    number = parse_integer(word)
    if number is None or not -(2**64) < number < 2**64 or -(2**63) <= number < 0:
        return None
    return number % 2**64


def parse_flags(word: bytes) -> int | None:
    """Return the low 32 bits of a number from 0 to 2**64 - 1, else ``None``."""
    number = parse_unsigned64(word)
    return None if number is None else number & 0xFFFFFFFF


def parse_exptime(word: bytes) -> int | None:
    """Return a 64-bit number cut down to signed 32 bits, else ``None``.

    So 2147483648 reads as -2147483648, which is expired at once.
    """
    number = parse_integer(word)
    if number is None or not -(2**63) <= number < 2**63:
        return None
    return ((number + 2**31) & 0xFFFFFFFF) - 2**31


def parse_length(word: bytes) -> int | None:
    """Return the length of a data block in bytes; ``None`` when no block can be that long.

    It is cut down to signed 32 bits, as `parse_exptime` does.
    """
    number = parse_exptime(word)
    return number if number is not None and 0 <= number < LENGTH_LIMIT_BYTES else None


# --- lines --------------------------------------------------------------------------------------


def parse_storage(words: list[bytes]) -> StorageLine:
    """Read ``set|add|replace|append|prepend key flags exptime bytes [noreply]`` or ``cas``.

    Raises:
        TextSyntaxError: wrong word count, number, or key length. No data block is swallowed.
    """
    command = words[0]
    last = 5 if command == b"cas" else 4
    noreply = _has_noreply(words, last + 1, last + 2)
    key, flags_word, exptime_word = words[1], words[2], words[3]
    flags = 0 if flags_word == b"0" else parse_flags(flags_word)
    exptime = 0 if exptime_word == b"0" else parse_exptime(exptime_word)
    length = parse_length(words[_LENGTH_AT])
    cas = parse_unsigned64(words[5]) if last == 5 else 0
    if (
        len(key) > KEY_MAX_BYTES
        or flags is None
        or exptime is None
        or length is None
        or cas is None
    ):
        raise _refusal(BAD_LINE_FORMAT, noreply)
    return StorageLine(command, key, flags, exptime, length, cas, noreply)


def parse_login(words: list[bytes]) -> int | None:
    """Return how long the name and password are that follow; ``None`` if it is no login.

    It is a ``set`` whose key, flags and expiry time may be anything, as in memcached.
    """
    if len(words) <= _LENGTH_AT or words[0] != b"set":
        return None
    return parse_length(words[_LENGTH_AT]) or None


def parse_retrieval(words: list[bytes]) -> list[bytes]:
    """Read ``get|gets key+`` and return the keys as asked, repetitions included.

    Raises:
        TextSyntaxError: no key. Keys that are too long are the caller's to find, with `check_keys`.
    """
    if len(words) < 2:
        raise TextSyntaxError(ERROR)
    return words[1:]


def parse_touch_and_get(words: list[bytes]) -> TouchAndGetLine:
    """Read ``gat|gats exptime key*``.

    Raises:
        TextSyntaxError: no expiry time, or a malformed one. For keys see `parse_retrieval`.
    """
    if len(words) < 2:
        raise TextSyntaxError(ERROR)
    exptime = parse_exptime(words[1])
    if exptime is None:
        raise TextSyntaxError(BAD_EXPTIME)
    return TouchAndGetLine(exptime, words[2:])


def parse_delete(words: list[bytes]) -> DeleteLine:
    """Read ``delete key [0] [noreply]``.

    Raises:
        TextSyntaxError: wrong word count, a time other than 0, or a key that is too long.
    """
    if not 2 <= len(words) <= 4:
        raise TextSyntaxError(ERROR)
    rest = words[2:]
    noreply = rest[-1:] == [_NOREPLY]
    if rest not in ([], [b"0"], [_NOREPLY], [b"0", _NOREPLY]):
        raise _refusal(BAD_DELETE_FORMAT, noreply)
    return DeleteLine(_checked_key(words[1], noreply), noreply)


def parse_arithmetic(words: list[bytes]) -> ArithmeticLine:
    """Read ``incr|decr key delta [noreply]``.

    Raises:
        TextSyntaxError: wrong word count, key length, or delta.
    """
    noreply = _has_noreply(words, 3, 4)
    key = _checked_key(words[1], noreply)
    delta = parse_unsigned64(words[2])
    if delta is None:
        raise _refusal(BAD_DELTA, noreply)
    return ArithmeticLine(key, delta, noreply)


def parse_touch(words: list[bytes]) -> TouchLine:
    """Read ``touch key exptime [noreply]``.

    Raises:
        TextSyntaxError: wrong word count, key length, or expiry time.
    """
    noreply = _has_noreply(words, 3, 4)
    key = _checked_key(words[1], noreply)
    exptime = parse_exptime(words[2])
    if exptime is None:
        raise _refusal(BAD_EXPTIME, noreply)
    return TouchLine(key, exptime, noreply)


def parse_flush_all(words: list[bytes]) -> NumberLine:
    """Read ``flush_all [exptime] [noreply]``; without a time it is 0, at once.

    Raises:
        TextSyntaxError: too many words, or a malformed time.
    """
    noreply = _has_noreply(words, 1, 3)
    if len(words) == (2 if noreply else 1):
        return NumberLine(0, noreply)
    exptime = parse_exptime(words[1])
    if exptime is None:
        raise _refusal(BAD_EXPTIME, noreply)
    return NumberLine(exptime, noreply)


def parse_verbosity(words: list[bytes]) -> NumberLine:
    """Read ``verbosity level [noreply]``.

    Raises:
        TextSyntaxError: no level, too many words, or a malformed level. ``verbosity noreply`` has
        no level, and wants no reply.
    """
    noreply = _has_noreply(words, 2, 3)
    if noreply and len(words) == 2:
        raise TextSyntaxError(b"")
    level = parse_flags(words[1])
    if level is None:
        raise _refusal(BAD_LINE_FORMAT, noreply)
    return NumberLine(level, noreply)


def parse_cache_memlimit(words: list[bytes]) -> NumberLine:
    """Read ``cache_memlimit megabytes [noreply]``.

    Raises:
        TextSyntaxError: wrong word count, not a number, less than 8, or a number of bytes.
    """
    noreply = _has_noreply(words, 2, 3)
    megabytes = parse_flags(words[1])
    if megabytes is None:
        raise _refusal(ERROR, noreply)
    if megabytes < MEMLIMIT_LEAST_MB:
        raise _refusal(MEMLIMIT_TOO_SMALL, noreply)
    if megabytes > MEMLIMIT_MOST_MB:
        raise _refusal(MEMLIMIT_IN_BYTES, noreply)
    return NumberLine(megabytes, noreply)


def _has_noreply(words: list[bytes], least: int, most: int) -> bool:
    if not least <= len(words) <= most:
        raise TextSyntaxError(ERROR)
    return words[-1] == _NOREPLY


def _refusal(reply: bytes, noreply: bool) -> TextSyntaxError:
    return TextSyntaxError(b"" if noreply else reply)


def _checked_key(key: bytes, noreply: bool) -> bytes:
    if len(key) > KEY_MAX_BYTES:
        raise _refusal(BAD_LINE_FORMAT, noreply)
    return key


def check_keys(keys: list[bytes]) -> list[bytes]:
    """Return the keys; raises `TextSyntaxError` if one is too long."""
    if keys and max(map(len, keys)) > KEY_MAX_BYTES:
        raise TextSyntaxError(BAD_LINE_FORMAT)
    return keys
