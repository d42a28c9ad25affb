"""Columns of an Arrow batch as what requests are packed from: slices of bytes, arrays of numbers.

No row becomes an object here. A column of the wrong type is one clear error, because all its rows
would fail alike; a single row that is NULL or out of range is left to `requests`, as a mask.

Note: Spark has no unsigned numbers, so the source gives CAS and revision as signed 64-bit
ones. A negative one is therefore no error but a large one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from uprmc.columnar.errors import BadSchema

#: An array of numpy, one element for each row.
Array: TypeAlias = Any


_TEXT_OR_BINARY = (
    *(pa.types.is_null, pa.types.is_string, pa.types.is_binary, pa.types.is_fixed_size_binary),
    *(pa.types.is_large_string, pa.types.is_large_binary),
)
_VIEWS = (pa.string_view(), pa.binary_view())


@dataclass(frozen=True)
class Bytes:
    """A column of keys or values."""

    data: bytes  # what all rows' bytes lie in, one after the other
    starts: Array  # where each row's begin; one more for the end of the last
    null: Array  # which rows have none

    @property
    def sizes(self) -> Array:
        """How many bytes each row has."""
        return np.diff(self.starts)

    def at(self, row: int, most: int | None = None) -> bytes | None:
        """Return one row's bytes, or the first of them."""
        return None if self.null[row] else self.data[self.starts[row] : self.starts[row + 1]][:most]


@dataclass(frozen=True)
class Numbers:
    """A column of numbers."""

    values: Array  # unsigned; of no meaning where there is none or it is out of range
    null: Array  # which rows have none
    wrong: Array  # which rows are out of range


def column_of(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column by name, ``None`` if there is none.

    Raises:
        BadSchema: there are several.
    """
    places = batch.schema.get_all_field_indices(name)
    if len(places) > 1:
        raise BadSchema(f"there are {len(places)} columns named {name!r}")
    return _plain(batch.column(places[0])) if places else None


def required(batch: pa.RecordBatch, name: str, what: str) -> pa.Array:
    """Return a column; raises `BadSchema` when there is none."""
    found = column_of(batch, name)
    if found is None:
        names = ", ".join(batch.schema.names) or "none"
        raise BadSchema(f"there is no column {name!r} for {what}; there are: {names}")
    return found


def bytes_of(column: pa.Array, name: str) -> Bytes:
    """Return a column of text or binary; raises `BadSchema` when it is neither."""
    kind = column.type
    if not any(is_kind(kind) for is_kind in _TEXT_OR_BINARY) and kind not in _VIEWS:
        raise BadSchema(f"column {name!r} has type {kind}, neither text nor binary")
    null = _nulls(column)
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return Bytes(b"", np.zeros(len(column) + 1, np.int64), null)
    starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    begin, end = int(starts[0]), int(starts[-1])
    return Bytes(data.slice(begin, end - begin).to_pybytes(), starts - begin, null)


def no_bytes(rows: int) -> Bytes:
    """Return a column in which every row is NULL."""
    return Bytes(b"", np.zeros(rows + 1, np.int64), np.ones(rows, bool))


def numbers_of(column: pa.Array, name: str, bits: int) -> Numbers:
    """Return a column of whole numbers that fit into `bits`, 8, 32 or 64.

    Raises:
        BadSchema: it is not of whole numbers.
    """
    kind = column.type
    null = _nulls(column)
    if pa.types.is_null(kind):
        return Numbers(np.zeros(len(column), np.uint64), null, np.zeros(len(column), bool))
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return _from_decimals(column, null, bits)
    if not pa.types.is_integer(kind):
        raise BadSchema(f"column {name!r} has type {kind}, not whole numbers")
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    if values.dtype == np.int64 and bits == 64:
        return Numbers(values.view(np.uint64), null, np.zeros(len(values), bool))
    wrong = values < 0
    if bits < 64:
        wrong = wrong | (values > 2**bits - 1)
    return Numbers(np.where(wrong, 0, values).astype(np.uint64), null, wrong)


def texts_of(column: pa.Array, name: str) -> tuple[list[str | None], Array]:
    """Return the different texts of a column and each row's place among them.

    Raises:
        BadSchema: it is not of text.
    """
    kind = column.type
    if pa.types.is_null(kind):
        return [None], np.zeros(len(column), np.int64)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise BadSchema(f"column {name!r} has type {kind}, not text")
    coded = column.dictionary_encode(null_encoding="encode")
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _nulls(column: pa.Array) -> Array:
    if not column.null_count:
        return np.zeros(len(column), bool)
    return column.is_null().to_numpy(zero_copy_only=False)


def _from_decimals(column: pa.Array, null: Array, bits: int) -> Numbers:
    values = [0 if value is None else int(value) for value in column.to_pylist()]
    wrong = np.fromiter((not 0 <= value < 1 << bits for value in values), bool, len(values))
    taken = [0 if bad else value for value, bad in zip(values, wrong, strict=True)]
    return Numbers(np.array(taken, np.uint64), null, wrong)
