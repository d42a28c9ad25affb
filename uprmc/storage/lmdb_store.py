"""The store on LMDB: one environment for all vBuckets, one write transaction for each batch.

`lmdb_files` opens the environment.
Note: a view pins every page that later commits replace. So the file grows while a view is open, and
the map cannot grow at all.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

import lmdb

from uprmc.config import StorageSettings
from uprmc.errors import StoreCorrupt, StoreError, StoreTaken
from uprmc.model import SEQNO_MAX, Item, VBucketHeader
from uprmc.record import SEQNO, key_of, stand_in, unpack, without_value
from uprmc.storage import layout, segments, upgrade
from uprmc.storage.damage import Damage
from uprmc.storage.interface import (
    CLEAN_MARK,
    CommitBatch,
    Damaged,
    DamagedRecords,
    StoreUsage,
    Trees,
    VBucketChange,
)
from uprmc.storage.layout import VBUCKET, Identity
from uprmc.storage.lmdb_files import Databases, LmdbFiles, PinnedPages, ReadAhead, store_error

# --- lmdb view ------------------------------------------------------------------------------------
# A reading of an LMDB store: one read transaction, opened in one thread and usable in another.
#
# The two scans, of entries and of records, are what warm-up and backfill are made of.


#: Entries of the index by id that are looked at in one go: less than a millisecond.
_INDEX_ENTRIES = 2_000


class OpenedFiles(Protocol):
    """What a view reads: an environment and its databases."""

    env: lmdb.Environment
    databases: Databases
    read_ahead: ReadAhead


class LmdbView:
    """See `interface.StoreView`.

    An iterator that it handed out stops with `StoreError` once the view or the store is closed.
    """

    def __init__(
        self, files: OpenedFiles, damage: Damage, on_close: Callable[[LmdbView], None]
    ) -> None:
        self.records_read = 0
        self._damage = damage
        self._on_close = on_close
        try:
            self._databases = files.databases
            self._read_ahead = files.read_ahead
            self._txn = files.env.begin()
            self.transaction = self._txn.id()  # the number of the commit whose state it reads
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


# --- lmdb commit ----------------------------------------------------------------------------------
# How a batch becomes changes of the two indexes, inside of one write transaction.
#
# For each vBucket: forget, rewind, drop, look up what the new versions replace, put the new ones.
# What is replaced stays in its segment and is **marked as stale** in a small database of its own,
# because removing it would mean writing a page for each record; only a large record goes at once.
# When there is one stale record for four that are not, `_sweep` rewrites segments that have many,
# some with each batch. What is dropped is often most of a segment, which is rewritten at once, or
# removed. So the work of a commit grows with its batch only, and the file does not grow for ever.
#
# Segments are checked before anything of them is written again. A damaged one stays as it is; where
# that is impossible, because a history is rewound, a spoiled record takes the place of each live
# one that is damaged. So damage is never written as if it was sound, and never keeps a commit from
# going through.
#
# LMDB lets go of the interpreter lock in each of its calls.


SEQNO_BYTES = layout.SEQNO_BYTES

#: A segment is worth rewriting when one of this many records in it is stale.
_WORTH = 4

#: Records that a sweep looks at for each one written or dropped, and at least with each batch; and
#: how many it rewrites together, which costs a page more than the records need.
_SWEPT_FOR_WRITTEN = 3
_SWEPT_LEAST = 64
_SWEPT_TOGETHER = 256
_TOGETHER_BYTES = 4_096


class Sweep:
    """Where the next commit goes on with rewriting segments."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        self.position = b""  # the by-seq key up to which the last one came


class BatchWriter:
    """Writes one batch into one transaction; the caller commits or aborts it."""

    def __init__(
        self, txn: lmdb.Transaction[bytes], databases: Databases, sweep: Sweep, damage: Damage
    ) -> None:
        self._txn = txn
        self._databases = databases
        self._sweep_at = sweep
        self._damage = damage
        self._spoiled: set[bytes] = set()
        self._by_id = txn.cursor(databases.by_id)
        self._by_seq = txn.cursor(databases.by_seq)
        self._stale = txn.cursor(databases.stale)
        self._meta = txn.cursor(databases.meta)
        self._replaced: dict[int, list[bytes]] = {}

    def write(self, batch: CommitBatch) -> None:
        """Apply the whole batch, vBuckets by rising number: the order in which they are stored.

        Raises:
            lmdb.Error: LMDB could not do it.
            struct.error: a number or key is too large for its field.
        """
        self._replaced = batch.replaced
        self._replaced.clear()
        if batch.reset_all:
            self._forget_all()
        for change in sorted(batch.changes, key=lambda change: change.vbucket):
            self._write_change(change)
        for name, document in batch.local.items():
            self._write_local(layout.local_key(name), document)
        written = sum([len(change.records) + len(change.drop) for change in batch.changes])
        self._sweep(written)

    def _forget_all(self) -> None:
        databases = self._databases
        for database in (databases.by_id, databases.by_seq, databases.stale):
            self._txn.drop(database, delete=False)
        _delete_range(self._meta, layout.HEADER_PREFIX, layout.HEADER_END)

    def _write_local(self, key: bytes, document: bytes | None) -> None:
        if document is None:
            self._txn.delete(key, db=self._databases.local)
        else:
            self._txn.put(key, layout.sealed(key, document), db=self._databases.local)

    def _write_change(self, change: VBucketChange) -> None:
        prefix = layout.vbucket_prefix(change.vbucket)
        if change.reset or change.header is None:
            end = layout.vbucket_end(change.vbucket)
            for cursor in (self._by_id, self._by_seq, self._stale):
                _delete_range(cursor, prefix, end)
        header_key = layout.header_key(change.vbucket)
        if change.header is None:
            self._txn.delete(header_key, db=self._databases.meta)
            return
        if change.rewind is not None:
            self._rewind(change.vbucket, change.rewind)
        replaced: list[bytes | None] = [self._forget(prefix + key) for key in change.forget]
        if change.drop:
            self._drop(prefix, change.drop)
        if change.records:
            replaced += self._write_records(prefix, list(change.records))
        if replaced:
            self._replaced[change.vbucket] = [place for place in replaced if place]
        for record in change.heal:
            self._heal(prefix, record)
        header = layout.pack_header(change.header)
        self._meta.put(header_key, layout.sealed(header_key, header))

    # --- records that go ------------------------------------------------------------------------

    def _rewind(self, vbucket: int, seqno: int) -> None:
        """Remove every record above `seqno`."""
        if seqno >= SEQNO_MAX:
            return
        prefix = layout.vbucket_prefix(vbucket)
        end = layout.by_seq_key(vbucket, seqno)
        found = self._take_out(layout.by_seq_key(vbucket, seqno + 1))
        for record in found:
            if prefix + record[SEQNO] > end:
                self._by_id.pop(prefix + key_of(record))
        self._put(prefix, [record for record in found if prefix + record[SEQNO] <= end])

    def _forget(self, by_id_key: bytes) -> bytes | None:
        """Remove whatever is stored of a key; return its place."""
        place = self._by_id.pop(by_id_key)
        if place is not None:
            self._give_up(by_id_key[: layout.VBUCKET.size], [place])
        return place

    def _drop(self, prefix: bytes, drop: Sequence[tuple[bytes, int]]) -> None:
        """Remove records whose key has still that seqno; all at once is much cheaper."""
        if seqnos := segments.unlist(self._by_id, prefix, drop):
            self._clear(prefix, seqnos)

    def _clear(self, prefix: bytes, seqnos: Sequence[int]) -> None:
        """Remove records from their segments; where that is not worth it, mark them as stale."""
        cursor = self._by_seq
        kept: list[bytes] = []
        following, at = b"", 0
        while at < len(seqnos):
            cursor.set_range(prefix + layout.SEQNO.pack(seqnos[at]))
            key, segment = cursor.item()
            if kept and (key != following or len(kept) >= _SWEPT_TOGETHER):
                self._put(prefix, kept)
                kept = []
                cursor.set_key(key)
            end = bisect_right(seqnos, layout.seqno_of_key(key), at)
            gone, at = seqnos[at:end], end
            few = len(gone) * _WORTH < segments.count_of(segment)
            if few or not segments.is_intact(key, segment):
                marks = [(prefix + layout.SEQNO.pack(seqno), b"") for seqno in gone]
                self._stale.putmulti(marks)
            else:
                kept += self._rest_of(key, segment, gone)
                cursor.delete()
                following = cursor.key()
        self._put(prefix, kept)

    def _rest_of(self, key: bytes, segment: bytes, gone: Sequence[int]) -> list[bytes]:
        """Return what is left of a segment; remove its marks."""
        if len(gone) == segments.count_of(segment):
            return []
        records, prefix = segments.split(segment), key[: layout.VBUCKET.size]
        stale = self._take_marks(prefix + records[0][SEQNO], key)
        if len(gone) + len(stale) == len(records):
            return []
        stale += [prefix + layout.SEQNO.pack(seqno) for seqno in gone]
        return segments.without(records, sorted(stale))

    def _give_up(self, prefix: bytes, places: Sequence[bytes]) -> None:
        """Mark records as stale; those that stand alone go at once."""
        marks = []
        for place in places:
            if len(place) == SEQNO_BYTES:
                marks.append((prefix + place, b""))
            else:
                self._by_seq.pop(prefix + place[:SEQNO_BYTES])
        self._stale.putmulti(marks)

    def _stored_at(self, by_id_key: bytes) -> bytes | None:
        """Return the by-seq key of what is stored under `by_id_key`."""
        place = self._by_id.get(by_id_key)
        return None if place is None else by_id_key[: layout.VBUCKET.size] + place[:SEQNO_BYTES]

    def _take_out(self, start: bytes) -> list[bytes]:
        """Remove a vBucket's segments from the one with `start` on; return what is not stale."""
        prefix = start[: layout.VBUCKET.size]
        found: list[bytes] = []
        self._by_seq.set_range(start)
        while self._by_seq.key().startswith(prefix):
            key, segment = self._by_seq.item()
            records = segments.read(key, segment)
            if records is None:
                first = self._first_of(key)
                records = self._with_stand_ins(*self._examine(key, segment))
            else:
                first = prefix + records[0][SEQNO]
            found += segments.without(records, self._take_marks(first, key))
            self._by_seq.delete()
        return found

    # --- damaged segments -----------------------------------------------------------------------

    def _examine(self, key: bytes, segment: bytes) -> tuple[list[bytes], list[Damaged]]:
        databases = self._databases
        return self._damage.examine(self._txn, databases.by_id, databases.by_seq, key, segment)

    def _with_stand_ins(self, sound: list[bytes], damaged: Sequence[Damaged]) -> list[bytes]:
        """Return what can be written in the place of a damaged segment, by rising seqno."""
        others = [stand_in(each.key, each.seqno) for each in damaged]
        self._spoiled.update(others)
        return sorted([*sound, *others], key=lambda record: record[SEQNO])

    def _first_of(self, key: bytes) -> bytes:
        """Return the least by-seq key that a record of a segment can have."""
        cursor, prefix = self._txn.cursor(self._databases.by_seq), key[: layout.VBUCKET.size]
        if cursor.set_key(key) and cursor.prev() and cursor.key().startswith(prefix):
            return cursor.key() + b"\0"
        return prefix

    def _heal(self, prefix: bytes, record: bytes) -> None:
        """Put a record in the place of one that is damaged."""
        place = prefix + record[SEQNO]
        if self._stored_at(prefix + key_of(record)) != place or not self._by_seq.set_range(place):
            return
        key, segment = self._by_seq.item()
        if not key.startswith(prefix) or segments.is_intact(key, segment):
            return
        sound, damaged = self._examine(key, segment)
        others = [each for each in damaged if each.key != key_of(record)]
        written = segments.as_written(key, segment, record)
        if len(others) == len(damaged) or written is None:
            return
        stale = self._take_marks(self._first_of(key), key)
        self._by_seq.set_key(key)
        self._by_seq.delete()
        left = segments.without(sound, stale)
        self._put(prefix, self._with_stand_ins([*left, written], others))

    def _take_marks(self, first: bytes, last: bytes) -> list[bytes]:
        """Remove the marks from one by-seq key to another; return them."""
        found = self._marks(first, last)
        if found:
            self._unmark(first, len(found))
        return found

    def _marks(self, first: bytes, last: bytes) -> list[bytes]:
        if not self._stale.set_range(first):
            return []
        return segments.marks_upto(self._stale.iternext(values=False), last)

    def _unmark(self, first: bytes, count: int) -> None:
        """Remove the first marks from a by-seq key on."""
        self._stale.set_range(first)
        for _ in range(count):
            self._stale.delete()

    # --- records that come ----------------------------------------------------------------------

    def _write_records(self, prefix: bytes, records: list[bytes]) -> list[bytes]:
        """Write a vBucket's new versions; return the places of those that they replace."""
        entries = segments.entries(prefix, records)
        found = self._by_id.getmulti([key for key, _ in entries])
        replaced = sorted([place for _, place in found])
        if replaced:
            self._give_up(prefix, replaced)
        first = prefix + records[0][SEQNO]
        last = self._last(prefix)
        if last >= first:
            records = self._merged(prefix, first, records)
        elif (
            last
            and len(records[0]) <= segments.SHARING_BYTES
            and sum(map(len, records)) < segments.SEGMENT_BYTES // 2
        ):
            records = [*self._take_tail(last), *records]
        self._by_id.putmulti(entries)
        self._put(prefix, records)
        return replaced

    def _last(self, prefix: bytes) -> bytes:
        """Return the by-seq key of the vBucket's last segment, ``b""`` if it has none."""
        cursor = self._by_seq
        (number,) = layout.VBUCKET.unpack(prefix)
        found = cursor.prev() if cursor.set_range(layout.vbucket_end(number)) else cursor.last()
        key = cursor.key() if found else b""
        return key if key.startswith(prefix) else b""

    def _take_tail(self, last: bytes) -> list[bytes]:
        """Return what a vBucket's last segment has, taken out, if little can be added to it.

        So many small commits do not leave many small segments, nor a document that is written all
        the time a long trace.
        """
        segment = self._by_seq.value()
        if len(segment) >= segments.SEGMENT_BYTES // 2:
            return []
        records = segments.read(last, segment)
        if records is None:
            return []
        stale = self._take_marks(last[: layout.VBUCKET.size] + records[0][SEQNO], last)
        self._by_seq.delete()
        return segments.without(records, stale)

    def _merged(self, prefix: bytes, first: bytes, records: Sequence[bytes]) -> list[bytes]:
        """Return records between those that are stored at or behind them, which are taken out.

        That happens after a rollback. A record with the seqno of a new one goes for good: two with
        one seqno come from two histories, and the older history is not ours any more.
        """
        taken = {record[SEQNO] for record in records}
        kept = []
        for record in self._take_out(first):
            if record[SEQNO] not in taken:
                kept.append(record)
            elif self._stored_at(prefix + key_of(record)) == prefix + record[SEQNO]:
                self._by_id.pop(prefix + key_of(record))
        return sorted([*kept, *records], key=lambda record: record[SEQNO])

    def _put(self, prefix: bytes, records: list[bytes]) -> None:
        found = segments.packed(prefix, records)
        if self._spoiled:
            found = [(key, self._spoil(key, segment)) for key, segment in found]
        self._by_seq.putmulti(found)

    def _spoil(self, key: bytes, segment: bytes) -> bytes:
        """Return a segment with the spoiled records in it written as such."""
        records = segments.split(segment)
        spoiled = self._spoiled.intersection(records)
        return segments.join(key, records, spoiled) if spoiled else segment

    # --- rewriting what is stale ----------------------------------------------------------------

    def _sweep(self, written: int) -> None:
        """Rewrite segments that have much that is stale, for some records that were written.

        It ends when it has looked at so many or a few more, or has rewritten as many bytes as so
        many of average length have, because all that it writes is in memory until the commit.
        """
        stat, databases = self._txn.stat, self._databases
        most = _SWEPT_LEAST + _SWEPT_FOR_WRITTEN * written
        room = -1
        while most > 0 and room:
            stale, live = (stat(each)["entries"] for each in (databases.stale, databases.by_id))
            if stale <= segments.stale_allowed(live):
                return
            if room < 0:
                room = (_SWEPT_LEAST + segments.REWRITTEN_FOR_WRITTEN * written) * self._average(
                    stale + live
                )
            looked, rewritten = self._sweep_on()
            most -= looked
            room = max(0, room - rewritten)

    def _average(self, records: int) -> int:
        """Return the average length of so many records in pages, or of the largest together."""
        stat = self._txn.stat(self._databases.by_seq)
        pages = stat["leaf_pages"] + stat["overflow_pages"]
        return min(pages * stat["psize"] // records, segments.SHARING_BYTES)

    def _sweep_on(self) -> tuple[int, int]:
        """Rewrite the next few segments; return how many records they have, and the bytes."""
        cursor = self._by_seq
        if not (self._stale.set_range(self._sweep_at.position) or self._stale.first()):
            return 1, 0
        mark = self._stale.key()
        prefix = mark[: layout.VBUCKET.size]
        kept: list[bytes] = []
        looked = 0
        cursor.set_range(mark)
        while looked < _SWEPT_TOGETHER:
            key, segment = cursor.item()
            if not key.startswith(prefix):
                break
            self._sweep_at.position = key + b"\0"
            records = segments.read(key, segment)
            if records is None:
                break
            first = prefix + records[0][SEQNO]
            stale = self._marks(first, key)
            looked += len(records)
            if len(stale) * _WORTH < len(records):
                break
            kept += segments.without(records, stale)
            self._unmark(first, len(stale))
            cursor.delete()
        self._put(prefix, kept)
        return max(looked, 1), sum(map(len, kept)) + (_TOGETHER_BYTES if kept else 0)


def _delete_range(cursor: lmdb.Cursor[bytes], start: bytes, end: bytes) -> None:
    """Delete every entry from `start` to just before `end`."""
    cursor.set_range(start)
    while start <= cursor.key() < end:  # past the last entry the key is empty
        cursor.delete()


# --- lmdb store -----------------------------------------------------------------------------------


TAKEN = (
    "another process has opened the data directory: this one ends, so that they do not both write"
)

#: Damaged records that are returned by one call.
NAMED_AT_ONCE = 256


def _nothing() -> None:
    """Be the default of `on_close`."""


class LmdbStore:
    """See `interface.Store`. Open it by `directory.open_directory`, which guards the directory.

    Without `sync` a commit survives the death of the process, but a power loss may damage the file
    if the file system wrote its pages in another order; `sync` ends that danger until the next
    commit.
    """

    def __init__(
        self,
        path: Path,
        *,
        fresh: Identity,
        settings: StorageSettings | None = None,
        sync: bool = True,
        on_close: Callable[[], None] = _nothing,
    ) -> None:
        """Open the environment in the directory `path`; an empty one becomes `fresh`.

        Raises:
            StoreError: it is damaged, another program's, or cannot be opened.
        """
        settings = settings or StorageSettings()
        self._files = LmdbFiles(
            path,
            map_initial=settings.map_initial,
            map_max=settings.map_max,
            sync=sync,
            fresh=fresh,
        )
        self._views: WeakSet[LmdbView] = WeakSet()
        self._pinned = PinnedPages()
        self._sweep = Sweep()
        self.damage = Damage()  # records that were found damaged
        self._owner = b""
        self._recorded_bytes = -1  # what the last commit has recorded as the size of the file
        self._on_close = on_close
        # Why the store began a new history when it was opened; empty = it did not.
        self.new_history = ""

    def identity(self) -> Identity:
        """Return what the directory says that it is."""
        data = self._read(layout.IDENTITY_KEY, self._files.databases.meta)
        return layout.unpack_identity(data or b"")

    def place(self) -> bytes | None:
        """Return the record of where the store is."""
        stored = self._read(layout.PLACE_KEY, self._files.databases.meta)
        return None if stored is None else layout.unsealed(layout.PLACE_KEY, stored)

    def settle(self, place: bytes, owner: bytes, uuid: int | None) -> None:
        """Record where the store is and whose; with a `uuid`, it also begins a new history.

        A new history is one that was not left in order: each active vBucket will begin a branch.

        Args:
            place: where it is.
            owner: names this process; as soon as another one is recorded, nothing is committed.
            uuid: the store's new name.
        """
        databases = self._files.databases

        def work(txn: lmdb.Transaction[bytes]) -> None:
            sealed = layout.sealed(layout.PLACE_KEY, place)
            txn.put(layout.PLACE_KEY, sealed, db=databases.meta)
            sealed = layout.sealed(layout.OWNER_KEY, owner)
            txn.put(layout.OWNER_KEY, sealed, db=databases.meta)
            if uuid is not None:
                packed = txn.get(layout.IDENTITY_KEY, db=databases.meta) or b""
                renamed = layout.pack_identity(layout.unpack_identity(packed)._replace(uuid=uuid))
                txn.put(layout.IDENTITY_KEY, renamed, db=databases.meta)
                txn.delete(layout.local_key(CLEAN_MARK), db=databases.local)

        try:
            self._files.write(work)
        except lmdb.Error as error:
            raise self._files.failure(error) from error
        self._owner = layout.sealed(layout.OWNER_KEY, owner)

    def check(self) -> None:
        """Read all that is sealed; raises `StoreCorrupt` if something is not what was written."""
        databases = self._files.databases
        try:
            with self._files.env.begin() as txn:
                for database in (databases.meta, databases.local):
                    for key, stored in txn.cursor(database):
                        layout.unsealed(key, stored)
                for key, stored in txn.cursor(databases.meta):
                    if layout.HEADER_PREFIX <= key < layout.HEADER_END:
                        layout.unpack_header(layout.unsealed(key, stored))
        except lmdb.Error as error:
            raise store_error(error) from error

    def check_owner(self) -> None:
        """Raise `StoreTaken` if another process has opened the store since."""
        if self._owner and self._read(layout.OWNER_KEY, self._files.databases.meta) != self._owner:
            raise StoreTaken(TAKEN)

    def upgrade(self, progress: upgrade.Progress) -> None:
        """Bring a directory of an older format up to the present one, before anything else."""
        try:
            if upgrade.needed(self._files):
                upgrade.run(self._files, progress)
        except lmdb.Error as error:
            raise self._files.failure(error) from error

    def commit(self, batch: CommitBatch) -> None:
        """Write `batch` atomically."""
        files = self._files
        try:
            with files.env.begin(write=True) as txn:
                owner = txn.get(layout.OWNER_KEY, db=files.databases.meta)
                if self._owner not in (b"", owner):
                    raise StoreTaken(TAKEN)
                size = files.file_bytes()
                if size != self._recorded_bytes:
                    files.read_ahead.file_is(size)
                    extent = layout.pack_extent(size)
                    txn.put(layout.EXTENT_KEY, extent, db=files.databases.meta)
                BatchWriter(txn, files.databases, self._sweep, self.damage).write(batch)
            self._recorded_bytes = size
            if self._views:
                self._pinned.freed(*files.freed_by_newest())
        except lmdb.Error as error:
            raise files.failure(error) from error
        except struct.error as error:
            raise StoreError(f"the batch does not fit the record layout: {error}") from error

    def grow(self) -> bool:
        """Make room after `StoreMapFull`.

        Raises:
            StoreFull: the map has reached its limit, or the process may not map more.
        """
        try:
            self._files.check_growable()
            if self._views:
                return False
            self._files.grow()
        except lmdb.Error as error:
            raise store_error(error) from error
        return True

    def view(self) -> LmdbView:
        """Open a reading of the newest commit."""
        view = LmdbView(self._files, self.damage, self._views.discard)
        self._views.add(view)
        self._pinned.opened(view.transaction)
        return view

    def local(self, name: bytes) -> bytes | None:
        """Return a local document as of the newest commit."""
        key = layout.local_key(name)
        stored = self._read(key, self._files.databases.local)
        return None if stored is None else layout.unsealed(key, stored)

    def take_damaged(self) -> list[Damaged]:
        """Return some of the damaged records that were met and not returned yet, each once."""
        news = self.damage.news
        return [news.popleft() for _ in range(min(len(news), NAMED_AT_ONCE))]

    def healed(self, record: Damaged) -> None:
        """Learn that a damaged record was healed, so that it is named again if it is met again."""
        self.damage.healed(record)

    def _read(self, key: bytes, database: lmdb._Database) -> bytes | None:
        try:
            with self._files.env.begin(database) as txn:
                return txn.get(key)
        except lmdb.Error as error:
            raise store_error(error) from error

    def usage(self) -> StoreUsage:
        """Return sizes for statistics."""
        oldest = min((view.transaction for view in self._views), default=None)
        try:
            return self._files.usage(self._pinned.count(oldest))
        except lmdb.Error as error:
            raise store_error(error) from error

    def trees(self) -> Trees:
        """Return what the next commit may have to copy pages of."""
        databases = self._files.databases
        try:
            with self._files.env.begin() as txn:
                by_id, by_seq, stale = (
                    txn.stat(each) for each in (databases.by_id, databases.by_seq, databases.stale)
                )
        except lmdb.Error as error:
            raise store_error(error) from error
        return Trees(
            by_id["leaf_pages"],
            by_seq["leaf_pages"],
            stale["leaf_pages"],
            by_id["branch_pages"] + by_seq["branch_pages"] + stale["branch_pages"],
            (by_seq["leaf_pages"] + by_seq["overflow_pages"]) * by_seq["psize"],
            by_id["entries"],
            stale["entries"],
        )

    def sync(self) -> None:
        """Force what was committed without syncing to the device."""
        try:
            self._files.env.sync(True)
        except lmdb.Error as error:
            raise self._files.failure(error) from error

    def close(self) -> None:
        """Close files and release the directory."""
        self._files.env.close()
        self._on_close()
