"""From an Arrow batch to request frames.

All heads of a batch are packed at once by numpy, as the records say; then each row costs
three slices, one checksum and one concatenation. A frame's opaque is its place in its piece: that
is how an answer finds its row, however the rows are spread over nodes and windows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa

from uprmc.columnar.errors import BadSchema
from uprmc.columnar.records import (
    BARE,
    STORE,
    WITH_META,
    WITH_META_NMETA,
    WITH_META_OPTIONS,
    WITH_META_OPTIONS_NMETA,
)
from uprmc.columnar.report import VALUE_SHOWN_BYTES, ErrorRow
from uprmc.columnar.write_options import WriteOptions
from uprmc.protocol.management import WithMetaOption
from uprmc.protocol.opcodes import HEADER_BYTES, KEY_MAX_BYTES, MAGIC_REQUEST, DataType, Opcode

# --- write columns --------------------------------------------------------------------------------
# Columns of an Arrow batch as what requests are packed from: slices of bytes, arrays of numbers.
#
# No row becomes an object here. A column of the wrong type is one clear error, because all its rows
# would fail alike; a single row that is NULL or out of range is left to `requests`, as a mask.
#
# Note: Spark has no unsigned numbers, so the source gives CAS and revision as signed 64-bit
# ones. A negative one is therefore no error but a large one.


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


# --- request rows ---------------------------------------------------------------------------------
# What the rows of an Arrow batch ask for, and which rows cannot be written.
#
# Note: an expiry of at most 30 days counts from the moment the node gets it, as memcached has it.
# So a time to live is sent as it is up to there and as Unix time above, and an absolute time that
# small is an error.


#: Expiries up to this count from now.
RELATIVE_EXPIRY_MAX_S = 30 * 24 * 3600

#: Column of a restore: extended metadata that says where each version was first accepted.
ORIGIN_COLUMN = "_origin"

SET, DELETE, EXPIRE, SKIP = range(4)
_OPERATIONS = {None: SET, "set": SET, "delete": DELETE, "expire": EXPIRE}

_CAS_LOCKED = 2**64 - 1


class RequestRows:
    """The rows of a batch by columns."""

    def __init__(
        self,
        options: WriteOptions,
        batch: pa.RecordBatch,
        first_row: int,
        now: float,
        item_limit_bytes: int | None,
    ) -> None:
        self._options = options
        self._item_limit_bytes = item_limit_bytes
        self._batch = batch
        self._first_row = first_row
        self._now = now
        self.count = batch.num_rows  # how many rows there are
        self._faults: dict[int, tuple[str, str]] = {}
        # keys, values: their bytes
        self.keys = bytes_of(required(batch, options.key_column, "the keys"), options.key_column)
        self.kinds = self._operations()  # what is to be done with each: SET, DELETE, EXPIRE or SKIP
        self.values = self._read_values()
        self.metas = self._read_metas()  # their extended metadata
        self._check_keys()
        self._check_values()

    def good(self) -> Array:
        """Return the numbers of the rows that can be written; call `fields` before."""
        good = self.kinds != SKIP
        if self._faults:
            good[list(self._faults)] = False
        return np.flatnonzero(good)

    def check_types(self) -> None:
        """Raise `BadSchema` also for columns that are looked at only if a row needs them."""
        options = self._options
        values = column_of(self._batch, options.value_column)
        if values is not None and options.mode != "delete":
            bytes_of(values, options.value_column)
        self.fields()

    def _operations(self) -> Array:
        mode = self._options.mode
        if mode == "delete":
            return np.full(self.count, DELETE, np.uint8)
        column = column_of(self._batch, "_op")
        if column is None:
            return np.full(self.count, SET, np.uint8)
        words, places = texts_of(column, "_op")
        kinds = np.array([_OPERATIONS.get(word, SKIP) for word in words], np.uint8)[places]
        for place, word in enumerate(words):
            if word not in _OPERATIONS:
                why = f"_op is {word!r}, not set, delete or expire"
                self._fault(places == place, "BAD_OPERATION", why)
        if mode == "insert":
            deleting = (kinds == DELETE) | (kinds == EXPIRE)
            self._fault(deleting, "BAD_OPERATION", "mode insert deletes nothing")
        return kinds

    def _read_values(self) -> Bytes:
        name = self._options.value_column
        if self._options.mode == "delete":
            return no_bytes(self.count)
        if not (self.kinds == SET).any():
            return no_bytes(self.count)
        return bytes_of(required(self._batch, name, "the values"), name)

    def _read_metas(self) -> Bytes:
        if self._options.mode != "append-meta" or not self._has(ORIGIN_COLUMN):
            return no_bytes(self.count)
        return bytes_of(required(self._batch, ORIGIN_COLUMN, "origins"), ORIGIN_COLUMN)

    def _check_keys(self) -> None:
        sizes = self.keys.sizes
        self._fault(self.keys.null, "NO_KEY", "the key is NULL")
        self._fault(sizes == 0, "EMPTY_KEY", "the key is empty")
        long = sizes > KEY_MAX_BYTES
        self._fault(long, "KEY_TOO_LONG", f"a key has {KEY_MAX_BYTES} bytes at most")

    def _check_values(self) -> None:
        options = self._options
        sets = self.kinds == SET
        without = sets & self.values.null
        if options.ignore_null == "fail":
            self._fault(without, "NO_VALUE", "the value is NULL")
        else:
            self.kinds[without] = DELETE if options.ignore_null == "delete" else SKIP
        large = sets & (self.values.sizes > options.value_limit_bytes)
        limit = f"a value has {options.value_limit_bytes} bytes at most"
        self._fault(large, "VALUE_TOO_LARGE", limit)
        most = self._item_limit_bytes
        if most is not None:
            large = sets & (self.values.sizes + self.keys.sizes > most)
            self._fault(large, "VALUE_TOO_LARGE", f"the nodes' kv.max_item_bytes is {most}")

    def fields(self) -> dict[str, Array]:
        """Return what goes into the extras, by the layouts' names."""
        options = self._options
        compared = {} if options.cas_column is None else {"cas": self._compared_cas()}
        if options.mode == "delete":
            return compared
        datatype = self._numbers("_datatype", 8, default=0)
        alien = datatype > DataType.JSON
        self._fault(alien, "BAD_NUMBER", "_datatype: a node takes none but 0 and 1")
        if options.mode == "append-meta":
            return {"datatype": datatype, **self._meta()}
        flags = self._numbers(options.flags_column or "_flags", 32, default=0)
        return {"datatype": datatype, "flags": flags, "expiration": self._expiry(), **compared}

    def _compared_cas(self) -> Array:
        """Return the CAS that documents must have, 0 = any."""
        name = self._options.cas_column
        assert name is not None
        column = required(self._batch, name, "the CAS")
        found = numbers_of(column, name, 64)
        self._fault(
            found.wrong & self._sent, "BAD_NUMBER", f"{name}: not between 0 and {2**64 - 1}"
        )
        locked = (found.values == _CAS_LOCKED) & ~found.null
        self._fault(locked & self._sent, "BAD_NUMBER", f"{name}: no version has this CAS")
        return np.where(found.null, 0, found.values)

    def _meta(self) -> dict[str, Array]:
        cas = self._numbers("_cas", 64)
        none = (cas == 0) | (cas == _CAS_LOCKED)
        self._fault(none & self._sent, "BAD_NUMBER", "_cas: no version has this CAS")
        return {
            "flags": self._numbers("_flags", 32, default=0),
            "exptime": self._numbers("_exp", 32, default=0),
            "rev": self._numbers("_rev", 64),
            "document_cas": cas,
        }

    def _expiry(self) -> Array:
        if self._options.ttl_s is not None:
            whole = np.full(self.count, int(self._options.ttl_s), np.uint64)
            return self._from_now(whole, "ttl")
        ttl, exp = self._options.ttl_column, self._options.exp_column
        if ttl is None and exp is None:
            ttl = "_ttl" if self._has("_ttl") else None
        if ttl is not None:
            return self._from_ttl(ttl)
        name = exp or "_exp"
        times = self._numbers(name, 32, default=0)
        early = (times > 0) & (times <= RELATIVE_EXPIRY_MAX_S)
        why = f"{name}: no Unix time but seconds from now: use a ttl column"
        self._fault(early & self._sent, "BAD_NUMBER", why)
        return times

    def _from_ttl(self, name: str) -> Array:
        return self._from_now(self._numbers(name, 32, default=0), name)

    def _from_now(self, times: Array, name: str) -> Array:
        absolute = np.where(times > RELATIVE_EXPIRY_MAX_S, times + np.uint64(self._now), times)
        late = absolute >= 2**32
        why = f"{name}: more seconds than an expiry can have"
        self._fault(late & self._sent, "BAD_NUMBER", why)
        return np.where(late, 0, absolute)

    def _numbers(self, name: str, bits: int, default: int | None = None) -> Array:
        """Return a column's numbers; without a default none may be NULL.

        A column that the user named must be there; one of ours, with an underscore, only if there
        is no default.
        """
        if default is not None and name.startswith("_") and not self._has(name):
            return np.full(self.count, default, np.uint64)
        found: Numbers = numbers_of(required(self._batch, name, "the metadata"), name, bits)
        why = f"{name}: not between 0 and {2**bits - 1}"
        self._fault(found.wrong & self._sent, "BAD_NUMBER", why)
        if default is None:
            self._fault(found.null & self._sent, "BAD_NUMBER", f"{name} is NULL")
        return found.values

    def _has(self, name: str) -> bool:
        return name in self._batch.schema.names

    @property
    def _sent(self) -> Array:
        return self.kinds != SKIP

    # --- faults ---------------------------------------------------------------------------------

    def _fault(self, where: Array, code: str, reason: str) -> None:
        """Note rows that cannot be written; the first fault of a row is the one that counts."""
        if where.any():
            for row in np.flatnonzero(where).tolist():
                self._faults.setdefault(row, (code, reason))

    def errors(self) -> list[ErrorRow]:
        """Return the rows that cannot be written, with the reasons."""
        first, keys, values = self._first_row, self.keys, self.values
        return [
            ErrorRow(first + row, code, reason, keys.at(row), values.at(row, VALUE_SHOWN_BYTES))
            for row, (code, reason) in sorted(self._faults.items())
        ]


# --- requests -------------------------------------------------------------------------------------


#: Limits of a piece of a batch, which is packed and kept until it is answered; it has at least
#: one row.
PIECE_ROWS = 10_000
PIECE_BYTES = 16 * 1024 * 1024

#: How a mode stores, if not by SETQ.
_STORES = {"insert": Opcode.ADDQ, "replace": Opcode.REPLACEQ}

#: Lengths of extras that end with the length of extended metadata.
_NMETA_EXTRAS = frozenset(
    record.itemsize - HEADER_BYTES for record in (WITH_META_NMETA, WITH_META_OPTIONS_NMETA)
)


#: A node refuses a CAS that is a day ahead of its clock, which may differ from ours.
_FAR_AHEAD_S = 12 * 3_600


@dataclass
class Piece:
    """Some rows as requests."""

    frames: list[bytes]  # a request for each row that can be written, in the order of the rows
    keys: list[bytes]  # their keys
    vbuckets: Array  # where they belong
    rows: Array  # the number of each one's row in the task
    errors: list[ErrorRow] = field(default_factory=list)  # rows that cannot be written
    skipped: int = 0  # rows without value, if those are passed over
    bytes: int = 0  # of keys and values in `frames`
    # by place, what came of requests that were carried out but not applied; names of counters of
    # the report.
    outcomes: dict[int, str] = field(default_factory=dict)


def pieces(batch: pa.RecordBatch, rows_max: int = PIECE_ROWS) -> Iterator[pa.RecordBatch]:
    """Cut a batch into what is packed at a time."""
    if not batch.num_rows:
        return
    row_bytes = batch.nbytes // batch.num_rows + 1
    rows = max(1, min(rows_max, PIECE_BYTES // row_bytes))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def value_in(frame: bytes) -> bytes:
    """Return the value that a request carries, without the extended metadata behind it."""
    key_bytes, value_at = frame[2] << 8 | frame[3], HEADER_BYTES + frame[4]
    meta_bytes = 0
    if frame[4] in _NMETA_EXTRAS:
        meta_bytes = int.from_bytes(frame[value_at - 2 : value_at])
    return frame[value_at + key_bytes : len(frame) - meta_bytes]


def cas_in(frame: bytes) -> int:
    """Return the CAS that a request names, 0 = none."""
    return int.from_bytes(frame[HEADER_BYTES - 8 : HEADER_BYTES])


def packed(
    options: WriteOptions,
    batch: pa.RecordBatch,
    first_row: int,
    vbuckets: int,
    now: float,
    item_limit_bytes: int | None = None,
) -> Piece:
    """Return the requests for a batch.

    Args:
        options: how to write.
        batch: the rows; `first_row` is the first one's number in the task.
        vbuckets: how many there are; 0 = it does not matter where keys belong (dry run).
        now: Unix time in seconds.
        item_limit_bytes: key and value together may have no more, as a node says; ``None`` if it
            has not been asked. It would refuse the row all the same, but the document that was
            there would be gone: that is what memcached does with a set that is too large.

    Raises:
        BadSchema: a column is missing or has the wrong type.
    """
    rows = RequestRows(options, batch, first_row, now, item_limit_bytes)
    return _Packing(options, rows).packed(first_row, vbuckets)


def check_columns(options: WriteOptions, schema: pa.Schema) -> None:
    """Raise `BadSchema` for what `packed` would refuse of every batch with this schema."""
    empty = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
    RequestRows(options, empty, 0, 0.0, None).check_types()


class _Packing:
    """One batch on its way."""

    def __init__(self, options: WriteOptions, rows: RequestRows) -> None:
        self._options = options
        self._found = rows
        self._keys, self._kinds = rows.keys, rows.kinds
        self._values, self._metas = rows.values, rows.metas

    def packed(self, first_row: int, vbuckets: int) -> Piece:
        found = self._found
        fields = found.fields()  # finds the last faults
        rows = found.good()
        keys = _slices(self._keys, rows)
        numbers = vbuckets_of(keys, vbuckets)
        whole = Piece([b""] * len(rows), keys, numbers, rows + first_row)
        for kind in (SET, DELETE, EXPIRE):
            self._pack_kind(kind, rows, fields, whole)
        whole.errors = found.errors()
        whole.skipped = found.count - len(rows) - len(whole.errors)
        return whole

    def _pack_kind(self, kind: int, rows: Array, fields: dict[str, Array], whole: Piece) -> None:
        """Put the frames of one operation to their places."""
        every = bool((self._kinds[rows] == kind).all())
        places = np.arange(len(rows)) if every else np.flatnonzero(self._kinds[rows] == kind)
        if not len(places):
            return
        chosen = rows[places]
        key_sizes = self._keys.sizes[chosen]
        value_sizes = self._values.sizes[chosen] if kind == SET else 0
        heads = self._heads(kind, chosen, fields)
        extras_bytes = heads.dtype.itemsize - HEADER_BYTES
        heads["magic"] = MAGIC_REQUEST
        heads["key_length"] = key_sizes
        heads["extras_length"] = extras_bytes
        meta_sizes = self._metas.sizes[chosen]
        if extras_bytes in _NMETA_EXTRAS:
            heads["nmeta"] = meta_sizes
        heads["body_length"] = key_sizes + value_sizes + meta_sizes + extras_bytes
        heads["vbucket"] = whole.vbuckets[places]
        heads["opaque"] = places
        whole.bytes += int((key_sizes + value_sizes).sum())
        keys = whole.keys if every else [whole.keys[place] for place in places.tolist()]
        frames = self._joined(kind, chosen, heads, keys)
        if every:
            whole.frames = frames
            return
        for place, frame in zip(places.tolist(), frames, strict=True):
            whole.frames[place] = frame

    def _heads(self, kind: int, rows: Array, fields: dict[str, Array]) -> Array:
        """Return heads with opcode and extras."""
        mode = self._options.mode
        options = WithMetaOption.SKIP_CONFLICT_RESOLUTION if self._options.force else 0
        if mode == "append-meta":
            options |= WithMetaOption.IS_EXPIRATION if kind == EXPIRE else 0
            options |= WithMetaOption.FORCE_ACCEPT if _are_far_ahead(fields, rows) else 0
            layout = WITH_META_OPTIONS if options else WITH_META
            if self._metas.data:
                layout = WITH_META_OPTIONS_NMETA if options else WITH_META_NMETA
            opcode = Opcode.SETQ_WITH_META if kind == SET else Opcode.DELQ_WITH_META
        elif kind == SET:
            layout = STORE
            opcode = _STORES.get(mode, Opcode.SETQ)
        else:
            layout, opcode = BARE, Opcode.DELETEQ
        heads: Array = np.zeros(len(rows), layout)
        heads["opcode"] = opcode
        for name, values in fields.items():
            if name in heads.dtype.fields and (kind == SET or name != "datatype"):
                heads[name] = values[rows]
        if options:
            heads["options"] = options
        return heads

    def _joined(self, kind: int, rows: Array, heads: Array, keys: list[bytes]) -> list[bytes]:
        begins = _cut(heads)
        if kind != SET:
            frames = [begin + key for begin, key in zip(begins, keys, strict=True)]
        else:
            data = self._values.data
            starts = self._values.starts[rows].tolist()
            ends = self._values.starts[rows + 1].tolist()
            frames = [
                b"".join((head, key, data[start:end]))
                for head, key, start, end in zip(begins, keys, starts, ends, strict=True)
            ]
        if not self._metas.data:
            return frames
        metas = _slices(self._metas, rows)
        return [frame + meta for frame, meta in zip(frames, metas, strict=True)]


def _are_far_ahead(fields: dict[str, Array], rows: Array) -> bool:
    """Tell whether a node might refuse a CAS among these, because its clock is far behind it.

    A node whose clock was wrong has given it out. The request asks to accept it nevertheless.
    """
    limit = int((time.time() + _FAR_AHEAD_S) * 1_000_000_000)
    return bool((fields["document_cas"][rows] > limit).any())


def _cut(heads: Array) -> list[bytes]:
    data, size = heads.tobytes(), heads.dtype.itemsize
    return [data[begin : begin + size] for begin in range(0, len(data), size)]


def _slices(column: Bytes, rows: Array) -> list[bytes]:
    data = column.data
    starts, ends = column.starts[rows].tolist(), column.starts[rows + 1].tolist()
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def vbuckets_of(keys: list[bytes], vbuckets: int) -> Array:
    """Return where keys belong: `model.vbucket_of` for all of them at once, 0 without vBuckets."""
    if not vbuckets:
        return np.zeros(len(keys), np.uint16)
    sums = np.fromiter(map(crc32, keys), np.uint32, len(keys))
    return ((sums >> 16 & 0x7FFF) % vbuckets).astype(np.uint16)
