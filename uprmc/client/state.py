"""What a consumer keeps across restarts, and the contract of whatever keeps it.

Of each vBucket: the position (`Saved`) and the *ring*, the keys received lately with their seqnos.
After a rollback the documents of the ring's keys are fetched again, so a key must be in the ring
before its change is applied. `commit` writes positions and ring in one transaction: what is loaded
later is always what one commit left behind.

`MemoryState` is the contract in dicts: the reference model of the contract's tests, the simulator's
disk, and enough for a consumer that begins again at each start. `SqliteState` keeps a file.

Rows D13, D44, D45, D48.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple, Protocol

from uprmc.client.errors import ClientError
from uprmc.model import FailoverEntry, SnapshotRange


class StateError(ClientError):
    """A state could not be read or written. A failed commit has changed nothing."""


class StateFull(StateError):
    """No room for the state; the same commit succeeds once there is."""


class StateRefused(StateError):
    """This state is not for this consumer; the text is one line for the operator."""


class Saved(NamedTuple):
    """Where a consumer stands in one vBucket."""

    seqno: int  # everything up to here is applied and durable
    # ``(seqno, seqno)`` when a snapshot is whole; its bounds when inside one.
    snapshot: SnapshotRange
    log: tuple[FailoverEntry, ...]  # the failover log, newest first
    ring_from: int  # every key received after this seqno is in the ring
    purge_seqno: int = 0  # highest seqno of a dropped tombstone, as the node said last
    term: int = 0  # the highest of the vBucket of any node, 0 = unknown


class RingChunk(NamedTuple):
    """Keys that one batch brought for one vBucket: ``(seqno, key)`` by rising seqno."""

    vbucket: int
    entries: Sequence[tuple[int, bytes]]


#: Key of the ring entry that marks the end of a snapshot.
BOUNDARY = b""


class RingColumns:
    """Chunks of one commit as columns: built and packed without an object for each vBucket.

    Chunks follow one another: a vBucket and how many entries it has, then the next; a vBucket may
    have several, by rising seqno. The end of a snapshot is a chunk with one entry, `BOUNDARY`.
    """

    __slots__ = ("keys", "lengths", "seqnos", "vbuckets")

    def __init__(
        self,
        vbuckets: list[int] | None = None,
        lengths: list[int] | None = None,
        seqnos: list[int] | None = None,
        keys: list[bytes] | None = None,
    ) -> None:
        """Begin with columns, or with nothing: `vbuckets` and `lengths` are of chunks."""
        self.vbuckets = vbuckets or []
        self.lengths = lengths or []
        self.seqnos = seqnos or []
        self.keys = keys or []

    @classmethod
    def of(cls, chunks: Iterable[RingChunk]) -> RingColumns:
        """Return the columns of chunks; empty ones are left out."""
        if isinstance(chunks, cls):
            return chunks
        found = cls()
        for vbucket, entries in chunks:
            if entries:
                found.add(vbucket, *zip(*entries, strict=True))
        return found

    def add(self, vbucket: int, seqnos: Sequence[int], keys: Sequence[bytes]) -> None:
        """Add a chunk that is not empty."""
        self.vbuckets.append(vbucket)
        self.lengths.append(len(seqnos))
        self.seqnos += seqnos
        self.keys += keys

    def add_boundaries(self, vbuckets: Sequence[int], ends: Sequence[int]) -> None:
        """Add ends of snapshots, one for each of some vBuckets."""
        self.vbuckets += vbuckets
        self.lengths += [1] * len(ends)
        self.seqnos += ends
        self.keys += [BOUNDARY] * len(ends)

    def __iter__(self) -> Iterator[RingChunk]:
        ranges = pairwise(accumulate(self.lengths, initial=0))
        for vbucket, (start, end) in zip(self.vbuckets, ranges, strict=True):
            entries = zip(self.seqnos[start:end], self.keys[start:end], strict=True)
            yield RingChunk(vbucket, list(entries))


class StateStore(Protocol):
    """Where positions and rings are kept. One consumer uses it, one call at a time.

    A store whose commits take the handler's own writes with them says so by an attribute `shared`
    that is true, and has a method `abandon` that undoes those since the last commit. One that
    outlives the process has an attribute `instance`, the id under which its consumer is registered
    with nodes, and a method `name_instance` that keeps another one; likewise `vbuckets`, over how
    many the documents are spread (0 = unknown), and `name_vbuckets`. One whose commits become
    durable later has a method `durable_of`: what of a vBucket is, ``None`` = nothing; nodes are
    told that.
    """

    def load(self) -> dict[int, Saved]:
        """Return the positions of all vBuckets that have one, as the last commit left them.

        Raises:
            StateError: what is kept cannot be read back.
        """

    def commit(
        self,
        saved: Mapping[int, Saved],
        ring: Iterable[RingChunk],
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        """Write all of it or nothing, durably, in this order: cuts, trims, ring, positions.

        Args:
            saved: new positions; vBuckets that are not named keep theirs.
            ring: entries to add. After a resumed stream they may repeat or overlap what is there.
            trims: forget ring entries at or below this seqno (too old to be needed). Cheapest where
                a chunk that was added ends.
            cuts: forget ring entries above this seqno (undone by a rollback).

        Raises:
            StateFull: no room.
            StateError: it failed otherwise.
        """

    def ring_after(self, vbucket: int, seqno: int) -> list[tuple[int, bytes]]:
        """Return the ring's entries above `seqno`, each once, by rising seqno.

        Raises:
            StateError: what is kept cannot be read back.
        """

    def ring_size(self, vbucket: int) -> int:
        """Return how many entries the ring holds; what was added twice counts twice."""

    def forget(self, vbuckets: Iterable[int]) -> None:
        """Drop positions and rings of these vBuckets, in a transaction of its own.

        Raises:
            StateError: it failed; nothing was dropped.
        """

    def close(self) -> None:
        """Let go of the file. Closing twice is no error."""


class MemoryState:
    """A `StateStore` that lives as long as its process; rings are chunks by rising seqno.

    A batch that comes alone is written when it was handed over, whether or not that went well: no
    crash can come in between. What extends this class may outlive the process, and comes before.
    """

    def __init__(self) -> None:
        self._saved: dict[int, Saved] = {}
        self._ring: dict[int, deque[Sequence[tuple[int, bytes]]]] = {}

    def load(self) -> dict[int, Saved]:
        """See `StateStore.load`."""
        return dict(self._saved)

    def commit(
        self,
        saved: Mapping[int, Saved],
        ring: Iterable[RingChunk],
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        """See `StateStore.commit`."""
        for vbucket, seqno in cuts.items():
            self._cut(vbucket, seqno)
        for vbucket, seqno in trims.items():
            self._trim(vbucket, seqno)
        for vbucket, entries in ring:
            if entries:
                self._append(vbucket, entries)
        self._saved.update(saved)

    def ring_after(self, vbucket: int, seqno: int) -> list[tuple[int, bytes]]:
        """See `StateStore.ring_after`."""
        found: set[tuple[int, bytes]] = set()
        for chunk in reversed(self._ring.get(vbucket, ())):
            if chunk[-1][0] <= seqno:
                break
            found.update(entry for entry in chunk if entry[0] > seqno)
        return sorted(found)

    def ring_size(self, vbucket: int) -> int:
        """See `StateStore.ring_size`."""
        return sum(map(len, self._ring.get(vbucket, ())))

    def forget(self, vbuckets: Iterable[int]) -> None:
        """See `StateStore.forget`."""
        for vbucket in vbuckets:
            self._saved.pop(vbucket, None)
            self._ring.pop(vbucket, None)

    def close(self) -> None:
        """See `StateStore.close`: there is nothing to let go of."""

    def _append(self, vbucket: int, entries: Sequence[tuple[int, bytes]]) -> None:
        """Add a chunk; one that begins before the last one ends is put into its place."""
        chunks = self._ring.setdefault(vbucket, deque())
        overlapping = [list(entries)]
        while chunks and chunks[-1][-1][0] >= entries[0][0]:
            overlapping.append(list(chunks.pop()))
        chunks.append(sorted(chain(*overlapping)) if len(overlapping) > 1 else overlapping[0])

    def _trim(self, vbucket: int, seqno: int) -> None:
        chunks = self._ring.get(vbucket, deque())
        while chunks and chunks[0][-1][0] <= seqno:
            chunks.popleft()
        if chunks and chunks[0][0][0] <= seqno:
            chunks[0] = [entry for entry in chunks[0] if entry[0] > seqno]

    def _cut(self, vbucket: int, seqno: int) -> None:
        chunks = self._ring.get(vbucket, deque())
        while chunks and chunks[-1][0][0] > seqno:
            chunks.pop()
        if chunks and chunks[-1][-1][0] > seqno:
            chunks[-1] = [entry for entry in chunks[-1] if entry[0] <= seqno]
