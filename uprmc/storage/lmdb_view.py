"""A reading of an LMDB store: one read transaction, opened in one thread and usable in another.

The two scans, of entries and of records, are what warm-up and backfill are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

import lmdb

from uprmc.errors import StoreCorrupt
from uprmc.model import SEQNO_MAX, Item, VBucketHeader
from uprmc.record import unpack, value_bytes_of, without_value
from uprmc.storage import layout
from uprmc.storage.layout import VBUCKET
from uprmc.storage.lmdb_files import LmdbFiles, store_error

#: Records that a stream's scan takes from LMDB at a time, and how many bytes they have about.
_PORTION_RECORDS = 64
_PORTION_BYTES = 64 * 1024


class LmdbView:
    """See `interface.StoreView`.

    An iterator that it handed out stops with `StoreError` once the view or the store is closed.

    Attributes:
        transaction: the number of the commit whose state it reads.
    """

    def __init__(self, files: LmdbFiles, on_close: Callable[[LmdbView], None]) -> None:
        self.records_read = 0
        self._on_close = on_close
        try:
            self._databases = files.databases
            self._read_ahead = files.read_ahead
            self._txn = files.env.begin()
            self.transaction = self._txn.id()
        except lmdb.Error as error:
            raise store_error(error) from error

    def headers(self) -> dict[int, VBucketHeader]:
        """Return the header of every stored vBucket."""
        try:
            cursor = self._txn.cursor(self._databases.meta)
            found = {}
            if cursor.set_range(layout.HEADER_PREFIX):
                for key, data in cursor.iternext():
                    if key >= layout.HEADER_END:
                        break
                    found[layout.vbucket_of_header_key(key)] = layout.unpack_header(data)
        except lmdb.Error as error:
            raise store_error(error) from error
        return found

    def header(self, vbucket: int) -> VBucketHeader | None:
        """Return one header, ``None`` when the vBucket is not stored."""
        try:
            data = self._txn.get(layout.header_key(vbucket), db=self._databases.meta)
        except lmdb.Error as error:
            raise store_error(error) from error
        return None if data is None else layout.unpack_header(data)

    def get(self, vbucket: int, key: bytes) -> bytes | None:
        """Return the stored record of `key`, tombstones included."""
        prefix = layout.vbucket_prefix(vbucket)
        try:
            entry = self._txn.get(prefix + key, db=self._databases.by_id)
            if entry is None:
                return None
            record = self._txn.get(layout.by_seq_key_of(prefix, entry), db=self._databases.by_seq)
        except lmdb.Error as error:
            raise store_error(error) from error
        if record is None:
            raise StoreCorrupt(f"{key!r} of vBucket {vbucket} has no record")
        self.records_read += 1
        record, (_, length) = layout.read_record(record), layout.read_entry(key, entry)
        if value_bytes_of(record) != length:
            raise StoreCorrupt(f"the record of {key!r} of vBucket {vbucket} has another length")
        return record

    def metadata(self, vbucket: int, key: bytes) -> bytes | None:
        """Like `get`, without reading the value."""
        try:
            entry = self._txn.get(layout.vbucket_prefix(vbucket) + key, db=self._databases.by_id)
        except lmdb.Error as error:
            raise store_error(error) from error
        if entry is None:
            return None
        self.records_read += 1
        return layout.read_entry(key, entry)[0]

    def dump_metadata(
        self, vbucket: int | None = None, after: bytes = b""
    ) -> Iterator[tuple[int, bytes, int]]:
        """Yield ``(vbucket, record without value, value length)`` by (vBucket, key)."""
        start = b"\0" if vbucket is None else layout.vbucket_prefix(vbucket)
        if after:
            start += after + b"\0"  # the least key above it
        stop = b"\xff\xff\xff" if vbucket is None else layout.vbucket_end(vbucket)
        read_entry = layout.read_entry
        next_vbucket_at = b""
        number = 0
        self._read_ahead.scan_begins(id(self))
        try:
            for key, entry in self._rows(self._databases.by_id, start):
                if key >= next_vbucket_at:
                    if key >= stop:
                        return
                    (number,) = VBUCKET.unpack_from(key)
                    next_vbucket_at = layout.vbucket_end(number)
                self.records_read += 1
                yield number, *read_entry(key[VBUCKET.size :], entry)
        except lmdb.Error as error:
            raise store_error(error) from error

    def changes_after(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield every version of the vBucket with a higher seqno, by rising seqno."""
        for record in self.records_after(vbucket, seqno):
            self.records_read += 1
            yield unpack(record)

    def records_after(self, vbucket: int, seqno: int) -> Iterator[bytes]:
        """Yield the same versions as records."""
        if seqno >= SEQNO_MAX:
            return iter(())
        portions = self._portions(vbucket, seqno)
        return chain.from_iterable(map(layout.read_records, portions))

    def _portions(self, vbucket: int, seqno: int) -> Iterator[list[bytes]]:
        """Yield the records in lists, so that nothing is done for each of them.

        A list has as many as took `_PORTION_BYTES` before, at most `_PORTION_RECORDS`, and no more
        than there are seqnos left: nothing behind the vBucket's last is read unless there are gaps.
        """
        stop = layout.vbucket_end(vbucket)
        count = 1
        self._read_ahead.scan_begins(id(self))
        try:
            cursor = self._txn.cursor(self._databases.by_seq)
            start = layout.by_seq_key(vbucket, seqno + 1)
            if not _set_at_or_before(cursor, stop) or cursor.key() < start:
                return
            last_seqno = layout.seqno_of_key(cursor.key())
            cursor.set_range(start)
            values = cursor.iternext(keys=False)
            while seqno < last_seqno:
                portion = list(islice(values, min(count, last_seqno - seqno)))
                if not b"" < cursor.key() < stop:  # behind the vBucket's last, or behind all
                    yield list(self._rows_until(vbucket, seqno, stop))
                    return
                yield portion
                seqno = layout.seqno_of_key(cursor.key())
                size = sum(map(len, portion))
                count = min(_PORTION_RECORDS, max(1, _PORTION_BYTES * len(portion) // size))
        except lmdb.Error as error:
            raise store_error(error) from error

    def _rows_until(self, vbucket: int, seqno: int, stop: bytes) -> Iterator[bytes]:
        for key, record in self._rows(
            self._databases.by_seq, layout.by_seq_key(vbucket, seqno + 1)
        ):
            if key >= stop:
                return
            yield record

    def _rows(self, database: lmdb._Database, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._txn.cursor(database)
        return cursor.iternext() if cursor.set_range(start) else iter(())

    def changes_before(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield the vBucket's versions at or below a seqno, by falling seqno, without values."""
        prefix = layout.vbucket_prefix(vbucket)
        try:
            cursor = self._txn.cursor(self._databases.by_seq)
            found = _set_at_or_before(cursor, layout.by_seq_key(vbucket, seqno))
            while found and cursor.key().startswith(prefix):
                self.records_read += 1
                yield unpack(without_value(layout.read_record(cursor.value())))
                found = cursor.prev()
        except lmdb.Error as error:
            raise store_error(error) from error

    def count(self) -> int:
        """Return the number of records of all vBuckets, tombstones included."""
        try:
            return self._txn.stat(self._databases.by_id)["entries"]
        except lmdb.Error as error:
            raise store_error(error) from error

    def close(self) -> None:
        """Let go of the reading. Closing twice is harmless."""
        self._txn.abort()
        self._read_ahead.scan_ends(id(self))
        self._on_close(self)


def _set_at_or_before(cursor: lmdb.Cursor[bytes], key: bytes) -> bool:
    """Move to the last entry that is not behind `key`; ``False`` if there is none."""
    if not cursor.set_range(key):
        return cursor.last()
    return cursor.key() == key or cursor.prev()
