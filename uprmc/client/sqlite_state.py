"""A consumer's state in SQLite: a file of its own, or tables in the handler's own database.

With a file of its own, positions are written after what they vouch for: after a crash some changes
are handed over again (at least once). With the handler's connection, what the handler wrote through
it since the last commit goes into the same transaction as the position: each change takes effect
exactly once.

A commit writes one row, whatever the number of vBuckets: a `commit_record` in the log. Chunks of
many entries are written as rows of the ring at once. Now and then the log is *folded*: its
positions and entries become rows of each vBucket, and the log begins with nothing but the floors
below which entries of the ring are forgotten. What is in the log is also in memory.

Source: systems reference g.2; acceptance rows D13, D44, D45.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from uprmc.client.commit_record import pack_record, unpack_record
from uprmc.client.position_rows import position_row, saved_in, signed, unsigned
from uprmc.client.ring_chunk import pack_entries, unpack_entries
from uprmc.client.ring_columns import RingColumns
from uprmc.client.ring_rows import Row, RowChanges
from uprmc.client.sqlite_file import TABLES, UPGRADES, VERSION, check_shared, open_file, told
from uprmc.client.state import RingChunk, Saved, StateError, StateRefused
from uprmc.client.state_log import StateLog
from uprmc.model import SEQNO_MAX, SnapshotRange

#: A chunk with this many entries is a row of the ring at once.
DIRECT_ENTRIES = 32

#: The log is folded when it has this many entries, or this many records.
FOLD_ENTRIES = 131_072
FOLD_RECORDS = 1_024

_LOCK_TIMEOUT_S = 1.0
_NO_FLOOR = -1


class SqliteState:
    """A `StateStore` in SQLite. Calls may come from any thread, one at a time.

    Attributes:
        shared: whether the handler's writes are in the same transactions.
        instance: the id under which the consumer is registered with nodes.
        vbuckets: over how many the documents are spread; 0 = unknown as yet.

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
        self.shared = isinstance(where, sqlite3.Connection)
        self._saved: dict[int, Saved] = {}
        self._rows: dict[int, list[Row]] = {}
        self._floors: dict[int, int] = {}
        self._log = StateLog()
        self._next_id = 1
        self._commits = 0
        self.instance = ""
        self.vbuckets = vbuckets
        if isinstance(where, sqlite3.Connection):
            self._place = called
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
                row = Row(number, unsigned(first), unsigned(last), int(entries))
                self._rows.setdefault(vbucket, []).append(row)
            self._next_id = 1 + max((row[0] for row in found), default=0)
            with self._reading("a position"):
                self._read_positions()
            self._read_log()

    def _read_positions(self) -> None:
        rows = self._select(
            "SELECT vbucket, seqno, snapshot_start, snapshot_end, ring_from, purge_seqno, "
            "log, crc, term FROM uprmc_position"
        )
        self._saved = {row[0]: saved_in(row) for row in rows}

    def _read_log(self) -> None:
        for (data,) in self._select("SELECT data FROM uprmc_log ORDER BY id"):
            record = unpack_record(data)
            for vbucket, (seqno, start, end, ring_from, purge) in record.positions.items():
                if vbucket not in self._saved:
                    raise ValueError(f"vBucket {vbucket} has no row")
                _, _, log, _, _, term = self._saved[vbucket]
                snapshot = SnapshotRange(start, end)
                self._saved[vbucket] = Saved(seqno, snapshot, log, ring_from, purge, term)
            for vbucket, floor in record.trims.items():
                self._floors[vbucket] = max(floor, self._floors.get(vbucket, 0))
            self._log.add(record.positions, record.ring)

    def _recognise(self, name: str, vbuckets: int) -> None:
        """Check that the state is this consumer's; make it if there is none."""
        with self._transaction():
            if not self._select("SELECT 1 FROM sqlite_schema WHERE name = 'uprmc_state'"):
                for table in TABLES:
                    self._connection.execute(table)
                self._connection.execute(
                    "INSERT INTO uprmc_state VALUES (1, ?, ?, ?, 0, ?)",
                    (VERSION, name, vbuckets, os.urandom(16).hex()),
                )
            ((version, owner, count, self._commits),) = self._select(
                "SELECT version, name, vbuckets, commits FROM uprmc_state"
            )
            fits = not (vbuckets and count) or count == vbuckets
            while version in UPGRADES and owner == name and fits:
                for statement in UPGRADES[version]:
                    self._connection.execute(statement)
                version += 1
            if version == VERSION and owner == name:
                self.instance = self._kept_instance()
                if vbuckets and not count:
                    self._keep_vbuckets(vbuckets)
        self._check_owner(version, owner, name)
        if not fits:
            raise StateRefused(
                f"state {self._place}: it is of {count} vBuckets, not {vbuckets}: it belongs to "
                "another node; give another path"
            )
        self.vbuckets = count or vbuckets

    def _check_owner(self, version: int, owner: str, name: str) -> None:
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

    def _kept_instance(self) -> str:
        """Return the id that the state keeps; make one if it is of an earlier version."""
        ((instance,),) = self._select("SELECT instance FROM uprmc_state")
        if not instance:
            instance = os.urandom(16).hex()
            self._connection.execute("UPDATE uprmc_state SET instance = ?", (instance,))
        return str(instance)

    def name_instance(self, instance: str) -> None:
        """See `StateStore`: keep another id from now on."""
        with told(self._place), self._transaction():
            self._connection.execute("UPDATE uprmc_state SET instance = ?", (instance,))
        self.instance = instance

    def name_vbuckets(self, vbuckets: int) -> None:
        """See `StateStore`: keep over how many vBuckets the documents are spread."""
        with told(self._place), self._transaction():
            self._keep_vbuckets(vbuckets)
        self.vbuckets = vbuckets

    def _keep_vbuckets(self, vbuckets: int) -> None:
        self._connection.execute("UPDATE uprmc_state SET vbuckets = ?", (vbuckets,))

    # --- reading --------------------------------------------------------------------------------

    def load(self) -> dict[int, Saved]:
        """See `StateStore.load`."""
        return dict(self._saved)

    def ring_after(self, vbucket: int, seqno: int) -> list[tuple[int, bytes]]:
        """See `StateStore.ring_after`."""
        return sorted(set(self._entries_after(vbucket, seqno)))

    def ring_size(self, vbucket: int) -> int:
        """See `StateStore.ring_size`."""
        floor = self._floors.get(vbucket, _NO_FLOOR)
        rows = self._rows.get(vbucket, ())
        if any(row.first <= floor for row in rows):
            return len(self._entries_after(vbucket, floor))
        return sum(row.entries for row in rows) + len(self._log.after(vbucket, floor))

    def _entries_after(self, vbucket: int, seqno: int) -> list[tuple[int, bytes]]:
        seqno = max(seqno, self._floors.get(vbucket, _NO_FLOOR))
        rows = [row for row in self._rows.get(vbucket, ()) if row.last > seqno]
        with told(self._place):
            entries = [entry for row in rows for entry in self._entries(row, vbucket)]
        return [e for e in entries if e[0] > seqno] + self._log.after(vbucket, seqno)

    def _entries(self, row: Row, vbucket: int) -> list[tuple[int, bytes]]:
        with self._reading(f"the ring of vBucket {vbucket}"):
            ((data,),) = self._select("SELECT keys FROM uprmc_ring WHERE id = ?", row.id)
            return unpack_entries(data)

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, struct.error):
            raise StateRefused(
                f"state {self._place}: {what} is torn: move it away to start over, "
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
        ring: Iterable[RingChunk],
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        """See `StateStore.commit`."""
        floors = self._floors
        if trims:
            floors = floors | {n: max(at, floors.get(n, 0)) for n, at in trims.items()}
        added, log = RingColumns.of(ring), self._log
        firsts = added.firsts() if floors else ()
        below = [n for n, first in firsts if first <= floors.get(n, _NO_FLOOR)]
        folds = cuts or below or log.size >= FOLD_ENTRIES or log.records >= FOLD_RECORDS
        changes = RowChanges(self._rows, self._next_id, self._entries)
        with self._changing():
            for vbucket, seqno in trims.items():
                changes.drop_below(vbucket, seqno)
            if folds:
                log, floors = StateLog(), dict(floors)
                self._fold(changes, floors)
                for vbucket in {*below, *cuts}:
                    limits = floors.pop(vbucket, _NO_FLOOR), cuts.get(vbucket, SEQNO_MAX)
                    changes.limit(vbucket, *limits)
            many, few = added.parted(DIRECT_ENTRIES)
            for chunk in many:
                changes.append(*chunk)
            self._write(changes, saved)
            if folds:
                trims = floors
            if saved or trims or few:
                self._insert_record(pack_record(saved, trims, few))
        changes.applied()
        log.add(saved, few)
        self._log, self._floors, self._next_id = log, floors, changes.next_id
        self._saved.update(saved)

    def forget(self, vbuckets: Iterable[int]) -> None:
        """See `StateStore.forget`."""
        numbers = list(vbuckets)
        changes = RowChanges(self._rows, self._next_id, self._entries)
        floors = {number: at for number, at in self._floors.items() if number not in numbers}
        with self._changing():
            self._fold(changes, floors)
            for number in numbers:
                changes.forget(number)
            self._write(changes, {})
            self._connection.executemany(
                "DELETE FROM uprmc_position WHERE vbucket = ?", [(number,) for number in numbers]
            )
            if floors:
                self._insert_record(pack_record({}, floors, RingColumns()))
        changes.applied()
        self._log, self._floors, self._next_id = StateLog(), floors, changes.next_id
        for number in numbers:
            self._saved.pop(number, None)

    def close(self) -> None:
        """See `StateStore.close`. The handler's own connection stays open."""
        if not self.shared:
            self._connection.close()

    def abandon(self) -> None:
        """Undo what the handler wrote since the last commit."""
        with told(self._place):
            self._connection.rollback()

    def _fold(self, changes: RowChanges, floors: Mapping[int, int]) -> None:
        """Make rows of what the log says, and empty it."""
        for vbucket, (seqnos, keys) in self._log.entries.items():
            if seqnos[0] > floors.get(vbucket, _NO_FLOOR) and seqnos == sorted(seqnos):
                changes.append(vbucket, seqnos, keys)  # the usual case
            elif entries := self._log.after(vbucket, floors.get(vbucket, _NO_FLOOR)):
                changes.append(vbucket, *zip(*sorted(entries), strict=True))
        self._write_positions({vbucket: self._saved[vbucket] for vbucket in self._log.moved})
        self._connection.execute("DELETE FROM uprmc_log")

    def _write(self, changes: RowChanges, saved: Mapping[int, Saved]) -> None:
        """Write rows of the ring, and positions whose failover log or term is another one."""
        if changes.gone:
            self._connection.executemany("DELETE FROM uprmc_ring WHERE id = ?", changes.gone)
        if changes.added:
            self._connection.executemany(
                "INSERT INTO uprmc_ring VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (row.id, vbucket, signed(row.first), signed(row.last), row.entries,
                     pack_entries(seqnos, keys))
                    for row, vbucket, seqnos, keys in changes.added.values()
                ],
            )  # fmt: skip
        known, changed = self._saved.get, {}
        for vbucket, new in saved.items():
            old = known(vbucket)
            if old is None or old.log is not new.log or old.term != new.term:
                changed[vbucket] = new
        self._write_positions(changed)

    def _write_positions(self, saved: Mapping[int, Saved]) -> None:
        if saved:
            self._connection.executemany(
                "INSERT OR REPLACE INTO uprmc_position VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [position_row(vbucket, position) for vbucket, position in saved.items()],
            )

    def _insert_record(self, data: bytes) -> None:
        self._connection.execute("INSERT INTO uprmc_log (data) VALUES (?)", (data,))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Write in a transaction that is refused when another process wrote since the last one."""
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
