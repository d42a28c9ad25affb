"""Groups of rows and their reductions.

Groups that end within a leaf are reduced from its rows. The last one of a leaf may go on: it is
reduced from the tree, with the reductions of whole subtrees, and reading goes on behind it. So a
group of a million rows costs two walks, and a million groups of one row cost one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from uprmc.index.collation import after_prefix
from uprmc.index.model import Entry, Reducer, Reductions

__all__ = ["Groups", "groups"]


class Groups(Protocol):
    """What grouping needs of a tree."""

    reducer: Reducer | None

    def first_rows(
        self, low: bytes, high: bytes | None, wanted: int | None, descending: bool
    ) -> Sequence[Entry]:
        """Return the wanted rows of the first leaf that has any, in the direction of reading."""

    def reduced(self, low: bytes, high: bytes | None, wanted: int | None) -> Reductions:
        """Return the reductions of the rows from `low` to before `high`."""


def groups(
    tree: Groups,
    low: bytes,
    high: bytes | None,
    wanted: int | None,
    group: Callable[[bytes], bytes],
    descending: bool,
) -> Iterator[tuple[Entry, Reductions]]:
    """Yield each group's first row and its reductions."""
    while True:
        rows = tree.first_rows(low, high, wanted, descending)
        if not rows:
            return
        keys = [row.key for row in rows]
        start = 0
        while True:
            prefix = group(keys[start])
            stop = start
            while stop < len(keys) and keys[stop].startswith(prefix):
                stop += 1
            if stop == len(keys):
                break
            yield rows[start], _reductions(tree, rows[start:stop], descending)
            start = stop
        begin, end = max(low, prefix), _lesser(after_prefix(prefix), high)
        yield rows[start], tree.reduced(begin, end, wanted)
        if descending:
            high = begin
        elif end is None:
            return
        else:
            low = end


def _reductions(tree: Groups, run: Sequence[Entry], descending: bool) -> Reductions:
    if tree.reducer is None:
        return ()
    return tree.reducer.reduce(run[::-1] if descending else run)


def _lesser(bound: bytes | None, other: bytes | None) -> bytes | None:
    if bound is None or other is None:
        return other if bound is None else bound
    return min(bound, other)
