"""What fills vBuckets from a producer's streams, however it came to the connection.

Two use it: `Consumer`, to which a manager adds streams and splices a producer, and `Link`, which
this node has dialled itself. Here is what both do: ask for streams, take what they bring, roll back
when the producer says so, acknowledge, change a vBucket's state when its source hands it over.

Note: a takeover asks for a new state. The vBucket takes it only after everything received is on
disk, and the source gets its answer only after the state is on disk, too: persist before promise.
The source has stopped serving by then, so what it had acknowledged must not depend on this node's
memory.

Rows D51, D52.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from uprmc.engine.memory import MemoryAccount
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.errors import (
    InvalidArguments,
    KeyNotFound,
    NotSupported,
    OutOfPlace,
    RangeExceeded,
    RemoteProtocolError,
)
from uprmc.model import FailoverLog, Item, VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame, encode_request, encode_response
from uprmc.protocol.opcodes import HEADER_BYTES, MarkerFlag, Opcode, Status
from uprmc.protocol.upr import (
    ROLLBACK_VALUE,
    SET_VBUCKET_STATE_EXTRAS,
    Marker,
    decode_marker,
    decode_term,
)
from uprmc.protocol.upr_extensions import VBUCKET_FACTS_EXTRAS
from uprmc.remote.conversation import FlowControl, Questions, Silence, acknowledgement, take_frames
from uprmc.remote.history import newest_entries
from uprmc.upr.hub import Hub
from uprmc.upr.intake import ReplicaState, ReplicaStream, deletion_of, mutation_of
from uprmc.upr.peer import Answer
from uprmc.upr.undo import Undo, UndoDesk

#: At most this many frames wait for a peer that causes ever more of them and takes none, and this
#: many requests for answers that never come.
_WAITING_FRAMES = 262_144

#: A producer may send one stream back this often in a row.
_ROLLBACKS = 10

_STATES = {
    1: VBucketState.ACTIVE,
    2: VBucketState.REPLICA,
    3: VBucketState.PENDING,
    4: VBucketState.DEAD,
}

_ACK = int(MarkerFlag.ACK)

#: Asked for all the time, so its answers are no sign that anything gets on.
_SEQNOS = int(Opcode.GET_ALL_VB_SEQNOS)

_GRANTED = frozenset({ReplicaState.READING, ReplicaState.TAKEOVER_WAIT})

Answered = Callable[[ResponseFrame], None]


#: Acknowledge when this share of the buffer was processed, or after this many seconds.
_ACK_SHARE = 0.2
_ACK_AFTER_S = 5.0


class ReceiveWindow(FlowControl):
    """Decides what is acknowledged: nothing while memory is short, which slows producers down."""

    def __init__(self, account: MemoryAccount, buffer_bytes: int) -> None:
        super().__init__(buffer_bytes, _ACK_SHARE, _ACK_AFTER_S)
        self.backoffs = 0  # how often acknowledging was put off for lack of memory
        self._account = account

    def _may_go_on(self) -> bool:
        account = self._account
        if account.used <= account.write_limit:
            return True
        self.backoffs += not self.held_back
        if not account.disk_reason:
            account.on_pressure()
        return False


class Receiver:
    """Fills vBuckets from one producer's streams."""

    answers_while_paused = False

    def __init__(self, hub: Hub, name: bytes, wake: Callable[[], None]) -> None:
        """Begin without streams; `wake` is called when something is to be sent by itself."""
        self.name = name  # the connection's
        self.streams: dict[int, ReplicaStream] = {}  # by vBucket
        self.created_at = hub.bucket.clock.now()  # Unix time
        self.items = 0  # versions taken from all streams
        self.rollbacks = 0  # how often a vBucket was sent back
        self.steps = 0  # frames of streams and answers; while it stands still nothing gets on
        self.window = ReceiveWindow(hub.bucket.account, hub.settings.consumer_buffer)
        self.undos = UndoDesk()
        self.questions: Questions[Answered] = Questions(strict=False)
        self.silence = Silence()  # of the producer
        self.hub = hub
        self._wake = wake
        self._frames: deque[bytes] = deque()
        self._max_value_bytes = hub.bucket.settings.kv.max_item_bytes

    def disconnect(self, why: str) -> None:
        """Have the connection closed."""
        raise NotImplementedError  # abstract

    def close(self) -> None:
        """See `Peer`."""
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self.undos.close()
        self.questions.clear()
        self._frames.clear()

    # --- sending --------------------------------------------------------------------------------

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append what is to be sent; return how many bytes."""
        return take_frames(self._frames, out, budget)

    @property
    def drained(self) -> bool:
        """Whether nothing is left to be sent."""
        return not self._frames

    def ask(
        self,
        opcode: int,
        answered: Answered,
        *,
        vbucket: int = 0,
        opaque: int = 0,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
    ) -> None:
        """Send a request; `answered` gets the reply. Without an `opaque` it gets a new one."""
        if len(self.questions) >= _WAITING_FRAMES:
            self.disconnect("the peer does not answer what it is asked")
            return
        opaque = self.questions.expect(opcode, answered, opaque)
        self.put(
            encode_request(
                opcode, extras=extras, key=key, value=value, vbucket=vbucket, opaque=opaque
            )
        )

    def put(self, frame: bytes) -> None:
        """Send a frame that has no answer, or is one."""
        if len(self._frames) >= _WAITING_FRAMES:
            self.disconnect("the peer does not read what it asks for")
            return
        self._frames.append(frame)
        self._wake()

    def answered(self, reply: ResponseFrame) -> None:
        """Take a response to a frame of ours; those to no question are ignored.

        Raises:
            RemoteProtocolError: it makes no sense; hang up.
        """
        answered = self.questions.answered(reply.opcode, reply.opaque)
        if answered is not None:
            self.steps += reply.opcode != _SEQNOS
            answered(reply)

    def _acknowledge(self, size: int) -> None:
        self.put(acknowledgement(size))

    # --- streams begin --------------------------------------------------------------------------

    def request(self, stream: ReplicaStream) -> None:
        """Ask for a stream, once what was rolled back is on disk."""
        if stream.state is ReplicaState.DEAD:
            return
        if self.waits_for_disk(stream.vbucket):
            self.hub.bucket.flusher.when_durable(lambda _: self.request(stream))
            return
        self.ask(
            Opcode.UPR_STREAM_REQUEST,
            partial(self._stream_answered, stream),
            extras=stream.request().encode(),
            value=self._stream_options(stream),
            vbucket=stream.vbucket.id,
            opaque=stream.opaque,
        )

    def waits_for_disk(self, vbucket: VBucket) -> bool:
        """Tell whether a crash would bring back what the source must not rely on to be gone."""
        return vbucket.rewinding

    def _stream_options(self, stream: ReplicaStream) -> bytes:
        """Return the value of a stream request."""
        return b""

    def _stream_answered(self, stream: ReplicaStream, reply: ResponseFrame) -> None:
        if stream.state is ReplicaState.DEAD:
            return
        if reply.status == Status.ROLLBACK and stream.vbucket.high_seqno:
            self._sent_back(stream, reply)
        elif reply.status == Status.SUCCESS:
            stream.accepted(self.read_log(reply.value), decode_term(reply.extras))
            self.began(stream)
        else:
            self.refused(stream, reply.status, f"the source refuses: {reply.reason}")

    def read_log(self, value: bytes) -> FailoverLog:
        """Read a failover log, the newest entries of one that is too long.

        Raises:
            RemoteProtocolError: torn or empty.
        """
        limit = self.hub.bucket.settings.engine.max_failover_entries
        return newest_entries(value, limit)

    # --- rolling back ---------------------------------------------------------------------------

    def _sent_back(self, stream: ReplicaStream, reply: ResponseFrame) -> None:
        vbucket = stream.vbucket
        if len(reply.value) != ROLLBACK_VALUE.size:
            raise RemoteProtocolError("a rollback without a seqno")
        (seqno,) = ROLLBACK_VALUE.unpack(reply.value)
        if seqno >= vbucket.high_seqno:
            raise RemoteProtocolError(
                f"vBucket {vbucket.id}: sent back to {seqno}, and holds {vbucket.high_seqno}"
            )
        self.rollbacks += 1
        stream.rollbacks += 1
        if vbucket.state == VBucketState.ACTIVE:
            self.refused(stream, Status.ROLLBACK, "an active vBucket forgets nothing")
        elif stream.rollbacks > _ROLLBACKS:
            self.refused(stream, Status.ROLLBACK, f"sent back {_ROLLBACKS} times in a row")
        elif seqno and self._may_ask_for_versions():
            self.undos.begin(stream, Undo(self, stream, seqno))
        else:
            self._sent_to_zero(stream)

    def _sent_to_zero(self, stream: ReplicaStream) -> None:
        """Learn that nothing of what the vBucket holds is the source's."""
        self.start_over(stream)

    def _may_ask_for_versions(self) -> bool:
        """Tell whether the producer will bear a GET_VERSION, if only to refuse it."""
        return True

    def end(self, stream: ReplicaStream) -> None:
        """Let go of a stream's vBucket; answers about it change nothing any more."""
        stream.close()
        self.questions.forget(stream.opaque)
        self.undos.forget(stream)

    def start_over(self, stream: ReplicaStream) -> None:
        """Forget what the vBucket holds and ask for all of it."""
        bucket = self.hub.bucket
        floor = stream.vbucket.max_deleted_rev
        stream.change_state(lambda: stream.vbucket.reset(bucket.entropy.uuid48()))
        stream.vbucket.outrank(floor)
        self.request(stream)

    # --- what subclasses do about it ------------------------------------------------------------

    def began(self, stream: ReplicaStream) -> None:
        """Learn that a stream was granted."""
        raise NotImplementedError  # abstract

    def refused(self, stream: ReplicaStream, status: int, why: str) -> None:
        """Learn that a stream cannot begin; it is to be closed."""
        raise NotImplementedError  # abstract

    def _changed_by_others(self, stream: ReplicaStream, why: Interruption) -> None:
        """Learn that the stream of a vBucket is over: something else has changed the vBucket."""
        self.end(stream)

    def _ended(self, stream: ReplicaStream, reason: int) -> None:
        """Learn that the producer has ended a stream; it is closed."""

    def _turned(self, stream: ReplicaStream) -> None:
        """Learn that a vBucket has taken the state that its source wanted, in memory."""

    def _check_marker(self, stream: ReplicaStream, marker: Marker) -> None:
        """Refuse a marker that does not go with what came before."""

    def _check_value(self, request: RequestFrame) -> None:
        """Refuse a value that is too large."""

    # --- frames of the producer -----------------------------------------------------------------

    def take_run(self, data: bytes, position: int, stream: ReplicaStream) -> int:
        """Take the mutations from `position` on that need no thought; return where they end."""
        self.silence.broken = True
        taken, end = stream.take_run(data, position, self._max_value_bytes)
        if taken:
            self.items += taken
            self.steps += 1
            if done := self.window.processed(end - position):
                self._acknowledge(done)
            if stream.kind & _ACK:
                self._answer_marker(stream, stream.vbucket.high_seqno)
        return end

    def stream_of(self, number: int, opaque: int) -> ReplicaStream | None:
        """Return the stream that frames of such an opaque belong to, if it may get any."""
        stream = self.streams.get(number)
        if stream is None or stream.opaque != opaque or stream.state is not ReplicaState.READING:
            return None
        return stream

    def _reading(self, request: RequestFrame) -> ReplicaStream:
        """Count a frame and return its stream, which must be one that is read."""
        self._count(request)
        stream = self.stream_of(request.vbucket, request.opaque)
        if stream is None:
            raise KeyNotFound(request.vbucket)
        return stream

    def _count(self, request: RequestFrame) -> None:
        self.steps += 1
        body = len(request.extras) + len(request.key) + len(request.value)
        if done := self.window.processed(HEADER_BYTES + body):
            self._acknowledge(done)

    def _stream_end(self, request: RequestFrame) -> None:
        self._count(request)
        stream = self.streams.get(request.vbucket)
        if stream is None or stream.opaque != request.opaque or stream.state not in _GRANTED:
            raise KeyNotFound(request.vbucket)
        self.end(stream)
        self._ended(stream, int.from_bytes(request.extras, "big"))

    def _marker(self, request: RequestFrame) -> None:
        stream = self._reading(request)
        try:
            marker = decode_marker(request.extras, request.value)
        except RemoteProtocolError as error:
            raise RangeExceeded(str(error)) from None
        self._check_marker(stream, marker)
        stream.announce(marker, told=bool(request.value))

    def _facts(self, request: RequestFrame) -> None:
        stream = self._reading(request)
        try:
            stream.told(*VBUCKET_FACTS_EXTRAS.unpack(request.extras))
        except InvalidArguments as error:
            raise OutOfPlace(str(error)) from None

    def _mutation(self, request: RequestFrame) -> None:
        stream = self._reading(request)
        self._check_value(request)
        self._apply(stream, mutation_of(request))

    def _deletion(self, request: RequestFrame) -> None:
        stream = self._reading(request)
        self._apply(stream, deletion_of(request, int(self.hub.bucket.clock.now())))

    def _apply(self, stream: ReplicaStream, item: Item) -> None:
        try:
            stream.take(item)
        except InvalidArguments as error:
            # Refused alone it would leave a gap without notice.
            raise OutOfPlace(str(error)) from None
        self.items += 1
        if stream.kind & _ACK:
            self._answer_marker(stream, item.seqno)

    def _answer_marker(self, stream: ReplicaStream, seqno: int) -> None:
        if seqno == stream.snapshot.end:
            self.put(encode_response(Opcode.UPR_SNAPSHOT_MARKER, opaque=stream.opaque))

    def _flush(self, request: RequestFrame) -> None:
        self._reading(request)
        raise NotSupported("flush on a stream")

    def _noop(self, request: RequestFrame) -> Answer:
        return Answer()

    # --- a vBucket is handed over ---------------------------------------------------------------

    def _set_state(self, request: RequestFrame) -> None:
        stream = self._reading(request)
        (number,) = SET_VBUCKET_STATE_EXTRAS.unpack(request.extras)
        state = _STATES.get(number)
        if state is None:
            raise InvalidArguments(number)
        stream.state = ReplicaState.TAKEOVER_WAIT
        self._when_on_disk(stream, partial(self._turn, stream, state))

    def _turn(self, stream: ReplicaStream, state: VBucketState) -> None:
        bucket, number = self.hub.bucket, stream.vbucket.id
        self.steps += 1
        stream.change_state(lambda: bucket.set_state(number, state, takeover=True))
        self._turned(stream)
        self._when_on_disk(stream, partial(self._answer_state, stream))

    def _answer_state(self, stream: ReplicaStream) -> None:
        if stream.vbucket.state != VBucketState.ACTIVE:
            stream.state = ReplicaState.READING  # else nothing may come any more
        self.put(encode_response(Opcode.UPR_SET_VBUCKET_STATE, opaque=stream.opaque))

    def _when_on_disk(self, stream: ReplicaStream, then: Callable[[], None]) -> None:
        """Call `then` when all that the vBucket holds now is on disk, unless the stream ends.

        A manager that has stopped persistence does not wait for it (`answers_while_paused`).
        """
        if self.answers_while_paused and self.hub.bucket.flusher.paused:
            then()
            return
        look = partial(self._look_on_disk, stream, stream.vbucket.high_seqno, then)
        self.hub.bucket.flusher.when_durable(look)

    def _look_on_disk(
        self, stream: ReplicaStream, seqno: int, then: Callable[[], None], ok: bool
    ) -> None:
        flusher = self.hub.bucket.flusher
        if stream.state is ReplicaState.DEAD:
            return
        if ok and flusher.durable_seqno(stream.vbucket) >= seqno:
            then()
        else:
            flusher.when_durable(partial(self._look_on_disk, stream, seqno, then))
