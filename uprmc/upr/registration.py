"""Watermarks on one connection: which rows speak for it, and what it learns of those of others.

A client names its row of a vBucket by a report, and then requests a stream of that vBucket on the
same connection (`Registration`). The connection owns its rows until it closes.

A replica that has named a row of its own gets the rows of its source (`Tables`), in-band: after the
end of a snapshot and before the next one begins, when something has changed, and not more often
than the interval. So it learns of no row, and of no purge, before the changes that these speak of.

Clients that know nothing of watermarks have rows for as long as they are connected, with the
setting ``upr.register = connected`` (`ConnectedRows`).

Rows X20, X21 and X25.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from uprmc.engine.bucket import Bucket
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.registry import Reported, holdings_of
from uprmc.engine.watermarks.rows import (
    NEVER,
    Kind,
    Row,
    WatermarkReport,
    granted_lifetime_s,
    judged,
)
from uprmc.engine.watermarks.table import MANAGER, Common
from uprmc.errors import (
    CommandError,
    InvalidArguments,
    KeyNotFound,
    NotMyVBucket,
    RangeExceeded,
)
from uprmc.model import SEQNO_NONE, FailoverLog, VBucketState
from uprmc.protocol.header import RequestFrame, encode_request, encode_response
from uprmc.protocol.opcodes import STATUS_TEXT, Opcode, Status
from uprmc.protocol.upr import StreamRequest
from uprmc.protocol.watermarks import (
    HWT_REPLICATE_EXTRAS,
    HWT_REPLY_EXTRAS,
    ID_MAX_BYTES,
    OP_REMOVE,
    ReportExtras,
    WatermarkRecord,
    decode_report,
    encode_records,
)
from uprmc.protocol.watermarks_many import OneReport, ReportsHead
from uprmc.upr.feed import Feed
from uprmc.upr.options import UprOptions
from uprmc.upr.peer import Answer
from uprmc.upr.stream import ServedState, Stream

_KINDS = frozenset(Kind)

#: Rows of a connection are looked through for those that are gone when there are so many.
_OWNED_MIN = 2_048

#: How often streams are looked at, and how often all rows are renewed, in seconds.
_LOOK_S = 1.0
_RENEW_S = 10.0


class Registration:
    """The rows of one connection."""

    def __init__(
        self, bucket: Bucket, send: Callable[[bytes], None], options: UprOptions, interval_s: float
    ) -> None:
        """Begin with none.

        A late answer goes to `send`; replicas hear of watermarks each `interval_s` at most.
        """
        self._bucket = bucket
        self._watermarks = bucket.watermarks
        self._send = send
        self._options = options
        self._named: dict[int, WatermarkReport] = {}
        self._owned: set[tuple[int, bytes]] = set()
        self._owned_max = _OWNED_MIN
        self.tables = Tables(bucket, options, interval_s)
        # A link of this node sets both. Its rows do not expire by time; and who begins at zero may
        # hold documents from elsewhere, so it needs each deletion that there is when it begins.
        self.lasting = self.merges = False
        self._closed = False

    @property
    def kind(self) -> Kind | None:
        """What the client says it is, ``None`` = it speaks for no row."""
        report = next(iter(self._named.values()), None)
        return None if report is None else report.kind

    # --- commands -------------------------------------------------------------------------------

    def report(self, request: RequestFrame, *, manages: bool) -> Answer | None:
        """Carry out a HWT_REPORT; ``None`` if the answer comes when the row is on disk.

        Raises:
            NotMyVBucket: the vBucket is not active here.
            CommandError: see `WatermarkTable.report`.
            RemoteProtocolError: the extras have an unknown form.
        """
        extras = decode_report(request.extras)
        reported = self.take(request.vbucket, request.key, extras, request.value, manages=manages)
        answer = Answer(HWT_REPLY_EXTRAS.pack(*reported[:3]))
        if reported.on_disk:
            return answer
        self.when_registered(request, answer)
        return None

    def take(
        self, number: int, name: bytes, asked: ReportExtras, meta: bytes, *, manages: bool
    ) -> Reported:
        """Carry out what is asked for one vBucket; raises as `report`."""
        hop = None if manages else self._hop(number, asked)
        if hop is not None:
            return self._report_to_copy(hop, name, asked, meta)
        vbucket = self._bucket.locate(number)
        owner = MANAGER if manages else self
        if asked.op == OP_REMOVE:
            self.tables.forget(vbucket.id)
            self._watermarks.remove(vbucket, name, owner)
            self._named.pop(vbucket.id, None)
            self._owned.discard((vbucket.id, name))
            return Reported(vbucket.purge_seqno, vbucket.high_seqno, 0, True)
        kind = _kind(asked.kind)
        lifetime_s = NEVER if self.lasting else asked.lifetime_s
        report = WatermarkReport(name, kind, asked.watermark, lifetime_s, asked.vb_uuid, meta)
        reported = self._watermarks.report(vbucket, report, owner)
        if not manages:
            self._named[vbucket.id] = report
            self._own(vbucket.id, report.id)
            if kind is Kind.REPLICA:
                self.tables.name(vbucket.id, report)
        return reported

    def take_all(
        self, name: bytes, head: ReportsHead, reports: Sequence[OneReport]
    ) -> tuple[list[OneReport], bool]:
        """Take the reports that need no judging.

        Returns:
            the others, for `take`; whether the rows of those that were taken are on disk.
        """
        if head.op == OP_REMOVE or head.kind == Kind.REPLICA or head.kind not in _KINDS:
            return list(reports), True
        kind = Kind(head.kind)
        common = Common(name, kind, self.granted_s(head), self)
        begun, rest = self._watermarks.take_plain(self._bucket.active, common, reports)
        lifetime_s = NEVER if self.lasting else head.lifetime_s
        for number, watermark, uuid, meta in begun:
            self._named[number] = WatermarkReport(
                name, kind, watermark, lifetime_s, uuid or None, meta
            )
            self._own(number, name)
        return rest, not begun

    def granted_s(self, head: ReportsHead) -> int:
        """Return the lifetime of the rows that reports with this head name."""
        if head.op == OP_REMOVE or head.kind not in _KINDS:
            return 0
        asked_s = NEVER if self.lasting else head.lifetime_s
        return granted_lifetime_s(Kind(head.kind), asked_s, self._bucket.settings.purge)

    def name_of(self, number: int) -> bytes | None:
        """Return the id under which a vBucket was named on this connection."""
        report = self._named.get(number)
        return None if report is None else report.id

    def when_registered(self, request: RequestFrame, answer: Answer) -> None:
        """Answer a request when all rows of this moment are on disk."""
        self._watermarks.when_registered(partial(self._registered, request, answer))

    def _hop(self, number: int, asked: ReportExtras) -> VBucket | None:
        """Return the vBucket if it is a replica itself, which another one follows."""
        vbucket = self._bucket.vbuckets.get(number)
        chained = vbucket is not None and asked.kind == Kind.REPLICA and passes_tables_on(vbucket)
        return vbucket if chained and self._bucket.traffic else None

    def _report_to_copy(
        self, vbucket: VBucket, name: bytes, asked: ReportExtras, meta: bytes
    ) -> Reported:
        """Take note of who follows a replica; its rows are its source's, so this is none of them.

        It needs none: no node of a chain drops what the first source keeps.
        """
        if asked.op == OP_REMOVE:
            self._named.pop(vbucket.id, None)
            self.tables.forget(vbucket.id)
            return Reported(vbucket.purge_seqno, vbucket.high_seqno, 0, True)
        report = WatermarkReport(name, Kind.REPLICA, *asked[:2], asked.vb_uuid, meta)
        report.check()
        if report.watermark > vbucket.high_seqno:
            raise RangeExceeded(f"the high seqno is {vbucket.high_seqno}")
        self._named[vbucket.id] = report
        self.tables.name(vbucket.id, report)
        lifetime_s = granted_lifetime_s(Kind.REPLICA, asked.lifetime_s, self._bucket.settings.purge)
        return Reported(vbucket.purge_seqno, vbucket.high_seqno, lifetime_s, True)

    def read(self, request: RequestFrame) -> Answer:
        """Carry out a HWT_READ; its rows have their floors if the peer has asked for these.

        Raises:
            NotMyVBucket: there is no such vBucket here.
            KeyNotFound: it has no row of that id.
        """
        vbucket = self._bucket.vbuckets.get(request.vbucket)
        if vbucket is None:
            raise NotMyVBucket(request.vbucket)
        rows = self._watermarks.rows(vbucket)
        if request.key:
            rows = [row for row in rows if row.id == request.key]
            if not rows:
                raise KeyNotFound(request.key)
        return Answer(value=encode_records(map(record_of, rows), floors=self._options.floors))

    def _registered(self, request: RequestFrame, answer: Answer, ok: bool) -> None:
        if self._closed:
            return
        status = Status.SUCCESS if ok else Status.TEMPORARY_FAILURE
        self._send(
            encode_response(
                request.opcode,
                status,
                extras=answer.extras if ok else b"",
                value=answer.value if ok else STATUS_TEXT[status],
                opaque=request.opaque,
            )
        )

    # --- streams --------------------------------------------------------------------------------

    def floor(self, vbucket: VBucket) -> int:
        """Return the floor of the row that a stream of this vBucket would speak for, 0 = none."""
        row = self._row(vbucket)
        return 0 if row is None or row.floor is None else row.floor

    def accepted(self, vbucket: VBucket, request: StreamRequest, end_seqno: int) -> bool:
        """Take note of an accepted stream; return whether a row speaks for it.

        From zero it begins a build, whose floor is the end of what it will be sent first, or what
        was purged already if it merges. A row that has expired since it was named is registered
        again.
        """
        report = self._named.get(vbucket.id)
        if report is not None and report.kind is Kind.REPLICA and passes_tables_on(vbucket):
            return True
        if report is None or not self._has_row(vbucket, report, request):
            return False
        if request.start_seqno == SEQNO_NONE:
            floor = vbucket.purge_seqno if self.merges else end_seqno
            self._watermarks.begin_build(vbucket, report.id, floor, self)
        return True

    def refused(self, vbucket: VBucket, start_seqno: int) -> None:
        """Take note of a refused stream: the client may have missed deletions."""
        report = self._named.get(vbucket.id)
        if report is not None and SEQNO_NONE < start_seqno < vbucket.purge_seqno:
            self._watermarks.note_outpaced(vbucket, report.id, start_seqno)

    def building(self, vbucket: VBucket, end_seqno: int) -> None:
        """Take note that the first snapshot of a stream from zero is opened."""
        report = self._named.get(vbucket.id)
        if report is not None:
            self._watermarks.begin_build(vbucket, report.id, end_seqno, self)

    def _row(self, vbucket: VBucket) -> Row | None:
        report = self._named.get(vbucket.id)
        return None if report is None else self._watermarks.find(vbucket, report.id, self)

    def _has_row(self, vbucket: VBucket, report: WatermarkReport, request: StreamRequest) -> bool:
        return self._row(vbucket) is not None or self._register_again(vbucket, report, request)

    def _register_again(
        self, vbucket: VBucket, report: WatermarkReport, request: StreamRequest
    ) -> bool:
        safe = max(min(request.snapshot_start, request.start_seqno), vbucket.purge_seqno)
        watermark = min(safe, request.start_seqno)
        renewed = report._replace(watermark=watermark, vb_uuid=None)
        try:
            self._watermarks.report(vbucket, renewed, self)
        except CommandError:  # a replica, no room: the stream goes on without a row
            return False
        self._own(vbucket.id, report.id)
        return True

    def _own(self, number: int, name: bytes) -> None:
        """Remember a row that is to be released; rows that are gone are forgotten now and then."""
        owned = self._owned
        owned.add((number, name))
        if len(owned) > self._owned_max:
            owns = self._watermarks.owns
            owned = self._owned = {each for each in owned if owns(*each, self)}
            self._owned_max = max(_OWNED_MIN, 2 * len(owned))

    def close(self) -> None:
        """Release the rows: the connection is closed."""
        self._closed = True
        self._send = _ignore  # who sends knows us
        for number, name in self._owned:
            self._watermarks.release(number, name, self)


def _ignore(_: bytes) -> None:
    """Stand in for a connection that is closed."""


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise InvalidArguments(f"there is no kind {number}") from None


# --- tables for replicas ------------------------------------------------------------------------


class _Key(NamedTuple):
    """What a table follows from: while this is the same, so is the table."""

    opaque: int
    log: FailoverLog
    report: WatermarkReport
    purge_seqno: int
    changes: int


class _Replica:
    """What one replica has been sent; `at` is when it was looked at last."""

    __slots__ = ("at", "key", "report", "sent")

    def __init__(self, report: WatermarkReport) -> None:
        self.report = report
        self.at = -math.inf
        self.key: _Key | None = None
        self.sent: tuple[int, bytes] | None = None


class Tables:
    """The watermark tables that one connection is to be sent."""

    def __init__(self, bucket: Bucket, options: UprOptions, interval_s: float) -> None:
        self._bucket, self._options = bucket, options
        self._interval_s = interval_s
        self._replicas: dict[int, _Replica] = {}
        self._now = 0.0

    def name(self, number: int, report: WatermarkReport) -> None:
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
        if stream.announced or stream.state is ServedState.TAKEOVER_WAIT:
            return None
        replica.at = self._now
        if not self._is_new(stream, replica):
            return None
        replica.key = self._key(stream, replica.report)
        return self._table(stream, replica)

    def _is_due(self, replica: _Replica) -> bool:
        return self._now - replica.at >= self._interval_s

    def _key(self, stream: Stream, report: WatermarkReport) -> _Key:
        vbucket = stream.vbucket
        changes = self._bucket.watermarks.changes(vbucket.id)
        log, purge_seqno = vbucket.failover_log, vbucket.purge_seqno
        return _Key(stream.opaque, log, report, purge_seqno, changes)

    def _reach(self, vbucket: VBucket, report: WatermarkReport) -> int:
        """Return up to where the replica holds everything, as the present history sees it."""
        uuid = vbucket.failover_log[0].uuid if report.vb_uuid is None else report.vb_uuid
        row = Row(report.id, report.kind, report.watermark, uuid, None, 0, 0)
        return judged([row], holdings_of(vbucket))[0].watermark

    def _table(self, stream: Stream, replica: _Replica) -> bytes | None:
        vbucket, name = stream.vbucket, replica.report.id
        reach = self._reach(vbucket, replica.report)
        shown = self._bucket.watermarks.show(vbucket, name, reach)
        value = encode_records(map(record_of, shown.rows), floors=self._options.floors)
        purge_seqno = min(vbucket.purge_seqno, reach)
        extras = HWT_REPLICATE_EXTRAS.pack(purge_seqno, len(shown.rows) + shown.hidden)
        table = (stream.opaque, extras + value)
        if table == replica.sent:
            return None
        replica.sent = table
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


# --- clients that know nothing of it --------------------------------------------------------------


class ConnectedRows:
    """Rows for a client that registers none itself. Times are monotonic seconds.

    A connection with flow control acknowledges the bytes that it has dealt with. So each of its
    streams gets a row under the connection's name, whose watermark is the end of the last snapshot
    that was acknowledged as a whole. The row lives on after the connection, for as long as rows of
    kind other do. A connection without flow control never says what it has, and gets none.

    How far streams are is looked at now and then, and only again once all that was sent then is
    acknowledged: so there is one number for each stream to remember, however many snapshots it
    sends.
    """

    def __init__(self, registration: Registration, feed: Feed, name: bytes) -> None:
        self._registration = registration
        self._feed = feed
        self._id = name if len(name) <= ID_MAX_BYTES else sha256(name).hexdigest().encode()
        self._acknowledged: dict[int, int] = {}
        self._sent: dict[int, int] | None = None
        self._sent_bytes = 0
        self._look_at = self._renew_at = 0.0

    def begin(self, number: int, request: StreamRequest) -> None:
        """A stream is asked for: register it, unless the client has named a row itself."""
        named = self._registration.name_of(number)
        if named is None or named == self._id:
            inside = request.snapshot_start < request.start_seqno < request.snapshot_end
            self._acknowledged[number] = request.snapshot_start if inside else request.start_seqno
            self._report([number])

    def tick(self, now: float, acked_bytes: int) -> None:
        """Report what has been acknowledged of what was sent at the last look."""
        if now < self._look_at or not self._acknowledged:
            return
        self._look_at = now + _LOOK_S
        if self._sent is not None and acked_bytes >= self._sent_bytes:
            moved = [n for n, end in self._sent.items() if end > self._acknowledged.get(n, end)]
            self._acknowledged |= {number: self._sent[number] for number in moved}
            self._report(moved)
            self._sent = None
        if self._sent is None:
            streams = self._feed.streams.items()
            self._sent = {number: stream.complete_seqno for number, stream in streams}
            self._sent_bytes = acked_bytes + self._feed.unacked_bytes
        if now >= self._renew_at:
            self._renew_at = now + _RENEW_S
            self._report(self._acknowledged)

    def close(self) -> None:
        """Let the rows live from now on for as long as rows of their kind do."""
        self._report(self._acknowledged)

    def _report(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            report = ReportExtras(self._acknowledged[number], 0, Kind.OTHER)
            with suppress(CommandError):  # purged, moved, or no room: there is no row then
                self._registration.take(number, self._id, report, b"", manages=False)
