"""Meta commands of the text protocol: ``mg ms md ma me mn``, two letters, key, flags.

A flag is one letter, sometimes followed directly by a value. `MetaFlags` separates the flags that
ask for a return value (`returns`, in the order of the request and the reply) from those that change
the effect. The session decides which flags have a meaning for which command; others are accepted
and ignored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uprmc.protocol.opcodes import KEY_MAX_BYTES
from uprmc.protocol.text import (
    TextSyntaxError,
    parse_exptime,
    parse_flags,
    parse_length,
    parse_unsigned64,
)
from uprmc.protocol.text_replies import (
    BAD_ARITHMETIC_MODE,
    BAD_KEY_ENCODING,
    BAD_LINE_FORMAT,
    BAD_META_DELTA,
    BAD_META_INITIAL,
    BAD_MODE_LENGTH,
    BAD_STORE_MODE,
    BAD_TOKEN,
    DUPLICATE_FLAG,
    ERROR,
    INVALID_FLAG,
    INVALID_OR_DUPLICATE_FLAG,
    OPAQUE_TOO_LONG,
    TOO_MANY_FLAGS,
    TOO_MANY_FLAGS_OF_MG,
)

#: Mode of ``ms`` -> the text command that does the same.
STORE_MODES = {b"S": b"set", b"E": b"add", b"A": b"append", b"P": b"prepend", b"R": b"replace"}

#: Mode of ``ma`` -> the text command that does the same.
ARITHMETIC_MODES = {b"I": b"incr", b"+": b"incr", b"D": b"decr", b"-": b"decr"}

#: Most flags on a line, and most bytes of an opaque with its letter.
FLAGS_MAX = 17
OPAQUE_MAX_BYTES = 32

_RETURNED = frozenset(b"fcstkhlO")
_IDLE = frozenset(b"LP")
_SWITCHES = {
    ord("v"): "wants_value",
    ord("q"): "quiet",
    ord("u"): "no_update",
    ord("I"): "invalidate",
}
#: Letter -> field, parser, and the error of a malformed one; that of ``F`` yields to any other.
_NUMBERS: dict[int, tuple[str, Callable[[bytes], int | None], bytes]] = {
    ord("T"): ("ttl", parse_exptime, BAD_TOKEN),
    ord("N"): ("vivify_ttl", parse_exptime, BAD_TOKEN),
    ord("R"): ("recache_ttl", parse_exptime, BAD_TOKEN),
    ord("F"): ("client_flags", parse_flags, b""),
    ord("C"): ("cas", parse_unsigned64, BAD_TOKEN),
    ord("J"): ("initial", parse_unsigned64, BAD_META_INITIAL),
    ord("D"): ("delta", parse_unsigned64, BAD_META_DELTA),
}


@dataclass(frozen=True, slots=True)
class MetaFlags:
    """The flags of one meta command."""

    # the contents of the reply line, in order: single letters of ``fcstkhl``, and the opaque as the
    # complete word ``O...``.
    returns: tuple[bytes, ...] = ()
    wants_value: bool = False  # ``v``, reply ``VA`` with data
    quiet: bool = False  # ``q``, omit the nominal reply (``EN`` of mg, ``HD`` of the others)
    base64_key: bool = False  # ``b``, the key is in base64, in the request and in the reply
    no_update: bool = False  # ``u``, do not count this as a use of the item
    # ``I``, mark stale instead of deleting; for ms, accept an older CAS as stale.
    invalidate: bool = False
    # ``T``, new expiry time of an existing item, in seconds as returned by `parse_exptime`.
    ttl: int | None = None
    # ``N``, create a missing item with that expiry time, or with that of a later ``T``.
    vivify_ttl: int | None = None
    # ``R``, win the right to recache when less time than this is left.
    recache_ttl: int | None = None
    client_flags: int = 0  # ``F``, 32 bits
    cas: int | None = None  # ``C``, compare with this; ``None`` means do not compare
    mode: bytes | None = None  # ``M``, one byte, a key of `STORE_MODES` or `ARITHMETIC_MODES`
    initial: int = 0  # ``J``, value of a counter that is created
    delta: int = 1  # ``D``, step of a counter


@dataclass(frozen=True, slots=True)
class MetaLine:
    """A meta command with a key."""

    command: bytes  # ``mg``, ``ms``, ``md``, ``ma`` or ``me``
    key: bytes  # the key itself, decoded if it was sent in base64
    sent_key: bytes  # the key as in the line, which ``k`` returns
    length: int  # bytes of the data block that follows ``ms``; 0 for the others
    flags: MetaFlags  # the rest of the line


def parse_meta(words: list[bytes]) -> MetaLine:
    """Read ``mg|md|ma|me key flag*`` or ``ms key length flag*`` (``mn`` has nothing to read).

    Raises:
        TextSyntaxError: no key, a key or length out of range, or a bad flag. A bad flag of ``ms``
            says how much data to swallow. Errors are answered in quiet mode too.
    """
    if len(words) < 2:
        raise TextSyntaxError(ERROR)
    if len(words[1]) > KEY_MAX_BYTES:
        raise TextSyntaxError(BAD_LINE_FORMAT)
    if words[0] == b"ms":
        return _parse_store(words)
    if words[0] == b"me":
        return _parse_debug(words)
    return _parse_keyed(words, words[2:], 0)


def _parse_store(words: list[bytes]) -> MetaLine:
    if len(words) > FLAGS_MAX + 2:  # the length counts as one of them, and no data is swallowed
        raise TextSyntaxError(TOO_MANY_FLAGS)
    length = parse_length(words[2]) if len(words) > 2 else None
    if length is None:
        raise TextSyntaxError(BAD_LINE_FORMAT)
    try:
        return _parse_keyed(words, words[3:], length)
    except TextSyntaxError as error:
        raise TextSyntaxError(error.reply, swallow=length + 2) from None


def _parse_debug(words: list[bytes]) -> MetaLine:
    """Read ``me``, which knows one flag, at the first place, and looks at no other."""
    sent_key, is_base64 = words[1], words[2:3] == [b"b"]
    key = _decoded_key(sent_key) if is_base64 else sent_key
    if key is None:
        raise TextSyntaxError(BAD_LINE_FORMAT)
    return MetaLine(words[0], key, sent_key, 0, MetaFlags(base64_key=is_base64))


def _parse_keyed(words: list[bytes], tokens: list[bytes], length: int) -> MetaLine:
    command, sent_key = words[0], words[1]
    if len(tokens) > FLAGS_MAX:
        raise TextSyntaxError(TOO_MANY_FLAGS_OF_MG if command == b"mg" else TOO_MANY_FLAGS)
    try:
        key, flags = parse_meta_flags(sent_key, tokens)
    except TextSyntaxError:
        if command in (b"md", b"ma"):  # memcached tells these two less
            raise TextSyntaxError(INVALID_OR_DUPLICATE_FLAG) from None
        raise
    _check_mode(command, flags.mode)
    _check_opaque(flags)
    return MetaLine(command, key, sent_key, length, flags)


def parse_meta_flags(sent_key: bytes, tokens: list[bytes]) -> tuple[bytes, MetaFlags]:
    """Read the key and the flags of one line.

    Raises:
        TextSyntaxError: an unknown flag or one that comes twice; otherwise the last of malformed
            values, among which is a key that is not base64.
    """
    key = sent_key
    returns: list[bytes] = []
    found: dict[str, Any] = {}
    seen: set[int] = set()
    malformed = b""
    for token in tokens:
        letter = token[0]
        if letter in seen or letter >= 127:
            raise TextSyntaxError(DUPLICATE_FLAG)
        seen.add(letter)
        if letter in _RETURNED:
            returns.append(token if letter == ord("O") else token[:1])
        elif letter == ord("b"):
            found["base64_key"] = True
            key = _decoded_key(sent_key) or b""
            malformed = malformed if key else BAD_KEY_ENCODING
        elif letter in _SWITCHES:
            found[_SWITCHES[letter]] = True
        elif letter == ord("M"):
            found["mode"] = token[1:]
            malformed = malformed if len(token) == 2 else BAD_MODE_LENGTH
        elif letter in _NUMBERS:
            name, parse, reply = _NUMBERS[letter]
            found[name] = parse(token[1:])
            if found[name] is None:
                malformed = reply or malformed or BAD_LINE_FORMAT
            if name == "ttl" and "vivify_ttl" in found:
                found["vivify_ttl"] = found[name]
        elif letter not in _IDLE:
            raise TextSyntaxError(INVALID_FLAG)
    if malformed:
        raise TextSyntaxError(malformed)
    return key, MetaFlags(tuple(returns), **found)


def _decoded_key(sent: bytes) -> bytes | None:
    try:
        return base64.b64decode(sent, validate=True) or None
    except binascii.Error:
        return None


def _check_opaque(flags: MetaFlags) -> None:
    if any(len(word) > OPAQUE_MAX_BYTES for word in flags.returns):
        raise TextSyntaxError(OPAQUE_TOO_LONG)


def _check_mode(command: bytes, mode: bytes | None) -> None:
    if mode is None:
        return
    if command == b"ms" and mode not in STORE_MODES:
        raise TextSyntaxError(BAD_STORE_MODE)
    if command == b"ma" and mode not in ARITHMETIC_MODES:
        raise TextSyntaxError(BAD_ARITHMETIC_MODE)
