"""Bytes of clients on a terminal and in JSON. Both may be anything, control characters included."""

from __future__ import annotations

from base64 import b64encode


def readable(data: bytes, most: int | None = None) -> str:
    """Return bytes as one line of text, everything that does not print escaped.

    Args:
        data: what to show.
        most: after so many characters ``...`` takes the place of the rest; ``None`` = never.
    """
    seen = data if most is None else data[: most * 4]  # UTF-8 has at most 4 bytes a character
    text = seen.decode("utf-8", "backslashreplace")
    if most is not None and (len(text) > most or len(seen) < len(data)):
        text = text[:most] + "..."
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as a field of JSON; what is no UTF-8 as Base64, and a second field says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(data).decode(), f"{name}_encoding": "base64"}
