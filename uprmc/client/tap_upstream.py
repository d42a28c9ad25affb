"""A UPR or DCP producer somewhere else as the upstream of one TAP connection.

`RemoteUpstream` is a session like those of clients, only that it speaks first: the owner of sockets
dials, and joins the two. Frames of its streams wait in a `FramePasser` until they are pulled; the
rules of the connection are `NodeSession`'s, its questions those of `tap_questions`.

Note: nothing is acknowledged to the producer before the TAP client has acknowledged it. So the
connection's buffer limits what waits here. If a producer has no flow control, or does not keep to
it, the adapter stops reading instead.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from uprmc import __version__
from uprmc.client.decoder import Accepted, Decoder, Event
from uprmc.client.errors import ClientError, NotANode, OpenRefused, ProducerError
from uprmc.client.node_session import Ask, NodeSession, Rest, Task
from uprmc.errors import RemoteProtocolError
from uprmc.login.credentials import Credentials
from uprmc.model import SEQNO_MAX, Item, Life, SnapshotRange, VBucketState
from uprmc.ports import Dial, Dialled, Session
from uprmc.protocol.header import MERGED_REQUEST_HEADER, RequestFrame, ResponseFrame, decode_frame
from uprmc.protocol.opcodes import HEADER_BYTES, Opcode, OpenFlag, Status
from uprmc.protocol.upr import (
    MUTATION_FRAME,
    ROLLBACK_VALUE,
    SET_VBUCKET_STATE_EXTRAS,
    StreamRequest,
    frame_head,
)
from uprmc.remote import features, undo
from uprmc.remote.batch import Batch, Received
from uprmc.remote.conversation import KEEP_ALIVES, Questions, keep_alive_answer
from uprmc.remote.directory import seqno_rows, seqnos_request
from uprmc.remote.stream import StreamFault, StreamState
from uprmc.tap_adapter.upstream import UpstreamVBucket

# --- tap frames -----------------------------------------------------------------------------------
# Bytes of a producer to whole frames that are passed on as they came, checked on the way.
#
# The TAP adapter wants frames, not changes: what a stream says goes through as it is, in two pieces
# for a mutation (header and extras; key and value) and in one for all else. The checks are the
# decoder's, because who takes frames apart later does not look whether they make sense.
#
# Note: frames of streams that are not open are dropped here. Flow control counts their bytes all
# the same, so they are added to `dropped_bytes`.


_MUTATION_HEAD = frame_head(Opcode.UPR_MUTATION)
_MUTATION_BYTES = MUTATION_FRAME.size
_OPAQUE = struct.Struct(">12xI")

#: What replicas are sent, and its length: the decoder of consumers knows neither.
_OF_REPLICAS = {
    Opcode.UPR_FLUSH: 0,
    Opcode.UPR_SET_VBUCKET_STATE: SET_VBUCKET_STATE_EXTRAS.size,
}
_OF_CONSUMERS = frozenset(
    {
        Opcode.UPR_MUTATION,
        Opcode.UPR_DELETION,
        Opcode.UPR_EXPIRATION,
        Opcode.UPR_SNAPSHOT_MARKER,
        Opcode.UPR_STREAM_END,
    }
)


class FramePasser(Decoder):
    """See the module docstring; `take` is used instead of `feed`."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.held_bytes = 0  # of frames that were not pulled yet
        self.dropped_bytes = 0  # of frames that are not wanted; who acknowledges them sets it to 0
        self._held: deque[tuple[bytes, ...]] = deque()

    def take(self, data: bytes) -> Iterator[Event]:
        """Yield answers and keep-alives, each before the frames behind it are looked at.

        Raises:
            ProducerError: what no producer may send.
            NotANode: these are no frames.
        """
        position = 0
        if self._rest:
            position, events = self._complete_rest(data)
            yield from events
        size = len(data)
        while True:
            try:
                position = self._hold_mutations(data, position)
            except StreamFault as fault:
                raise self._nonsense(str(fault)) from None
            if size - position < HEADER_BYTES:
                break
            end = position + self._frame_bytes(data, position)
            if end > size:
                break
            events = self._frame(data[position:end])
            position = end
            yield from events
        self._rest += data[position:]

    def pull(self, out: list[bytes], budget: int) -> int:
        """Append whole frames, about `budget` bytes at most; return how many bytes."""
        held, size = self._held, 0
        while held and size < budget:
            pieces = held.popleft()
            out += pieces
            for piece in pieces:
                size += len(piece)
        self.held_bytes -= size
        return size

    @property
    def held_before_last_bytes(self) -> int:
        """What of `held_bytes` had come before the last frame, which may be of any size."""
        return self.held_bytes - sum(map(len, self._held[-1])) if self._held else 0

    @property
    def incomplete_bytes(self) -> int:
        """What has come of a frame that is not complete."""
        return len(self._rest)

    def forget(self, opaque: int) -> None:
        """Drop what is held of a stream, and whatever of it comes yet."""
        self.streams.pop(opaque, None)
        kept: deque[tuple[bytes, ...]] = deque()
        for pieces in self._held:
            if _OPAQUE.unpack_from(pieces[0])[0] == opaque:
                self.dropped_bytes += sum(map(len, pieces))
                self.held_bytes -= sum(map(len, pieces))
            else:
                kept.append(pieces)
        self._held = kept

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()
        self._rest.clear()
        self.streams.clear()
        self.held_bytes = 0

    def _hold(self, *pieces: bytes) -> None:
        self._held.append(pieces)
        self.held_bytes += sum(map(len, pieces))

    # --- frames ---------------------------------------------------------------------------------

    def _hold_mutations(self, data: bytes, position: int) -> int:
        """Hold the mutations that stand here one after the other; return the place behind them."""
        began, size = position, len(data)
        while position + _MUTATION_BYTES <= size:
            head, _, _, vbucket, _, opaque, _ = MERGED_REQUEST_HEADER.unpack_from(data, position)
            stream = self._stream(opaque, vbucket) if head == _MUTATION_HEAD else None
            if stream is None:
                break
            batch = Batch(data)
            stop = batch.take(position, size, stream)
            if stop == position:
                break
            self._held += [
                (data[start : start + _MUTATION_BYTES], data[start + _MUTATION_BYTES : end])
                for start, end in pairwise([*batch.positions, stop])
            ]
            position = stop
        self.held_bytes += position - began
        return position

    def _stream(self, opaque: int, vbucket: int) -> StreamState | None:
        # Opaques are those of the stream's request, so one that is not known may be an old one.
        return super()._stream(opaque, vbucket) if opaque in self.streams else None

    def _complete_rest(self, data: bytes) -> tuple[int, list[Event]]:
        """Deal with the frame that was cut, if all of it is there; return where the next begins.

        Only that one is copied: putting the rest before all of the data would copy all of it.
        """
        rest = self._rest
        taken = max(0, HEADER_BYTES - len(rest))
        rest += data[:taken]
        if len(rest) < HEADER_BYTES:
            return len(data), []
        missing = self._frame_bytes(rest, 0) - len(rest)
        rest += data[taken : taken + missing]
        if len(data) - taken < missing:
            return len(data), []
        frame = bytes(rest)
        rest.clear()
        return taken + missing, self._frame(frame)

    def _frame(self, packet: bytes) -> list[Event]:
        """Deal with any one frame."""
        try:
            frame = decode_frame(packet)
        except RemoteProtocolError as error:
            raise NotANode(f"what answers at {self.place} is no UPR: {error}") from None
        if isinstance(frame, ResponseFrame):
            return [self._answer(frame)]
        if frame.opcode in KEEP_ALIVES:
            return [frame]
        self._pass(frame, packet)
        return []

    def _pass(self, frame: RequestFrame, packet: bytes) -> None:
        known = frame.opcode in _OF_CONSUMERS or frame.opcode in _OF_REPLICAS
        try:
            stream = self._stream(frame.opaque, frame.vbucket) if known else None
            if stream is None:
                self.dropped_bytes += len(packet)
                return
            if frame.opcode in _OF_CONSUMERS:
                self._told(frame, packet, 0, Received(packet))
            elif len(packet) - HEADER_BYTES != _OF_REPLICAS[Opcode(frame.opcode)]:
                raise RemoteProtocolError(f"{len(packet)} bytes")
        except StreamFault as fault:
            raise self._nonsense(str(fault)) from None
        except (struct.error, RemoteProtocolError) as error:
            raise self._nonsense(f"opcode {frame.opcode:#04x}: {error}") from None
        body = HEADER_BYTES + len(frame.extras)
        if body < len(packet):
            self._hold(packet[:body], packet[body:])
        else:
            self._hold(packet)


# --- tap connection -------------------------------------------------------------------------------
# The UPR connection behind one TAP client: what it is called, and its frames as they come.


#: Before the client's name, as ep-engine has it and a node of ours.
PREFIX = b"eq_tapq:"

#: Producers of today take no longer name of a connection.
NAME_MAX_BYTES = 200

_DIGEST_CHARS = 32


def connection_name(name: bytes, suffix: bytes = b"") -> bytes:
    """Return what the UPR connection of a TAP client is called; long names end in a digest."""
    whole = PREFIX + name + suffix
    if len(whole) <= NAME_MAX_BYTES:
        return whole
    digest = hashlib.sha256(whole).hexdigest()[:_DIGEST_CHARS].encode()
    return whole[: NAME_MAX_BYTES - _DIGEST_CHARS - 1] + b"~" + digest


class ProducerSession(NodeSession):
    """A `NodeSession` whose streams are passed on as frames."""

    ack_share = 1 / 4

    def __init__(
        self,
        place: str,
        buffer_bytes: int,
        credentials: Credentials | None = None,
        *,
        tls: bool = False,
    ) -> None:
        super().__init__(
            place,
            "",
            buffer_bytes=buffer_bytes,
            noop_interval_s=NOOP_INTERVAL_S,
            credentials=credentials,
            tls=tls,
        )
        self.passer = FramePasser(place)
        self.decoder = self.passer

    def take(self, data: bytes) -> Iterator[Event]:
        """Return what `FramePasser.take` yields; keep-alives are answered."""
        for event in self.passer.take(data):
            if type(event) is RequestFrame:
                self._to_send.append(keep_alive_answer(event.opcode, event.opaque))
            else:
                yield event

    def send(self, frame: RequestFrame | ResponseFrame) -> None:
        """Have a frame sent that is not a question of a task."""
        self._to_send.append(frame.encode())


# --- tap questions --------------------------------------------------------------------------------
# What the TAP adapter asks a producer beside its streams, one task for each question.
#
# Any producer since UPR 3.0 will do, so every question has a way round for who does not know it:
# the statistics tell what GET_ALL_VB_SEQNOS (4.0) tells, controls that are refused are done
# without, and single documents are only asked of a node of ours.
#
# See `docs/extensions.md`, GET_VERSION.


#: Interval of keep-alives; the shortest that 2014's documents allow.
NOOP_INTERVAL_S = 20.0

_LIVING = (VBucketState.ACTIVE, VBucketState.REPLICA, VBucketState.PENDING)
_STATES = {state.name.lower(): state for state in _LIVING}
_VBUCKET_ROW = re.compile(r"vb_([0-9]{1,5})(?::(high_seqno))?")
_VBUCKET_MAX = 0xFFFF

#: Refusals of a question that another one may replace.
_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.INVALID_ARGUMENTS, Status.NOT_SUPPORTED})


class UpstreamStatistics(NamedTuple):
    """A task yields this to be given the rows of a group, or ``None`` if it is refused."""

    group: str


def handshake(session: NodeSession, name: bytes, buffer_bytes: int, *, values: bool) -> Task:
    """Open the connection; who does not know "no values" sends them.

    Raises:
        OpenRefused: the producer does not want us.
    """
    yield from session.opening.log_in(in_turns=True)
    asked = features.TAP_UPSTREAM
    hello = asked.hello(b"uprmc tap-adapter/" + __version__.encode())
    _, opened = yield Ask([hello, asked.open(name, 0 if values else OpenFlag.NO_VALUE)])
    if opened.status == Status.INVALID_ARGUMENTS and not values:
        (opened,) = yield Ask([asked.open(name)])
    if opened.status:
        raise OpenRefused(f"{session.place} refuses a UPR connection: {opened.reason}")
    controls = asked.controls(buffer_bytes=buffer_bytes, interval_s=NOOP_INTERVAL_S)
    answers = yield Ask(controls)
    session.grant(features.granted(controls, answers))
    session.has_versions = features.is_ours(session.granted)
    session.open = True


# --- where vBuckets stand -------------------------------------------------------------------------


def survey(session: NodeSession, numbers: Sequence[int] | None) -> Task:
    """Return the `UpstreamVBucket` of each vBucket that is there, by number; ``None`` = all.

    Raises:
        ProducerError: no such question is answered, or the answer makes no sense.
    """
    places = yield from _by_seqnos()
    if places is None:
        places = yield from _by_statistics()
    if places is None:
        raise ProducerError(
            f"the upstream at {session.place} does not tell its vBuckets, neither by "
            "GET_ALL_VB_SEQNOS nor by statistics"
        )
    wanted = sorted(places if numbers is None else places.keys() & set(numbers))
    logs = yield Ask([RequestFrame(Opcode.UPR_GET_FAILOVER_LOG, vbucket=n) for n in wanted])
    found: dict[int, UpstreamVBucket] = {}
    for number, answer in zip(wanted, logs, strict=True):
        if answer.status == Status.NOT_MY_VBUCKET:
            continue  # it has gone meanwhile
        if answer.status:
            raise ProducerError(
                f"the upstream at {session.place} does not tell the failover log of vBucket "
                f"{number}: {answer.reason}"
            )
        state, high_seqno = places[number]
        found[number] = UpstreamVBucket(
            state, high_seqno, session.decoder.log(answer, number)[0].uuid
        )
    return found


def _by_seqnos() -> Task:
    answers = yield Ask([seqnos_request(state) for state in _LIVING])
    if any(answer.status in _UNKNOWN for answer in answers):
        return None
    found: dict[int, tuple[int, int]] = {}
    for state, answer in zip(_LIVING, answers, strict=True):
        found.update((number, (int(state), seqno)) for number, seqno, _ in _seqnos(answer))
    return found


def _seqnos(answer: ResponseFrame) -> list[tuple[int, int, int]]:
    if answer.status:
        raise ProducerError(f"the upstream does not tell its seqnos: {answer.reason}")
    try:
        return seqno_rows(answer.value, knows_terms=False)
    except RemoteProtocolError as error:
        raise ProducerError(f"the upstream sent a torn list of seqnos: {error}") from None


def _by_statistics() -> Task:
    states = yield UpstreamStatistics("vbucket")
    seqnos = yield UpstreamStatistics("vbucket-seqno")
    if states is None or seqnos is None:
        return None
    highs = _high_seqnos(seqnos)
    found: dict[int, tuple[int, int]] = {}
    for name, text in states.items():
        matched = _VBUCKET_ROW.fullmatch(name)
        number = int(matched[1]) if matched and not matched[2] else -1
        if number in highs and text in _STATES:
            found[number] = (int(_STATES[text]), highs[number])
    return found


def _high_seqnos(rows: Mapping[str, str]) -> dict[int, int]:
    """Return one column of ``vbucket-seqno``."""
    found: dict[int, int] = {}
    for name, text in rows.items():
        matched = _VBUCKET_ROW.fullmatch(name)
        plausible = matched and matched[2] and re.fullmatch(r"[0-9]{1,20}", text)
        if matched and plausible and int(matched[1]) <= _VBUCKET_MAX:
            found[int(matched[1])] = min(int(text), SEQNO_MAX)
    return found


# --- single documents -----------------------------------------------------------------------------


def fetch(session: NodeSession, number: int, keys: Sequence[bytes]) -> Task:
    """Return the newest version of each key, in order; ``None`` = it cannot be had there.

    Raises:
        ProducerError: an answer makes no sense.
    """
    if not session.has_versions:
        return None  # many hang up on a command that they do not know
    answers = yield Ask([undo.question(number, key) for key in keys])
    found: list[Item] = []
    for key, answer in zip(keys, answers, strict=True):
        try:
            version = undo.version(key, answer)
        except undo.UndoRefused:
            return None
        except RemoteProtocolError as error:
            words = f"the upstream at {session.place} sent a torn document: {error}"
            raise ProducerError(words) from None
        found.append(_missing(key) if version.item is None else version.item)
    return found


def _missing(key: bytes) -> Item:
    return Item(key, None, 0, 0, 0, 0, 0, life=Life.DELETED)


# --- tap upstream ---------------------------------------------------------------------------------


#: So much is received ahead of a client; small, for there may be many of them.
BUFFER_BYTES = 1024 * 1024

#: Statistics have no more rows than this: some for each vBucket.
ROWS_MAX = 1_000_000

#: So many buffers a producer may be ahead before we read no further.
_TOLERANCE = 2


class RemoteUpstream:
    """See the module docstring. Implements `upstream.Upstream` and `ports.Session`."""

    successor: Session | None = None
    flushes = 0  # no frame tells

    def __init__(
        self,
        dial: Dial,
        place: str,
        name: bytes,
        values: bool,
        wake: Callable[[], None],
        *,
        buffer_bytes: int = BUFFER_BYTES,
        lost: Callable[[str], None] = lambda _: None,
        credentials: Credentials | None = None,
        tls: bool = False,
    ) -> None:
        """Dial; what is asked meanwhile waits until the producer is there.

        Args:
            dial: opens connections; may fail at once.
            place: the producer, HOST:PORT.
            name: the connection's.
            values: whether documents come with their values, if the producer can leave them out.
            wake: called when there is something to pull, an answer has come, or `closed` was set.
            buffer_bytes: so much is received ahead.
            credentials: who logs in, ``None`` = no user.
            tls: whether `dial` speaks TLS.
            lost: called with why the connection ended or never came about, but not at `close`.
        """
        self.closed = ""
        self.closing = self.input_full = False
        self._session = ProducerSession(place, buffer_bytes, credentials, tls=tls)
        self._name = name
        self._values = values
        self._buffer_bytes = buffer_bytes
        self._wake = wake
        self._lost = lost
        self._wake_wire: Callable[[], None] | None = None
        self._gone = False
        self._resting: Task | None = None
        self._waiting: list[Callable[[], None]] = []
        self._asked: Questions[tuple[StreamState, Callable[[int, bytes], None]]] = Questions(
            strict=False
        )
        self._streams: dict[int, StreamState] = {}
        self._rows: Questions[tuple[dict[str, str], Task]] = Questions(strict=False)
        self._dialled: Dialled | None = None
        dialled = dial(place, self._connected, self._not_connected)
        if not self._gone:
            self._dialled = dialled

    # --- the connection -------------------------------------------------------------------------

    def _connected(self, wake: Callable[[], None]) -> Session:
        self._wake_wire = wake
        self._run(self._begin())
        return self

    def _not_connected(self, why: str) -> None:
        self._fail(f"the upstream at {self._session.place}: {why}")

    def _begin(self) -> Task:
        session = self._session
        yield from handshake(session, self._name, self._buffer_bytes, values=self._values)
        waiting, self._waiting = self._waiting, []
        for begin in waiting:
            begin()

    def _fail(self, why: str) -> None:
        """Hang up because the connection cannot go on."""
        if self._gone:
            return
        self._let_go()
        self.closed = why
        self._lost(why)
        self._wake()

    def _let_go(self) -> None:
        """End the connection, if there is one, and forget what was asked."""
        self._gone = self.closing = True
        dialled, self._dialled = self._dialled, None
        if dialled is not None:
            dialled.abandon()
        self.input_full = False
        self._session.close()
        self._session.passer.clear()
        for _, task in self._rows.clear():
            task.close()
        if self._resting is not None:
            self._resting.close()
            self._resting = None
        for each in (self._waiting, self._asked, self._streams):
            each.clear()

    def _stir(self) -> None:
        """Have the connection send what there is."""
        if self._wake_wire is not None:
            self._wake_wire()

    # --- the session's doors --------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """See `ports.Session`."""
        if self._gone:
            return
        self._session.silence.broken = True
        self._session.bytes_received += len(data)
        try:
            for event in self._session.take(data):
                self._deal_with(event)
                if self.closing:
                    return
        except ClientError as error:
            self._fail(str(error))
            return
        self._settle()
        self._wake()

    def data_to_send(self, budget: int) -> list[bytes]:
        """See `ports.Session`."""
        resting, self._resting = self._resting, None
        if resting is not None:
            self._run(resting)
        data = self._session.data_to_send()
        return [data] if data else []

    def tick(self, now: float) -> None:
        """See both: a producer that has vanished is noticed."""
        if self._gone:
            return
        if self.input_full:
            self._session.silence.heard(now)
        self._session.tick(now)
        if self._session.error is not None:
            self._fail(str(self._session.error))

    def buffered(self) -> tuple[int, int]:
        """See `ports.Session`; frames that a client has not taken are limited for each upstream."""
        return self._session.passer.incomplete_bytes, 0

    def connection_lost(self) -> None:
        """See `ports.Session`."""
        self._fail(f"the connection to the upstream at {self._session.place} ended")

    def _settle(self) -> None:
        """Acknowledge what is due, and see whether to read on."""
        passer = self._session.passer
        self._acknowledge(passer.dropped_bytes)
        passer.dropped_bytes = 0
        # Whoever keeps to the window is always heard: an answer may wait behind what is held.
        full = passer.held_before_last_bytes > _TOLERANCE * self._buffer_bytes
        if full is not self.input_full:
            self.input_full = full
            self._stir()

    def _acknowledge(self, size: int) -> None:
        if self._session.acknowledge(size):
            self._stir()

    # --- answers --------------------------------------------------------------------------------

    def _deal_with(self, event: Event) -> None:
        frame = event.answer if type(event) is Accepted else event
        assert type(frame) is ResponseFrame
        if frame.opcode == Opcode.UPR_STREAM_REQUEST:
            self._stream_answered(frame)
        elif (found := self._rows.waiting_for(frame.opcode, frame.opaque)) is not None:
            self._row(frame, *found)
        else:
            ask = self._session.answered(frame)
            if ask is not None and ask.task is not None:
                self._run(ask.task, ask.answers)

    def _stream_answered(self, frame: ResponseFrame) -> None:
        found = self._asked.answered(frame.opcode, frame.opaque)
        if found is None:
            return  # closed meanwhile
        stream, done = found
        if frame.status:
            self._forget(stream)
        if frame.status == Status.ROLLBACK and len(frame.value) != ROLLBACK_VALUE.size:
            raise ProducerError(
                f"the upstream at {self._session.place} sent a rollback of {len(frame.value)} bytes"
            )
        done(frame.status, frame.value)

    def _row(self, frame: ResponseFrame, rows: dict[str, str], task: Task) -> None:
        if frame.key and not frame.status:
            if len(rows) >= ROWS_MAX:
                raise ProducerError(f"{self._session.place} has no end of statistics")
            rows[frame.key.decode("utf-8", "replace")] = frame.value.decode("utf-8", "replace")
            return
        self._rows.forget(frame.opaque)
        self._run(task, None if frame.status else rows)

    def _run(self, task: Task, value: Any = None) -> None:
        """Carry a task on to its next question."""
        if self._gone:
            task.close()
            return
        try:
            asked = task.send(value)
        except StopIteration:
            return
        except ClientError as error:
            self._fail(str(error))
            return
        if isinstance(asked, UpstreamStatistics):
            opaque = self._session.decoder.questions.new_opaque()
            self._rows.expect(Opcode.STAT, ({}, task), opaque)
            frame = RequestFrame(Opcode.STAT, key=asked.group.encode(), opaque=opaque)
            self._session.send(frame)
        elif isinstance(asked, Rest):
            self._resting = task
        else:
            self._put(asked, task)
        self._stir()

    def _put(self, ask: Ask, task: Task) -> None:
        if ask.answers:
            ask.task = task
            self._session.ask(ask)
        else:
            self._run(task, [])

    def _when_open(self, begin: Callable[[], None]) -> None:
        """Begin something now, or as soon as the handshake is over."""
        if self._session.open:
            begin()
        elif not self._gone:
            self._waiting.append(begin)

    # --- what the adapter asks for --------------------------------------------------------------

    def covers(self, numbers: Collection[int]) -> bool:
        """See `upstream.Upstream`."""
        return False

    def survey(
        self, numbers: Sequence[int] | None, done: Callable[[dict[int, UpstreamVBucket]], None]
    ) -> None:
        """See `upstream.Upstream`."""

        def asking() -> Task:
            found = yield from survey(self._session, numbers)
            done(found)

        self._when_open(lambda: self._run(asking()))

    def open(
        self,
        number: int,
        opaque: int,
        request: StreamRequest,
        done: Callable[[int, bytes], None],
    ) -> None:
        """See `upstream.Upstream`."""

        def ask() -> None:
            snapshot = SnapshotRange(request.snapshot_start, request.snapshot_end)
            stream = StreamState(number, opaque, request.start_seqno, snapshot)
            self._session.decoder.streams[opaque] = self._streams[number] = stream
            self._asked.expect(Opcode.UPR_STREAM_REQUEST, (stream, done), opaque)
            frame = RequestFrame(
                Opcode.UPR_STREAM_REQUEST, extras=request.encode(), vbucket=number, opaque=opaque
            )
            self._session.send(frame)
            self._stir()

        self._when_open(ask)

    def close_stream(self, number: int) -> None:
        """See `upstream.Upstream`; what was received of it and not pulled is dropped."""
        stream = self._streams.get(number)
        if stream is None or self._gone:
            return
        ended = stream.opaque not in self._session.decoder.streams
        self._asked.forget(stream.opaque)
        self._forget(stream)
        if not ended:
            self._session.send(
                RequestFrame(Opcode.UPR_CLOSE_STREAM, vbucket=number, opaque=stream.opaque)
            )
        self._settle()
        self._stir()

    def _forget(self, stream: StreamState) -> None:
        self._session.passer.forget(stream.opaque)
        if self._streams.get(stream.vbucket) is stream:
            del self._streams[stream.vbucket]

    def pull(self, out: list[bytes], budget: int) -> int:
        """See `upstream.Upstream`."""
        size = self._session.passer.pull(out, budget)
        if self.input_full:
            self._settle()
        return size

    def answer(self, opcode: int, opaque: int, status: int) -> None:
        """See `upstream.Upstream`."""
        if not self._gone:
            self._session.send(ResponseFrame(opcode, status, opaque=opaque))
            self._stir()

    def acknowledged(self, size: int) -> None:
        """See `upstream.Upstream`."""
        if not self._gone:
            self._acknowledge(size)
            self._settle()

    def fetch(
        self, number: int, keys: Sequence[bytes], done: Callable[[list[Item] | None], None]
    ) -> None:
        """See `upstream.Upstream`; only nodes of ours know single versions."""

        def asking() -> Task:
            found = yield from fetch(self._session, number, keys)
            done(found)

        self._when_open(lambda: self._run(asking()))

    def close(self) -> None:
        """See `upstream.Upstream`."""
        if not self._gone:
            self._let_go()
