"""Read vBuckets to Arrow batches: each key once, as it was at one moment, whatever happens.

Every read goes through a snapshot lease, its own or one that is given. A lost connection is made
again and the rest of the same snapshot asked for. When a lease of its own ends, what was read of a
vBucket is thrown away and read again from a new one, unless rows of it have been yielded; so rows
are kept back for a while. A given lease that has ended cannot be replaced: its rows are
compared with others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from uprmc.columnar.access import Access
from uprmc.columnar.connection import Connection, lent
from uprmc.columnar.decoder import Block
from uprmc.columnar.errors import BadOption, LeaseEnded, Unreachable
from uprmc.columnar.lease import KeptLease, Lease, of_token
from uprmc.columnar.read_state import Range, ReadState
from uprmc.columnar.retry_policy import Attempts, Busy
from uprmc.columnar.schema import Columns
from uprmc.columnar.streams import LeaseGone, Streams, purpose_of
from uprmc.connecting import own_name
from uprmc.remote.lease import Grant

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
        NoVBucket, Unreachable, ProtocolError, KeyNotText, ...
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

    def given(self, lease: Lease) -> Iterator[Any]:
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
            except (LeaseGone, Unreachable) as error:
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

    def _from_lease(self, lease: Lease) -> Iterator[Any]:
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
            except (Unreachable, Busy) as error:
                if sum(each.seqno for each in left) > before or any(e.ended for e in left):
                    attempts.worked()
                attempts.wait(error)

    def _streams(
        self, connection: Connection, lease: int, states: list[ReadState]
    ) -> Iterator[Block]:
        streams = Streams(
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
