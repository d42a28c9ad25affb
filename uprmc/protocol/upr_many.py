"""Bodies of frames that concern many streams at once: extensions of ours, like `upr_extensions`.

None of them is sent on a connection that did not enable it with its control key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from construct import Int16ub, Int32ub, Int64ub
from construct import Struct as Layout

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.model import TERM_MAX, FailoverEntry
from uprmc.protocol.derive import derive
from uprmc.protocol.header import RequestFrame, ResponseFrame, encode_request, pack_request
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, Opcode
from uprmc.protocol.rows import pack_rows
from uprmc.protocol.upr import FAILOVER_ENTRY, TERM_EXTRAS, StreamRequest
from uprmc.protocol.upr_extensions import StreamOptions, encode_stream_options

# --- new snapshots ------------------------------------------------------------------------------

#: Flag of SNAPSHOTS: there is more, and the producer sends it as soon as others had their turn.
MORE_FOLLOWS = 0x01

#: Extras of SNAPSHOTS.
SnapshotsExtras = Layout("flags" / Int32ub, "snapshots" / Int32ub)
SNAPSHOTS_EXTRAS = derive(SnapshotsExtras)

#: A row for each snapshot, at the beginning of its value: whose, and what a marker tells. The
#: frames of all items follow in the same order, each snapshot from its first item to its last.
AnnouncedSnapshot = Layout(
    "opaque" / Int32ub,
    "kind" / Int32ub,
    "start_seqno" / Int64ub,
    "end_seqno" / Int64ub,
    "purge_seqno" / Int64ub,
)
ANNOUNCED_SNAPSHOT = derive(AnnouncedSnapshot)

#: What precedes the rows.
SNAPSHOTS_HEAD_BYTES = HEADER_BYTES + SNAPSHOTS_EXTRAS.size


def snapshots_head(rows: Sequence[bytes], item_bytes: int, *, more: bool) -> bytes:
    """Return a frame of SNAPSHOTS without its items, which have this size and follow at once."""
    extras = SNAPSHOTS_EXTRAS.pack(MORE_FOLLOWS if more else 0, len(rows))
    size = len(extras) + len(rows) * ANNOUNCED_SNAPSHOT.size + item_bytes
    head = pack_request(MAGIC_REQUEST, Opcode.SNAPSHOTS, 0, len(extras), 0, 0, size, 0, 0)
    return b"".join((head, extras, *rows))


# --- requests -----------------------------------------------------------------------------------

#: Longest value of STREAM_REQUESTS: all of it is read in one turn.
STREAM_REQUESTS_MAX_BYTES = 131_072

#: Flag of STREAM_REQUESTS: tell only the newest entry of each failover log.
NEWEST_ENTRY = 0x01

#: Flag of its answers: there is another one.
MORE_ANSWERS = 0x01

#: Extras of STREAM_REQUESTS and of its answers.
StreamRequestsExtras = Layout("flags" / Int32ub)
STREAM_REQUESTS_EXTRAS = derive(StreamRequestsExtras)

#: A row for each stream; its known versions follow it, each as an entry of a failover log.
RequestedStream = Layout(
    "vbucket" / Int16ub,
    "versions" / Int16ub,
    "opaque" / Int32ub,
    "flags" / Int32ub,
    "start_seqno" / Int64ub,
    "end_seqno" / Int64ub,
    "uuid" / Int64ub,
    "snapshot_start" / Int64ub,
    "snapshot_end" / Int64ub,
    "lease" / Int64ub,
    "term" / Int64ub,
)
REQUESTED_STREAM = derive(RequestedStream)

#: A row of an answer; what the answer to STREAM_REQUEST has as its value follows it.
AnsweredStream = Layout("opaque" / Int32ub, "status" / Int16ub, "size" / Int16ub, "term" / Int64ub)
ANSWERED_STREAM = derive(AnsweredStream)


class StreamStart(NamedTuple):
    """All that a stream request says, in whichever frame it comes."""

    vbucket: int
    opaque: int
    request: StreamRequest
    options: StreamOptions = StreamOptions()

    @property
    def opcode(self) -> int:
        """What is answered."""
        return Opcode.UPR_STREAM_REQUEST

    def frame(self) -> RequestFrame:
        """Return a frame for this stream alone; raises `LocalProtocolError` above 64 bits."""
        extras, value = self.request.encode(), encode_stream_options(self.options)
        return RequestFrame(
            self.opcode, extras=extras, value=value, vbucket=self.vbucket, opaque=self.opaque
        )

    def encode(self, opaque: int) -> bytes:
        """Return the bytes of `frame`, with this opaque."""
        return self.frame().encode(opaque)

    def row(self) -> bytes:
        """Return what STREAM_REQUESTS says of it; raises `LocalProtocolError` above 64 bits."""
        known, _, lease, term = self.options
        try:
            row = REQUESTED_STREAM.pack(
                self.vbucket, len(known), self.opaque, *self.request, lease, term
            )
        except struct.error as error:
            raise LocalProtocolError(f"cannot be put on the wire: {error}") from None
        return row + pack_rows(FAILOVER_ENTRY, known) if known else row


class StreamAnswer(NamedTuple):
    """What became of one stream; the value is that of the answer to STREAM_REQUEST."""

    opaque: int
    status: int
    term: int
    value: bytes


def split_starts(starts: Iterable[StreamStart]) -> Iterable[tuple[list[StreamStart], bytes]]:
    """Yield starts together with the value of STREAM_REQUESTS that holds them, not too long."""
    part: list[StreamStart] = []
    rows: list[bytes] = []
    size = 0
    for start in starts:
        row = start.row()
        if rows and size + len(row) > STREAM_REQUESTS_MAX_BYTES:
            yield part, b"".join(rows)
            part, rows, size = [], [], 0
        part.append(start)
        rows.append(row)
        size += len(row)
    if rows:
        yield part, b"".join(rows)


def encode_stream_requests(opaque: int, value: bytes) -> bytes:
    """Return a frame of STREAM_REQUESTS that asks for complete failover logs."""
    extras = STREAM_REQUESTS_EXTRAS.pack(0)
    return encode_request(Opcode.STREAM_REQUESTS, extras=extras, value=value, opaque=opaque)


def decode_stream_requests(extras: bytes, value: bytes) -> list[StreamStart]:
    """Read the body of STREAM_REQUESTS.

    Raises:
        RemoteProtocolError: too long, torn, an unknown flag, or a term that is too high.
    """
    (flags,) = STREAM_REQUESTS_EXTRAS.unpack(extras)
    if flags & ~NEWEST_ENTRY or len(value) > STREAM_REQUESTS_MAX_BYTES:
        raise RemoteProtocolError(f"stream requests with flags {flags:#x}, {len(value)} bytes")
    whole_log = not flags & NEWEST_ENTRY
    starts = []
    at = 0
    while at < len(value):
        try:
            vbucket, versions, opaque, *asked, lease, term = REQUESTED_STREAM.unpack_from(value, at)
            at += REQUESTED_STREAM.size
            known_end = at + versions * FAILOVER_ENTRY.size
            known = [FailoverEntry(*e) for e in FAILOVER_ENTRY.iter_unpack(value[at:known_end])]
        except struct.error as error:
            raise RemoteProtocolError(f"torn stream requests: {error}") from None
        if len(known) < versions or term > TERM_MAX:
            raise RemoteProtocolError(f"a torn request for vBucket {vbucket}, or term {term}")
        options = StreamOptions(known, whole_log, lease, term)
        starts.append(StreamStart(vbucket, opaque, StreamRequest(*asked), options))
        at = known_end
    return starts


def encode_stream_answers(answers: Iterable[StreamAnswer]) -> bytes:
    """Return the value of an answer to STREAM_REQUESTS."""
    pieces: list[bytes] = []
    for opaque, status, term, value in answers:
        pieces += (ANSWERED_STREAM.pack(opaque, status, len(value), term), value)
    return b"".join(pieces)


def decode_stream_answers(extras: bytes, value: bytes) -> tuple[list[StreamAnswer], bool]:
    """Read an answer to STREAM_REQUESTS; the flag says whether there is another one.

    Raises:
        RemoteProtocolError: torn.
    """
    answers = []
    at = 0
    try:
        (flags,) = STREAM_REQUESTS_EXTRAS.unpack(extras)
        while at < len(value):
            opaque, status, size, term = ANSWERED_STREAM.unpack_from(value, at)
            at += ANSWERED_STREAM.size + size
            answers.append(StreamAnswer(opaque, status, term, value[at - size : at]))
    except struct.error as error:
        raise RemoteProtocolError(f"torn answers to stream requests: {error}") from None
    if at != len(value):
        raise RemoteProtocolError("a torn answer to a stream request")
    return answers, bool(flags & MORE_ANSWERS)


def answer_alone(answer: StreamAnswer) -> ResponseFrame:
    """Return what would have come if the stream had been asked for alone."""
    opaque, status, term, value = answer
    extras = TERM_EXTRAS.pack(term) if term else b""
    return ResponseFrame(
        Opcode.UPR_STREAM_REQUEST, status, extras=extras, value=value, opaque=opaque
    )
