"""The rows of one vBucket: who may report what, and what a report changes.

Time and the state of the vBucket are arguments; nothing here knows a clock or a disk. An owner is
any object: the connection that named the row. While it is there, no other may change the row,
except the manager.

Rows X14, X18 and X19.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from uprmc.config import PurgeSettings
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.rows import (
    EARLIER_REPORTS,
    META_MAX_BYTES,
    HasHistory,
    Kind,
    Limit,
    Row,
    Shown,
    WatermarkReport,
    goes_to_replicas,
    granted_lifetime_s,
    judged,
    judged_one,
    limit_of,
    needing,
    shown_to,
)
from uprmc.errors import (
    KeyExists,
    KeyNotFound,
    OutOfMemory,
    RangeExceeded,
    RollbackRequired,
)
from uprmc.model import SEQNO_NONE
from uprmc.protocol.watermarks import ID_MAX_BYTES
from uprmc.rollback import VBucketHoldings, ends_of_branches

#: The owner that may change every row, and keeps none.
MANAGER = object()


class Common(NamedTuple):
    """What the reports of one client have in common; the lifetime is what is granted."""

    name: bytes
    kind: Kind
    lifetime_s: int
    owner: object


class Former(NamedTuple):
    """What an expired row had reported, and when it expired (Unix time); 0 = there was none."""

    watermark: int = 0
    expired_at: int = 0


class Outpaced(RollbackRequired):
    """The purger has passed a client that was not registered: it must begin at zero."""

    def __init__(self, purge_seqno: int) -> None:
        super().__init__(SEQNO_NONE)
        self.purge_seqno = purge_seqno  # how far the vBucket is purged
        self.former = Former()  # the client's row that has expired


class WatermarkTable:
    """The rows of one vBucket."""

    def __init__(
        self, settings: PurgeSettings, rows: Iterable[Row] = (), *, incomplete: bool = False
    ) -> None:
        self._settings = settings
        self._rows = {row.id: row for row in rows}
        self._earlier: dict[bytes, deque[Row]] = {}
        # Id of a replica -> the rows that it got last, by their ids.
        self._shown: dict[bytes, dict[bytes, Row]] = {}
        # By id, for rows whose connection is open.
        self.owners: dict[bytes, object] = {}
        # A replica's source has rows that are not here.
        self.incomplete = incomplete
        self.changes = 0  # of rows

    def __len__(self) -> int:
        return len(self._rows)

    def stored(self) -> list[Row]:
        """Return the rows as they were reported, by id."""
        return [self._rows[name] for name in sorted(self._rows)]

    def judged(self, holdings: VBucketHoldings) -> list[Row]:
        """Return the rows as the present history sees them, by id."""
        return judged(self.stored(), holdings)

    def needing(self, holdings: VBucketHoldings) -> list[Row]:
        """Return those whose clients may ask for deletions, as the present history sees them."""
        return needing(self.stored(), holdings)

    def find(self, name: bytes, holdings: HasHistory, now: float) -> Row | None:
        """Return a live row as the present history sees it."""
        row = self._rows.get(name)
        return None if row is None or row.is_expired(now) else judged_one(row, holdings)

    def limit(self, holdings: VBucketHoldings, durable_seqno: int, now: float) -> Limit:
        """Return how far the vBucket may be purged."""
        live = [row for row in self._rows.values() if not row.is_expired(now)]
        # A replica that is promoted has the rows that it got, so no purge may go above them.
        at_replicas = [
            row
            for name, rows in self._shown.items()
            if name in self._rows
            for row in rows.values()
            if row.id in self._rows
        ]
        return limit_of(needing([*live, *at_replicas], holdings), holdings, durable_seqno)

    def limit_of_copy(self, holdings: VBucketHoldings, durable_seqno: int) -> Limit:
        """Return how far a replica may be purged, as far as its own table goes."""
        if self.incomplete:
            return Limit(SEQNO_NONE, "source")
        rows = judged(self._rows.values(), holdings)
        return limit_of(rows, holdings._replace(purge_seqno=SEQNO_NONE), durable_seqno)

    # --- replicas -------------------------------------------------------------------------------

    def show(self, name: bytes, reach: int, holdings: VBucketHoldings) -> Shown:
        """Return what the replica of this id gets, which has everything up to `reach`."""
        before = self._shown.get(name, {})
        known = {entry.uuid for entry in holdings.failover_log}
        sent = [row for row in self.stored() if goes_to_replicas(row) and row.vb_uuid in known]
        reports = [judged(self._reports_of(row, before.get(row.id)), holdings) for row in sent]
        shown = shown_to(reports, reach)
        if name in self._rows:
            self._shown[name] = {row.id: row for row in shown.rows}
        return shown._replace(hidden=shown.hidden + self.incomplete)

    def _reports_of(self, row: Row, shown: Row | None) -> Iterator[Row]:
        yield row
        yield from self._earlier.get(row.id, ())
        if shown is not None:
            yield shown

    def promote(self, holdings: VBucketHoldings, now: float) -> None:
        """Go on as the table of an active vBucket: everyone has a fresh lease.

        None may be ahead of where the new history begins. Replicas register again.
        """
        rows = judged(filter(goes_to_replicas, self.stored()), holdings)
        self._rows = {row.id: row._replace(reported_at=int(now)) for row in rows}
        self._earlier.clear()
        self._shown.clear()
        self.incomplete = False
        self.changes += 1

    def redate(self, by_s: int) -> bool:
        """Move the time of each report, because the clock was set; return whether there are any."""
        for name, row in self._rows.items():
            self._rows[name] = row._replace(reported_at=max(0, row.reported_at + by_s))
        self.changes += 1
        return bool(self._rows)

    def expire(self, now: float) -> list[Row]:
        """Remove expired rows; return them."""
        gone = [row for row in self._rows.values() if row.is_expired(now)]
        for row in gone:
            self._forget(row.id)
        return gone

    def report(
        self, report: WatermarkReport, owner: object, holdings: VBucketHoldings, now: float
    ) -> bool:
        """Register a client or take its report; return whether the row is new.

        Raises:
            InvalidArguments: a wrong length.
            KeyExists: another connection owns the row.
            RollbackRequired: the watermark does not belong to the present history.
            Outpaced: deletions above the watermark have been dropped.
            RangeExceeded: the watermark is above the high seqno.
            OutOfMemory: there are as many rows as allowed.
        """
        report.check()
        self._check_history(report, holdings)
        self._check_owner(report.id, owner)
        row = self.find(report.id, holdings, now)
        if row is None and report.id not in self._rows and len(self) >= self._settings.max_rows:
            raise OutOfMemory(f"there are {self._settings.max_rows} rows")
        reported = _reported(row, report, holdings, int(now), self._settings)
        self._remember(report.id)
        self._rows[report.id] = reported
        if owner is not MANAGER:
            self.owners[report.id] = owner
        return row is None

    def begins(
        self, common: Common, watermark: int, meta: bytes, vbucket: VBucket, now: int
    ) -> bool:
        """Take the first report of a client, in the newest history, where nothing is against it.

        It changes what `report` would change. ``False`` if there is a row, or the report may be
        refused: then nothing has changed.
        """
        name, kind, lifetime_s, owner = common
        if (
            name in self._rows
            or name in self.owners
            or not 1 <= len(name) <= ID_MAX_BYTES
            or len(meta) > META_MAX_BYTES
            or len(self._rows) >= self._settings.max_rows
            or (watermark and not vbucket.purge_seqno <= watermark <= vbucket.high_seqno)
            or owner is MANAGER
        ):
            return False
        uuid = vbucket.failover_log[0].uuid
        fields = (name, kind, watermark, uuid, None, now, lifetime_s, meta)
        self._rows[name] = tuple.__new__(Row, fields)
        self.owners[name] = owner
        self.changes += 1
        return True

    def rises(
        self, common: Common, watermark: int, meta: bytes, vbucket: VBucket, now: int
    ) -> bool:
        """Take a report in the newest history that does nothing but raise a watermark, or renew it.

        It changes what `report` would change. ``False`` if it says more, or may be refused: then
        nothing has changed.
        """
        name, kind, lifetime_s, owner = common
        row = self._rows.get(name)
        if row is None or self.owners.get(name) is not owner:
            return False
        _, kind_before, before, uuid, floor, reported_at, lifetime_before, meta_before = row
        if (
            not before <= watermark <= vbucket.high_seqno
            or not vbucket.purge_seqno <= watermark
            or (floor is not None and watermark < floor)
            or uuid != vbucket.failover_log[0].uuid
            or kind is not kind_before
            or lifetime_s != lifetime_before
            or meta != meta_before
            or not watermark
            or (lifetime_s and now > reported_at + lifetime_s)
        ):
            return False
        if watermark != before or floor is not None:
            earlier = self._earlier.get(name)
            if earlier is None:
                self._remember(name)
            else:
                self.changes += 1
                earlier.appendleft(row)
        fields = (name, kind, watermark, uuid, None, now, lifetime_s, meta)
        self._rows[name] = tuple.__new__(Row, fields)
        return True

    def remove(self, name: bytes, owner: object) -> Row:
        """Remove a row; raises `KeyNotFound`, or `KeyExists` if another connection owns it."""
        if name not in self._rows:
            raise KeyNotFound(name)
        self._check_owner(name, owner)
        return self._forget(name)

    def drop(self, name: bytes) -> Row | None:
        """Remove a row, also of another owner; return it, ``None`` if there is none."""
        return self._forget(name) if name in self._rows else None

    def begin_build(self, name: bytes, floor: int, holdings: HasHistory, now: float) -> bool:
        """Set the floor of a client that has nothing and whose stream from zero is accepted.

        It is set once more when the first snapshot is opened. Nothing happens if the row has gone,
        or if deletions above the floor have already been dropped; then it returns ``False``.
        """
        row = self._rows.get(name)
        if row is None or floor < holdings.purge_seqno or row.is_expired(now):
            return False
        uuid = holdings.failover_log[0].uuid
        if (row.watermark, row.floor, row.vb_uuid) == (SEQNO_NONE, floor, uuid):
            return False
        _, kind, _, _, _, _, lifetime_s, meta = row
        fields = (name, kind, SEQNO_NONE, uuid, floor, int(now), lifetime_s, meta)
        self._rows[name] = tuple.__new__(Row, fields)
        self._earlier.pop(name, None)
        self.changes += 1
        return True

    def release(self, name: bytes, owner: object) -> None:
        """Let others change a row, because its owner's connection has closed."""
        if self.owners.get(name) is owner:
            del self.owners[name]

    def _remember(self, name: bytes) -> None:
        """Keep what a row was, for replicas that its next report is ahead of."""
        self.changes += 1
        row = self._rows.get(name)
        if row is not None and goes_to_replicas(row):
            if name not in self._earlier:
                self._earlier[name] = deque(maxlen=EARLIER_REPORTS)
            self._earlier[name].appendleft(row)

    def _forget(self, name: bytes) -> Row:
        self.changes += 1
        self.owners.pop(name, None)
        self._earlier.pop(name, None)
        self._shown.pop(name, None)
        return self._rows.pop(name)

    def _check_owner(self, name: bytes, owner: object) -> None:
        if self.owners.get(name, owner) is not owner and owner is not MANAGER:
            raise KeyExists("another connection reports this row")

    def _check_history(self, report: WatermarkReport, holdings: VBucketHoldings) -> None:
        newest = holdings.failover_log[0].uuid
        if report.vb_uuid is not None and report.vb_uuid != newest:
            end = ends_of_branches(holdings.failover_log, holdings.high_seqno).get(report.vb_uuid)
            if end is None:
                raise RollbackRequired(SEQNO_NONE)
            if report.watermark > end:
                raise RollbackRequired(end)
        if report.watermark > holdings.high_seqno:
            raise RangeExceeded(f"the high seqno is {holdings.high_seqno}")


def _reported(
    row: Row | None,
    report: WatermarkReport,
    holdings: VBucketHoldings,
    now: int,
    settings: PurgeSettings,
) -> Row:
    """Return what a report makes of a row; raises `Outpaced`."""
    watermark, floor = report.watermark, None if row is None else row.floor
    if watermark == SEQNO_NONE:
        if row is not None and row.watermark:
            # It starts over; until its stream does, nothing is released. That is no floor: what it
            # holds by then may be older than that of the build which it finished.
            watermark = row.effective
            floor = None
    elif watermark < max(holdings.purge_seqno, floor or 0):
        if (floor or 0) < holdings.purge_seqno:
            raise Outpaced(holdings.purge_seqno)
    else:
        floor = None
    uuid = holdings.failover_log[0].uuid
    if floor is None and report.vb_uuid is not None and report.watermark == watermark:
        uuid = report.vb_uuid  # a floor belongs to the newest history
    lifetime_s = granted_lifetime_s(report.kind, report.lifetime_s, settings)
    return Row(report.id, report.kind, watermark, uuid, floor, now, lifetime_s, report.meta)
