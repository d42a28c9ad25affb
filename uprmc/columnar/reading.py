"""Read vBuckets to Arrow batches: each key once, as it was at one moment, whatever happens.

Every read goes through a snapshot lease, its own or one that is given. A lost connection is made
again and the rest of the same snapshot asked for. When a lease of its own ends, what was read of a
vBucket is thrown away and read again from a new one, unless rows of it have been yielded; so rows
are kept back for a while. A given lease that has ended cannot be replaced: its rows are
compared with others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from uprmc.columnar.access import Access
from uprmc.columnar.connection import Attempts, lent
from uprmc.columnar.decoder import Block, ColumnDecoder, Noop, Notice
from uprmc.columnar.errors import BadOption, LeaseEnded, RolledBack
from uprmc.columnar.lease import BulkLease, KeptLease, of_token
from uprmc.columnar.read_state import Range, ReadState, StreamEnd
from uprmc.columnar.schema import Columns
from uprmc.connecting import own_name
from uprmc.protocol import control
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import EndReason, Opcode, OpenFlag, Status, opcode_name
from uprmc.protocol.upr import ROLLBACK_VALUE
from uprmc.remote import features
from uprmc.remote.blocking import NodeConnection
from uprmc.remote.conversation import FlowControl, acknowledgement, keep_alive_answer
from uprmc.remote.errors import Busy, ClientError, LeaseRefused, NodeUnreachable
from uprmc.remote.lease import Grant

# --- streams --------------------------------------------------------------------------------------
# Streams of one lease over one connection: asks for a few vBuckets at a time, yields blocks.
#
# Only a few, because rows of a vBucket that is not complete may have to be kept back, and because
# the node reads its disk best in one place. When one ends the next is asked for, so neither side
# waits.


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


class LeaseStreams:
    """The streams of one lease over one connection."""

    def __init__(
        self,
        connection: NodeConnection,
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
        self._decoder = ColumnDecoder(
            connection.place, columns, rows=rows, size_bytes=size_bytes, no_value=self._no_value
        )
        self._error: ClientError | None = None
        self._waiting: deque[ReadState] = deque()
        self._open: set[ReadState] = set()
        self._flow = FlowControl(access.flow_control_bytes, _ACK_SHARE)

    def read(self, states: Sequence[ReadState]) -> Iterator[Block]:
        """Yield blocks until everything wanted of the states has come.

        Raises:
            LeaseGone: the lease has ended.
            RolledBack: a start is not in the history.
            Busy, NodeUnreachable: the rest may be asked for on another connection.
            NodeNonsense, LeaseRefused, Refused, KeyNotText.
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
            except NodeUnreachable:
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
    """Return what a connection is opened for, by which `LeaseStreams` may use it again."""
    flags = _flags(columns, no_value or not columns.wants_value)
    return f"streams {flags} {_is_limited(states)} {access.flow_control_bytes}"


def _flags(columns: Columns, no_value: bool) -> int:
    if not no_value:
        return 0
    keeps = "_datatype" in columns.names
    return OpenFlag.NO_VALUE_KEEP_DATATYPE if keeps else OpenFlag.NO_VALUE


def _is_limited(states: Sequence[ReadState]) -> bool:
    return any(each.range.end is not None for each in states)


# --- reading --------------------------------------------------------------------------------------


#: Rows of vBuckets that are not complete are kept back up to here; then the oldest are yielded.
HOLD_BACK_BYTES = 64 * 1024 * 1024

#: Gets each vBucket that was read completely; `ReadState` says what there is to know of it.
OnDone = Callable[[ReadState], object]

#: Leases of its own that a read takes, one after the other, before it gives up.
LEASES_MAX = 5


def read(
    access: Access,
    ranges: Iterable[Range],
    columns: Columns,
    *,
    lease: str | None = None,
    batch_rows: int = 10_000,
    batch_bytes: int = 8 * 1024 * 1024,
    no_value: bool = False,
    on_done: OnDone | None = None,
    lease_s: float = 600.0,
    hold_back_bytes: int = HOLD_BACK_BYTES,
) -> Iterator[Any]:
    """Yield record batches of one schema, in seqno order within each vBucket.

    Args:
        access: the nodes.
        ranges: one for each vBucket that is wanted.
        columns: of the batches.
        lease: token of a lease to read from, which is renewed meanwhile; ``None`` = one of its own.
        batch_rows, batch_bytes: approximate limits of a batch; a single row may be longer.
        no_value: documents are sent without their values, which are NULL.
        on_done: called with each vBucket once all its rows are yielded, or in the batch to come.
        lease_s: lifetime of a lease of its own.
        hold_back_bytes: see `HOLD_BACK_BYTES`.

    Raises:
        LeaseEnded: the lease given ended, or its own after rows were yielded.
        RolledBack: a start is not in the history of its vBucket.
        NoVBucket, NodeUnreachable, NodeNonsense, KeyNotText, ...
    """
    states = [ReadState(each) for each in sorted(ranges, key=lambda each: each.vbucket)]
    if len({each.vbucket for each in states}) < len(states):
        raise BadOption("a vBucket is named in two ranges")
    if batch_rows < 1 or batch_bytes < 1:
        raise BadOption(f"batchRows={batch_rows} batchBytes={batch_bytes}: both are at least 1")
    work = _Reading(access, columns, states, on_done)
    work.batch_rows, work.batch_bytes, work.no_value = batch_rows, batch_bytes, no_value
    if not states:
        return
    if lease is not None:
        yield from work.given(of_token(access, lease))
    else:
        work.hold_back_bytes = hold_back_bytes
        yield from work.own(lease_s)


class _Reading:
    """One call of `read`: which rows may be yielded, and what is to be read again."""

    def __init__(
        self,
        access: Access,
        columns: Columns,
        states: list[ReadState],
        on_done: OnDone | None,
    ) -> None:
        self.batch_rows = self.batch_bytes = 1
        self.no_value = False
        self.hold_back_bytes = 0
        self._access, self._columns = access, columns
        self._states, self._on_done = states, on_done
        self._held: deque[Block] = deque()
        self._held_bytes = self._blocks = 0
        self._untold: list[ReadState] = []
        self._name = own_name(access.client_id or "spark")

    # --- leases ---------------------------------------------------------------------------------

    def given(self, lease: BulkLease) -> Iterator[Any]:
        """Read from a lease that was acquired elsewhere."""
        ours = lease.only(each.vbucket for each in self._states)
        with KeptLease(self._access, lease=ours, release=False) as kept:
            yield from self._from_lease(kept.lease)

    def own(self, lifetime_s: float) -> Iterator[Any]:
        """Read from leases of its own, a new one when one has ended."""
        for attempt in range(1, LEASES_MAX + 1):
            left = [each.vbucket for each in self._states if not each.ended]
            kept = KeptLease(self._access, left, lifetime_s)
            try:
                with kept:
                    yield from self._from_lease(kept.lease)
                return
            except (LeaseGone, NodeUnreachable) as error:
                begun = [each.vbucket for each in self._states if each.begun and not each.ended]
                if begun and isinstance(error, LeaseGone):
                    raise LeaseEnded(f"{error.text}; rows of vb={begun[0]} are out") from None
                if begun or attempt == LEASES_MAX:
                    raise
                self._begin_again()

    def _begin_again(self) -> None:
        """Forget all of the vBuckets that are not complete."""
        lost = {each.vbucket for each in self._states if not each.ended}
        for each in self._states:
            if each.vbucket in lost:
                each.restart()
        self._held = deque(block.without(lost) for block in self._held)
        self._held_bytes = sum(block.batch.nbytes for block in self._held)

    # --- one lease ------------------------------------------------------------------------------

    def _from_lease(self, lease: BulkLease) -> Iterator[Any]:
        left = [each for each in self._states if not each.ended]
        groups: dict[Grant, list[ReadState]] = {}
        for state in left:
            grant = lease.place_of(state.vbucket)
            groups.setdefault(grant, []).append(state)
            state.place = grant.place
            held = lease.held.get(state.vbucket)
            if held is not None:
                state.held_high, state.purge_seqno = held.high_seqno, held.purge_seqno
        for grant, states in groups.items():
            yield from self._from_node(grant, states)
        yield from self._release(0)

    def _from_node(self, grant: Grant, states: list[ReadState]) -> Iterator[Any]:
        """Read some vBuckets of one node, however often the connection is lost."""
        attempts = Attempts(self._access)
        while left := [each for each in states if not each.ended]:
            before = sum(each.seqno for each in left)
            try:
                purpose = purpose_of(self._access, self._columns, left, self.no_value)
                with lent(grant.place, self._access, purpose) as connection:
                    for block in self._streams(connection, grant.id, left):
                        yield from self._take(block)
            except (NodeUnreachable, Busy) as error:
                if sum(each.seqno for each in left) > before or any(e.ended for e in left):
                    attempts.worked()
                attempts.wait(error)

    def _streams(
        self, connection: NodeConnection, lease: int, states: list[ReadState]
    ) -> Iterator[Block]:
        streams = LeaseStreams(
            connection,
            self._access,
            self._columns,
            f"{self._name}:{states[0].vbucket}",
            lease=lease,
            rows=self.batch_rows,
            size_bytes=self.batch_bytes,
            no_value=self.no_value,
        )
        return streams.read(states)

    # --- rows -----------------------------------------------------------------------------------

    def _take(self, block: Block) -> Iterator[Any]:
        self._held.append(block)
        self._held_bytes += block.batch.nbytes
        for state in block.states:
            state.block = self._blocks
        self._blocks += 1
        self._untold += block.ended
        yield from self._release(self.hold_back_bytes)

    def _release(self, limit_bytes: int) -> Iterator[Any]:
        """Yield blocks, oldest first, whose vBuckets are complete, and all above the limit."""
        while self._held:
            block = self._held[0]
            complete = all(each.ended for each in block.states)
            if not complete and self._held_bytes <= limit_bytes:
                return
            self._held.popleft()
            self._held_bytes -= block.batch.nbytes
            for state in block.states:
                state.begun = True
            yield from self._cut(block)
        self._tell()

    def _cut(self, block: Block) -> Iterator[Any]:
        """Yield batches of a block that is out; `on_done` is called with the last of them."""
        last = len(block.batch) - self.batch_rows
        for start in range(0, len(block.batch), self.batch_rows):
            if start >= last:
                self._tell()
            yield block.batch.slice(start, self.batch_rows)

    def _tell(self) -> None:
        """Tell of vBuckets whose last block is out."""
        out = self._blocks - len(self._held)
        told = [each for each in self._untold if each.block < out]
        self._untold = [each for each in self._untold if each.block >= out]
        if self._on_done is not None:
            for each in told:
                self._on_done(each)
