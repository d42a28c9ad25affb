"""Streams of one lease over one connection: asks for a few vBuckets at a time, yields blocks.

Only a few, because rows of a vBucket that is not complete may have to be kept back, and because the
node reads its disk best in one place. When one ends the next is asked for, so neither side waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from uprmc.columnar.access import Access
from uprmc.columnar.connection import Connection
from uprmc.columnar.decoder import Block, Decoder, Noop, Notice
from uprmc.columnar.errors import LeaseEnded, LeaseRefused, RolledBack, SparkError, Unreachable
from uprmc.columnar.read_state import ReadState, StreamEnd
from uprmc.columnar.retry_policy import Busy
from uprmc.columnar.schema import Columns
from uprmc.protocol import control
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import EndReason, Opcode, OpenFlag, Status, opcode_name
from uprmc.protocol.upr import ROLLBACK_VALUE
from uprmc.remote import features
from uprmc.remote.conversation import FlowControl, acknowledgement, keep_alive_answer

#: Streams that are open at a time.
STREAMS_OPEN = 8

#: How far the node may be ahead where rows above a limit are left out.
_LIMITED_BYTES = 1024 * 1024

#: What share of the buffer is acknowledged at a time.
_ACK_SHARE = 1 / 2

#: Keep-alives of an idle node within `read_timeout_s`.
_NOOPS = 3


class LeaseGone(LeaseEnded):
    """The node does not know the lease any more: another one may do."""


class Streams:
    """The streams of one lease over one connection."""

    def __init__(
        self,
        connection: Connection,
        access: Access,
        columns: Columns,
        name: str,
        *,
        lease: int,
        rows: int,
        size_bytes: int,
        no_value: bool,
    ) -> None:
        self._connection, self._access, self._columns = connection, access, columns
        self._name = name
        self._value = b'{"lease":"%016x"}' % lease
        self._lease = lease
        self._no_value = no_value or not columns.wants_value
        self._decoder = Decoder(
            connection.place, columns, rows=rows, size_bytes=size_bytes, no_value=self._no_value
        )
        self._error: SparkError | None = None
        self._waiting: deque[ReadState] = deque()
        self._open: set[ReadState] = set()
        self._flow = FlowControl(access.flow_control_bytes, _ACK_SHARE)

    def read(self, states: Sequence[ReadState]) -> Iterator[Block]:
        """Yield blocks until everything wanted of the states has come.

        Raises:
            LeaseGone: the lease has ended.
            RolledBack: a start is not in the history.
            Busy, Unreachable: the rest may be asked for on another connection.
            ProtocolError, LeaseRefused, Refused, KeyNotText.
        """
        if _is_limited(states):
            self._flow.buffer_bytes = min(self._flow.buffer_bytes, _LIMITED_BYTES)
            self._decoder.size_bytes = min(self._decoder.size_bytes, _LIMITED_BYTES // 4)
        if self._connection.opened is None:
            self._handshake()
        else:  # an earlier read has done so, whose last bytes are not acknowledged yet
            self._flow = self._connection.opened
        self._waiting.extend(states)
        for each in states:
            each.open()
        self._ask()
        while self._open:
            try:
                count = self._connection.recv_into(self._decoder.room())
            except Unreachable:
                yield self._decoder.take()
                raise
            for notice in self._decoder.received(count):
                self._hear(notice)
            self._acknowledge()
            if self._error is None:
                self._ask()
            if self._decoder.full or self._error or not self._open:
                yield self._decoder.take()
                self._close_enough()
            if self._error is not None:
                raise self._error
        if self._decoder.drained:
            self._connection.opened = self._flow
        else:
            self._connection.close()

    # --- what is sent ---------------------------------------------------------------------------

    def _handshake(self) -> None:
        flags = _flags(self._columns, self._no_value)
        opening = features.LEASE_READER.open(self._name.encode()[-200:], flags)
        controls = features.LEASE_READER.controls(
            buffer_bytes=self._flow.buffer_bytes,
            interval_s=max(0.1, self._access.read_timeout_s / _NOOPS),
        )
        asked = [opening, *controls]
        answers = self._connection.ask_all(asked)
        for frame, answer in zip(asked, answers, strict=True):
            if features.LEASE_READER.is_fatal(frame, answer.status):
                if frame is opening:
                    raise self._connection.refusal(answer, opcode_name(frame.opcode))
                raise LeaseRefused(f"{self._connection.place} has no leases: {answer.reason}")
        if control.FLOW_CONTROL not in features.granted(asked, answers):
            self._flow.buffer_bytes = 0

    def _ask(self) -> None:
        """Ask for streams up to as many as may be open."""
        frames = []
        while self._waiting and len(self._open) < STREAMS_OPEN:
            state = self._waiting.popleft()
            opaque = self._connection.next_opaque()
            self._decoder.states[opaque] = state
            self._open.add(state)
            request = RequestFrame(
                Opcode.UPR_STREAM_REQUEST,
                extras=state.request(),
                value=self._value,
                vbucket=state.vbucket,
            )
            frames.append(request.encode(opaque))
        if frames:
            self._connection.send(b"".join(frames))

    def _acknowledge(self) -> None:
        due = self._flow.processed(self._decoder.counted_bytes)
        self._decoder.counted_bytes = 0
        if due:
            self._connection.send(acknowledgement(due))

    def _close_enough(self) -> None:
        """End streams of which only rows above the limit would come."""
        for state in [each for each in self._open if each.enough and not each.stream.dropped]:
            state.stream.dropped = True
            request = RequestFrame(Opcode.UPR_CLOSE_STREAM, vbucket=state.vbucket)
            opaque = self._connection.next_opaque()
            self._decoder.states[opaque] = state
            self._connection.send(request.encode(opaque))

    # --- what comes -----------------------------------------------------------------------------

    def _hear(self, notice: Notice) -> None:
        if isinstance(notice, Noop):
            self._connection.send(keep_alive_answer(notice.opcode, notice.opaque))
        elif isinstance(notice, StreamEnd):
            self._stream_end(*notice)
        elif notice.opcode == Opcode.UPR_STREAM_REQUEST:
            self._answered(notice)
        elif notice.opcode == Opcode.UPR_CLOSE_STREAM:
            self._open.discard(self._decoder.states[notice.opaque])
        else:
            raise self._decoder.protocol_error(f"an answer to {opcode_name(notice.opcode)}")

    def _stream_end(self, state: ReadState, reason: int) -> None:
        if state.stream.dropped:
            return  # the answer to CLOSE_STREAM is yet to come
        if reason == EndReason.OK:
            self._open.discard(state)
        else:
            self._error = Busy(
                f"{self._connection.place} ended the stream of vb={state.vbucket} ({reason})"
            )

    def _answered(self, answer: ResponseFrame) -> None:
        state = self._decoder.states.get(answer.opaque)
        if state is None or answer.status == Status.SUCCESS:
            return  # `runs` has its say
        if answer.status == Status.ROLLBACK:
            if len(answer.value) != ROLLBACK_VALUE.size:
                raise self._decoder.protocol_error(f"a torn rollback of vb={state.vbucket}")
            (seqno,) = ROLLBACK_VALUE.unpack(answer.value)
            self._error = RolledBack(state.vbucket, state.seqno, seqno)
        elif answer.status == Status.KEY_NOT_FOUND:
            self._error = LeaseGone(
                f"{self._connection.place} has no lease {self._lease:016x} any more"
            )
        else:
            self._error = self._connection.refusal(answer, f"the stream of vb={state.vbucket}")


def purpose_of(
    access: Access, columns: Columns, states: Sequence[ReadState], no_value: bool
) -> str:
    """Return what a connection is opened for, by which `Streams` may use it again."""
    flags = _flags(columns, no_value or not columns.wants_value)
    return f"streams {flags} {_is_limited(states)} {access.flow_control_bytes}"


def _flags(columns: Columns, no_value: bool) -> int:
    if not no_value:
        return 0
    keeps = "_datatype" in columns.names
    return OpenFlag.NO_VALUE_KEEP_DATATYPE if keeps else OpenFlag.NO_VALUE


def _is_limited(states: Sequence[ReadState]) -> bool:
    return any(each.range.end is not None for each in states)
