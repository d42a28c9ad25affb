"""Get, set and NOOP of the binary protocol, from received bytes to replies: compiled only.

`BinaryServing` carries out frames as long as it is sure of each: gets of documents that can be sent
as they are, misses, and sets that nothing refuses, with metadata or without. It stops before the
first frame of another kind, and the session carries that one out by the rules, which exist only
there.

See `uprmc.core.serving` for what it promises.
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import (
    BytesWriter,
    read_i32_be,
    read_i64_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i32, i64

from uprmc.core.native.ahead import FRAMES, HEADER_BYTES, Ahead
from uprmc.core.native.fronts import AccountFront, VBucketFront
from uprmc.core.native.store import (
    READ_PLAIN_FOREVER,
    TAIL_BYTES,
    Serving,
    accept,
    readable,
    u16_at,
    u32_at,
)
from uprmc.core.native.table import FRONT_BYTES, RecordTable, tail_of
from uprmc.core.native.with_meta import (
    DRIFT_S,
    EXTRAS_BYTES,
    LOST,
    NANOS,
    NMETA_EXTRAS_BYTES,
    accept_version,
)

#: Longer values become pieces of their own.
COPIED_BYTES: Final[i64] = 16_384

GET: Final[i64] = 0x00
SET: Final[i64] = 0x01
GETQ: Final[i64] = 0x09
NOOP: Final[i64] = 0x0A
GETK: Final[i64] = 0x0C
GETKQ: Final[i64] = 0x0D
SETQ: Final[i64] = 0x11
SET_WITH_META: Final[i64] = 0xA2
SETQ_WITH_META: Final[i64] = 0xA3

#: Replies as far as their opaque: to a get that misses, a set with metadata, a set, and a NOOP.
_MISS: Final = b"\x81\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x09"
_ADOPTED: Final = b"\x81\xa2\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
_STORED: Final = b"\x81\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
_NOTHING_DONE: Final = b"\x81\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
#: The same to changes whose seqno is told.
_ADOPTED_AT: Final = b"\x81\xa2\x00\x00\x10\x00\x00\x00\x00\x00\x00\x10"
_STORED_AT: Final = b"\x81\x01\x00\x00\x10\x00\x00\x00\x00\x00\x00\x10"
_SEQNO_BYTES: Final[i64] = 16
_NOT_FOUND: Final = b"Not found"
#: The same to a version that has lost, loud and quiet.
_LOST: Final = b"\x81\xa2\x00\x00\x00\x00\x00\x02\x00\x00\x00\x14"
_LOST_QUIETLY: Final = b"\x81\xa3\x00\x00\x00\x00\x00\x02\x00\x00\x00\x14"
_EXISTS: Final = b"Data exists for key."
#: What all replies to hits have in their first eight bytes.
_HIT: Final[i64] = -0x7EFFFFFFFC000000
_AHEAD: Final = Ahead()


class BinaryServing(Serving):
    """See the module docstring, and `uprmc.core.serving`.

    Attributes:
        frames: so many are looked at together next. Where the session has to carry out many of
            them, looking at those behind would be in vain each time.
    """

    def __init__(
        self,
        tables: list[RecordTable | None],
        vbuckets: list[VBucketFront | None],
        account: AccountFront,
    ) -> None:
        super().__init__(tables, vbuckets, account)
        self.frames: i64 = FRAMES

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
    ahead = _AHEAD
    turn: i64 = -1
    at: i64 = 0
    size: i64 = len(data)
    unsent: i64 = served.unsent
    writer = BytesWriter()
    while position + HEADER_BYTES <= size and unsent <= limit:
        if data[position] != 0x80:
            break
        opcode: i64 = i64(data[position + 1])
        key_length: i64 = u16_at(data, position + 2)
        body: i64 = u32_at(data, position + 8)
        start: i64 = position + HEADER_BYTES
        end: i64 = start + body
        if opcode == NOOP and body == 0 and read_i64_be(data, position + 2) >> 16 == 0:
            writer.write(_NOTHING_DONE)
            write_i32_be(writer, read_i32_be(data, position + 12))
            write_i64_be(writer, 0)
            unsent += HEADER_BYTES
            position = end
            continue
        if turn != ahead.turn or at >= ahead.count:
            if turn >= 0 and served.frames < FRAMES:
                served.frames *= 2
            turn = ahead.look(served.tables, data, position, mask, served.frames)
            at = 0
            if ahead.count == 0:
                break
        number = ahead.numbers[at]
        hashed = ahead.hashes[at]
        at += 1
        table = served.table_of(number)
        if table is None:
            break
        is_get = opcode == GET or opcode == GETKQ or opcode == GETQ or opcode == GETK
        if is_get:
            if body != key_length or i64(data[position + 4]) or i64(data[position + 5]):
                break
            record = table.find_hashed(hashed, data, start, key_length)
            if record is None:
                if opcode == GETK:
                    break
                served.misses += 1
                if opcode == GET:
                    writer.write(_MISS)
                    write_i32_be(writer, read_i32_be(data, position + 12))
                    write_i64_be(writer, 0)
                    writer.write(_NOT_FOUND)
                    unsent += 33
                position = end
                continue
            if not record.startswith(READ_PLAIN_FOREVER):
                found = readable(table, record, now + i64(served.account.back))
                if found is None:
                    break
                record = found
            served.hits += 1
            tail_at: i64 = tail_of(record)
            length: i64 = i64(len(record)) - tail_at - 8
            with_key = opcode == GETK or opcode == GETKQ
            if with_key:
                length += key_length
                write_i64_be(writer, _HIT + (opcode << 48) + (key_length << 32))
            else:
                write_i64_be(writer, _HIT + (opcode << 48))
            write_i32_be(writer, i32(length))
            write_i32_be(writer, read_i32_be(data, position + 12))
            if with_key:
                writer.write(record[tail_at : tail_at + TAIL_BYTES])
                writer.write(record[FRONT_BYTES : FRONT_BYTES + key_length])
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
            vbucket = served.vbuckets[number]
            if vbucket is None:
                break
            value_at = start + key_length
            wanted = read_i64_be(data, position + 16)
            cas = accept(
                vbucket,
                served.account,
                table,
                data,
                start,
                key_length,
                value_at,
                end,
                u32_at(data, start - 8),
                u32_at(data, start - 4),
                wanted,
                now,
                hashed,
            )
            if cas < 0:
                break
            served.sets += 1
            if wanted != 0:
                served.swaps += 1
            if opcode == SET:
                writer.write(_STORED_AT if served.with_seqnos else _STORED)
                write_i32_be(writer, read_i32_be(data, position + 12))
                write_i64_be(writer, cas)
                unsent += HEADER_BYTES
                if served.with_seqnos:
                    writer.write(_seqno_of(vbucket))
                    unsent += _SEQNO_BYTES
        elif opcode == SETQ_WITH_META or opcode == SET_WITH_META:
            extras: i64 = i64(data[position + 4])
            if extras != EXTRAS_BYTES and extras != NMETA_EXTRAS_BYTES:
                break
            if i64(data[position + 5]) or body < key_length + extras:
                break
            if body + 8 - extras > max_body:
                break
            if read_i64_be(data, position + 16):
                break
            vbucket = served.vbuckets[number]
            if vbucket is None:
                break
            cas = accept_version(
                vbucket,
                served.account,
                table,
                data,
                start,
                extras,
                key_length,
                end,
                now,
                hashed,
            )
            if cas == LOST:
                served.lost += 1
                writer.write(_LOST if opcode == SET_WITH_META else _LOST_QUIETLY)
                write_i32_be(writer, read_i32_be(data, position + 12))
                write_i64_be(writer, 0)
                writer.write(_EXISTS)
                unsent += HEADER_BYTES + len(_EXISTS)
                position = end
                continue
            if cas < 0:
                break
            served.versions += 1
            if cas > (now + DRIFT_S) * NANOS:
                served.ahead += 1
            elif cas < (now - DRIFT_S) * NANOS:
                served.behind += 1
            if opcode == SET_WITH_META:
                writer.write(_ADOPTED_AT if served.with_seqnos else _ADOPTED)
                write_i32_be(writer, read_i32_be(data, position + 12))
                write_i64_be(writer, cas)
                unsent += HEADER_BYTES
                if served.with_seqnos:
                    writer.write(_seqno_of(vbucket))
                    unsent += _SEQNO_BYTES
        else:
            break
        position = end
    if turn == ahead.turn and at < ahead.count:
        served.frames = 1
    if len(writer):
        out.append(writer.getvalue())
    served.unsent = unsent
    return position


def _seqno_of(vbucket: Any) -> bytes:
    """Return the extras that tell where a vBucket's newest change stands."""
    uuid: int = vbucket.failover_log[0].uuid
    seqno: int = vbucket.high_seqno
    return (uuid << 64 | seqno).to_bytes(16, "big")
