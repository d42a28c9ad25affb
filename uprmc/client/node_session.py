"""One connection to one node, without its socket: questions, streams, keep-alives, reports.

`receive` gives events in the order in which they came; answers are among them. Tasks (see `ask`)
ask the questions; those that open the connection are in `opening`.

Source: ``docs/streams.md``, how to write a consumer; UPR reference 2, 4.6, 4.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uprmc.client.ahead import ReadAhead
from uprmc.client.ask import PIPELINE_MAX, Ask, Task
from uprmc.client.bursts import Bursts, is_burst
from uprmc.client.connection import LOGIN, WANTS_LOGIN
from uprmc.client.decoder import Decoder
from uprmc.client.errors import ClientError, ConnectionLost, OpenRefused, ProducerError
from uprmc.client.events import Event
from uprmc.client.node_facts import NodeFacts
from uprmc.client.opening import Opening
from uprmc.client.position import Asked
from uprmc.errors import RemoteProtocolError
from uprmc.login.credentials import Credentials
from uprmc.model import SEQNO_MAX
from uprmc.protocol import control
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr import StreamRequest
from uprmc.protocol.upr_extensions import StreamOptions
from uprmc.protocol.upr_many import StreamStart, encode_stream_requests, split_starts
from uprmc.remote.conversation import (
    KEEP_ALIVES,
    FlowControl,
    Silence,
    acknowledgement,
    keep_alive_answer,
)
from uprmc.remote.registering import Instance, Purged, Registering
from uprmc.remote.stream import StreamState

#: At most this many streams are asked for at a time: each in a frame of its own, or together.
_STARTS_ALONE_MAX, _STARTS_MAX = 128, 1_024

#: Keep-alives may be so late, as a multiple of the interval and in seconds, before we hang up.
_SILENCE_INTERVALS = 2.0
_SILENCE_SLACK_S = 2.0


class NodeSession:
    """Turns bytes of a node into events, and questions into bytes for it.

    Attributes:
        ack_share: what share of the buffer is acknowledged at a time.
        place: HOST:PORT of the node.
        opening: how the connection is opened.
        open: the handshake is done.
        error: why the connection cannot go on; the owner of the socket closes it.
        granted: CONTROL keys that the node accepted.
        facts: what the node has told of its vBuckets.
        decoded: what was received last is decoded, so what comes next may be heard ahead.
        items: changes received; with `bytes_received` they tell the size of one.
        has_versions: whether the node knows GET_VERSION; ``None`` = it was not asked yet.
        bursts: events that wait for the rest of their burst.
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
        self.opening = Opening(
            place, name, wants_values, buffer_bytes, noop_interval_s, credentials, tls
        )
        self.facts = NodeFacts(place, wants_replicas=wants_replicas)
        self.open = False
        self.error: ClientError | None = None
        self.granted: set[bytes] = set()
        self.decoded = True
        self.items = 0
        self.bytes_received = 0
        self.has_versions: bool | None = None
        self.decoder = Decoder(place, wants_values=wants_values)
        self.flow = FlowControl(0, self.ack_share)
        self.silence = Silence()
        self._to_send: list[bytes] = []
        self._starts: list[StreamStart] = []
        self.registered = None if instance is None else Registering(instance)
        self._named: dict[int, tuple[int, int]] = {}
        self._ahead = ReadAhead()
        self.bursts = Bursts()

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
        found = ask.next()
        if found is None:
            return False
        number, frame = found
        opaque = self.decoder.questions.expect(frame.opcode, (ask, number), frame.opaque)
        if type(frame) is StreamStart and control.STREAM_REQUESTS in self.granted:
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
        """Open the connection, and poll the node.

        Raises:
            OpenRefused: the node does not want us.
        """
        opened = yield from self.opening.handshake(registering=self.registered is not None)
        self.grant(opened.granted)
        self.facts.knows_terms, self.facts.map = opened.knows_terms, opened.map
        if self.registered is not None:
            self.registered.begin(self.granted)
        self.open = True
        yield from self.poll(())

    def grant(self, keys: set[bytes]) -> None:
        """Take the CONTROLs that the node has accepted."""
        self.granted = keys
        self.flow.buffer_bytes = self.opening.buffer_bytes if control.FLOW_CONTROL in keys else 0

    def poll(self, disputed: Sequence[int]) -> Task:
        """Ask which vBuckets the node has, and for the history of disputed ones."""
        return self.facts.poll(disputed, self.decoder.log)

    @property
    def starts_max(self) -> int:
        """How many streams may be asked for before there are answers."""
        return _STARTS_MAX if control.STREAM_REQUESTS in self.granted else _STARTS_ALONE_MAX

    def gone(self, vbucket: int) -> None:
        """Take note that a vBucket is not there any more, as far as is known."""
        self.facts.gone(vbucket)
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
        options = StreamOptions(lease=lease, term=asked.term if self.facts.knows_terms else 0)
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
