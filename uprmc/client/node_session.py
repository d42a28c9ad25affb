"""One connection to one node, without its socket: the handshake, questions, streams, keep-alives.

`receive` gives events in the order in which they came; answers are among them. Questions are asked
by *tasks*: generators that yield an `Ask` and are given its answers, and that yield whatever a
handler returned for somebody above to wait for. So a procedure of many steps reads from top to
bottom, and knows nothing of threads, reactors or sockets.

Source: ``docs/streams.md``, how to write a consumer; UPR reference 2, 4.6, 4.7.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

from uprmc.client.ahead import Ahead
from uprmc.client.connection import LOGIN, WANTS_LOGIN
from uprmc.client.decoder import Decoder
from uprmc.client.errors import ClientError, ConnectionLost, OpenRefused, ProducerError
from uprmc.client.events import Event
from uprmc.client.position import Asked
from uprmc.connecting import new_nonce
from uprmc.consume import features
from uprmc.consume.batch import Batch
from uprmc.consume.cluster_map import ClusterMap, parsed_map
from uprmc.consume.conversation import (
    KEEP_ALIVES,
    FlowControl,
    Silence,
    acknowledgement,
    keep_alive_answer,
)
from uprmc.consume.login import login
from uprmc.consume.registering import Instance, Purged, Registering
from uprmc.consume.stream import StreamState
from uprmc.errors import RemoteProtocolError
from uprmc.login.credentials import Credentials
from uprmc.login.mechanisms import LoginRefused
from uprmc.model import SEQNO_MAX, FailoverLog, VBucketState
from uprmc.places import of_cluster_map, parsed
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import (
    VBUCKET_SEQNO,
    VBUCKET_SEQNO_TERM,
    VBUCKET_SEQNOS_EXTRAS,
)
from uprmc.protocol.opcodes import Opcode, OpenFlag, Status
from uprmc.protocol.upr import StreamRequest
from uprmc.protocol.upr_extensions import StreamOptions
from uprmc.protocol.upr_many import StreamStart, encode_stream_requests, split_starts

#: So many questions of one `Ask` are on their way at a time.
PIPELINE_MAX = 256

#: So many streams are asked for at a time: each alone, or together.
_STARTS_ALONE_MAX, _STARTS_MAX = 128, 1_024

#: Keep-alives may be so late, as a multiple of the interval and in seconds, before we hang up.
_SILENCE_INTERVALS = 2.0
_SILENCE_SLACK_S = 2.0

#: What comes in several pieces at once is dealt with as one, so that it is one commit: up to this
#: size, if each piece comes this soon after the one before, and for no longer than this in all.
_GATHER_MAX_BYTES = 1024 * 1024
GATHER_GAP_S = 0.005
GATHER_MAX_S = 0.020

#: A piece with this many snapshots is probably a part of a burst, whose rest is on its way.
_BURST_SNAPSHOTS = 32

#: Of what flow control does not count there is little.
_AHEAD_SLACK_BYTES = 64 * 1024

Task = Generator[Any, Any, Any]

#: What can be asked. Requests for streams travel together where the node knows how.
Question = RequestFrame | StreamStart


class Ask:
    """Questions, and later their answers, in the same order.

    Attributes:
        task: who wants to know; set by whoever runs tasks.
    """

    __slots__ = ("_missing", "_rest", "answers", "task")

    def __init__(self, frames: Sequence[Question]) -> None:
        self.answers: list[ResponseFrame | None] = [None] * len(frames)
        self.task: Task | None = None
        self._missing = len(frames)
        self._rest = deque(enumerate(frames))

    def next(self) -> tuple[int, Question] | None:
        """Return a question that was not sent yet, and its number."""
        return self._rest.popleft() if self._rest else None

    def answer(self, number: int, answer: ResponseFrame) -> bool:
        """Take an answer; returns whether it was the last one."""
        self.answers[number] = answer
        self._missing -= 1
        return not self._missing


def _is_burst(events: list[Event]) -> bool:
    """Return whether many snapshots have come, and nothing behind them that may be waited for."""
    last = events[-1] if events else None
    if type(last) is not Batch:
        return False
    if len(events) == 1:
        return len(last.runs) >= _BURST_SNAPSHOTS
    return sum([len(event.runs) for event in events if type(event) is Batch]) >= _BURST_SNAPSHOTS


class NodeSession:
    """See the module docstring.

    Attributes:
        ack_share: what share of the buffer is acknowledged at a time.
        place: HOST:PORT of the node.
        open: the handshake is done.
        error: why the connection cannot go on; whoever owns the socket closes it.
        granted: CONTROL keys that the node accepted.
        knows_terms: the node tells the terms of vBuckets.
        active: vBuckets that are active there, with their high seqnos, as of the last poll.
        replicas: the same of replicas, if they are wanted.
        terms: of these, each one's term; 0 = the node knows none.
        logs: failover logs of those that another node claims with the same term.
        polls: how often `poll` was answered.
        map: its cluster map, ``None`` = it has none that makes sense.
        numbers: vBuckets that it has in whatever state, if there is no map.
        decoded: what was received last is decoded: what comes next may be heard ahead.
        items: changes received; with `bytes_received` they tell the size of one.
        has_versions: whether the node knows GET_VERSION; ``None`` = it was not asked yet.
        gathering_until: until when what has come waits for the rest, `None` = nothing does.
        flow: what is acknowledged, if the node has granted that.
        registered: what is registered with the node, ``None`` = the program does not register.
        silence: of the node.
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
        wants_replicas: bool = False,
        instance: Instance | None = None,
        credentials: Credentials | None = None,
        tls: bool = False,
    ) -> None:
        self.place = place
        self._credentials = credentials
        self._tls = tls
        self._safe = tls or parsed(place).is_local
        self.open = False
        self.error: ClientError | None = None
        self.granted: set[bytes] = set()
        self.knows_terms = False
        self.active: dict[int, int] = {}
        self.replicas: dict[int, int] = {}
        self.terms: dict[int, int] = {}
        self.logs: dict[int, FailoverLog] = {}
        self.polls = 0
        self.poll_at = 0.0
        self.polling = False
        self.map: ClusterMap | None = None
        self.numbers: frozenset[int] = frozenset()
        self.decoded = True
        self.items = 0
        self.bytes_received = 0
        self.has_versions: bool | None = None
        self.decoder = Decoder(place, wants_values=wants_values)
        self._name = name
        self._wants_values = wants_values
        self._wants_replicas = wants_replicas
        self._buffer_bytes = buffer_bytes
        self._noop_interval_s = noop_interval_s
        self.flow = FlowControl(0, self.ack_share)
        self.silence = Silence()
        self._to_send: list[bytes] = []
        self._starts: list[StreamStart] = []
        self.registered = None if instance is None else Registering(instance)
        self._named: dict[int, tuple[int, int]] = {}
        self._ahead: Ahead | None = None
        self._answered = 0
        self.gathering_until: float | None = None
        self._gather_end = 0.0
        self._gathered: list[Event] = []

    # --- bytes ----------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Return what the bytes say that have come; keep-alives are answered.

        While the node says that it goes on at once, or many snapshots have come, nothing is
        returned: it waits for the next call. One without data returns what waits.

        Raises:
            ProducerError, NotANode: see `decoder`.
        """
        if not data:
            return self._complete([], now, goes_on=False)
        self.decoded = False
        self.silence.heard(now)
        self.bytes_received += len(data)
        events = self.decoder.feed(data)
        for event in events:
            if type(event) is RequestFrame and event.opcode in KEEP_ALIVES:
                if self._answered:
                    self._answered -= 1
                else:
                    self._to_send.append(keep_alive_answer(event.opcode, event.opaque))
        self._taken_of_ahead(len(data))
        self.decoded = True
        goes_on = self.decoder.more_follows or _is_burst(events)
        return self._complete(events, now, goes_on=goes_on)

    def _complete(self, events: list[Event], now: float, *, goes_on: bool) -> list[Event]:
        """Return events with those that came before, unless they wait for more."""
        gathered = self._gathered
        if not gathered and not goes_on:
            return events
        gathered += events
        if gathered and goes_on and self.decoder.counted_bytes < self._gather_max_bytes:
            if self.gathering_until is None:
                self._gather_end = now + GATHER_MAX_S
            self.gathering_until = min(self._gather_end, now + GATHER_GAP_S)
            if now < self._gather_end:
                return []
        self._gathered, self.gathering_until = [], None
        return gathered

    @property
    def _gather_max_bytes(self) -> int:
        """What may wait: a quarter of what the node may send before it waits for us."""
        share = self.flow.buffer_bytes // 4
        return min(share, _GATHER_MAX_BYTES) if share else _GATHER_MAX_BYTES

    def is_overdue(self, now: float) -> bool:
        """Return whether what waits for more has waited for long enough."""
        return self.gathering_until is not None and now >= self.gathering_until

    @property
    def room_ahead(self) -> int:
        """How many bytes may be read while a handler works: the node is not further ahead."""
        waiting = self._ahead.size if self._ahead is not None else 0
        buffer_bytes = self.flow.buffer_bytes
        return max(0, buffer_bytes + _AHEAD_SLACK_BYTES - waiting) if buffer_bytes else 0

    def hear_ahead(self, data: bytes) -> bytes:
        """Return the answers to keep-alives in bytes that `receive` is given later.

        It must be told all bytes behind those that were received; not while `receive` runs.
        """
        if self._ahead is None:
            self._ahead = Ahead(self.decoder.begun)
        answers = self._ahead.take(data)
        self._answered += len(answers)
        return b"".join(answers)

    def _taken_of_ahead(self, size: int) -> None:
        if self._ahead is not None:
            self._ahead.size -= size
            if self._ahead.size <= 0:
                self._ahead = None

    def dealt_with(self) -> None:
        """Acknowledge what was received: it was handed over, unless it waits for more."""
        if self.gathering_until is not None:
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
        self._send_starts()
        data = b"".join(self._to_send)
        self._to_send.clear()
        return data

    def tick(self, now: float) -> None:
        """Notice a node that has vanished."""
        limit_s = self._noop_interval_s * _SILENCE_INTERVALS + _SILENCE_SLACK_S
        known = (
            not self.open or {features.KEEP_ALIVES, features.KEEP_ALIVE_INTERVAL} <= self.granted
        )
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

    def answered(self, frame: ResponseFrame) -> Ask | None:
        """Take an answer out of the events; returns the `Ask` that has all its answers now.

        A node that refuses several streams in one frame is asked for each alone from now on.
        """
        try:
            found = self.decoder.questions.answered(frame.opcode, frame.opaque)
        except RemoteProtocolError as error:
            raise ProducerError(
                f"the node at {self.place} sent nonsense: {error}. Look at the node's version and "
                "log, then start again"
            ) from None
        if frame.status == Status.AUTH_ERROR and not self.open and frame.opcode not in LOGIN:
            self.error = self.error or OpenRefused(f"the node at {self.place} {WANTS_LOGIN}")
        if found is None:
            return None
        if isinstance(found, RequestFrame):
            self._take_report(found, frame)
            return None
        if frame.opcode == Opcode.STREAM_REQUESTS:
            self.granted.discard(features.STREAM_REQUESTS)
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
        found = ask.next()
        if found is None:
            return False
        number, frame = found
        opaque = self.decoder.questions.expect(frame.opcode, (ask, number), frame.opaque)
        if type(frame) is StreamStart and features.STREAM_REQUESTS in self.granted:
            self._starts.append(frame)
        else:
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
        """Return why the node can register a vBucket only from zero, ``None`` = that is not so."""
        return None if self.registered is None else self.registered.purged.get(vbucket)

    def report(self, now: float) -> None:
        """Send the reports that are due."""
        if self.registered is not None:
            self._send_reports(self.registered.due(now))

    def report_rest(self) -> None:
        """Send all reports that there are: there will be no more."""
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
            raise ProducerError(
                f"the node at {self.place} sent nonsense: {error}. Nothing was changed. Look at "
                "the node's version and log, then start again"
            ) from None

    # --- tasks ----------------------------------------------------------------------------------

    def handshake(self) -> Task:
        """Open the connection; everything is sent at once, after a login if there is one.

        Raises:
            OpenRefused: the node does not want us.
        """
        yield from self.log_in()
        name = self._name.encode()
        profile = features.PROGRAM if self.registered is None else features.PROGRAM.registering()
        controls = profile.controls(
            buffer_bytes=self._buffer_bytes, interval_s=self._noop_interval_s
        )
        answers = yield Ask(
            [
                features.PROGRAM.hello(name),
                features.PROGRAM.open(name, 0 if self._wants_values else OpenFlag.NO_VALUE),
                *controls,
                RequestFrame(Opcode.GET_CLUSTER_CONFIG),
            ]
        )
        greeted, opened, *granted, cluster_map = answers
        if opened.status == Status.AUTH_ERROR:
            raise OpenRefused(f"the node at {self.place} {WANTS_LOGIN}")
        if opened.status:
            refused = OpenRefused(
                f"the node at {self.place} refuses to open a stream connection: {opened.reason}; "
                "see its log and the consumer's name"
            )
            raise refused if self._tls else refused.doubting(self.place)
        self.grant(features.granted(controls, granted))
        self.knows_terms = features.tells_terms(greeted.status, greeted.value)
        if not self.knows_terms:  # some producers grant every CONTROL
            self.granted -= {features.STREAM_REQUESTS, features.WATERMARKS, features.REPORTS}
        if self.registered is not None:
            self.registered.begin(self.granted)
        with suppress(ValueError):  # an operator may set any JSON object as map
            self.map = parsed_map(cluster_map.value)
        self.open = True
        yield from self.poll(())

    def log_in(self) -> Task:
        """Log in, if somebody is to; raises `OpenRefused`."""
        if self._credentials is None:
            return
        steps = login(self._credentials, new_nonce(), safe=self._safe)
        try:
            request = next(steps)
            while True:
                (answer,) = yield Ask([request])
                request = steps.send(answer)
        except StopIteration:
            return
        except LoginRefused as error:
            raise OpenRefused(f"the node at {self.place} {error}") from None

    def grant(self, keys: set[bytes]) -> None:
        """Take the CONTROLs that the node has accepted."""
        self.granted = keys
        self.flow.buffer_bytes = self._buffer_bytes if features.FLOW_CONTROL in keys else 0

    @property
    def servers(self) -> Sequence[str]:
        """The nodes that its cluster map names, if that names several."""
        found = of_cluster_map(self.map.servers, self.place) if self.map is not None else []
        return found if len(found) > 1 else []

    def poll(self, disputed: Sequence[int]) -> Task:
        """Ask which vBuckets are active, how far they are, and the history of disputed ones."""
        active = VBUCKET_SEQNOS_EXTRAS.pack(VBucketState.ACTIVE)
        any_state = [RequestFrame(Opcode.GET_ALL_VB_SEQNOS)] if self.map is None else []
        logs = [RequestFrame(Opcode.GET_FAILOVER_LOG, vbucket=number) for number in disputed]
        seqnos, *histories = yield Ask(
            [RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=active), *any_state, *logs]
        )
        if not seqnos.status:
            rows = self.rows(seqnos)
            self.active = {number: seqno for number, seqno, _ in rows}
            self.terms = {number: term for number, _, term in rows}
            self.polls += 1
        if any_state:
            numbers = histories.pop(0)
            rows = [] if numbers.status else self.rows(numbers)
            self.numbers = frozenset(number for number, _, _ in rows)
        self.logs = {
            number: self.decoder.log(answer, number)
            for number, answer in zip(disputed, histories, strict=True)
            if not answer.status
        }
        if self._wants_replicas:
            self.replicas = yield from self.high_seqnos(VBucketState.REPLICA)

    @property
    def starts_max(self) -> int:
        """How many streams may be asked for before there are answers."""
        return _STARTS_MAX if features.STREAM_REQUESTS in self.granted else _STARTS_ALONE_MAX

    def has(self, vbucket: int) -> bool:
        """Return whether a vBucket can be streamed from there."""
        return vbucket in self.active or vbucket in self.replicas

    def gone(self, vbucket: int) -> None:
        """A vBucket is not there any more, as far as is known."""
        self.active.pop(vbucket, None)
        self.replicas.pop(vbucket, None)
        if self.registered is not None:
            self.registered.gone(vbucket)

    def high_seqnos(self, state: int) -> Task:
        """Return how far each vBucket is that is in this state, ``{}`` if the node does not say."""
        extras = VBUCKET_SEQNOS_EXTRAS.pack(state)
        (answer,) = yield Ask([RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras)])
        rows = [] if answer.status else self.rows(answer)
        return {number: seqno for number, seqno, _ in rows}

    def rows(self, answer: ResponseFrame) -> list[tuple[int, int, int]]:
        """Return (vBucket, seqno, term) of a list of seqnos; raises `ProducerError`."""
        try:
            if self.knows_terms:
                return list(VBUCKET_SEQNO_TERM.iter_unpack(answer.value))
            return [(*row, 0) for row in VBUCKET_SEQNO.iter_unpack(answer.value)]
        except struct.error:
            raise ProducerError(f"the node at {self.place} sent a torn list of seqnos") from None

    # --- streams --------------------------------------------------------------------------------

    def stream_request(
        self, vbucket: int, asked: Asked, flags: int, *, lease: int = 0, versions: bool = True
    ) -> tuple[StreamState, StreamStart]:
        """Return a stream that is to be asked for, and the question.

        Args:
            vbucket: whose.
            asked: from where.
            flags: of the stream request.
            lease: what to read from, 0 = the present.
            versions: whether to name all histories that are known; a node may have a limit.
        """
        stream = StreamState(
            vbucket, self.decoder.questions.new_opaque(), asked.seqno, asked.snapshot
        )
        self.decoder.streams[stream.opaque] = stream
        options = StreamOptions(lease=lease, term=asked.term if self.knows_terms else 0)
        uuid = asked.uuid
        if versions and features.VERSIONS in self.granted and asked.known_versions:
            options = options._replace(known_versions=asked.known_versions)
            uuid = asked.known_versions[0].uuid
        request = StreamRequest(flags, asked.seqno, SEQNO_MAX, uuid, *asked.snapshot)
        return stream, StreamStart(vbucket, stream.opaque, request, options)

    def close_stream(self, stream: StreamState) -> RequestFrame:
        """Return the request to end a stream; its frames are dropped from now on."""
        stream.dropped = True
        self.decoder.streams.pop(stream.opaque, None)
        return RequestFrame(Opcode.UPR_CLOSE_STREAM, vbucket=stream.vbucket)
