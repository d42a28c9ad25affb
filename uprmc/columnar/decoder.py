"""Bytes of a stream to Arrow: the hot path of every read.

`scan` looks at 24 bytes of each frame, to find the next one, and gathers the fixed fields;
everything else is done for a block of thousands of rows at once. Arrow gathers keys and values by
offsets into the received bytes, so no Python object is made of a row. Frames that are no items are
rare and are remembered with their place among the items: what a block holds is judged in the order
in which it came.

A block in which anything is what no node may send is not handed on at all.

See `docs/streams.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from uprmc.columnar.errors import KeyNotText
from uprmc.columnar.read_state import ReadState, StreamEnd
from uprmc.columnar.records import FRAME_SCAN, MUTATION
from uprmc.columnar.schema import DROP, PERMISSIVE, Columns
from uprmc.core import form
from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import REQUEST_HEADER, ResponseFrame, decode_frame
from uprmc.protocol.opcodes import (
    FRAME_MAX_BYTES,
    HEADER_BYTES,
    MAGIC_REQUEST,
    MAGIC_RESPONSE,
    EndReason,
    Opcode,
    Status,
    opcode_name,
)
from uprmc.protocol.upr import (
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    STREAM_END_EXTRAS,
    TIMED_DELETION_EXTRAS,
    decode_marker,
)
from uprmc.remote.conversation import KEEP_ALIVES
from uprmc.remote.errors import NodeNonsense
from uprmc.remote.history import read_log
from uprmc.remote.stream import StreamFault

# --- rows ----------------------------------------------------------------------------------------
# Many items at once: their fixed fields by numpy, their keys and values by Arrow.
#
# Keys and values are cut out of the received bytes by offsets: the bytes are looked at as one Arrow
# column whose cells are key, value, rest, key, value, rest ..., of which every third is taken.


SET, DELETE, EXPIRE = "set", "delete", "expire"

_NANOS_PER_MICRO = np.uint64(1_000)

#: Extras of a deletion from which on they tell when it was made.
_TIMED_BYTES = 20

_OPS = {Opcode.UPR_MUTATION: SET, Opcode.UPR_DELETION: DELETE, Opcode.UPR_EXPIRATION: EXPIRE}


@dataclass
class Rows:
    """Items in the order in which they came, as arrays."""

    records: Any  # header and extras of each, laid out as those of a mutation
    position: Any  # of each in the received bytes
    extras: Any  # extras, key_length, length: as the header tells them
    key_length: Any
    length: Any
    seqno: Any  # with sign
    deleted: Any  # which are no mutations; ``None`` = none is one
    uuids: Sequence[str] = ()  # uuids, uuid: names of histories, and which one each item belongs to
    uuid: Any = None
    snap_start: Any = None  # snap_start, snap_end, disk: of the snapshot that it came in
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


# --- scanning -------------------------------------------------------------------------------------
# Where the frames of received bytes are, and the fixed fields of those that are items.
#
# `interpreted` finds them where `uprmc.core.native.columns` does not run, which does the same.


ITEMS = (Opcode.UPR_MUTATION, Opcode.UPR_DELETION, Opcode.UPR_EXPIRATION)

_HEADS = frozenset(MAGIC_REQUEST << 8 | opcode for opcode in ITEMS)
#: Behind the received bytes, so that a short frame at the end has the fields of a mutation, too.
_MARGIN = bytes(MUTATION.itemsize)


class Scanned(NamedTuple):
    """What was found."""

    # Header and extras of each item, laid out as those of a mutation: as bytes, which are joined
    # at less cost than arrays of records.
    records: bytes
    positions: Any  # where each begins
    # Of frames that are no items, how many items come before, the begin and the end.
    others: list[tuple[int, int, int]]
    end: int  # where the first frame begins that has not come completely


def scan(received: memoryview) -> Scanned:
    """Find the frames in received bytes."""
    data = b"".join((received, _MARGIN))
    records, positions, others, end = _scan(data, len(received))
    return Scanned(records, np.frombuffer(positions, np.int64), others, end)


def interpreted(data: bytes, size: int) -> tuple[bytes, bytes, list[tuple[int, int, int]], int]:
    """Return what `Scanned` has of the first `size` bytes; the others are 0."""
    positions: list[int] = []
    others: list[tuple[int, int, int]] = []
    unpack, heads, append = FRAME_SCAN.unpack_from, _HEADS, positions.append
    at, last = 0, size - HEADER_BYTES
    while at <= last:
        head, length = unpack(data, at)
        end = at + HEADER_BYTES + length
        if end > size:
            break
        if head in heads:
            append(at)
        else:
            others.append((len(positions), at, end))
        at = end
    places = np.array(positions, np.int64)
    shape = (len(data) - len(_MARGIN) + 1,)
    records = np.ndarray(shape, MUTATION, data, strides=(1,))[places]
    return records.tobytes(), places.tobytes(), others, at


if form.FORM == form.COMPILED and not TYPE_CHECKING:
    from uprmc.core.native.columns import scan as _scan
else:
    _scan = interpreted


# --- runs -----------------------------------------------------------------------------------------
# Whether a block of frames is what a node may send, in the order in which it came.
#
# Rows are judged by the run: items of one stream that follow one another with nothing between.
# A rising order within a run is seen by numpy, everything else by its first and last seqno.


class Other(NamedTuple):
    """A frame that is no item, and before which item it came."""

    row: int
    frame: bytes


class Judged:
    """A block of frames that has been checked.

    Raises:
        ValueError: something may not be sent; the text says what.
    """

    def __init__(
        self, find: Callable[[int, int], ReadState], rows: Rows, others: Sequence[Other]
    ) -> None:
        self._find, self._rows = find, rows
        self._runs: list[_Run] = []
        self._seen: dict[ReadState, None] = {}
        self.ended: list[ReadState] = []  # those of which all has come
        self._walk(others)
        self._check_vbuckets()
        self.rows = self._kept()  # those that are wanted
        self.states = list(self._seen)  # whose rows these are, in order of their first

    # --- in order -------------------------------------------------------------------------------

    def _walk(self, others: Sequence[Other]) -> None:
        starts = self._starts(others)
        ends = [*starts[1:], len(self._rows)]
        records, seqno, at = self._rows.records, self._rows.seqno, np.array(starts, np.int64)
        runs = zip(
            starts,
            ends,
            records["opaque"][at].tolist(),
            records["vbucket"][at].tolist(),
            seqno[at].tolist(),
            seqno[np.array(ends[: len(starts)], np.int64) - 1].tolist(),
            strict=False,
        )
        number = 0
        for start, end, opaque, vbucket, first, last in runs:
            while number < len(others) and others[number].row <= start:
                self._told(others[number].frame)
                number += 1
            self._run(start, end, self._find(opaque, vbucket), first, last)
        for other in others[number:]:
            self._told(other.frame)

    def _starts(self, others: Sequence[Other]) -> list[int]:
        """Return where runs begin."""
        count = len(self._rows)
        if not count:
            return []
        opaque, seqno = self._rows.records["opaque"], self._rows.seqno
        found = {0, *(np.flatnonzero(opaque[1:] != opaque[:-1]) + 1).tolist()}
        found.update(other.row for other in others if other.row < count)
        falls: list[int] = (np.flatnonzero(seqno[1:] <= seqno[:-1]) + 1).tolist()
        for fall in falls:
            if fall not in found:
                vbucket = self._rows.records["vbucket"][fall]
                raise ValueError(f"vb={vbucket}: seqno {seqno[fall]} after {seqno[fall - 1]}")
        return sorted(found)

    def _run(self, start: int, end: int, state: ReadState, first: int, last: int) -> None:
        wanted = end
        if state.stream.dropped:
            wanted = start
        else:
            state.items(first, last)
            limit = state.range.end
            if limit is not None and last > limit:
                at = np.searchsorted(self._rows.seqno[start:end], limit, side="right")
                wanted = start + int(at)
        self._runs.append(_Run(state, start, end, wanted, first))
        if wanted > start:
            self._seen[state] = None

    def _told(self, frame: bytes) -> None:
        magic, opcode, _, extras_length, _, vbucket, _, opaque, _ = REQUEST_HEADER.unpack_from(
            frame
        )
        value_at = HEADER_BYTES + extras_length
        extras, value = frame[HEADER_BYTES:value_at], frame[value_at:]
        if magic == MAGIC_RESPONSE:
            self._answered(opcode, vbucket, opaque, value)
            return
        state = self._find(opaque, vbucket)
        if opcode == Opcode.UPR_SNAPSHOT_MARKER:
            _judge(state, lambda: state.marker(decode_marker(extras, value)))
        elif opcode == Opcode.UPR_STREAM_END:
            self._end(state, STREAM_END_EXTRAS.unpack(extras)[0])
        else:
            raise ValueError(f"vb={vbucket}: an unexpected {opcode_name(opcode)}")

    def _answered(self, opcode: int, status: int, opaque: int, value: bytes) -> None:
        if opcode == Opcode.UPR_STREAM_REQUEST and status == Status.SUCCESS:
            state = self._find(opaque, -1)
            _judge(state, lambda: state.accept(read_log(value)))
        elif opcode == Opcode.UPR_CLOSE_STREAM:
            state = self._find(opaque, -1)
            state.ended = True
            self.ended.append(state)

    def _end(self, state: ReadState, reason: int) -> None:
        if reason == EndReason.OK and not state.stream.dropped:
            _judge(state, state.finish)
            self.ended.append(state)

    # --- all at once ----------------------------------------------------------------------------

    def _check_vbuckets(self) -> None:
        told = self._rows.vbucket
        meant = self._spread([each.state.vbucket for each in self._runs], np.int64)
        if not np.array_equal(told, meant):
            at = int(np.argmax(told != meant))
            raise ValueError(f"vb={told[at]} in a stream of vb={meant[at]}")

    def _kept(self) -> Rows:
        rows, runs = self._rows, self._runs
        self._name_histories()
        rows.snap_start = self._spread([each.snap_start for each in runs], np.int64)
        rows.snap_end = self._spread([each.snap_end for each in runs], np.int64)
        rows.disk = self._spread([each.disk for each in runs], bool)
        if all(each.wanted == each.end for each in runs):
            return rows
        mask: Any = np.zeros(len(rows), bool)
        for each in runs:
            mask[each.start : each.wanted] = True
        return rows.where(mask)

    def _name_histories(self) -> None:
        """Which history each row belongs to: nearly always the newest, for a whole run."""
        rows = self._rows
        numbers: dict[int, int] = {}
        codes: Any = np.empty(len(rows), np.int32)
        for each in self._runs:
            log = each.state.log or ((0, 0),)
            if each.first > log[0][1]:
                codes[each.start : each.end] = numbers.setdefault(log[0][0], len(numbers))
                continue
            ours = [numbers.setdefault(uuid, len(numbers)) for uuid, _ in reversed(log)]
            begins = [seqno for _, seqno in reversed(log)]
            at = np.searchsorted(begins, rows.seqno[each.start : each.end], side="left") - 1
            codes[each.start : each.end] = np.array(ours, np.int32)[np.maximum(at, 0)]
        rows.uuids = [f"{uuid:016x}" for uuid in numbers]
        rows.uuid = codes

    def _spread(self, values: list[Any], kind: Any) -> Any:
        """One value for each run as one for each row."""
        counts = [each.end - each.start for each in self._runs]
        return np.repeat(np.array(values, kind), np.array(counts, np.int64))


class _Run:
    """Rows from `start` to `end`, of which those before `wanted` are."""

    __slots__ = ("disk", "end", "first", "snap_end", "snap_start", "start", "state", "wanted")

    def __init__(self, state: ReadState, start: int, end: int, wanted: int, first: int) -> None:
        self.state, self.start, self.end, self.wanted = state, start, end, wanted
        self.first = first
        self.snap_start, self.snap_end, self.disk = state.snap_start, state.stream.high, state.disk


def _judge(state: ReadState, told: Callable[[], None]) -> None:
    try:
        told()
    except StreamFault:
        raise  # names the vBucket itself
    except (ValueError, struct.error, RemoteProtocolError) as error:
        raise ValueError(f"vb={state.vbucket}: {error}") from None


# --- decoder --------------------------------------------------------------------------------------


#: Asked of the socket at a time.
READ_BYTES = 1024 * 1024

#: The least that is asked of it, however small a block is to be.
READ_BYTES_MIN = 64 * 1024

_NO_POSITIONS: Any = np.zeros(0, np.int64)
_EXTRAS_BYTES: dict[int, tuple[int, ...]] = {
    Opcode.UPR_MUTATION: (MUTATION_EXTRAS.size,),
    Opcode.UPR_DELETION: (DELETION_EXTRAS.size, TIMED_DELETION_EXTRAS.size),
    Opcode.UPR_EXPIRATION: (DELETION_EXTRAS.size, EXPIRATION_EXTRAS.size),
}


class Noop(NamedTuple):
    """The node wants to know whether we live."""

    opcode: int
    opaque: int


Notice = ResponseFrame | Noop | StreamEnd


class Block(NamedTuple):
    """Rows in the order in which they came."""

    batch: Any  # an Arrow record batch, perhaps without rows
    vbuckets: Any  # of each row
    states: list[ReadState]  # whose rows it has
    ended: list[ReadState]  # those of which all has come with it

    def without(self, lost: set[int]) -> Block:
        """Return the block without the rows of some vBuckets."""
        mask = np.isin(self.vbuckets, list(lost), invert=True)
        states = [each for each in self.states if each.vbucket not in lost]
        return Block(self.batch.filter(pa.array(mask)), self.vbuckets[mask], states, self.ended)


class ColumnDecoder:
    """Decodes the bytes of one connection's streams.

    Bytes are received into `room`, then `received` is called.
    """

    def __init__(
        self,
        place: str,
        columns: Columns,
        *,
        rows: int,
        size_bytes: int,
        no_value: bool = False,
    ) -> None:
        self.place = place  # who sends, for messages
        self.states: dict[int, ReadState] = {}  # streams that were asked for, by opaque
        self.counted_bytes = 0  # bytes received since it was reset that flow control counts
        self._columns, self._schema = columns, columns.schema
        self._no_value = no_value
        # when a block is full; its rows are the other limit
        self._rows, self.size_bytes = rows, size_bytes
        self._forget()
        self._filled = self._scanned = 0
        self._buffer = bytearray(READ_BYTES)

    def _forget(self) -> None:
        """Begin a block."""
        self._records: list[bytes] = []
        self._positions: list[Any] = []
        self._count = 0
        self._others: list[Other] = []

    # --- bytes in -------------------------------------------------------------------------------

    def room(self) -> memoryview:
        """Return where the next bytes are to be put."""
        if len(self._buffer) - self._filled < READ_BYTES // 4:
            self._allocate(self._filled * 2 + READ_BYTES)
        most = min(READ_BYTES, max(READ_BYTES_MIN, self.size_bytes))
        end = min(len(self._buffer), self._filled + most)
        return memoryview(self._buffer)[self._filled : end]

    def received(self, count: int) -> list[Notice]:
        """Look for frames in what has come; returns those that are waited for.

        Raises:
            NodeNonsense: these are no frames.
        """
        self._filled += count
        notices: list[Notice] = []
        began = self._scanned
        found = scan(memoryview(self._buffer)[began : self._filled])
        for rows, start, end in found.others:
            self.counted_bytes -= self._other(
                self._count + rows, began + start, began + end, notices
            )
        self._records.append(found.records)
        self._positions.append(found.positions + began)
        self._count += len(found.positions)
        self._scanned = began + found.end
        self.counted_bytes += found.end
        if self._filled - self._scanned >= HEADER_BYTES:
            self._check_size(*FRAME_SCAN.unpack_from(self._buffer, self._scanned))
        return notices

    @property
    def full(self) -> bool:
        """Whether it is time to `take` what has come."""
        return self._count >= self._rows or self._scanned >= self.size_bytes

    @property
    def drained(self) -> bool:
        """Whether all that has come was decoded: no frame is there in part."""
        return self._filled == self._scanned

    def take(self) -> Block:
        """Return everything complete that has come.

        Raises:
            NodeNonsense: it contradicts itself, or what was asked for.
            KeyNotText: see `Columns.mode`.
        """
        try:
            judged = Judged(self._state, self._gathered(), self._others)
        except (ValueError, struct.error) as error:
            raise self.protocol_error(str(error)) from None
        batch, rows = build(
            self._columns, self._schema, self._buffer, judged.rows, no_value=self._no_value
        )
        rows.count(judged.states)
        self._forget()
        self._close_up()
        return Block(batch, rows.vbucket, judged.states, judged.ended)

    def protocol_error(self, what: str) -> NodeNonsense:
        """Return what to raise of bytes that make no sense."""
        return NodeNonsense(f"{self.place} sent {what}; nothing of it was used")

    # --- the buffer -----------------------------------------------------------------------------

    def _allocate(self, size: int) -> None:
        buffer = bytearray(size)
        if self._filled:
            buffer[: self._filled] = memoryview(self._buffer)[: self._filled]
        self._buffer = buffer

    def _close_up(self) -> None:
        """Move a frame of which only a part has come to the beginning."""
        rest = bytes(memoryview(self._buffer)[self._scanned : self._filled])
        if len(self._buffer) > 2 * self.size_bytes + 2 * READ_BYTES:
            self._filled = 0
            self._allocate(max(READ_BYTES, self.size_bytes) + len(rest))
        self._buffer[: len(rest)] = rest
        self._filled, self._scanned = len(rest), 0

    def _check_size(self, head: int, length: int) -> None:
        magic, opcode = divmod(head, 256)
        if magic not in (MAGIC_REQUEST, MAGIC_RESPONSE):
            raise self.protocol_error(f"what is no frame (magic {magic:#04x})")
        if length > FRAME_MAX_BYTES:
            raise self.protocol_error(f"{opcode_name(opcode)} with a body of {length} bytes")

    # --- frames that are no items ---------------------------------------------------------------

    def _other(self, row: int, position: int, end: int, notices: list[Notice]) -> int:
        """Look at a frame that is rare; returns its bytes if flow control leaves it out."""
        frame = bytes(memoryview(self._buffer)[position:end])
        magic, opcode, key_length, extras_length, _, vbucket, length, opaque, _ = (
            REQUEST_HEADER.unpack_from(frame)
        )
        self._check_size(magic << 8 | opcode, length)
        if key_length + extras_length > length:
            raise self.protocol_error(f"a torn {opcode_name(opcode)}")
        if magic == MAGIC_RESPONSE:
            answer = decode_frame(frame)
            assert isinstance(answer, ResponseFrame)
            notices.append(answer)
            self._others.append(Other(row, frame))
            return end - position
        if opcode in KEEP_ALIVES:
            notices.append(Noop(opcode, opaque))
            return end - position
        if opcode == Opcode.UPR_STREAM_END:
            notices.append(self._stream_end(frame, opaque, vbucket))
        self._others.append(Other(row, frame))
        return 0

    def _stream_end(self, frame: bytes, opaque: int, vbucket: int) -> StreamEnd:
        try:
            (reason,) = STREAM_END_EXTRAS.unpack(frame[HEADER_BYTES:])
            return StreamEnd(self._state(opaque, vbucket), reason)
        except (ValueError, struct.error) as error:
            raise self.protocol_error(f"a torn end of vb={vbucket}: {error}") from None

    def _state(self, opaque: int, vbucket: int) -> ReadState:
        """Return the stream of a frame; vBucket -1 = any. Raises `ValueError`."""
        state = self.states.get(opaque)
        if state is None:
            raise ValueError(f"a frame of a stream of vb={vbucket} that was never requested")
        if vbucket not in (state.vbucket, -1):
            raise ValueError(f"vb={vbucket} in a stream of vb={state.vbucket}")
        return state

    # --- items ----------------------------------------------------------------------------------

    def _gathered(self) -> Rows:
        """Gather the fixed fields of all items; raises `ValueError` for one that is torn."""
        records = np.frombuffer(b"".join(self._records), MUTATION)
        positions = np.concatenate([_NO_POSITIONS, *self._positions])
        rows = Rows.of(records, positions)
        torn = rows.torn(_EXTRAS_BYTES)
        if torn is not None:
            vbucket, seqno = int(rows.records["vbucket"][torn]), int(rows.seqno[torn])
            raise ValueError(f"a torn item of vb={vbucket} at seqno {seqno}")
        return rows
