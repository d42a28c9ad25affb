"""Frames of reports, and what their answers say: one vBucket in a frame, or many.

A node that has granted `control.REPORTS` takes the reports of many vBuckets in one HWT_REPORTS,
whose answer names only what was refused. Other nodes get a HWT_REPORT for each vBucket.

See `docs/extensions.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from uprmc.errors import RemoteProtocolError
from uprmc.protocol.header import RequestFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.watermarks import (
    HWT_PURGED_EXTRAS,
    HWT_REPLY_EXTRAS,
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
