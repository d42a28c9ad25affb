"""The asking side of registration: a client's rows in the watermark tables of one node.

A registered client never misses a deletion: the node keeps each tombstone until every registered
client has reported that it is durable with it. This module builds the frames and understands the
answers; sockets, clocks and opaques belong to its user. There is one `Registering` for each
connection, because a connection owns the rows that it names until it closes. How to use it:

1. Ask for `control.WATERMARKS` and `control.REPORTS` in the handshake (`Handshake.registering`),
   and tell `begin` which keys were accepted. A node without watermarks leaves the client
   unregistered: every method may still be called, and gives no frames.
2. Send what `register` or `register_all` returns before the stream request of that vBucket. Do not
   wait for its answer: a node looks at frames in order, so 1,024 of both can travel in one piece.
   A stream from zero after a watermark of 0 begins a build; deletions are kept from its first
   snapshot on.
3. Call `reached` when a position is durable at the client. It must be the end of a complete
   snapshot, with the history it belongs to. Positions inside of a snapshot are not reported.
4. Send what `due` returns, every second or so: a report for each vBucket that has moved, not more
   often than the interval; and one for each row that would expire for lack of news. At the end send
   what `rest` returns, and wait until `unanswered` is 0.
5. Give each answer to `answered`, with the frame it belongs to; it says whether another follows. A
   refusal ends nothing: what happens to a client whose deletions are gone is said by the answer to
   its stream request. Why that is so stands in `purged` then.
6. `remove` ends the registration for good.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from uprmc.errors import RemoteProtocolError
from uprmc.protocol import control
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.watermarks import (
    HWT_PURGED_EXTRAS,
    HWT_REPLY_EXTRAS,
    KIND_NAMES,
    OP_REMOVE,
    ReportExtras,
    encode_report,
)
from uprmc.protocol.watermarks_many import (
    REPORTED_ROW,
    REPORTS_MAX_BYTES,
    REPORTS_REPLY_EXTRAS,
    ROWS_FOLLOW,
    OneReport,
    ReportsHead,
    UnacceptedReport,
    decode_refused,
    decode_reports,
    encode_reports,
    encode_reports_extras,
)

# --- frames of reports ----------------------------------------------------------------------------
# Frames of reports, and what their answers say: one vBucket in a frame, or many.
#
# A node that has granted `control.REPORTS` takes the reports of many vBuckets in one HWT_REPORTS,
# whose answer names only what was refused. Other nodes get a HWT_REPORT for each vBucket.
#
# See `docs/extensions.md`.


#: At most this many vBuckets are reported in one frame.
_VBUCKETS_AT_ONCE = 1_024

_SEQNO = struct.Struct(">Q")


class HasAnswer(Protocol):
    """An answer of the node."""

    @property
    def status(self) -> int:
        """A `Status` number, or one without a name."""

    @property
    def extras(self) -> bytes:
        """What stands before the value."""

    @property
    def value(self) -> bytes:
        """The rest."""


class Told(NamedTuple):
    """What an answer says."""

    refused: list[UnacceptedReport]  # the reports that were not accepted
    last: bool = True  # whether no other answer follows. Until then the others are not accepted yet
    # of the rows that were accepted, 0 = for ever; ``None`` = it does not say.
    lifetime_s: int | None = None


def frames_of(
    name: bytes, head: ReportsHead, reports: Sequence[OneReport], *, many: bool
) -> list[RequestFrame]:
    """Return the frames of some reports.

    Args:
        name: the id of whose they are.
        head: what they have in common.
        reports: one for each vBucket.
        many: whether the node takes several in one frame.
    """
    if not many or len(reports) < 2:
        return [_of_one(name, head, report) for report in reports]
    row_bytes = REPORTED_ROW.size + max(len(report.meta) for report in reports)
    most = min(_VBUCKETS_AT_ONCE, REPORTS_MAX_BYTES // row_bytes)
    return [
        _of_many(name, head, reports[first : first + most])
        for first in range(0, len(reports), most)
    ]


def _of_one(name: bytes, head: ReportsHead, report: OneReport) -> RequestFrame:
    vbucket, watermark, uuid, meta = report
    extras = encode_report(ReportExtras(watermark, *head, uuid or None))
    return RequestFrame(Opcode.HWT_REPORT, key=name, value=meta, extras=extras, vbucket=vbucket)


def _of_many(name: bytes, head: ReportsHead, reports: Sequence[OneReport]) -> RequestFrame:
    value, extras = encode_reports(reports), encode_reports_extras(head)
    return RequestFrame(Opcode.HWT_REPORTS, key=name, value=value, extras=extras)


def removals(name: bytes, vbuckets: Sequence[int], *, many: bool) -> list[RequestFrame]:
    """Return the requests to remove the rows of an id."""
    reports = [OneReport(vbucket, 0) for vbucket in vbuckets]
    return frames_of(name, ReportsHead(0, 0, OP_REMOVE), reports, many=many)


def removal(name: bytes, vbucket: int) -> RequestFrame:
    """Return the request to remove a row."""
    return removals(name, [vbucket], many=False)[0]


def vbuckets_of(asked: RequestFrame) -> list[int]:
    """Return whose reports are in a frame."""
    if asked.opcode == Opcode.HWT_REPORT:
        return [asked.vbucket]
    return [report.vbucket for report in decode_reports(asked.extras, asked.value)[1]]


def told_of(asked: RequestFrame, answer: HasAnswer) -> Told:
    """Return what an answer says of the reports of a frame.

    Raises:
        RemoteProtocolError: it is torn.
    """
    if asked.opcode == Opcode.HWT_REPORT:
        return _told_of_one(asked.vbucket, answer)
    if answer.status != Status.SUCCESS:  # of the whole frame: no report has been judged
        return Told([UnacceptedReport(n, Status.TEMPORARY_FAILURE) for n in vbuckets_of(asked)])
    try:
        lifetime_s, flags = REPORTS_REPLY_EXTRAS.unpack(answer.extras)
    except struct.error:
        raise RemoteProtocolError("a torn answer to reports") from None
    return Told(decode_refused(answer.value), not flags & ROWS_FOLLOW, lifetime_s)


def _told_of_one(vbucket: int, answer: HasAnswer) -> Told:
    """Read what may be read: other nodes may say less."""
    if answer.status != Status.SUCCESS:
        numbers = _unpacked(HWT_PURGED_EXTRAS, answer.extras)
        seqno, *_ = _unpacked(_SEQNO, answer.value) or (0,)
        return Told([UnacceptedReport(vbucket, answer.status, seqno, *numbers)])
    numbers = _unpacked(HWT_REPLY_EXTRAS, answer.extras)
    return Told([], lifetime_s=numbers[2] if numbers else None)


def _unpacked(form: struct.Struct, data: bytes) -> tuple[int, ...]:
    try:
        return form.unpack(data)
    except struct.error:
        return ()


#: Seconds between two reports of the same vBucket, unless the user of this says otherwise.
REPORT_INTERVAL_S = 1.0

#: A row is renewed when this share of its lifetime is over, or a refused report when so many
#: seconds are.
_RENEW_SHARE = 1 / 3
_RETRY_S = 10.0

#: Refusals that another attempt cannot change.
_NEVER = frozenset(
    {Status.UNKNOWN_COMMAND, Status.INVALID_ARGUMENTS, Status.NOT_SUPPORTED, Status.ACCESS_DENIED}
)


#: Letters of a name that people read.
_NAME_MAX = 200


class Instance(NamedTuple):
    """Who is registered."""

    id: bytes  # made once and kept for life, 1 to 64 bytes; whatever the connections are called
    kind: int = 0  # a number of `KIND_NAMES`
    lifetime_s: int = 0  # the rows expire after this long without news; 0 = the default of the kind
    meta: bytes = b""  # the client's own bytes, up to 4,096; they are kept in each row


def name_tag(name: str) -> bytes:
    """Return the `Instance.meta` by which people recognise a client, unlike by its id."""
    return json.dumps({"name": name[:_NAME_MAX]}).encode()


class Purged(NamedTuple):
    """Why a client must begin at zero: deletions after its position have been purged."""

    until: int  # deletions up to this seqno have been purged
    registered_at: int | None = None  # the client's last report; ``None`` = the node remembers none
    # Unix time at which its row expired, ``None`` = it is unknown, or had none.
    expired_at: int | None = None

    def __str__(self) -> str:
        text = f"purged up to {self.until}"
        if self.registered_at is None:
            return f"{text} (no registration of yours is known)"
        text += f", registered at {self.registered_at}"
        if self.expired_at is None:
            return text
        return (
            f"{text}, expired at {datetime.fromtimestamp(self.expired_at, UTC):%Y-%m-%dT%H:%M:%SZ}"
        )


class _Row:
    """What is known of one row.

    Attributes:
        watermark, vb_uuid: what is durable, and of which history; 0 = of the present one.
    """

    __slots__ = ("refused", "renew_s", "sent_at", "vb_uuid", "watermark")

    def __init__(self, watermark: int, vb_uuid: int) -> None:
        self.watermark, self.vb_uuid = watermark, vb_uuid
        self.sent_at = math.nan  # when it was reported last
        self.renew_s = _RETRY_S  # seconds after which it is reported again
        self.refused = False  # its last report was not accepted


class Registering:
    """The rows of one client in the watermark tables of one node."""

    def __init__(self, instance: Instance, interval_s: float = REPORT_INTERVAL_S) -> None:
        self.instance = instance  # the client that is registered
        # granted: whether the node has watermarks.
        # many: whether it takes the reports of many vBuckets in one frame.
        self.granted = self.many = False
        self.registered: set[int] = set()  # vBuckets whose last report was accepted
        # By vBucket, why its report was refused, until it is registered again.
        self.purged: dict[int, Purged] = {}
        # vBuckets that must begin at zero, as the node said of their last report.
        self.to_restart: set[int] = set()
        self.unanswered = 0  # reports without an answer
        self._interval_s = interval_s
        self._rows: dict[int, _Row] = {}
        self._moved: set[int] = set()
        self._due_at = -math.inf
        self._look_at = -math.inf

    def begin(self, granted: Collection[bytes]) -> None:
        """Take note of the keys of CONTROL that the node has accepted."""
        self.granted = control.WATERMARKS in granted
        self.many = control.REPORTS in granted

    @property
    def vbuckets(self) -> Sequence[int]:
        """Those that have a row, as far as is known."""
        return [*self._rows]

    # --- frames ---------------------------------------------------------------------------------

    def register(self, vbucket: int, watermark: int, vb_uuid: int = 0) -> list[RequestFrame]:
        """Return what is to be sent before the stream request of a vBucket.

        Args:
            vbucket: the vBucket of the row.
            watermark: every change up to here is durable; 0 = nothing, or no complete snapshot.
            vb_uuid: the history in which that is so, 0 = unknown.
        """
        self._rows[vbucket] = _Row(watermark, vb_uuid)
        self._moved.discard(vbucket)
        return self._reports([vbucket])

    def register_all(self, places: Mapping[int, tuple[int, int]]) -> list[RequestFrame]:
        """Do the same for many vBuckets: watermark and history of each."""
        for vbucket, place in places.items():
            self._rows[vbucket] = _Row(*place)
            self._moved.discard(vbucket)
        return self._reports(sorted(places))

    def reached(self, vbucket: int, watermark: int, vb_uuid: int = 0) -> None:
        """Take note that everything up to the end of a complete snapshot is durable."""
        row = self._rows.get(vbucket)
        if row is not None and (row.watermark, row.vb_uuid) != (watermark, vb_uuid):
            row.watermark, row.vb_uuid = watermark, vb_uuid
            self._moved.add(vbucket)

    def due(self, now: float) -> list[RequestFrame]:
        """Return the reports that are due at this (monotonic) time."""
        if now < self._due_at:
            return []
        if now >= self._look_at:
            self._look_at = now + _RETRY_S / 4
            self._moved.update(self._to_renew(now))
        moved, self._moved = self._moved, set()
        if moved:
            self._due_at = now + self._interval_s
        return self._reports(sorted(moved), now)

    def rest(self) -> list[RequestFrame]:
        """Return reports of all that has moved, however soon: there will be no more."""
        moved, self._moved = self._moved, set()
        return self._reports(sorted(moved))

    def remove(self, vbucket: int) -> list[RequestFrame]:
        """Return what ends the registration of a vBucket for good."""
        self.gone(vbucket)
        return [removal(self.instance.id, vbucket)] if self.granted else []

    def gone(self, vbucket: int) -> None:
        """Report nothing of a vBucket any longer: another node has it."""
        self._rows.pop(vbucket, None)
        self.registered.discard(vbucket)
        self.to_restart.discard(vbucket)
        self._moved.discard(vbucket)

    def _to_renew(self, now: float) -> list[int]:
        found = []
        for vbucket, row in self._rows.items():
            if math.isnan(row.sent_at):
                row.sent_at = now
            elif now - row.sent_at >= row.renew_s:
                found.append(vbucket)
        return found

    def _reports(self, vbuckets: Sequence[int], now: float = math.nan) -> list[RequestFrame]:
        if not self.granted:
            return []
        for vbucket in vbuckets:
            row = self._rows[vbucket]
            row.sent_at, row.refused = now, False
        name, kind, lifetime_s, meta = self.instance
        reports = [
            OneReport(vbucket, row.watermark, row.vb_uuid, meta)
            for vbucket, row in zip(vbuckets, map(self._rows.__getitem__, vbuckets), strict=True)
        ]
        frames = frames_of(name, ReportsHead(lifetime_s, kind), reports, many=self.many)
        self.unanswered += len(frames)
        return frames

    # --- answers --------------------------------------------------------------------------------

    def answered(self, asked: RequestFrame, answer: HasAnswer) -> bool:
        """Take an answer to a report; return whether it was the last one.

        Raises:
            RemoteProtocolError: it is torn.
        """
        told, many = told_of(asked, answer), asked.opcode == Opcode.HWT_REPORTS
        if many and answer.status in _NEVER:
            self.many = False  # each alone, from now on
        for refused in told.refused:
            self._refused(refused)
        if not told.last:
            return False
        self.unanswered -= 1
        if answer.status == Status.SUCCESS:
            for vbucket in vbuckets_of(asked):
                self._accepted(vbucket, told.lifetime_s, one_of_many=many)
        return True

    def _accepted(self, vbucket: int, lifetime_s: int | None, *, one_of_many: bool) -> None:
        row = self._rows.get(vbucket)
        if row is not None and one_of_many and row.refused:
            return
        self.purged.pop(vbucket, None)
        self.to_restart.discard(vbucket)
        if row is not None:
            self.registered.add(vbucket)
            row.renew_s = _renewal_s(lifetime_s)

    def _refused(self, refused: UnacceptedReport) -> None:
        vbucket, status, seqno, *numbers = refused
        row = self._rows.get(vbucket)
        self.registered.discard(vbucket)
        if status == Status.ROLLBACK:
            self._fall_back(vbucket, seqno, _as_purged(*numbers))
        if row is not None:
            row.renew_s, row.refused = _RETRY_S, True
        if status == Status.NOT_MY_VBUCKET:
            self.gone(vbucket)
        elif status in _NEVER:
            self.granted = False

    def _fall_back(self, vbucket: int, seqno: int, purged: Purged | None) -> None:
        if not seqno:
            self.to_restart.add(vbucket)
        if purged is not None:
            self.purged[vbucket] = purged


def _as_purged(until: int, registered_at: int, expired_at: int) -> Purged | None:
    return Purged(until, registered_at or None, expired_at or None) if until else None


def _renewal_s(lifetime_s: int | None) -> float:
    """Return when to renew a row that was accepted with this lifetime."""
    if lifetime_s is None:
        return _RETRY_S
    return lifetime_s * _RENEW_SHARE if lifetime_s else math.inf


def kind_number(name: str) -> int:
    """Return the number of a kind; raises `ValueError` with what to say instead."""
    try:
        return KIND_NAMES.index(name)
    except ValueError:
        raise ValueError(f"no kind {name!r}: say {', '.join(KIND_NAMES)}") from None
