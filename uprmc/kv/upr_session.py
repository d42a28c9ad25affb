"""A binary conversation after a UPR OPEN: commands as before, and streams besides the replies.

Job: carry UPR frames between the peer and our `Producer` or `Consumer`; everything else is done by
`BinarySession`. Replies are sent before frames of streams, so the answer to a stream request
precedes the stream's first frame.

Note: a stream begins slowly. Until a connection has been sent `GENTLE_BYTES` since its last
request, it gets `GENTLE_PULL_BYTES` at a time, and after each such portion a node waits for
`GENTLE_PAUSE_S`. So the peer's reaction to the first frames ("close that stream") arrives while
there is still something to stop, although the kernel would accept the complete stream at once. A
peer that is served less than a portion at a time, as with live changes, is never kept waiting.

**Many at once**: each stream of STREAM_REQUESTS is started, and each report of HWT_REPORTS is
taken, as if it had come alone. One request may name a thousand streams, and each takes some 20 us.
So there is an answer for every `ANSWERED_AT_ONCE` of them, and others have their turn in between.
Reports that only raise watermarks, or make rows that nothing is against, take a few microseconds
each; many of them are taken in one turn, and fewer of the others.

See `docs/extensions.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from uprmc.engine.watermarks.table import Outpaced
from uprmc.errors import (
    AccessDenied,
    OutOfPlace,
    RemoteProtocolError,
    RollbackRequired,
    StreamNotFound,
)
from uprmc.kv.binary import BinarySession
from uprmc.kv.refusals import REFUSALS, refusal_of
from uprmc.kv.roles import Door, require
from uprmc.login.users import Role
from uprmc.protocol.control import MANAGE, WATERMARKS
from uprmc.protocol.header import (
    RequestFrame,
    ResponseFrame,
    encode_request,
    encode_response,
    unpack_request,
)
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_RESPONSE, Opcode, OpenFlag, Status
from uprmc.protocol.upr import ROLLBACK_VALUE, check_deletion, decode_term
from uprmc.protocol.upr_many import (
    MORE_ANSWERS,
    STREAM_REQUESTS_EXTRAS,
    StreamAnswer,
    StreamStart,
    encode_stream_answers,
)
from uprmc.protocol.watermarks import (
    HWT_PURGED_EXTRAS,
    ID_MAX_BYTES,
    OP_REMOVE,
    ReportExtras,
    decode_report,
)
from uprmc.protocol.watermarks_many import (
    REPORTS_EXTRAS,
    REPORTS_REPLY_EXTRAS,
    ROWS_FOLLOW,
    OneReport,
    ReportsHead,
    UnacceptedReport,
    encode_refused,
)
from uprmc.upr.consumer import Consumer
from uprmc.upr.peer import Answer, Due, Peer
from uprmc.upr.producer import Producer

# --- many streams at once -----------------------------------------------------------------------


#: At most this many streams are started in one turn.
ANSWERED_AT_ONCE = 64


def answers_to_starts(producer: Producer, request: RequestFrame) -> Iterator[bytes]:
    """Start streams; yield answers, and an empty piece where others are to have their turn.

    Raises:
        CommandError, RemoteProtocolError: refused as a whole.
    """
    return _answers_of(producer, request.opaque, producer.starts(request))


def _answers_of(producer: Producer, opaque: int, starts: Sequence[StreamStart]) -> Iterator[bytes]:
    for first in range(0, len(starts), ANSWERED_AT_ONCE):
        end = first + ANSWERED_AT_ONCE
        more = end < len(starts)
        rows = [_answer(producer, start) for start in starts[first:end]]
        yield encode_response(
            Opcode.STREAM_REQUESTS,
            extras=STREAM_REQUESTS_EXTRAS.pack(MORE_ANSWERS if more else 0),
            value=encode_stream_answers(rows),
            opaque=opaque,
        )
        if more:
            yield b""


def _answer(producer: Producer, start: StreamStart) -> StreamAnswer:
    try:
        answer = producer.start(start)
    except RollbackRequired as error:
        value = ROLLBACK_VALUE.pack(error.seqno)
        return StreamAnswer(start.opaque, Status.ROLLBACK, 0, value)
    except REFUSALS as error:
        status, _ = refusal_of(error, start.opcode, with_lock_errors=False)
        return StreamAnswer(start.opaque, status, 0, b"")
    return StreamAnswer(start.opaque, Status.SUCCESS, decode_term(answer.extras), answer.value)


# --- many reports at once -----------------------------------------------------------------------


#: This many reports are looked at in one turn; fewer of those that may change more than watermarks.
_LOOKED_AT_AT_ONCE = 512
TAKEN_AT_ONCE = 128

#: To tell that a client was outpaced takes as long as this many reports: an event with keys.
_OUTPACED_AS_REPORTS = 4


def answers_to_reports(producer: Producer, request: RequestFrame) -> Iterator[bytes]:
    """Take reports; yield the answer, and an empty piece where others are to have their turn.

    If there is a new row, the last answer comes by way of the registration, once that is on disk.

    Raises:
        CommandError, RemoteProtocolError: refused as a whole.
    """
    return _answers_to(producer, request, *producer.reports(request))


def _answers_to(
    producer: Producer, request: RequestFrame, head: ReportsHead, reports: Sequence[OneReport]
) -> Iterator[bytes]:
    registration = producer.registration
    refused: list[UnacceptedReport] = []
    on_disk = True
    for number, part in enumerate(_parts(reports, _LOOKED_AT_AT_ONCE)):
        if number:
            yield b""
        if not producer.options.manages:
            part, stored = registration.take_all(request.key, head, part)
            on_disk = on_disk and stored
        taken = 0
        for report in part:
            if taken >= TAKEN_AT_ONCE:
                taken = 0
                yield b""
            taken += 1
            try:
                on_disk = _take(producer, request.key, head, report) and on_disk
            except REFUSALS as error:
                refused.append(_refused(report.vbucket, error))
                taken += _OUTPACED_AS_REPORTS * isinstance(error, Outpaced)
    lifetime_s = registration.granted_s(head)
    if refused or on_disk:
        yield encode_response(
            Opcode.HWT_REPORTS,
            extras=REPORTS_REPLY_EXTRAS.pack(lifetime_s, 0 if on_disk else ROWS_FOLLOW),
            value=encode_refused(refused),
            opaque=request.opaque,
        )
    if not on_disk:
        extras = REPORTS_REPLY_EXTRAS.pack(lifetime_s, 0)
        registration.when_registered(request, Answer(extras))


def _parts(reports: Sequence[OneReport], most: int) -> Iterator[Sequence[OneReport]]:
    return (reports[first : first + most] for first in range(0, len(reports), most))


def _take(producer: Producer, name: bytes, head: ReportsHead, report: OneReport) -> bool:
    """Take one report; return whether its row is on disk."""
    vbucket, watermark, uuid, meta = report
    asked = ReportExtras(watermark, head.lifetime_s, head.kind, head.op, uuid or None)
    manages = producer.options.manages
    return producer.registration.take(vbucket, name, asked, meta, manages=manages).on_disk


def _refused(vbucket: int, error: Exception) -> UnacceptedReport:
    if isinstance(error, Outpaced):
        return UnacceptedReport(
            vbucket, Status.ROLLBACK, error.seqno, error.purge_seqno, *error.former
        )
    if isinstance(error, RollbackRequired):
        return UnacceptedReport(vbucket, Status.ROLLBACK, error.seqno)
    return UnacceptedReport(
        vbucket, refusal_of(error, Opcode.HWT_REPORT, with_lock_errors=False)[0]
    )


GENTLE_BYTES = 64 * 1024
GENTLE_PULL_BYTES = 2 * 1024
#: A peer on a busy machine reacts within a few slices of its scheduler; a catch-up takes 32 ms
#: longer by it, once.
GENTLE_PAUSE_S = 0.001

#: Every keep-alive has this opaque.
NOOP_OPAQUE = 0x4E4F4F50

#: A longer answer to a frame of a producer is dropped unread.
_ANSWER_MAX_BYTES = 64 * 1024

_FRAMES = frozenset(
    {*range(Opcode.UPR_OPEN, Opcode.UPR_CONTROL + 1), Opcode.UPR_SEQNO_ACKNOWLEDGED}
)


#: Requests that only a producer knows; they name their vBucket themselves.
_OF_PRODUCERS = frozenset({Opcode.BARRIER_ADD, Opcode.HWT_REPORT, Opcode.HWT_READ})

#: What may change the watermarks of others.
_OF_ROWS = frozenset({Opcode.UPR_CONTROL, Opcode.HWT_REPORT, Opcode.HWT_REPORTS})

_DELETIONS = frozenset({Opcode.UPR_DELETION, Opcode.UPR_EXPIRATION})

#: What carries out a request for many vBuckets; raises what refuses it as a whole.
Answers = Callable[[Producer, RequestFrame], Iterator[bytes]]

_MANY: dict[int, Answers] = {
    Opcode.STREAM_REQUESTS: answers_to_starts,
    Opcode.HWT_REPORTS: answers_to_reports,
}


class UprSession(BinarySession):
    """A session with streams.

    It takes over from the `BinarySession` that got the OPEN.
    """

    __slots__ = (
        "_answer_max_bytes",
        "_gentle_left",
        "_pausing",
        "_sent",
        "_version_max_bytes",
        "drained",
        "peer",
    )

    def __init__(
        self, before: BinarySession, wake: Callable[[], None], opening: RequestFrame, flags: int
    ) -> None:
        """Take over from `before`, which got `opening` with `flags`."""
        super().__init__(before.services, wake, by_key=before.by_key)
        self.negotiated, self.with_seqnos = before.negotiated, before.with_seqnos
        self._gentle_left = GENTLE_BYTES
        self._pausing = False
        self._sent = 0
        self.drained = False  # the last pull has left nothing, see `ports.Draining`
        hub = before.services.upr
        consumes = not flags & (OpenFlag.PRODUCER | OpenFlag.NOTIFIER)
        self.peer: Peer = (
            Consumer(hub, opening.key, wake, self._hang_up)
            if consumes
            else Producer(hub, opening, flags, before.negotiated, wake, self._hang_up)
        )
        most = before.services.settings.max_frame_bytes
        self._answer_max_bytes = most if consumes else _ANSWER_MAX_BYTES
        self._version_max_bytes = most

    # --- the doors ------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Send keep-alives, and disconnect a peer that does not answer them."""
        super().tick(now)
        if self.closing:
            return
        due = self.peer.tick(now, self._sent)
        if due is Due.PROBE:
            self._send(encode_request(Opcode.UPR_NOOP, opaque=NOOP_OPAQUE))
        elif due is Due.HANG_UP:
            self.services.bucket.stats.upr_dead += 1
            self.close()

    @property
    def answers(self) -> bool:
        """See `ports.Answering`: there may be streams to serve, too."""
        return False

    def data_to_send(self, budget: int) -> list[bytes]:
        """Return replies, then frames of streams."""
        pieces = super().data_to_send(budget)
        if self.closing:
            return pieces
        self.drained = False
        room = budget - sum(map(len, pieces))
        if self._gentle_left > 0:
            room = min(room, GENTLE_PULL_BYTES)
            if self._pausing:
                if self.services.pause is None:
                    self._go_on()
                return pieces
        if room <= 0 or self._unsent:
            return pieces
        replies = bool(pieces)
        sent = self.peer.fill(pieces, room)
        self._sent += sent
        self.drained = self.peer.drained and not replies
        if sent and self._gentle_left > 0:
            self._gentle_left -= sent
            if sent >= GENTLE_PULL_BYTES // 2 or self.services.pause is None:
                self.drained = False
                self._begin_pause()
        return pieces

    def _begin_pause(self) -> None:
        """Let input be read in between: for a while, or without a clock until the next turn."""
        self._pausing = True
        if self.services.pause is not None:
            self.services.pause(GENTLE_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._pausing = False
        self._wake()

    def connection_lost(self) -> None:
        """Release the streams too."""
        super().connection_lost()
        self.peer.close()

    def _hang_up(self, _why: str) -> None:
        """End the conversation at once, also with a peer that reads nothing and is never pulled."""
        self.close()
        self._wake()

    def close(self, misuse: str = "") -> None:
        """See `Conversation`; what a slow peer has not taken keeps nothing of the store."""
        super().close(misuse)
        self.peer.release_views()

    def admit(self) -> None:
        """Hang up: a stream belongs to the user who opened it."""
        self.close("a login on a connection with streams")

    # --- frames ---------------------------------------------------------------------------------

    @property
    def _speaks_tap(self) -> bool:
        return False  # a connection has one kind of stream

    def _one(self, data: bytes, position: int, size: int) -> int:
        """See `BinarySession`; responses of the peer are frames here too."""
        magic, opcode, key_length, extras_length, datatype, status, body_length, opaque, cas = (
            unpack_request(data, position)
        )
        if magic != MAGIC_RESPONSE:
            if opcode == Opcode.UPR_MUTATION and isinstance(self.peer, Consumer):
                taken = self._take_run(data, position, status, opaque)
                if taken:
                    return taken
            return super()._one(data, position, size)
        length = int(HEADER_BYTES + body_length)
        if body_length > self._most_of(opaque):
            return self._skip(length, size - position)
        if size - position < length:
            return -length
        body = data[position + HEADER_BYTES : position + length]
        extras, value = body[:extras_length], body[extras_length + key_length :]
        try:
            self.peer.answered(
                ResponseFrame(opcode, status, b"", extras, value, opaque, cas, datatype)
            )
        except RemoteProtocolError as error:
            self.close(str(error))
        return length

    def _most_of(self, opaque: int) -> int:
        """Return how long the answer with this opaque may be: a version that was asked for is."""
        asked = isinstance(self.peer, Producer) and self.peer.expects(opaque)
        return self._version_max_bytes if asked else self._answer_max_bytes

    def _take_run(self, data: bytes, position: int, number: int, opaque: int) -> int:
        """Take the simple mutations of a stream; return their bytes."""
        assert isinstance(self.peer, Consumer)
        stream = self.peer.stream_of(number, opaque)
        return self.peer.take_run(data, position, stream) - position if stream is not None else 0

    def _refuse_large_value(self, request: RequestFrame, length: int, available: int) -> int:
        """See `BinarySession`; a change that is left out would go unnoticed."""
        if isinstance(self.peer, Consumer) and request.opcode == Opcode.UPR_MUTATION:
            self.close(f"a document of vBucket {request.vbucket} is above kv.max_item_bytes")
        return super()._refuse_large_value(request, length, available)

    def _number_in(self, opcode: int, number: int, key: bytes) -> int:
        """See `BinarySession`; a frame of UPR names its vBucket itself."""
        mine = opcode in _FRAMES or opcode in _OF_PRODUCERS or opcode == Opcode.VBUCKET_FACTS
        return number if mine else super()._number_in(opcode, number, key)

    def _carry_out(self, request: RequestFrame) -> bool:
        """See `BinarySession`."""
        opcode, door = request.opcode, self.services.door
        if door is not None and opcode in _OF_ROWS and not self._may_change_rows(door, request):
            return True
        asked = opcode in _OF_PRODUCERS and isinstance(self.peer, Producer)
        many = _MANY.get(opcode) if isinstance(self.peer, Producer) else None
        if many is not None:
            self._answer_many(many, request)
            return True
        facts = opcode == Opcode.VBUCKET_FACTS and isinstance(self.peer, Consumer)
        if not (opcode in _FRAMES or asked or facts):
            return super()._carry_out(request)
        if opcode == Opcode.UPR_STREAM_REQUEST:
            self._gentle_left = GENTLE_BYTES
        try:
            if opcode in _DELETIONS:
                check_deletion(request.extras, request.value)
            answer = self.peer.handle(request)
        except OutOfPlace as error:
            self.close(str(error))
        except Outpaced as error:
            extras = HWT_PURGED_EXTRAS.pack(error.purge_seqno, *error.former)
            value = ROLLBACK_VALUE.pack(error.seqno)
            self.reply(request, Status.ROLLBACK, extras=extras, value=value)
        except RollbackRequired as error:
            value = ROLLBACK_VALUE.pack(error.seqno)
            self.reply(request, Status.ROLLBACK, value=value)
        except StreamNotFound:
            new = isinstance(self.peer, Producer) and self.peer.options.new_statuses
            self.reply(request, Status.STREAM_NOT_FOUND if new else Status.KEY_NOT_FOUND)
        except REFUSALS as error:
            self._refuse(opcode, request.opaque, error)
        else:
            if opcode == Opcode.UPR_CONTROL and isinstance(self.peer, Producer):
                self.negotiated = self.negotiated._replace(origins=self.peer.options.origins)
            if answer is not None:
                self.reply(request, extras=answer.extras, value=answer.value)
        return True

    def _may_change_rows(self, door: Door, request: RequestFrame) -> bool:
        """Refuse to change the watermarks of others, but to managers; note who removes any."""
        opcode, key = request.opcode, request.key
        try:
            if opcode == Opcode.UPR_CONTROL:
                if key == WATERMARKS and request.value == MANAGE:
                    require(door, Role.MANAGE, "UPR_CONTROL uprmc_hwt=manage")
                return True
            removes = _operation(request) == OP_REMOVE
            where = f" vb_{request.vbucket}" if opcode == Opcode.HWT_REPORT else ""
            name = key[:ID_MAX_BYTES].decode("utf-8", "replace")
            action = f"{Opcode(opcode).name} {'remove' if removes else 'set'} {name}{where}"
            manages = isinstance(self.peer, Producer) and self.peer.options.manages
            if not (manages or door.claims(key, leaves=removes)):
                door.denied(action)
                raise AccessDenied(f"needs {Role.MANAGE}")
            if removes:
                door.managed(action)
        except REFUSALS as error:
            self._refuse(opcode, request.opaque, error)
            return False
        return True

    def _answer_many(self, answers: Answers, request: RequestFrame) -> None:
        """Carry out a request for many vBuckets, a part in each turn."""
        assert isinstance(self.peer, Producer)
        try:
            replies = answers(self.peer, request)
        except REFUSALS as error:
            self._refuse(request.opcode, request.opaque, error)
        else:
            self.send_from(replies)


def _operation(request: RequestFrame) -> int:
    """Return what a report does to its rows."""
    if request.opcode == Opcode.HWT_REPORT:
        return decode_report(request.extras).op
    return int(REPORTS_EXTRAS.unpack(request.extras)[2])


class ClientSession(BinarySession):
    """A binary conversation before an OPEN."""

    __slots__ = ()

    def admit(self) -> None:
        """Let a session of the same kind carry the conversation on for another user."""
        successor = ClientSession(self.services, self._wake, by_key=self.by_key)
        successor.negotiated, successor.with_seqnos = self.negotiated, self.with_seqnos
        self._become(successor)

    def open_upr(self, opening: RequestFrame, flags: int) -> None:
        """Answer the OPEN and let a `UprSession` carry the conversation on.

        Which role it needs depends on who will send the changes.
        """
        producer = flags & (OpenFlag.PRODUCER | OpenFlag.NOTIFIER)
        wanted = Opcode.UPR_STREAM_REQUEST if producer else Opcode.UPR_MUTATION
        if (Opcode.HWT_REPORT if producer else wanted) in self._denied:
            self._deny(opening.opcode, opening.opaque, wanted)
            return
        self.successor = UprSession(self, self._wake, opening, flags)
        self.reply(opening)
