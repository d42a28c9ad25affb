"""Reduces for tests: simple, and made apart from those of the product."""

from __future__ import annotations

from collections.abc import Sequence

from uprmc.index.model import Entry, Reductions
from uprmc.index.rows import split_row_value


class Summing:
    """The sum of the values of rows."""

    def __init__(self) -> None:
        self.calls = 0

    def reduce(self, entries: Sequence[Entry]) -> Reductions:
        self.calls += 1
        total = sum(int(split_row_value(entry.value)[2]) for entry in entries)
        return (b"%d" % total,)

    def rereduce(self, reductions: Sequence[Reductions]) -> Reductions:
        self.calls += 1
        return (b"%d" % sum(int(text or b"") for (text,) in reductions),)


class Lengths:
    """The total length of the values of any tree; nothing for rows with an X in their value."""

    def reduce(self, entries: Sequence[Entry]) -> Reductions:
        if any(b"X" in entry.value for entry in entries):
            return (None,)
        return (b"%d" % sum(len(entry.value) for entry in entries),)

    def rereduce(self, reductions: Sequence[Reductions]) -> Reductions:
        assert (None,) not in reductions
        return (b"%d" % sum(int(text or b"") for (text,) in reductions),)
