"""From items to UPR frames: the loop that a backfill consists of.

One writer belongs to one stream, because vBucket and opaque are in every frame. It takes items from
an iterator one at a time and stops behind the one that reaches the limit, so nothing is fetched
that is not sent.

Source: UPR reference 2.7 to 2.9, 4.6 for what counts.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from uprmc.errors import StoreCorrupt, StoreError
from uprmc.model import Item, Life
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode
from uprmc.protocol.upr import (
    DELETION_EXTRAS,
    DELETION_FRAME,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    MUTATION_FRAME,
    TIMED_DELETION_EXTRAS,
    frame_head,
    frame_place,
)
from uprmc.storage.layout import HEAD, HEAD_BYTES, RECORD_VERSION, unpack_record

_MUTATION_HEAD = frame_head(Opcode.UPR_MUTATION)
_DELETION_HEAD = frame_head(Opcode.UPR_DELETION)
_pack_mutation = MUTATION_FRAME.pack
_unpack_head = HEAD.unpack_from
_pack_deletion = DELETION_FRAME.pack


#: What the frame of an item takes at most beside its key and value.
ITEM_FRAME_BYTES = MUTATION_FRAME.size


class Form(NamedTuple):
    """How a connection wants its items.

    Attributes:
        datatypes: datatype bits that the peer understands; others are hidden from it.
        values: whether documents come with their values.
        delete_times: whether deletions say when they happened.
        expirations: whether expired documents come as expirations; needs `delete_times`.
        versioned_markers: whether markers are those of version 2.2, with the purge seqno.
        facts: whether VBUCKET_FACTS tells what a marker does not.
    """

    datatypes: int = 0
    values: bool = True
    delete_times: bool = False
    expirations: bool = False
    versioned_markers: bool = False
    facts: bool = False


class Written(NamedTuple):
    """What one call has put out.

    Attributes:
        items: how many.
        size: their frames' bytes.
        last_seqno: of the last one; as given when there was none.
        error: why the items ended too early, ``None`` = they did not.
        exhausted: whether the iterator is at its end.
    """

    items: int
    size: int
    last_seqno: int
    exhausted: bool
    error: StoreError | None


class ItemWriter:
    """Writes the items of one stream."""

    __slots__ = (
        "_datatypes",
        "_form",
        "_opaque",
        "_place",
        "_place_of_deletion",
        "_plain_deletions",
        "_values",
        "_vbucket",
    )

    def __init__(self, vbucket: int, opaque: int, form: Form) -> None:
        self._vbucket = vbucket
        self._opaque = opaque
        self._form = form
        self._datatypes = form.datatypes
        self._values = form.values
        self._plain_deletions = not form.delete_times
        self._place = frame_place(MUTATION_EXTRAS.size, vbucket)
        self._place_of_deletion = frame_place(DELETION_EXTRAS.size, vbucket)

    def write(
        self, items: Iterable[Item], out: list[bytes], limit: int, last_seqno: int
    ) -> Written:
        """Append frames to `out` until `limit` bytes are reached; the last one may overshoot."""
        opaque, datatypes, values = self._opaque, self._datatypes, self._values
        place, place_of_deletion = self._place, self._place_of_deletion
        count = size = 0
        exhausted, error = True, None
        try:
            for item in items:
                seqno = item.seqno
                assert seqno > last_seqno, "seqnos of a stream must rise"
                key = item.key
                length = len(key)
                if not item.life:
                    value = item.value if values else b""
                    assert value is not None
                    body = length + len(value) + 31
                    out += (
                        _pack_mutation(
                            _MUTATION_HEAD,
                            length,
                            place | (item.datatype & datatypes) << 16,
                            body,
                            opaque,
                            item.cas,
                            seqno,
                            item.rev,
                            item.flags,
                            item.expiry,
                            0,
                            0,
                            0,
                        ),
                        key,
                        value,
                    )
                    size += body + 24
                elif self._plain_deletions:
                    out += (
                        _pack_deletion(
                            _DELETION_HEAD,
                            length,
                            place_of_deletion,
                            length + 18,
                            opaque,
                            item.cas,
                            seqno,
                            item.rev,
                            0,
                        ),
                        key,
                    )
                    size += length + 42
                else:
                    frame = self._timed(item)
                    out.append(frame)
                    size += len(frame)
                count += 1
                last_seqno = seqno
                if size >= limit:
                    exhausted = False
                    break
        except StoreError as failure:
            exhausted, error = False, failure.with_traceback(None)  # it refers to us
        return Written(count, size, last_seqno, exhausted, error)

    def write_all(self, items: Sequence[Item], out: list[bytes], last_seqno: int) -> int:
        """Append the frames of a few items, all of them; return their bytes."""
        size = 0
        for item in items:
            if item.life or not self._values:
                size += self.write((item,), out, 1, last_seqno).size
            else:
                assert item.seqno > last_seqno, "seqnos of a stream must rise"
                key, value = item.key, item.value
                assert value is not None
                length = len(key)
                body = length + len(value) + 31
                out += (
                    _pack_mutation(
                        _MUTATION_HEAD,
                        length,
                        self._place | (item.datatype & self._datatypes) << 16,
                        body,
                        self._opaque,
                        item.cas,
                        item.seqno,
                        item.rev,
                        item.flags,
                        item.expiry,
                        0,
                        0,
                        0,
                    ),
                    key,
                    value,
                )
                size += body + 24
            last_seqno = item.seqno
        return size

    def write_records(
        self,
        records: Iterable[bytes],
        newer: Container[bytes],
        out: list[bytes],
        limit: int,
        last_seqno: int,
    ) -> Written:
        """Do what `write` does for records of the store, most of which go out as they are.

        Args:
            records: see `Reading.records`.
            newer: keys to leave out.
            out: see `write`.
            limit: see `write`.
            last_seqno: see `write`.
        """
        opaque, datatypes, place = self._opaque, self._datatypes, self._place
        as_they_are = self._values
        count = size = 0
        exhausted: bool = True
        error: StoreError | None = None
        try:
            for record in records:
                version, length, value_length, flags, expiry, cas, seqno, rev, datatype, life = (
                    _unpack_head(record)
                )
                if life or version != RECORD_VERSION or not as_they_are:
                    item = unpack_record(record)
                    if item.key in newer:
                        continue
                    size += self.write((item,), out, 1, last_seqno).size
                elif newer and record[HEAD_BYTES : HEAD_BYTES + length] in newer:
                    continue
                else:
                    assert seqno > last_seqno, "seqnos of a stream must rise"
                    body = length + value_length
                    if len(record) != HEAD_BYTES + body:
                        raise StoreCorrupt(f"the record of seqno {seqno} has another length")
                    out += (
                        _pack_mutation(
                            _MUTATION_HEAD,
                            length,
                            place | (datatype & datatypes) << 16,
                            body + 31,
                            opaque,
                            cas,
                            seqno,
                            rev,
                            flags,
                            expiry,
                            0,
                            0,
                            0,
                        ),
                        record[HEAD_BYTES:],
                    )
                    size += body + 55
                count += 1
                last_seqno = seqno
                if size >= limit:
                    exhausted = False
                    break
        except StoreError as failure:
            exhausted, error = False, failure.with_traceback(None)  # it refers to us
        except struct.error:
            exhausted, error = False, StoreCorrupt("a record is too short")
        return Written(count, size, last_seqno, exhausted, error)

    def _timed(self, item: Item) -> bytes:
        if item.life == Life.EXPIRED and self._form.expirations:
            opcode, extras = (
                Opcode.UPR_EXPIRATION,
                EXPIRATION_EXTRAS.pack(item.seqno, item.rev, item.expiry),
            )
        else:
            opcode, extras = (
                Opcode.UPR_DELETION,
                TIMED_DELETION_EXTRAS.pack(item.seqno, item.rev, item.expiry, 0),
            )
        return encode_request(
            opcode,
            key=item.key,
            extras=extras,
            vbucket=self._vbucket,
            opaque=self._opaque,
            cas=item.cas,
        )


assert MUTATION_FRAME.size == HEADER_BYTES + 31
assert DELETION_FRAME.size == HEADER_BYTES + 18
