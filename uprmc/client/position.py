"""Where a consumer stands in one vBucket, and where it goes back to: pure rules, no wire, no disk.

A `VBucketPlace` holds what is saved (`state.Saved`) and what is only known while the process lives.
Four seqnos matter, in this order: `ring_from` <= `whole` <= `seqno` <= `applied`.

- `ring_from`: every key that came after it is in the ring;
- `whole`: the end of the last snapshot that was handed over completely;
- `seqno`: the last change that was handed over; above `whole` inside of a snapshot;
- `applied`: the handler may have seen changes up to here. It is above `seqno` after a crash (the
  ring was written, then the changes were handed over, then the process died) and after an undo
  (documents were fetched that are newer than the place). As long as it is, a history that leaves
  ours below it makes those keys wrong, although the node would stream from `seqno` without a word.

Rows D13, D14, D44 to D49, P09, P10, P19. See `docs/streams.md`, rollback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from uprmc import rollback
from uprmc.client.handler import Handler
from uprmc.client.state import BOUNDARY, MemoryState, RingChunk, RingColumns, Saved, StateStore
from uprmc.model import SEQNO_MAX, FailoverEntry, FailoverLog, SnapshotRange
from uprmc.remote.batch import Batch
from uprmc.rollback import VBucketHoldings, history_of, rollback_point, shared_until

if TYPE_CHECKING:
    from uprmc.client.node_session import Task

#: A node reads so many known versions of a stream request.
VERSIONS_MAX = 25

#: The keys that are kept are counted in about so many pieces, however few come at a time.
_PIECES = 128


class Position(NamedTuple):
    """A place that a program may keep and begin from: after `seqno` of the history `vb_uuid`."""

    seqno: int
    vb_uuid: int


class Asked(NamedTuple):
    """What a stream request says of a place."""

    seqno: int
    snapshot: SnapshotRange
    uuid: int
    known_versions: FailoverLog
    term: int = 0


class VBucketPlace:
    """See the module docstring."""

    __slots__ = ("_chunks", "_entries", "applied", "at_now", "begin_at", "durable", "end",
                 "followed", "heard_of", "inside", "kept", "log", "lost", "purge_seqno",
                 "ring_from", "seqno", "stood_at", "term", "vbucket", "whole")  # fmt: skip

    def __init__(self, vbucket: int) -> None:
        self.vbucket = vbucket  # whose
        # The failover log of the history that was followed, newest first.
        self.log: FailoverLog = ()
        # end: the end of the snapshot that `seqno` lies in; `whole` when that is complete.
        self.seqno = self.whole = self.end = self.applied = 0
        # purge_seqno: highest seqno of a dropped tombstone, as the node said last.
        # stood_at: nothing up to this seqno is wanted.
        self.ring_from = self.purge_seqno = self.stood_at = 0
        # term: the highest of any node.
        # heard_of: the same, where nodes' cluster maps count, too; it is not kept.
        self.term = self.heard_of = 0
        self.durable: Saved | None = None  # what the state has of it, ``None`` = nothing
        # kept: whether the state has a row for it.
        # inside: `snapshot_begin` was called and `snapshot_end` not yet.
        # at_now: nothing came yet, and the program wanted only what is new.
        self.kept = self.inside = self.at_now = False
        # Instead of what is new, what comes after this seqno of the newest history.
        self.begin_at: int | None = None
        # Seqnos that were undone and not reported yet: first and last.
        self.lost: tuple[int, int] | None = None
        self.followed = 0  # newest history that the handler knows of, 0 = none
        self._chunks: deque[tuple[int, int]] = deque()
        self._entries = 0

    @classmethod
    def of(cls, vbucket: int, saved: Saved, ring_end: int, ring_entries: int) -> VBucketPlace:
        """Return what a state tells: its row, the ring's last seqno, how many keys at least."""
        place = cls(vbucket)
        place.log = saved.log
        place.seqno, (place.whole, place.end) = saved.seqno, saved.snapshot
        place.ring_from, place.purge_seqno = saved.ring_from, saved.purge_seqno
        place.term = saved.term
        place.applied = max(saved.seqno, ring_end)
        place.kept = True
        place.durable = saved
        place.followed = saved.log[0].uuid if saved.log else 0
        if ring_entries:
            place._chunks.append((place.applied, ring_entries))
            place._entries = ring_entries
        return place

    # --- what is saved and asked ----------------------------------------------------------------

    def saved(self, *, inside: bool) -> Saved:
        """Return what to save: the place, or only its last whole snapshot unless `inside`."""
        return self.saved_at(self.seqno if inside else self.whole)

    def saved_at(self, seqno: int) -> Saved:
        """Return what to save of a place that is at `seqno` of the present snapshot."""
        end = seqno if seqno == self.whole else self.end
        snapshot = tuple.__new__(SnapshotRange, (self.whole, end))
        numbers = (seqno, snapshot, self.log, self.ring_from, self.purge_seqno, self.term)
        return tuple.__new__(Saved, numbers)

    def asked(self) -> Asked:
        """Return what to ask a node for.

        The uuid is that of the history in which `seqno` was given: a newer one that begins right
        there names nothing that we hold, and may be unknown where the older is not.
        """
        seqno = self.seqno
        end = self.end if seqno > self.whole else seqno
        snapshot = SnapshotRange(self.whole if seqno > self.whole else seqno, end)
        known = tuple(entry for entry in self.log if entry.seqno <= seqno)[:VERSIONS_MAX]
        known = known or self.log[:VERSIONS_MAX]  # older than all that the log has kept
        uuid = (history_of(known, seqno) or known[0].uuid) if known else 0
        return Asked(seqno, snapshot, uuid, known, max(self.term, self.heard_of))

    @property
    def position(self) -> Position:
        """The last whole snapshot, as a program may keep it."""
        return Position(self.whole, history_of(self.log, self.whole))

    @property
    def watermark(self) -> Position:
        """The last whole snapshot of which the state says that it is durable."""
        seqno, log = self.stood_at, self.log
        if self.durable is not None:
            seqno, log = self.durable.snapshot.start, self.durable.log
        return Position(seqno, history_of(log, seqno))

    @property
    def pieces(self) -> int:
        """In how many pieces the ring's keys are counted."""
        return len(self._chunks)

    @property
    def settled(self) -> bool:
        """Whether the handler has seen nothing beyond the place."""
        return self.applied <= self.seqno

    @property
    def held(self) -> int:
        """Up to where the handler may have seen changes."""
        return max(self.seqno, self.applied)

    @property
    def unfinished_from_zero(self) -> bool:
        """Whether the handler may hold things although the place is the beginning."""
        return self.kept and not self.seqno

    # --- two histories --------------------------------------------------------------------------

    def agreed(self, log: Sequence[FailoverEntry]) -> int | None:
        """Return how far back a node with this log would send us, ``None`` if not at all.

        The same rule as the node's, on the other side (row D14): the newest common history, the
        smaller of its two ends, and never into the middle of a snapshot.
        """
        seqno, snapshot, _, known, _ = self.asked()
        if not seqno:
            return None
        uuid = known[0].uuid if known else 0
        position = rollback.ConsumerPosition(seqno, snapshot, uuid, known)
        return rollback_point(position, VBucketHoldings(tuple(log), SEQNO_MAX, 0))

    def holds_until(self, log: Sequence[FailoverEntry]) -> int:
        """Return up to which seqno what the handler may have seen belongs to a node's history."""
        until = shared_until(log, SEQNO_MAX, self.log, self.applied)
        return 0 if until is None else until

    def adopt(self, log: FailoverLog) -> bool:
        """Take over the log of a node that accepted the place; ``False``: not before an undo."""
        if not self.settled and self.holds_until(log) < self.applied:
            return False
        self.log = log
        return True

    # --- going back -----------------------------------------------------------------------------

    def target(self, seqno: int, boundaries: Iterable[int], *, native: bool) -> int:
        """Return where to go back to if history is shared up to `seqno`; 0 = start over.

        The newest boundary at or below it (row P10). With a ring any seqno of a whole snapshot
        will do, should no boundary be left: every key that came later is fetched again. Beyond the
        ring there is only the beginning (row D47).
        """
        seqno = min(seqno, self.whole)
        known = [end for end in (*boundaries, self.whole) if 0 < end <= seqno]
        if native:
            return max(known, default=0)
        if seqno < self.ring_from:
            return 0
        return max((end for end in known if end >= self.ring_from), default=seqno)

    def go_back(self, seqno: int) -> None:
        """Stand at `seqno` from now on; the handler is yet to undo what came later."""
        if seqno < self.held:
            first, last = self.lost or (seqno + 1, self.held)
            self.lost = (min(first, seqno + 1), max(last, self.held))
        self.seqno = self.whole = self.end = seqno
        self.inside = False

    def went_back(self, seqno: int, log: FailoverLog, applied: int) -> None:
        """The handler has; it may have seen up to `applied` of the new history."""
        self.go_back(seqno)
        self.log = log
        self.applied = max(seqno, applied)
        self.ring_from = min(self.ring_from, seqno)
        while self._chunks and self._chunks[-1][0] > seqno:
            self._entries -= self._chunks.pop()[1]

    def start_over(self) -> None:
        """Stand at the beginning; the handler holds nothing."""
        self.went_back(0, (), 0)
        self.purge_seqno = self.ring_from = self._entries = self.stood_at = 0
        self._chunks.clear()
        self.kept, self.durable = False, None

    def stand_at(self, seqno: int, log: FailoverLog, snapshot: SnapshotRange | None = None) -> None:
        """Stand where the program says, or the node's present is; nothing came before that.

        Without `snapshot`, that is at the end of one.
        """
        self.log = log
        self.seqno = self.applied = self.ring_from = seqno
        self.whole, self.end = snapshot or (seqno, seqno)
        self.stood_at = self.whole

    # --- going on -------------------------------------------------------------------------------

    def begin(self, end: int, purge_seqno: int) -> None:
        """A snapshot up to `end` was announced."""
        self.end = end
        if purge_seqno > self.purge_seqno:
            self.purge_seqno = purge_seqno

    def take(self, seqno: int) -> None:
        """Everything up to `seqno` was handed over."""
        self.seqno = seqno
        if seqno > self.applied:
            self.applied = seqno
        self.at_now = False

    def complete(self, end: int, purge_seqno: int = 0) -> None:
        """The snapshot that ends here was handed over completely, and was announced with this."""
        self.seqno = self.whole = self.end = end
        if purge_seqno > self.purge_seqno:
            self.purge_seqno = purge_seqno
        if end > self.applied:
            self.applied = end
        self.at_now = False

    def remember(self, last_seqno: int, entries: int, keep: int) -> int | None:
        """Count keys that are being written to the ring; return up to where old ones may go.

        At least `keep` are kept, and all above the last whole snapshot. Before the first one is
        whole the only way back is the beginning, so nothing more is needed.
        """
        chunks = self._chunks
        if chunks and chunks[-1][1] < keep // _PIECES and self.whole:
            chunks[-1] = (last_seqno, chunks[-1][1] + entries)
        else:
            chunks.append((last_seqno, entries))
        self._entries += entries
        if last_seqno > self.applied:
            self.applied = last_seqno
        if self._entries < keep:
            return None
        limit, trimmed = self.whole or self.seqno, None
        while self._entries - chunks[0][1] >= keep and chunks[0][0] <= limit and len(chunks) > 1:
            trimmed, count = chunks.popleft()
            self._entries -= count
        if trimmed is not None:
            self.ring_from = max(self.ring_from, trimmed)
        return trimmed


# --- what is written, and when --------------------------------------------------------------------


class PositionWriter:
    """What of a consumer is written to its state: one commit for each batch.

    It has the ring entries of a batch, which come before the batch is handed over, and with them
    the places reached by the batches before (row D44); what was reached last follows by itself when
    nothing more comes. Where nothing can come between, because the handler's own writes are in the
    same transaction, which is durable at once, or the state dies with the process, the batch is
    handed over first, and the commit has its place, too.

    A place inside of a snapshot is written only if the handler can make durable what it was given
    so far, or shares its transaction with the state; otherwise its last whole snapshot is (row
    D45).

    Rows D13, D44, D45, D48.
    """

    def __init__(self, state: StateStore, handler: Handler, ring_items: int) -> None:
        self.state = state  # where they are kept
        self.places: dict[int, VBucketPlace] = {}  # by vBucket, those that are followed
        self._ring_items = ring_items
        self._native = handler.native_rollback
        self._durable: Callable[[], Any] | None = getattr(handler, "durable", None)
        # Whether the handler's own writes are in the state's transactions.
        self.shared = bool(getattr(state, "shared", False))
        self._inside = self._durable is not None or self.shared
        self._durable_later: Callable[[int], Saved | None] | None
        self._durable_later = getattr(state, "durable_of", None)
        # Whether `write` comes after the hand-over; unless `shared`, even if that has failed.
        self.writes_after = (self.shared and self._durable_later is None) or (
            type(state) is MemoryState and not self._inside and not self._native
        )
        self._dirty: dict[int, VBucketPlace] = {}
        self._boundaries: dict[int, list[int]] = {}

    def load(self) -> dict[int, VBucketPlace]:
        """Return the places that the state has."""
        found = {}
        for vbucket, saved in self.state.load().items():
            ahead = self.state.ring_after(vbucket, saved.seqno)
            # Each end of a snapshot is an entry, too, and there are no more of them than keys.
            keys = (self.state.ring_size(vbucket) + 1) // 2
            found[vbucket] = VBucketPlace.of(vbucket, saved, ahead[-1][0] if ahead else 0, keys)
        return found

    def watermark(self, place: VBucketPlace) -> Position:
        """Return the last complete snapshot of a place that is durable: nodes are sent it."""
        if self._durable_later is not None:
            place.durable = self._durable_later(place.vbucket)
        return place.watermark

    # --- while changes come ---------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether the state lacks something that was reached."""
        return bool(self._dirty)

    def write(self, batches: Iterable[Batch]) -> Task:
        """Write what was reached, and the ring entries of batches, see `writes_after`.

        Raises:
            StateError: it could not be written; nothing is to be handed over.
        """
        if self._dirty and self._durable is not None:
            waited_for = self._durable()
            if waited_for is not None:
                yield waited_for
        ring, trims = RingColumns(), dict[int, int]()
        for batch in batches:
            self._remember(batch.wanted(), ring, trims)
        if self._dirty or ring.vbuckets:
            self._commit(ring, trims)

    def _remember(self, batch: Batch, ring: RingColumns, trims: dict[int, int]) -> None:
        """Add the keys of a batch to the ring, and behind them the ends of its snapshots.

        A native handler can return only to an end that it knows: these are written later.
        """
        places, dirty, keep, native = self.places, self._dirty, self._ring_items, self._native
        seqnos = batch.seqnos
        whole: dict[int, int] = {}
        for run in batch.runs:
            count, done = run.last - run.first, run.done
            if not count and done is None:
                continue
            vbucket = run.stream.vbucket
            place = places[vbucket]
            if not place.kept:
                dirty[vbucket] = place
            if native:
                continue
            if count:
                ring.vbuckets.append(vbucket)
                ring.lengths.append(count)
            if done is not None:
                whole[vbucket] = done
            trimmed = place.remember(done or seqnos[run.last - 1], count, keep)
            if trimmed is not None:
                trims[vbucket], dirty[vbucket] = trimmed, place
        if not native:
            ring.seqnos += seqnos
            ring.keys += batch.keys
            ring.add_boundaries([*whole], [*whole.values()])

    def reached(self, place: VBucketPlace) -> None:
        """The place has moved."""
        if self._inside:
            self._dirty[place.vbucket] = place

    def complete(self, place: VBucketPlace) -> None:
        """A snapshot was handed over completely."""
        if self._native:
            self._boundaries.setdefault(place.vbucket, []).append(place.whole)
        self._dirty[place.vbucket] = place

    def adopted(self, place: VBucketPlace) -> None:
        """The place has another failover log. One that nothing came for need not be kept."""
        if place.kept or place.seqno:
            self._dirty[place.vbucket] = place

    def _commit(self, ring: RingColumns, trims: dict[int, int]) -> None:
        dirty = self._dirty
        for vbucket, ends in self._boundaries.items():
            ring.add(vbucket, ends, [BOUNDARY] * len(ends))
            place = self.places[vbucket]
            trimmed = place.remember(ends[-1], len(ends), self._ring_items)
            if trimmed is not None:
                trims[vbucket], dirty[vbucket] = trimmed, place
        self._boundaries = {}
        inside = self._inside
        saved = {vbucket: place.saved(inside=inside) for vbucket, place in dirty.items()}
        self.state.commit(saved, ring, trims, {})
        for vbucket, place in dirty.items():
            place.kept, place.durable = True, saved[vbucket]
        self._dirty = {}

    # --- going back -----------------------------------------------------------------------------

    def keys_above(self, vbucket: int, seqno: int) -> list[bytes]:
        """Return the ring's keys above a seqno, newest first, each once."""
        entries = self.state.ring_after(vbucket, seqno)
        return list(dict.fromkeys(key for _, key in reversed(entries) if key != BOUNDARY))

    def boundaries(self, vbucket: int) -> list[int]:
        """Return the ends of snapshots that are remembered."""
        kept = [seqno for seqno, key in self.state.ring_after(vbucket, 0) if key == BOUNDARY]
        return kept + self._boundaries.get(vbucket, [])

    def going_back(self, place: VBucketPlace, seqno: int) -> None:
        """Write that a place is at `seqno`, before the handler undoes anything.

        The ring stays. Should we die half-way, perhaps a node comes next that has the history which
        this one lost: it streams everything after `seqno` again. Any other one has it undone, from
        the first step. Where the handler's own writes are in the state's transactions, this goes
        with the first of them: one that was not sent back has not lost its place either.
        """
        self._drop_boundaries(place.vbucket, seqno)
        place.go_back(seqno)
        self._dirty.pop(place.vbucket, None)
        if not place.kept:
            return
        if self.shared:
            self._dirty[place.vbucket] = place
        else:
            place.durable = place.saved(inside=False)
            self.state.commit({place.vbucket: place.durable}, [], {}, {})

    def went_back(
        self,
        place: VBucketPlace,
        seqno: int,
        log: FailoverLog,
        put_back: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Write that a place is at `seqno` now, and forget the ring above it (row D48).

        Args:
            place: whose handler's effects above `seqno` were undone, durably, after `going_back`.
            seqno: where it stands now.
            log: of the node whose documents took the place of what was undone.
            put_back: keys that were undone, with the seqnos of the documents that took their place:
                they stay in the ring, for those would be wrong if that history were lost, too.
        """
        entries = sorted(put_back)
        place.went_back(seqno, log, max(entries[-1][0], seqno) if entries else 0)
        self._write(place, entries, seqno)

    def _write(self, place: VBucketPlace, entries: list[tuple[int, bytes]], cut: int) -> None:
        vbucket = place.vbucket
        chunks = [RingChunk(vbucket, entries)] if entries else []
        if entries:
            place.remember(max(entries[-1][0], cut), len(entries), self._ring_items)
        saved = {vbucket: place.saved(inside=self._inside)}
        self.state.commit(saved, chunks, {}, {vbucket: cut})
        place.kept, place.durable = True, saved[vbucket]
        self._dirty.pop(vbucket, None)

    def start_over(self, place: VBucketPlace) -> None:
        """Forget a vBucket of which the handler holds nothing any more."""
        self.state.forget([place.vbucket])
        self._dirty.pop(place.vbucket, None)
        place.start_over()

    def _drop_boundaries(self, vbucket: int, above: int) -> None:
        pending = self._boundaries.pop(vbucket, [])
        kept = [end for end in pending if end <= above]
        if kept:
            self._boundaries[vbucket] = kept
