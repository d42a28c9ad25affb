"""Many items at once: their fixed fields by numpy, their keys and values by Arrow.

Keys and values are cut out of the received bytes by offsets: the bytes are looked at as one Arrow
column whose cells are key, value, rest, key, value, rest ..., of which every third is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from uprmc.columnar.errors import KeyNotText
from uprmc.columnar.read_state import ReadState
from uprmc.columnar.schema import DROP, PERMISSIVE, Columns
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode

SET, DELETE, EXPIRE = "set", "delete", "expire"

_NANOS_PER_MICRO = np.uint64(1_000)

#: Extras of a deletion from which on they tell when it was made.
_TIMED_BYTES = 20

_OPS = {Opcode.UPR_MUTATION: SET, Opcode.UPR_DELETION: DELETE, Opcode.UPR_EXPIRATION: EXPIRE}


@dataclass
class Rows:
    """Items in the order in which they came, as arrays.

    Attributes:
        records: header and extras of each, laid out as those of a mutation.
        position: of each in the received bytes.
        extras, key_length, length: as the header tells them.
        seqno: with sign.
        deleted: which are no mutations; ``None`` = none is one.
        uuids, uuid: names of histories, and which one each item belongs to.
        snap_start, snap_end, disk: of the snapshot that it came in.
    """

    records: Any
    position: Any
    extras: Any
    key_length: Any
    length: Any
    seqno: Any
    deleted: Any
    uuids: Sequence[str] = ()
    uuid: Any = None
    snap_start: Any = None
    snap_end: Any = None
    disk: Any = None

    @classmethod
    def of(cls, records: Any, position: Any) -> Rows:
        """Return rows of gathered records."""
        deleted = records["opcode"] != Opcode.UPR_MUTATION
        return cls(
            records,
            position,
            records["extras_length"].astype(np.int64),
            records["key_length"].astype(np.int64),
            records["body_length"].astype(np.int64),
            records["by_seqno"].astype(np.int64),
            deleted if deleted.any() else None,
        )

    def __len__(self) -> int:
        return len(self.position)

    @property
    def meta_bytes(self) -> Any:
        """Length of the extended metadata behind each value."""
        nmeta = self.records["nmeta"].astype(np.int64)
        if self.deleted is None:
            return nmeta
        return np.where(self.deleted, self.length - self.extras - self.key_length, nmeta)

    @property
    def payload_bytes(self) -> Any:
        """Bytes of key and value of each."""
        return self.length - self.extras - self.meta_bytes

    def torn(self, sizes: Mapping[int, Sequence[int]]) -> int | None:
        """Return the first item whose lengths contradict each other; `sizes`: extras by opcode."""
        good = (self.key_length > 0) & (self.payload_bytes >= self.key_length)
        opcode = self.records["opcode"]
        fits: Any = np.zeros(len(self), bool)
        for each, allowed in sizes.items():
            if each == Opcode.UPR_MUTATION or self.deleted is not None:
                for size in allowed:
                    fits |= (opcode == each) & (self.extras == size)
        good &= fits
        return None if good.all() else int(np.argmin(good))

    @property
    def vbucket(self) -> Any:
        """Of each."""
        return self.records["vbucket"].astype(np.int64)

    def count(self, states: Iterable[ReadState]) -> None:
        """Add them up for the streams that they are of."""
        if not len(self):
            return
        vbucket = self.vbucket
        rows = np.bincount(vbucket)
        sizes = np.bincount(vbucket, weights=self.payload_bytes)
        gone = rows * 0 if self.deleted is None else np.bincount(vbucket, weights=self.deleted)
        for state in states:
            if state.vbucket < len(rows):
                state.rows += int(rows[state.vbucket])
                state.bytes += int(sizes[state.vbucket])
                state.deletes += int(gone[state.vbucket])

    def where(self, mask: Any) -> Rows:
        """Return those of them that a mask names."""
        fields = {
            name: value[mask] if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }
        return Rows(**fields)


def build(
    columns: Columns, schema: Any, buffer: Any, rows: Rows, *, no_value: bool
) -> tuple[Any, Rows]:
    """Return a record batch of rows whose bytes are in `buffer`, and which rows it has.

    The batch shares no memory with the buffer.

    Raises:
        KeyNotText: see `Columns.mode`.
    """
    cut = _Cut(buffer, rows)
    arrays = [_column(name, columns, rows, cut, no_value) for name in columns.names]
    if columns.mode == DROP and columns.wants_key:
        keys = arrays[columns.names.index("key")]
        if keys.null_count:
            good = rows.where(keys.is_valid().to_numpy(zero_copy_only=False))
            return build(columns, schema, buffer, good, no_value=no_value)
    return pa.RecordBatch.from_arrays(arrays, schema=schema), rows


def _column(name: str, columns: Columns, rows: Rows, cut: _Cut, no_value: bool) -> Any:
    if name == "key":
        return _keys(columns, rows, cut)
    if name == "value":
        return pa.nulls(len(rows), pa.binary()) if no_value else cut.values()
    if name == "_meta":
        return cut.metas()
    if name in ("_rev", "_cas"):
        return _u64(rows.records["rev_seqno" if name == "_rev" else "cas"], columns)
    return _OF_ROWS[name](rows)


def _expiry(rows: Rows) -> Any:
    """When a document expires, or when a deletion was made."""
    records, timed = rows.records, 0
    if rows.deleted is not None:
        timed = np.where(rows.extras >= _TIMED_BYTES, records["flags"], 0)
    return _of_sets(records["expiration"], rows.deleted, timed)


def _ops(rows: Rows) -> Any:
    if rows.deleted is None:
        return pa.array([SET], pa.string()).take(pa.array(np.zeros(len(rows), np.int32)))
    opcode = rows.records["opcode"]
    codes: Any = np.zeros(len(rows), np.int32)
    for number, each in enumerate(_OPS):
        codes[opcode == each] = number
    return pa.array(list(_OPS.values()), pa.string()).take(pa.array(codes))


def _of_sets(field: Any, deleted: Any, otherwise: Any) -> Any:
    """A number that only mutations carry at that place."""
    numbers = field.astype(np.int64)
    return pa.array(numbers if deleted is None else np.where(deleted, otherwise, numbers))


def _u64(field: Any, columns: Columns) -> Any:
    numbers = field.astype(np.uint64)
    if columns.u64 == "signed":
        return pa.array(numbers.view(np.int64))
    halves: Any = np.zeros((len(numbers), 2), np.uint64)
    halves[:, 0] = numbers
    buffers = [None, pa.py_buffer(halves)]
    return pa.Array.from_buffers(pa.decimal128(20, 0), len(numbers), buffers)


def _time(rows: Rows) -> Any:
    """When each version was made: a CAS is a hybrid clock in nanoseconds."""
    micros = (rows.records["cas"].astype(np.uint64) // _NANOS_PER_MICRO).astype(np.int64)
    return pa.array(micros, pa.timestamp("us", tz="UTC"))


_OF_ROWS: dict[str, Callable[[Rows], Any]] = {
    "_op": _ops,
    "_vb": lambda rows: pa.array(rows.records["vbucket"].astype(np.int32)),
    "_seq": lambda rows: pa.array(rows.seqno),
    "_flags": lambda rows: _of_sets(rows.records["flags"], rows.deleted, 0),
    "_exp": _expiry,
    "_lock": lambda rows: _of_sets(rows.records["lock_time"], rows.deleted, 0),
    "_vbuuid": lambda rows: pa.array(list(rows.uuids), pa.string()).take(pa.array(rows.uuid)),
    "_datatype": lambda rows: pa.array(rows.records["datatype"].astype(np.int32)),
    "_snap_start": lambda rows: pa.array(rows.snap_start),
    "_snap_end": lambda rows: pa.array(rows.snap_end),
    "_time": _time,
    "_backfill": lambda rows: pa.array(rows.disk),
}


# --- keys and values ------------------------------------------------------------------------------


class _Cut:
    """The received bytes as one column of key, value, metadata, rest, key, ..."""

    def __init__(self, buffer: Any, rows: Rows) -> None:
        self._rows = rows
        self._count = len(rows)
        self._cells = self._all(buffer) if self._count else pa.array([], pa.binary())

    def _all(self, buffer: Any) -> Any:
        rows = self._rows
        key_at = rows.position + HEADER_BYTES + rows.extras
        end = rows.position + HEADER_BYTES + rows.length
        offsets: Any = np.empty((self._count, 4), np.int32)
        offsets[:, 0] = key_at
        offsets[:, 1] = key_at + rows.key_length
        offsets[:, 2] = end - rows.meta_bytes
        offsets[:, 3] = end
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
        return pa.Array.from_buffers(pa.binary(), 4 * self._count - 1, buffers)

    def keys(self) -> Any:
        return self._take(0, None)

    def values(self) -> Any:
        return self._take(1, self._rows.deleted)

    def metas(self) -> Any:
        absent = self._rows.meta_bytes == 0
        return self._take(2, absent)

    def _take(self, first: int, absent: Any) -> Any:
        numbers: Any = np.arange(first, 4 * self._count, 4, dtype=np.int32)
        return self._cells.take(pa.array(numbers, mask=absent))


def _keys(columns: Columns, rows: Rows, cut: _Cut) -> Any:
    keys = cut.keys()
    if columns.key_type == "binary":
        return keys
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(columns, rows, *each) for each in enumerate(keys.to_pylist())],
                        pa.string())  # fmt: skip


def _text(columns: Columns, rows: Rows, number: int, key: bytes) -> str | None:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        if columns.mode == PERMISSIVE:
            return key.decode("utf-8", "backslashreplace")
        if columns.mode == DROP:
            return None
        vbucket, seqno = int(rows.records["vbucket"][number]), int(rows.seqno[number])
        raise KeyNotText(
            f"vb={vbucket} seq={seqno} key={key.hex()} is no UTF-8: use keyType=binary, or a mode"
        ) from None
