"""Bodies of UPR's own messages, opcodes 0x50 to 0x5e, in the form of version 3.0.

Layouts are declared with construct, each with its derived struct in capitals. The frames of a
backfill also exist as one struct for header and extras (`MUTATION_FRAME` and so on), because a
stream sends millions of them; `frame_head`, `frame_place` and `snapshot_marker` fill them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from construct import (
    Const,
    Default,
    GreedyRange,
    Int8ub,
    Int16ub,
    Int32ub,
    Int64ub,
    Terminated,
)
from construct import Struct as Layout

from uprmc.errors import InvalidArguments, LocalProtocolError, RemoteProtocolError
from uprmc.model import TERM_MAX, FailoverEntry
from uprmc.protocol.derive import derive, derive_merged
from uprmc.protocol.header import RequestHeader
from uprmc.protocol.opcodes import MAGIC_REQUEST, Opcode
from uprmc.protocol.rows import pack_rows

# --- the consumer asks --------------------------------------------------------------------------

#: Extras of OPEN; the sequence number is ignored. The key is the connection's name.
OpenExtras = Layout("sequence" / Int32ub, "flags" / Int32ub)
OPEN_EXTRAS = derive(OpenExtras)

#: Extras of ADD_STREAM, from a manager to a consumer.
AddStreamExtras = Layout("flags" / Int32ub)
ADD_STREAM_EXTRAS = derive(AddStreamExtras)

#: Extras of its reply: the opaque of the new stream.
AddStreamReplyExtras = Layout("stream_opaque" / Int32ub)
ADD_STREAM_REPLY_EXTRAS = derive(AddStreamReplyExtras)

#: Extras of STREAM_REQUEST; snapshot start <= start <= snapshot end.
StreamRequestExtras = Layout(
    "flags" / Int32ub,
    "reserved" / Default(Int32ub, 0),
    "start_seqno" / Int64ub,
    "end_seqno" / Int64ub,
    "uuid" / Int64ub,
    "snapshot_start" / Int64ub,
    "snapshot_end" / Int64ub,
)
STREAM_REQUEST_EXTRAS = derive(StreamRequestExtras)

#: The same of the first generation (October 2013 to April 2014): `high_seqno` is the one next to
#: the uuid in the client's log.
FirstStreamRequestExtras = Layout(
    "flags" / Int32ub,
    "reserved" / Default(Int32ub, 0),
    "start_seqno" / Int64ub,
    "end_seqno" / Int64ub,
    "uuid" / Int64ub,
    "high_seqno" / Int64ub,
)
FIRST_STREAM_REQUEST_EXTRAS = derive(FirstStreamRequestExtras)

#: Value of the reply ROLLBACK.
RollbackValue = Layout("seqno" / Int64ub)
ROLLBACK_VALUE = derive(RollbackValue)

#: Value of the reply SUCCESS and of the reply to GET_FAILOVER_LOG: entries, newest first.
_FailoverEntry = Layout("uuid" / Int64ub, "seqno" / Int64ub)
FailoverLogValue = Layout("entries" / GreedyRange(_FailoverEntry), Terminated)
FAILOVER_ENTRY = derive(_FailoverEntry)

#: Extras of both replies after `Feature.TERMS` was granted: the term of the vBucket's history.
TermExtras = Layout("term" / Int64ub)
TERM_EXTRAS = derive(TermExtras)

#: Extras of BUFFER_ACK.
BufferAckExtras = Layout("bytes" / Int32ub)
BUFFER_ACK_EXTRAS = derive(BufferAckExtras)

#: Extras of SEQNO_ACKNOWLEDGED: the consumer has everything up to here on disk.
SeqnoAcknowledgedExtras = Layout("seqno" / Int64ub)
SEQNO_ACKNOWLEDGED_EXTRAS = derive(SeqnoAcknowledgedExtras)

# --- the producer sends -------------------------------------------------------------------------

#: Extras of STREAM_END: an `EndReason`.
StreamEndExtras = Layout("reason" / Int32ub)
STREAM_END_EXTRAS = derive(StreamEndExtras)

#: Extras of SNAPSHOT_MARKER; `kind` is made of `MarkerFlag` bits.
SnapshotMarkerExtras = Layout("start_seqno" / Int64ub, "end_seqno" / Int64ub, "kind" / Int32ub)
SNAPSHOT_MARKER_EXTRAS = derive(SnapshotMarkerExtras)

#: Extras of the marker of version 2.2, for consumers that asked for it; the rest is in its value.
VersionedMarkerExtras = Layout("version" / Const(2, Int8ub))
VERSIONED_MARKER_EXTRAS = derive(VersionedMarkerExtras)

#: Value of the marker of version 2.2. Without synchronous writes everything up to the end is
#: visible and nothing is prepared. Deletions up to `purge_seqno` may be missing from the snapshot.
VersionedMarkerValue = Layout(
    *SnapshotMarkerExtras.subcons,
    "max_visible_seqno" / Int64ub,
    "high_completed_seqno" / Default(Int64ub, 0),
    "purge_seqno" / Int64ub,
    "high_prepared_seqno" / Default(Int64ub, 0),
)
VERSIONED_MARKER_VALUE = derive(VersionedMarkerValue)

#: Extras of MUTATION. `nmeta` bytes of extended metadata follow the value.
MutationExtras = Layout(
    "by_seqno" / Int64ub,
    "rev_seqno" / Int64ub,
    "flags" / Int32ub,
    "expiration" / Int32ub,
    "lock_time" / Default(Int32ub, 0),
    "nmeta" / Default(Int16ub, 0),
    "nru" / Default(Int8ub, 0),
)
MUTATION_EXTRAS = derive(MutationExtras)

#: Extras of DELETION, and of EXPIRATION as it was until 2014.
DeletionExtras = Layout("by_seqno" / Int64ub, "rev_seqno" / Int64ub, "nmeta" / Default(Int16ub, 0))
DELETION_EXTRAS = derive(DeletionExtras)

#: Extras of DELETION for consumers that asked for delete times.
TimedDeletionExtras = Layout(
    "by_seqno" / Int64ub,
    "rev_seqno" / Int64ub,
    "delete_time" / Int32ub,
    "unused" / Const(0, Int8ub),
)
TIMED_DELETION_EXTRAS = derive(TimedDeletionExtras)

#: Extras of the present EXPIRATION; only for consumers that asked for it.
ExpirationExtras = Layout("by_seqno" / Int64ub, "rev_seqno" / Int64ub, "delete_time" / Int32ub)
EXPIRATION_EXTRAS = derive(ExpirationExtras)


def check_deletion(extras: bytes, value: bytes) -> None:
    """Check that a deletion has no value but the extended metadata that its extras announce.

    The forms with a delete time do not say how long that is.

    Raises:
        InvalidArguments: it has another value.
    """
    if len(extras) == DELETION_EXTRAS.size and DELETION_EXTRAS.unpack(extras)[2] != len(value):
        raise InvalidArguments("a deletion has no value")


#: Extras of SET_VBUCKET_STATE: a `VBucketState` number.
SetVBucketStateExtras = Layout("state" / Int8ub)
SET_VBUCKET_STATE_EXTRAS = derive(SetVBucketStateExtras)

# --- frames in one piece ------------------------------------------------------------------------

_HEADER_GROUPS = (
    ("magic", "opcode"),
    ("key_length",),
    ("extras_length", "datatype", "vbucket"),
    ("body_length",),
    ("opaque",),
    ("cas",),
)


def _each_alone(layout: Layout) -> list[tuple[str, ...]]:
    return [(str(subcon.name),) for subcon in layout.subcons]


#: Header and extras of a mutation, in 13 numbers.
MutationFrame = Layout(*RequestHeader.subcons, *MutationExtras.subcons)
MUTATION_FRAME = derive_merged(MutationFrame, *_HEADER_GROUPS, *_each_alone(MutationExtras))

#: The same, in the 7 numbers that are needed to check an item.
MUTATION_JUDGED = derive_merged(
    MutationFrame, *_HEADER_GROUPS, *_each_alone(MutationExtras), unread=(5, 7, 8, 9, 10, 12)
)

#: Header and extras of a deletion, in 9 numbers.
DeletionFrame = Layout(*RequestHeader.subcons, *DeletionExtras.subcons)
DELETION_FRAME = derive_merged(DeletionFrame, *_HEADER_GROUPS, *_each_alone(DeletionExtras))

#: Header and extras of a snapshot marker, in 9 numbers.
MarkerFrame = Layout(*RequestHeader.subcons, *SnapshotMarkerExtras.subcons)
MARKER_FRAME = derive_merged(MarkerFrame, *_HEADER_GROUPS, *_each_alone(SnapshotMarkerExtras))

#: Header, extras and value of a snapshot marker of version 2.2, in the 9 numbers that are used.
VersionedMarkerFrame = Layout(
    *RequestHeader.subcons, *VersionedMarkerExtras.subcons, *VersionedMarkerValue.subcons
)
_VERSIONED_MARKER_GROUPS = (
    *_HEADER_GROUPS,
    *_each_alone(VersionedMarkerExtras),
    *_each_alone(VersionedMarkerValue),
)
VERSIONED_MARKER_FRAME = derive_merged(
    VersionedMarkerFrame, *_VERSIONED_MARKER_GROUPS, unread=(0, 5, 10, 11, 13)
)
_pack_versioned_marker = derive_merged(VersionedMarkerFrame, *_VERSIONED_MARKER_GROUPS).pack


def frame_head(opcode: int) -> int:
    """Return the first number of a merged frame."""
    return MAGIC_REQUEST << 8 | opcode


def frame_place(extras_length: int, vbucket: int, datatype: int = 0) -> int:
    """Return the third number of a merged frame."""
    return extras_length << 24 | datatype << 16 | vbucket


_VERSIONED_MARKER_PLACE = frame_place(VERSIONED_MARKER_EXTRAS.size, 0)
_VERSIONED_MARKER_BYTES = VERSIONED_MARKER_EXTRAS.size + VERSIONED_MARKER_VALUE.size
_VERSION_2_2 = VERSIONED_MARKER_EXTRAS.pack(2)
_MARKER_HEAD = frame_head(Opcode.UPR_SNAPSHOT_MARKER)
_MARKER_BYTES = SNAPSHOT_MARKER_EXTRAS.size
_MARKER_PLACE = frame_place(_MARKER_BYTES, 0)


def snapshot_marker(
    vbucket: int, opaque: int, start_seqno: int, end_seqno: int, kind: int
) -> bytes:
    """Return a complete snapshot marker."""
    return MARKER_FRAME.pack(
        _MARKER_HEAD,
        0,
        _MARKER_PLACE | vbucket,
        _MARKER_BYTES,
        opaque,
        0,
        start_seqno,
        end_seqno,
        kind,
    )


def versioned_marker_place(vbucket: int) -> int:
    """Return the third number of a complete marker of version 2.2."""
    return _VERSIONED_MARKER_PLACE | vbucket


def versioned_marker(
    vbucket: int, opaque: int, start_seqno: int, end_seqno: int, kind: int, purge_seqno: int
) -> bytes:
    """Return a complete snapshot marker of version 2.2."""
    return _pack_versioned_marker(
        _MARKER_HEAD,
        0,
        _VERSIONED_MARKER_PLACE | vbucket,
        _VERSIONED_MARKER_BYTES,
        opaque,
        0,
        2,
        start_seqno,
        end_seqno,
        kind,
        end_seqno,
        0,
        purge_seqno,
        0,
    )


# --- plain values -------------------------------------------------------------------------------


class Marker(NamedTuple):
    """A snapshot marker of any version; `purge_seqno` is 0 if it had none."""

    start_seqno: int
    end_seqno: int
    kind: int
    purge_seqno: int = 0


def decode_marker(extras: bytes, value: bytes) -> Marker:
    """Read a snapshot marker.

    Raises:
        RemoteProtocolError: neither the 3.0 form nor version 2.2, or an end before its start.
    """
    if len(extras) == SNAPSHOT_MARKER_EXTRAS.size and not value:
        marker = Marker(*SNAPSHOT_MARKER_EXTRAS.unpack(extras))
    elif extras == _VERSION_2_2 and len(value) == VERSIONED_MARKER_VALUE.size:
        start, end, kind, _, _, purge_seqno, _ = VERSIONED_MARKER_VALUE.unpack(value)
        marker = Marker(start, end, kind, purge_seqno)
    else:
        raise RemoteProtocolError(f"a marker of {len(extras)} + {len(value)} bytes")
    if marker.start_seqno > marker.end_seqno:
        raise RemoteProtocolError(f"a snapshot from {marker.start_seqno} to {marker.end_seqno}")
    return marker


class StreamRequest(NamedTuple):
    """The request of a consumer, of either generation."""

    flags: int
    start_seqno: int
    end_seqno: int
    uuid: int
    snapshot_start: int
    snapshot_end: int

    def encode(self) -> bytes:
        """Return the extras of the 3.0 form; raises `LocalProtocolError` above 64 bits."""
        flags, *rest = self
        try:
            return STREAM_REQUEST_EXTRAS.pack(flags, 0, *rest)
        except struct.error as error:
            raise LocalProtocolError(f"cannot be put on the wire: {error}") from None


def decode_stream_request(extras: bytes) -> StreamRequest:
    """Read the extras of either generation; the first one had no partial snapshots.

    Raises:
        RemoteProtocolError: neither 48 nor 40 bytes.
    """
    if len(extras) == STREAM_REQUEST_EXTRAS.size:
        flags, _, *rest = STREAM_REQUEST_EXTRAS.unpack(extras)
        return StreamRequest(flags, *rest)
    if len(extras) == FIRST_STREAM_REQUEST_EXTRAS.size:
        flags, _, start, end, uuid, _ = FIRST_STREAM_REQUEST_EXTRAS.unpack(extras)
        return StreamRequest(flags, start, end, uuid, start, start)
    raise RemoteProtocolError(f"a stream request has {len(extras)} bytes of extras")


def encode_failover_log(log: Sequence[FailoverEntry]) -> bytes:
    """Return a failover log as a reply's value; raises `LocalProtocolError` above 64 bits."""
    return pack_rows(FAILOVER_ENTRY, log)


def decode_failover_log(value: bytes) -> tuple[FailoverEntry, ...]:
    """Read a failover log; raises `RemoteProtocolError` for an empty or an incomplete one."""
    if not value or len(value) % FAILOVER_ENTRY.size:
        raise RemoteProtocolError(f"a failover log of {len(value)} bytes")
    return tuple(FailoverEntry(*entry) for entry in FAILOVER_ENTRY.iter_unpack(value))


def decode_term(extras: bytes) -> int:
    """Return the term that accompanies a failover log, 0 if the other node knows none.

    Raises:
        RemoteProtocolError: the extras are neither empty nor a term, or the term is impossibly
        high.
    """
    if not extras:
        return 0
    if len(extras) != TERM_EXTRAS.size:
        raise RemoteProtocolError(f"a term of {len(extras)} bytes")
    (term,) = TERM_EXTRAS.unpack(extras)
    if term > TERM_MAX:
        raise RemoteProtocolError(f"no vBucket has the term {term}")
    return int(term)
