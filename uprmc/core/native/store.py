"""What serving does in both protocols: reads that need no rule, and sets that none refuses."""

from __future__ import annotations

from typing import Final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i32_le,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i32, i64

from uprmc.core.native.fronts import AccountFront, VBucketFront, append
from uprmc.core.native.table import ENTRY_BYTES, RecordTable, tail_of

TAIL_BYTES: Final[i64] = 12
KEY_MAX_BYTES: Final[i64] = 250
#: A client's expiry up to here counts from now.
RELATIVE_MAX_S: Final[i64] = 2_592_000

READ_PLAIN_FOREVER: Final = bytes([2, 0x80, 0, 0, 0, 0, 0])
READ_START: Final = bytes([2, 0x80])
#: The same of a record with its origin.
READ_FROM_ELSEWHERE: Final = bytes([2, 0x88])
ORIGIN: Final[i64] = 0x08
#: Extended metadata that consists of an origin: its first four bytes as a number, then the origin.
ORIGIN_META_BYTES: Final[i64] = 20
ORIGIN_META_HEAD: Final[i64] = 0x01E00010
GONE_BITS: Final[i64] = 0x07
AGE_BITS: Final[i64] = 0xC0
READ: Final[i64] = 0x80

#: Numbers from elsewhere that are near the end of their range are left to the rules.
LARGE: Final = 1 << 62


def _crc_table() -> bytes:
    """Return what each byte does to a CRC, followed by 3, 2, 1 and no other bytes."""
    values: list[i64] = []
    number: i64 = 0
    while number < 256:
        crc: i64 = number
        bit: i64 = 0
        while bit < 8:
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
            bit += 1
        values.append(crc)
        number += 1
    followed = [values]
    for _ in range(3):
        last = followed[-1]
        followed.append([(each >> 8) ^ values[each & 0xFF] for each in last])
    writer = BytesWriter()
    for each in reversed(followed):
        for value in each:
            write_i32_be(writer, i32((value ^ 0x80000000) - 0x80000000))
    return writer.getvalue()


_CRC: Final = _crc_table()


def crc32_of(data: bytes, start: i64, length: i64) -> i64:
    """Return the CRC32 of a part of `data`."""
    table = _CRC
    crc: i64 = 0xFFFFFFFF
    place: i64 = start
    end: i64 = start + length
    while place + 4 <= end:
        crc ^= i64(read_i32_le(data, place)) & 0xFFFFFFFF
        crc = (
            i64(
                read_i32_be(table, (crc & 0xFF) << 2)
                ^ read_i32_be(table, 1024 + ((crc >> 6) & 0x3FC))
                ^ read_i32_be(table, 2048 + ((crc >> 14) & 0x3FC))
                ^ read_i32_be(table, 3072 + ((crc >> 22) & 0x3FC))
            )
            & 0xFFFFFFFF
        )
        place += 4
    while place < end:
        crc = (crc >> 8) ^ u32_at(table, 3072 + (((crc ^ i64(data[place])) & 0xFF) << 2))
        place += 1
    return crc ^ 0xFFFFFFFF


def u16_at(data: bytes, place: i64) -> i64:
    """Return two bytes as a number."""
    return i64(read_i16_be(data, place)) & 0xFFFF


def u32_at(data: bytes, place: i64) -> i64:
    """Return four bytes as a number."""
    return i64(read_i32_be(data, place)) & 0xFFFFFFFF


def is_origin(data: bytes, place: i64, end: i64) -> bool:
    """Tell whether a part of `data` is extended metadata that consists of a valid origin."""
    if end - place != ORIGIN_META_BYTES or u32_at(data, place) != ORIGIN_META_HEAD:
        return False
    return read_i64_be(data, place + 4) != 0 and read_i64_be(data, place + 12) != 0


class Serving:
    """What the servings of both protocols have; see `uprmc.core.serving`."""

    def __init__(
        self,
        tables: list[RecordTable | None],
        vbuckets: list[VBucketFront | None],
        account: AccountFront,
    ) -> None:
        self.tables = tables
        self.vbuckets = vbuckets
        self.account = account
        self.with_seqnos = False
        self.unsent: i64 = 0
        self.hits: i64 = 0
        self.misses: i64 = 0
        self.sets: i64 = 0
        self.swaps: i64 = 0
        self.versions: i64 = 0
        self.lost: i64 = 0
        self.ahead: i64 = 0
        self.behind: i64 = 0

    def table_of(self, number: i64) -> RecordTable | None:
        """Return the table of a vBucket that is served."""
        return self.tables[number] if number < i64(len(self.tables)) else None


def readable(table: RecordTable, record: bytes, now: i64) -> bytes | None:
    """Return a live, resident record of plain bytes as one that was read; ``None`` for others."""
    kind: i64 = i64(record[1])
    if kind & GONE_BITS or i64(record[2]):
        return None
    expiry = u32_at(record, 3)
    if expiry and expiry <= now:
        return None
    if kind & AGE_BITS != READ:
        start = READ_FROM_ELSEWHERE if kind & ORIGIN else READ_START
        record = start + record[2:]
        table.put(record)
    return record


def accept(
    vbucket: VBucketFront,
    account: AccountFront,
    table: RecordTable,
    data: bytes,
    key_at: i64,
    key_length: i64,
    value_at: i64,
    value_end: i64,
    flags: i64,
    expiry: i64,
    wanted: i64,
    now: i64,
    hashed: i64,
) -> i64:
    """Carry out a set; return its CAS, or -1 if it must go by the rules: nothing was done then.

    Args:
        vbucket: an active vBucket without live locks, whose table is `table`.
        account: the memory account.
        table: records of the vBucket.
        data: has key and value.
        key_at: where the key begins.
        key_length: its length.
        value_at: where the value begins.
        value_end: where it ends.
        flags: the document's.
        expiry: as the client sent it.
        wanted: CAS of the version to replace, 0 for any.
        now: Unix time.
        hashed: hash of the key.
    """
    old = table.find_hashed(hashed, data, key_at, key_length)
    if expiry:
        if expiry <= RELATIVE_MAX_S:
            expiry += now
        if expiry > 0xFFFFFFFF or expiry <= now:
            return -1
    last_cas = account.last_cas
    max_deleted_rev = vbucket.max_deleted_rev
    if last_cas >= LARGE or max_deleted_rev >= LARGE or vbucket.high_seqno >= LARGE:
        return -1
    if account.used > account.write_limit:
        return -1
    if old is None:
        if wanted:
            return -1
        rev = i64(max_deleted_rev)
    else:
        if i64(old[1]) & GONE_BITS:
            return -1
        due = u32_at(old, 3)
        if due and due <= now + i64(account.back):
            return -1
        if wanted and read_i64_be(old, tail_of(old)) != wanted:
            return -1
        rev = read_i64_be(old, 8)
    if rev < 0:
        return -1
    cas = i64(last_cas + 1)
    account.last_cas = int(cas)
    vbucket.max_cas = int(cas)
    put(
        vbucket,
        account,
        table,
        old,
        data,
        key_at,
        key_length,
        value_at,
        value_end,
        flags,
        expiry,
        cas,
        rev + 1,
        b"",
        hashed,
    )
    return cas


def put(
    vbucket: VBucketFront,
    account: AccountFront,
    table: RecordTable,
    old: bytes | None,
    data: bytes,
    key_at: i64,
    key_length: i64,
    value_at: i64,
    value_end: i64,
    flags: i64,
    expiry: i64,
    cas: i64,
    rev: i64,
    origin: bytes,
    hashed: i64,
) -> None:
    """Put an accepted document of plain bytes into table and queue, under the next seqno.

    Args: as those of `accept`, and

        old: the table's record of the key: `None`, or a resident document.
        expiry: Unix time, 0 = never.
        cas: the document's, which account and vBucket know already.
        rev: its revision.
        origin: where it was first accepted, packed; empty = here.
        hashed: hash of the key.
    """
    replaced: i64 = 0
    grown: i64 = key_length + ENTRY_BYTES
    enters = expiry != 0
    if old is not None:
        due = u32_at(old, 3)
        replaced = read_i64_be(old, 16)
        grown = -i64(len(old))
        enters = expiry != 0 and (due == 0 or expiry < due)
    seqno = vbucket.high_seqno + 1
    writer = BytesWriter()
    write_i16_be(writer, 0x0208 if origin else 0x0200)
    writer.append(0)
    write_i32_be(writer, i32((expiry ^ 0x80000000) - 0x80000000))
    writer.append(key_length)
    write_i64_be(writer, rev)
    write_i64_be(writer, i64(seqno))
    writer.write(data[key_at : key_at + key_length])
    if origin:
        writer.write(origin)
    write_i64_be(writer, cas)
    write_i32_be(writer, i32((flags ^ 0x80000000) - 0x80000000))
    writer.write(data[value_at:value_end])
    record = writer.getvalue()
    vbucket.high_seqno = seqno
    account.used += int(grown + i64(len(record)))
    append(vbucket.queue, seqno, record, int(replaced))
    table.put_hashed(hashed, record)
    if enters:
        account.timetable.add(vbucket.id, data[key_at : key_at + key_length], expiry)
    if not vbucket.dirty:
        vbucket.dirty = True
        account.mark_dirty(vbucket)
    if vbucket.waiting:
        vbucket.tell_waiting()
