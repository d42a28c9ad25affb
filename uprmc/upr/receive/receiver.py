"""What fills vBuckets from a producer's streams, however it came to the connection.

Two use it: `Consumer`, to which a manager adds streams and splices a producer, and `Link`, which
this node has dialled itself. Here is what both do: ask for streams, take what they bring, roll back
when the producer says so, acknowledge, change a vBucket's state when its source hands it over.

Note: a takeover asks for a new state. The vBucket takes it only after everything received is on
disk, and the source gets its answer only after the state is on disk, too: persist before promise.
The source has stopped serving by then, so what it had acknowledged must not depend on this node's
memory.

Source: UPR reference 4.4, 5; ruling "Replication never resolves"; rows D51, D52.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

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
from uprmc.protocol.header import ResponseFrame, encode_request, encode_response
from uprmc.protocol.opcodes import HEADER_BYTES, MarkerFlag, Opcode, Status
from uprmc.protocol.upr import (
    ROLLBACK_VALUE,
    SET_VBUCKET_STATE_EXTRAS,
    Marker,
    decode_marker,
    decode_term,
)
from uprmc.protocol.upr_extensions import VBUCKET_FACTS_EXTRAS
from uprmc.remote.conversation import Questions, Silence, acknowledgement, take_frames
from uprmc.remote.history import newest_entries
from uprmc.upr.hub import Hub
from uprmc.upr.peer import Answer, UprRequest
from uprmc.upr.receive.intake import deletion_of, mutation_of, read_run
from uprmc.upr.receive.replica_stream import ReplicaState, ReplicaStream
from uprmc.upr.receive.undo import Undo, UndoDesk
from uprmc.upr.receive.window import Window

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


def _ignore() -> None:
    """Stand in for a session that is over."""


class Receiver:
    """Fills vBuckets from one producer's streams.

    Attributes:
        name: the connection's.
        streams: by vBucket.
        closed: why the connection is to be closed, ``""`` while it is not.
        created_at: Unix time.
        items: versions taken from all streams.
        rollbacks: how often a vBucket was sent back.
        window: flow control.
        questions: what it was asked.
        silence: of the producer.
        steps: frames of streams and answers so far; while it stands still nothing gets on.
    """

    answers_while_paused = False

    def __init__(
        self,
        hub: Hub,
        name: bytes,
        wake: Callable[[], None],
        hang_up: Callable[[], None] | None = None,
    ) -> None:
        """Begin without streams; `hang_up` is called when `closed` is set, by default `wake`."""
        self.name = name
        self.streams: dict[int, ReplicaStream] = {}
        self.closed = ""
        self.created_at = hub.bucket.clock.now()
        self.items = self.rollbacks = self.steps = 0
        self.window = Window(hub.bucket.account, hub.settings.consumer_buffer)
        self.undos = UndoDesk()
        self.questions: Questions[Answered] = Questions(strict=False)
        self.silence = Silence()
        self.hub = hub
        self._wake = wake
        self._hang_up = hang_up or wake
        self._frames: deque[bytes] = deque()
        self._max_value_bytes = hub.bucket.settings.kv.max_item_bytes

    @property
    def acked_bytes(self) -> int:
        """Acknowledged in all."""
        return self.window.acked_bytes

    @property
    def backoffs(self) -> int:
        """How often acknowledging was put off for lack of memory."""
        return self.window.backoffs

    def disconnect(self, why: str) -> None:
        """Ask for the connection to be closed."""
        self.closed = self.closed or why
        self._hang_up()

    def close(self) -> None:
        """See `Peer`."""
        self._hang_up = _ignore  # the session may know us
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self.undos.close()
        self.questions.clear()
        self._frames.clear()

    def release_views(self) -> None:
        """See `Peer`: it holds none."""

    def ask_version(self, number: int, key: bytes, done: Callable[[Item | None], None]) -> bool:
        """See `Peer`: who dialled asks by himself."""
        return False

    def fills(self, number: int) -> bool:
        """See `Peer`."""
        stream = self.streams.get(number)
        return stream is not None and stream.state is not ReplicaState.DEAD

    # --- sending --------------------------------------------------------------------------------

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append what is to be sent; return how many bytes."""
        return take_frames(self._frames, out, budget)

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
        """Take a response to a frame of ours; those that nobody waits for are ignored.

        Raises:
            RemoteProtocolError: it makes no sense; hang up.
        """
        answered = self.questions.answered(reply.opcode, reply.opaque)
        if answered is not None:
            self.steps += reply.opcode != _SEQNOS
            answered(reply)

    def _acknowledge(self, size: int) -> None:
        if size:
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

    def _check_value(self, request: UprRequest) -> None:
        """Refuse a value that is too large."""

    # --- frames of the producer -----------------------------------------------------------------

    def take_run(self, data: bytes, position: int, stream: ReplicaStream) -> int:
        """Take the mutations from `position` on that need no thought; return where they end."""
        self.silence.broken = True
        records, end, highest_cas = read_run(data, position, stream, self._max_value_bytes)
        if records:
            stream.take_all(records, highest_cas)
            self.items += len(records)
            self.steps += 1
            self._acknowledge(self.window.processed(end - position))
            self._answer_marker(stream, stream.vbucket.high_seqno)
        return end

    def stream_of(self, number: int, opaque: int) -> ReplicaStream | None:
        """Return the stream that frames of such an opaque belong to, if it may get any."""
        stream = self.streams.get(number)
        if stream is None or stream.opaque != opaque or stream.state is not ReplicaState.READING:
            return None
        return stream

    def _reading(self, request: UprRequest) -> ReplicaStream:
        """Count a frame and return its stream, which must be one that is read."""
        self._count(request)
        stream = self.stream_of(request.vbucket, request.opaque)
        if stream is None:
            raise KeyNotFound(request.vbucket)
        return stream

    def _count(self, request: UprRequest) -> None:
        self.steps += 1
        body = len(request.extras) + len(request.key) + len(request.value)
        self._acknowledge(self.window.processed(HEADER_BYTES + body))

    def _stream_end(self, request: UprRequest) -> None:
        self._count(request)
        stream = self.streams.get(request.vbucket)
        if stream is None or stream.opaque != request.opaque or stream.state not in _GRANTED:
            raise KeyNotFound(request.vbucket)
        self.end(stream)
        self._ended(stream, int.from_bytes(request.extras, "big"))

    def _marker(self, request: UprRequest) -> None:
        stream = self._reading(request)
        try:
            marker = decode_marker(request.extras, request.value)
        except RemoteProtocolError as error:
            raise RangeExceeded(str(error)) from None
        self._check_marker(stream, marker)
        purged = stream.purged(marker, told=bool(request.value))
        if purged > marker.end_seqno:
            raise RangeExceeded(f"a snapshot to {marker.end_seqno}, purged to {purged}")
        stream.announced(marker, purged)

    def _facts(self, request: UprRequest) -> None:
        stream = self._reading(request)
        try:
            stream.told(*VBUCKET_FACTS_EXTRAS.unpack(request.extras))
        except InvalidArguments as error:
            raise OutOfPlace(str(error)) from None

    def _mutation(self, request: UprRequest) -> None:
        stream = self._reading(request)
        self._check_value(request)
        self._apply(stream, mutation_of(request))

    def _deletion(self, request: UprRequest) -> None:
        stream = self._reading(request)
        self._apply(stream, deletion_of(request, int(self.hub.bucket.clock.now())))

    def _apply(self, stream: ReplicaStream, item: Item) -> None:
        try:
            stream.take(item)
        except InvalidArguments as error:
            # Refused alone it would leave a gap that nobody notices.
            raise OutOfPlace(str(error)) from None
        self.items += 1
        self._answer_marker(stream, item.seqno)

    def _answer_marker(self, stream: ReplicaStream, seqno: int) -> None:
        if seqno == stream.snapshot.end and stream.kind & _ACK:
            self.put(encode_response(Opcode.UPR_SNAPSHOT_MARKER, opaque=stream.opaque))

    def _flush(self, request: UprRequest) -> None:
        self._reading(request)
        raise NotSupported("flush on a stream")

    def _noop(self, request: UprRequest) -> Answer:
        return Answer()

    # --- a vBucket is handed over ---------------------------------------------------------------

    def _set_state(self, request: UprRequest) -> None:
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
