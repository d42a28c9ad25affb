"""An immutable tree in an index file, and how it is read.

Bounds: `start` is where reading begins and `end` where it ends, so with `descending` start is the
larger. Both are keys of the tree, or any bytes between; ``None`` = as far as there are rows. Start
is in the range, end with `inclusive_end`. `wanted` is a bitmap of vBuckets: rows of others are not
there for the reader; subtrees without wanted rows are not read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from uprmc.index.collation import after_prefix
from uprmc.index.model import Entry, Reducer, Reductions
from uprmc.index.tree.file import MIN_NODE, IndexFile, NodeWriter, rereduce
from uprmc.index.tree.nodes import Child, Entries, Inner, Leaf, Node, Pointer, Row

__all__ = ["Tree", "TreeChanges", "Updating", "child_at", "groups"]

# --- groups ---------------------------------------------------------------------------------------
# Tree of rows and their reductions.
#
# Tree that end within a leaf are reduced from its rows. The last one of a leaf may go on: it is
# reduced from the tree, with the reductions of whole subtrees, and reading goes on behind it. So a
# group of a million rows costs two walks, and a million groups of one row cost one.


def groups(
    tree: Tree,
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


def _reductions(tree: Tree, run: Sequence[Entry], descending: bool) -> Reductions:
    if tree.reducer is None:
        return ()
    return tree.reducer.reduce(run[::-1] if descending else run)


def _lesser(bound: bytes | None, other: bytes | None) -> bytes | None:
    if bound is None or other is None:
        return other if bound is None else bound
    return min(bound, other)


# --- updating -------------------------------------------------------------------------------------
# Change of a tree: what is new is appended, what is old stays readable.
#
# All changes are applied from the leaves upwards in one walk. A subtree that no change touches and
# that has no row of the vBuckets to drop is not read; one that has no other rows is left out unread
# (row I24).


#: Up to this many changes of a leaf are made one by one; more are sorted in.
_FEW = 8


def child_at(lows: list[bytes], key: bytes) -> int:
    """Return which child of an inner node has a key."""
    return max(bisect_right(lows, key) - 1, 0)


class TreeChanges(NamedTuple):
    """What is to be done to a tree."""

    keys: list[bytes]  # that are removed or inserted, rising, each once
    rows: list[Row | None]  # for each key its new row; ``None`` = it is removed
    drop: int  # bitmap of the vBuckets whose old rows are removed as well

    @classmethod
    def of(cls, removals: Sequence[bytes], insertions: Sequence[Row], drop: int) -> TreeChanges:
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

    def __init__(self, writer: NodeWriter, number: int, changes: TreeChanges) -> None:
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


# --- tree -----------------------------------------------------------------------------------------


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
        changes = TreeChanges.of(removals, insertions, drop_vbuckets)
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
