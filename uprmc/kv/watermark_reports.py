"""Answers to HWT_REPORTS: each report is taken as if it had come alone.

Those that only raise watermarks, or make rows that nothing is against, take a few microseconds
each; many of them are taken in one turn, and fewer of the others. Other work runs in between.

Source: docs/extensions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from uprmc.engine.watermarks.table import Outpaced
from uprmc.errors import RollbackRequired
from uprmc.kv.refusals import REFUSALS, refusal_of
from uprmc.protocol.header import encode_response
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.watermarks import ReportExtras
from uprmc.protocol.watermarks_many import (
    REPORTS_REPLY_EXTRAS,
    ROWS_FOLLOW,
    OneReport,
    Refused,
    ReportsHead,
    encode_refused,
)
from uprmc.upr.peer import Answer, UprRequest
from uprmc.upr.producer import Producer

#: This many reports are looked at in one turn; fewer of those that may change more than watermarks.
_LOOKED_AT_AT_ONCE = 512
TAKEN_AT_ONCE = 128

#: To tell that a client was outpaced takes as long as this many reports: an event with keys.
_OUTPACED_AS_REPORTS = 4


def answers_to_reports(producer: Producer, request: UprRequest) -> Iterator[bytes]:
    """Take reports; yield the answer, and an empty piece where others are to have their turn.

    If there is a new row, the last answer comes by way of the registration, once that is on disk.

    Raises:
        CommandError, RemoteProtocolError: refused as a whole.
    """
    return _answers_of(producer, request, *producer.reports(request))


def _answers_of(
    producer: Producer, request: UprRequest, head: ReportsHead, reports: Sequence[OneReport]
) -> Iterator[bytes]:
    registration = producer.registration
    refused: list[Refused] = []
    on_disk = True
    for number, part in enumerate(_parts(reports, _LOOKED_AT_AT_ONCE)):
        if number:
            yield b""
        if not producer.options.manages:
            part, stored = registration.take_all(request.key, head, part)
            on_disk = on_disk and stored
        taken = 0
        for report in part:
            if taken >= TAKEN_AT_ONCE:
                taken = 0
                yield b""
            taken += 1
            try:
                on_disk = _take(producer, request.key, head, report) and on_disk
            except REFUSALS as error:
                refused.append(_refused(report.vbucket, error))
                taken += _OUTPACED_AS_REPORTS * isinstance(error, Outpaced)
    lifetime_s = registration.granted_s(head)
    if refused or on_disk:
        yield encode_response(
            Opcode.HWT_REPORTS,
            extras=REPORTS_REPLY_EXTRAS.pack(lifetime_s, 0 if on_disk else ROWS_FOLLOW),
            value=encode_refused(refused),
            opaque=request.opaque,
        )
    if not on_disk:
        extras = REPORTS_REPLY_EXTRAS.pack(lifetime_s, 0)
        registration.when_registered(request, Answer(extras))


def _parts(reports: Sequence[OneReport], most: int) -> Iterator[Sequence[OneReport]]:
    return (reports[first : first + most] for first in range(0, len(reports), most))


def _take(producer: Producer, name: bytes, head: ReportsHead, report: OneReport) -> bool:
    """Take one report; return whether its row is on disk."""
    vbucket, watermark, uuid, meta = report
    asked = ReportExtras(watermark, head.lifetime_s, head.kind, head.op, uuid or None)
    manages = producer.options.manages
    return producer.registration.take(vbucket, name, asked, meta, manages=manages).on_disk


def _refused(vbucket: int, error: Exception) -> Refused:
    if isinstance(error, Outpaced):
        return Refused(vbucket, Status.ROLLBACK, error.seqno, error.purge_seqno, *error.former)
    if isinstance(error, RollbackRequired):
        return Refused(vbucket, Status.ROLLBACK, error.seqno)
    return Refused(vbucket, refusal_of(error, Opcode.HWT_REPORT, with_lock_errors=False)[0])
