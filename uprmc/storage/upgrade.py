"""A directory of an older format is rewritten in place before anything is read from it.

Formats 1 and 2 had an entry for each record in ``by-seq``, of version 1, and another one in
``by-id`` that repeated everything but key and value; format 1 had shorter headers. Formats 3 and 4
had segments without checksums, and no seals; 3 differs from 4 only in its identity. So a directory
of format 1 or 2 becomes one of format 4 first, with one record in each segment.

The work is done in transactions of bounded size. The first one gives the directory the new format,
so that older versions refuse it, and a mark that says how far it is; the last one removes the mark.
An opening that finds the mark goes on from there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TypeAlias

import lmdb

from uprmc.errors import StoreCorrupt
from uprmc.model import Item, VBucketState
from uprmc.record import RECORD_OVERHEAD_BYTES, RECORD_VERSION, pack
from uprmc.storage import layout, segments
from uprmc.storage.lmdb_files import LmdbFiles

#: Called with how many entries are done and how many there are: at the start, after each
#: transaction, and at the end.
Progress = Callable[[int, int], None]

#: Most of one transaction; the last entry may exceed it.
_ENTRIES = 20_000
_BYTES = 16 << 20

#: Version 1 of a record: version, lengths of key and value, flags, expiry, CAS, seqno, revision,
#: datatype, life; then key and value. An entry of ``by-id`` was the same without key and value.
_RECORD_1 = struct.Struct(">BBIIIQQQBB")
assert _RECORD_1.size == 40
_SEQNO_1 = slice(22, 30)

_HEADER_1_BYTES = 44

#: From this format on, records and headers are as they are now.
_SEGMENTS_SINCE = 3
#: A segment of format 4: the number of records, the length of each, the records.
_COUNT_4 = struct.Struct(">H")

_Transaction: TypeAlias = "lmdb.Transaction[bytes]"
#: What the mark says: what is being rewritten, then its last key that is done. Records become
#: segments of format 4, then entries become places, then segments get checksums.
_RECORDS, _ENTRIES_BY_ID, _SEGMENTS = b"s", b"i", b"c"


def needed(files: LmdbFiles) -> bool:
    """Tell whether a directory has an older format, or an upgrade of it was not finished."""
    with files.env.begin(files.databases.meta) as txn:
        identity = layout.unpack_identity(txn.get(layout.IDENTITY_KEY) or b"")
        marked = txn.get(layout.UPGRADE_KEY) is not None
    return marked or identity.format_version < layout.FORMAT_VERSION


def run(files: LmdbFiles, progress: Progress) -> None:
    """Bring a directory up to the present format.

    Raises:
        StoreCorrupt: something in it cannot be read.
        StoreError, lmdb.Error: there is no room for it. What was done so far stays.
    """
    done, total = 0, _entries(files)
    progress(done, total)
    files.write(lambda txn: _begin(txn, files))
    while (count := files.write(lambda txn: _go_on(txn, files))) is not None:
        done += count
        if done < total:
            progress(done, total)
    progress(total, total)


def _entries(files: LmdbFiles) -> int:
    with files.env.begin() as txn:
        databases = files.databases
        return sum(txn.stat(each)["entries"] for each in (databases.by_seq, databases.by_id))


def _begin(txn: _Transaction, files: LmdbFiles) -> None:
    """Give the directory the new format, and a mark unless it has one."""
    meta = files.databases.meta
    identity = layout.unpack_identity(txn.get(layout.IDENTITY_KEY, db=meta) or b"")
    newest = layout.pack_identity(identity._replace(format_version=layout.FORMAT_VERSION))
    txn.put(layout.IDENTITY_KEY, newest, db=meta)
    first = _RECORDS if identity.format_version < _SEGMENTS_SINCE else _SEGMENTS
    txn.put(layout.UPGRADE_KEY, first, db=meta, overwrite=False)


def _go_on(txn: _Transaction, files: LmdbFiles) -> int | None:
    """Rewrite some entries; return how many, ``None`` when all is done."""
    databases = files.databases
    mark = txn.get(layout.UPGRADE_KEY, db=databases.meta)
    if mark is None:
        return None
    step, position = mark[:1], mark[1:]
    cursor = txn.cursor(databases.by_id if step == _ENTRIES_BY_ID else databases.by_seq)
    found = list(_portion(cursor, position))
    if found:
        _REWRITE[step](cursor, found)
        txn.put(layout.UPGRADE_KEY, step + found[-1][0], db=databases.meta)
    elif step == _RECORDS:
        txn.put(layout.UPGRADE_KEY, _ENTRIES_BY_ID, db=databases.meta)
    elif step == _ENTRIES_BY_ID:
        _rewrite_headers(txn.cursor(databases.meta))
        txn.put(layout.UPGRADE_KEY, _SEGMENTS, db=databases.meta)
    else:
        _seal(txn.cursor(databases.meta), layout.HEADER_PREFIX, layout.HEADER_END)
        _seal(txn.cursor(databases.meta), layout.PLACE_KEY, layout.PLACE_KEY + b"\0")
        _seal(txn.cursor(databases.local), b"", None)
        txn.delete(layout.UPGRADE_KEY, db=databases.meta)
    return len(found)


def _portion(cursor: lmdb.Cursor[bytes], position: bytes) -> Iterator[tuple[bytes, bytes]]:
    size = 0
    if cursor.set_range(position + b"\0"):
        for count, (key, value) in enumerate(cursor.iternext(), start=1):
            yield key, value
            size += len(value)
            if count == _ENTRIES or size >= _BYTES:
                return


def _rewrite_records(cursor: lmdb.Cursor[bytes], found: list[tuple[bytes, bytes]]) -> None:
    """Make a segment of each record."""
    cursor.putmulti([(key, _segment_4(_record(value))) for key, value in found])


def _segment_4(record: bytes) -> bytes:
    return struct.pack(">HI", 1, len(record)) + record


def _rewrite_segments(cursor: lmdb.Cursor[bytes], found: list[tuple[bytes, bytes]]) -> None:
    """Put records together into segments with checksums, the last one where it ended before."""
    for key, _ in found:
        cursor.pop(key)
    for prefix, rows in groupby(found, key=lambda row: row[0][: layout.VBUCKET.size]):
        records = [record for _, segment in rows for record in _split_4(segment)]
        cursor.putmulti(segments.packed(prefix, records))


def _split_4(segment: bytes) -> list[bytes]:
    """Return the records of a segment of format 4."""
    try:
        (count,) = _COUNT_4.unpack_from(segment)
        lengths = struct.unpack_from(f">{count}I", segment, _COUNT_4.size)
    except struct.error:
        raise StoreCorrupt(f"a segment of {len(segment)} bytes is too short") from None
    end = _COUNT_4.size + 4 * count
    records = []
    for length in lengths:
        start, end = end, end + length
        records.append(segment[start:end])
    if not records or end != len(segment) or min(lengths) < RECORD_OVERHEAD_BYTES:
        raise StoreCorrupt(f"a segment of {len(segment)} bytes does not have the length it says")
    if {record[0] for record in records} != {RECORD_VERSION}:
        raise StoreCorrupt(f"a record does not have format version {RECORD_VERSION}")
    return records


def _record(data: bytes) -> bytes:
    """Turn a record of version 1 into one of version 2."""
    if len(data) < _RECORD_1.size or data[0] != 1:
        raise StoreCorrupt(f"a record of {len(data)} bytes is not one of version 1")
    _, key_length, length, flags, expiry, cas, seqno, rev, datatype, life = _RECORD_1.unpack_from(
        data
    )
    value_at = _RECORD_1.size + key_length
    if len(data) != value_at + length:
        raise StoreCorrupt(f"the record of seqno {seqno} does not have the length that it says")
    value = None if life and not length else data[value_at:]
    key = data[_RECORD_1.size : value_at]
    return pack(Item(key, value, flags, expiry, cas, seqno, rev, datatype, life))


def _rewrite_entries(cursor: lmdb.Cursor[bytes], found: list[tuple[bytes, bytes]]) -> None:
    """Keep no more of each entry than where the record is."""
    if any(len(entry) != _RECORD_1.size for _, entry in found):
        raise StoreCorrupt(f"an index entry does not have {_RECORD_1.size} bytes")
    cursor.putmulti([(key, _place(entry)) for key, entry in found])


def _place(entry: bytes) -> bytes:
    _, key_length, length, *_ = _RECORD_1.unpack(entry)
    alone = RECORD_OVERHEAD_BYTES + key_length + length > segments.SHARING_BYTES
    return entry[_SEQNO_1] + (segments.ALONE if alone else b"")


def _rewrite_headers(cursor: lmdb.Cursor[bytes]) -> None:
    """Add to headers of version 1 what they lack: an active vBucket is in its first term."""
    cursor.set_range(layout.HEADER_PREFIX)
    while layout.HEADER_PREFIX <= cursor.key() < layout.HEADER_END:
        key, header = cursor.item()
        if header[:1] == b"\x01":
            term = int(header[1:2] == bytes([VBucketState.ACTIVE]))
            cut = _HEADER_1_BYTES
            longer = b"\x02" + header[1:cut] + struct.pack(">QQQ", term, 0, term) + header[cut:]
            cursor.put(key, longer)
        cursor.next()


def _seal(cursor: lmdb.Cursor[bytes], start: bytes, end: bytes | None) -> None:
    """Seal the values from one key to just before another."""
    more = cursor.set_range(start)
    while more and (end is None or cursor.key() < end):
        key, value = cursor.item()
        cursor.put(key, layout.sealed(key, value))
        more = cursor.next()


_REWRITE = {
    _RECORDS: _rewrite_records,
    _ENTRIES_BY_ID: _rewrite_entries,
    _SEGMENTS: _rewrite_segments,
}
