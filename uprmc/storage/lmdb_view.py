"""A reading of an LMDB store: one read transaction, opened in one thread and usable in another.

The two scans, of entries and of records, are what warm-up and backfill are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

import lmdb

from uprmc.errors import StoreCorrupt
from uprmc.model import SEQNO_MAX, Item, VBucketHeader
from uprmc.record import SEQNO, key_of, unpack, without_value
from uprmc.storage import layout, segments
from uprmc.storage.damage import Damage
from uprmc.storage.interface import Damaged, DamagedRecords
from uprmc.storage.layout import VBUCKET
from uprmc.storage.lmdb_files import Databases, store_error
from uprmc.storage.read_ahead import ReadAhead

#: Entries of the index by id that are looked at in one go: less than a millisecond.
_INDEX_ENTRIES = 2_000


class Opened(Protocol):
    """What a view reads: an environment and its databases."""

    env: lmdb.Environment
    databases: Databases
    read_ahead: ReadAhead


class LmdbView:
    """See `interface.StoreView`.

    An iterator that it handed out stops with `StoreError` once the view or the store is closed.

    Attributes:
        transaction: the number of the commit whose state it reads.
    """

    def __init__(self, files: Opened, damage: Damage, on_close: Callable[[LmdbView], None]) -> None:
        self.records_read = 0
        self._damage = damage
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
                    number = layout.vbucket_of_header_key(key)
                    found[number] = layout.unpack_header(layout.unsealed(key, data))
        except lmdb.Error as error:
            raise store_error(error) from error
        return found

    def header(self, vbucket: int) -> VBucketHeader | None:
        """Return one header, ``None`` when the vBucket is not stored."""
        key = layout.header_key(vbucket)
        try:
            data = self._txn.get(key, db=self._databases.meta)
        except lmdb.Error as error:
            raise store_error(error) from error
        return None if data is None else layout.unpack_header(layout.unsealed(key, data))

    def get(self, vbucket: int, key: bytes) -> bytes | None:
        """Return the stored record of `key`, tombstones included."""
        prefix = layout.vbucket_prefix(vbucket)
        try:
            place = self._txn.get(prefix + key, db=self._databases.by_id)
            if place is None:
                return None
            seqno = place[: layout.SEQNO_BYTES]
            cursor = self._txn.cursor(self._databases.by_seq)
            found: list[bytes] = []
            damaged: list[Damaged] = []
            if cursor.set_range(prefix + seqno):
                found, damaged = self._records(cursor.key(), cursor.value())
        except lmdb.Error as error:
            raise store_error(error) from error
        self.records_read += 1
        for record in found:
            if record[SEQNO] == seqno and key_of(record) == key:
                return record
        if mine := [each for each in damaged if each.key == key]:
            raise DamagedRecords(mine)
        raise StoreCorrupt(f"{key!r} of vBucket {vbucket} has no record")

    def _records(self, key: bytes, segment: bytes) -> tuple[list[bytes], list[Damaged]]:
        """Return the sound records of a segment, stale ones too, and the live ones that are not."""
        records = segments.read(key, segment)
        if records is not None:
            return records, []
        databases = self._databases
        return self._damage.examine(self._txn, databases.by_id, databases.by_seq, key, segment)

    def changes_after(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield every version of the vBucket with a higher seqno, by rising seqno."""
        for record in self.records_after(vbucket, seqno):
            self.records_read += 1
            yield unpack(record)

    def records_after(self, vbucket: int, seqno: int) -> Iterator[bytes]:
        """Yield the same versions as records."""
        return chain.from_iterable(self.portions_after(vbucket, seqno))

    def portions_after(
        self, vbucket: int, seqno: int, damaged: list[Damaged] | None = None
    ) -> Iterator[list[bytes]]:
        """Yield the records segment by segment, so that little is done for each of them."""
        if seqno >= SEQNO_MAX:
            return iter(())
        return self._portions(vbucket, seqno, damaged)

    def _portions(
        self, vbucket: int, seqno: int, damaged: list[Damaged] | None
    ) -> Iterator[list[bytes]]:
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
                segment = cursor.value()
                records = segments.read(key, segment)
                if records is None:
                    records, lost = self._records(key, segment)
                    lost = [each for each in lost if each.seqno > seqno]
                    if lost and damaged is None:
                        raise DamagedRecords(lost)
                    if damaged is not None:
                        damaged += lost
                if records and records[0][SEQNO] < begun:
                    records = [record for record in records if record[SEQNO] >= begun]
                if mark <= key:
                    stale = []
                    while mark <= key:
                        stale.append(mark)
                        mark = marks.key() if marks.next() else stop
                    records = segments.without(records, stale)
                yield records
                more = cursor.next()
        except lmdb.Error as error:
            raise store_error(error) from error

    def listed(
        self, vbucket: int, records: Sequence[bytes], damaged: Sequence[Damaged] = ()
    ) -> int:
        """Return the sum of what the index by id must have for live records of a vBucket."""
        prefix = layout.vbucket_prefix(vbucket)
        found = sum(map(hash, segments.entries(prefix, list(records))))
        for each in damaged:
            key = prefix + each.key
            found += hash((key, self._txn.get(key, db=self._databases.by_id)))
        return found

    def indexed(self, vbucket: int) -> tuple[int, int]:
        """Return how many entries of a vBucket the index by id has, and their sum."""
        prefix = layout.vbucket_prefix(vbucket)
        count = found = 0
        try:
            cursor = self._txn.cursor(self._databases.by_id)
            if cursor.set_range(prefix):
                for entry in cursor.iternext():
                    if not entry[0].startswith(prefix):
                        break
                    count, found = count + 1, found + hash(entry)
        except lmdb.Error as error:
            raise store_error(error) from error
        return count, found

    def numbers(self) -> list[int]:
        """Return the vBuckets that have entries or records, by rising number."""
        found = set()
        try:
            for database in (self._databases.by_id, self._databases.by_seq):
                cursor = self._txn.cursor(database)
                more = cursor.first()
                while more:
                    (number,) = VBUCKET.unpack(cursor.key()[: VBUCKET.size])
                    found.add(number)
                    more = cursor.set_range(layout.vbucket_end(number))
        except lmdb.Error as error:
            raise store_error(error) from error
        return sorted(found)

    def index(self) -> Iterator[int]:
        """Yield the sums of what the index by id has."""
        try:
            entries = iter(self._txn.cursor(self._databases.by_id))
            while portion := list(islice(entries, _INDEX_ENTRIES)):
                yield sum(map(hash, portion))
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
                records, lost = self._records(cursor.key(), cursor.value())
                if lost := [each for each in lost if each.seqno <= seqno]:
                    raise DamagedRecords(lost)
                for record in reversed(records):
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
