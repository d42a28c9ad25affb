"""Nodes of trees: rows in leaves, children in inner nodes.

A child has all keys from its lower bound to the next child's; the first child's is that of the
node itself, so lower bounds are not always keys that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import add
from typing import NamedTuple, overload

from uprmc.index.model import Entry, Reductions
from uprmc.index.rows import Row

__all__ = [
    "Child",
    "Entries",
    "Inner",
    "Leaf",
    "Node",
    "Pointer",
    "Row",
    "bitmap_of",
    "child_size",
    "separator",
]

#: What a row and a child cost beside their keys, values and reductions, in bytes.
_ROW_OVERHEAD, _CHILD_OVERHEAD = 10, 38
#: What the cache counts for an object in a node, in bytes.
_OBJECT = 50


class Pointer(NamedTuple):
    """Where a node is and what is below it.

    Attributes:
        offset, size: of its record in the file.
        rows: how many.
        bytes: of its record and all below.
        vbuckets: bitmap of the vBuckets that have a row.
        reductions: of all these rows.
    """

    offset: int
    size: int
    rows: int
    bytes: int
    vbuckets: int
    reductions: Reductions


Child = tuple[bytes, Pointer]


class Leaf:
    """Rows in the order of their keys, as columns."""

    __slots__ = ("keys", "values", "vbuckets")

    def __init__(
        self, keys: Sequence[bytes], vbuckets: Sequence[int], values: Sequence[bytes]
    ) -> None:
        self.keys, self.vbuckets, self.values = keys, vbuckets, values

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Leaf:
        """Return a leaf with rows."""
        return cls(*zip(*rows, strict=True)) if rows else cls((), (), ())

    def rows(self) -> list[Row]:
        """Return what is in it."""
        return list(zip(self.keys, self.vbuckets, self.values, strict=True))

    def sizes(self) -> list[int]:
        """Return what each row adds to the body, in bytes."""
        lengths = map(add, map(len, self.keys), map(len, self.values))
        return [length + _ROW_OVERHEAD for length in lengths]

    def bytes(self) -> int:
        """Return the size of all rows."""
        lengths = sum(map(len, self.keys)) + sum(map(len, self.values))
        return lengths + len(self.keys) * _ROW_OVERHEAD

    def cost(self) -> int:
        """Return what it takes in memory, in bytes."""
        return self.bytes() + 2 * _OBJECT * len(self.keys)

    def is_empty(self) -> bool:
        """Return whether there is no row."""
        return not self.keys

    def below(self, limit: int) -> bool:
        """Return whether all rows together are smaller than `limit` bytes."""
        return self.bytes() < limit

    def part(self, start: int, end: int) -> Leaf:
        """Return some of the rows as a leaf."""
        return Leaf(self.keys[start:end], self.vbuckets[start:end], self.values[start:end])

    def joined(self, other: Node) -> Leaf:
        """Return the rows of both."""
        assert isinstance(other, Leaf)
        return Leaf(
            [*self.keys, *other.keys],
            [*self.vbuckets, *other.vbuckets],
            [*self.values, *other.values],
        )


class Inner:
    """Children in the order of their lower bounds."""

    __slots__ = ("lows", "pointers")

    def __init__(self, lows: list[bytes], pointers: list[Pointer]) -> None:
        self.lows, self.pointers = lows, pointers

    @classmethod
    def of(cls, children: Sequence[Child]) -> Inner:
        """Return an inner node with children."""
        return cls([low for low, _ in children], [pointer for _, pointer in children])

    def children(self, start: int, end: int) -> list[Child]:
        """Return some of the children."""
        return list(zip(self.lows[start:end], self.pointers[start:end], strict=True))

    def sizes(self) -> list[int]:
        """Return what each child adds to the body, in bytes."""
        return list(map(child_size, self.lows, self.pointers))

    def is_empty(self) -> bool:
        """Return whether there is no child."""
        return not self.lows

    def below(self, limit: int) -> bool:
        """Return whether all children together are smaller than `limit` bytes."""
        return self.bytes() < limit

    def bytes(self) -> int:
        """Return the size of all children."""
        bitmaps = sum([pointer.vbuckets.bit_length() >> 3 for pointer in self.pointers])
        total = len(self.lows) * _CHILD_OVERHEAD + sum(map(len, self.lows)) + bitmaps
        width = len(self.pointers[0].reductions) if self.pointers else 0
        for index in range(width):
            texts = [pointer.reductions[index] or b"" for pointer in self.pointers]
            total += 4 * len(texts) + sum(map(len, texts))
        return total

    def cost(self) -> int:
        """Return about what it takes in memory, in bytes."""
        each = child_size(self.lows[0], self.pointers[0]) + 8 * _OBJECT
        return each * len(self.lows)

    def part(self, start: int, end: int) -> Inner:
        """Return some of the children as an inner node."""
        return Inner(self.lows[start:end], self.pointers[start:end])

    def joined(self, other: Node) -> Inner:
        """Return the children of both."""
        assert isinstance(other, Inner)
        return Inner([*self.lows, *other.lows], [*self.pointers, *other.pointers])


Node = Leaf | Inner


def child_size(low: bytes, pointer: Pointer) -> int:
    """Return what a child adds to the body of an inner node, in bytes."""
    size = len(low) + _CHILD_OVERHEAD + (pointer.vbuckets.bit_length() >> 3)
    for text in pointer.reductions:
        size += 4 + (len(text) if text else 0)
    return size


_entry: Callable[[Row], Entry] = partial(tuple.__new__, Entry)  # the fastest that there is


class Entries(Sequence[Entry]):
    """Rows of a leaf for a reduce: entries are made when they are looked at, if ever."""

    __slots__ = ("_leaf",)

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf

    def __len__(self) -> int:
        return len(self._leaf.keys)

    def __iter__(self) -> Iterator[Entry]:
        leaf = self._leaf
        return map(_entry, zip(leaf.keys, leaf.vbuckets, leaf.values, strict=True))

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        return list(self)[index]


def bitmap_of(vbuckets: Iterable[int]) -> int:
    """Return the bitmap that has these vBuckets."""
    bitmap = 0
    for vbucket in set(vbuckets):
        bitmap |= 1 << vbucket
    return bitmap


def separator(below: bytes, above: bytes) -> bytes:
    """Return the shortest lower bound for what begins with `above` and comes after `below`."""
    for size, (left, right) in enumerate(zip(below, above, strict=False)):
        if left != right:
            return above[: size + 1]
    return above[: len(below) + 1]
