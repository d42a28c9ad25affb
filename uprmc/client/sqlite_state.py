"""A consumer's state in SQLite: a file of its own, or tables in the handler's own database.

With a file of its own, positions are written after what they vouch for: after a crash some changes
are handed over again (at least once). With the handler's connection, what the handler wrote through
it since the last commit goes into the same transaction as the position: each change takes effect
exactly once.

The state is a journal. Three tables, beside the user's own ones in a user's database:

- ``uprmc_state``: one row: version of this layout, the consumer's name, over how many vBuckets its
  documents are spread (0 = unknown as yet), the id under which it is registered with nodes;
- ``uprmc_journal``: the oldest row says where all vBuckets stand; each later one is a commit, with
  whatever has changed, however many vBuckets that are (`_Record`);
- ``uprmc_ring``: keys of commits that have left the journal, in rows of one vBucket each
  (``id`` = vBucket * 2**32 + number), with their highest seqno (big-endian) and their count. A
  later row of a vBucket begins no earlier than the row before it ends.

Now and then the journal is *folded* in a commit: its keys go to the ring's rows, and a new oldest
row replaces it. What the journal says is also in memory.

Rows D13, D44, D45.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, islice, pairwise
from typing import Any, Literal, NamedTuple
from zlib import crc32

from uprmc.client.state import (
    RingChunk,
    RingColumns,
    Saved,
    StateError,
    StateFull,
    StateRefused,
)
from uprmc.model import SEQNO_MAX, FailoverEntry, FailoverLog, SnapshotRange

#: "UPRm", so that ``file`` and SQLite's tools can tell whose it is (offset 68 of the file).
APPLICATION_ID = 0x5550526D

VERSION = 6

#: The journal is folded when it has this many entries of the ring, or this many commits.
FOLD_ENTRIES = 131_072
FOLD_RECORDS = 1_024

#: A vBucket's last row takes in the next entries while it has fewer than this.
ROW_ENTRIES = 128

_TABLES = (
    """CREATE TABLE uprmc_state (
        id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, name TEXT NOT NULL,
        vbuckets INTEGER NOT NULL, instance TEXT NOT NULL)""",
    "CREATE TABLE uprmc_journal (id INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    """CREATE TABLE uprmc_ring (
        id INTEGER PRIMARY KEY, last BLOB NOT NULL, entries INTEGER NOT NULL,
        data BLOB NOT NULL)""",
)

#: A row is written only behind the one that we wrote last: another process may have the file, too.
_APPEND = (
    "INSERT INTO uprmc_journal SELECT ?1, ?2 WHERE ?1 = 1 + (SELECT max(id) FROM uprmc_journal)"
)

_LOCK_TIMEOUT_S = 1.0
_NO_FLOOR = -1

Entry = tuple[int, bytes]


class SqliteState:
    """A `StateStore` in SQLite. Calls may come from any thread, one at a time.

    Args:
        where: path of a file, which is made if need be and locked while it is open; or the
            handler's connection. That one is committed and rolled back here, and stays open; it
            must be in a mode in which writing begins a transaction (the default), and keeps its own
            settings of journal and synchronisation.
        name: the consumer's name.
        vbuckets: over how many the documents are spread; 0 = as the state says, and the nodes tell
            a new one.
        sync: ``full`` = a commit is on the disk when it returns. ``normal`` = it survives a crash
            of the process; after a power failure the last commits may be missing, which is safe
            only if the handler's own effects are lost with them.
        lock_timeout_s: how long to wait for another process to close the file.
        called: what messages call the database of a connection.

    Raises:
        StateRefused: it belongs to another consumer, another application, another number of
            vBuckets; or it is torn, locked, not writable. Nothing was changed.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | sqlite3.Connection,
        *,
        name: str,
        vbuckets: int = 0,
        sync: Literal["full", "normal"] = "full",
        lock_timeout_s: float = _LOCK_TIMEOUT_S,
        called: str = "in your database",
    ) -> None:
        if sync not in ("full", "normal"):
            raise StateRefused(f"sync {sync!r}: say 'full' or 'normal'")
        # Whether the handler's writes are in the same transactions.
        self.shared = isinstance(where, sqlite3.Connection)
        self.instance = ""  # the id under which the consumer is registered with nodes
        self.vbuckets = vbuckets  # over how many the documents are spread; 0 = unknown as yet
        self._journal = _Journal()
        self._last_id = 0
        if isinstance(where, sqlite3.Connection):
            self._place = called
            self._connection = where
            _check_shared(where, called)
        else:
            self._place = os.path.abspath(where)
            self._connection = open_file(self._place, sync, lock_timeout_s)
        try:
            with in_plain_words(self._place, StateRefused), self._reading("it"):
                self._recognise(name, vbuckets)
                rows = self._select("SELECT * FROM uprmc_journal ORDER BY id")
                for self._last_id, (number, data) in enumerate(rows, start=rows[0][0]):
                    if number != self._last_id:
                        raise ValueError(f"row {self._last_id} is missing")
                    self._journal.take(_unpacked(data, self._journal.saved))
        except BaseException:
            self.close()
            raise

    def _recognise(self, name: str, vbuckets: int) -> None:
        """Check that the state is this consumer's; make it if there is none."""
        with self._transaction():
            if not self._select("SELECT 1 FROM sqlite_schema WHERE name = 'uprmc_state'"):
                for table in _TABLES:
                    self._connection.execute(table)
                row = VERSION, name, vbuckets, os.urandom(16).hex()
                self._connection.execute("INSERT INTO uprmc_state VALUES (1, ?, ?, ?, ?)", row)
                data = _packed(_Record(), {})
                self._connection.execute("INSERT INTO uprmc_journal VALUES (1, ?)", (data,))
            ((version, owner, count, self.instance),) = self._select(
                "SELECT version, name, vbuckets, instance FROM uprmc_state"
            )
            if vbuckets and not count and (version, owner) == (VERSION, name):
                self._connection.execute("UPDATE uprmc_state SET vbuckets = ?", (vbuckets,))
                count = vbuckets
        if version != VERSION:
            raise StateRefused(
                f"state {self._place}: its layout has version {version}, this program knows "
                f"{VERSION}: use the program that made it, or give another path"
            )
        if owner != name:
            raise StateRefused(
                f"state {self._place}: it is consumer {owner!r}'s, not {name!r}'s: give each "
                "consumer a state of its own"
            )
        if vbuckets and count != vbuckets:
            raise StateRefused(
                f"state {self._place}: it is of {count} vBuckets, not {vbuckets}: it belongs to "
                "another node; give another path"
            )
        self.vbuckets = count

    def name_instance(self, instance: str) -> None:
        """See `StateStore`: keep another id from now on."""
        with in_plain_words(self._place), self._transaction():
            self._connection.execute("UPDATE uprmc_state SET instance = ?", (instance,))
        self.instance = instance

    def name_vbuckets(self, vbuckets: int) -> None:
        """See `StateStore`: keep over how many vBuckets the documents are spread."""
        with in_plain_words(self._place), self._transaction():
            self._connection.execute("UPDATE uprmc_state SET vbuckets = ?", (vbuckets,))
        self.vbuckets = vbuckets

    # --- reading --------------------------------------------------------------------------------

    def load(self) -> dict[int, Saved]:
        """See `StateStore.load`."""
        return dict(self._journal.saved)

    def ring_after(self, vbucket: int, seqno: int) -> list[Entry]:
        """See `StateStore.ring_after`."""
        found = set(self._rows_after(vbucket, seqno))
        found.update(each for each in self._journal.ring(vbucket) if each[0] > seqno)
        return sorted(found)

    def ring_size(self, vbucket: int) -> int:
        """See `StateStore.ring_size`."""
        floor = self._journal.floors.get(vbucket, _NO_FLOOR)
        with in_plain_words(self._place):
            sizes = self._rows("entries, id", vbucket, floor)
            # Only the first row can have entries on either side of the floor.
            first = self._rows("*", vbucket, floor, "LIMIT 1") if floor != _NO_FLOOR else []
        below = [each for each in self._entries_of(first, vbucket) if each[0] <= floor]
        with self._reading(f"the ring of vBucket {vbucket}"):
            size: int = sum([entries for entries, _ in sizes])
        return size - len(below) + len(self._journal.ring(vbucket))

    def _rows_after(self, vbucket: int, seqno: int) -> list[Entry]:
        """Return entries above a seqno, and above what is forgotten, that are in rows."""
        above = max(seqno, self._journal.floors.get(vbucket, _NO_FLOOR))
        with in_plain_words(self._place):
            rows = self._rows("*", vbucket, above)
        return [each for each in self._entries_of(rows, vbucket) if each[0] > above]

    def _rows(
        self, columns: str, vbucket: int, above: int = _NO_FLOOR, order: str = ""
    ) -> list[Any]:
        """Return a vBucket's rows, or only those that end above a seqno."""
        statement = (
            f"SELECT {columns} FROM uprmc_ring WHERE id BETWEEN ? AND ? AND last > ? ORDER BY id "
            f"{order}"
        )
        end = b"" if above == _NO_FLOOR else _as_bytes(above)
        return self._select(statement, *_ids(vbucket), end)

    def _entries_of(self, rows: list[Any], vbucket: int) -> list[Entry]:
        with self._reading(f"the ring of vBucket {vbucket}"):
            return [entry for row in rows for entry in _entries(*row)]

    def _select(self, statement: str, *values: int | bytes) -> list[Any]:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the handler's connection may make anything of a row
        return cursor.execute(statement, values).fetchall()

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, IndexError, struct.error):
            raise StateRefused(
                f"state {self._place}: {what} is torn: move it away to start over, "
                "or put a copy back"
            ) from None

    # --- writing --------------------------------------------------------------------------------

    def commit(
        self,
        saved: Mapping[int, Saved],
        ring: Iterable[RingChunk],
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        """See `StateStore.commit`."""
        self._write(_Record(saved, (), cuts, trims, RingColumns.of(ring)))

    def forget(self, vbuckets: Iterable[int]) -> None:
        """See `StateStore.forget`."""
        self._write(_Record(gone=tuple(vbuckets)))

    def _write(self, record: _Record) -> None:
        journal, number = self._journal, self._last_id + 1
        with in_plain_words(self._place), self._transaction():
            if journal.entries >= FOLD_ENTRIES or journal.commits >= FOLD_RECORDS:
                journal = self._fold(number)
                number += 1
            if record.cuts or record.gone:
                self._shorten(record)
            self._append(number, _packed(record, journal.saved))
        journal.take(record)
        self._journal, self._last_id = journal, number

    def _append(self, number: int, data: bytes) -> None:
        if not self._connection.execute(_APPEND, (number, data)).rowcount:
            raise StateError(
                f"state {self._place}: another process has used it meanwhile: stop that one, "
                "or give this one its own"
            )

    def _shorten(self, record: _Record) -> None:
        """Drop entries that a rollback has undone, and all of vBuckets that are forgotten."""
        for vbucket in record.gone:
            self._connection.execute(
                "DELETE FROM uprmc_ring WHERE id BETWEEN ? AND ?", _ids(vbucket)
            )
        for vbucket, seqno in record.cuts.items():
            rows = self._rows("*", vbucket, seqno)
            kept = [each for each in self._entries_of(rows, vbucket) if each[0] <= seqno]
            if rows:
                columns = zip(*kept, strict=True) if kept else ((), ())
                self._replace(rows, rows[0][0], *columns)

    def _fold(self, number: int) -> _Journal:
        """Make rows of the journal's entries, and replace it by one row; return what that says."""
        old = self._journal
        floors = dict(old.floors)
        self._connection.executemany(
            "DELETE FROM uprmc_ring WHERE id BETWEEN ? AND ? AND last <= ?",
            [(*_ids(vbucket), _as_bytes(floor)) for vbucket, floor in floors.items()],
        )
        for vbucket, (seqnos, keys) in old.rings().items():
            self._add_row(vbucket, seqnos, keys, floors)
        record = _Record(old.saved, trims=floors)
        self._append(number, _packed(record, {}))
        self._connection.execute("DELETE FROM uprmc_journal WHERE id < ?", (number,))
        new = _Journal()
        new.take(record)
        return new

    def _add_row(
        self, vbucket: int, seqnos: Sequence[int], keys: Sequence[bytes], floors: dict[int, int]
    ) -> None:
        """Write entries behind a vBucket's rows.

        Those that begin before the last row ends, or not above the floor, which is older than they
        are, become one row with all that there is; then the floor has done its work.
        """
        floor = floors.get(vbucket, _NO_FLOOR)
        rows = self._rows("*", vbucket, order="DESC LIMIT 1")
        number = rows[0][0] + 1 if rows else _ids(vbucket)[0]
        first = min(seqnos)
        if first <= floor or (rows and _as_bytes(first) < rows[0][1]):
            rows = self._rows("*", vbucket)
            floors.pop(vbucket, None)
        elif rows and rows[0][2] >= ROW_ENTRIES:
            rows = []
        entries = [each for each in self._entries_of(rows, vbucket) if each[0] > floor]
        if entries or seqnos != sorted(seqnos):
            entries += zip(seqnos, keys, strict=True)
            seqnos, keys = zip(*sorted(entries), strict=True)
        self._replace(rows, rows[0][0] if rows else number, seqnos, keys)

    def _replace(
        self, rows: list[Any], number: int, seqnos: Sequence[int], keys: Sequence[bytes]
    ) -> None:
        """Delete rows, and write another one with this number if there are entries."""
        for row in rows:
            self._connection.execute("DELETE FROM uprmc_ring WHERE id = ?", row[:1])
        if keys:
            row = number, _as_bytes(seqnos[-1]), len(keys), _with_keys([seqnos], keys)
            self._connection.execute("INSERT INTO uprmc_ring VALUES (?, ?, ?, ?)", row)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what is written, and what the handler wrote before; after a failure, neither."""
        connection = self._connection
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            yield
            if getattr(connection, "autocommit", None) is False:
                connection.commit()
            else:
                connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.rollback()
            raise

    def abandon(self) -> None:
        """Undo what the handler wrote since the last commit."""
        with in_plain_words(self._place):
            self._connection.rollback()

    def close(self) -> None:
        """See `StateStore.close`. The handler's own connection stays open."""
        if not self.shared:
            self._connection.close()


# --- the journal ----------------------------------------------------------------------------------


class _Record(NamedTuple):
    """One row of the journal: what changes, in this order."""

    saved: Mapping[int, Saved] = {}
    gone: Sequence[int] = ()  # vBuckets that are forgotten
    cuts: Mapping[int, int] = {}
    trims: Mapping[int, int] = {}
    ring: RingColumns = RingColumns()


class _Journal:
    """What the rows of the journal say together.

    A trim is done at once to what has come with the journal; for the rows of the ring it is a
    *floor*, and what is in them up to there counts as gone.
    """

    __slots__ = ("_records", "_rings", "commits", "entries", "floors", "saved")

    def __init__(self) -> None:
        self.saved: dict[int, Saved] = {}
        self.floors: dict[int, int] = {}
        self.commits = self.entries = 0
        self._rings: dict[int, tuple[list[int], list[bytes]]] = {}
        self._records: list[_Record] = []  # those that `_rings` lacks

    def take(self, record: _Record) -> None:
        """Take in one more row."""
        self.commits += 1
        self.entries += len(record.ring.seqnos)
        for vbucket in record.gone:
            self.saved.pop(vbucket, None)
            self.floors.pop(vbucket, None)
        for vbucket, floor in record.trims.items():
            self.floors[vbucket] = max(floor, self.floors.get(vbucket, floor))
        self.saved.update(record.saved)
        self._records.append(record._replace(saved={}))

    def ring(self, vbucket: int) -> list[Entry]:
        """Return the entries of a vBucket, as they came."""
        columns = self.rings().get(vbucket)
        return [] if columns is None else list(zip(*columns, strict=True))

    def rings(self) -> Mapping[int, tuple[list[int], list[bytes]]]:
        """Return seqnos and keys of all vBuckets."""
        found = self._rings
        for _, gone, cuts, trims, ring in self._records:
            for vbucket in gone:
                found.pop(vbucket, None)
            for vbucket, seqno in cuts.items():
                _keep(found, vbucket, _NO_FLOOR, seqno)
            for vbucket, seqno in trims.items():
                _keep(found, vbucket, seqno, SEQNO_MAX)
            seqnos, keys, last = ring.seqnos, ring.keys, 0
            for vbucket, length in zip(ring.vbuckets, ring.lengths, strict=True):
                first, last = last, last + length
                columns = found.get(vbucket)
                if columns is None:
                    found[vbucket] = seqnos[first:last], keys[first:last]
                elif length == 1:
                    columns[0].append(seqnos[first])
                    columns[1].append(keys[first])
                else:
                    columns[0].extend(seqnos[first:last])
                    columns[1].extend(keys[first:last])
        self._records.clear()
        return found


def _keep(
    rings: dict[int, tuple[list[int], list[bytes]]], vbucket: int, above: int, up_to: int
) -> None:
    """Keep only a vBucket's entries above one seqno and not above another."""
    if vbucket not in rings:
        return
    seqnos, keys = rings.pop(vbucket)
    if seqnos != sorted(seqnos):
        entries = sorted(zip(seqnos, keys, strict=True))
        seqnos, keys = [seqno for seqno, _ in entries], [key for _, key in entries]
    first, end = bisect_right(seqnos, above), bisect_right(seqnos, up_to)
    if first < end:
        rings[vbucket] = seqnos[first:end], keys[first:end]


# --- rows as bytes --------------------------------------------------------------------------------
#
# Columns of numbers, then keys: packed and read in a few calls however many vBuckets there are.
# Little-endian: u32 CRC-32 of all that follows; each column as a byte that names the kind of its
# numbers (B, H, I or Q, as of `struct`; 0: all are 0; =: all are as in the column before), their
# u32 count, and the numbers. The last column has the lengths of the keys, which follow.

_NUMBERS = "BHIQ"
_ZEROS, _SAME = b"0", b"="
_COLUMN = struct.Struct("<cI")
_NONE = _COLUMN.pack(_ZEROS, 0)
_CRC_BYTES = 4
_RECORD_COLUMNS = 19


def _packed(record: _Record, known: Mapping[int, Saved]) -> bytes:
    """Return a row of the journal; failover logs and terms only where they are not `known`."""
    saved, gone, cuts, trims, ring = record
    numbers: Sequence[Collection[int]] = ((),) * 5
    changed = {}
    if saved:
        seqnos, snapshots, _, rings_from, purge_seqnos, _ = zip(*saved.values(), strict=True)
        numbers = seqnos, *zip(*snapshots, strict=True), rings_from, purge_seqnos
        for vbucket, new in saved.items():
            old = known.get(vbucket)
            if old is None or old.log is not new.log or old.term != new.term:
                changed[vbucket] = new
    logs = [each.log for each in changed.values()]
    columns = (
        saved.keys(), *numbers,
        changed.keys(), [each.term for each in changed.values()], [*map(len, logs)],
        [entry.uuid for log in logs for entry in log],
        [entry.seqno for log in logs for entry in log],
        gone, cuts.keys(), cuts.values(), trims.keys(), trims.values(),
        ring.vbuckets, ring.lengths, ring.seqnos,
    )  # fmt: skip
    return _with_keys(columns, ring.keys)


def _unpacked(data: bytes, known: Mapping[int, Saved]) -> _Record:
    """Return what `_packed` was given.

    Raises:
        ValueError, TypeError, struct.error: these are not the bytes that it returned.
    """
    columns, keys = _without_keys(data, _RECORD_COLUMNS)
    moved, seqnos, starts, ends, rings_from, purge_seqnos = columns[:6]
    changed, terms, lengths, uuids, branches = columns[6:11]
    gone, cut, cuts, trimmed, trims, vbuckets, chunks, ring_seqnos = columns[11:]
    entries = map(FailoverEntry, uuids, branches)
    logs: dict[int, tuple[FailoverLog, int]] = {
        number: (tuple(islice(entries, length)), term)
        for number, length, term in zip(changed, lengths, terms, strict=True)
    }
    saved = {}
    for number, seqno, start, end, ring_from, purge_seqno in zip(
        moved, seqnos, starts, ends, rings_from, purge_seqnos, strict=True
    ):
        if number not in logs and number not in known:
            raise ValueError(f"nothing is known of vBucket {number}")
        log, term = logs.get(number) or (known[number].log, known[number].term)
        saved[number] = Saved(seqno, SnapshotRange(start, end), log, ring_from, purge_seqno, term)
    return _Record(
        saved,
        gone,
        dict(zip(cut, cuts, strict=True)),
        dict(zip(trimmed, trims, strict=True)),
        RingColumns([*vbuckets], [*chunks], [*ring_seqnos], keys),
    )


def _entries(_: int, last: bytes, count: int, data: bytes) -> list[Entry]:
    """Return the entries of a row of the ring; raises like `_unpacked`."""
    (seqnos,), keys = _without_keys(data, 1)
    if len(seqnos) != count or _as_bytes(max(seqnos)) != last:
        raise ValueError("a row with other entries")
    return list(zip(seqnos, keys, strict=True))


def _with_keys(columns: Iterable[Collection[int]], keys: Sequence[bytes]) -> bytes:
    pieces, before = [], None
    for numbers in (*columns, [*map(len, keys)]):
        count = len(numbers)
        if not count:
            pieces.append(_NONE)
        elif numbers == before:
            pieces.append(_COLUMN.pack(_SAME, count))
        elif greatest := max(numbers):
            kind = _NUMBERS[(greatest > 0xFF) + (greatest > 0xFFFF) + (greatest > 0xFFFFFFFF)]
            pieces.append(_COLUMN.pack(kind.encode(), count))
            pieces.append(struct.pack(f"<{count}{kind}", *numbers))
        else:
            pieces.append(_COLUMN.pack(_ZEROS, count))
        before = numbers
    body = b"".join((*pieces, *keys))
    return crc32(body).to_bytes(_CRC_BYTES, "little") + body


def _without_keys(data: bytes, count: int) -> tuple[list[Sequence[int]], list[bytes]]:
    """Return so many columns, and the keys; raises like `_unpacked`."""
    if data[:_CRC_BYTES] != crc32(memoryview(data)[_CRC_BYTES:]).to_bytes(_CRC_BYTES, "little"):
        raise ValueError("a wrong checksum")
    columns: list[Sequence[int]] = []
    at = _CRC_BYTES
    for _ in range(count + 1):
        name, length = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        kind = name.decode("latin-1")
        if name == _SAME:
            columns.append(columns[-1])
        elif name == _ZEROS:
            columns.append([0] * length)
        elif kind in _NUMBERS:
            columns.append(struct.unpack_from(f"<{length}{kind}", data, at))
            at += length << _NUMBERS.index(kind)
        else:
            raise ValueError(f"a column of {name!r}")
    ends = [*accumulate(columns.pop(), initial=at)]
    if ends[-1] != len(data):
        raise ValueError("bytes are left")
    return columns, [data[start:end] for start, end in pairwise(ends)]


def _as_bytes(seqno: int) -> bytes:
    """Return a seqno so that SQLite orders it, whose own integers are signed."""
    return seqno.to_bytes(8, "big")


def _ids(vbucket: int) -> tuple[int, int]:
    """Return the lowest and the highest id of a vBucket's rows of the ring."""
    return vbucket << 32, (vbucket + 1 << 32) - 1


# --- files and SQLite's complaints ----------------------------------------------------------------

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_APPLICATION_ID = struct.Struct(">68xI")
_START_OVER = "move it away to start over"
_NOT_WRITABLE = "it cannot be written: check the permissions of file and directory"
_IN_USE = "another process uses it: stop that one, or give this one its own"
_TORN = f"it is torn: {_START_OVER}, or put a copy back"
_NO_DATABASE = f"it is no SQLite file, or a torn one: give another path, or {_START_OVER}"

_ADVICE = {
    sqlite3.SQLITE_BUSY: _IN_USE,
    sqlite3.SQLITE_LOCKED: _IN_USE,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: see that the directory exists and is writable",
    sqlite3.SQLITE_CORRUPT: _TORN,
    sqlite3.SQLITE_NOTADB: _NO_DATABASE,
    sqlite3.SQLITE_FULL: "there is no room: make some; what was kept before is intact",
    sqlite3.SQLITE_IOERR: "the disk does not take it: see to room, limits and the disk's health",
}

_KINDS: dict[int, type[StateError]] = {
    sqlite3.SQLITE_CORRUPT: StateRefused,
    sqlite3.SQLITE_NOTADB: StateRefused,
    sqlite3.SQLITE_FULL: StateFull,
}


def open_file(
    path: str, sync: str, lock_timeout_s: float, application_id: int = APPLICATION_ID
) -> sqlite3.Connection:
    """Return a connection that alone may use the file; a missing or empty one gets our id.

    Args:
        path: the file. ``-wal`` beside it belongs to it.
        sync: ``full`` = a commit is on the disk when it returns; ``normal`` = the operating
            system has it, and a power failure can undo the last commits.
        lock_timeout_s: so long is waited for another process to close it.
        application_id: tells files of one kind from those of another.

    Raises:
        StateRefused: it is not ours, or not to be had.
    """
    _recognise(path, application_id)
    with in_plain_words(path, StateRefused):
        connection = sqlite3.connect(
            path, timeout=lock_timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            _claim(connection, application_id)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {sync}")
        except BaseException:
            connection.close()
            raise
    return connection


def _claim(connection: sqlite3.Connection, application_id: int) -> None:
    """Lock the file for as long as it is open, and put our id into a new one."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        connection.execute(f"PRAGMA application_id = {application_id}")
    connection.execute("COMMIT")


def _check_shared(connection: sqlite3.Connection, place: str) -> None:
    """Refuse a handler's connection that cannot have its writes in one transaction with ours."""
    mode = getattr(connection, "autocommit", -1)  # Python 3.12; -1: `isolation_level` decides
    if mode is True or (mode is not False and connection.isolation_level is None):
        raise StateRefused(
            f"state {place}: each statement of the connection is a transaction of its own: connect "
            "with sqlite3's default isolation_level"
        )
    if mode is not False and connection.in_transaction:
        raise StateRefused(
            f"state {place}: the connection is in a transaction: commit it first, or roll it back"
        )


def _recognise(path: str, application_id: int) -> None:
    """Refuse what is there and not ours, without touching it."""
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise StateRefused(f"state {path}: it is no file: give the path of one")
            if not os.access(path, os.W_OK):
                raise StateRefused(f"state {path}: {_NOT_WRITABLE}")
            with open(path, "rb") as file:
                _check_header(path, file.read(_HEADER_BYTES), application_id)
    except OSError as error:
        raise StateRefused(f"state {path}: it cannot be read: {error.strerror}") from None


def _check_header(path: str, header: bytes, application_id: int) -> None:
    if not header:
        return
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise StateRefused(f"state {path}: {_NO_DATABASE}; nothing was changed")
    if _APPLICATION_ID.unpack_from(header)[0] != application_id:
        raise StateRefused(
            f"state {path}: it is another application's database: give another path; "
            "nothing was changed"
        )


@contextmanager
def in_plain_words(place: str, kind: type[StateError] = StateError) -> Iterator[None]:
    """Raise what SQLite complains about in words that say what to do.

    Raises:
        StateRefused: the file is torn.
        StateFull: no room, if `kind` is not more particular.
        StateError: or the `kind` given: anything else.
    """
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = _KINDS.get(code, kind) if kind is StateError else kind
        raise kind(f"state {place}: {_ADVICE.get(code, 'it does not work')} ({error})") from None
    except UnicodeDecodeError as error:  # SQLite's own words quote what it found in the file
        raise StateRefused(f"state {place}: {_TORN} ({error})") from None
