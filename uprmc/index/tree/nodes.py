"""Nodes of trees as bytes.

A node is written as a record: size of what follows (4), its CRC-32 (4), form (1), body. The form
says whether it is a leaf (0) or an inner node (1) and whether the body is compressed by zlib (+2).

Leaf: number of entries n (4); n sizes of keys (4 each); n sizes of values (4 each); n vBuckets (2
each); keys; values.

Inner node: number of children n (4); number of reductions r (1); n times offset (8), size of the
record (4), rows below (8), bytes of the records there and below (8); n sizes of lower bounds (4
each); n sizes of bitmaps (2 each); n * r sizes of reductions (4 each, all ones = there is none);
lower bounds; bitmaps; reductions.

A child has all keys from its lower bound to the next child's; the first child's is that of the
node itself, so lower bounds are not always keys that are there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from uprmc.index.errors import Damaged
from uprmc.index.model import Reductions

__all__ = [
    "RECORD",
    "Child",
    "Inner",
    "Leaf",
    "Node",
    "Pointer",
    "Row",
    "bitmap_of",
    "child_size",
    "decode",
    "encode",
    "pack_pointer",
    "row_size",
    "separator",
    "unpack_pointer",
]

#: Head of a record: size of form and body, CRC of both.
RECORD = struct.Struct(">II")
_INNER, _COMPRESSED = 1, 2
_NONE = 0xFFFFFFFF
#: Bodies below this size, in bytes, are not compressed: they would not shrink.
_COMPRESS_FROM = 256
#: What a row and a child cost beside their keys, values and reductions, in bytes.
_ROW_OVERHEAD, _CHILD_OVERHEAD = 10, 34
#: What the cache counts for an object in a node, in bytes.
_OBJECT = 50

#: A row as trees handle it: key, vBucket, value; `model.Entry` without the name.
Row = tuple[bytes, int, bytes]


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

    __slots__ = ("cost", "keys", "values", "vbuckets")

    def __init__(self, keys: list[bytes], vbuckets: Sequence[int], values: list[bytes], cost: int):
        self.keys, self.vbuckets, self.values, self.cost = keys, vbuckets, values, cost

    def rows(self) -> list[Row]:
        """Return what is in it."""
        return list(zip(self.keys, self.vbuckets, self.values, strict=True))


class Inner:
    """Children in the order of their lower bounds."""

    __slots__ = ("cost", "lows", "pointers")

    def __init__(self, lows: list[bytes], pointers: list[Pointer], cost: int):
        self.lows, self.pointers, self.cost = lows, pointers, cost


Node = Leaf | Inner


def row_size(row: Row) -> int:
    """Return what a row adds to a node, in bytes."""
    return len(row[0]) + len(row[2]) + _ROW_OVERHEAD


def child_size(child: Child) -> int:
    """Return what a child adds to a node, in bytes."""
    low, pointer = child
    reductions = sum(4 + len(text or b"") for text in pointer.reductions)
    return len(low) + _CHILD_OVERHEAD + (pointer.vbuckets.bit_length() + 7) // 8 + reductions


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
    return RECORD.pack(len(content), zlib.crc32(content)) + content


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
    pointers = inner.pointers
    bitmaps = [_bitmap_bytes(pointer.vbuckets) for pointer in pointers]
    reductions = [text for pointer in pointers for text in pointer.reductions]
    sizes = [_NONE if text is None else len(text) for text in reductions]
    count = len(pointers)
    places = [number for pointer in pointers for number in pointer[:4]]
    head = struct.pack(
        ">IB" + "QIQQ" * count + f"{count}I{count}H{len(sizes)}I",
        count,
        len(pointers[0].reductions),
        *places,
        *map(len, inner.lows),
        *map(len, bitmaps),
        *sizes,
    )
    return b"".join([head, *inner.lows, *bitmaps, *(text or b"" for text in reductions)])


def _bitmap_bytes(bitmap: int) -> bytes:
    return bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little")


def decode(record: bytes, where: str) -> Node:
    """Return the node of a record.

    Raises:
        Damaged: it is not what was written; `where` names the place.
    """
    try:
        size, checksum = RECORD.unpack_from(record)
        content = record[RECORD.size :]
        if size != len(content) or zlib.crc32(content) != checksum:
            raise Damaged(f"{where}: a node has a wrong checksum")
        form = content[0]
        body = zlib.decompress(content[1:]) if form & _COMPRESSED else content[1:]
        return _inner(body) if form & _INNER else _leaf(body)
    except (struct.error, zlib.error, IndexError) as error:
        raise Damaged(f"{where}: a node cannot be read: {error}") from None


def _leaf(body: bytes) -> Leaf:
    (count,) = struct.unpack_from(">I", body)
    numbers = struct.unpack_from(f">{2 * count}I{count}H", body, 4)
    parts = _cut(body, numbers[: 2 * count], 4 + 10 * count)
    cost = len(body) + 2 * _OBJECT * count
    return Leaf(parts[:count], numbers[2 * count :], parts[count:], cost)


def _inner(body: bytes) -> Inner:
    count, width = struct.unpack_from(">IB", body)
    numbers = struct.unpack_from(">" + "QIQQ" * count, body, 5)
    start = 5 + 28 * count
    sizes = struct.unpack_from(f">{count}I{count}H{count * width}I", body, start)
    start += 6 * count + 4 * count * width
    parts = _cut(body, [0 if size == _NONE else size for size in sizes], start)
    bitmaps = [int.from_bytes(part, "little") for part in parts[count : 2 * count]]
    texts = _reductions(sizes[2 * count :], parts[2 * count :])
    pointers = [
        Pointer(
            numbers[4 * index],
            numbers[4 * index + 1],
            numbers[4 * index + 2],
            numbers[4 * index + 3],
            bitmaps[index],
            texts[index * width : (index + 1) * width],
        )
        for index in range(count)
    ]
    return Inner(parts[:count], pointers, len(body) + (6 + width) * _OBJECT * count)


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
