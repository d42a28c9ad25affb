"""An immutable tree in an index file, and how it is read.

Bounds: `start` is where reading begins and `end` where it ends, so with `descending` start is the
larger. Both are keys of the tree, or any bytes between; ``None`` = as far as there are rows. Start
is in the range, end with `inclusive_end`. `wanted` is a bitmap of vBuckets: rows of others are not
there for the reader; subtrees without wanted rows are not read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from uprmc.index.model import Entry, Reducer, Reductions
from uprmc.index.tree.file import IndexFile
from uprmc.index.tree.groups import groups
from uprmc.index.tree.nodes import Entries, Inner, Leaf, Node, Pointer, Row
from uprmc.index.tree.updating import Changes, Updating, child_at
from uprmc.index.tree.writing import NodeWriter, rereduce

__all__ = ["Tree"]

Group = Callable[[bytes], bytes]


class _Range(NamedTuple):
    """Keys from `low` up to `high`, which is not one of them; ``None`` = no bound."""

    low: bytes
    high: bytes | None

    @classmethod
    def of(
        cls, start: bytes | None, end: bytes | None, descending: bool, inclusive_end: bool
    ) -> _Range:
        if descending:
            low = end or b""
            low = low if inclusive_end or end is None else low + b"\0"
            return cls(low, None if start is None else start + b"\0")
        return cls(start or b"", end + b"\0" if end is not None and inclusive_end else end)

    def covers(self, low: bytes, high: bytes | None) -> bool:
        """Return whether all keys from `low` to before `high` are in it."""
        if low < self.low:
            return False
        return self.high is None or (high is not None and high <= self.high)

    def of_keys(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """Return which of some rising keys are in it: from, to."""
        begin = bisect_left(keys, self.low)
        return begin, len(keys) if self.high is None else bisect_left(keys, self.high, begin)

    def of_children(self, lows: list[bytes]) -> range:
        """Return which children may have keys in it."""
        last = len(lows) if self.high is None else bisect_left(lows, self.high)
        return range(child_at(lows, self.low), max(last, 1))


class _Left:
    """How many rows are still to be left out."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def take(self, rows: int) -> int:
        """Return how many of the next `rows` are left out."""
        taken = min(self.rows, rows)
        self.rows -= taken
        return taken


class _Reading(NamedTuple):
    """One reading of rows."""

    tree: Tree
    span: _Range
    wanted: int | None
    descending: bool
    left: _Left

    def leaves(
        self, pointer: Pointer, low: bytes, high: bytes | None
    ) -> Iterator[tuple[Leaf, bool]]:
        """Yield leaves below `pointer`, whose keys lie from `low` to before `high`."""
        wanted, left = self.wanted, self.left
        if wanted is not None and not pointer.vbuckets & wanted:
            return
        whole = wanted is None or not pointer.vbuckets & ~wanted
        if whole and pointer.rows <= left.rows and self.span.covers(low, high):
            left.rows -= pointer.rows
            return
        node = self.tree.node(pointer)
        if isinstance(node, Leaf):
            yield node, whole
            return
        children = self.span.of_children(node.lows)
        for index in reversed(children) if self.descending else children:
            bound = node.lows[index + 1] if index + 1 < len(node.lows) else high
            yield from self.leaves(node.pointers[index], node.lows[index], bound)


class Tree:
    """A tree as it was at one moment; any thread may read it.

    Args:
        file: where it is.
        root: of it; ``None`` = it is empty.
        reducer: of the view; ``None`` = nothing is reduced.
        cached: whether nodes that it reads are kept in the cache.
    """

    def __init__(
        self,
        file: IndexFile,
        root: Pointer | None,
        reducer: Reducer | None = None,
        *,
        cached: bool = True,
    ) -> None:
        self.file, self.root, self.reducer = file, root, reducer
        self._number, self._cached = file.number, cached

    @property
    def count(self) -> int:
        """How many rows it has."""
        return self.root.rows if self.root else 0

    @property
    def vbuckets(self) -> int:
        """Bitmap of the vBuckets that have a row."""
        return self.root.vbuckets if self.root else 0

    def update(
        self,
        removals: Sequence[bytes] = (),
        insertions: Sequence[Entry] = (),
        *,
        drop_vbuckets: int = 0,
    ) -> Tree:
        """Return the tree after a change, for the file's one writer; this one stays as it is.

        Args:
            removals: keys; those that are not there do not matter.
            insertions: rows; they replace those with the same key, and removals.
            drop_vbuckets: bitmap: all old rows of these are removed, insertions are not.
        """
        changes = Changes.of(removals, insertions, drop_vbuckets)
        writer = NodeWriter(self.file, self.reducer, self._number)
        root = Updating(writer, self._number, changes).run(self.root)
        return Tree(self.file, root, self.reducer)

    def node(self, pointer: Pointer) -> Node:
        """Return a node of it."""
        return self.file.read(pointer, self._number, cached=self._cached)

    # Rows

    def get(self, key: bytes) -> Entry | None:
        """Return the row with a key."""
        if self.root is None:
            return None
        node = self.node(self.root)
        while isinstance(node, Inner):
            node = self.node(node.pointers[child_at(node.lows, key)])
        index = bisect_left(node.keys, key)
        if index == len(node.keys) or node.keys[index] != key:
            return None
        return Entry(key, node.vbuckets[index], node.values[index])

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Entry]:
        """Return the rows that are there of these keys; rising keys are found fastest."""
        found: dict[bytes, Entry] = {}
        if self.root is not None and keys:
            rising = sorted(set(keys))
            self._gather(self.root, rising, 0, len(rising), found)
        return found

    def _gather(
        self, pointer: Pointer, keys: list[bytes], begin: int, end: int, found: dict[bytes, Entry]
    ) -> None:
        node = self.node(pointer)
        if isinstance(node, Leaf):
            for key in keys[begin:end]:
                index = bisect_left(node.keys, key)
                if index < len(node.keys) and node.keys[index] == key:
                    found[key] = Entry(key, node.vbuckets[index], node.values[index])
            return
        while begin < end:
            child = child_at(node.lows, keys[begin])
            stop = end
            if child + 1 < len(node.lows):
                stop = bisect_left(keys, node.lows[child + 1], begin, end)
            self._gather(node.pointers[child], keys, begin, stop, found)
            begin = stop

    def rows(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        descending: bool = False,
        wanted: int | None = None,
        inclusive_end: bool = True,
        skip: int = 0,
    ) -> Iterator[Entry]:
        """Yield rows in order, read as they are asked for.

        The first `skip` ones are left out; subtrees that have no others are not read.
        """
        span = _Range.of(start, end, descending, inclusive_end)
        left = _Left(skip)
        for leaf, whole in self._leaves(span, wanted, descending, left):
            rows = _chosen(leaf, *span.of_keys(leaf.keys), None if whole else wanted)
            if descending:
                rows = list(rows)[::-1]
            yield from rows[left.take(len(rows)) :] if left.rows else rows

    def batches(self) -> Iterator[list[Row]]:
        """Yield all rows as lists of one leaf each."""
        for leaf, _ in self._leaves(_Range(b"", None), None, False, _Left(0)):
            yield leaf.rows()

    def _leaves(
        self, span: _Range, wanted: int | None, descending: bool, left: _Left
    ) -> Iterator[tuple[Leaf, bool]]:
        """Yield leaves that may have rows, and whether all their rows are wanted."""
        if self.root is not None:
            reading = _Reading(self, span, wanted, descending, left)
            yield from reading.leaves(self.root, b"", None)

    def first_rows(
        self, low: bytes, high: bytes | None, wanted: int | None, descending: bool
    ) -> Sequence[Entry]:
        """Return the wanted rows of the first leaf that has any, in the direction of reading."""
        span = _Range(low, high)
        for leaf, whole in self._leaves(span, wanted, descending, _Left(0)):
            rows = _chosen(leaf, *span.of_keys(leaf.keys), None if whole else wanted)
            if rows:
                return list(rows)[::-1] if descending else list(rows)
        return []

    def rank(self, key: bytes) -> int:
        """Return how many rows lie before a key."""
        below, pointer = 0, self.root
        while pointer is not None:
            node = self.node(pointer)
            if isinstance(node, Leaf):
                return below + bisect_left(node.keys, key)
            child = child_at(node.lows, key)
            below += sum(before.rows for before in node.pointers[:child])
            pointer = node.pointers[child]
        return below

    # Reductions

    def reduce(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        wanted: int | None = None,
        *,
        inclusive_end: bool = True,
    ) -> Reductions:
        """Return the reductions of a range (row I13); ``()`` = no row, or no reduce."""
        return self.reduced(*_Range.of(start, end, False, inclusive_end), wanted)

    def reduced(self, low: bytes, high: bytes | None, wanted: int | None) -> Reductions:
        """Return the reductions of the rows from `low` to before `high`."""
        if self.root is None or self.reducer is None:
            return ()
        parts: list[Reductions] = []
        self._collect(self.root, b"", None, _Range(low, high), wanted, parts)
        return rereduce(self.reducer, parts)

    def _collect(
        self,
        pointer: Pointer,
        low: bytes,
        high: bytes | None,
        span: _Range,
        wanted: int | None,
        parts: list[Reductions],
    ) -> None:
        """Gather reductions below `pointer`, whose keys lie from `low` to before `high`."""
        if wanted is not None and not pointer.vbuckets & wanted:
            return
        if span.covers(low, high) and (wanted is None or not pointer.vbuckets & ~wanted):
            parts.append(pointer.reductions)
            return
        node = self.node(pointer)
        if isinstance(node, Leaf):
            rows = _chosen(node, *span.of_keys(node.keys), wanted)
            if rows:
                assert self.reducer is not None
                parts.append(self.reducer.reduce(rows))
            return
        for index in span.of_children(node.lows):
            bound = node.lows[index + 1] if index + 1 < len(node.lows) else high
            self._collect(node.pointers[index], node.lows[index], bound, span, wanted, parts)

    def groups(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        wanted: int | None = None,
        group: Group = lambda key: key,
        descending: bool = False,
        *,
        inclusive_end: bool = True,
    ) -> Iterator[tuple[Entry, Reductions]]:
        """Yield each group's first row (in the direction of reading) and its reductions.

        Args:
            start, end, wanted, descending, inclusive_end: as for `rows`.
            group: a prefix of a key that the keys of the same group, and no others, begin with:
                see `collation.group_prefix`.
        """
        span = _Range.of(start, end, descending, inclusive_end)
        return groups(self, span.low, span.high, wanted, group, descending)


def _chosen(leaf: Leaf, begin: int, end: int, wanted: int | None) -> Sequence[Entry]:
    rows = Entries(leaf.part(begin, end))
    return rows if wanted is None else [row for row in rows if wanted >> row[1] & 1]
