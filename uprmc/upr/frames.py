"""From records to UPR frames: the loop that a backfill consists of.

One writer belongs to one stream, because vBucket and opaque are in every frame. It takes records
from an iterator one at a time and stops behind the one that reaches the limit, so nothing is
fetched that is not sent. `new_item_writer` makes one in the form of the core that runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from uprmc.core.form import COMPILED, FORM
from uprmc.errors import StoreError
from uprmc.model import Life
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode
from uprmc.protocol.origins import ORIGIN_META_HEAD
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
from uprmc.record import (
    FRONT,
    FRONT_BYTES,
    LIFE_BITS,
    ORIGIN,
    ORIGIN_BYTES,
    TAIL,
    TAIL_BYTES,
    cas_of,
)

_MUTATION_HEAD = frame_head(Opcode.UPR_MUTATION)
_DELETION_HEAD = frame_head(Opcode.UPR_DELETION)
_pack_mutation = MUTATION_FRAME.pack
_unpack_front, _unpack_tail = FRONT.unpack_from, TAIL.unpack_from
_pack_deletion = DELETION_FRAME.pack


#: The compiled form compares seqnos as signed numbers.
_SIGN = 2**63

#: What the frame of an item takes at most beside its record's bytes.
ITEM_FRAME_BYTES = MUTATION_FRAME.size


class Form(NamedTuple):
    """How a connection wants its items."""

    datatypes: int = 0  # datatype bits that the peer understands; others are hidden from it
    values: bool = True  # whether documents come with their values
    delete_times: bool = False  # whether deletions say when they happened
    expirations: bool = False  # whether expired documents come as expirations; needs `delete_times`
    # whether markers are those of version 2.2, with the purge seqno.
    versioned_markers: bool = False
    facts: bool = False  # whether VBUCKET_FACTS tells what a marker does not
    # whether items tell where they were first accepted, if that was elsewhere.
    origins: bool = False


class Written(NamedTuple):
    """What one call has put out."""

    items: int  # how many
    size: int  # their frames' bytes
    last_seqno: int  # of the last one; as given when there was none
    exhausted: bool  # whether the iterator is at its end
    error: StoreError | None  # why the items ended too early, ``None`` = they did not


class ItemWriter:
    """Writes the items of one stream: the interpreted form."""

    __slots__ = (
        "_datatypes",
        "_form",
        "_opaque",
        "_origins",
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
        self._origins = ORIGIN if form.origins else 0
        self._plain_deletions = not form.delete_times
        self._place = frame_place(MUTATION_EXTRAS.size, vbucket)
        self._place_of_deletion = frame_place(DELETION_EXTRAS.size, vbucket)

    def write(
        self,
        records: Iterable[bytes],
        out: list[bytes],
        limit: int,
        last_seqno: int,
        newer: Container[bytes] = (),
    ) -> Written:
        """Append frames to `out` until `limit` bytes are reached; the last one may overshoot.

        Args:
            records: by rising seqno; a document comes with its value.
            out: where to put the frames.
            limit: bytes.
            last_seqno: every seqno is above it.
            newer: keys to leave out.
        """
        opaque, datatypes, place = self._opaque, self._datatypes, self._place
        values, origins = self._values, self._origins
        count = size = 0
        exhausted, error = True, None
        try:
            for record in records:
                _, kind, datatype, expiry, length, rev, seqno = _unpack_front(record)
                key_end = FRONT_BYTES + length
                key = record[FRONT_BYTES:key_end]
                if newer and key in newer:
                    continue
                assert seqno > last_seqno, "seqnos of a stream must rise"
                tail_at = key_end + 2 * (kind & ORIGIN)
                cas, flags = _unpack_tail(record, tail_at)
                meta = b""
                if kind & origins:
                    meta = ORIGIN_META_HEAD + record[key_end:tail_at]
                if kind & LIFE_BITS:
                    frame = self._deletion(kind & LIFE_BITS, key, cas, seqno, rev, expiry, meta)
                    out.append(frame)
                    size += len(frame)
                else:
                    value = record[tail_at + TAIL_BYTES :] if values else b""
                    body = length + 31 + len(value) + len(meta)
                    head = _pack_mutation(
                        _MUTATION_HEAD,
                        length,
                        place | (datatype & datatypes) << 16,
                        body,
                        opaque,
                        cas,
                        seqno,
                        rev,
                        flags,
                        expiry,
                        0,
                        len(meta),
                        0,
                    )
                    out += (head, key, value, meta) if values or meta else (head, key)
                    size += body + HEADER_BYTES
                count += 1
                last_seqno = seqno
                if size >= limit:
                    exhausted = False
                    break
        except StoreError as failure:
            exhausted, error = False, failure.with_traceback(None)  # it refers to us
        return Written(count, size, last_seqno, exhausted, error)

    def _deletion(
        self, life: int, key: bytes, cas: int, seqno: int, rev: int, deleted_at: int, meta: bytes
    ) -> bytes:
        """Return the frame of a tombstone, with its extended metadata."""
        if self._plain_deletions:
            head = _pack_deletion(
                _DELETION_HEAD,
                len(key),
                self._place_of_deletion,
                len(key) + DELETION_EXTRAS.size + len(meta),
                self._opaque,
                cas,
                seqno,
                rev,
                len(meta),
            )
            return bytes(head + key + meta)
        if life == Life.EXPIRED and self._form.expirations:
            opcode, extras = (
                Opcode.UPR_EXPIRATION,
                EXPIRATION_EXTRAS.pack(seqno, rev, deleted_at),
            )
        else:
            opcode, extras = (
                Opcode.UPR_DELETION,
                TIMED_DELETION_EXTRAS.pack(seqno, rev, deleted_at, 0),
            )
        return encode_request(
            opcode,
            key=key,
            extras=extras,
            value=meta,
            vbucket=self._vbucket,
            opaque=self._opaque,
            cas=cas,
        )


class CompiledItemWriter(ItemWriter):
    """Does the same in the compiled core."""

    __slots__ = ("_native",)

    def __init__(self, vbucket: int, opaque: int, form: Form) -> None:
        super().__init__(vbucket, opaque, form)
        from uprmc.core.native.items import ItemFrames

        # They are written as signed numbers of 16 and 32 bits.
        signed_vbucket = (vbucket ^ 0x8000) - 0x8000
        signed_opaque = (opaque ^ 0x80000000) - 0x80000000
        self._native = ItemFrames(
            signed_vbucket,
            signed_opaque,
            form.datatypes,
            form.values,
            self._plain_deletions,
            form.origins,
        )

    def write(
        self,
        records: Iterable[bytes],
        out: list[bytes],
        limit: int,
        last_seqno: int,
        newer: Container[bytes] = (),
    ) -> Written:
        """See `ItemWriter`."""
        native, error = self._native, None
        try:
            exhausted = native.write(
                records, out, limit, last_seqno - _SIGN, newer, self._tombstone
            )
        except StoreError as failure:
            exhausted, error = False, failure.with_traceback(None)  # it refers to us
        return Written(native.count, native.size, native.last + _SIGN, exhausted, error)

    def _tombstone(self, record: bytes) -> bytes:
        _, kind, _, expiry, length, rev, seqno = _unpack_front(record)
        key_end = FRONT_BYTES + length
        key, meta = record[FRONT_BYTES:key_end], b""
        if kind & self._origins:
            meta = ORIGIN_META_HEAD + record[key_end : key_end + ORIGIN_BYTES]
        return self._deletion(kind & LIFE_BITS, key, cas_of(record), seqno, rev, expiry, meta)


#: Makes a writer of a vBucket and an opaque.
new_item_writer: Callable[[int, int, Form], ItemWriter] = (
    CompiledItemWriter if FORM == COMPILED else ItemWriter
)

assert MUTATION_FRAME.size == HEADER_BYTES + 31
assert DELETION_FRAME.size == HEADER_BYTES + 18
