"""Change of a tree: what is new is appended, what is old stays readable.

All changes are applied from the leaves upwards in one walk. A subtree that no change touches and
that has no row of the vBuckets to drop is not read; one that has no other rows is left out unread
(row I24). Source: systems reference c.4.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from uprmc.index.tree.nodes import Child, Inner, Leaf, Node, Pointer, Row
from uprmc.index.tree.writing import MIN_NODE, NodeWriter

__all__ = ["Changes", "Updating", "child_at"]

#: Up to this many changes of a leaf are made one by one; more are sorted in.
_FEW = 8


def child_at(lows: list[bytes], key: bytes) -> int:
    """Return which child of an inner node has a key."""
    return max(bisect_right(lows, key) - 1, 0)


class Changes(NamedTuple):
    """What is to be done to a tree.

    Attributes:
        keys: that are removed or inserted, rising, each once.
        rows: for each key its new row; ``None`` = it is removed.
        drop: bitmap of the vBuckets whose old rows are removed as well.
    """

    keys: list[bytes]
    rows: list[Row | None]
    drop: int

    @classmethod
    def of(cls, removals: Sequence[bytes], insertions: Sequence[Row], drop: int) -> Changes:
        """Merge removals and insertions; a key that is in both is inserted."""
        new: dict[bytes, Row | None] = dict.fromkeys(removals)
        new.update([(row[0], row) for row in insertions])
        keys = sorted(new)
        return cls(keys, [new[key] for key in keys], drop)


class _Content(NamedTuple):
    """What a changed node has now, and its lower bound; its children are written, itself not."""

    low: bytes
    node: Node

    def is_small(self) -> bool:
        return self.node.below(MIN_NODE)


class Updating:
    """One change of one tree."""

    def __init__(self, writer: NodeWriter, number: int, changes: Changes) -> None:
        self._writer, self._number, self._changes = writer, number, changes

    def run(self, root: Pointer | None) -> Pointer | None:
        """Return the new root."""
        changes = self._changes
        if root is None:
            rows = Leaf.of([row for row in changes.rows if row is not None])
            return self._writer.root(self._writer.leaves(b"", rows))
        if not changes.keys and not root.vbuckets & changes.drop:
            return root
        content = self._changed(b"", root, 0, len(changes.keys))
        if content is None:
            return root
        if isinstance(content.node, Inner) and len(content.node.pointers) == 1:
            return self._lowered(content.node.pointers[0])
        return self._writer.root(self._written(content))

    def _lowered(self, pointer: Pointer) -> Pointer:
        """Return the highest node with more than one child, or the only leaf."""
        node = self._read(pointer)
        while isinstance(node, Inner) and len(node.pointers) == 1:
            pointer = node.pointers[0]
            node = self._read(pointer)
        return pointer

    def _read(self, pointer: Pointer) -> Node:
        return self._writer.file.read(pointer, self._number)

    def _changed(self, low: bytes, pointer: Pointer, begin: int, end: int) -> _Content | None:
        """Return the contents of a node after changes `begin` to `end`; ``None`` = as before."""
        node = self._read(pointer)
        if isinstance(node, Leaf):
            leaf = self._rows(node, begin, end)
            return None if leaf is None else _Content(low, leaf)
        children = self._children(node, begin, end)
        return None if children is None else _Content(low, Inner.of(children))

    # Leaves

    def _rows(self, leaf: Leaf, begin: int, end: int) -> Leaf | None:
        if not self._changes.drop and end - begin <= _FEW:
            return self._with_few(leaf, begin, end)
        keys, rows, drop = self._changes
        touched = set(keys[begin:end])
        kept = [row for row in leaf.rows() if row[0] not in touched and not drop >> row[1] & 1]
        kept += [row for row in rows[begin:end] if row is not None]
        kept.sort(key=_key)
        return None if kept == leaf.rows() else Leaf.of(kept)

    def _with_few(self, leaf: Leaf, begin: int, end: int) -> Leaf | None:
        changed = False
        keys, vbuckets, values = list(leaf.keys), list(leaf.vbuckets), list(leaf.values)
        for key, row in zip(
            self._changes.keys[begin:end], self._changes.rows[begin:end], strict=True
        ):
            index = bisect_left(keys, key)
            there = index < len(keys) and keys[index] == key
            if there and row == (key, vbuckets[index], values[index]):
                continue
            changed = changed or there or row is not None
            if there:
                del keys[index], vbuckets[index], values[index]
            if row is not None:
                keys.insert(index, key)
                vbuckets.insert(index, row[1])
                values.insert(index, row[2])
        return Leaf(keys, vbuckets, values) if changed else None

    # Inner nodes

    def _children(self, inner: Inner, begin: int, end: int) -> list[Child] | None:
        """Return the children after changes `begin` to `end`, small ones joined with others.

        ``None`` = no child has changed.
        """
        changed = False
        settled: list[Child] = []
        run: _Content | None = None  # changed children side by side, as one node
        unchanged = 0
        for index, first, stop in self._touched(inner, begin, end):
            if run is not None and unchanged < index:
                run, unchanged = self._grown(run, inner, unchanged, index)
                if unchanged < index:
                    settled += self._written(run)
                    run = None
            settled += inner.children(unchanged, index)
            unchanged = index
            if index < len(inner.lows):
                content = self._content(inner, index, first, stop)
                if content is not None:
                    run = content if run is None else _joined(run, content)
                    changed, unchanged = True, index + 1
        if not changed:
            return None
        if run is not None:
            if run.is_small() and settled:
                low, pointer = settled.pop()
                run = _joined(_Content(low, self._read(pointer)), run)
            settled += self._written(run)
        return settled

    def _touched(self, inner: Inner, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (child, from which change, to which) for those that change, then the end."""
        keys, drop, lows = self._changes.keys, self._changes.drop, inner.lows
        index = 0
        while index < len(lows) and (drop or begin < end):
            if not drop:
                index = max(index, child_at(lows, keys[begin]))
            stop = bisect_left(keys, lows[index + 1], begin, end) if index + 1 < len(lows) else end
            if begin < stop or inner.pointers[index].vbuckets & drop:
                yield index, begin, stop
            begin = stop
            index += 1
        yield len(lows), end, end

    def _content(self, inner: Inner, index: int, begin: int, end: int) -> _Content | None:
        low, pointer = inner.lows[index], inner.pointers[index]
        if begin == end and not pointer.vbuckets & ~self._changes.drop:
            return _Content(low, Leaf([], [], []))
        return self._changed(low, pointer, begin, end)

    def _grown(self, run: _Content, inner: Inner, start: int, end: int) -> tuple[_Content, int]:
        """Join a small run with the unchanged children after it, until it is no longer small."""
        while start < end and run.is_small():
            node = self._read(inner.pointers[start])
            run = _joined(run, _Content(inner.lows[start], node))
            start += 1
        return run, start

    def _written(self, content: _Content) -> list[Child]:
        if isinstance(content.node, Leaf):
            return self._writer.leaves(content.low, content.node)
        return self._writer.inners(content.node)


def _joined(left: _Content, right: _Content) -> _Content:
    """Return both as one node; one without anything may be of any kind."""
    if left.node.is_empty():
        return _Content(left.low, right.node)
    if right.node.is_empty():
        return left
    return _Content(left.low, left.node.joined(right.node))


def _key(row: Row) -> bytes:
    return row[0]
