"""Bodies of the messages about watermarks: HWT_REPORT and HWT_READ."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from construct import Bytes, GreedyRange, Int8ub, Int16ub, Int32ub, Int64ub, Terminated, this
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.derive import derive

#: Kinds of clients, by their number on the wire.
KIND_NAMES = ("other", "xdcr", "index", "replica", "rebalance", "backup", "spark")

#: What a HWT_REPORT does with the row that its key names.
OP_SET, OP_REMOVE = 0, 1

_REPORT = Layout(
    "watermark" / Int64ub,
    "lifetime_s" / Int32ub,
    "kind" / Int8ub,
    "op" / Int8ub,
    "unused" / Int16ub,
)

#: Extras of HWT_REPORT. Its key is the instance's id, its value the meta log.
HWT_REPORT_EXTRAS = derive(_REPORT)

#: The same with the history in which the watermark is valid.
HwtReportExtras = Layout(*_REPORT.subcons, "vb_uuid" / Int64ub)
HWT_REPORT_UUID_EXTRAS = derive(HwtReportExtras)

#: Extras of its reply.
HwtReplyExtras = Layout("purge_seqno" / Int64ub, "high_seqno" / Int64ub, "lifetime_s" / Int32ub)
HWT_REPLY_EXTRAS = derive(HwtReplyExtras)

#: Extras of the reply ROLLBACK 0, if deletions above the watermark have been purged: up to which
#: seqno, what the expired row had reported, and when it expired (Unix time); 0 = there was no row,
#: or it is forgotten.
HwtPurgedExtras = Layout("purge_seqno" / Int64ub, "watermark" / Int64ub, "expired_at" / Int64ub)
HWT_PURGED_EXTRAS = derive(HwtPurgedExtras)

#: Longest id of a registered client.
ID_MAX_BYTES = 64

_RECORD_NUMBERS = Layout(
    "kind" / Int8ub,
    "watermark" / Int64ub,
    "reported_at" / Int64ub,
    "lifetime_s" / Int32ub,
    "meta_bytes" / Int16ub,
)

_RECORD = Layout(
    "id_bytes" / Int16ub,
    "id" / Bytes(this.id_bytes),
    *_RECORD_NUMBERS.subcons,
    "meta" / Bytes(this.meta_bytes),
)

#: A table may have a thousand rows, and construct takes some ten microseconds for each.
_ID_BYTES = derive(Layout("id_bytes" / Int16ub))
_NUMBERS = derive(_RECORD_NUMBERS)
_FLOOR = derive(Layout("floor" / Int64ub))

#: Value of the reply to HWT_READ.
HwtReadValue = Layout("entries" / GreedyRange(_RECORD), Terminated)

#: Value of both messages after `control.FLOORS`; a `floor` of 0 is none.
HwtFloorsValue = Layout(
    "entries" / GreedyRange(Layout(*_RECORD.subcons, "floor" / Int64ub)), Terminated
)

#: Extras of HWT_REPLICATE, whose value has the rows as HWT_READ shows them, or with floors. `rows`
#: counts all that the sender has; those that its peer must not have yet are not in the value.
HwtReplicateExtras = Layout("purge_seqno" / Int64ub, "rows" / Int32ub)
HWT_REPLICATE_EXTRAS = derive(HwtReplicateExtras)


class WatermarkRecord(NamedTuple):
    """One row, as HWT_READ shows it; a floor of 0 = there is none, or it is not shown."""

    id: bytes
    kind: int
    watermark: int
    reported_at: int
    lifetime_s: int
    meta: bytes
    floor: int = 0


class ReportExtras(NamedTuple):
    """The numbers of a HWT_REPORT; `vb_uuid` is ``None`` in the short form."""

    watermark: int
    lifetime_s: int
    kind: int
    op: int = OP_SET
    vb_uuid: int | None = None


def decode_report(extras: bytes) -> ReportExtras:
    """Read the extras of HWT_REPORT; raises `RemoteProtocolError` for an unknown form."""
    uuid: int | None = None
    if len(extras) == HWT_REPORT_EXTRAS.size:
        watermark, lifetime_s, kind, op, unused = HWT_REPORT_EXTRAS.unpack(extras)
    else:
        watermark, lifetime_s, kind, op, unused, uuid = HWT_REPORT_UUID_EXTRAS.unpack(extras)
    if unused or op not in (OP_SET, OP_REMOVE):
        raise RemoteProtocolError(f"a report has the operation {op} and the unused bytes {unused}")
    return ReportExtras(watermark, lifetime_s, kind, op, uuid)


def encode_report(report: ReportExtras) -> bytes:
    """Return the extras of HWT_REPORT."""
    watermark, lifetime_s, kind, op, uuid = report
    short = HWT_REPORT_EXTRAS.pack(watermark, lifetime_s, kind, op, 0)
    return short if uuid is None else HWT_REPORT_UUID_EXTRAS.pack(*report[:4], 0, uuid)


def encode_records(records: Iterable[WatermarkRecord], *, floors: bool = False) -> bytes:
    """Return the value of the reply to HWT_READ, or of HWT_REPLICATE; with floors if asked for."""
    pieces: list[bytes] = []
    try:
        for name, kind, watermark, reported_at, lifetime_s, meta, floor in records:
            numbers = _NUMBERS.pack(kind, watermark, reported_at, lifetime_s, len(meta))
            pieces += _ID_BYTES.pack(len(name)), name, numbers, meta
            if floors:
                pieces.append(_FLOOR.pack(floor))
    except struct.error as error:
        raise LocalProtocolError(f"cannot be put on the wire: {error}") from None
    return b"".join(pieces)


def decode_records(value: bytes, *, floors: bool = False) -> list[WatermarkRecord]:
    """Read it back; raises `RemoteProtocolError`."""
    found, at = [], 0
    try:
        while at < len(value):
            (id_bytes,) = _ID_BYTES.unpack_from(value, at)
            middle = at + _ID_BYTES.size + id_bytes
            kind, watermark, reported_at, lifetime_s, meta_bytes = _NUMBERS.unpack_from(
                value, middle
            )
            end = middle + _NUMBERS.size + meta_bytes
            (floor,) = _FLOOR.unpack_from(value, end) if floors else (0,)
            name, meta = value[middle - id_bytes : middle], value[end - meta_bytes : end]
            found.append(
                WatermarkRecord(name, kind, watermark, reported_at, lifetime_s, meta, floor)
            )
            at = end + (_FLOOR.size if floors else 0)
    except struct.error as error:
        raise RemoteProtocolError(f"torn rows: {error}") from None
    if at != len(value):
        raise RemoteProtocolError("a torn row")
    return found
