"""Bodies of HWT_REPORTS: the reports of one instance for many vBuckets, in one frame.

It is sent only on connections that enabled it with its control key, besides that of watermarks.
The answer names only what was not accepted.

See `docs/extensions.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from construct import Int8ub, Int16ub, Int32ub, Int64ub
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.derive import derive
from uprmc.protocol.rows import pack_rows, unpack_rows
from uprmc.protocol.watermarks import OP_REMOVE, OP_SET

#: Longest value of HWT_REPORTS.
REPORTS_MAX_BYTES = 131_072

#: Extras of HWT_REPORTS: what all reports have in common. Its key is the instance's id.
ReportsExtras = Layout("lifetime_s" / Int32ub, "kind" / Int8ub, "op" / Int8ub, "unused" / Int16ub)
REPORTS_EXTRAS = derive(ReportsExtras)

#: A row for each vBucket; its meta log follows it. A `vb_uuid` of 0 is none.
ReportedRow = Layout(
    "vbucket" / Int16ub, "meta_bytes" / Int16ub, "watermark" / Int64ub, "vb_uuid" / Int64ub
)
REPORTED_ROW = derive(ReportedRow)

#: Flag of an answer: new rows are being written, and another answer comes when they are on disk.
ROWS_FOLLOW = 0x01

#: Extras of an answer: the lifetime that was granted.
ReportsReplyExtras = Layout("lifetime_s" / Int32ub, "flags" / Int32ub)
REPORTS_REPLY_EXTRAS = derive(ReportsReplyExtras)

#: A row of the answer, for each report that was not accepted. With the status ROLLBACK, `seqno` is
#: where to fall back to; the others are those of `HwtPurgedExtras`, 0 if there is nothing to say.
RefusedReport = Layout(
    "vbucket" / Int16ub,
    "status" / Int16ub,
    "seqno" / Int64ub,
    "purge_seqno" / Int64ub,
    "watermark" / Int64ub,
    "expired_at" / Int64ub,
)
REFUSED_REPORT = derive(RefusedReport)


class ReportsHead(NamedTuple):
    """What the reports of one frame have in common."""

    lifetime_s: int
    kind: int
    op: int = OP_SET


class OneReport(NamedTuple):
    """A report for one vBucket; `vb_uuid` 0 is none."""

    vbucket: int
    watermark: int
    vb_uuid: int = 0
    meta: bytes = b""


class UnacceptedReport(NamedTuple):
    """A report that was not accepted; see `RefusedReport`."""

    vbucket: int
    status: int
    seqno: int = 0
    purge_seqno: int = 0
    watermark: int = 0
    expired_at: int = 0


def decode_reports(extras: bytes, value: bytes) -> tuple[ReportsHead, list[OneReport]]:
    """Read the body of HWT_REPORTS.

    Raises:
        RemoteProtocolError: too long, torn, or an unknown operation.
    """
    lifetime_s, kind, op, unused = REPORTS_EXTRAS.unpack(extras)
    if unused or op not in (OP_SET, OP_REMOVE) or len(value) > REPORTS_MAX_BYTES:
        raise RemoteProtocolError(f"reports with the operation {op}, {len(value)} bytes")
    return ReportsHead(lifetime_s, kind, op), _rows(value)


def _rows(value: bytes) -> list[OneReport]:
    new = tuple.__new__
    if not len(value) % REPORTED_ROW.size:  # probably without meta logs
        rows = [
            new(OneReport, (vbucket, watermark, uuid, b""))
            for vbucket, meta_bytes, watermark, uuid in REPORTED_ROW.iter_unpack(value)
            if not meta_bytes
        ]
        if len(rows) * REPORTED_ROW.size == len(value):
            return rows
    return list(_rows_with_metas(value))


def _rows_with_metas(value: bytes) -> Iterator[OneReport]:
    at = 0
    try:
        while at < len(value):
            vbucket, meta_bytes, watermark, uuid = REPORTED_ROW.unpack_from(value, at)
            end = at + REPORTED_ROW.size + meta_bytes
            yield OneReport(vbucket, watermark, uuid, value[end - meta_bytes : end])
            at = end
    except struct.error as error:
        raise RemoteProtocolError(f"torn reports: {error}") from None
    if at != len(value):
        raise RemoteProtocolError("a torn report")


def encode_reports_extras(head: ReportsHead) -> bytes:
    """Return the extras of HWT_REPORTS."""
    return REPORTS_EXTRAS.pack(head.lifetime_s, head.kind, head.op, 0)


def encode_reports(reports: Iterable[OneReport]) -> bytes:
    """Return the value of HWT_REPORTS; raises `LocalProtocolError` if a number does not fit."""
    try:
        return b"".join(
            [
                REPORTED_ROW.pack(vbucket, len(meta), watermark, uuid) + meta
                for vbucket, watermark, uuid, meta in reports
            ]
        )
    except struct.error as error:
        raise LocalProtocolError(f"cannot be put on the wire: {error}") from None


def encode_refused(refused: Iterable[UnacceptedReport]) -> bytes:
    """Return the value of an answer."""
    return pack_rows(REFUSED_REPORT, refused)


def decode_refused(value: bytes) -> list[UnacceptedReport]:
    """Read it back; raises `RemoteProtocolError`."""
    return [UnacceptedReport(*row) for row in unpack_rows(REFUSED_REPORT, value)]
