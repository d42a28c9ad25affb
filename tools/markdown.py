"""The little Markdown that generated pages need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(_line(row) for row in (head, ["---"] * len(head), *rows))


def _line(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def page(*parts: str) -> str:
    """Return a page of paragraphs, headings and tables."""
    return "\n\n".join(parts)
