"""Watermarks on one connection: which row speaks for it, and what its streams mean for that row.

A client names its row of a vBucket by a report, and then requests a stream of that vBucket on the
same connection. The connection owns its rows until it closes.

Source: `reference/systems.md` a.2 to a.4; UPR reference, section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from uprmc.engine.bucket import Bucket
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.registry import Reported
from uprmc.engine.watermarks.rows import NEVER, Kind, Report, Row, granted_lifetime_s
from uprmc.engine.watermarks.table import MANAGER, Common
from uprmc.errors import (
    CommandError,
    InvalidArguments,
    KeyNotFound,
    NotMyVBucket,
    RangeExceeded,
)
from uprmc.model import SEQNO_NONE
from uprmc.protocol.header import encode_response
from uprmc.protocol.opcodes import STATUS_TEXT, Status
from uprmc.protocol.upr import StreamRequest
from uprmc.protocol.watermarks import (
    HWT_REPLY_EXTRAS,
    OP_REMOVE,
    ReportExtras,
    decode_report,
    encode_records,
)
from uprmc.protocol.watermarks_many import OneReport, ReportsHead
from uprmc.upr.peer import Answer, UprRequest
from uprmc.upr.produce.options import Options
from uprmc.upr.produce.tables import Tables, passes_tables_on, record_of

_KINDS = frozenset(Kind)

#: Rows of a connection are looked through for those that are gone when there are so many.
_OWNED_MIN = 2_048


class Registration:
    """The rows of one connection.

    Args:
        bucket: the data.
        wake: called when a late answer is there.
        options: what the peer has asked for.
        interval_s: replicas are told of watermarks this often at most.

    Attributes:
        tables: what replicas are told.
        lasting: whether rows that are reported do not expire by time. A link of this node sets it.
        merges: whether who begins at zero may hold documents from elsewhere. Then it needs each
            deletion that there is when it begins. A link of this node sets it, too.
    """

    def __init__(
        self, bucket: Bucket, wake: Callable[[], None], options: Options, interval_s: float
    ) -> None:
        self._bucket = bucket
        self._watermarks = bucket.watermarks
        self._wake = wake
        self._options = options
        self._named: dict[int, Report] = {}
        self._owned: set[tuple[int, bytes]] = set()
        self._owned_max = _OWNED_MIN
        self._late: list[bytes] = []
        self.tables = Tables(bucket, options, interval_s)
        self.lasting = self.merges = False
        self._closed = False

    @property
    def kind(self) -> Kind | None:
        """What the client says it is, ``None`` = it speaks for no row."""
        report = next(iter(self._named.values()), None)
        return None if report is None else report.kind

    # --- commands -------------------------------------------------------------------------------

    def report(self, request: UprRequest, *, manages: bool) -> Answer | None:
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
        report = Report(name, kind, asked.watermark, lifetime_s, asked.vb_uuid, meta)
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
            self._named[number] = Report(name, kind, watermark, lifetime_s, uuid or None, meta)
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

    def when_registered(self, request: UprRequest, answer: Answer) -> None:
        """Answer a request when all rows of this moment are on disk."""
        self._watermarks.storing.when_registered(partial(self._registered, request, answer))

    def _hop(self, number: int, asked: ReportExtras) -> VBucket | None:
        """Return the vBucket if it is a replica itself, which another one follows."""
        vbucket = self._bucket.vbuckets.get(number)
        chained = vbucket is not None and asked.kind == Kind.REPLICA and passes_tables_on(vbucket)
        return vbucket if chained and self._bucket.traffic else None

    def _report_to_copy(
        self, vbucket: VBucket, name: bytes, asked: ReportExtras, meta: bytes
    ) -> Reported:
        """Take note of who follows a replica; its rows are its source's, so this is none of them.

        It needs none: nobody in a chain drops what the first source keeps.
        """
        if asked.op == OP_REMOVE:
            self._named.pop(vbucket.id, None)
            self.tables.forget(vbucket.id)
            return Reported(vbucket.purge_seqno, vbucket.high_seqno, 0, True)
        report = Report(name, Kind.REPLICA, *asked[:2], asked.vb_uuid, meta)
        report.check()
        if report.watermark > vbucket.high_seqno:
            raise RangeExceeded(f"the high seqno is {vbucket.high_seqno}")
        self._named[vbucket.id] = report
        self.tables.name(vbucket.id, report)
        lifetime_s = granted_lifetime_s(Kind.REPLICA, asked.lifetime_s, self._bucket.settings.purge)
        return Reported(vbucket.purge_seqno, vbucket.high_seqno, lifetime_s, True)

    def read(self, request: UprRequest) -> Answer:
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

    def _registered(self, request: UprRequest, answer: Answer, ok: bool) -> None:
        if self._closed:
            return
        status = Status.SUCCESS if ok else Status.TEMPORARY_FAILURE
        self._late.append(
            encode_response(
                request.opcode,
                status,
                extras=answer.extras if ok else b"",
                value=answer.value if ok else STATUS_TEXT[status],
                opaque=request.opaque,
            )
        )
        self._wake()

    def take_late(self) -> list[bytes]:
        """Return answers that have become due."""
        late, self._late = self._late, []
        return late

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

    def _has_row(self, vbucket: VBucket, report: Report, request: StreamRequest) -> bool:
        return self._row(vbucket) is not None or self._register_again(vbucket, report, request)

    def _register_again(self, vbucket: VBucket, report: Report, request: StreamRequest) -> bool:
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
        for number, name in self._owned:
            self._watermarks.release(number, name, self)


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise InvalidArguments(f"there is no kind {number}") from None
