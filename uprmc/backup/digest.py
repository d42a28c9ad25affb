"""Digests of documents that do not depend on their order: does this vBucket hold the same as that?

Every row has a hash of 64 bits over key, value and metadata; a vBucket's `Digest` is the number of
rows and the sum of their hashes. So it can be taken in pieces, in any order, on any node and from
any file, and pieces can be added up. It finds mistakes, torn files and lost rows; it is no defence
against an attacker who wants two contents to look alike.

A byte string is read as words of 8 bytes (the last one is filled up with zeros), each word is mixed
with its place, and a row's words are added up. The compiled core does that in 0.1 microseconds for
256 bytes; where it does not run, numpy does it over the buffers of Arrow, in blocks that fit the
processor's cache. Any hash function of the standard library would need a call for every row.

Deletions count with key, revision and CAS only: the rest of a tombstone is the node's own affair
(when it was deleted, by what), and differs between a node and its copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from uprmc.columnar.errors import BadOption
from uprmc.core import form

#: What a document consists of; the key always counts.
FIELDS = ("value", "rev", "cas", "flags", "exp")

_MASK = 0xFFFFFFFFFFFFFFFF
#: Bytes that are hashed at a time (a longer value alone is a block of its own).
_BLOCK_BYTES = 128 << 10

_WORD_BYTES = 8
_EVERY_PLACE = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SEEDS = {
    "key": np.uint64(0xD6E8FEB86659FD93),
    "value": np.uint64(0xA0761D6478BD642F),
    "rev": np.uint64(0xE7037ED1A0B428DB),
    "cas": np.uint64(0x8EBC6AF09C88C6E3),
    "flags": np.uint64(0x589965CC75374CC3),
    "exp": np.uint64(0x1D8E4E27C47D124F),
    "deleted": np.uint64(0xEB44ACCAB455D165),
}
#: By length modulo 8: which bytes of the last word belong to the string.
_TAILS = np.array([_MASK] + [(1 << 8 * n) - 1 for n in range(1, 8)], np.uint64)


@dataclass(frozen=True)
class Digest:
    """Digest of a set of documents."""

    rows: int = 0  # how many
    total: int = 0  # sum of their hashes modulo 2^64

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, self.total + other.total & _MASK)

    def __str__(self) -> str:
        return f"{self.rows}:{self.total:016x}"

    @classmethod
    def of(cls, hashes: Any) -> Digest:
        """Return the digest of rows with these hashes."""
        return cls(len(hashes), int(hashes.sum(dtype=np.uint64)))

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Read what `str` wrote.

        Raises:
            ValueError: it is something else.
        """
        rows, _, total = text.partition(":")
        if len(total) != 16:
            raise ValueError(f"{text!r} is no digest")
        return cls(int(rows), int(total, 16))


def check_fields(fields: Iterable[str]) -> tuple[str, ...]:
    """Return fields in their usual order.

    Raises:
        BadOption: there is no such field.
    """
    wanted = {each.strip() for each in fields} - {"key", ""}
    unknown = wanted.difference(FIELDS)
    if unknown:
        known = ", ".join(("key", *FIELDS))
        raise BadOption(f"by={min(unknown)}: documents are compared by {known}")
    return tuple(field for field in FIELDS if field in wanted)


def row_hashes(batch: pa.RecordBatch, fields: tuple[str, ...] = FIELDS) -> Any:
    """Return the hash of every row, as a numpy array of uint64.

    The batch has the columns ``key``, ``_op`` and, of the fields that count beside the key,
    ``value`` and those with an underscore before the name.
    """
    names = {field: field if field == "value" else f"_{field}" for field in fields}
    deleted = is_deleted(batch)
    of_all = bytes_hashes(batch.column("key")) * _SEEDS["key"]
    of_documents: Any = np.zeros(len(of_all), np.uint64)
    for field, name in names.items():
        column = batch.column(name)
        found = bytes_hashes(column) if field == "value" else _words_of(column)
        part = _mixed(found + _SEEDS[field]) * _SEEDS[field]
        if field in ("rev", "cas"):
            of_all += part
        else:
            of_documents += part
    of_documents[deleted] = _SEEDS["deleted"]
    return _mixed(of_all + of_documents)


def digests(
    batch: pa.RecordBatch, hashes: Any, column: str = "_vb", vbuckets: Any = None
) -> dict[int, Digest]:
    """Return the digest of each vBucket's rows in a batch, by the rows' hashes (`row_hashes`).

    The vBucket is in `column`, unless `vbuckets` has them as a numpy array.
    """
    if not len(hashes):
        return {}
    if vbuckets is None:
        vbuckets = batch.column(column).to_numpy(zero_copy_only=False)
    places: Any = np.flatnonzero(np.diff(vbuckets)) + 1
    firsts = np.concatenate([np.zeros(1, np.int64), places])
    totals = np.add.reduceat(hashes, firsts)
    counts = np.diff(firsts, append=len(hashes))
    found: dict[int, Digest] = {}
    for vbucket, rows, total in zip(
        vbuckets[firsts].tolist(), counts.tolist(), totals.tolist(), strict=True
    ):
        found[vbucket] = found.get(vbucket, Digest()) + Digest(rows, total)
    return found


def add_up(into: dict[int, Digest], more: Mapping[int, Digest]) -> None:
    """Add digests of vBuckets to those that are there."""
    for vbucket, digest in more.items():
        into[vbucket] = into.get(vbucket, Digest()) + digest


def is_deleted(batch: pa.RecordBatch) -> Any:
    """Return which rows are no documents, as a numpy array of bool."""
    operations = batch.column("_op")
    if pa.types.is_dictionary(operations.type):
        operations = operations.cast(pa.string())
    offsets, _ = _buffers(operations)
    # "set" is the only operation of three letters: no text need be made or compared
    lengths = np.diff(offsets)
    return lengths != len("set")


# --- hashing --------------------------------------------------------------------------------------


def bytes_hashes(column: pa.Array) -> Any:
    """Return a hash of every byte string or text of an Arrow column; NULL is as empty."""
    offsets, data = _buffers(column)
    rows = len(offsets) - 1
    if rows and column.null_count:
        lengths = np.where(_valid(column), np.diff(offsets), 0)
    else:
        lengths = np.diff(offsets)
    found: Any = np.empty(rows, np.uint64)
    first = 0
    while first < rows:
        full = np.searchsorted(offsets, offsets[first] + _BLOCK_BYTES, "right") - 1
        end = min(rows, max(int(full), first + 1), first + _BLOCK_BYTES // _WORD_BYTES)
        block = data[offsets[first] : offsets[end]]
        starts = offsets[first:end] - offsets[first]
        found[first:end] = _block_hashes(block, starts, lengths[first:end])
        first = end
    return found


def hashes_by_numpy(data: Any, starts: Any, lengths: Any) -> Any:
    """Return the hashes of byte strings that lie in `data`."""
    counts = np.maximum(lengths + (_WORD_BYTES - 1) >> 3, 1)
    ends = np.cumsum(counts)
    firsts = ends - counts
    place_in_row = np.arange(ends[-1]) - np.repeat(firsts, counts)
    at = place_in_row * _WORD_BYTES + np.repeat(starts, counts)
    padded = np.concatenate([data, np.zeros(2 * _WORD_BYTES, np.uint8)])
    anywhere = np.ndarray((len(padded) - _WORD_BYTES + 1,), "<u8", padded.data, 0, (1,))
    words = anywhere[at]
    words[ends - 1] &= np.where(lengths > 0, _TAILS[lengths & 7], 0)
    words += place_in_row.astype(np.uint64) * _EVERY_PLACE
    sums = np.add.reduceat(_mixed(words), firsts)
    return _mixed(sums ^ lengths.astype(np.uint64))


def _mixed(words: Any) -> Any:
    """Return words whose every bit depends on all bits of the ones given, one to one."""
    words = words ^ words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def _words_of(column: pa.Array) -> Any:
    """Return an integer column as numbers of 64 bits; NULL is 0."""
    if column.null_count:
        column = column.fill_null(0)
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False).view(np.uint64)


def _valid(column: pa.Array) -> Any:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _buffers(column: pa.Array) -> tuple[Any, Any]:
    """Return offsets (one more than rows) and bytes of a binary or string column."""
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, offsets, data = column.buffers()
    kind = np.int64 if wide else np.int32
    if offsets is None or not len(column):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    found = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1]
    octets = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return found.astype(np.int64), octets


if form.FORM == form.COMPILED and not TYPE_CHECKING:
    from uprmc.core.native.columns import hashes

    def _block_hashes(data: Any, starts: Any, lengths: Any) -> Any:
        found = hashes(data.tobytes(), starts.tobytes(), lengths.tobytes())
        return np.frombuffer(found, np.uint64)

else:
    _block_hashes = hashes_by_numpy
