"""A consumer's state in SQLite: a file of its own, or tables in the handler's own database.

With a file of its own, positions are written after what they vouch for: after a crash some changes
are handed over again (at least once). With the handler's connection, what the handler wrote through
it since the last commit goes into the same transaction as the position: each change takes effect
exactly once.

A commit writes one row for each vBucket that received something. Which rows hold which seqnos is
kept in memory, so trimming reads nothing; only a row that a trim cuts through is read and packed
anew. Many small rows of one vBucket are packed into one when the next comes.

Source: systems reference g.2; acceptance rows D13, D44, D45.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple
from zlib import crc32

from uprmc.client.ring_chunk import pack_entries, unpack_entries
from uprmc.client.sqlite_file import TABLES, UPGRADE, VERSION, check_shared, open_file, told
from uprmc.client.state import RingChunk, Saved, StateError, StateRefused
from uprmc.model import SEQNO_MAX, FailoverEntry, SnapshotRange

#: Rows with fewer entries are small; so many of one vBucket become one.
SMALL_ENTRIES = 1024
SMALL_ROWS_MAX = 64

_LOCK_TIMEOUT_S = 1.0
_U64 = 2**64
_NUMBERS = struct.Struct("<6Q")
_SIGNED_NUMBERS = struct.Struct("<6q")
_ENTRY = struct.Struct("<QQ")
_TERM = struct.Struct("<Q")


class _Row(NamedTuple):
    """One row of the ring, without its keys."""

    id: int
    first: int
    last: int
    entries: int


class _Changes:
    """What a commit does to the ring: rows that go, rows that come, and who has which then."""

    def __init__(self) -> None:
        self.gone: list[tuple[int]] = []
        self.added: list[tuple[int, int, int, int, int, bytes]] = []
        self.rows: dict[int, list[_Row]] = {}


class SqliteState:
    """A `StateStore` in SQLite. Calls may come from any thread, one at a time.

    Attributes:
        shared: whether the handler's writes are in the same transactions.

    Args:
        where: path of a file, which is made if need be and locked while it is open; or the
            handler's connection. That one is committed and rolled back here, and stays open; it
            must be in a mode in which writing begins a transaction (the default), and keeps its own
            settings of journal and synchronisation.
        name: whose state this is.
        vbuckets: how many vBuckets the documents are spread over.
        sync: ``full`` = a commit is on the disk when it returns. ``normal`` = it survives a crash
            of the process; after a power failure the last commits may be missing, which is safe
            only if the handler's own effects are lost with them.
        lock_timeout_s: how long to wait for another process to close the file.

    Raises:
        StateRefused: it belongs to another consumer, another application, another number of
            vBuckets; or it is torn, locked, not writable. Nothing was changed.
    """

    def __init__(
        self,
        where: str | os.PathLike[str] | sqlite3.Connection,
        *,
        name: str,
        vbuckets: int,
        sync: Literal["full", "normal"] = "full",
        lock_timeout_s: float = _LOCK_TIMEOUT_S,
    ) -> None:
        if sync not in ("full", "normal"):
            raise StateRefused(f"sync {sync!r}: say 'full' or 'normal'")
        self.shared = isinstance(where, sqlite3.Connection)
        self._rows: dict[int, list[_Row]] = {}
        self._next_id = 1
        self._commits = 0
        if isinstance(where, sqlite3.Connection):
            self._place = "in your database"
            self._connection = where
        else:
            self._place = os.path.abspath(where)
            self._connection = open_file(self._place, sync, lock_timeout_s)
        try:
            self._begin_with(name, vbuckets)
        except BaseException:
            self.close()
            raise

    def _begin_with(self, name: str, vbuckets: int) -> None:
        if self.shared:
            check_shared(self._connection, self._place)
        with told(self._place, StateRefused), self._reading("it"):
            self._recognise(name, vbuckets)
            found = self._select("SELECT id, vbucket, first, last, entries FROM uprmc_ring")
            for number, vbucket, first, last, entries in found:
                row = _Row(number, first % _U64, last % _U64, int(entries))
                self._rows.setdefault(vbucket, []).append(row)
            self._next_id = 1 + max((row[0] for row in found), default=0)

    def _recognise(self, name: str, vbuckets: int) -> None:
        """Check that the state is this consumer's; make it if there is none."""
        with self._transaction():
            if not self._select("SELECT 1 FROM sqlite_schema WHERE name = 'uprmc_state'"):
                for table in TABLES:
                    self._connection.execute(table)
                self._connection.execute(
                    "INSERT INTO uprmc_state VALUES (1, ?, ?, ?, 0)", (VERSION, name, vbuckets)
                )
            ((version, owner, count, self._commits),) = self._select(
                "SELECT version, name, vbuckets, commits FROM uprmc_state"
            )
            if version == 1 and (owner, count) == (name, vbuckets):
                for statement in UPGRADE:
                    self._connection.execute(statement)
                version = VERSION
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
        if count != vbuckets:
            raise StateRefused(
                f"state {self._place}: it is of {count} vBuckets, not {vbuckets}: it belongs to "
                "another node; give another path"
            )

    # --- reading --------------------------------------------------------------------------------

    def load(self) -> dict[int, Saved]:
        """See `StateStore.load`."""
        with told(self._place), self._reading("a position"):
            rows = self._select(
                "SELECT vbucket, seqno, snapshot_start, snapshot_end, ring_from, purge_seqno, "
                "log, crc, term FROM uprmc_position"
            )
            return {row[0]: _saved(row) for row in rows}

    def ring_after(self, vbucket: int, seqno: int) -> list[tuple[int, bytes]]:
        """See `StateStore.ring_after`."""
        rows = [row for row in self._rows.get(vbucket, ()) if row.last > seqno]
        with told(self._place):
            entries = {entry for row in rows for entry in self._entries(row, vbucket)}
        return sorted(entry for entry in entries if entry[0] > seqno)

    def ring_size(self, vbucket: int) -> int:
        """See `StateStore.ring_size`."""
        return sum(row.entries for row in self._rows.get(vbucket, ()))

    def _entries(self, row: _Row, vbucket: int) -> list[tuple[int, bytes]]:
        with self._reading(f"the ring of vBucket {vbucket}"):
            ((data,),) = self._select("SELECT keys FROM uprmc_ring WHERE id = ?", row.id)
            return unpack_entries(data)

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, struct.error):
            raise StateRefused(
                f"state {self._place}: {what} is torn: move it away to begin anew, "
                "or put a copy back"
            ) from None

    def _select(self, statement: str, *values: int) -> list[Any]:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the handler's connection may make anything of a row
        return cursor.execute(statement, values).fetchall()

    # --- writing --------------------------------------------------------------------------------

    def commit(
        self,
        saved: Mapping[int, Saved],
        ring: Sequence[RingChunk],
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        """See `StateStore.commit`."""
        changes = _Changes()
        with self._changing():
            for vbucket in trims.keys() | cuts.keys():
                self._limit(changes, vbucket, trims.get(vbucket, -1), cuts.get(vbucket, SEQNO_MAX))
            for vbucket, entries in ring:
                if entries:
                    self._append(changes, vbucket, entries)
            self._write(changes, saved)
        self._rows.update(changes.rows)

    def forget(self, vbuckets: Iterable[int]) -> None:
        """See `StateStore.forget`."""
        numbers = [(vbucket,) for vbucket in vbuckets]
        with self._changing():
            self._connection.executemany("DELETE FROM uprmc_position WHERE vbucket = ?", numbers)
            self._connection.executemany("DELETE FROM uprmc_ring WHERE vbucket = ?", numbers)
        for (vbucket,) in numbers:
            self._rows.pop(vbucket, None)

    def close(self) -> None:
        """See `StateStore.close`. The handler's own connection stays open."""
        if not self.shared:
            self._connection.close()

    def abandon(self) -> None:
        """Undo what the handler wrote since the last commit."""
        with told(self._place):
            self._connection.rollback()

    def _limit(self, changes: _Changes, vbucket: int, above: int, up_to: int) -> None:
        """Keep of a vBucket's ring what is above one seqno and not above the other."""
        kept = []
        for row in self._rows.get(vbucket, ()):
            if above < row.first and row.last <= up_to:
                kept.append(row)
                continue
            changes.gone.append((row.id,))
            if row.last > above and row.first <= up_to:
                rest = [e for e in self._entries(row, vbucket) if above < e[0] <= up_to]
                if rest:
                    kept.append(self._add(changes, vbucket, rest))
        changes.rows[vbucket] = kept

    def _append(
        self, changes: _Changes, vbucket: int, entries: Sequence[tuple[int, bytes]]
    ) -> None:
        rows = changes.rows.get(vbucket)
        if rows is None:
            rows = changes.rows[vbucket] = list(self._rows.get(vbucket, ()))
        if len(rows) >= SMALL_ROWS_MAX:
            entries = sorted([*self._small_ones(changes, vbucket, rows), *entries])
        rows.append(self._add(changes, vbucket, entries))

    def _small_ones(
        self, changes: _Changes, vbucket: int, rows: list[_Row]
    ) -> list[tuple[int, bytes]]:
        """Take small rows out of `rows` when there are too many, and return their entries."""
        written = {row.id for row in self._rows.get(vbucket, ())}
        small = [row for row in rows if row.entries < SMALL_ENTRIES and row.id in written]
        if len(small) < SMALL_ROWS_MAX:
            return []
        changes.gone += [(row.id,) for row in small]
        rows[:] = [row for row in rows if row not in small]
        return [entry for row in small for entry in self._entries(row, vbucket)]

    def _add(self, changes: _Changes, vbucket: int, entries: Sequence[tuple[int, bytes]]) -> _Row:
        row = _Row(self._next_id, entries[0][0], entries[-1][0], len(entries))
        self._next_id += 1
        data = pack_entries(entries)
        changes.added.append(
            (row.id, vbucket, _signed(row.first), _signed(row.last), row.entries, data)
        )
        return row

    def _write(self, changes: _Changes, saved: Mapping[int, Saved]) -> None:
        many = self._connection.executemany
        if changes.gone:
            many("DELETE FROM uprmc_ring WHERE id = ?", changes.gone)
        if changes.added:
            many("INSERT INTO uprmc_ring VALUES (?, ?, ?, ?, ?, ?)", changes.added)
        many(
            "INSERT OR REPLACE INTO uprmc_position VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [_position_row(vbucket, position) for vbucket, position in saved.items()],
        )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Write in a transaction that is refused when somebody else wrote since the last one."""
        with told(self._place), self._transaction():
            changed = self._connection.execute(
                "UPDATE uprmc_state SET commits = commits + 1 WHERE commits = ?", (self._commits,)
            )
            if not changed.rowcount:
                raise StateError(
                    f"state {self._place}: another process has used it meanwhile: stop that one, "
                    "or give this one its own"
                )
            yield
        self._commits += 1

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


def _saved(row: Sequence[Any]) -> Saved:
    *numbers, log, crc, term = row
    vbucket, seqno, start, end, ring_from, purge_seqno = (number % _U64 for number in numbers)
    packed = _NUMBERS.pack(vbucket, seqno, start, end, ring_from, purge_seqno) + log
    if crc != crc32(packed + _packed_term(term)):
        raise ValueError("a wrong checksum")
    entries = tuple(FailoverEntry(*entry) for entry in _ENTRY.iter_unpack(log))
    return Saved(seqno, SnapshotRange(start, end), entries, ring_from, purge_seqno, term)


def _position_row(vbucket: int, saved: Saved) -> tuple[int | bytes, ...]:
    seqno, (start, end), log, ring_from, purge_seqno, term = saved
    numbers = (vbucket, seqno, start, end, ring_from, purge_seqno)
    packed_log = b"".join([_ENTRY.pack(*entry) for entry in log])
    packed = _NUMBERS.pack(*numbers)
    crc = crc32(packed + packed_log + _packed_term(term))
    return (*_SIGNED_NUMBERS.unpack(packed), packed_log, crc, term)


def _packed_term(term: int) -> bytes:
    """Return what a checksum covers of a term: nothing if there is none, as before terms."""
    return _TERM.pack(term) if term else b""


def _signed(number: int) -> int:
    return number if number < _U64 // 2 else number - _U64
