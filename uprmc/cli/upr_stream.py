"""A consumer's side of UPR over a blocking socket: streams of many vBuckets on one connection.

`UprConnection` opens a connection, asks for streams, and turns frames into events. It answers
keep-alives and acknowledges bytes by itself; what to do about a rollback or the end of a stream is
its user's affair.

Source: UPR reference 2, 3.4, 4.6, 4.7.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from uprmc.cli.node_connection import PIPELINE_MAX, NodeConnection, NodeError, reason
from uprmc.errors import RemoteProtocolError
from uprmc.model import SEQNO_MAX, FailoverEntry, VBucketState
from uprmc.protocol.binary import encode_hello
from uprmc.protocol.header import Frame, RequestFrame, ResponseFrame
from uprmc.protocol.management import VBUCKET_SEQNO, VBUCKET_SEQNOS_EXTRAS
from uprmc.protocol.opcodes import (
    HEADER_BYTES,
    EndReason,
    Feature,
    Opcode,
    OpenFlag,
    Status,
    StreamFlag,
)
from uprmc.protocol.upr import (
    BUFFER_ACK_EXTRAS,
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    OPEN_EXTRAS,
    ROLLBACK_VALUE,
    SNAPSHOT_MARKER_EXTRAS,
    STREAM_END_EXTRAS,
    TIMED_DELETION_EXTRAS,
    StreamRequest,
    decode_failover_log,
)
from uprmc.protocol.upr_extensions import SNAPSHOT_END_EXTRAS

#: The node may be so far ahead of our acknowledgements; they go out at a fifth of it.
BUFFER_BYTES = 4 * 1024 * 1024
_ACK_BYTES = BUFFER_BYTES // 5

#: The node sends a keep-alive after so long without a frame; we give it up after twice and a half.
NOOP_INTERVAL_S = 120


class Change(NamedTuple):
    """A document was set, deleted, or has expired.

    What the node did not send is ``None``: a value that was not asked for, and whatever only sets
    or only deletions have. Times are Unix seconds; 0 = never, or not known.
    """

    op: str
    vbucket: int
    seqno: int
    vb_uuid: int
    key: bytes
    value: bytes | None
    rev: int
    cas: int
    flags: int | None = None
    expiry: int | None = None
    datatype: int | None = None
    deleted_at: int | None = None


class SnapshotBegin(NamedTuple):
    """Changes from `start` to `end` follow; only together are they consistent."""

    vbucket: int
    start: int
    end: int
    kind: int


class SnapshotEnd(NamedTuple):
    """All changes of the snapshot were sent, `items` in number."""

    vbucket: int
    end: int
    items: int


class Rollback(NamedTuple):
    """The stream did not begin: the node shares our history only up to `seqno`."""

    vbucket: int
    asked: StreamRequest
    seqno: int


class Refused(NamedTuple):
    """The stream did not begin, for another reason."""

    vbucket: int
    status: int
    reason: str


class Ended(NamedTuple):
    """The stream has ended after `seqno`; `reason` is an `EndReason` number."""

    vbucket: int
    seqno: int
    reason: int


Event = Change | SnapshotBegin | SnapshotEnd | Rollback | Refused | Ended


class Start(NamedTuple):
    """Where a stream is to begin: after `seqno` of the history `vb_uuid`, 0 = whichever."""

    vbucket: int
    seqno: int
    vb_uuid: int


class _Stream:
    """One stream that was asked for."""

    __slots__ = ("asked", "log", "seqno")

    def __init__(self, asked: StreamRequest) -> None:
        self.asked = asked
        self.log: tuple[FailoverEntry, ...] = ()
        self.seqno = asked.start_seqno

    def history_of(self, seqno: int) -> int:
        """Return the vb_uuid of the branch in which a seqno was given."""
        return next((entry.uuid for entry in self.log if entry.seqno < seqno), 0)


class UprConnection(NodeConnection):
    """See the module docstring.

    Attributes:
        silence_max_s: a node that says nothing for so long has vanished; ``None`` = it may.
        tells_snapshot_ends: whether the node knows how.

    Raises:
        ConfigError, NodeError: as `NodeConnection`; and the node refuses to open a producer.
    """

    def __init__(
        self,
        place: str,
        *,
        values: bool = True,
        snapshot_ends: bool = False,
        noop_interval_s: float = NOOP_INTERVAL_S,
    ) -> None:
        super().__init__(place)
        self._values = values
        self._streams: dict[int, _Stream] = {}
        self._to_ask: deque[int] = deque()
        self._unanswered = 0
        self._unacked_bytes = 0
        self.silence_max_s: float | None = None
        self.tells_snapshot_ends = False
        try:
            self._open()
            self._set("connection_buffer_size", BUFFER_BYTES)
            self._keep_alive(noop_interval_s)
            self._try("enable_expiry_opcode", "true")
            self.tells_snapshot_ends = snapshot_ends and self._try("uprmc_snapshot_end", "true")
        except BaseException:
            self._socket.close()
            raise

    # --- opening --------------------------------------------------------------------------------

    def _open(self) -> None:
        hello = encode_hello([Feature.JSON, Feature.XERROR])
        self.ask(RequestFrame(Opcode.HELLO, key=b"uprmc tail", value=hello))  # old nodes refuse it
        flags = OpenFlag.PRODUCER | OpenFlag.DELETE_TIMES
        if not self._values:
            flags |= OpenFlag.NO_VALUE
        name = f"uprmc-tail:{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        opening = RequestFrame(
            Opcode.UPR_OPEN, key=name.encode(), extras=OPEN_EXTRAS.pack(0, flags)
        )
        self._granted(self.ask(opening), "opening a stream connection")

    def _keep_alive(self, interval_s: float) -> None:
        """Notice a node that has vanished; one that takes no interval may just be quiet."""
        self._set("enable_noop", "true")
        known = self._try("set_noop_interval", f"{interval_s:g}")
        self.silence_max_s = interval_s * 2.5 if known else None
        self._socket.settimeout(self.silence_max_s)

    def _set(self, name: str, value: object) -> None:
        self._granted(self._control(name, value), f"setting {name}")

    def _try(self, name: str, value: object) -> bool:
        return self._control(name, value).status == Status.SUCCESS

    def _control(self, name: str, value: object) -> ResponseFrame:
        frame = RequestFrame(Opcode.UPR_CONTROL, key=name.encode(), value=str(value).encode())
        return self.ask(frame)

    def _granted(self, answer: ResponseFrame, doing: str) -> ResponseFrame:
        if answer.status:
            raise NodeError(f"{doing} at {self.place} was refused: {reason(answer)}")
        return answer

    # --- where to begin -------------------------------------------------------------------------

    def high_seqnos(self, state: VBucketState | None) -> dict[int, int]:
        """Return how far each vBucket is that is in this state; ``None`` = in any but dead."""
        extras = VBUCKET_SEQNOS_EXTRAS.pack(state or 0)
        answer = self.ask(RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras))
        self._granted(answer, "asking for seqnos")
        try:
            return dict(VBUCKET_SEQNO.iter_unpack(answer.value))
        except struct.error:
            raise self._nonsense("a torn list of seqnos") from None

    def newest_histories(self, vbuckets: Iterable[int]) -> dict[int, int]:
        """Return the newest vb_uuid of each vBucket."""
        numbers = list(vbuckets)
        asked = (RequestFrame(Opcode.UPR_GET_FAILOVER_LOG, vbucket=number) for number in numbers)
        found = {}
        for number, answer in zip(numbers, self.ask_all(asked), strict=True):
            self._granted(answer, f"asking for the failover log of vBucket {number}")
            found[number] = self._log(answer)[0].uuid
        return found

    def _log(self, answer: ResponseFrame) -> tuple[FailoverEntry, ...]:
        try:
            return decode_failover_log(answer.value)
        except RemoteProtocolError as error:
            raise self._nonsense(str(error)) from None

    def _nonsense(self, what: str) -> NodeError:
        return NodeError(f"the node at {self.place} sent nonsense: {what}")

    # --- streams --------------------------------------------------------------------------------

    @property
    def open_streams(self) -> int:
        """How many streams were asked for and have not ended."""
        return len(self._streams)

    def stream(self, start: Start, *, until_now: bool = False) -> None:
        """Ask for a stream; `read` tells what becomes of it."""
        vbucket, seqno, uuid = start
        flags = StreamFlag.LATEST if until_now else 0
        self._streams[vbucket] = _Stream(StreamRequest(flags, seqno, SEQNO_MAX, uuid, seqno, seqno))
        self._to_ask.append(vbucket)

    def fileno(self) -> int:
        """Return the socket's file descriptor, for waiting."""
        return self._socket.fileno()

    def read(self, wait: Callable[[], None]) -> list[Event]:
        """Return what the frames say that have come, perhaps nothing.

        Args:
            wait: called before; returns when the socket has something to read. By calling this
                again the user says that it has dealt with the events of the last call.
        """
        self._send_what_is_due()
        wait()
        events: list[Event] = []
        for frame in self._read():
            try:
                event = self._event(frame)
            except struct.error:
                raise self._nonsense(f"opcode {frame.opcode:#04x} of a strange length") from None
            if event is not None:
                events.append(event)
        return events

    def _send_what_is_due(self) -> None:
        if self._unacked_bytes >= _ACK_BYTES:
            extras = BUFFER_ACK_EXTRAS.pack(self._unacked_bytes)
            self._send(RequestFrame(Opcode.UPR_BUFFER_ACK, extras=extras).encode())
            self._unacked_bytes = 0
        requests = []
        while self._to_ask and self._unanswered < PIPELINE_MAX:
            requests.append(self._request(self._to_ask.popleft()))
            self._unanswered += 1
        if requests:
            self._send(b"".join(requests))

    def _request(self, vbucket: int) -> bytes:
        """Return a stream request; the opaque tells its answer and frames from others."""
        return RequestFrame(
            Opcode.UPR_STREAM_REQUEST,
            extras=self._streams[vbucket].asked.encode(),
            vbucket=vbucket,
            opaque=vbucket,
        ).encode()

    # --- frames ---------------------------------------------------------------------------------

    def _event(self, frame: Frame) -> Event | None:
        if isinstance(frame, ResponseFrame):
            return self._answered(frame)
        if frame.opcode == Opcode.UPR_NOOP:
            self._send(ResponseFrame(Opcode.UPR_NOOP, opaque=frame.opaque).encode())
            return None
        body = len(frame.extras) + len(frame.key) + len(frame.value)
        self._unacked_bytes += HEADER_BYTES + body
        stream = self._streams.get(frame.vbucket)
        return self._told(stream, frame) if stream is not None else None

    def _answered(self, answer: ResponseFrame) -> Event | None:
        if answer.opcode != Opcode.UPR_STREAM_REQUEST:
            return None
        self._unanswered -= 1
        vbucket = answer.opaque
        stream = self._streams.get(vbucket)
        if stream is None:
            raise self._nonsense("an answer to a stream request that nobody made")
        if not answer.status:
            stream.log = self._log(answer)
            return None
        del self._streams[vbucket]
        if answer.status == Status.ROLLBACK:
            return Rollback(vbucket, stream.asked, *ROLLBACK_VALUE.unpack(answer.value))
        return Refused(vbucket, answer.status, reason(answer))

    def _told(self, stream: _Stream, frame: RequestFrame) -> Event | None:
        opcode, vbucket, extras = frame.opcode, frame.vbucket, frame.extras
        if opcode in _READERS:
            change = _READERS[opcode](stream, frame)
            if change.seqno <= stream.seqno:
                raise self._nonsense(f"vBucket {vbucket}: seqnos that do not rise")
            stream.seqno = change.seqno
            return change if self._values else change._replace(value=None)
        if opcode == Opcode.UPR_SNAPSHOT_MARKER:
            return SnapshotBegin(vbucket, *SNAPSHOT_MARKER_EXTRAS.unpack(extras))
        if opcode == Opcode.SNAPSHOT_END:
            return SnapshotEnd(vbucket, *SNAPSHOT_END_EXTRAS.unpack(extras))
        if opcode == Opcode.UPR_STREAM_END:
            del self._streams[vbucket]
            return Ended(vbucket, stream.seqno, *STREAM_END_EXTRAS.unpack(extras))
        return None


def _mutation(stream: _Stream, frame: RequestFrame) -> Change:
    seqno, rev, flags, expiry, _, nmeta, _ = MUTATION_EXTRAS.unpack(frame.extras)
    value = frame.value[: len(frame.value) - nmeta]
    uuid = stream.history_of(seqno)
    return Change(
        "set",
        frame.vbucket,
        seqno,
        uuid,
        frame.key,
        value,
        rev,
        frame.cas,
        flags=flags,
        expiry=expiry,
        datatype=frame.datatype,
    )


def _deletion(stream: _Stream, frame: RequestFrame) -> Change:
    deleted_at = 0
    if len(frame.extras) == TIMED_DELETION_EXTRAS.size:
        seqno, rev, deleted_at, _ = TIMED_DELETION_EXTRAS.unpack(frame.extras)
    elif len(frame.extras) == EXPIRATION_EXTRAS.size:
        seqno, rev, deleted_at = EXPIRATION_EXTRAS.unpack(frame.extras)
    else:
        seqno, rev, _ = DELETION_EXTRAS.unpack(frame.extras)
    return Change(
        "expire" if frame.opcode == Opcode.UPR_EXPIRATION else "delete",
        frame.vbucket,
        seqno,
        stream.history_of(seqno),
        frame.key,
        None,
        rev,
        frame.cas,
        deleted_at=deleted_at,
    )


_READERS: dict[int, Callable[[_Stream, RequestFrame], Change]] = {
    Opcode.UPR_MUTATION: _mutation,
    Opcode.UPR_DELETION: _deletion,
    Opcode.UPR_EXPIRATION: _deletion,
}

#: Why a stream may end, in words for people.
END_REASONS: dict[int, str] = {
    EndReason.OK: "it is complete",
    EndReason.CLOSED: "it was closed",
    EndReason.STATE_CHANGED: "the vBucket's state changed",
    EndReason.DISCONNECTED: "the connection was closed",
    EndReason.TOO_SLOW: "it was read too slowly",
    EndReason.BACKFILL_FAILED: "the node could not read its disk",
    EndReason.ROLLBACK: "the vBucket is rolling back",
    EndReason.FILTER_EMPTY: "nothing is left to send",
    EndReason.LOST_PRIVILEGES: "the node does not allow it any more",
}
