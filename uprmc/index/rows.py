"""Keys and values of the trees of an index, as bytes.

A row of a view is ordered by (sort key, document id, vBucket, order of emission):

    sort key | id (escaped) | 00 | vBucket (2) | order (4) | size of the escaped id (2)

The size at the end only helps to take a key apart. The vBucket is there since the protocol lets a
client store one id in two vBuckets. The id tree has (vBucket, id) -> keys of the rows of that
document, so that they can be removed when it changes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from uprmc.index.collation import HIGHEST, after_prefix
from uprmc.index.model import Emission

__all__ = [
    "RowKey",
    "id_bytes",
    "id_key",
    "id_text",
    "id_value",
    "json_values",
    "row_bounds",
    "row_key",
    "row_value",
    "rows_of",
    "split_id_key",
    "split_id_value",
    "split_row_key",
    "split_row_value",
]

#: Key, vBucket, value of an entry in a tree: `model.Entry` without the name.
Row = tuple[bytes, int, bytes]

#: A byte of an id that is no UTF-8 is shown as the private character with this number more, so FF
#: as U+EFFF: JSON cannot say bytes, and strict parsers refuse halves of surrogate pairs. These
#: characters themselves are shown as their bytes, so that every id has a text of its own.
_SHOWN_BYTES = 0xEF00
_SHOWN = {0xDC00 + byte: chr(_SHOWN_BYTES + byte) for byte in range(0x80, 0x100)} | {
    code: "".join(chr(_SHOWN_BYTES + byte) for byte in chr(code).encode())
    for code in range(_SHOWN_BYTES + 0x80, _SHOWN_BYTES + 0x100)
}
_AS_BYTES = "utf-8", "surrogateescape"
_BYTES = {_SHOWN_BYTES + byte: 0xDC00 + byte for byte in range(0x80, 0x100)}

_row_tail = struct.Struct(">BHIH")
_vbucket = struct.Struct(">H")
_lengths = struct.Struct(">HI")
_lengths_bytes = _lengths.size
_one_row = struct.Struct(">HII")
_pack_tail, _pack_vbucket = _row_tail.pack, _vbucket.pack
_pack_lengths, _pack_one = _lengths.pack, _one_row.pack


class RowKey(NamedTuple):
    """A row's key, taken apart."""

    sort_key: bytes
    doc_key: bytes
    vbucket: int
    n: int


def _escaped(doc_key: bytes) -> bytes:
    if b"\x01" in doc_key:
        doc_key = doc_key.replace(b"\x01", b"\x01\x02")
    return doc_key.replace(b"\0", b"\x01\x01") if b"\0" in doc_key else doc_key


def row_key(sort_key: bytes, doc_key: bytes, n: int, vbucket: int) -> bytes:
    """Return the key of the `n`th row (from 0) that a document emitted into a view."""
    text = _escaped(doc_key)
    return sort_key + text + _row_tail.pack(0, vbucket, n, len(text))


def split_row_key(key: bytes) -> RowKey:
    """Take a key apart that `row_key` made."""
    _, vbucket, n, size = _row_tail.unpack_from(key, len(key) - 9)
    start = len(key) - 9 - size
    text = key[start : start + size]
    doc_key = text.replace(b"\x01\x01", b"\0").replace(b"\x01\x02", b"\x01")
    return RowKey(key[:start], doc_key, vbucket, n)


def row_bounds(sort_key: bytes, doc_key: bytes | None = None) -> tuple[bytes, bytes]:
    """Return the range (the end is not in it) of the rows with a key, or of one document."""
    low = sort_key if doc_key is None else sort_key + _escaped(doc_key) + b"\0"
    return low, after_prefix(low) or HIGHEST


def row_value(doc_key: bytes, json_key: bytes, json_value: bytes) -> bytes:
    """Return what a view's tree keeps of a row: id, key and value as they are shown."""
    return _lengths.pack(len(doc_key), len(json_key)) + doc_key + json_key + json_value


def split_row_value(value: bytes) -> tuple[bytes, bytes, bytes]:
    """Return (document id, key as JSON, value as JSON)."""
    id_size, key_size = _lengths.unpack_from(value)
    key = 6 + id_size
    return value[6:key], value[key : key + key_size], value[key + key_size :]


def json_values(values: Iterable[bytes]) -> list[bytes]:
    """Return of each row's value in a view's tree only what `split_row_value` returns last."""
    unpack = _lengths.unpack_from
    return [value[_lengths_bytes + sum(unpack(value)) :] for value in values]


def id_key(vbucket: int, doc_key: bytes) -> bytes:
    """Return the key of a document in the id tree."""
    return _vbucket.pack(vbucket) + doc_key


def split_id_key(key: bytes) -> tuple[int, bytes]:
    """Return (vBucket, document id)."""
    return _vbucket.unpack_from(key)[0], key[2:]


def id_value(emitted: Sequence[Sequence[bytes]]) -> bytes:
    """Return the value of a document in the id tree.

    Args:
        emitted: for each view the keys of the rows that the document has there.
    """
    if len(emitted) == 1 and len(emitted[0]) == 1:
        key = emitted[0][0]
        return _one_row.pack(1, 1, len(key)) + key
    keys = [key for of_view in emitted for key in of_view]
    numbers = [*map(len, emitted), *map(len, keys)]
    head = struct.pack(f">H{len(numbers)}I", len(emitted), *numbers)
    return head + b"".join(keys)


def split_id_value(value: bytes) -> list[list[bytes]]:
    """Return for each view the keys of a document's rows."""
    (views,) = _vbucket.unpack_from(value)
    counts = struct.unpack_from(f">{views}I", value, 2)
    total = sum(counts)
    start = 2 + 4 * views
    sizes = struct.unpack_from(f">{total}I", value, start)
    offsets = accumulate(sizes, initial=start + 4 * total)
    keys = [value[begin:end] for begin, end in pairwise(offsets)]
    ends = accumulate(counts, initial=0)
    return [keys[begin:end] for begin, end in pairwise(ends)]


def rows_of(
    doc_keys: Sequence[bytes],
    vbuckets: Sequence[int],
    emitted: Sequence[Sequence[Sequence[Emission]]],
    views: int,
) -> tuple[list[Row], list[list[Row]]]:
    """Return what documents add to the trees: an entry each in the id tree, rows in each view.

    The entry of a document that emits nothing is not kept in the id tree.

    Args:
        doc_keys: their ids.
        vbuckets: where they are.
        emitted: for each document and view, in the order of emission.
        views: how many.
    """
    if views == 1:
        return _rows_of_one_view(doc_keys, vbuckets, [of_views[0] for of_views in emitted])
    entries: list[Row] = []
    rows: list[list[Row]] = [[] for _ in range(views)]
    for doc_key, vbucket, of_views in zip(doc_keys, vbuckets, emitted, strict=True):
        made = [_rows(doc_key, vbucket, of_view) for of_view in of_views]
        for all_rows, some in zip(rows, made, strict=True):
            all_rows += some
        keys = [[row[0] for row in some] for some in made]
        entries.append((_pack_vbucket(vbucket) + doc_key, vbucket, id_value(keys)))
    return entries, rows


def _rows(doc_key: bytes, vbucket: int, emitted: Sequence[Emission]) -> list[Row]:
    text = _escaped(doc_key)
    size, id_size = len(text), len(doc_key)
    return [
        (
            sort_key + text + _pack_tail(0, vbucket, n, size),
            vbucket,
            _pack_lengths(id_size, len(key)) + doc_key + key + value,
        )
        for n, (sort_key, key, value) in enumerate(emitted)
    ]


def _rows_of_one_view(
    doc_keys: Sequence[bytes], vbuckets: Sequence[int], emitted: Sequence[Sequence[Emission]]
) -> tuple[list[Row], list[list[Row]]]:
    """Do the same for the most frequent design, whose documents mostly emit one row."""
    entries: list[Row] = []
    rows: list[Row] = []
    add_entry, add_row = entries.append, rows.append
    ids = b"".join(doc_keys)
    plain = b"\0" not in ids and b"\x01" not in ids
    for doc_key, vbucket, of_view in zip(doc_keys, vbuckets, emitted, strict=True):
        if plain and len(of_view) == 1:
            ((sort_key, key, value),) = of_view
            size = len(doc_key)
            whole = sort_key + doc_key + _pack_tail(0, vbucket, 0, size)
            add_row((whole, vbucket, _pack_lengths(size, len(key)) + doc_key + key + value))
            entry = _pack_one(1, 1, len(whole)) + whole
        else:
            some = _rows(doc_key, vbucket, of_view)
            rows += some
            entry = id_value([[row[0] for row in some]])
        add_entry((_pack_vbucket(vbucket) + doc_key, vbucket, entry))
    return entries, [rows]


def id_text(key: bytes) -> str:
    """Return a document's id as JSON shows it; see `_SHOWN_BYTES`."""
    text = key.decode(*_AS_BYTES)
    return text if text.isascii() else text.translate(_SHOWN)


def id_bytes(text: str) -> bytes:
    """Return the id that is shown like this; raise `UnicodeError` if it has half a character."""
    return text.encode() if text.isascii() else text.translate(_BYTES).encode(*_AS_BYTES)
