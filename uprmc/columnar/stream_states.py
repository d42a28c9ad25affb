"""One stream of one vBucket at the reader's end: how far it is, and whether what comes may come.

An state outlives connections: when one is lost, the next one asks for the rest of the same snapshot
of the same lease.

Source: ``docs/streams.md``, how to write a consumer; ``docs/extensions.md``, leases.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.model import FailoverLog
from uprmc.protocol.opcodes import MarkerFlag, StreamFlag
from uprmc.protocol.upr import STREAM_REQUEST_EXTRAS

#: A stream of a lease ends by itself.
_NO_END = 0xFFFFFFFFFFFFFFFF

#: Seqnos are 64 bits without sign on the wire, with sign in a column.
SEQNO_MAX = 0x7FFFFFFFFFFFFFFF

#: `high` before the first marker: nothing may come.
_NOTHING = -1


class StreamState:
    """See the module docstring. What contradicts the promise of a stream raises `ValueError`.

    Attributes:
        vbucket: by number.
        start: the seqno after which the read begins.
        limit: rows above it are left out; ``None``: none.
        resumed: what came before the start was read from the same lease.
        seqno: the last one that came.
        snap_start, snap_end: the snapshot that it lies in.
        disk: whether that was announced as coming from disk.
        log: the failover log in force, newest first.
        held_high: up to where the lease holds it; ``None`` = not known.
        purge_seqno: deletions up to it may be missing.
        uuid: the history to ask for.
        rows, deletes, size_bytes: what was handed on.
        ended: all of it has come.
        closed: the rest of the stream is not wanted.
        begun: rows of it were yielded.
        block: number of the last block with rows of it.
    """

    def __init__(
        self,
        vbucket: int,
        start: int = 0,
        uuid: int = 0,
        snap_start: int = 0,
        snap_end: int = 0,
        limit: int | None = None,
        resumed: bool = False,
    ) -> None:
        self.vbucket, self.start, self.limit = vbucket, start, limit
        self.resumed = resumed
        self._asked = (uuid, snap_start, snap_end) if snap_end > start else (uuid, start, start)
        self.held_high: int | None = None
        self.restart()

    def restart(self) -> None:
        """Begin again: nothing has come, nothing is known of a lease."""
        self.seqno = self.start
        self.uuid, self.snap_start, self.snap_end = self._asked
        self.log: FailoverLog = ()
        self.held_high = None
        self.purge_seqno = 0
        self.rows = self.deletes = self.size_bytes = 0
        self.ended = self.begun = self.disk = False
        self.block = -1
        self.open()

    def open(self) -> None:
        """A stream is asked for on a new connection."""
        self.accepted = self.closed = False
        self._high = _NOTHING

    @property
    def enough(self) -> bool:
        """Whether all that is wanted of it has come."""
        return self.limit is not None and self.seqno >= self.limit

    @property
    def end(self) -> int:
        """Up to where it goes: the high seqno of the lease, which its one snapshot has, too."""
        return max(self.seqno, self._high) if self.held_high is None else self.held_high

    def request(self) -> bytes:
        """Return the extras of the stream request for what is missing.

        In the middle of a lease no deletion was missed that the lease does not have: without the
        flag the node would send us back to 0 where it has dropped some above our place.
        """
        inside = self.resumed or self.seqno > self.start
        flags = StreamFlag.IGNORE_PURGED if inside else 0
        snap_start = min(self.snap_start, self.seqno)  # one that is announced begins above it
        return STREAM_REQUEST_EXTRAS.pack(
            flags, 0, self.seqno, _NO_END, self.uuid, snap_start, self.snap_end
        )

    def hold(self, high_seqno: int, purge_seqno: int) -> None:
        """Take what a lease is known to hold."""
        self.held_high, self.purge_seqno = high_seqno, purge_seqno

    # --- what comes -----------------------------------------------------------------------------

    def accept(self, log: FailoverLog) -> None:
        """The node has accepted the request."""
        self.accepted = True
        self.log = log
        self.uuid = log[0][0]

    def marker(self, start: int, end: int, kind: int, purge_seqno: int) -> None:
        """A snapshot is announced."""
        first = self.snap_start if self.seqno < self.snap_end else self.seqno + 1
        if not self.accepted:
            raise ValueError("a snapshot of a stream that was not accepted")
        if not start <= first or not self.seqno < end <= SEQNO_MAX:
            raise ValueError(f"a snapshot {start}..{end} at seqno {self.seqno}")
        if self.held_high is not None and end > self.held_high:
            raise ValueError(f"a snapshot to {end} of a lease to {self.held_high}")
        self.snap_start, self.snap_end, self._high = start, end, end
        self.disk = bool(kind & MarkerFlag.DISK)
        self.purge_seqno = max(self.purge_seqno, purge_seqno)

    def items(self, first: int, last: int) -> None:
        """Items with rising seqnos from `first` to `last` have come."""
        if self._high == _NOTHING:
            raise ValueError(f"seqno {first} before any snapshot")
        if first <= self.seqno:
            raise ValueError(f"seqno {first} after {self.seqno}")
        if last > self._high or first < self.snap_start:
            raise ValueError(f"seqno {last} outside of {self.snap_start}..{self._high}")
        self.seqno = last

    def finish(self) -> None:
        """The stream ended because everything was sent."""
        due = self.snap_end if self.held_high is None else max(self.held_high, self.snap_end)
        if not self.accepted or self.seqno < due:
            raise ValueError(f"the end of a stream at seqno {self.seqno} that goes to {due}")
        self.ended = True


class StreamEnd(NamedTuple):
    """No more of a stream will come; an `EndReason` says why."""

    state: StreamState
    reason: int
