"""What verbs print for people: bytes of clients, which may be anything, sizes, times and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import click

_Value = TypeVar("_Value")


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
    return printable(text)


def printable(text: str) -> str:
    """Return a text with everything escaped that does not print."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def rounded_size(number: float) -> str:
    """Return about how many bytes these are: ``1.5 GiB``."""
    unit = "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "bytes" or number >= 100 else f"{number:.1f} {unit}"


def time_text(seconds: int) -> str:
    """Return a Unix time as a person reads it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def show(value: _Value, as_json: bool, text: Callable[[_Value], str]) -> None:
    """Print a value as JSON for programs, or as text for people."""
    click.echo(json.dumps(value, indent=2) if as_json else text(value))


# --- tables ---------------------------------------------------------------------------------------


def table(rows: Iterable[Sequence[object]], widths: Sequence[str] | None = None) -> str:
    """Return lines with columns, two blanks apart.

    Args:
        rows: the first are the headings.
        widths: of the columns as formats, such as ``>7``. Without them texts are to the left, and
            columns are as wide as what is in them.
    """
    lines = [[str(cell) for cell in row] for row in rows]
    return "\n".join(row_line(line, widths or fitting(lines)) for line in lines)


def fitting(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return widths in which every cell has room."""
    return [str(max(map(len, column))) for column in zip(*rows, strict=True)]


def row_line(cells: Sequence[object], widths: Sequence[str]) -> str:
    """Return one line of a table."""
    some = (f"{cell!s:{width}}" for cell, width in zip(cells, widths, strict=True))
    return "  ".join(some).rstrip()
