"""Bytes of clients on a terminal. They may be anything, control characters included."""

from __future__ import annotations


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


def size_text(number: float) -> str:
    """Return about how many bytes these are: ``1.5 GiB``."""
    unit = "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "bytes" or number >= 100 else f"{number:.1f} {unit}"
