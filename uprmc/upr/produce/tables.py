"""What the replicas on one connection are told of watermarks: HWT_REPLICATE.

A replica that has named a row of its own gets the rows of its source, in-band: after the end of a
snapshot and before the next one begins, when something has changed, and not more often than the
interval. So it learns of no row, and of no purge, before the changes that these speak of.

Source: `reference/systems.md` a.6; UPR reference, section 7; rows X20, X21 and X25.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from uprmc.engine.bucket import Bucket
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.registry import held_of
from uprmc.engine.watermarks.rows import Report, Row, judged
from uprmc.model import FailoverLog, VBucketState
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.watermarks import HWT_REPLICATE_EXTRAS, WatermarkRecord, encode_records
from uprmc.upr.produce.host import StreamState
from uprmc.upr.produce.options import Options
from uprmc.upr.produce.stream import Stream


class _Key(NamedTuple):
    """What a table follows from: while this is the same, so is the table."""

    opaque: int
    log: FailoverLog
    report: Report
    purge_seqno: int
    changes: int


class _Replica:
    """What one replica was told. `at` is when it was looked at last."""

    __slots__ = ("at", "key", "report", "told")

    def __init__(self, report: Report) -> None:
        self.report = report
        self.at = -math.inf
        self.key: _Key | None = None
        self.told: tuple[int, bytes] | None = None


class Tables:
    """The watermark tables that one connection is to be sent."""

    def __init__(self, bucket: Bucket, options: Options, interval_s: float) -> None:
        self._bucket, self._options = bucket, options
        self._interval_s = interval_s
        self._replicas: dict[int, _Replica] = {}
        self._now = 0.0

    def name(self, number: int, report: Report) -> None:
        """A replica has said how far it is."""
        replica = self._replicas.get(number)
        if replica is None or replica.report.id != report.id:
            self._replicas[number] = _Replica(report)
        else:
            replica.report = report

    def forget(self, number: int) -> None:
        """The replica takes its row away."""
        self._replicas.pop(number, None)

    def due(self, now: float, streams: Mapping[int, Stream]) -> list[int]:
        """Pass the time on; return whose interval is over and whose stream may have to tell more.

        Most have nothing to tell, and a connection has a thousand.
        """
        self._now = now
        latest = now - self._interval_s
        found = []
        for number, replica in self._replicas.items():
            stream = streams.get(number)
            if stream is not None and replica.at <= latest and self._is_new(stream, replica):
                found.append(number)
        return found

    def _is_new(self, stream: Stream, replica: _Replica) -> bool:
        """Tell whether `_key` has changed since the last look."""
        key, vbucket = replica.key, stream.vbucket
        return (
            key is None
            or key.log is not vbucket.failover_log
            or key.report is not replica.report
            or key.purge_seqno != vbucket.purge_seqno
            or key.opaque != stream.opaque
            or key.changes != self._bucket.watermarks.changes(vbucket.id)
        )

    def frame(self, stream: Stream) -> bytes | None:
        """Return what to tell on a stream that is between two snapshots, if that is due and new."""
        replica = self._replicas.get(stream.vbucket.id)
        if replica is None or not self._is_due(replica):
            return None
        if stream.announced or stream.state is StreamState.TAKEOVER_WAIT:
            return None
        replica.at = self._now
        if not self._is_new(stream, replica):
            return None
        replica.key = self._key(stream, replica.report)
        return self._table(stream, replica)

    def _is_due(self, replica: _Replica) -> bool:
        return self._now - replica.at >= self._interval_s

    def _key(self, stream: Stream, report: Report) -> _Key:
        vbucket = stream.vbucket
        changes = self._bucket.watermarks.changes(vbucket.id)
        log, purge_seqno = vbucket.failover_log, vbucket.purge_seqno
        return _Key(stream.opaque, log, report, purge_seqno, changes)

    def _reach(self, vbucket: VBucket, report: Report) -> int:
        """Return up to where the replica holds everything, as the present history sees it."""
        uuid = vbucket.failover_log[0].uuid if report.vb_uuid is None else report.vb_uuid
        row = Row(report.id, report.kind, report.watermark, uuid, None, 0, 0)
        return judged([row], held_of(vbucket))[0].watermark

    def _table(self, stream: Stream, replica: _Replica) -> bytes | None:
        vbucket, name = stream.vbucket, replica.report.id
        reach = self._reach(vbucket, replica.report)
        shown = self._bucket.watermarks.show(vbucket, name, reach)
        value = encode_records(map(record_of, shown.rows), floors=self._options.floors)
        purge_seqno = min(vbucket.purge_seqno, reach)
        extras = HWT_REPLICATE_EXTRAS.pack(purge_seqno, len(shown.rows) + shown.hidden)
        told = (stream.opaque, extras + value)
        if told == replica.told:
            return None
        replica.told = told
        return encode_request(
            Opcode.HWT_REPLICATE,
            extras=extras,
            value=value,
            vbucket=vbucket.id,
            opaque=stream.opaque,
        )


def record_of(row: Row) -> WatermarkRecord:
    """Return a row as the wire has it."""
    name, kind, watermark, _, floor, reported_at, lifetime_s, meta = row
    return WatermarkRecord(name, kind, watermark, reported_at, lifetime_s, meta, floor or 0)


def passes_tables_on(vbucket: VBucket) -> bool:
    """Tell whether a replica of this vBucket is followed by others, in a chain."""
    return vbucket.state in (VBucketState.REPLICA, VBucketState.PENDING)
