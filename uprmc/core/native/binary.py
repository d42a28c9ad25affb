"""Get and set of the binary protocol, from received bytes to replies: compiled only.

`BinaryServing` carries out frames as long as it is sure of each: gets of documents that can be sent
as they are, misses, and sets that nothing refuses. It stops before the first frame of another kind,
and the session carries that one out by the rules, which exist only there.

See `uprmc.core.serving` for what it promises.
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

from uprmc.core.native.table import ENTRY_BYTES, FRONT_BYTES, RecordTable

HEADER_BYTES: Final[i64] = 24
TAIL_BYTES: Final[i64] = 12
KEY_MAX_BYTES: Final[i64] = 250
#: Longer values become pieces of their own.
COPIED_BYTES: Final[i64] = 16_384

READ_PLAIN_FOREVER: Final = bytes([2, 0x80, 0, 0, 0, 0, 0])
READ_PLAIN: Final = bytes([2, 0x80])
GONE_BITS: Final[i64] = 0x07
AGE_BITS: Final[i64] = 0xC0
READ: Final[i64] = 0x80

GET: Final[i64] = 0x00
SET: Final[i64] = 0x01
GETQ: Final[i64] = 0x09
GETK: Final[i64] = 0x0C
GETKQ: Final[i64] = 0x0D
SETQ: Final[i64] = 0x11

#: Replies as far as their opaque: a miss, and a set.
_MISS: Final = b"\x81\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x09"
_STORED: Final = b"\x81\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
_LARGE: Final = 1 << 62
_NOT_FOUND: Final = b"Not found"


def _crc_table() -> bytes:
    writer = BytesWriter()
    number: i64 = 0
    while number < 256:
        crc: i64 = number
        bit: i64 = 0
        while bit < 8:
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
            bit += 1
        write_i64_be(writer, crc)
        number += 1
    return writer.getvalue()


_CRC: Final = _crc_table()


def crc32_of(data: bytes, start: i64, length: i64) -> i64:
    """Return the CRC32 of a part of `data`."""
    table = _CRC
    crc: i64 = 0xFFFFFFFF
    place: i64 = start
    end: i64 = start + length
    while place < end:
        crc = (crc >> 8) ^ read_i64_be(table, ((crc ^ i64(data[place])) & 0xFF) << 3)
        place += 1
    return crc ^ 0xFFFFFFFF


def _u32(data: bytes, place: i64) -> i64:
    return i64(read_i32_be(data, place)) & 0xFFFFFFFF


def _u16(data: bytes, place: i64) -> i64:
    return i64(read_i16_be(data, place)) & 0xFFFF


class BinaryServing:
    """See the module docstring, and `uprmc.core.serving`."""

    def __init__(
        self, lookups: dict[int, RecordTable], active: dict[int, Any], account: Any
    ) -> None:
        self._lookups = lookups
        self._active = active
        self._account = account
        self.unsent: i64 = 0
        self.hits: i64 = 0
        self.misses: i64 = 0
        self.sets: i64 = 0
        self.swaps: i64 = 0

    def serve(
        self,
        data: bytes,
        position: i64,
        out: list[bytes],
        limit: i64,
        mask: i64,
        now: i64,
        max_body: i64,
    ) -> i64:
        """Serve frames from `position` on; return the position of the first that was not served."""
        return _serve(self, data, position, out, limit, mask, now, max_body)


def _serve(
    served: BinaryServing,
    data: bytes,
    position: i64,
    out: list[bytes],
    limit: i64,
    mask: i64,
    now: i64,
    max_body: i64,
) -> i64:
    lookups = served._lookups
    size: i64 = len(data)
    unsent: i64 = served.unsent
    writer = BytesWriter()
    while position + HEADER_BYTES <= size and unsent <= limit:
        if data[position] != 0x80:
            break
        opcode: i64 = i64(data[position + 1])
        key_length: i64 = _u16(data, position + 2)
        body: i64 = _u32(data, position + 8)
        start: i64 = position + HEADER_BYTES
        end: i64 = start + body
        if end > size or not 0 < key_length <= KEY_MAX_BYTES:
            break
        is_get = opcode == GET or opcode == GETKQ or opcode == GETQ or opcode == GETK
        if is_get:
            if body != key_length or i64(data[position + 4]) or i64(data[position + 5]):
                break
            number = (
                (crc32_of(data, start, key_length) >> 16) & 0x7FFF & mask
                if mask >= 0
                else _u16(data, position + 6)
            )
            table = lookups.get(number)
            if table is None:
                break
            record = table.find(data, start, key_length)
            if record is None:
                if opcode == GETK:
                    break
                served.misses += 1
                if opcode == GET:
                    writer.write(_MISS)
                    writer.write(data[position + 12 : position + 16])
                    write_i64_be(writer, 0)
                    writer.write(_NOT_FOUND)
                    unsent += 33
                position = end
                continue
            if not record.startswith(READ_PLAIN_FOREVER):
                found = _readable(table, record, now)
                if found is None:
                    break
                record = found
            served.hits += 1
            tail_at: i64 = FRONT_BYTES + key_length
            length: i64 = i64(len(record)) - tail_at - 8
            with_key = opcode == GETK or opcode == GETKQ
            writer.append(0x81)
            writer.append(opcode)
            if with_key:
                write_i16_be(writer, i16(key_length))
                length += key_length
            else:
                write_i16_be(writer, 0)
            write_i32_be(writer, 0x04000000)
            write_i32_be(writer, i32(length))
            writer.write(data[position + 12 : position + 16])
            if with_key:
                writer.write(record[tail_at : tail_at + TAIL_BYTES])
                writer.write(record[FRONT_BYTES:tail_at])
                tail_at += TAIL_BYTES
            if length <= COPIED_BYTES:
                writer.write(record[tail_at:])
            else:
                out.append(writer.getvalue())
                out.append(record[tail_at:])
                writer = BytesWriter()
            unsent += length + HEADER_BYTES
        elif opcode == SET or opcode == SETQ:
            if i64(data[position + 4]) != 8 or i64(data[position + 5]) or body > max_body:
                break
            if body < key_length + 8:
                break
            start += 8
            number = (
                (crc32_of(data, start, key_length) >> 16) & 0x7FFF & mask
                if mask >= 0
                else _u16(data, position + 6)
            )
            table = lookups.get(number)
            if table is None:
                break
            cas = accept(
                served._active[number],
                served._account,
                table,
                data,
                start,
                key_length,
                end,
                position,
                now,
            )
            if cas < 0:
                break
            served.sets += 1
            if read_i64_be(data, position + 16) != 0:
                served.swaps += 1
            if opcode == SET:
                writer.write(_STORED)
                writer.write(data[position + 12 : position + 16])
                write_i64_be(writer, cas)
                unsent += HEADER_BYTES
        else:
            break
        position = end
    if len(writer):
        out.append(writer.getvalue())
    served.unsent = unsent
    return position


def _readable(table: RecordTable, record: bytes, now: i64) -> bytes | None:
    """Return a live, resident record of plain bytes as one that was read; ``None`` for others."""
    kind: i64 = i64(record[1])
    if kind & GONE_BITS or i64(record[2]):
        return None
    expiry = _u32(record, 3)
    if expiry and expiry <= now:
        return None
    if kind & AGE_BITS != READ:
        record = READ_PLAIN + record[2:]
        table.put(record)
    return record


def accept(
    vbucket: Any,
    account: Any,
    table: RecordTable,
    data: bytes,
    key_at: i64,
    key_length: i64,
    end: i64,
    position: i64,
    now: i64,
) -> i64:
    """Carry out a set; return its CAS, or -1 if it must go by the rules."""
    old = table.find(data, key_at, key_length)
    wanted = read_i64_be(data, position + 16)
    expiry = _u32(data, key_at - 4)
    if expiry:
        if expiry <= 2_592_000:
            expiry += now
        if expiry > 0xFFFFFFFF or expiry <= now:
            return -1
    last_cas: int = account.last_cas
    max_deleted_rev: int = vbucket.max_deleted_rev
    if last_cas >= _LARGE or max_deleted_rev >= _LARGE:
        return -1
    used: i64 = account.used
    write_limit: i64 = account.write_limit
    if used > write_limit:
        return -1
    replaced: i64 = 0
    enters = expiry != 0
    if old is None:
        if wanted:
            return -1
        rev: i64 = max_deleted_rev
        grown: i64 = key_length + ENTRY_BYTES
    else:
        if i64(old[1]) & GONE_BITS:
            return -1
        due = _u32(old, 3)
        if wanted:
            if due and due <= now:
                return -1
            if read_i64_be(old, FRONT_BYTES + key_length) != wanted:
                return -1
        rev = read_i64_be(old, 8)
        replaced = read_i64_be(old, 16)
        grown = -i64(len(old))
        enters = expiry != 0 and (due == 0 or expiry < due)
    if rev < 0:
        return -1
    seqno: i64 = vbucket.high_seqno + 1
    cas: i64 = last_cas + 1
    value_at = key_at + key_length
    writer = BytesWriter()
    write_i16_be(writer, 0x0200)
    writer.append(0)
    write_i32_be(writer, i32((expiry ^ 0x80000000) - 0x80000000))
    writer.append(key_length)
    write_i64_be(writer, rev + 1)
    write_i64_be(writer, seqno)
    writer.write(data[key_at:value_at])
    write_i64_be(writer, cas)
    writer.write(data[key_at - 8 : key_at - 4])
    writer.write(data[value_at:end])
    record = writer.getvalue()
    vbucket.high_seqno = seqno
    account.last_cas = cas
    vbucket.max_cas = cas
    account.used = used + grown + i64(len(record))
    vbucket.queue.put(seqno, record, replaced)
    table.put(record)
    if enters:
        account.timetable.add(vbucket.id, data[key_at:value_at], expiry)
    if not vbucket.dirty:
        vbucket.dirty = True
        account.mark_dirty(vbucket)
    if vbucket.waiting:
        vbucket.tell_waiting()
    return cas
