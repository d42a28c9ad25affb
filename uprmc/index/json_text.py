"""JSON as the index reads and writes it: fast, exact, and bounded.

For documents, keys and values `orjson` does the work, and what it takes is JSON. It reads integers
beyond 64 bits as floats, and refuses numbers that overflow a float and half of a surrogate pair,
which are JSON all the same: the standard library's parser reads those, numbers as null and halves
as U+FFFD, so that nothing is shown that strict parsers refuse. What clients and other nodes ask and
answer is read strictly instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

import orjson

__all__ = ["DIGITS_MAX", "Unreadable", "dumps", "loads", "portable", "strict_json", "well_formed"]

#: Longest whole number that a request may have.
DIGITS_MAX = 4_000

#: What orjson would read as a float, though it may be an integer.
_BIG = re.compile(rb"[0-9]{20}|-[0-9]{19}")

#: Makes all digits zeros: to look for a run of them is then much faster than an expression is.
_ZEROS = bytes(ord("0") if byte in b"123456789" else byte for byte in range(256))
_RUN = b"0" * 19

_is_big: Callable[[bytes], object] = _BIG.search

#: Shorter texts of orjson are copied.
_CUT_BYTES = 1024

#: Escapes; in the first group those of half a surrogate pair, which is no character.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)

#: What both parsers say of what is nested too deeply begins with it.
_DEEP = "depth limit exceeded"


class Unreadable(ValueError):
    """A text is JSON that the index cannot hold; the text says why."""


def loads(text: bytes) -> Any:
    """Return the value of a JSON text; raise `Unreadable`, or `ValueError` if it is none."""
    if text.translate(_ZEROS).find(_RUN) >= 0 and _is_big(text):
        return _loads_exactly(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith(_DEEP):
            raise Unreadable("it is nested too deeply") from None
        return _loads_exactly(text)


def dumps(value: Any) -> bytes:
    """Return a value as compact JSON in UTF-8; raise `ValueError` where that is impossible."""
    try:
        text = orjson.dumps(value)
    except TypeError:
        return _dumps_exactly(value)
    # orjson cuts a text out of 1 KiB or more. To keep it like that takes up to 2 us, a copy 0.03.
    return b"%b" % text if len(text) < _CUT_BYTES else text


def portable(text: bytes) -> bytes:
    """Return a JSON text in one line as every parser takes it; raises as `loads`."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return dumps(loads(text))
    # Between tokens a line may end anywhere, and within strings nowhere.
    return text.replace(b"\n", b" ") if b"\n" in text else text


def well_formed(text: bytes) -> bytes:
    """Return a JSON text with U+FFFD for each half of a surrogate pair."""
    if b"\\u" not in text:
        return text
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], text)


def _loads_exactly(text: bytes) -> Any:
    try:
        return json.loads(
            well_formed(text).decode(),
            parse_constant=_no_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _float(digits: str) -> float | None:
    """A number that no float can hold is null, as JavaScript writes it."""
    value = float(digits)
    return None if math.isinf(value) else value


def _int(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise Unreadable(f"it has a number of {len(digits)} digits") from None


def _dumps_exactly(value: Any) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return well_formed(json.dumps(value, separators=(",", ":")).encode())


# --- requests -------------------------------------------------------------------------------------


def strict_json(text: str | bytes) -> Any:
    """Read JSON, without what only Python takes for it.

    Raises:
        ValueError: it is none, is nested too deeply, or has a number that JSON cannot say.
    """
    try:
        if isinstance(text, str):
            text = text.encode()
        return json.loads(
            well_formed(text).decode(),
            parse_constant=_no_word,
            parse_float=_finite,
            parse_int=_whole,
        )
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except UnicodeError:
        raise ValueError("is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at character {error.pos}") from None


def _no_word(name: str) -> NoReturn:
    raise ValueError(f"is not JSON: it has {name}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("has a number that is too large")
    return number


def _whole(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise ValueError(f"has a number with more than {DIGITS_MAX} digits")
    return int(digits)
