"""A reading of an LMDB store: one read transaction, opened in one thread and usable in another.

The two scans, of entries and of records, are what warm-up and backfill are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import lmdb

from uprmc.errors import StoreCorrupt
from uprmc.model import SEQNO_MAX, Item, VBucketHeader
from uprmc.record import SEQNO, key_of, unpack, without_value
from uprmc.storage import layout, segments
from uprmc.storage.layout import VBUCKET
from uprmc.storage.lmdb_files import LmdbFiles, store_error


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
            place = self._txn.get(prefix + key, db=self._databases.by_id)
            if place is None:
                return None
            seqno = place[: layout.SEQNO_BYTES]
            cursor = self._txn.cursor(self._databases.by_seq)
            segment = cursor.value() if cursor.set_range(prefix + seqno) else b""
        except lmdb.Error as error:
            raise store_error(error) from error
        self.records_read += 1
        for record in segments.split(segment) if segment else ():
            if record[SEQNO] == seqno and key_of(record) == key:
                return record
        raise StoreCorrupt(f"{key!r} of vBucket {vbucket} has no record")

    def changes_after(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield every version of the vBucket with a higher seqno, by rising seqno."""
        for record in self.records_after(vbucket, seqno):
            self.records_read += 1
            yield unpack(record)

    def records_after(self, vbucket: int, seqno: int) -> Iterator[bytes]:
        """Yield the same versions as records."""
        return chain.from_iterable(self.portions_after(vbucket, seqno))

    def portions_after(self, vbucket: int, seqno: int) -> Iterator[list[bytes]]:
        """Yield the records segment by segment, so that little is done for each of them."""
        if seqno >= SEQNO_MAX:
            return iter(())
        return self._portions(vbucket, seqno)

    def _portions(self, vbucket: int, seqno: int) -> Iterator[list[bytes]]:
        at = layout.by_seq_key(vbucket, seqno + 1)
        stop = layout.vbucket_end(vbucket)
        self._read_ahead.scan_begins(id(self))
        try:
            marks = self._txn.cursor(self._databases.stale)
            mark = marks.key() if marks.set_range(at) else stop
            begun = at[VBUCKET.size :]
            cursor = self._txn.cursor(self._databases.by_seq)
            more = cursor.set_range(at)
            while more and (key := cursor.key()) < stop:  # no value behind it is touched
                records = segments.split(cursor.value())
                if records[0][SEQNO] < begun:
                    records = [record for record in records if record[SEQNO] >= begun]
                if mark <= key:
                    stale = set()
                    while mark <= key:
                        stale.add(mark[VBUCKET.size :])
                        mark = marks.key() if marks.next() else stop
                    records = segments.without(records, stale)
                yield records
                more = cursor.next()
        except lmdb.Error as error:
            raise store_error(error) from error

    def changes_before(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield the vBucket's versions at or below a seqno, by falling seqno, without values."""
        prefix = layout.vbucket_prefix(vbucket)
        try:
            cursor = self._txn.cursor(self._databases.by_seq)
            marks = self._txn.cursor(self._databases.stale)
            newest = layout.by_seq_key(vbucket, seqno)
            found = cursor.set_range(newest) or cursor.last()
            if found and not cursor.key().startswith(prefix):
                found = cursor.prev()
            while found and cursor.key().startswith(prefix):
                for record in reversed(segments.split(cursor.value())):
                    at = prefix + record[SEQNO]
                    if at <= newest and not marks.set_key(at):
                        self.records_read += 1
                        yield unpack(without_value(record))
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
