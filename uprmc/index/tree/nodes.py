"""Nodes of trees: rows in leaves, children in inner nodes.

A child has all keys from its lower bound to the next child's; the first child's is that of the
node itself, so lower bounds are not always keys that are there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, pairwise
from operator import add
from typing import Any, NamedTuple, overload

from uprmc.index.errors import IndexDamaged
from uprmc.index.model import Entry, Reductions
from uprmc.index.rows import Row

__all__ = [
    "BLOCK",
    "MAGIC",
    "VERSION",
    "Child",
    "Entries",
    "Header",
    "IndexPosition",
    "Inner",
    "Leaf",
    "Node",
    "Pointer",
    "Row",
    "bitmap_of",
    "child_size",
    "decode",
    "decode_header",
    "encode",
    "encode_header",
    "pack_pointer",
    "separator",
    "unpack_pointer",
]

#: What a row and a child cost beside their keys, values and reductions, in bytes.
_ROW_OVERHEAD, _CHILD_OVERHEAD = 10, 38
#: What the cache counts for an object in a node, in bytes.
_OBJECT = 50


class Pointer(NamedTuple):
    """Where a node is and what is below it."""

    offset: int  # of its record in the file
    size: int
    rows: int  # how many
    bytes: int  # of its record and all below
    vbuckets: int  # bitmap of the vBuckets that have a row
    reductions: Reductions  # of all these rows


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


# --- records --------------------------------------------------------------------------------------
# Nodes of trees as bytes.
#
# A node is written as a record: size of what follows (4), its CRC-32 (4), form (1), body. The form
# says whether it is a leaf (0) or an inner node (1) and whether the body is compressed by zlib
# (+2).
#
# Leaf: number of entries n (4); n sizes of keys (4 each); n sizes of values (4 each); n vBuckets (2
# each); keys; values.
#
# Inner node: number of children n (4); number of reductions r (1); n offsets (8 each); n sizes of
# records (4 each); n numbers of rows below (8 each); n numbers of bytes of records there and below
# (8 each); n sizes of lower bounds (4 each); n sizes of bitmaps (2 each); n * r sizes of reductions
# (4 each, all ones = there is none); lower bounds; bitmaps; reductions.


#: Head of a record: size of form and body, CRC of both.
_HEAD = struct.Struct(">II")
_INNER, _COMPRESSED = 1, 2
_NONE = 0xFFFFFFFF
#: Bodies below this size, in bytes, are not compressed: they would not shrink.
_COMPRESS_FROM = 256


def encode(node: Node) -> bytes:
    """Return the record of a node."""
    if isinstance(node, Leaf):
        return _record(_leaf_body(node), 0)
    return _record(_inner_body(node), _INNER)


def _record(body: bytes, form: int) -> bytes:
    if len(body) >= _COMPRESS_FROM:
        smaller = zlib.compress(body, 1)
        if len(smaller) < len(body):
            body, form = smaller, form | _COMPRESSED
    content = bytes([form]) + body
    return _HEAD.pack(len(content), zlib.crc32(content)) + content


def _leaf_body(leaf: Leaf) -> bytes:
    count = len(leaf.keys)
    sizes = struct.pack(
        f">{1 + 2 * count}I{count}H",
        count,
        *map(len, leaf.keys),
        *map(len, leaf.values),
        *leaf.vbuckets,
    )
    return b"".join([sizes, *leaf.keys, *leaf.values])


def _inner_body(inner: Inner) -> bytes:
    offsets, sizes, rows, totals, vbuckets, reductions = zip(*inner.pointers, strict=True)
    bitmaps = [bits.to_bytes((bits.bit_length() + 7) >> 3, "little") for bits in vbuckets]
    texts = list(chain.from_iterable(reductions))
    count = len(offsets)
    head = struct.pack(
        f">IB{count}Q{count}I{2 * count}Q{count}I{count}H{len(texts)}I",
        count,
        len(reductions[0]),
        *offsets,
        *sizes,
        *rows,
        *totals,
        *map(len, inner.lows),
        *map(len, bitmaps),
        *[_NONE if text is None else len(text) for text in texts],
    )
    return b"".join([head, *inner.lows, *bitmaps, *[text or b"" for text in texts]])


def _bitmap_bytes(bitmap: int) -> bytes:
    return bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little")


def decode(record: bytes, where: str) -> Node:
    """Return the node of a record.

    Raises:
        Damaged: it is not what was written; `where` names the place.
    """
    try:
        size, checksum = _HEAD.unpack_from(record)
        content = record[_HEAD.size :]
        if size != len(content) or zlib.crc32(content) != checksum:
            raise IndexDamaged(f"{where}: a node has a wrong checksum")
        form = content[0]
        body = zlib.decompress(content[1:]) if form & _COMPRESSED else content[1:]
        return _inner(body) if form & _INNER else _leaf(body)
    except (struct.error, zlib.error, IndexError) as error:
        raise IndexDamaged(f"{where}: a node cannot be read: {error}") from None


def _leaf(body: bytes) -> Leaf:
    (count,) = struct.unpack_from(">I", body)
    numbers = struct.unpack_from(f">{2 * count}I{count}H", body, 4)
    parts = _cut(body, numbers[: 2 * count], 4 + 10 * count)
    return Leaf(parts[:count], numbers[2 * count :], parts[count:])


def _inner(body: bytes) -> Inner:
    count, width = struct.unpack_from(">IB", body)
    layout = struct.Struct(f">{count}Q{count}I{2 * count}Q{count}I{count}H{count * width}I")
    numbers = layout.unpack_from(body, 5)
    sizes = numbers[6 * count :]
    lengths = [*numbers[4 * count : 6 * count], *[0 if size == _NONE else size for size in sizes]]
    parts = _cut(body, lengths, 5 + layout.size)
    texts = _reductions(sizes, parts[2 * count :])
    columns = zip(
        *[numbers[start : start + count] for start in range(0, 4 * count, count)],
        [int.from_bytes(part, "little") for part in parts[count : 2 * count]],
        [texts[start : start + width] for start in range(0, count * width, width)]
        if width
        else [()] * count,
        strict=True,
    )
    return Inner(parts[:count], list(map(_pointer_of, columns)))


_pointer_of: Callable[[tuple[Any, ...]], Pointer] = partial(tuple.__new__, Pointer)


def _reductions(sizes: Sequence[int], parts: list[bytes]) -> Reductions:
    pairs = zip(sizes, parts, strict=True)
    return tuple(None if size == _NONE else part for size, part in pairs)


def _cut(body: bytes, sizes: Sequence[int], start: int) -> list[bytes]:
    return [body[begin:end] for begin, end in pairwise(accumulate(sizes, initial=start))]


_pointer = struct.Struct(">QIQQHB")


def pack_pointer(pointer: Pointer) -> bytes:
    """Return a pointer as it is kept in a header: a root."""
    bitmap = _bitmap_bytes(pointer.vbuckets)
    width = len(pointer.reductions)
    sizes = [_NONE if text is None else len(text) for text in pointer.reductions]
    head = _pointer.pack(*pointer[:4], len(bitmap), width) + struct.pack(f">{width}I", *sizes)
    return b"".join([head, bitmap, *(text or b"" for text in pointer.reductions)])


def unpack_pointer(data: bytes, start: int) -> tuple[Pointer, int]:
    """Return the pointer at `start` and where it ends."""
    offset, size, rows, total, bitmap_size, width = _pointer.unpack_from(data, start)
    start += _pointer.size
    sizes = struct.unpack_from(f">{width}I", data, start)
    lengths = [bitmap_size, *(0 if size == _NONE else size for size in sizes)]
    bitmap, *parts = _cut(data, lengths, start + 4 * width)
    end = start + 4 * width + sum(lengths)
    vbuckets = int.from_bytes(bitmap, "little")
    return Pointer(offset, size, rows, total, vbuckets, _reductions(sizes, parts)), end


# --- header ---------------------------------------------------------------------------------------
# What a header of an index file says, as bytes.
#
# A header stands at the start of a 4 KiB block: the file's own magic (24: 8 fixed, 16 random, so
# that nothing a user stores can pass for one), size of the body (4), CRC-32 of what follows (4),
# flags (4), then where the header before this one stands (8), CRC-32 of what was appended between
# both (4), and the body, compressed by zlib. Flag 1: what was appended is on disk for sure, since
# it was synced before the header was written; without it, it has to be read to be believed.


#: Size of blocks, in bytes: headers stand at their starts only.
BLOCK = 4096
#: First bytes of each header, before the file's identity.
MAGIC = b"uprmcIX\x01"
#: Of the format; a file of another one is refused.
VERSION = 1

_fixed = struct.Struct(">HHQB")
_position = struct.Struct(">HQQQ")
_log = struct.Struct(">HH")
_purge = struct.Struct(">HQ")
_size = struct.Struct(">I")


class IndexPosition(NamedTuple):
    """How far a vBucket is indexed."""

    seqno: int  # of the last change whose rows are in the trees
    snap_start: int  # of the snapshot that it came in
    snap_end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A state of an index that can be returned to."""

    signature: str = ""  # of the design that the rows were made by
    num_vbuckets: int = 0  # of the bucket
    active: int = 0  # bitmaps of the vBuckets in these states
    passive: int = 0
    cleanup: int = 0
    # For each vBucket that is indexed.
    positions: Mapping[int, IndexPosition] = field(default_factory=dict)
    # Failover logs of the vBuckets, newest entry first: (vb_uuid, seqno).
    logs: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    # Of the vBuckets, as the source last said.
    purge_seqnos: Mapping[int, int] = field(default_factory=dict)
    epoch: int = 0  # of the vBucket states
    # Of the id tree and of each view's tree; ``None`` = empty.
    roots: tuple[Pointer | None, ...] = ()
    replica: bool = False  # is a replica index
    extra: bytes = b""  # whatever else its owner keeps
    version: int = VERSION  # of the format
    offset: int = 0  # where it stands in the file and where it ends, once it was written
    end: int = 0
    previous: int = 0  # where the header before it stands; 0 = there is none

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Rows of the id tree and of each view's."""
        return tuple(root.rows if root else 0 for root in self.roots)

    @property
    def data_bytes(self) -> int:
        """Bytes of the file that the trees need; the others are garbage or headers."""
        return sum(root.bytes for root in self.roots if root)


def encode_header(header: Header) -> bytes:
    """Return the body of a header."""
    parts = [
        _fixed.pack(header.version, header.num_vbuckets, header.epoch, header.replica),
        _sized(header.signature.encode()),
        *(_sized(_bitmap(bits)) for bits in (header.active, header.passive, header.cleanup)),
        _table(_position.pack(vb, *where) for vb, where in header.positions.items()),
        _table(_packed_log(vb, log) for vb, log in header.logs.items()),
        _table(_purge.pack(vb, seqno) for vb, seqno in header.purge_seqnos.items()),
        _table(_sized(pack_pointer(root) if root else b"") for root in header.roots),
        _sized(header.extra),
    ]
    return zlib.compress(b"".join(parts), 1)


def _bitmap(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _sized(data: bytes) -> bytes:
    return _size.pack(len(data)) + data


def _table(rows: Iterable[bytes]) -> bytes:
    packed = list(rows)
    return b"".join([_size.pack(len(packed)), *packed])


def _packed_log(vbucket: int, log: tuple[tuple[int, int], ...]) -> bytes:
    numbers = [number for entry in log for number in entry]
    return _log.pack(vbucket, len(log)) + struct.pack(f">{len(numbers)}Q", *numbers)


def decode_header(body: bytes, *, offset: int, end: int, previous: int) -> Header:
    """Return the header of a body whose checksum was right.

    Raises:
        Damaged: it is of another version, or cannot be read nevertheless.
    """
    try:
        return _Reader(zlib.decompress(body)).header(offset, end, previous)
    except (struct.error, zlib.error, ValueError) as error:
        raise IndexDamaged(f"a header cannot be read: {error}") from None


class _Reader:
    """Reads one field after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def header(self, offset: int, end: int, previous: int) -> Header:
        version, num_vbuckets, epoch, replica = self._take(_fixed)
        if version != VERSION:
            raise IndexDamaged(f"the file has format {version}, this program reads {VERSION}")
        return Header(
            version=version,
            num_vbuckets=num_vbuckets,
            epoch=epoch,
            replica=bool(replica),
            signature=self._bytes().decode(),
            active=self._bits(),
            passive=self._bits(),
            cleanup=self._bits(),
            positions=dict(self._position() for _ in range(self._count())),
            logs=dict(self._log() for _ in range(self._count())),
            purge_seqnos=dict(self._purge() for _ in range(self._count())),
            roots=tuple([self._root() for _ in range(self._count())]),
            extra=self._bytes(),
            offset=offset,
            end=end,
            previous=previous,
        )

    def _take(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def _count(self) -> int:
        return self._take(_size)[0]

    def _bytes(self) -> bytes:
        size = self._count()
        self._at += size
        return self._data[self._at - size : self._at]

    def _bits(self) -> int:
        return int.from_bytes(self._bytes(), "little")

    def _position(self) -> tuple[int, IndexPosition]:
        vbucket, *where = self._take(_position)
        return vbucket, IndexPosition(*where)

    def _purge(self) -> tuple[int, int]:
        vbucket, seqno = self._take(_purge)
        return vbucket, seqno

    def _log(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        vbucket, entries = self._take(_log)
        numbers = self._take(struct.Struct(f">{2 * entries}Q"))
        return vbucket, tuple(zip(numbers[::2], numbers[1::2], strict=True))

    def _root(self) -> Pointer | None:
        packed = self._bytes()
        return unpack_pointer(packed, 0)[0] if packed else None
