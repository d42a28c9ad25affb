"""The consumer's side of a connection: a manager adds streams, a producer's frames come in.

The manager that opened the connection (flags 0) adds streams; from then on the same connection
carries a producer's end, spliced in by the manager. So this side *sends* CONTROL, stream requests
and acknowledgements, and gets snapshots.

What surprises: ADD_STREAM is answered only when the producer has answered the stream request. A
producer that sends us back rolls the vBucket back to nothing, and the request is repeated.

Source: UPR reference 2.2, 5; ruling "Replication never resolves".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from uprmc.errors import (
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    NotMyVBucket,
    NotSupported,
    OutOfPlace,
    RangeExceeded,
    RemoteProtocolError,
    StreamNotFound,
    TemporaryFailure,
)
from uprmc.model import Item, Life, SnapshotRange, VBucketState
from uprmc.protocol.header import encode_request, encode_response
from uprmc.protocol.opcodes import HEADER_BYTES, DataType, MarkerFlag, Opcode, Status
from uprmc.protocol.upr import (
    ADD_STREAM_EXTRAS,
    ADD_STREAM_REPLY_EXTRAS,
    BUFFER_ACK_EXTRAS,
    DELETION_EXTRAS,
    EXPIRATION_EXTRAS,
    MUTATION_EXTRAS,
    ROLLBACK_VALUE,
    SET_VBUCKET_STATE_EXTRAS,
    SNAPSHOT_MARKER_EXTRAS,
    TIMED_DELETION_EXTRAS,
    decode_failover_log,
)
from uprmc.upr.hub import Hub
from uprmc.upr.keepalive import Due
from uprmc.upr.peer import Answer, UprRequest
from uprmc.upr.replica_stream import ReplicaState, ReplicaStream

#: Acknowledge when this share of the buffer was processed, or after so long.
_ACK_SHARE = 0.2
_ACK_AFTER_S = 5.0

#: A producer that says nothing for so many keep-alive intervals is given up.
_SILENT_INTERVALS = 2

#: So many frames wait at most for a peer that causes ever more of them and takes none.
_WAITING_FRAMES = 65_536

_STATES = {
    1: VBucketState.ACTIVE,
    2: VBucketState.REPLICA,
    3: VBucketState.PENDING,
    4: VBucketState.DEAD,
}


class Consumer:
    """See the module docstring.

    Attributes:
        name: the connection's.
        streams: by vBucket, ended ones included until they are added again.
        closed: why the connection is to be closed, ``""`` while it is not.
        created_at: Unix time.
        acked_bytes: acknowledged in all.
        backoffs: how often acknowledging was put off for lack of memory.
    """

    def __init__(self, hub: Hub, opening: UprRequest, wake: Callable[[], None]) -> None:
        """Open a consumer; an older connection of the same name is disconnected."""
        self.name = opening.key
        self.streams: dict[int, ReplicaStream] = {}
        self.closed = ""
        self.created_at = hub.bucket.clock.now()
        self.acked_bytes = self.backoffs = 0
        self._hub = hub
        self._wake = wake
        self._frames: deque[bytes] = deque()
        self._opaque = 0
        self._processed = 0
        self._acked_at = self._heard_at = 0.0
        self._heard = True
        self._greeted = False
        hub.join_consumer(self)

    def disconnect(self, why: str) -> None:
        """Ask the session to hang up."""
        self.closed = why
        self._wake()

    def close(self) -> None:
        """The connection is gone."""
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self._frames.clear()
        self._hub.leave_consumer(self)

    # --- time and sending -----------------------------------------------------------------------

    def tick(self, now: float, sent_bytes: int) -> Due:
        """Acknowledge what is due; give up a producer that has fallen silent."""
        if self._heard or not self._greeted:
            self._heard, self._heard_at = False, now
        elif now - self._heard_at > _SILENT_INTERVALS * self._hub.settings.noop_interval_s:
            return Due.HANG_UP
        if not self._processed:
            self._acked_at = now
        elif now - self._acked_at >= _ACK_AFTER_S:
            self._acknowledge()
            self._acked_at = now
        return Due.NOTHING

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append what is to be sent; return how many bytes."""
        sent = 0
        while self._frames and sent < budget:
            frame = self._frames.popleft()
            out.append(frame)
            sent += len(frame)
        return sent

    def _put(self, frame: bytes) -> None:
        if len(self._frames) >= _WAITING_FRAMES:
            self.disconnect("the peer does not read what it asks for")
            return
        self._frames.append(frame)
        self._wake()

    def _new_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0xFFFFFFFF
        return self._opaque

    def _greet(self) -> None:
        """Tell the producer how we want to be served, before the first stream."""
        self._greeted = True
        settings = self._hub.settings
        for name, value in (
            (b"connection_buffer_size", b"%d" % settings.consumer_buffer),
            (b"enable_noop", b"true"),
        ):
            opaque = self._new_opaque()
            self._put(encode_request(Opcode.UPR_CONTROL, key=name, value=value, opaque=opaque))

    # --- from the manager -----------------------------------------------------------------------

    def handle(self, request: UprRequest) -> Answer | None:
        """Carry out a frame; returns the answer, ``None`` if it has none (now).

        Raises:
            OutOfPlace: no consumer gets such a frame; hang up.
            CommandError, RemoteProtocolError: refused; the connection goes on.
        """
        handler = _HANDLERS.get(request.opcode)
        if handler is None:
            raise OutOfPlace(f"opcode {request.opcode:#04x} on a consumer's connection")
        self._heard = True
        return handler(self, request)

    def _add_stream(self, request: UprRequest) -> None:
        (flags,) = ADD_STREAM_EXTRAS.unpack(request.extras)
        bucket = self._hub.bucket
        if not bucket.traffic:
            raise TemporaryFailure("warming up")
        vbucket = bucket.vbuckets.get(request.vbucket)
        active = vbucket is not None and vbucket.state == VBucketState.ACTIVE
        if vbucket is None or (active and not self._hub.settings.add_stream_on_active):
            raise NotMyVBucket(request.vbucket)
        older = self.streams.get(request.vbucket)
        if older is not None and older.state is not ReplicaState.DEAD:
            raise KeyExists(request.vbucket)
        if not self._greeted:
            self._greet()
        opaque = self._new_opaque()
        stream = ReplicaStream(vbucket, flags, opaque, request.opaque, self._died)
        self.streams[request.vbucket] = stream
        self._ask(stream)

    def _ask(self, stream: ReplicaStream) -> None:
        self._put(
            encode_request(
                Opcode.UPR_STREAM_REQUEST,
                extras=stream.request().encode(),
                vbucket=stream.vbucket.id,
                opaque=stream.opaque,
            )
        )

    def _died(self, stream: ReplicaStream) -> None:
        """A vBucket was changed by somebody else: what still comes for it is dropped."""

    def _close_stream(self, request: UprRequest) -> Answer:
        stream = self.streams.get(request.vbucket)
        if stream is None or stream.state is ReplicaState.DEAD:
            raise StreamNotFound(request.vbucket)
        stream.close()
        return Answer()

    # --- answers of the producer ----------------------------------------------------------------

    def answered(self, opcode: int, opaque: int, status: int, value: bytes) -> None:
        """Take a response to a frame of ours; strange ones are ignored.

        Raises:
            RemoteProtocolError: it makes no sense; hang up.
        """
        self._heard = True
        if opcode != Opcode.UPR_STREAM_REQUEST:
            return
        for stream in self.streams.values():
            if stream.opaque == opaque and stream.state is ReplicaState.PENDING:
                self._stream_answered(stream, status, value)
                return

    def _stream_answered(self, stream: ReplicaStream, status: int, value: bytes) -> None:
        if status == Status.ROLLBACK and stream.vbucket.high_seqno:
            self._roll_back(stream, value)
            return
        if status == Status.SUCCESS:
            limit = self._hub.bucket.settings.engine.max_failover_entries
            stream.accepted(decode_failover_log(value)[:limit])
        else:
            stream.close()
        extras = b"" if status else ADD_STREAM_REPLY_EXTRAS.pack(stream.opaque)
        self._put(
            encode_response(Opcode.UPR_ADD_STREAM, status, extras=extras, opaque=stream.asked_by)
        )

    def _roll_back(self, stream: ReplicaStream, value: bytes) -> None:
        if len(value) != ROLLBACK_VALUE.size:
            raise RemoteProtocolError("a rollback without a seqno")
        bucket = self._hub.bucket
        stream.change_state(lambda: stream.vbucket.reset(bucket.entropy.uuid48()))
        self._ask(stream)

    # --- frames of the producer -----------------------------------------------------------------

    def _reading(self, request: UprRequest) -> ReplicaStream:
        self._count(request)
        stream = self.streams.get(request.vbucket)
        if stream is None or stream.state is ReplicaState.DEAD or stream.opaque != request.opaque:
            raise KeyNotFound(request.vbucket)
        return stream

    def _count(self, request: UprRequest) -> None:
        body = len(request.extras) + len(request.key) + len(request.value)
        self._processed += HEADER_BYTES + body
        if self._processed >= _ACK_SHARE * self._hub.settings.consumer_buffer:
            self._acknowledge()

    def _acknowledge(self) -> None:
        ledger = self._hub.bucket.ledger
        if ledger.used > ledger.write_limit:
            self.backoffs += 1  # what is not acknowledged slows the producer down
            return
        size, self._processed = self._processed, 0
        self.acked_bytes += size
        self._put(encode_request(Opcode.UPR_BUFFER_ACK, extras=BUFFER_ACK_EXTRAS.pack(size)))

    def _stream_end(self, request: UprRequest) -> None:
        self._reading(request).close()

    def _marker(self, request: UprRequest) -> None:
        stream = self._reading(request)
        start, end, kind = SNAPSHOT_MARKER_EXTRAS.unpack(request.extras)
        if start > end:
            raise RangeExceeded(request.vbucket)
        stream.announced(SnapshotRange(start, end), kind)

    def _mutation(self, request: UprRequest) -> None:
        stream = self._reading(request)
        seqno, rev, flags, expiry, _, nmeta, _ = MUTATION_EXTRAS.unpack(request.extras)
        if nmeta > len(request.value):
            raise InvalidArguments("the extended metadata is longer than the value")
        value = request.value[: len(request.value) - nmeta] if nmeta else request.value
        datatype = request.datatype & DataType.JSON
        item = Item(request.key, value, flags, expiry, request.cas, seqno, rev, datatype)
        self._take(stream, item)

    def _deletion(self, request: UprRequest) -> None:
        stream = self._reading(request)
        deleted_at = int(self._hub.bucket.clock.now())
        if len(request.extras) == DELETION_EXTRAS.size:
            seqno, rev, _ = DELETION_EXTRAS.unpack(request.extras)
        elif len(request.extras) == TIMED_DELETION_EXTRAS.size:
            seqno, rev, deleted_at, _ = TIMED_DELETION_EXTRAS.unpack(request.extras)
        else:
            seqno, rev, deleted_at = EXPIRATION_EXTRAS.unpack(request.extras)
        expired = request.opcode == Opcode.UPR_EXPIRATION
        life = Life.EXPIRED if expired else Life.DELETED
        item = Item(request.key, None, 0, deleted_at, request.cas, seqno, rev, 0, life)
        self._take(stream, item)

    def _take(self, stream: ReplicaStream, item: Item) -> None:
        try:
            stream.take(item)
        except InvalidArguments as error:
            # Refused alone it would leave a gap that nobody notices.
            raise OutOfPlace(str(error)) from None
        if item.seqno == stream.snapshot.end and stream.kind & MarkerFlag.ACK:
            self._put(encode_response(Opcode.UPR_SNAPSHOT_MARKER, opaque=stream.opaque))

    def _flush(self, request: UprRequest) -> None:
        self._reading(request)
        raise NotSupported("flush on a stream")

    def _set_state(self, request: UprRequest) -> Answer:
        stream = self._reading(request)
        (number,) = SET_VBUCKET_STATE_EXTRAS.unpack(request.extras)
        state = _STATES.get(number)
        if state is None:
            raise InvalidArguments(number)
        bucket = self._hub.bucket
        stream.change_state(lambda: bucket.set_state(request.vbucket, state, takeover=True))
        return Answer()

    def _noop(self, request: UprRequest) -> Answer:
        return Answer()


_HANDLERS: dict[int, Callable[[Consumer, UprRequest], Answer | None]] = {
    Opcode.UPR_ADD_STREAM: Consumer._add_stream,
    Opcode.UPR_CLOSE_STREAM: Consumer._close_stream,
    Opcode.UPR_STREAM_END: Consumer._stream_end,
    Opcode.UPR_SNAPSHOT_MARKER: Consumer._marker,
    Opcode.UPR_MUTATION: Consumer._mutation,
    Opcode.UPR_DELETION: Consumer._deletion,
    Opcode.UPR_EXPIRATION: Consumer._deletion,
    Opcode.UPR_FLUSH: Consumer._flush,
    Opcode.UPR_SET_VBUCKET_STATE: Consumer._set_state,
    Opcode.UPR_NOOP: Consumer._noop,
}
