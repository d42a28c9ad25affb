"""From an Arrow batch to request frames.

All heads of a batch are packed at once by numpy, as the records say; then each row costs
three slices, one checksum and one concatenation. A frame's opaque is its place in its piece: that
is how an answer finds its row, however the rows are spread over nodes and windows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
import pyarrow as pa

from uprmc.columnar.error_rows import ErrorRow
from uprmc.columnar.records import (
    BARE,
    STORE,
    WITH_META,
    WITH_META_NMETA,
    WITH_META_OPTIONS,
    WITH_META_OPTIONS_NMETA,
)
from uprmc.columnar.request_rows import DELETE, EXPIRE, SET, RequestRows
from uprmc.columnar.write_columns import Array, Bytes
from uprmc.columnar.write_options import WriteOptions
from uprmc.protocol.management import WithMetaOption
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, Opcode

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
        batch: the rows.
        first_row: the first one's number in the task.
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
