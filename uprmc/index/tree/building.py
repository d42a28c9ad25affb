"""A tree from rows in order: each node is written once and is well filled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from uprmc.index.tree.nodes import Child, Inner, Leaf, Pointer, Row, child_size, separator
from uprmc.index.tree.writing import MAX_NODE, NodeWriter

__all__ = ["Builder"]


class Builder:
    """Writes one tree bottom-up, in memory that grows with the logarithm of its rows."""

    def __init__(self, writer: NodeWriter) -> None:
        self._writer = writer
        self._rows: list[Row] = []
        self._last = b""
        self._levels: list[_Level] = []

    def add(self, rows: Sequence[Row]) -> None:
        """Take more rows, above all before."""
        self._rows += rows
        self._cut(final=False)

    def _cut(self, final: bool) -> None:
        """Write as many full leaves as there are."""
        rows = Leaf.of(self._rows)
        totals = list(accumulate(rows.sizes()))
        start = base = 0
        while start < len(totals) and (final or totals[-1] - base > MAX_NODE):
            end = max(bisect_right(totals, base + MAX_NODE, start), start + 1)
            self._leaf(rows.part(start, end))
            start, base = end, totals[end - 1]
        self._rows = self._rows[start:]

    def _leaf(self, leaf: Leaf) -> None:
        low = separator(self._last, leaf.keys[0]) if self._levels else b""
        self._last = leaf.keys[-1]
        self._push(0, (low, self._writer.leaf(leaf)))

    def _push(self, height: int, child: Child) -> None:
        if height == len(self._levels):
            self._levels.append(_Level())
        full = self._levels[height].push(child)
        if full:
            self._push(height + 1, (full[0][0], self._writer.inner(Inner.of(full))))

    def finish(self) -> Pointer | None:
        """Write what is left; return the root."""
        self._cut(final=True)
        height = 0
        while height < len(self._levels):
            children = self._levels[height].children
            top = height + 1 == len(self._levels)
            if top and len(children) == 1:
                return children[0][1]
            if children:
                self._push(height + 1, (children[0][0], self._writer.inner(Inner.of(children))))
            height += 1
        return None


class _Level:
    """Children that still have no parent."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self._bytes = 0

    def push(self, child: Child) -> list[Child]:
        """Add a child; return the children before it if they fill a node."""
        size = child_size(*child)
        full: list[Child] = []
        if self._bytes + size > MAX_NODE and len(self.children) > 1:
            full, self.children, self._bytes = self.children, [], 0
        self.children.append(child)
        self._bytes += size
        return full
