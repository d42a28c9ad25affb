"""Segments of records and their by-id entries, made and taken apart: compiled only.

See `uprmc.storage.segments`, which says what each function promises.
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
)
from mypy_extensions import i16, i32, i64
from xxhash import xxh3_64_digest as digest
from xxhash import xxh3_64_intdigest as checksum

from uprmc.core.native.fronts import SEQNO_AT
from uprmc.core.native.table import FRONT_BYTES, KEY_LENGTH_AT
from uprmc.errors import StoreCorrupt

RECORD_VERSION: Final[i64] = 2
#: The least that a record takes.
RECORD_BYTES: Final[i64] = 36
#: Where the number of records is, and what follows it: a length and a checksum of each.
COUNT_AT: Final[i64] = 8
COUNT_END: Final[i64] = 10
#: Where the last 32 bits of a checksum are in its bytes.
LAST_32_BITS: Final[i64] = 4
LENGTH_BYTES: Final[i64] = 4
ENTRY_BYTES: Final[i64] = 8
#: Longer records stand alone, and longer segments have one record.
SHARING_BYTES: Final[i64] = 2_040
SEGMENT_BYTES: Final[i64] = 16_368
ALONE: Final = b"\x01"
VBUCKET_BYTES: Final[i64] = 2
PASSED_MOST: Final[i64] = 32
#: Seqnos are unsigned: changed by this, they compare as signed numbers.
LEAST: Final[i64] = -0x8000000000000000


def _joined(prefix: bytes, records: list[bytes], begin: i64, end: i64) -> tuple[bytes, bytes]:
    """Return the by-seq key and the segment of some of the records."""
    key = prefix + records[end - 1][16:24]
    vbucket: int = int(i64(read_i16_be(prefix, 0)) & 0xFFFF)
    checksum_of: Any = digest
    writer = BytesWriter()
    write_i16_be(writer, i16(end - begin))
    at = begin
    while at < end:
        write_i32_be(writer, i32(len(records[at])))
        at += 1
    at = begin
    while at < end:
        found: bytes = checksum_of(records[at], vbucket)
        write_i32_be(writer, read_i32_be(found, LAST_32_BITS))
        at += 1
    at = begin
    while at < end:
        writer.write(records[at])
        at += 1
    content = writer.getvalue()
    whole: bytes = digest(content, checksum(key))
    return key, whole + content


def packed(prefix: bytes, records: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return (by-seq key, segment) of records of rising seqno."""
    found: list[tuple[bytes, bytes]] = []
    count: i64 = len(records)
    begin: i64 = 0
    size: i64 = COUNT_END
    at: i64 = 0
    while at < count:
        length: i64 = len(records[at])
        size += ENTRY_BYTES + length
        if at > begin and (size > SEGMENT_BYTES or length > SHARING_BYTES):
            found.append(_joined(prefix, records, begin, at))
            begin, size = at, COUNT_END + ENTRY_BYTES + length
        if length > SHARING_BYTES:
            size = SEGMENT_BYTES
        at += 1
    if count:
        found.append(_joined(prefix, records, begin, count))
    return found


def is_intact(key: bytes, segment: bytes) -> bool:
    """Tell whether a segment is what was written under this by-seq key."""
    if len(segment) < COUNT_END:
        return False
    found: bytes = digest(memoryview(segment)[8:], checksum(key))
    return read_i64_be(found, 0) == read_i64_be(segment, 0)


def read(key: bytes, segment: bytes) -> list[bytes] | None:
    """Return the records of a segment; ``None`` = it is damaged."""
    return split(segment) if is_intact(key, segment) else None


def split(segment: bytes) -> list[bytes]:
    """Return the records of a segment."""
    size: i64 = len(segment)
    count: i64 = i64(read_i16_be(segment, COUNT_AT)) & 0xFFFF if size >= COUNT_END else 0
    end: i64 = COUNT_END + count * ENTRY_BYTES
    if size < COUNT_END or size < end:
        raise StoreCorrupt(f"a segment of {size} bytes is too short")
    found: list[bytes] = []
    at: i64 = COUNT_END
    stop: i64 = COUNT_END + count * LENGTH_BYTES
    first: i64 = end
    while at < stop:
        length: i64 = i64(read_i32_be(segment, at)) & 0xFFFFFFFF
        if length < RECORD_BYTES or length > size - end:
            break
        start: i64 = end
        end += length
        found.append(segment[start:end])
        at += LENGTH_BYTES
    if at < stop or end != size or not count:
        raise StoreCorrupt(f"a segment of {size} bytes does not have the length it says")
    version: i64 = i64(segment[first])
    if version != RECORD_VERSION:
        raise StoreCorrupt(f"a record has format version {version}, not {RECORD_VERSION}")
    return found


def without(records: list[bytes], marks: list[bytes]) -> list[bytes]:
    """Return the records whose seqno no mark has; both are in the order of their seqnos."""
    if not marks:
        return records
    found: list[bytes] = []
    at: i64 = 0
    count: i64 = len(marks)
    mark = read_i64_be(marks[0], VBUCKET_BYTES) ^ LEAST
    for record in records:
        seqno = read_i64_be(record, SEQNO_AT) ^ LEAST
        while mark < seqno and at < count:
            at += 1
            if at < count:
                mark = read_i64_be(marks[at], VBUCKET_BYTES) ^ LEAST
        if at == count or mark != seqno:
            found.append(record)
    return found


def marks_upto(keys: Any, last: bytes) -> list[bytes]:
    """Return the first by-seq keys of a vBucket that are not above one."""
    found: list[bytes] = []
    key: bytes
    for key in keys:
        if key > last:
            break
        found.append(key)
    return found


def entries(prefix: bytes, records: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return (by-id key, place) of records, in the order of their keys."""
    found: list[tuple[bytes, bytes]] = []
    for record in records:
        key_end: i64 = FRONT_BYTES + i64(record[KEY_LENGTH_AT])
        place = record[16:24]
        if len(record) > SHARING_BYTES:
            place += ALONE
        found.append((prefix + record[FRONT_BYTES:key_end], place))
    found.sort()
    return found


def unlist(by_id: Any, prefix: bytes, drop: Any) -> list[int]:
    """Remove (key, seqno) from the by-id database by a cursor of it; return the seqnos."""
    wanted: dict[bytes, int] = dict(drop)
    found: list[int] = []
    passed: i64 = -PASSED_MOST
    get_key, get_value, delete, advance = by_id.key, by_id.value, by_id.delete, by_id.next
    by_id.set_range(prefix + min(wanted))
    while wanted and passed <= 2 * i64(len(found)):
        entry: bytes = get_key()
        if not entry.startswith(prefix):
            break
        seqno = wanted.pop(entry[VBUCKET_BYTES:], None)
        if seqno is not None and _has(get_value(), seqno):
            delete()
            found.append(seqno)
        else:
            passed += 1
            advance()
    for key in sorted(wanted):
        if by_id.set_key(prefix + key) and _has(get_value(), wanted[key]):
            delete()
            found.append(wanted[key])
    found.sort()
    return found


def _has(place: bytes, seqno: int) -> bool:
    raw: i64 = read_i64_be(place, 0)
    stored: int = int(raw)
    if raw < 0:
        stored += 1 << 64
    return stored == seqno
