"""Changes that came together: columns over the bytes as they came, and `Change` only on demand.

A `Batch` holds items of any number of streams that a decoder has judged: in the order in which they
came, each stream's by rising seqno. Its `runs` say which belong together. No batch has an item of
a vBucket behind the end of a snapshot of that vBucket: behind such an end the next batch begins. So
each vBucket is, when a batch was applied, either inside of a snapshot or at the end of one.

Only what every consumer needs is read at once: seqnos and keys. The rest is read from the bytes
when it is asked for, so a batch that is kept keeps all bytes that came with it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from uprmc.model import Origin
from uprmc.protocol.header import unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode
from uprmc.protocol.origins import decode_origin
from uprmc.protocol.upr import (
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_FRAME,
    TIMED_DELETION_EXTRAS,
    Marker,
)
from uprmc.remote.mutations import SEQNO_LIMIT, take_mutations, values_of
from uprmc.remote.stream import StreamState
from uprmc.rollback import origin_here

SET = "set"
DELETE = "delete"
EXPIRE = "expire"

_MUTATION = int(Opcode.UPR_MUTATION)
_EXPIRATION = int(Opcode.UPR_EXPIRATION)
_MUTATION_BYTES = MUTATION_FRAME.size
_CAS = struct.Struct(">16xQ")


class Change(NamedTuple):
    """A document was set, deleted, or has expired.

    What the node did not send is ``None``: a value that was not asked for, and whatever only sets
    or only deletions have. Times are Unix seconds; 0 = never, or not known.
    """

    op: str  # ``set``, ``delete`` or ``expire``
    vbucket: int  # the vBucket that has changed
    seqno: int  # place in the vBucket's order
    vb_uuid: int  # the branch of history in which that seqno was given
    key: bytes  # 1 to 250 bytes
    value: bytes | None  # the body
    rev: int  # count of changes of the document
    cas: int  # version stamp
    flags: int | None = None  # 32 bits of the client that wrote it
    expiry: int | None = None  # when it expires
    datatype: int | None = None  # bits of `protocol.opcodes.DataType`
    deleted_at: int | None = None  # when it went


class Run:
    """Items of one stream that follow one another in a batch, all of one snapshot.

    Attributes:
        first, last: indices in the batch, from `first` to below `last`; perhaps there are none.
    """

    __slots__ = ("begun", "done", "first", "last", "stream")

    def __init__(
        self,
        stream: StreamState,
        first: int,
        begun: tuple[int, int, int, int] | None = None,
        last: int | None = None,
        done: int | None = None,
    ) -> None:
        self.stream = stream  # the stream that the items came by
        self.first = first
        # The marker before the first item, if one came; its fields as in `Marker`.
        self.begun = begun
        self.last = first if last is None else last
        self.done = done  # the end of the snapshot, if all of it has come


class Batch:
    """Changes that came together.

    Attributes:
        seqnos, keys: of all items.
    """

    def __init__(self, data: bytes, *, has_values: bool = True) -> None:
        self.seqnos: list[int] = []
        self.keys: list[bytes] = []
        self.positions: list[int] = []  # where the frame of each item begins among the bytes
        self.ends: list[int] = []  # where the value of each item ends, 0 = it is a deletion
        self.runs: list[Run] = []  # which items belong together
        self._data = data
        self._has_values = has_values

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Change]:
        for run in self.runs:
            yield from self.changes_of(run)

    def take(self, position: int, end: int, stream: StreamState) -> int:
        """Add the plain mutations of a stream that stand in the bytes; return where they end.

        `end` is where the bytes end. `Received.settle` must follow if there is anything.
        """
        low, high = min(stream.low, SEQNO_LIMIT), min(stream.high, SEQNO_LIMIT)
        opaque, vbucket = stream.opaque, stream.vbucket
        stop = take_mutations(self._data, position, end, opaque, vbucket, low, high, *self.columns)
        if stop > position:
            stream.seqno = stream.low = self.seqnos[-1]
        return stop

    @property
    def columns(self) -> tuple[list[int], list[bytes], list[int], list[int]]:
        """What is read of all items."""
        return self.seqnos, self.keys, self.positions, self.ends

    def append(self, seqno: int, key: bytes, position: int, value_end: int) -> None:
        """Add an item to the last run."""
        self.seqnos.append(seqno)
        self.keys.append(key)
        self.positions.append(position)
        self.ends.append(value_end)

    @property
    def kept_bytes(self) -> int:
        """All bytes that came with it."""
        return len(self._data)

    @cached_property
    def vbuckets(self) -> list[int]:
        """The vBucket of each item."""
        found: list[int] = []
        for run in self.runs:
            found += [run.stream.vbucket] * (run.last - run.first)
        return found

    @cached_property
    def values(self) -> list[bytes | None]:
        """The value of each item; ``None`` for deletions, and where values were not asked for."""
        if not self._has_values:
            return [None] * len(self)
        return values_of(self._data, _MUTATION_BYTES, self.positions, self.keys, self.ends)

    @cached_property
    def ops(self) -> list[str]:
        """``set``, ``delete`` or ``expire``, for each item."""
        data = self._data
        return [_OPS[data[position + 1]] for position in self.positions]

    @cached_property
    def cas(self) -> list[int]:
        """The CAS of each item."""
        data, unpack = self._data, _CAS.unpack_from
        return [unpack(data, position)[0] for position in self.positions]

    @cached_property
    def origins(self) -> list[Origin]:
        """Where each item was first accepted, if the connection has asked for origins.

        Raises:
            RemoteProtocolError: extended metadata that is malformed.
        """
        return [
            self._origin_at(self.positions[index]) or origin_here(stream.log, self.seqnos[index])
            for stream, index in self._streamed()
        ]

    def _streamed(self) -> Iterator[tuple[StreamState, int]]:
        for run in self.runs:
            for index in range(run.first, run.last):
                yield run.stream, index

    def _origin_at(self, position: int) -> Origin | None:
        """Read the origin in the frame that begins here."""
        data = self._data
        _, opcode, key_bytes, extras_bytes, _, _, body_bytes, _, _ = unpack_request(data, position)
        end = position + HEADER_BYTES + body_bytes
        meta_at = position + HEADER_BYTES + extras_bytes + key_bytes
        if opcode == _MUTATION:
            meta_at = end - MUTATION_FRAME.unpack_from(data, position)[11]
        return decode_origin(data[meta_at:end])

    @cached_property
    def changes(self) -> list[Change]:
        """All items as `Change`, with all that is known of them."""
        return list(self)

    @property
    def whole(self) -> dict[int, int]:
        """The vBuckets that are at the end of a snapshot behind this batch, and which end."""
        return {run.stream.vbucket: run.done for run in self.runs if run.done is not None}

    def changes_of(self, run: Run) -> list[Change]:
        """Return the items of a run."""
        make = self._change
        return [make(run.stream, index) for index in range(run.first, run.last)]

    def _change(self, stream: StreamState, index: int) -> Change:
        data, position, end = self._data, self.positions[index], self.ends[index]
        if not end:
            return self._deletion(stream, index)
        _, _, place, _, _, cas, seqno, rev, flags, expiry, _, _, _ = MUTATION_FRAME.unpack_from(
            data, position
        )
        key = self.keys[index]
        value = data[position + _MUTATION_BYTES + len(key) : end] if self._has_values else None
        uuid = stream.uuid if seqno > stream.branch_at else stream.history_of(seqno)
        datatype = place >> 16 & 0xFF
        return tuple.__new__(
            Change,
            (SET, stream.vbucket, seqno, uuid, key, value, rev, cas, flags, expiry,
             datatype, None),
        )  # fmt: skip

    def _deletion(self, stream: StreamState, index: int) -> Change:
        data, position = self._data, self.positions[index]
        extras_at = position + HEADER_BYTES
        seqno, rev, deleted_at = deletion_numbers(data[extras_at : extras_at + data[position + 4]])
        op, (cas,) = _OPS[data[position + 1]], _CAS.unpack_from(data, position)
        uuid, key = stream.history_of(seqno), self.keys[index]
        return Change(op, stream.vbucket, seqno, uuid, key, None, rev, cas, None, None, None,
                      deleted_at)  # fmt: skip

    def wanted(self) -> Batch:
        """Return the batch without the items of streams that were dropped, itself if none was."""
        for run in self.runs:
            if run.stream.dropped:
                return self.without({run.stream for run in self.runs if run.stream.dropped})
        return self

    def without(self, unwanted: set[StreamState]) -> Batch:
        """Return the batch without the items of some streams."""
        found = Batch(self._data, has_values=self._has_values)
        for run in self.runs:
            if run.stream not in unwanted:
                kept = Run(run.stream, len(found), run.begun)
                found.seqnos += self.seqnos[run.first : run.last]
                found.keys += self.keys[run.first : run.last]
                found.positions += self.positions[run.first : run.last]
                found.ends += self.ends[run.first : run.last]
                kept.last, kept.done = len(found), run.done
                found.runs.append(kept)
        return found


_OPS = {
    _MUTATION: SET,
    int(Opcode.UPR_DELETION): DELETE,
    _EXPIRATION: EXPIRE,
}


def deletion_numbers(extras: bytes) -> tuple[int, int, int]:
    """Return seqno, revision and time that the extras of a deletion or an expiration tell.

    Raises:
        struct.error: they have none of the three forms.
    """
    if len(extras) == TIMED_DELETION_EXTRAS.size:
        seqno, rev, deleted_at, _ = TIMED_DELETION_EXTRAS.unpack(extras)
        return seqno, rev, deleted_at
    if len(extras) == EXPIRATION_EXTRAS.size:
        seqno, rev, deleted_at = EXPIRATION_EXTRAS.unpack(extras)
        return seqno, rev, deleted_at
    seqno, rev, _ = DELETION_EXTRAS.unpack(extras)
    return seqno, rev, 0


class Received:
    """What one piece of data has brought, in order: batches, and events of the decoder's own."""

    def __init__(self, data: bytes, *, has_values: bool = True) -> None:
        self.events: list[Any] = []  # all of it
        self.batch: Batch | None = None  # where the next item goes; ``None`` = into a new one
        self._data = data
        self._has_values = has_values
        self._complete: set[StreamState | None] = set()

    def add(self, event: object) -> None:
        """Put an event behind everything that has come; later items do not overtake it."""
        self.events.append(event)
        self.batch = None

    def begin(self, stream: StreamState, marker: Marker) -> Run:
        """Take a snapshot marker; returns where its items go; `settle` must follow.

        Raises:
            StreamFault: it does not fit what came before.
        """
        completed = stream.announce(marker)
        if completed is not None:
            self._done(stream, completed)
        return self._new_run(stream, marker)

    def complete(self, stream: StreamState) -> None:
        """All of the snapshot was sent."""
        end = stream.complete()
        if end is not None:
            self._done(stream, end)

    def run_of(self, stream: StreamState) -> Run:
        """Return where the next item of a stream goes; `settle` must follow."""
        batch = self.batch
        if batch is not None and batch.runs and stream not in self._complete:
            run = batch.runs[-1]
            if run.stream is stream:
                return run
        return self._new_run(stream)

    def settle(self, run: Run, seqno: int) -> None:
        """Note that items up to `seqno` were added to the last run, or none."""
        stream = run.stream
        last = run.last = len(self.current.keys)
        if last > run.first:
            stream.seqno = stream.low = seqno
            if seqno == stream.high:
                run.done = seqno
                self._complete.add(stream)

    def batch_for(self, streams: Collection[StreamState | None]) -> Batch:
        """Return a batch for a snapshot of each of some streams; `completed` must follow."""
        batch = self.batch
        if batch is None or not self._complete.isdisjoint(streams):
            batch = self._new_batch()
        return batch

    def completed(self, streams: Iterable[StreamState | None]) -> None:
        """Note that the last runs hold complete snapshots of these streams."""
        self._complete.update(streams)

    def _new_batch(self) -> Batch:
        batch = self.batch = Batch(self._data, has_values=self._has_values)
        self.events.append(batch)
        self._complete.clear()
        return batch

    @property
    def current(self) -> Batch:
        """The batch of the last run."""
        assert self.batch is not None
        return self.batch

    def _done(self, stream: StreamState, end: int) -> None:
        self.run_of(stream).done = end
        self._complete.add(stream)

    def _new_run(self, stream: StreamState, marker: Marker | None = None) -> Run:
        """Begin a run in a batch in which no snapshot of the stream is complete yet."""
        batch = self.batch
        if batch is None or stream in self._complete:
            batch = self._new_batch()
        run = Run(stream, len(batch.keys), marker)
        batch.runs.append(run)
        return run
