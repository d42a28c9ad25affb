"""Nodes of the right size, from rows or children in order, written to a file.

A node holds up to `MAX_NODE` bytes; what is more is split into nodes of even size. Changed nodes
below `MIN_NODE` are joined with a neighbour (see `tree`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from uprmc.index.model import Reducer, Reductions
from uprmc.index.tree.file import IndexFile
from uprmc.index.tree.nodes import (
    Child,
    Entries,
    Inner,
    Leaf,
    Node,
    Pointer,
    Row,
    bitmap_of,
    child_size,
    separator,
)

__all__ = ["MAX_NODE", "MIN_NODE", "Builder", "NodeWriter", "cuts", "rereduce"]

#: Sizes of nodes before compression, in bytes.
MIN_NODE, MAX_NODE = 2048, 8192


def cuts(sizes: list[int], least: int) -> Iterator[tuple[int, int]]:
    """Yield runs (from, to) of items of about even size, none above `MAX_NODE` if possible.

    Args:
        sizes: of the items, in bytes.
        least: number of items in a run, where there are that many: 2 for children, so that
            trees end.
    """
    total = sum(sizes)
    if total <= MAX_NODE:
        yield 0, len(sizes)
        return
    aim = total / -(-total // MAX_NODE)
    start = base = runs = 0
    for end, reached in enumerate(accumulate(sizes), 1):
        following = sizes[end] if end < len(sizes) else 0
        enough = end - start >= least and len(sizes) - end >= least
        full = reached - base + following > MAX_NODE
        if enough and (full or reached >= aim * (runs + 1)):
            yield start, end
            start, base, runs = end, reached, runs + 1
    yield start, len(sizes)


def rereduce(reducer: Reducer | None, parts: Sequence[Reductions]) -> Reductions:
    """Return the reductions of reductions; what cannot be made of one part cannot of the whole."""
    if not parts:
        return ()
    if reducer is None or len(parts) == 1:
        return parts[0]
    lost = [None in column for column in zip(*parts, strict=True)]
    if all(lost):
        return parts[0] if not lost else (None,) * len(lost)
    if not any(lost):
        return reducer.rereduce(parts)
    readable = [tuple([text or b"null" for text in part]) for part in parts]
    whole = reducer.rereduce(readable)
    return tuple(None if gone else text for gone, text in zip(lost, whole, strict=True))


class NodeWriter:
    """Writes nodes of one tree to a file.

    Args:
        file: that they are appended to.
        reducer: of the view; ``None`` = nothing is reduced.
        number: of the file's contents, if what is written is likely to be read soon and goes into
            the cache; ``None`` = it does not.
    """

    def __init__(self, file: IndexFile, reducer: Reducer | None, number: int | None = None) -> None:
        self.file, self.reducer, self.number = file, reducer, number

    def leaf(self, leaf: Leaf) -> Pointer:
        """Write a leaf."""
        reductions: Reductions = ()
        if self.reducer is not None:
            reductions = self.reducer.reduce(Entries(leaf))
        offset, size = self._append(leaf)
        return Pointer(offset, size, len(leaf.keys), size, bitmap_of(leaf.vbuckets), reductions)

    def inner(self, inner: Inner) -> Pointer:
        """Write an inner node."""
        pointers = inner.pointers
        vbuckets = 0
        for pointer in pointers:
            vbuckets |= pointer.vbuckets
        reductions: Reductions = ()
        if self.reducer is not None:
            reductions = rereduce(self.reducer, [pointer.reductions for pointer in pointers])
        offset, size = self._append(inner)
        rows = sum([pointer.rows for pointer in pointers])
        total = size + sum([pointer.bytes for pointer in pointers])
        return Pointer(offset, size, rows, total, vbuckets, reductions)

    def _append(self, node: Node) -> tuple[int, int]:
        return self.file.append(node, self.number)

    def leaves(self, low: bytes, leaf: Leaf) -> list[Child]:
        """Write rows as leaves of the right size; the first one begins at `low`."""
        if not leaf.keys:
            return []
        if leaf.bytes() <= MAX_NODE:
            return [(low, self.leaf(leaf))]
        children: list[Child] = []
        for start, end in cuts(leaf.sizes(), 1):
            part = leaf.part(start, end)
            if start:
                low = separator(leaf.keys[start - 1], leaf.keys[start])
            children.append((low, self.leaf(part)))
        return children

    def inners(self, inner: Inner) -> list[Child]:
        """Write children as inner nodes of the right size."""
        if not inner.lows:
            return []
        runs = [(0, len(inner.lows))]
        if inner.bytes() > MAX_NODE:
            runs = list(cuts(inner.sizes(), 2))
        above: list[Child] = []
        for start, end in runs:
            part = inner.part(start, end)
            above.append((part.lows[0], self.inner(part)))
        return above

    def root(self, children: list[Child]) -> Pointer | None:
        """Write as many levels of inner nodes as are needed; ``None`` = there is nothing."""
        while len(children) > 1:
            children = self.inners(Inner.of(children))
        return children[0][1] if children else None


# --- building -------------------------------------------------------------------------------------
# A tree from rows in order: each node is written once and is well filled.


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
