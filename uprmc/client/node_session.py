"""One connection to one node, without its socket: questions, streams, keep-alives, reports.

`receive` gives events in the order in which they came; answers are among them. Tasks (see `ask`)
ask the questions; those that open the connection are in `opening`.

See `docs/streams.md`, how to write a consumer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from uprmc.client.decoder import Decoder, Event
from uprmc.client.errors import ClientError, ConnectionLost, OpenRefused, ProducerError
from uprmc.client.position import Asked
from uprmc.connecting import new_nonce
from uprmc.errors import RemoteProtocolError
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import LoginRefused
from uprmc.model import SEQNO_MAX
from uprmc.places import parsed
from uprmc.protocol import control
from uprmc.protocol.header import RequestFrame, ResponseFrame, unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, Opcode, OpenFlag, Status
from uprmc.protocol.upr import StreamRequest
from uprmc.protocol.upr_extensions import StreamOptions
from uprmc.protocol.upr_many import StreamStart, encode_stream_requests, split_starts
from uprmc.remote import features
from uprmc.remote.batch import Batch
from uprmc.remote.blocking import LOGIN, WANTS_LOGIN
from uprmc.remote.cluster_map import ClusterMap, map_of
from uprmc.remote.conversation import (
    KEEP_ALIVES,
    FlowControl,
    Silence,
    acknowledgement,
    keep_alive_answer,
)
from uprmc.remote.directory import Heard, Survey
from uprmc.remote.login import login_in_turns
from uprmc.remote.registering import Instance, Purged, Registering
from uprmc.remote.stream import StreamState

# --- questions of tasks ---------------------------------------------------------------------------
# Questions of tasks to a node.
#
# A *task* is a generator that yields an `Ask` and is given its answers, and that yields whatever a
# handler returned for the loop above to wait for. So a procedure of many steps reads from top to
# bottom, and knows nothing of threads, reactors or sockets.


#: At most this many questions of one `Ask` are on their way at a time.
PIPELINE_MAX = 256

Task = Generator[Any, Any, Any]

#: What can be asked. Requests for streams travel together where the node knows how.
Question = RequestFrame | StreamStart


class Rest:
    """What a task yields that has computed for a while, so that others have their turn."""


class Ask:
    """Questions, and later their answers, in the same order."""

    __slots__ = ("_missing", "answers", "task", "unsent")

    def __init__(self, frames: Sequence[Question]) -> None:
        self.answers: list[ResponseFrame | None] = [None] * len(frames)
        # The task that waits for the answers; set by the loop that runs tasks.
        self.task: Task | None = None
        self.unsent = deque(enumerate(frames))  # with their numbers
        self._missing = len(frames)

    def answer(self, number: int, answer: ResponseFrame) -> bool:
        """Take an answer; returns whether it was the last one."""
        self.answers[number] = answer
        self._missing -= 1
        return not self._missing


# --- ahead ----------------------------------------------------------------------------------------
# Keep-alives among bytes that cannot be dealt with yet, because a handler works.
#
# A node hangs up on a client that leaves keep-alives unanswered for two intervals, and a handler
# may take longer than that. So the owner of the socket reads on meanwhile, as far as the node may
# be ahead, and keeps the bytes; here it is found out where frames begin among them.


#: Of what flow control does not count there is little.
_SLACK_BYTES = 64 * 1024


class NodeReadAhead:
    """Follows frames through bytes that come in pieces; answers keep-alives, each once."""

    __slots__ = ("_answered", "_header", "_skip_bytes", "size")

    def __init__(self) -> None:
        self.size = 0  # of what came and was not dealt with yet
        self._header = bytearray()
        self._skip_bytes = self._answered = 0

    def room(self, buffer_bytes: int) -> int:
        """Return how many bytes may be read ahead; the node sends no more than that.

        Args:
            buffer_bytes: what flow control allows the node to send; 0 = any amount.
        """
        return max(0, buffer_bytes + _SLACK_BYTES - self.size) if buffer_bytes else 0

    def hear(self, data: bytes, begun: bytes) -> bytes:
        """Return the answers to keep-alives in `data`, which comes behind all that was read ahead.

        Args:
            data: what was read now.
            begun: what the decoder has of a frame whose rest is yet to come.
        """
        if not self.size:
            self._header.clear()
            self._skip_bytes = 0
            self._answers(begun)
        self.size += len(data)
        answers = self._answers(data)
        self._answered += len(answers)
        return b"".join(answers)

    def was_answered(self) -> bool:
        """Tell whether the next keep-alive in the decoder's order was answered ahead."""
        if self._answered:
            self._answered -= 1
            return True
        return False

    def taken(self, size: int) -> None:
        """Take note that the decoder has dealt with so many bytes."""
        self.size = max(0, self.size - size)

    def _answers(self, data: bytes) -> list[bytes]:
        found, position, header = [], 0, self._header
        while position < len(data):
            if self._skip_bytes:
                skipped = min(self._skip_bytes, len(data) - position)
                self._skip_bytes -= skipped
                position += skipped
                continue
            piece = data[position : position + HEADER_BYTES - len(header)]
            header += piece
            position += len(piece)
            if len(header) == HEADER_BYTES:
                magic, opcode, _, _, _, _, self._skip_bytes, opaque, _ = unpack_request(header)
                if magic == MAGIC_REQUEST and opcode in KEEP_ALIVES:
                    found.append(keep_alive_answer(opcode, opaque))
                header.clear()
        return found


# --- bursts ---------------------------------------------------------------------------------------
# Pieces of a burst are handed over together, so that they are one commit of the consumer.


#: Events wait for more up to this size, if each piece comes this soon after the one before, and for
#: no longer than this in all.
_GATHER_MAX_BYTES = 1024 * 1024
GATHER_GAP_S = 0.005
GATHER_MAX_S = 0.020

#: A piece with this many snapshots is probably a part of a burst, whose rest is on its way.
_BURST_SNAPSHOTS = 32


class Bursts:
    """Holds events of one connection back while more of their burst is expected."""

    def __init__(self) -> None:
        # Until when events wait, in monotonic seconds; ``None`` = none do.
        self.until: float | None = None
        self._end = 0.0
        self._events: list[Event] = []

    def complete(
        self, events: list[Event], size: int, buffer_bytes: int, now: float, *, more_follows: bool
    ) -> list[Event]:
        """Return events with those that came before, or nothing if they wait for more.

        Args:
            events: what has come now.
            size: bytes that were received and not handed over, with these.
            buffer_bytes: what the node may send before it waits for us; 0 = any amount. A quarter
                of that may wait here.
            now: monotonic seconds.
            more_follows: the node says that it goes on at once, or that is likely.
        """
        gathered = self._events
        if not gathered and not more_follows:
            return events
        gathered += events
        limit = min(buffer_bytes // 4 or _GATHER_MAX_BYTES, _GATHER_MAX_BYTES)
        if gathered and more_follows and size < limit:
            if self.until is None:
                self._end = now + GATHER_MAX_S
            self.until = min(self._end, now + GATHER_GAP_S)
            if now < self._end:
                return []
        self._events, self.until = [], None
        return gathered

    def is_overdue(self, now: float) -> bool:
        """Tell whether the events that wait have waited for long enough."""
        return self.until is not None and now >= self.until


def is_burst(events: list[Event]) -> bool:
    """Tell whether many snapshots have come, and nothing behind them that may be waited for."""
    last = events[-1] if events else None
    if type(last) is not Batch:
        return False
    if len(events) == 1:
        return len(last.runs) >= _BURST_SNAPSHOTS
    return sum([len(event.runs) for event in events if type(event) is Batch]) >= _BURST_SNAPSHOTS


# --- opening --------------------------------------------------------------------------------------
# Opening a connection to a node: the login, and the handshake with the features to be used.


class Opened(NamedTuple):
    """What a handshake has found out."""

    granted: set[bytes]  # CONTROL keys that the node accepted
    knows_terms: bool  # the node tells the terms of vBuckets
    map: ClusterMap | None  # its cluster map; ``None`` = it has none that makes sense


@dataclass(frozen=True, slots=True)
class Opening:
    """How to open a connection to the node at `place` (HOST:PORT), as the consumer `name`."""

    place: str
    name: str
    wants_values: bool
    buffer_bytes: int
    noop_interval_s: float
    credentials: Credentials | None
    tls: bool

    def log_in(self, *, in_turns: bool = False) -> Task:
        """Log in if there are credentials.

        Args:
            in_turns: others wait for their turn: yield a `Rest` now and then.

        Raises:
            OpenRefused: the node does not let this user in.
        """
        if self.credentials is None:
            return
        safe = self.tls or parsed(self.place).is_local
        steps = login_in_turns(self.credentials, new_nonce(), safe=safe, at_once=not in_turns)
        answer = None
        try:
            while True:
                request = steps.send(answer)
                if request is None:
                    answer = yield Rest()
                else:
                    (answer,) = yield Ask([request])
        except StopIteration:
            return
        except LoginRefused as error:
            raise OpenRefused(f"the node at {self.place} {error}") from None

    def handshake(self, *, registering: bool) -> Task:
        """Send everything at once, after a login if there is one; return what is `Opened`.

        Raises:
            OpenRefused: the node refuses the connection.
        """
        yield from self.log_in()
        name = self.name.encode()
        profile = features.PROGRAM.registering() if registering else features.PROGRAM
        controls = profile.controls(buffer_bytes=self.buffer_bytes, interval_s=self.noop_interval_s)
        greeted, opened, *granted, cluster_map = yield Ask(
            [
                features.PROGRAM.hello(name),
                features.PROGRAM.open(name, 0 if self.wants_values else OpenFlag.NO_VALUE),
                *controls,
                RequestFrame(Opcode.GET_CLUSTER_CONFIG),
            ]
        )
        self._check(opened)
        return _opened(greeted, features.granted(controls, granted), cluster_map)

    def _check(self, opened: ResponseFrame) -> None:
        if opened.status == Status.AUTH_ERROR:
            raise OpenRefused(f"the node at {self.place} {WANTS_LOGIN}")
        if opened.status:
            denied = opened.status == Status.ACCESS_DENIED
            refused = OpenRefused(
                f"the node at {self.place} refuses to open a stream connection: {opened.reason}"
                + ("" if denied else "; see its log and the consumer's name")
            )
            raise refused if self.tls else refused.doubting(self.place)


def _opened(greeted: ResponseFrame, granted: set[bytes], cluster_map: ResponseFrame) -> Opened:
    knows_terms = features.tells_terms(greeted.status, greeted.value)
    if not knows_terms:  # some producers grant every CONTROL
        granted -= {control.STREAM_REQUESTS, control.WATERMARKS, control.REPORTS}
    return Opened(granted, knows_terms, map_of(cluster_map))


# --- node session ---------------------------------------------------------------------------------


#: At most this many streams are asked for at a time: each in a frame of its own, or together.
_STARTS_ALONE_MAX, _STARTS_MAX = 128, 1_024

#: Keep-alives may be so late, as a multiple of the interval and in seconds, before we hang up.
_SILENCE_INTERVALS = 2.0
_SILENCE_SLACK_S = 2.0


class NodeSession:
    """Turns bytes of a node into events, and questions into bytes for it.

    Attributes:
        ack_share: what share of the buffer is acknowledged at a time.
    """

    ack_share = 1 / 2

    def __init__(
        self,
        place: str,
        name: str,
        *,
        wants_values: bool = True,
        buffer_bytes: int = 8 * 1024 * 1024,
        noop_interval_s: float = 120.0,
        instance: Instance | None = None,
        credentials: Credentials | None = None,
        tls: bool = False,
    ) -> None:
        self.place = place  # HOST:PORT of the node
        # How the connection is opened.
        self.opening = Opening(
            place, name, wants_values, buffer_bytes, noop_interval_s, credentials, tls
        )
        self.knows_terms = False  # the node tells the terms of vBuckets
        # Its cluster map; ``None`` = it has none that makes sense.
        self.map: ClusterMap | None = None
        self.poll_at = 0.0  # when to ask next what it has, in monotonic seconds
        self.polling = False  # it is asked just now
        self.open = False  # the handshake is done
        # Why the connection cannot go on; the owner of the socket closes it.
        self.error: ClientError | None = None
        self.granted: set[bytes] = set()  # CONTROL keys that the node accepted
        # What was received last is decoded, so what comes next may be heard ahead.
        self.decoded = True
        self.items = 0  # changes received; with `bytes_received` they tell the size of one
        self.bytes_received = 0
        # Whether the node knows GET_VERSION; ``None`` = it was not asked yet.
        self.has_versions: bool | None = None
        self.decoder = Decoder(place, wants_values=wants_values)
        # What is acknowledged, if the node has granted that.
        self.flow = FlowControl(0, self.ack_share)
        self.silence = Silence()  # of the node
        self._to_send: list[bytes] = []
        self._starts: list[StreamStart] = []
        # What is registered with the node, ``None`` = the program does not register.
        self.registered = None if instance is None else Registering(instance)
        self._named: dict[int, tuple[int, int]] = {}
        self._ahead = NodeReadAhead()
        self.bursts = Bursts()  # events that wait for the rest of their burst

    # --- bytes ----------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Return what the bytes say that have come; keep-alives are answered.

        While the node says that it goes on at once, or many snapshots have come, nothing is
        returned: it waits for the next call. One without data returns what waits.

        Raises:
            ProducerError, NotANode: see `decoder`.
        """
        if not data:
            return self._complete([], now, more_follows=False)
        self.decoded = False
        self.silence.heard(now)
        self.bytes_received += len(data)
        events = self.decoder.feed(data)
        for event in events:
            if type(event) is not RequestFrame or event.opcode not in KEEP_ALIVES:
                continue
            if not self._ahead.was_answered():
                self._to_send.append(keep_alive_answer(event.opcode, event.opaque))
        if self._ahead.size:
            self._ahead.taken(len(data))
        self.decoded = True
        more_follows = self.decoder.more_follows or is_burst(events)
        return self._complete(events, now, more_follows=more_follows)

    def _complete(self, events: list[Event], now: float, *, more_follows: bool) -> list[Event]:
        size, buffer_bytes = self.decoder.counted_bytes, self.flow.buffer_bytes
        return self.bursts.complete(events, size, buffer_bytes, now, more_follows=more_follows)

    @property
    def room_ahead(self) -> int:
        """How many bytes may be read while a handler works: the node is not further ahead."""
        return self._ahead.room(self.flow.buffer_bytes)

    def hear_ahead(self, data: bytes) -> bytes:
        """Return the answers to keep-alives in bytes that `receive` is given later.

        It must be given all bytes behind those that were received; not while `receive` runs.
        """
        return self._ahead.hear(data, self.decoder.begun)

    def dealt_with(self) -> None:
        """Acknowledge what was received: it was handed over, unless it waits for more."""
        if self.bursts.until is not None:
            return
        self.acknowledge(self.decoder.counted_bytes)
        self.decoder.counted_bytes = 0

    def acknowledge(self, size: int) -> bool:
        """Count bytes that were dealt with; returns whether there is something to send now."""
        due = self.flow.processed(size)
        if due:
            self._to_send.append(acknowledgement(due))
        return due > 0

    def data_to_send(self) -> bytes:
        """Return what is to be written now."""
        if self._starts or self._named:
            self._send_starts()
        data = b"".join(self._to_send)
        self._to_send.clear()
        return data

    def tick(self, now: float) -> None:
        """Notice a node that has vanished."""
        limit_s = self.opening.noop_interval_s * _SILENCE_INTERVALS + _SILENCE_SLACK_S
        known = not self.open or {control.KEEP_ALIVES, control.KEEP_ALIVE_INTERVAL} <= self.granted
        if self.silence.lasts(now, limit_s) and known and self.error is None:
            self.error = ConnectionLost(f"the node at {self.place} is silent for {limit_s:g} s")

    def was_not_listened_to(self, seconds: float) -> None:
        """Do not count this time as the node's silence: a handler worked, or the process stood."""
        self.silence.excuse(seconds)

    # --- questions ------------------------------------------------------------------------------

    def ask(self, ask: Ask) -> None:
        """Send questions; their answers come among the events."""
        for _ in range(PIPELINE_MAX):
            if not self._send_next(ask):
                break

    def advance(self, task: Task, answers: Any = None) -> Task:
        """Run a task until it asks the node, or ends; yield what it yields for others."""
        while True:
            try:
                wanted = task.send(answers)
            except StopIteration:
                return
            if type(wanted) is Ask:
                wanted.task = task
                self.ask(wanted)
                return
            answers = yield wanted

    def answered(self, frame: ResponseFrame) -> Ask | None:
        """Take an answer out of the events; returns the `Ask` that has all its answers now.

        A node that refuses several streams in one frame is asked for each alone from now on.
        """
        try:
            found = self.decoder.questions.answered(frame.opcode, frame.opaque)
        except RemoteProtocolError as error:
            raise self._nonsense(error) from None
        if frame.status == Status.AUTH_ERROR and not self.open and frame.opcode not in LOGIN:
            self.error = self.error or OpenRefused(f"the node at {self.place} {WANTS_LOGIN}")
        if found is None:
            return None
        if isinstance(found, RequestFrame):
            self._take_report(found, frame)
            return None
        if frame.opcode == Opcode.STREAM_REQUESTS:
            self.granted.discard(control.STREAM_REQUESTS)
            self._to_send += [start.encode(start.opaque) for start in found]
            return None
        ask, number = found
        self._send_next(ask)
        return ask if ask.answer(number, frame) else None

    def close(self) -> list[Task]:
        """The connection is gone: return the tasks that will get no answers."""
        waiting = self.decoder.questions.clear()
        asks = [found[0] for found in waiting if type(found) is tuple]
        tasks = {id(ask): ask.task for ask in asks if ask.task is not None}
        self.decoder.streams.clear()
        self.open = False
        return list(tasks.values())

    def _send_next(self, ask: Ask) -> bool:
        if not ask.unsent:
            return False
        number, frame = ask.unsent.popleft()
        opaque = self.decoder.questions.expect(frame.opcode, (ask, number), frame.opaque)
        if type(frame) is StreamStart and control.STREAM_REQUESTS in self.granted:
            self._starts.append(frame)
        else:
            if self._starts or self._named:
                self._send_starts()
            self._to_send.append(frame.encode(opaque))
        return True

    def _send_starts(self) -> None:
        """Put all requests for streams that were made up to now into as few frames as possible."""
        named, self._named = self._named, {}
        if named and self.registered is not None:
            self._send_reports(self.registered.register_all(named))
        starts, self._starts = self._starts, []
        for part, value in split_starts(starts):
            opaque = self.decoder.questions.expect(Opcode.STREAM_REQUESTS, part)
            self._to_send.append(encode_stream_requests(opaque, value))

    # --- registration ---------------------------------------------------------------------------

    def name_row(self, vbucket: int, watermark: int, vb_uuid: int) -> None:
        """Register a vBucket, before its stream is asked for."""
        if self.registered is not None and self.registered.granted:
            self._named[vbucket] = watermark, vb_uuid

    def purged(self, vbucket: int) -> Purged | None:
        """Return why the node registers a vBucket only from zero; ``None`` if it does otherwise."""
        return None if self.registered is None else self.registered.purged.get(vbucket)

    def report(self, now: float) -> None:
        """Send the reports that are due."""
        if self.registered is not None:
            self._send_reports(self.registered.due(now))

    def report_rest(self) -> None:
        """Send all reports that are left, due or not: there will be no more."""
        if self.registered is not None:
            self._send_reports(self.registered.rest())

    def _send_reports(self, frames: Sequence[RequestFrame]) -> None:
        for frame in frames:
            opaque = self.decoder.questions.expect(frame.opcode, frame)
            self._to_send.append(frame.encode(opaque))

    def _take_report(self, asked: RequestFrame, answer: ResponseFrame) -> None:
        try:
            if self.registered is not None and not self.registered.answered(asked, answer):
                self.decoder.questions.expect(answer.opcode, asked, answer.opaque)
        except RemoteProtocolError as error:
            raise self._nonsense(error, " Nothing was changed.") from None

    def _nonsense(self, error: RemoteProtocolError, more: str = "") -> ProducerError:
        return ProducerError(
            f"the node at {self.place} sent nonsense: {error}.{more} Look at the node's version "
            "and log, then start again"
        )

    # --- tasks ----------------------------------------------------------------------------------

    def handshake(self) -> Task:
        """Open the connection.

        Raises:
            OpenRefused: the node does not want us.
        """
        opened = yield from self.opening.handshake(registering=self.registered is not None)
        self.grant(opened.granted)
        self.knows_terms, self.map = opened.knows_terms, opened.map
        if self.registered is not None:
            self.registered.begin(self.granted)
        self.open = True

    def grant(self, keys: set[bytes]) -> None:
        """Take the CONTROLs that the node has accepted."""
        self.granted = keys
        self.flow.buffer_bytes = self.opening.buffer_bytes if control.FLOW_CONTROL in keys else 0

    def put(self, survey: Survey, more: Sequence[RequestFrame] = ()) -> Task:
        """Put the questions of a survey to this node; return the answers to more than these.

        What is asked by statistics is left out.
        """
        found: Sequence[ResponseFrame] = ()
        try:
            question = next(survey)
            while True:
                asked = [*question.requests, *more]
                answers = (yield Ask(asked)) if asked else []
                if more:
                    answers, found, more = answers[: -len(more)], answers[-len(more) :], ()
                question = survey.send(Heard(answers, knows_terms=self.knows_terms))
        except StopIteration:
            return found

    @property
    def starts_max(self) -> int:
        """How many streams may be asked for before there are answers."""
        return _STARTS_MAX if control.STREAM_REQUESTS in self.granted else _STARTS_ALONE_MAX

    def gone(self, vbucket: int) -> None:
        """Take note that a vBucket is not there any more, as far as is known."""
        if self.registered is not None:
            self.registered.gone(vbucket)

    # --- streams --------------------------------------------------------------------------------

    def stream_request(
        self, vbucket: int, asked: Asked, flags: int, *, lease: int = 0, versions: bool = True
    ) -> tuple[StreamState, StreamStart]:
        """Return a stream that is to be asked for, and the question.

        Args:
            vbucket: its vBucket.
            asked: where it begins.
            flags: of the stream request.
            lease: the lease to read from; 0 = the present.
            versions: whether to name all histories that are known; a node may have a limit.
        """
        stream = StreamState(
            vbucket, self.decoder.questions.new_opaque(), asked.seqno, asked.snapshot
        )
        self.decoder.streams[stream.opaque] = stream
        options = StreamOptions(lease=lease, term=asked.term if self.knows_terms else 0)
        uuid = asked.uuid
        if versions and control.VERSIONS in self.granted and asked.known_versions:
            options = options._replace(known_versions=asked.known_versions)
            uuid = asked.known_versions[0].uuid
        request = StreamRequest(flags, asked.seqno, SEQNO_MAX, uuid, *asked.snapshot)
        return stream, StreamStart(vbucket, stream.opaque, request, options)

    def close_stream(self, stream: StreamState) -> RequestFrame:
        """Return the request to end a stream; its frames are dropped from now on."""
        stream.dropped = True
        self.decoder.streams.pop(stream.opaque, None)
        return RequestFrame(Opcode.UPR_CLOSE_STREAM, vbucket=stream.vbucket)
