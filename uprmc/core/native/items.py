"""Items of UPR streams, from records to frames: compiled only.

What a frame repeats of its record is copied without being read as a number. Tombstones are written
here only as deletions without their time; for others the caller makes the frame.

See `uprmc.upr.frames` for what is promised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from librt.strings import BytesWriter, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64

from uprmc.core.native.store import TAIL_BYTES
from uprmc.core.native.table import FRONT_BYTES, tail_of

#: Longer values become pieces of their own.
COPIED_BYTES: Final[i64] = 16_384

HEADER_BYTES: Final[i64] = 24
MUTATION_EXTRAS_BYTES: Final[i64] = 31
DELETION_EXTRAS_BYTES: Final[i64] = 18
LIFE_BITS: Final[i64] = 0x03
#: The mark of a record's origin, half of what that takes, and what stands before it in a frame.
ORIGIN: Final[i64] = 0x08
ORIGIN_META_BYTES: Final[i64] = 20
ORIGIN_META_HEAD: Final = b"\x01\xe0\x00\x10"

#: What a stream has between two calls: a writer of its own would take half of its memory.
_IDLE: Final = BytesWriter()


class ItemFrames:
    """Writes the items of one stream.

    Attributes:
        count: items that the last call has put out.
        size: their bytes.
        last: seqno of the last one, shifted as `low` is; what it was given when there was none.
    """

    def __init__(
        self,
        vbucket: i64,
        opaque: i64,
        datatypes: i64,
        values: bool,
        plain_deletions: bool,
        origins: bool,
    ) -> None:
        self.vbucket = vbucket
        self.opaque = opaque
        self.datatypes = datatypes
        self.values = values
        self.plain_deletions = plain_deletions
        self.origins: i64 = ORIGIN if origins else 0
        self.count: i64 = 0
        self.size: i64 = 0
        self.last: i64 = 0
        self.writer = _IDLE

    def write(
        self,
        records: Any,
        out: list[bytes],
        limit: i64,
        low: i64,
        newer: Any,
        timed: Callable[[bytes], bytes],
    ) -> bool:
        """Append frames to `out`, also if an error ends `records`; return whether all are out.

        Args:
            records: an iterable of them.
            out: where to put the frames.
            limit: bytes; the frame that reaches it is the last one.
            low: every seqno is above this; both are shifted by 2**63, so that they are signed.
            newer: keys to leave out.
            timed: makes the frame of a tombstone that is no plain deletion.
        """
        self.count = 0
        self.size = 0
        self.last = low
        self.writer = BytesWriter()
        try:
            return self._write(records, out, limit, newer, timed)
        finally:
            self._flush(out)
            self.writer = _IDLE

    def _write(
        self,
        records: Any,
        out: list[bytes],
        limit: i64,
        newer: Any,
        timed: Callable[[bytes], bytes],
    ) -> bool:
        leaves_out = bool(newer)
        sign: i64 = -9223372036854775808
        for each in records:
            record: bytes = each
            key_length: i64 = i64(record[7])
            key_end: i64 = FRONT_BYTES + key_length
            if leaves_out and record[FRONT_BYTES:key_end] in newer:
                continue
            seqno: i64 = read_i64_be(record, 16) ^ sign
            assert seqno > self.last, "seqnos of a stream must rise"
            if not i64(record[1]) & LIFE_BITS:
                self._document(record, key_length, out)
            elif self.plain_deletions:
                meta = self._meta_bytes(record)
                self._head(0x58, DELETION_EXTRAS_BYTES, 0, key_length, meta, record)
                write_i16_be(self.writer, i16(meta))
                self.writer.write(record[FRONT_BYTES:key_end])
                self._meta(record, key_end)
                self.size += HEADER_BYTES + DELETION_EXTRAS_BYTES + key_length + meta
            else:
                frame = timed(record)
                self.writer.write(frame)
                self.size += i64(len(frame))
            self.last = seqno
            self.count += 1
            if self.size >= limit:
                return False
        return True

    def _document(self, record: bytes, key_length: i64, out: list[bytes]) -> None:
        writer = self.writer
        key_end: i64 = FRONT_BYTES + key_length
        value_at: i64 = tail_of(record) + TAIL_BYTES
        length: i64 = i64(len(record)) - value_at if self.values else 0
        meta = self._meta_bytes(record)
        datatype: i64 = i64(record[2]) & self.datatypes
        self._head(0x57, MUTATION_EXTRAS_BYTES, datatype, key_length, length + meta, record)
        writer.write(record[value_at - 4 : value_at])
        writer.write(record[3:7])
        write_i32_be(writer, 0)
        write_i16_be(writer, i16(meta))
        writer.append(0)
        writer.write(record[FRONT_BYTES:key_end])
        self.size += HEADER_BYTES + MUTATION_EXTRAS_BYTES + key_length + length + meta
        if length > COPIED_BYTES:
            self._flush(out)
            out.append(record[value_at:])
        elif length:
            writer.write(record[value_at:])
        self._meta(record, key_end)

    def _meta_bytes(self, record: bytes) -> i64:
        """Return the length of the extended metadata that a record's frame has."""
        return ORIGIN_META_BYTES if i64(record[1]) & self.origins else 0

    def _meta(self, record: bytes, key_end: i64) -> None:
        """Write the extended metadata, if there is any."""
        if i64(record[1]) & self.origins:
            self.writer.write(ORIGIN_META_HEAD)
            self.writer.write(record[key_end : key_end + 2 * ORIGIN])

    def _head(
        self,
        opcode: i64,
        extras: i64,
        datatype: i64,
        key_length: i64,
        value_length: i64,
        record: bytes,
    ) -> None:
        """Write the header, the seqno and the revision."""
        writer = self.writer
        write_i16_be(writer, i16(opcode - 0x8000))
        write_i16_be(writer, i16(key_length))
        writer.append(extras)
        writer.append(datatype)
        write_i16_be(writer, i16(self.vbucket))
        write_i32_be(writer, i32(extras + key_length + value_length))
        write_i32_be(writer, i32(self.opaque))
        write_i64_be(writer, read_i64_be(record, tail_of(record)))
        write_i64_be(writer, read_i64_be(record, 16))
        write_i64_be(writer, read_i64_be(record, 8))

    def _flush(self, out: list[bytes]) -> None:
        if len(self.writer):
            out.append(self.writer.getvalue())
            self.writer = BytesWriter()
