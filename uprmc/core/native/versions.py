"""Mutations of UPR streams, from received bytes to records: compiled only.

What is no plain mutation of the stream, in order and inside of its snapshot, ends a call: the rules
judge it, and they exist only elsewhere. `uprmc.upr.intake` says what is promised.
"""

from __future__ import annotations

from typing import Final

from librt.strings import (
    BytesWriter,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i64

from uprmc.core.native.frames import EXTRAS_BYTES, HEADER_BYTES, MUTATION
from uprmc.core.native.store import KEY_MAX_BYTES, is_origin, u16_at, u32_at

JSON: Final[i64] = 1
#: A record begins with its format version and the kind of a document that was not read yet.
RECORD_START: Final = 0x0200
#: The same of a document that came with its origin.
ORIGIN_START: Final = 0x0208
#: A longer value is not copied into the writer first.
COPIED_BYTES: Final[i64] = 16_384


def take_versions(
    data: bytes,
    position: i64,
    opaque: i64,
    vbucket: i64,
    last: i64,
    end_seqno: i64,
    max_value_bytes: i64,
    records: list[bytes],
) -> tuple[int, int]:
    """See `uprmc.upr.intake`."""
    size: i64 = len(data)
    last_start: i64 = size - HEADER_BYTES - EXTRAS_BYTES
    highest_cas: i64 = 0
    writer = BytesWriter()
    while position <= last_start:
        if u16_at(data, position) != MUTATION or u32_at(data, position + 12) != opaque:
            break
        if u16_at(data, position + 6) != vbucket or i64(data[position + 4]) != EXTRAS_BYTES:
            break
        datatype: i64 = i64(data[position + 5])
        seqno = read_i64_be(data, position + 24)
        if datatype & ~JSON or seqno <= last or seqno > end_seqno:
            break
        key_length: i64 = u16_at(data, position + 2)
        key_at: i64 = position + HEADER_BYTES + EXTRAS_BYTES
        value_at: i64 = key_at + key_length
        end: i64 = position + HEADER_BYTES + u32_at(data, position + 8)
        if end > size or not 0 < key_length <= KEY_MAX_BYTES:
            break
        value_end: i64 = end - u16_at(data, position + 52)
        if value_end < value_at or value_end - value_at > max_value_bytes:
            break
        if value_end != end and not is_origin(data, value_end, end):
            break
        cas = read_i64_be(data, position + 16)
        rev = read_i64_be(data, position + 32)
        if cas < 0 or rev < 0:
            break
        writer.truncate(0)
        write_i16_be(writer, RECORD_START if value_end == end else ORIGIN_START)
        writer.append(datatype)
        write_i32_be(writer, read_i32_be(data, position + 44))
        writer.append(key_length)
        write_i64_be(writer, rev)
        write_i64_be(writer, seqno)
        writer.write(data[key_at:value_at])
        if value_end != end:
            writer.write(data[value_end + 4 : end])
        write_i64_be(writer, cas)
        write_i32_be(writer, read_i32_be(data, position + 40))
        if value_end - value_at > COPIED_BYTES:
            records.append(writer.getvalue() + data[value_at:value_end])
        else:
            writer.write(data[value_at:value_end])
            records.append(writer.getvalue())
        if cas > highest_cas:
            highest_cas = cas
        last = seqno
        position = end
    return position, highest_cas


def seqnos_of(records: list[bytes]) -> list[int]:
    """See `uprmc.core.records`."""
    found: list[int] = []
    for record in records:
        seqno = read_i64_be(record, 16)
        if seqno < 0:
            found.append(int(seqno) + (1 << 64))
        else:
            found.append(seqno)
    return found
