"""The consumer's side of a connection: a manager adds streams, a producer's frames come in.

The manager that opened the connection (flags 0) adds streams; from then on the same connection
carries a producer's end, spliced in by the manager. So this side *sends* CONTROL, stream requests
and acknowledgements, and gets snapshots.

Note: ADD_STREAM is answered only when the producer has answered the stream request. If the producer
asks for a rollback, the consumer rolls back first, and then requests the stream again.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.errors import KeyExists, NotMyVBucket, OutOfPlace, StreamNotFound, TemporaryFailure
from uprmc.model import Item, VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame, encode_response
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr import ADD_STREAM_EXTRAS, ADD_STREAM_REPLY_EXTRAS
from uprmc.remote import features
from uprmc.upr.hub import Hub
from uprmc.upr.intake import ReplicaState, ReplicaStream
from uprmc.upr.peer import Answer, Due
from uprmc.upr.receiver import Receiver

#: A producer that says nothing for this many keep-alive intervals is given up.
_SILENT_INTERVALS = 2


class Consumer(Receiver):
    """The consumer's side of one connection.

    Ended streams stay in `streams` until they are added again.
    """

    answers_while_paused = True

    def __init__(
        self,
        hub: Hub,
        name: bytes,
        wake: Callable[[], None],
        hang_up: Callable[[str], None],
    ) -> None:
        """Open a consumer; an older connection of the same name is disconnected.

        `hang_up` is called with the reason when the connection is to be closed.
        """
        super().__init__(hub, name, wake)
        self._hang_up = hang_up
        self._greeted = False
        hub.join_consumer(self)

    def disconnect(self, why: str) -> None:
        """See `Peer`."""
        self._hang_up(why)
        self.close()

    def close(self) -> None:
        """See `Peer`."""
        self._hang_up = _ignore  # the session knows us
        super().close()
        self.hub.leave_consumer(self)

    def release_views(self) -> None:
        """See `Peer`: it holds none."""

    def ask_version(self, number: int, key: bytes, done: Callable[[Item | None], None]) -> bool:
        """See `Peer`: who dialled asks by himself."""
        return False

    def fills(self, number: int) -> bool:
        """See `Peer`."""
        stream = self.streams.get(number)
        return stream is not None and stream.state is not ReplicaState.DEAD

    def tick(self, now: float, sent_bytes: int) -> Due:
        """Acknowledge what is due; give up a producer that has fallen silent."""
        if not self._greeted:
            self.silence.heard(now)
        if self.silence.lasts(now, _SILENT_INTERVALS * self.hub.settings.noop_interval_s):
            return Due.HANG_UP
        if done := self.window.tick(now):
            self._acknowledge(done)
        return Due.NOTHING

    def _greet(self) -> None:
        """Tell the producer how we want to be served, before the first stream."""
        self._greeted = True
        asked = features.SPLICED_REPLICA
        for each in asked.controls(buffer_bytes=self.hub.settings.consumer_buffer):
            opaque = 0 if each.key in asked.unnumbered else self.questions.new_opaque()
            self.put(each.encode(opaque))

    # --- from the manager -----------------------------------------------------------------------

    def handle(self, request: RequestFrame) -> Answer | None:
        """Carry out a frame; returns the answer, ``None`` if it has none (now).

        Raises:
            OutOfPlace: no consumer gets such a frame; hang up.
            CommandError, RemoteProtocolError: refused; the connection goes on.
        """
        handler = _HANDLERS.get(request.opcode)
        if handler is None:
            raise OutOfPlace(f"opcode {request.opcode:#04x} on a consumer's connection")
        self.silence.broken = True
        return handler(self, request)

    def answered(self, reply: ResponseFrame) -> None:
        """See `Receiver.answered`."""
        self.silence.broken = True
        super().answered(reply)

    def _add_stream(self, request: RequestFrame) -> None:
        (flags,) = ADD_STREAM_EXTRAS.unpack(request.extras)
        bucket = self.hub.bucket
        if not bucket.traffic:
            raise TemporaryFailure("warming up")
        vbucket = bucket.vbuckets.get(request.vbucket)
        active = vbucket is not None and vbucket.state == VBucketState.ACTIVE
        if vbucket is None or (active and not self.hub.settings.add_stream_on_active):
            raise NotMyVBucket(request.vbucket)
        older = self.streams.get(request.vbucket)
        if older is not None and older.state is not ReplicaState.DEAD:
            raise KeyExists(request.vbucket)
        if not self._greeted:
            self._greet()
        opaque = self.questions.new_opaque()
        stream = ReplicaStream(vbucket, flags, opaque, request.opaque, self._changed_by_others)
        self.streams[request.vbucket] = stream
        self.request(stream)

    def _close_stream(self, request: RequestFrame) -> Answer:
        stream = self.streams.get(request.vbucket)
        if stream is None or stream.state is ReplicaState.DEAD:
            raise StreamNotFound(request.vbucket)
        self.end(stream)
        return Answer()

    # --- what became of it ----------------------------------------------------------------------

    def began(self, stream: ReplicaStream) -> None:
        """Answer the manager."""
        self._answer_manager(stream, Status.SUCCESS)

    def refused(self, stream: ReplicaStream, status: int, why: str) -> None:
        """Pass the producer's refusal on."""
        self.end(stream)
        self._answer_manager(stream, status)

    def _answer_manager(self, stream: ReplicaStream, status: int) -> None:
        extras = b"" if status else ADD_STREAM_REPLY_EXTRAS.pack(stream.opaque)
        self.put(
            encode_response(Opcode.UPR_ADD_STREAM, status, extras=extras, opaque=stream.asked_by)
        )


def _ignore(_: str) -> None:
    """Stand in for a session that is over."""


_HANDLERS: dict[int, Callable[[Consumer, RequestFrame], Answer | None]] = {
    Opcode.UPR_ADD_STREAM: Consumer._add_stream,
    Opcode.UPR_CLOSE_STREAM: Consumer._close_stream,
    Opcode.UPR_STREAM_END: Consumer._stream_end,
    Opcode.UPR_SNAPSHOT_MARKER: Consumer._marker,
    Opcode.UPR_MUTATION: Consumer._mutation,
    Opcode.UPR_DELETION: Consumer._deletion,
    Opcode.UPR_EXPIRATION: Consumer._deletion,
    Opcode.UPR_FLUSH: Consumer._flush,
    Opcode.VBUCKET_FACTS: Consumer._facts,
    Opcode.UPR_SET_VBUCKET_STATE: Consumer._set_state,
    Opcode.UPR_NOOP: Consumer._noop,
}
