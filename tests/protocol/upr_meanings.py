"""What the vectors of `tests.golden.upr_frames` mean in plain values, and the layouts they show."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import construct

from uprmc.protocol import binary, management, upr
from uprmc.protocol.header import Frame, RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import EndReason, MarkerFlag, OpenFlag, StreamFlag

MAX = 2**64 - 1
#: The two histories that the vectors speak of.
U0, U1 = 0x00001122334455AA, 0x0000A1B2C3D4E5F6
LOG = [{"uuid": U1, "seqno": 100}, {"uuid": U0, "seqno": 0}]


class Meaning(NamedTuple):
    """A vector in plain values.

    Attributes:
        frame: all of the frame but the part that has a layout.
        part: which part that is, ``""`` when none has.
        layout: its layout.
        derived: the struct derived from it, if its width is fixed.
        fields: what stands in it.
    """

    frame: Frame
    part: str = ""
    layout: construct.Struct = construct.Struct()
    derived: struct.Struct | None = None
    fields: dict[str, Any] = {}  # noqa: RUF012


def stream_request(start: int, end: int, uuid: int, low: int, high: int) -> dict[str, int]:
    return {
        "flags": 0,
        "reserved": 0,
        "start_seqno": start,
        "end_seqno": end,
        "uuid": uuid,
        "snapshot_start": low,
        "snapshot_end": high,
    }


def q(opcode: int, vbucket: int, opaque: int, **more: Any) -> RequestFrame:
    return RequestFrame(opcode, vbucket=vbucket, opaque=opaque, **more)


def r(opcode: int, status: int, opaque: int, **more: Any) -> ResponseFrame:
    return ResponseFrame(opcode, status, opaque=opaque, **more)


OPEN = ("extras", upr.OpenExtras, upr.OPEN_EXTRAS)
REQUEST = ("extras", upr.StreamRequestExtras, upr.STREAM_REQUEST_EXTRAS)
FAILOVER_LOG = ("value", upr.FailoverLogValue, None)
TTL_CAS = 0x2122232425262728
BYE_CAS = 0x1112131415161718

MEANINGS = {
    "V1q": Meaning(
        q(0x50, 0, 0x11, key=b"idx:1"), *OPEN, {"sequence": 0, "flags": OpenFlag.PRODUCER}
    ),
    "V1r": Meaning(r(0x50, 0, 0x11)),
    "V2q": Meaning(q(0x50, 0, 0x12, key=b"repl"), *OPEN, {"sequence": 0, "flags": 0}),
    "V2r": Meaning(r(0x50, 0, 0x12)),
    "V3q": Meaning(q(0x5E, 0, 0x13, key=b"connection_buffer_size", value=b"1024")),
    "V3r": Meaning(r(0x5E, 0, 0x13)),
    "V4q": Meaning(q(0x54, 5, 0x14)),
    "V4r": Meaning(r(0x54, 0, 0x14), *FAILOVER_LOG, {"entries": LOG}),
    "V5q": Meaning(q(0x53, 5, 0x1000), *REQUEST, stream_request(10, MAX, U1, 10, 10)),
    "V5r": Meaning(r(0x53, 0, 0x1000), *FAILOVER_LOG, {"entries": LOG}),
    "V6q": Meaning(q(0x53, 5, 0x1001), *REQUEST, stream_request(150, MAX, U0, 120, 150)),
    "V6r": Meaning(
        r(0x53, 0x23, 0x1001), "value", upr.RollbackValue, upr.ROLLBACK_VALUE, {"seqno": 100}
    ),
    "V7q": Meaning(q(0x53, 5, 0x1002), *REQUEST, stream_request(9, 3, U1, 9, 9)),
    "V7r": Meaning(r(0x53, 0x22, 0x1002)),
    "V8q": Meaning(
        q(0x56, 5, 0x1000),
        "extras",
        upr.SnapshotMarkerExtras,
        upr.SNAPSHOT_MARKER_EXTRAS,
        {"start_seqno": 10, "end_seqno": 12, "kind": MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT},
    ),
    "V9q": Meaning(
        q(0x57, 5, 0x1000, key=b"hello", value=b'{"a":1}', datatype=1, cas=0x0102030405060708),
        "extras",
        upr.MutationExtras,
        upr.MUTATION_EXTRAS,
        {
            "by_seqno": 11,
            "rev_seqno": 2,
            "flags": 0xCAFE,
            "expiration": 0,
            "lock_time": 0,
            "nmeta": 0,
            "nru": 0,
        },
    ),
    "V10q": Meaning(
        q(0x58, 5, 0x1000, key=b"bye", cas=BYE_CAS),
        "extras",
        upr.DeletionExtras,
        upr.DELETION_EXTRAS,
        {"by_seqno": 12, "rev_seqno": 3, "nmeta": 0},
    ),
    "V11q": Meaning(
        q(0x59, 5, 0x1000, key=b"ttl", cas=TTL_CAS),
        "extras",
        upr.DeletionExtras,
        upr.DELETION_EXTRAS,
        {"by_seqno": 13, "rev_seqno": 4, "nmeta": 0},
    ),
    "V12q": Meaning(
        q(0x59, 5, 0x1000, key=b"ttl", cas=TTL_CAS),
        "extras",
        upr.ExpirationExtras,
        upr.EXPIRATION_EXTRAS,
        {"by_seqno": 13, "rev_seqno": 4, "delete_time": 0x65A00000},
    ),
    "V13q": Meaning(
        q(0x58, 5, 0x1000, key=b"bye", cas=BYE_CAS),
        "extras",
        upr.TimedDeletionExtras,
        upr.TIMED_DELETION_EXTRAS,
        {"by_seqno": 12, "rev_seqno": 3, "delete_time": 0x65A00000, "unused": 0},
    ),
    "V14q": Meaning(
        q(0x55, 5, 0x1000),
        "extras",
        upr.StreamEndExtras,
        upr.STREAM_END_EXTRAS,
        {"reason": EndReason.STATE_CHANGED},
    ),
    "V15q": Meaning(q(0x5C, 0, 0x77)),
    "V15r": Meaning(r(0x5C, 0, 0x77)),
    "V16q": Meaning(
        q(0x5D, 0, 0x15), "extras", upr.BufferAckExtras, upr.BUFFER_ACK_EXTRAS, {"bytes": 4096}
    ),
    "V17q": Meaning(
        q(0x51, 5, 0x16),
        "extras",
        upr.AddStreamExtras,
        upr.ADD_STREAM_EXTRAS,
        {"flags": StreamFlag.TAKEOVER},
    ),
    "V17r": Meaning(
        r(0x51, 0, 0x16),
        "extras",
        upr.AddStreamReplyExtras,
        upr.ADD_STREAM_REPLY_EXTRAS,
        {"stream_opaque": 3},
    ),
    "V18q": Meaning(q(0x52, 5, 0x17)),
    "V18r": Meaning(r(0x52, 0, 0x17)),
    "V19q": Meaning(
        q(0x5B, 5, 0x1000),
        "extras",
        upr.SetVBucketStateExtras,
        upr.SET_VBUCKET_STATE_EXTRAS,
        {"state": 3},
    ),
    "V19r": Meaning(r(0x5B, 0, 0x1000)),
    "V20q": Meaning(q(0x54, 900, 0x18)),
    "V20r": Meaning(r(0x54, 0x07, 0x18)),
    "V21q": Meaning(
        q(0x3D, 5, 0x19),
        "extras",
        management.SetVBucketExtras,
        management.SET_VBUCKET_EXTRAS,
        {"state": 2},
    ),
    "V21r": Meaning(r(0x3D, 0, 0x19)),
    "V22q": Meaning(q(0x3E, 5, 0x1A)),
    "V22r": Meaning(
        r(0x3E, 0, 0x1A),
        "value",
        management.GetVBucketReply,
        management.GET_VBUCKET_REPLY,
        {"state": 2},
    ),
    "V23q": Meaning(
        q(0x48, 0, 0x1B),
        "extras",
        management.VBucketSeqnosExtras,
        management.VBUCKET_SEQNOS_EXTRAS,
        {"state": 1},
    ),
    "V23r": Meaning(
        r(0x48, 0, 0x1B),
        "value",
        management.VBucketSeqnosValue,
        None,
        {"entries": [{"vbucket": 0, "seqno": 21554}, {"vbucket": 5, "seqno": 12}]},
    ),
    "V24q": Meaning(
        q(0xA2, 5, 0x1C, key=b"k", value=b"v"),
        "extras",
        management.WithMetaExtras,
        management.WITH_META_EXTRAS,
        {"flags": 7, "exptime": 0, "rev": 9, "cas": 0x99},
    ),
    "V24r": Meaning(r(0xA2, 0, 0x1C, cas=0x99)),
    "V25q": Meaning(q(0xA0, 5, 0x1D, key=b"k")),
    "V25r": Meaning(
        r(0xA0, 0, 0x1D, cas=0x99),
        "extras",
        management.GetMetaReplyExtras,
        management.GET_META_REPLY_EXTRAS,
        {"deleted": 0, "flags": 7, "exptime": 0, "rev": 9},
    ),
    "V26q": Meaning(
        q(0x91, 5, 0x1E),
        "value",
        binary.ObserveSeqnoRequest,
        binary.OBSERVE_SEQNO_REQUEST,
        {"uuid": U0},
    ),
    "V26r": Meaning(
        r(0x91, 0, 0x1E),
        "value",
        binary.ObserveSeqnoFailoverReply,
        binary.OBSERVE_SEQNO_FAILOVER_REPLY,
        {
            "format": 1,
            "vbucket": 5,
            "uuid": U1,
            "persisted_seqno": 110,
            "current_seqno": 112,
            "old_uuid": U0,
            "last_old_seqno": 100,
        },
    ),
    "V27q": Meaning(
        q(0x92, 0, 0x1F),
        "value",
        binary.ObserveRequest,
        None,
        {"entries": [{"vbucket": 5, "key_length": 1, "key": b"k"}]},
    ),
    "V27r": Meaning(
        r(0x92, 0, 0x1F),
        "value",
        binary.ObserveReply,
        None,
        {"entries": [{"vbucket": 5, "key_length": 1, "key": b"k", "state": 1, "cas": 0x99}]},
    ),
    "V28q": Meaning(
        q(0xB3, 5, 0x20),
        "extras",
        management.CompactExtras,
        management.COMPACT_EXTRAS,
        {
            "purge_before_ts": 0,
            "purge_before_seq": 100,
            "drop_deletes": 0,
            "padding": bytes(7),
        },
    ),
    "V28r": Meaning(r(0xB3, 0, 0x20)),
    "V29q": Meaning(
        q(0x53, 5, 0x1003),
        "extras",
        upr.FirstStreamRequestExtras,
        upr.FIRST_STREAM_REQUEST_EXTRAS,
        {
            "flags": 0,
            "reserved": 0,
            "start_seqno": 10,
            "end_seqno": MAX,
            "uuid": U1,
            "high_seqno": 100,
        },
    ),
    "V30q": Meaning(q(0x56, 5, 0x1003)),
}
