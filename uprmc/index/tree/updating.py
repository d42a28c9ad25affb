"""Change of a tree: what is new is appended, what is old stays readable.

All changes are applied from the leaves upwards in one walk. A subtree that no change touches and
that has no row of the vBuckets to drop is not read; one that has no other rows is left out unread
(row I24). Source: systems reference c.4.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from uprmc.index.tree.nodes import Child, Inner, Leaf, Node, Pointer, Row, child_size, row_size
from uprmc.index.tree.writing import MIN_NODE, NodeWriter

__all__ = ["Changes", "Updating"]


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
        new.update((row[0], (row[0], row[1], row[2])) for row in insertions)
        keys = sorted(new)
        return cls(keys, [new[key] for key in keys], drop)


class _Slot(NamedTuple):
    """A child after the change: as it was (`pointer`), or its new contents (`items`)."""

    low: bytes
    pointer: Pointer | None
    items: Sequence[Row] | Sequence[Child]
    leaf: bool


class Updating:
    """One change of one tree."""

    def __init__(self, writer: NodeWriter, number: int, changes: Changes) -> None:
        self._writer, self._number, self._changes = writer, number, changes

    def run(self, root: Pointer | None) -> Pointer | None:
        """Return the new root."""
        changes = self._changes
        if root is None:
            rows = [row for row in changes.rows if row is not None]
            return self._writer.root(self._writer.leaves(b"", rows))
        if not changes.keys and not root.vbuckets & changes.drop:
            return root
        slot = self._changed(b"", root, 0, len(changes.keys))
        return self._lowered(slot)

    def _lowered(self, slot: _Slot) -> Pointer | None:
        """Write the contents of the root; an inner node with one child gives way to that."""
        if not slot.leaf and len(slot.items) == 1:
            pointer = slot.items[0][1]
            assert isinstance(pointer, Pointer)
            node = self._read(pointer)
            while isinstance(node, Inner) and len(node.pointers) == 1:
                pointer = node.pointers[0]
                node = self._read(pointer)
            return pointer
        return self._writer.root(self._written(slot))

    def _read(self, pointer: Pointer) -> Node:
        return self._writer.file.read(pointer, self._number)

    def _changed(self, low: bytes, pointer: Pointer, begin: int, end: int) -> _Slot:
        """Return the contents of a node after changes `begin` to `end`, its children written."""
        node = self._read(pointer)
        if isinstance(node, Leaf):
            return _Slot(low, None, self._rows(node, begin, end), True)
        return _Slot(low, None, self._children(node, begin, end), False)

    def _rows(self, leaf: Leaf, begin: int, end: int) -> list[Row]:
        keys, rows, drop = self._changes
        rows_left: list[Row] = leaf.rows()
        if drop:
            rows_left = [row for row in rows_left if not drop >> row[1] & 1]
        if begin == end:
            return rows_left
        touched = set(keys[begin:end])
        rows_left = [row for row in rows_left if row[0] not in touched]
        rows_left += [row for row in rows[begin:end] if row is not None]
        rows_left.sort(key=_key)
        return rows_left

    def _children(self, inner: Inner, begin: int, end: int) -> list[Child]:
        keys = self._changes.keys
        slots = []
        for index, (low, pointer) in enumerate(zip(inner.lows, inner.pointers, strict=True)):
            stop = end
            if index + 1 < len(inner.lows):
                stop = bisect_left(keys, inner.lows[index + 1], begin, end)
            slot = self._slot(low, pointer, begin, stop)
            if slot.pointer or slot.items:
                slots.append(slot)
            begin = stop
        return self._settled(slots)

    def _slot(self, low: bytes, pointer: Pointer, begin: int, end: int) -> _Slot:
        drop = self._changes.drop
        if begin == end:
            if not pointer.vbuckets & drop:
                return _Slot(low, pointer, (), False)
            if not pointer.vbuckets & ~drop:
                return _Slot(low, None, (), False)
        return self._changed(low, pointer, begin, end)

    def _settled(self, slots: list[_Slot]) -> list[Child]:
        """Write changed children, joined with neighbours where they are small."""
        children: list[Child] = []
        run: _Slot | None = None
        before: Pointer | None = None  # the unchanged child before the run, last in `children`
        for slot in slots:
            if slot.pointer is None or (run is not None and _small(run)):
                run = self._joined(run, slot) if run is not None else slot
                continue
            if run is not None:
                children += self._written(run)
                run = None
            children.append((slot.low, slot.pointer))
            before = slot.pointer
        if run is not None:
            if before is not None and _small(run) and children[-1][1] is before:
                low, pointer = children.pop()
                run = self._joined(self._opened(_Slot(low, pointer, (), False)), run)
            children += self._written(run)
        return children

    def _opened(self, slot: _Slot) -> _Slot:
        """Return a child with its contents."""
        if slot.pointer is None:
            return slot
        node = self._read(slot.pointer)
        if isinstance(node, Leaf):
            return _Slot(slot.low, None, node.rows(), True)
        children = list(zip(node.lows, node.pointers, strict=True))
        return _Slot(slot.low, None, children, False)

    def _joined(self, left: _Slot, right: _Slot) -> _Slot:
        right = self._opened(right)
        return _Slot(left.low, None, [*left.items, *right.items], left.leaf)

    def _written(self, slot: _Slot) -> list[Child]:
        if slot.leaf:
            return self._writer.leaves(slot.low, slot.items)  # type: ignore[arg-type]
        return self._writer.inners(slot.low, slot.items)  # type: ignore[arg-type]


def _key(row: Row) -> bytes:
    return row[0]


def _small(slot: _Slot) -> bool:
    total = 0
    for item in slot.items:
        total += row_size(item) if slot.leaf else child_size(item)  # type: ignore[arg-type]
        if total >= MIN_NODE:
            return False
    return True


def child_at(lows: list[bytes], key: bytes) -> int:
    """Return which child of an inner node has a key."""
    return max(bisect_right(lows, key) - 1, 0)
