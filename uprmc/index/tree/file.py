"""An index file: nodes and headers, only ever appended.

The file begins with its magic (24 bytes, see `nodes`) and their CRC-32. A header comes after the
nodes that it names, at the start of the next 4 KiB block. What follows the newest sound header is
of no use to anyone: it is cut off when the file is opened for writing.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, count, islice
from pathlib import Path
from threading import Lock

from uprmc.index.errors import IndexDamaged, IndexRolledBack
from uprmc.index.model import Reducer, Reductions
from uprmc.index.tree.disk import Disk, OsDisk, sync_directory
from uprmc.index.tree.nodes import (
    BLOCK,
    MAGIC,
    Child,
    Entries,
    Header,
    Inner,
    Leaf,
    Node,
    Pointer,
    Row,
    bitmap_of,
    child_size,
    decode,
    decode_header,
    encode,
    encode_header,
    separator,
)

# --- writing --------------------------------------------------------------------------------------
# Nodes of the right size, from rows or children in order, written to a file.
#
# A node holds up to `MAX_NODE` bytes; what is more is split into nodes of even size. Changed nodes
# below `MIN_NODE` are joined with a neighbour (see `tree`).


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


# --- cache ----------------------------------------------------------------------------------------
# Nodes that were read lately, of all trees of the process.


#: What all cached nodes together may take, in bytes, where nothing else is configured.
DEFAULT_BYTES = 64 << 20


class NodeCache:
    """The nodes used last, up to a number of bytes; may be called from several threads.

    A node is known by (number of the file, offset). Files never use a number again for other
    contents, so nothing needs to be thrown out; it grows old.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = self.hits = self.misses = 0
        self._nodes: OrderedDict[tuple[int, int], tuple[Node, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, place: tuple[int, int]) -> Node | None:
        """Return a node if it is still there."""
        with self._lock:
            found = self._nodes.get(place)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._nodes.move_to_end(place)
            return found[0]

    def put(self, place: tuple[int, int], node: Node) -> None:
        """Keep a node, and let go of the oldest ones that are too many."""
        cost = node.cost()
        with self._lock:
            if place in self._nodes or cost > self.limit_bytes:
                return
            self._nodes[place] = node, cost
            self.used_bytes += cost
            while self.used_bytes > self.limit_bytes:
                _, (_, cost) = self._nodes.popitem(last=False)
                self.used_bytes -= cost


# --- file -----------------------------------------------------------------------------------------


#: Headers that are looked at when one to return to is searched.
MAX_HEADERS = 10_000
#: A header above this size, in bytes, cannot be one.
MAX_HEADER_BYTES = 256 << 20
#: Bytes that wait in memory before they are written to the file.
BUFFER_BYTES = 1 << 20
#: Bytes that are read at once where a stretch is checked.
_CHUNK = 1 << 20

_checksum = struct.Struct(">I")
_head = struct.Struct(
    ">IIIQI"
)  # body size, CRC of the rest, flags, previous, CRC of what it covers
_CHECKED = struct.Struct(">IQI")
_SYNCED = 1
_IDENTITY = 16
_FIRST = len(MAGIC) + _IDENTITY + _checksum.size
_numbers = count(1)
_shared_cache = NodeCache()


def limit_cache(limit_bytes: int) -> None:
    """Bound the cache of nodes that all files of the process share, in bytes."""
    _shared_cache.limit_bytes = limit_bytes


class IndexFile:
    """An open index file.

    One thread appends; others may read nodes of headers and trees that they were given.
    """

    def __init__(
        self, disk: Disk, path: Path, magic: bytes, cache: NodeCache | None = None
    ) -> None:
        self.path = path  # for messages
        self.header: Header | None = None  # the newest one; ``None`` = the file has none yet
        # Of this file's present contents among all of the process: changes by `truncate_to`, so
        # that a tree of what was cut off is refused instead of misread.
        self.number = next(_numbers)
        self._disk, self._magic = disk, magic
        self._cache = cache if cache is not None else _shared_cache
        self._lock = Lock()
        self._pending: dict[int, bytes] = {}  # by offset
        self._pending_bytes = 0
        self._written = _FIRST
        self._covered = 0  # CRC of what was appended after the newest header

    # Opening

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        disk: Disk | None = None,
        identity: bytes | None = None,
        cache: NodeCache | None = None,
    ) -> IndexFile:
        """Make a new file without a header.

        Args:
            path: where; nothing may be there.
            disk: where it is instead, for tests.
            identity: 16 random bytes that tell its headers from user data.
            cache: of nodes; ``None`` = the one that the process shares.

        Raises:
            OSError: the system refuses.
        """
        magic = MAGIC + (identity or os.urandom(_IDENTITY))
        disk = disk or OsDisk(path, create=True)
        try:
            disk.write_at(0, magic + _checksum.pack(zlib.crc32(magic)))
        except OSError:
            disk.close()
            path.unlink(missing_ok=True)
            raise
        return cls(disk, path, magic, cache)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        disk: Disk | None = None,
        write: bool = True,
        cache: NodeCache | None = None,
    ) -> IndexFile:
        """Open a file at its newest sound header; what follows that is cut off if `write`.

        Raises:
            Damaged: it has no sound header; one line says why.
            OSError: the system refuses.
        """
        disk = disk or OsDisk(path, write=write)
        try:
            file = cls(disk, path, _read_magic(disk, path), cache)
            file._find_newest()
            if write and file.header and disk.size() > file.header.end:
                disk.truncate(file.header.end)
                disk.sync()  # before anything is written where the torn part was
            return file
        except BaseException:
            disk.close()
            raise

    def _find_newest(self) -> None:
        size = self._disk.size()
        for offset in range((size - 1) // BLOCK * BLOCK, 0, -BLOCK):
            if self._disk.read_at(offset, len(self._magic)) != self._magic:
                continue
            header = self._sound_header(offset)
            if header is not None:
                self._stand_at(header)
                return
        raise IndexDamaged(f"{self.path}: no sound header in {size} bytes")

    def _stand_at(self, header: Header) -> None:
        self.header = header
        self._written, self._covered = header.end, 0

    # Headers

    def _sound_header(self, offset: int) -> Header | None:
        """Return the header at `offset` if it and all that it needs is there."""
        try:
            header = self._read_header(offset)[0]
            if not self._is_on_disk(offset):
                return None
            for root in header.roots:
                if root:
                    self._read_node(root)
            return header
        except IndexDamaged:
            return None

    def _is_on_disk(self, offset: int) -> bool:
        """Return whether all that was appended before a header is there, read or synced."""
        while offset:
            header, flags, covers = self._read_header(offset)
            if flags & _SYNCED:
                return True
            if self._crc_between(header) != covers:
                return False
            offset = header.previous
        return True

    def _read_header(self, offset: int) -> tuple[Header, int, int]:
        where = f"{self.path}: at {offset}"
        start = offset + len(self._magic)
        head = self._disk.read_at(offset, len(self._magic) + _head.size)
        if len(head) < len(self._magic) + _head.size or not head.startswith(self._magic):
            raise IndexDamaged(f"{where} is no header")
        size, checksum, flags, previous, covers = _head.unpack_from(head, len(self._magic))
        if size > MAX_HEADER_BYTES:
            raise IndexDamaged(f"{where}: a header of {size} bytes")
        body = self._disk.read_at(start + _head.size, size)
        if zlib.crc32(body, zlib.crc32(_CHECKED.pack(flags, previous, covers))) != checksum:
            raise IndexDamaged(f"{where}: a header has a wrong checksum")
        end = start + _head.size + size
        return decode_header(body, offset=offset, end=end, previous=previous), flags, covers

    def _crc_between(self, header: Header) -> int:
        """Return the CRC of what was appended between the header before and this one."""
        start = self._read_header(header.previous)[0].end if header.previous else _FIRST
        checksum = 0
        while start < header.offset:
            chunk = self._disk.read_at(start, min(_CHUNK, header.offset - start))
            if not chunk:
                break
            checksum = zlib.crc32(chunk, checksum)
            start += len(chunk)
        return checksum

    def headers(self, limit: int = MAX_HEADERS) -> Iterator[Header]:
        """Yield the headers, newest first; ends early at one that is damaged."""
        return islice(self._older(), limit)

    def _older(self) -> Iterator[Header]:
        header = self.header
        while header is not None:
            yield header
            if not header.previous:
                return
            try:
                header, _, _ = self._read_header(header.previous)
            except IndexDamaged:
                return

    def write_header(self, header: Header, sync: bool = True) -> Header:
        """Append a header; return it with its place. With `sync` it is on disk then.

        Without `sync` a crash of the system may lose it, and then an older one is the newest.
        """
        self.flush()
        body = encode_header(header)
        padding = bytes(-self._written % BLOCK)
        covers = zlib.crc32(padding, self._covered)
        offset = self._written + len(padding)
        previous = self.header.offset if self.header else 0
        if sync:
            self._disk.sync()
        checked = _CHECKED.pack(_SYNCED if sync else 0, previous, covers)
        checksum = zlib.crc32(body, zlib.crc32(checked))
        head = self._magic + _checksum.pack(len(body)) + _checksum.pack(checksum) + checked
        self._disk.write_at(self._written, padding + head + body)
        if sync:
            self._disk.sync()
        end = offset + len(head) + len(body)
        self._stand_at(replace(header, offset=offset, end=end, previous=previous))
        assert self.header is not None
        return self.header

    def truncate_to(self, header: Header) -> None:
        """Cut the file so that an older header is the newest, and its last bytes (row I19)."""
        with self._lock:
            self._pending.clear()
            self._pending_bytes = 0
            self.number = next(_numbers)
            self._disk.truncate(header.end)
            self._disk.sync()
            self._stand_at(header)

    # Nodes

    def append(self, node: Node, number: int | None = None) -> tuple[int, int]:
        """Write a node; return its offset and size. It may wait in memory until `flush`.

        With the `number` of the file's contents it also goes into the cache.
        """
        record = encode(node)
        with self._lock:
            offset = self._written + self._pending_bytes
            self._pending[offset] = record
            self._pending_bytes += len(record)
            self._covered = zlib.crc32(record, self._covered)
        if self._pending_bytes >= BUFFER_BYTES:
            self.flush()
        if number is not None:
            self._cache.put((number, offset), node)
        return offset, len(record)

    def flush(self) -> None:
        """Hand what waits in memory to the system."""
        with self._lock:
            if self._pending:
                self._disk.write_at(self._written, b"".join(self._pending.values()))
                self._written += self._pending_bytes
                self._pending.clear()
                self._pending_bytes = 0

    def read(self, pointer: Pointer, number: int, *, cached: bool = True) -> Node:
        """Return a node.

        Args:
            pointer: to it.
            number: of the contents that the pointer belongs to.
            cached: whether it is likely to be read again.

        Raises:
            Damaged: it is not what was written; `IndexRolledBack`: it was cut off by `truncate_to`.
        """
        place = number, pointer.offset
        node = self._cache.get(place)
        if node is None:
            node = self._read_current(pointer, number)
            if cached:
                self._cache.put(place, node)
        return node

    def _read_current(self, pointer: Pointer, number: int) -> Node:
        try:
            node = self._read_node(pointer)
        except IndexDamaged:
            if number == self.number:
                raise
        if number != self.number:
            raise IndexRolledBack(f"{self.path}: this snapshot was cut off by a rollback")
        return node

    def _read_node(self, pointer: Pointer) -> Node:
        record = self._waiting(pointer.offset)
        if record is None:
            try:
                record = self._disk.read_at(pointer.offset, pointer.size)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                raise IndexDamaged(f"{self.path}: at {pointer.offset}: {error.strerror}") from None
        return decode(record, f"{self.path}: at {pointer.offset}")

    def _waiting(self, offset: int) -> bytes | None:
        """Return what waits in memory to be written there, so that no reader has to write."""
        if offset < self._written:
            return None
        with self._lock:
            return self._pending.get(offset)

    # Sizes and the end

    @property
    def size(self) -> int:
        """Size in bytes, with what still waits in memory."""
        return self._written + self._pending_bytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._magic == b""

    def close(self) -> None:
        """Let go of the file; what waits in memory and has no header is lost."""
        if not self.closed:
            self._magic = b""
            self._disk.close()

    def sync_name(self) -> None:
        """Return when the file's name in its directory is on disk."""
        sync_directory(self.path.parent)


def _read_magic(disk: Disk, path: Path) -> bytes:
    start = disk.read_at(0, _FIRST)
    magic, checksum = start[:-4], start[-4:]
    if len(start) < _FIRST or not magic.startswith(MAGIC):
        raise IndexDamaged(f"{path}: is no index file")
    if checksum != _checksum.pack(zlib.crc32(magic)):
        raise IndexDamaged(f"{path}: its first bytes have a wrong checksum")
    return magic
