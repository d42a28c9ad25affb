"""The watermarks of a node: the tables of all vBuckets, and their clock.

Job: turn what connections say into changes of rows, have changed rows stored, and tell the purger
its limit.

Neighbours: `bucket` asks for limits, `warmup` loads what is stored, `upr` speaks for connections.

**On disk**: a new row is on disk before it counts as registered; a report may be lost in a crash,
which only keeps tombstones for longer. So what has only risen is written `RAISED_WRITTEN_S` later,
and at the latest in the commit that drops tombstones of the vBucket.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from uprmc.config import PurgeSettings
from uprmc.engine.flusher import Flusher, Waiter
from uprmc.engine.memory import SteadyClock
from uprmc.engine.tombstones import Amount, Record, shown
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.recent import Dropped, GatheredEvents
from uprmc.engine.watermarks.rows import (
    Limit,
    Row,
    Shown,
    WatermarkReport,
    decode_rows,
    document_name,
    encode_rows,
    granted_lifetime_s,
    needing,
    pin_of,
)
from uprmc.engine.watermarks.table import MANAGER, Common, Former, Outpaced, WatermarkTable
from uprmc.errors import KeyNotFound, NotMyVBucket
from uprmc.model import VBucketState
from uprmc.ports import Clock
from uprmc.protocol.watermarks_many import OneReport
from uprmc.rollback import VBucketHoldings
from uprmc.storage.interface import Store

#: Watermarks that have only risen are written this often, in seconds.
RAISED_WRITTEN_S = 5.0

#: At most this many rows are handed to a commit at a time.
_ROWS_WRITTEN_AT_ONCE = 1_000

#: At most this many expired rows are remembered, of all vBuckets.
_FORMER_MAX = 16_384

#: States of vBuckets that are filled from a source: their rows are the source's.
_FILLED = (VBucketState.REPLICA, VBucketState.PENDING)


class Reported(NamedTuple):
    """What a client learns of its report."""

    purge_seqno: int  # of the vBucket
    high_seqno: int  # of the vBucket
    lifetime_s: int  # what was granted
    on_disk: bool  # whether the row is; if not, `Watermarks.when_registered` tells


class Plain(NamedTuple):
    """What became of reports that came together."""

    begun: list[OneReport]  # those that have made new rows, which are not on disk yet
    rest: list[OneReport]  # those that are to be taken one by one


class Pinned(NamedTuple):
    """What one row of a vBucket keeps and no other does."""

    row: Row
    amount: Amount


def holdings_of(vbucket: VBucket) -> VBucketHoldings:
    """Return what the rules need to know about a vBucket."""
    return VBucketHoldings(vbucket.failover_log, vbucket.high_seqno, vbucket.purge_seqno)


class Watermarks:
    """The watermark tables of all vBuckets of a node."""

    def __init__(
        self, flusher: Flusher, clock: Clock, steady: SteadyClock, settings: PurgeSettings
    ) -> None:
        self._flusher = flusher
        self._now = steady.now  # a step of the wall clock ends no lifetime
        self._monotonic = clock.monotonic
        self._settings = settings
        self._tables: dict[int, WatermarkTable] = {}
        self._dropped = Dropped()
        self._gathered = GatheredEvents()
        # (vBucket, id) of rows that have expired lately, until the node stops.
        self._former: dict[tuple[int, bytes], Former] = {}
        # vBuckets whose watermarks have only risen, since when, and those to be written now.
        self._raised: set[int] = set()
        self._raised_since = 0.0
        self._due: list[int] = []
        # (vBucket, id) of rows that may not be on disk -> the number of their registration.
        self._lacking: dict[tuple[int, bytes], int] = {}
        self._registrations = 0
        # How many rows have expired; how often a client was sent back because it had missed
        # deletions, and how many of these are known.
        self.expired = self.outpaced = self.missed_deletions = 0
        # Called with the name of an event and its fields.
        self.on_event: Callable[[str, dict[str, object]], None] = lambda _name, _fields: None
        flusher.on_drop = self._drop

    def clock_was_set(self, step_s: int) -> None:
        """Date all rows by the wall clock as it is now: each lives as long as it would have."""
        for number, table in self._tables.items():
            if table.redate(step_s):
                self._write(number)

    def load(self, store: Store, number: int) -> None:
        """Read the stored rows of a vBucket; raises `StoreCorrupt`."""
        rows, incomplete = decode_rows(store.local(document_name(number)))
        if rows or incomplete:
            self._tables[number] = WatermarkTable(self._settings, rows, incomplete=incomplete)

    def forget(self, number: int) -> None:
        """Delete all rows of a vBucket, because it was removed."""
        if self._tables.pop(number, None) is not None:
            self._write(number)

    @property
    def row_count(self) -> int:
        """Number of rows in all vBuckets."""
        return sum(map(len, self._tables.values()))

    def rows(self, vbucket: VBucket) -> list[Row]:
        """Return the live rows of a vBucket by id, as its present history sees them."""
        self._expire(vbucket)
        table = self._tables.get(vbucket.id)
        rows = [] if table is None else table.judged(holdings_of(vbucket))
        reach = self._reach(vbucket)
        return rows if reach is None else [row.within(reach) for row in rows]

    def _reach(self, vbucket: VBucket) -> int | None:
        """Return up to where a replica's rows may speak: what it holds itself; ``None`` = anywhere.

        It has the history of its source before it has the changes, and may have forgotten some.
        """
        if vbucket.state not in _FILLED:
            return None
        return self._flusher.whole_seqno(vbucket) or 0

    def find(self, vbucket: VBucket, name: bytes, owner: object) -> Row | None:
        """Return a live row of this owner, as the present history sees it."""
        if not self.owns(vbucket.id, name, owner):
            return None
        table = self._table(vbucket.id)
        return table.find(name, vbucket, self._now())

    def is_registered(self, vbucket: VBucket, name: bytes) -> bool:
        """Tell whether a live row speaks for the client of this id."""
        table = self._tables.get(vbucket.id)
        found = table and table.find(name, vbucket, self._now())
        return found is not None

    def limit(self, vbucket: VBucket) -> Limit:
        """Return how far a vBucket may be purged; expired rows are removed first."""
        self._expire(vbucket)
        table, holdings, reach = self._table(vbucket.id), holdings_of(vbucket), self._reach(vbucket)
        if reach is not None:
            return table.limit_of_copy(holdings, reach)
        return table.limit(holdings, self._flusher.durable_seqno(vbucket), self._now())

    def pinned(self, vbucket: VBucket, upto: int) -> Pinned | None:
        """Return what one row of a vBucket alone keeps, if there is such a row.

        Args:
            vbucket: the vBucket.
            upto: how far it might be purged if there were no rows.
        """
        self._expire(vbucket)
        table, reach = self._tables.get(vbucket.id), self._reach(vbucket)
        if table is None:
            return None
        rows = table.needing(holdings_of(vbucket))
        pin = pin_of(rows if reach is None else [row.within(reach) for row in rows], upto)
        if pin is None:
            return None
        row, end = pin
        index = self._flusher.tombstones.of(vbucket.id)
        return Pinned(row, index.between(row.effective, end))

    def expire_early(self, vbucket: VBucket, name: bytes, pinned: Pinned | None) -> None:
        """Forget a client because of what its rows keep; `pinned` is that of this vBucket."""
        table = self._tables.get(vbucket.id)
        row = None if table is None else table.drop(name)
        if row is None:
            return
        kept = pinned.amount if pinned is not None and pinned.row.id == name else Amount()
        self._tell_expired(vbucket, row, "max_pinned_bytes", kept)
        self._write(vbucket.id)

    def tell_all_events(self) -> None:
        """Tell all that has happened to rows, because there will be no other call."""
        self._gathered.tell(self.on_event, sys.maxsize)

    def tell_events(self) -> None:
        """Tell what has happened to rows since the last call; call it a few times a second."""
        self._gathered.tell(self.on_event)
        self._write_due()

    def _drop(self, vbucket: VBucket, records: Sequence[Record]) -> None:
        """Take note of tombstones that are being dropped."""
        self._dropped.note(vbucket, records)
        if vbucket.id in self._raised:
            self._write(vbucket.id)  # in the same commit: none may be behind them

    def report(self, vbucket: VBucket, report: WatermarkReport, owner: object) -> Reported:
        """Register a client, or take its report.

        Raises:
            NotMyVBucket: the vBucket is not active.
            CommandError: see `WatermarkTable.report`.
        """
        if vbucket.state != VBucketState.ACTIVE:
            raise NotMyVBucket(vbucket.id)
        holdings = holdings_of(vbucket)
        self._expire(vbucket)
        table = self._table(vbucket.id)
        try:
            new = table.report(report, owner, holdings, self._now())
        except Outpaced as error:
            self.note_outpaced(vbucket, report.id, report.watermark)
            error.former = self._former.get((vbucket.id, report.id), Former())
            raise
        self._tables[vbucket.id] = table
        self._former.pop((vbucket.id, report.id), None)
        if owner is MANAGER:
            self._tell_managed(vbucket, report.id, f"set to {report.watermark}")
        self._write(vbucket.id)
        lifetime_s = granted_lifetime_s(report.kind, report.lifetime_s, self._settings)
        if new:
            self._registered(vbucket.id, report.id)
        on_disk = (vbucket.id, report.id) not in self._lacking
        return Reported(holdings.purge_seqno, holdings.high_seqno, lifetime_s, on_disk)

    def take_plain(
        self, vbuckets: Mapping[int, VBucket], common: Common, reports: Sequence[OneReport]
    ) -> Plain:
        """Take the reports that need no judging, see `WatermarkTable.rises` and `begins`.

        Args:
            vbuckets: the active ones, by number.
            common: what the reports have in common.
            reports: for many vBuckets.
        """
        now, tables, unstored = int(self._now()), self._tables, self._lacking
        rest, raised, begun = [], [], []
        for each in reports:
            number, watermark, uuid, meta = each
            vbucket, table = vbuckets.get(number), tables.get(number)
            if vbucket is None or (uuid and uuid != vbucket.failover_log[0].uuid):
                rest.append(each)
            elif table is None:
                table = WatermarkTable(self._settings)
                if table.begins(common, watermark, meta, vbucket, now):
                    tables[number] = table
                    begun.append(each)
                else:
                    rest.append(each)
            elif unstored and (number, common.name) in unstored:
                rest.append(each)
            elif table.rises(common, watermark, meta, vbucket, now):
                raised.append(number)
            elif table.begins(common, watermark, meta, vbucket, now):
                begun.append(each)
            else:
                rest.append(each)
        self._write_later(raised)
        for each in begun:
            self._former.pop((each.vbucket, common.name), None)
            self._registered(each.vbucket, common.name)
            self._write(each.vbucket)
        return Plain(begun, rest)

    # --- replicas -------------------------------------------------------------------------------

    def changes(self, number: int) -> int:
        """Return a number that rises with each change of a vBucket's rows."""
        table = self._tables.get(number)
        return 0 if table is None else table.changes

    def show(self, vbucket: VBucket, name: bytes, reach: int) -> Shown:
        """Return what the replica of this id gets, see `WatermarkTable.show`."""
        self._expire(vbucket)
        own = self._reach(vbucket)
        reach = reach if own is None else min(reach, own)
        return self._table(vbucket.id).show(name, reach, holdings_of(vbucket))

    def is_incomplete(self, number: int) -> bool:
        """Tell whether rows of a replica's source are lacking here."""
        return self._table(number).incomplete

    def learn(self, vbucket: VBucket, rows: Iterable[Row], *, incomplete: bool) -> None:
        """Take over the rows that a replica's source has sent, in place of all others."""
        table = WatermarkTable(self._settings, rows, incomplete=incomplete)
        table.changes = self.changes(vbucket.id) + 1
        self._tables[vbucket.id] = table
        self._write(vbucket.id)

    def promoted(self, vbucket: VBucket) -> None:
        """Go on with the rows of a vBucket that has become active, see `WatermarkTable`."""
        table = self._tables.get(vbucket.id)
        if table is not None:
            table.promote(holdings_of(vbucket), self._now())
            for row in table.stored():
                self._registered(vbucket.id, row.id)
            self._write(vbucket.id)

    def note_outpaced(self, vbucket: VBucket, name: bytes, seqno: int) -> None:
        """Tell that a client which has everything up to `seqno` must begin at zero, and why."""
        self.outpaced += 1
        missed = self._dropped.between(vbucket, seqno, vbucket.purge_seqno)
        self.missed_deletions += missed.number
        fields = {"vb": vbucket.id, "id": shown(name), "from": seqno, "to": vbucket.purge_seqno}
        keys = [shown(key) for key in missed.keys]
        more = {"count": missed.number, "exact": missed.exact, "keys": keys}
        self.on_event("watermark_outpaced", {**fields, **more})

    def remove(self, vbucket: VBucket, name: bytes, owner: object) -> Row:
        """Remove a row; raises `KeyNotFound`, or `KeyExists` if another connection owns it."""
        self._expire(vbucket)
        table = self._tables.get(vbucket.id)
        if table is None:
            raise KeyNotFound(name)
        row = table.remove(name, owner)
        if owner is MANAGER:
            self._tell_managed(vbucket, name, "removed")
        self._write(vbucket.id)
        return row

    def begin_build(self, vbucket: VBucket, name: bytes, floor: int, owner: object) -> None:
        """Set the floor of a client whose stream from zero is accepted, see `WatermarkTable`.

        Nothing happens if the row is not this owner's.

        If it were lost in a crash, the client would keep too much, and be thrown back only by
        deletions that had been purged before: without any, it is not written at once.
        """
        if not self.owns(vbucket.id, name, owner):
            return
        table = self._table(vbucket.id)
        if not table.begin_build(name, floor, vbucket, self._now()):
            return
        if vbucket.purge_seqno:
            self._write(vbucket.id)
        else:
            self._write_later([vbucket.id])

    def owns(self, number: int, name: bytes, owner: object) -> bool:
        """Tell whether there is such a row of this owner."""
        table = self._tables.get(number)
        return table is not None and table.owners.get(name) is owner

    def release(self, number: int, name: bytes, owner: object) -> None:
        """Let others change a row, because its owner's connection has closed."""
        self._table(number).release(name, owner)

    def _tell_managed(self, vbucket: VBucket, name: bytes, what: str) -> None:
        self._gathered.managed(vbucket.id, str(shown(name)), what)

    def _tell_expired(self, vbucket: VBucket, row: Row, why: str, kept: Amount) -> None:
        self.expired += 1
        now, former = int(self._now()), self._former
        former.pop((vbucket.id, row.id), None)
        while len(former) >= _FORMER_MAX:
            del former[next(iter(former))]
        expired_at = min(now, row.reported_at + row.lifetime_s) if row.lifetime_s else now
        former[vbucket.id, row.id] = Former(row.watermark, expired_at)
        who = (str(shown(row.id)), row.kind.name.lower(), why)
        self._gathered.expired(vbucket.id, who, row.watermark, kept)

    def _table(self, number: int) -> WatermarkTable:
        table = self._tables.get(number)
        return WatermarkTable(self._settings) if table is None else table

    def _expire(self, vbucket: VBucket) -> None:
        table = self._tables.get(vbucket.id)
        if table is None or vbucket.state in _FILLED:
            return  # its source says which rows are gone
        gone = table.expire(self._now())
        if not gone:
            return
        holdings, index = holdings_of(vbucket), self._flusher.tombstones.of(vbucket.id)
        pin = pin_of(needing([*table.stored(), *gone], holdings), vbucket.persisted_seqno)
        for row in gone:
            kept = Amount()
            if pin is not None and pin[0].id == row.id:
                kept = index.between(pin[0].effective, pin[1])
            self._tell_expired(vbucket, row, "lifetime", kept)
        self._write(vbucket.id)

    # --- on disk --------------------------------------------------------------------------------

    def write_all(self) -> None:
        """Have all rows that wait written with the next commit."""
        for number in sorted(self._raised):
            self._write(number)

    def when_registered(self, done: Waiter) -> None:
        """Call `done` when all rows of this moment are on disk, ``False`` if that failed."""
        upto = self._registrations

        def written(ok: bool) -> None:
            while ok and self._lacking:
                row, registration = next(iter(self._lacking.items()))
                if registration > upto:
                    break
                del self._lacking[row]
            done(ok)

        self._flusher.when_durable(written, patient=False)

    def _registered(self, number: int, name: bytes) -> None:
        """Take note of a new row, which is not on disk."""
        self._registrations += 1
        self._lacking.pop((number, name), None)  # the order is that of registrations
        self._lacking[number, name] = self._registrations

    def _write(self, number: int) -> None:
        """Have a vBucket's rows written with the next commit."""
        self._raised.discard(number)
        self._flusher.keep_local(document_name(number), partial(self._document, number))

    def _document(self, number: int) -> bytes | None:
        table = self._tables.get(number)
        if table is None:
            return None
        return encode_rows(table.stored(), incomplete=table.incomplete)

    def _write_later(self, numbers: Sequence[int]) -> None:
        """Have rows written after a while: their watermarks have only risen."""
        if numbers and not self._raised:
            self._raised_since = self._monotonic()
        self._raised.update(numbers)

    def _write_due(self) -> None:
        """Have rows that have waited for long enough written, some at a time."""
        now = self._monotonic()
        if self._raised and now - self._raised_since >= RAISED_WRITTEN_S:
            self._due, self._raised_since = sorted(self._raised, reverse=True), now
        rows = 0
        while self._due and rows < _ROWS_WRITTEN_AT_ONCE:
            number = self._due.pop()
            if number in self._raised:
                rows += len(self._tables.get(number, ()))
                self._write(number)
