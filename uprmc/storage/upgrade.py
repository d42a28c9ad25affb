"""A directory of an older format is rewritten in place before anything is read from it.

Formats 1 and 2 had an entry for each record in ``by-seq``, of version 1, and another one in
``by-id`` that repeated everything but key and value; format 1 had shorter headers. Format 3 differs
only in its identity. The work is done
in transactions of bounded size. The first one gives the directory the new format, so that older
versions refuse it, and a mark that says how far it is; the last one removes the mark. Whoever opens
the directory and finds the mark goes on from there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TypeAlias

import lmdb

from uprmc.errors import StoreCorrupt
from uprmc.model import Item, VBucketState
from uprmc.record import RECORD_OVERHEAD_BYTES, pack
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

_Transaction: TypeAlias = "lmdb.Transaction[bytes]"
#: What the mark says: the database that is being rewritten, then its last key that is done.
_BY_SEQ, _BY_ID = b"s", b"i"


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
    """Give the directory the new format; what was written in format 3 is as it is now."""
    meta = files.databases.meta
    identity = layout.unpack_identity(txn.get(layout.IDENTITY_KEY, db=meta) or b"")
    newest = layout.pack_identity(identity._replace(format_version=layout.FORMAT_VERSION))
    txn.put(layout.IDENTITY_KEY, newest, db=meta)
    if identity.format_version < _SEGMENTS_SINCE:
        txn.put(layout.UPGRADE_KEY, _BY_SEQ, db=meta, overwrite=False)


def _go_on(txn: _Transaction, files: LmdbFiles) -> int | None:
    """Rewrite some entries; return how many, ``None`` when all is done."""
    databases = files.databases
    mark = txn.get(layout.UPGRADE_KEY, db=databases.meta)
    if mark is None:
        return None
    database, position = mark[:1], mark[1:]
    rewrite = _rewrite_records if database == _BY_SEQ else _rewrite_entries
    cursor = txn.cursor(databases.by_seq if database == _BY_SEQ else databases.by_id)
    found = list(_portion(cursor, position))
    if found:
        rewrite(cursor, found)
        txn.put(layout.UPGRADE_KEY, database + found[-1][0], db=databases.meta)
    elif database == _BY_SEQ:
        txn.put(layout.UPGRADE_KEY, _BY_ID, db=databases.meta)
    else:
        _rewrite_headers(txn.cursor(databases.meta))
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
    """Put records together into segments, which stand where the last record of each stood."""
    for key, _ in found:
        cursor.pop(key)
    for prefix, rows in groupby(found, key=lambda row: row[0][: layout.VBUCKET.size]):
        records = [_record(value) for _, value in rows]
        cursor.putmulti(segments.packed(prefix, records))


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
