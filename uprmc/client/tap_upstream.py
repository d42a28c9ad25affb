"""A UPR or DCP producer somewhere else as the upstream of one TAP connection.

`RemoteUpstream` is a session like those of clients, only that it speaks first: whoever owns sockets
dials, and joins the two. Frames of its streams wait in a `FramePasser` until they are pulled; the
rules of the connection are `NodeSession`'s, its questions those of `tap_questions`.

Note: nothing is acknowledged to the producer before the TAP client has acknowledged it. So the
connection's buffer limits what waits here. If a producer has no flow control, or does not keep to
it, the adapter stops reading instead.

Source: TAP reference 10; UPR reference 2 and 4.7; ``tap_adapter/upstream.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from uprmc.client.ask import Ask, Rest, Task
from uprmc.client.errors import ClientError, ProducerError
from uprmc.client.events import Accepted, Event
from uprmc.client.tap_connection import ProducerSession
from uprmc.client.tap_questions import Statistics, fetch, handshake, survey
from uprmc.login.credentials import Credentials
from uprmc.model import Item, SnapshotRange
from uprmc.ports import Dial, Dialled, Session
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.upr import ROLLBACK_VALUE, StreamRequest
from uprmc.remote.conversation import Questions
from uprmc.remote.stream import StreamState
from uprmc.tap_adapter.upstream import Standing

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
            credentials: who logs in, ``None`` = nobody.
            tls: whether `dial` speaks TLS.
            lost: told why the connection ended, or never came about, unless it was closed here.
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
        if isinstance(asked, Statistics):
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
        self, numbers: Sequence[int] | None, done: Callable[[dict[int, Standing]], None]
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
