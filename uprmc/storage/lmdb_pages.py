"""Whether the pages of an LMDB file can be what LMDB wrote, looked at without LMDB.

LMDB trusts its pages: where one is damaged it may read beyond the map or take another page for the
one that it looks for, which ends the process or gives wrong answers. So the file is walked through
before it is opened: two heads that follow each other, and of each tree every branch and leaf in its
place, with nodes that fill it, keys that rise, and the counts that its head says. No page may be in
use twice, or both in use and free. What values say is not looked at; they have checksums.
"""

from __future__ import annotations

import mmap
import os
from operator import lt
from pathlib import Path
from struct import Struct, unpack_from
from typing import NamedTuple

from uprmc.errors import StoreCorrupt
from uprmc.regular import open_regular
from uprmc.storage import layout

_PAGE_HEAD_BYTES = 16
#: Number, flags, where the array of nodes ends, where the nodes begin.
_PAGE = Struct("=Q2xHHH")
_OVERFLOW_PAGES = Struct("=12xI")
#: Magic, version; page size, flags of the tree of free pages; that tree's and the main tree's heads
#: are read by `_TREE`; then the last page and the transaction.
_META = Struct("=II16x")
_META_END = Struct("=QQ")
#: Flags, depth, branch pages, leaf pages, overflow pages, entries, root; the first 4 bytes are the
#: page size in the tree of free pages, and nothing in others.
_TREE = Struct("=IHHQQQQQ")
_NODE = Struct("=HHHH")
_NODE_BYTES = _NODE.size
_NUMBER = Struct("=Q")

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG, _SUBTREE = 1, 2
_INTEGER_KEYS = 8
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32
_HEADS = 2
_PAGE_SIZES = frozenset(2**bits for bits in range(9, 17))

#: How often a file that is written to meanwhile is looked at again.
_TRIES = 3

_OURS = frozenset({layout.BY_ID, layout.BY_SEQ, layout.META, layout.LOCAL})


class _Tree(NamedTuple):
    """The head of a tree, as LMDB stores it."""

    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflow: int
    entries: int
    root: int


class _Head(NamedTuple):
    free: _Tree
    main: _Tree
    last_page: int
    transaction: int


def check_pages(file: Path) -> bool:
    """Walk through a file; an empty one and another program's pass.

    Returns:
        whether there is anything in it.

    Raises:
        StoreCorrupt: it cannot be what LMDB wrote.
        OSError: it cannot be read.
    """
    for tries in range(_TRIES, 0, -1):
        with os.fdopen(open_regular(file), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if not size:
                return False
            with mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as pages:
                before = _newest(pages)
                try:
                    _Walk(pages, before).all()
                except StoreCorrupt:
                    if tries == 1 or _newest(pages) == before:
                        raise
                else:
                    return bool(before[1].main.entries)
    return True


def _newest(pages: mmap.mmap) -> tuple[int, _Head]:
    """Return the size of a page and the newer head."""
    size = 4_096
    if len(pages) >= _PAGE_HEAD_BYTES + _META.size + _TREE.size:
        (size,) = unpack_from("=I", pages, _PAGE_HEAD_BYTES + _META.size)
    heads = [_head(pages, size, place) for place in range(_HEADS)]
    first, second = (head.transaction for head in heads)
    follow = abs(first - second) == 1 and not first % 2 and second % 2
    if not (follow or first == second == 0):
        raise StoreCorrupt("its two heads do not follow each other")
    return size, heads[second > first]


def _head(pages: mmap.mmap, size: int, place: int) -> _Head:
    at = place * size + _PAGE_HEAD_BYTES
    trees_at = at + _META.size
    end = trees_at + 2 * _TREE.size
    if size not in _PAGE_SIZES or len(pages) < end + _META_END.size:
        raise StoreCorrupt("it does not begin with two heads of LMDB")
    magic, version = _META.unpack_from(pages, at)
    if (magic, version) != (_MAGIC, _VERSION):
        raise StoreCorrupt("it does not begin with two heads of LMDB")
    free, main = (
        _Tree._make(_TREE.unpack_from(pages, trees_at + which * _TREE.size)) for which in (0, 1)
    )
    return _Head(free, main, *_META_END.unpack_from(pages, end))


class _Walk:
    """One way through all pages that are in use."""

    def __init__(self, pages: mmap.mmap, newest: tuple[int, _Head]) -> None:
        self._pages = pages
        self._size, self._head = newest
        self._count = self._head.last_page + 1
        if not _HEADS <= self._count <= (1 << 47) // self._size:
            raise StoreCorrupt(f"it says that it has {self._count} pages")
        # Pages beyond the end of the file came to nothing; one in use is found to be missing.
        self._used = bytearray(min(self._count, len(pages) // self._size + 1))
        self._used[:_HEADS] = b"\1" * _HEADS
        self._counts = [0, 0, 0, 0]

    def all(self) -> None:
        """Walk through everything."""
        free, main = self._head.free, self._head.main
        subtrees: list[tuple[bytes, bytes]] = []
        if main.flags or free.pad != self._size or free.flags != _INTEGER_KEYS:
            raise StoreCorrupt("its head has flags that are not of LMDB")
        self._tree("the main tree", main, subtrees)
        if main.entries and not {name for name, _ in subtrees} >= _OURS:
            return  # another program's
        for name, data in subtrees:
            tree = _Tree._make(_TREE.unpack(data))
            if tree.flags:
                raise StoreCorrupt(f"the tree {name!r} has flags")
            self._tree(repr(name), tree, None)
        lists: list[tuple[bytes, bytes]] = []
        self._tree("the tree of free pages", free, lists, numbers=True)
        for _, data in lists:
            self._take_free(data)

    def _take_free(self, data: bytes) -> None:
        """Note the pages of a list of free ones: their number, and each."""
        count = len(data) // _NUMBER.size - 1
        if count < 0 or _NUMBER.unpack_from(data)[0] > count:
            raise StoreCorrupt("a list of free pages does not have the length that it says")
        (said,) = _NUMBER.unpack_from(data)
        for (page,) in _NUMBER.iter_unpack(data[_NUMBER.size : _NUMBER.size * (said + 1)]):
            self._use(page, 1)

    def _use(self, page: int, count: int) -> None:
        """Note that pages are in use, or free."""
        end = page + count
        if page < _HEADS or end > self._count:
            raise StoreCorrupt(f"page {page} is not one of the file")
        used = self._used
        if any(used[page:end]):
            raise StoreCorrupt(f"page {page} is in use twice")
        if page < len(used):
            used[page:end] = b"\1" * (min(end, len(used)) - page)

    def _tree(
        self,
        name: str,
        tree: _Tree,
        found: list[tuple[bytes, bytes]] | None,
        *,
        numbers: bool = False,
    ) -> None:
        """Walk through a tree.

        Args:
            name: what to call it.
            tree: its head.
            found: takes what its leaves have.
            numbers: whether its keys are numbers of this machine.
        """
        self._counts = [0, 0, 0, 0]
        try:
            if tree.root != _NO_PAGE:
                if not 0 < tree.depth <= _DEPTH_MAX:
                    raise StoreCorrupt(f"it has {tree.depth} levels")
                self._walk(tree, found, numbers)
        except StoreCorrupt as error:
            raise StoreCorrupt(f"{name}: {error}") from None
        said = [tree.branches, tree.leaves, tree.overflow, tree.entries]
        if self._counts != said:
            raise StoreCorrupt(f"{name} has {self._counts} pages and entries, not {said}")

    def _walk(self, tree: _Tree, found: list[tuple[bytes, bytes]] | None, numbers: bool) -> None:
        counts = self._counts
        waiting: list[tuple[int, int, bytes, bytes | None]] = [(tree.root, 1, b"", None)]
        while waiting:
            page, level, low, high = waiting.pop()
            is_leaf = level == tree.depth
            at, nodes = self._nodes(page, _LEAF if is_leaf else _BRANCH)
            counts[is_leaf] += 1
            content = self._pages[at : at + self._size]
            keys = [
                content[place + _NODE_BYTES : place + _NODE_BYTES + length]
                for place, _, _, _, length in nodes
            ]
            if numbers:
                keys = [key if not key else key[::-1] for key in keys]
            if not is_leaf:
                keys[0] = low  # what a branch says there means nothing
            if not all(map(lt, keys, keys[1:])):
                raise StoreCorrupt(f"the keys of page {page} do not rise")
            if keys and (keys[0] < low or (high is not None and keys[-1] >= high)):
                raise StoreCorrupt(f"page {page} has keys of another one")
            if is_leaf:
                counts[3] += len(nodes)
                self._leaf(at, nodes, found)
            else:
                children = [a | b << 16 | c << 32 for _, a, b, c, _ in nodes]
                highs = [*keys[1:], high]
                waiting += [
                    (child, level + 1, first, last)
                    for child, first, last in zip(children, keys, highs, strict=True)
                ]

    def _nodes(self, page: int, kind: int) -> tuple[int, list[tuple[int, int, int, int, int]]]:
        """Return where a page begins, and (place, three fields, length of the key) of its nodes."""
        self._use(page, 1)
        at, size, pages = page * self._size, self._size, self._pages
        if at + size > len(pages):
            raise StoreCorrupt(f"page {page} is missing at the end of the file")
        number, flags, lower, upper = _PAGE.unpack_from(pages, at)
        if number != page or flags != kind:
            raise StoreCorrupt(f"page {page} is not where it should be")
        count = (lower - _PAGE_HEAD_BYTES) // 2
        if lower % 2 or not _PAGE_HEAD_BYTES < lower <= upper <= size or not count:
            raise StoreCorrupt(f"page {page} has a damaged head")
        content = pages[at : at + size]
        places = unpack_from(f"={count}H", content, _PAGE_HEAD_BYTES)
        if min(places) < upper or max(places) > size - _NODE.size:
            raise StoreCorrupt(f"a node of page {page} is not where it should be")
        unpack = _NODE.unpack_from
        nodes = [(place, *unpack(content, place)) for place in places]
        end = size
        # The nodes fill the page from its end, in some order.
        for place, low, high, flags, length in sorted(nodes, reverse=True):
            used = _NODE.size + length
            if kind == _LEAF:
                used += _NUMBER.size if flags & _BIG else low | high << 16
            if place + used + used % 2 != end:
                raise StoreCorrupt(f"a node of page {page} does not have the length that it says")
            end = place
        if end != upper:
            raise StoreCorrupt(f"the nodes of page {page} do not fill it")
        return at, nodes

    def _leaf(
        self,
        at: int,
        nodes: list[tuple[int, int, int, int, int]],
        found: list[tuple[bytes, bytes]] | None,
    ) -> None:
        """Look at what the nodes of a leaf have."""
        pages = self._pages
        if found is None and not any(flags for _, _, _, flags, _ in nodes):
            return
        for place, low, high, flags, length in nodes:
            if flags & ~(_BIG | (_SUBTREE if found is not None else 0)):
                raise StoreCorrupt("a node has flags that are not of LMDB")
            if found is None and not flags:
                continue
            key_at = at + place + _NODE.size
            value_at, value_bytes = key_at + length, low | high << 16
            if flags & _BIG:
                (page,) = _NUMBER.unpack_from(pages, value_at)
                value_at = page * self._size + _PAGE_HEAD_BYTES
                self._overflow(page, value_bytes)
            if found is not None:
                value = pages[value_at : value_at + value_bytes]
                found.append((pages[key_at:value_at] if not flags & _BIG else b"", value))

    def _overflow(self, page: int, value_bytes: int) -> None:
        """Look at the head of pages that have one value."""
        count = (_PAGE_HEAD_BYTES - 1 + value_bytes) // self._size + 1
        self._use(page, count)
        at = page * self._size
        if at + _PAGE_HEAD_BYTES + value_bytes > len(self._pages):
            raise StoreCorrupt(f"page {page} is missing at the end of the file")
        number, flags, _, _ = _PAGE.unpack_from(self._pages, at)
        (said,) = _OVERFLOW_PAGES.unpack_from(self._pages, at)
        if (number, flags, said) != (page, _OVERFLOW, count):
            raise StoreCorrupt(f"page {page} is not where it should be")
        self._counts[2] += count
