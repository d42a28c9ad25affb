"""Bodies of the messages about watermarks: HWT_REPORT and HWT_READ.

Source: UPR reference, section 7; contracts of the systems to come, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from construct import Bytes, GreedyRange, Int8ub, Int16ub, Int32ub, Int64ub, Terminated, this
from construct import Struct as Layout

from uprmc.errors import RemoteProtocolError
from uprmc.protocol.derive import derive
from uprmc.protocol.rows import build_rows, parse_rows

#: Control key that asks for watermarks; with the value `MANAGE` for the rows of others, too.
WATERMARKS_KEY = b"uprmc_hwt"
MANAGE = b"manage"

#: Control key that asks for the floors of rows in HWT_REPLICATE and HWT_READ.
FLOORS_KEY = b"uprmc_hwt_floors"

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

_RECORD = Layout(
    "id_bytes" / Int16ub,
    "id" / Bytes(this.id_bytes),
    "kind" / Int8ub,
    "watermark" / Int64ub,
    "reported_at" / Int64ub,
    "lifetime_s" / Int32ub,
    "meta_bytes" / Int16ub,
    "meta" / Bytes(this.meta_bytes),
)

#: Value of the reply to HWT_READ.
HwtReadValue = Layout("entries" / GreedyRange(_RECORD), Terminated)

#: Value of both messages after `FLOORS_KEY`; a `floor` of 0 is none.
HwtFloorsValue = Layout(
    "entries" / GreedyRange(Layout(*_RECORD.subcons, "floor" / Int64ub)), Terminated
)

#: Extras of HWT_REPLICATE, whose value has the rows as HWT_READ shows them, or with floors. `rows`
#: counts all that the sender has; those that its peer must not have yet are not in the value.
HwtReplicateExtras = Layout("purge_seqno" / Int64ub, "rows" / Int32ub)
HWT_REPLICATE_EXTRAS = derive(HwtReplicateExtras)


class WatermarkRecord(NamedTuple):
    """One row, as HWT_READ shows it; a floor of 0 = there is none, or it is not told."""

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
    entries = [
        {**record._asdict(), "id_bytes": len(record.id), "meta_bytes": len(record.meta)}
        for record in records
    ]
    return build_rows(HwtFloorsValue if floors else HwtReadValue, entries)


def decode_records(value: bytes, *, floors: bool = False) -> list[WatermarkRecord]:
    """Read it back; raises `RemoteProtocolError`."""
    if not value:
        return []
    entries = parse_rows(HwtFloorsValue if floors else HwtReadValue, value)
    known = [name for name in WatermarkRecord._fields if floors or name != "floor"]
    return [WatermarkRecord(*(entry[name] for name in known)) for entry in entries]
