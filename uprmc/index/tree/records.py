"""Nodes of trees as bytes.

A node is written as a record: size of what follows (4), its CRC-32 (4), form (1), body. The form
says whether it is a leaf (0) or an inner node (1) and whether the body is compressed by zlib (+2).

Leaf: number of entries n (4); n sizes of keys (4 each); n sizes of values (4 each); n vBuckets (2
each); keys; values.

Inner node: number of children n (4); number of reductions r (1); n offsets (8 each); n sizes of
records (4 each); n numbers of rows below (8 each); n numbers of bytes of records there and below (8
each); n sizes of lower bounds (4 each); n sizes of bitmaps (2 each); n * r sizes of reductions (4
each, all ones = there is none); lower bounds; bitmaps; reductions.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any

from uprmc.index.errors import Damaged
from uprmc.index.model import Reductions
from uprmc.index.tree.nodes import Inner, Leaf, Node, Pointer

__all__ = ["decode", "encode", "pack_pointer", "unpack_pointer"]

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
