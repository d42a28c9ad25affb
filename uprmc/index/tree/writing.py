"""Nodes of the right size, from rows or children in order, written to a file.

A node holds up to `MAX_NODE` bytes; what is more is split into nodes of even size. Changed nodes
below `MIN_NODE` are joined with a neighbour (see `updating`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

from uprmc.index.model import Entry, Reducer, Reductions
from uprmc.index.tree.file import IndexFile
from uprmc.index.tree.nodes import (
    Child,
    Inner,
    Leaf,
    Node,
    Pointer,
    Row,
    bitmap_of,
    child_size,
    row_size,
    separator,
)

__all__ = ["MAX_NODE", "MIN_NODE", "NodeWriter", "rereduce", "split"]

#: Sizes of nodes before compression, in bytes.
MIN_NODE, MAX_NODE = 2048, 8192

T = TypeVar("T")


def split(items: Sequence[T], size: Callable[[T], int], least: int = 1) -> list[Sequence[T]]:
    """Cut items into runs of about even size, none above `MAX_NODE` if it can be helped.

    Args:
        items: in order.
        size: of an item, in bytes.
        least: number of items in a run, where there are that many: 2 for children, so that
            trees end.
    """
    totals = list(accumulate(map(size, items)))
    if not totals or totals[-1] <= MAX_NODE:
        return [items] if items else []
    aim = totals[-1] / -(-totals[-1] // MAX_NODE)
    runs = []
    start, base = 0, 0
    for end, total in enumerate(totals, 1):
        following = totals[end] - base if end < len(totals) else 0
        enough = end - start >= least and len(items) - end >= least
        if enough and (total - base >= aim or following > MAX_NODE):
            runs.append(items[start:end])
            start, base = end, total
    runs.append(items[start:])
    return runs


def rereduce(reducer: Reducer | None, parts: Sequence[Reductions]) -> Reductions:
    """Return the reductions of reductions; what cannot be made of one part cannot of the whole."""
    if not parts:
        return ()
    if reducer is None or len(parts) == 1:
        return parts[0]
    lost = [None in column for column in zip(*parts, strict=True)]
    if all(lost):
        return parts[0] if not lost else (None,) * len(lost)
    if any(lost):
        parts = [tuple([text or b"null" for text in part]) for part in parts]
    whole = reducer.rereduce(parts)
    return tuple(None if gone else text for gone, text in zip(lost, whole, strict=True))


class NodeWriter:
    """Writes nodes of one tree to a file."""

    def __init__(self, file: IndexFile, reducer: Reducer | None) -> None:
        self.file, self.reducer = file, reducer

    def leaf(self, rows: Sequence[Row]) -> Pointer:
        """Write a leaf."""
        keys, vbuckets, values = map(list, zip(*rows, strict=True))
        reductions: Reductions = ()
        if self.reducer is not None:
            reductions = self.reducer.reduce(list(map(Entry._make, rows)))
        offset, size = self.file.append(Leaf(keys, vbuckets, values, 0))
        return Pointer(offset, size, len(rows), size, bitmap_of(vbuckets), reductions)

    def inner(self, children: Sequence[Child]) -> Pointer:
        """Write an inner node."""
        pointers = [pointer for _, pointer in children]
        vbuckets = 0
        for pointer in pointers:
            vbuckets |= pointer.vbuckets
        reductions = rereduce(self.reducer, [pointer.reductions for pointer in pointers])
        node: Node = Inner([low for low, _ in children], pointers, 0)
        offset, size = self.file.append(node)
        rows = sum([pointer.rows for pointer in pointers])
        total = size + sum([pointer.bytes for pointer in pointers])
        return Pointer(offset, size, rows, total, vbuckets, reductions)

    def leaves(self, low: bytes, rows: Sequence[Row]) -> list[Child]:
        """Write rows as leaves of the right size; the first one begins at `low`."""
        children: list[Child] = []
        last = None
        for run in split(rows, row_size):
            bound = low if last is None else separator(last, run[0][0])
            children.append((bound, self.leaf(run)))
            last = run[-1][0]
        return children

    def inners(self, low: bytes, children: Sequence[Child]) -> list[Child]:
        """Write children as inner nodes of the right size; the first one begins at `low`."""
        above: list[Child] = []
        for run in split(children, child_size, 2):
            bound = low if not above else run[0][0]
            above.append((bound, self.inner([(bound, run[0][1]), *run[1:]])))
        return above

    def root(self, children: Sequence[Child]) -> Pointer | None:
        """Write as many levels of inner nodes as are needed; ``None`` = there is nothing."""
        while len(children) > 1:
            children = self.inners(b"", children)
        return children[0][1] if children else None
