"""What of a consumer is written to its state, and when: before and after changes are handed over.

One commit for each batch: the places reached by the batches before, and the ring entries of this
one. Only then is the batch handed over (row D44). A place inside of a snapshot is written only if
the handler can make durable what it was told so far, or shares its transaction with the state;
otherwise its last whole snapshot is (row D45).

Source: systems reference g.2; acceptance rows D13, D44, D45, D48.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from uprmc.client.ask import Task
from uprmc.client.handler import Handler
from uprmc.client.position import Place, Position
from uprmc.client.state import (
    BOUNDARY,
    MemoryState,
    RingChunk,
    RingColumns,
    Saved,
    StateStore,
)
from uprmc.model import FailoverLog
from uprmc.remote.batch import Batch


class PositionWriter:
    """See the module docstring.

    Attributes:
        places: by vBucket, those that are followed.
        state: where they are kept.
        shared: whether the handler's own writes are in the state's transactions.
        may_follow: whether `before` may come after the hand-over, even if that has failed: the
            state dies with the process, so no crash comes between them.
    """

    def __init__(self, state: StateStore, handler: Handler, ring_items: int) -> None:
        self.state = state
        self.places: dict[int, Place] = {}
        self._ring_items = ring_items
        self._native = handler.native_rollback
        self._durable: Callable[[], Any] | None = getattr(handler, "durable", None)
        self.shared = bool(getattr(state, "shared", False))
        self._inside = self._durable is not None or self.shared
        self.may_follow = type(state) is MemoryState and not (self._inside or self._native)
        self._durable_later: Callable[[int], Saved | None] | None
        self._durable_later = getattr(state, "durable_of", None)
        self._dirty: dict[int, Place] = {}
        self._boundaries: dict[int, list[int]] = {}

    def load(self) -> dict[int, Place]:
        """Return the places that the state has."""
        found = {}
        for vbucket, saved in self.state.load().items():
            ahead = self.state.ring_after(vbucket, saved.seqno)
            # Each end of a snapshot is an entry, too, and there are no more of them than keys.
            keys = (self.state.ring_size(vbucket) + 1) // 2
            found[vbucket] = Place.of(vbucket, saved, ahead[-1][0] if ahead else 0, keys)
        return found

    def watermark(self, place: Place) -> Position:
        """Return the last complete snapshot of a place that is durable, as nodes are told it."""
        if self._durable_later is not None:
            place.durable = self._durable_later(place.vbucket)
        return place.watermark

    # --- while changes come ---------------------------------------------------------------------

    @property
    def waits_for_handler(self) -> bool:
        """Whether `make_durable` comes before anything may be written."""
        return self._durable is not None and bool(self._dirty)

    def make_durable(self) -> Task:
        """Have the handler make durable what is about to be written as reached."""
        waited_for = self._durable() if self._durable is not None else None
        if waited_for is not None:
            yield waited_for

    def before(self, batches: Iterable[Batch]) -> None:
        """Write what was reached, and the ring entries of what is about to be handed over.

        Raises:
            StateError: it could not be written; nothing is to be handed over.
        """
        ring, trims = RingColumns(), dict[int, int]()
        moved = [self._about_to(batch, ring, trims) for batch in batches]
        if any(moved):
            self._commit(ring, trims)

    def _about_to(self, batch: Batch, ring: RingColumns, trims: dict[int, int]) -> bool:
        """Add the keys of a batch to the ring, and behind them the ends of its snapshots.

        A native handler can return only to an end that it was told: these are written later.
        Returns whether there is anything.
        """
        batch = batch.wanted()
        places, dirty, keep, native = self.places, self._dirty, self._ring_items, self._native
        seqnos, moved = batch.seqnos, False
        whole: dict[int, int] = {}
        for run in batch.runs:
            count, done = run.last - run.first, run.done
            if not count and done is None:
                continue
            moved, vbucket = True, run.stream.vbucket
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
        return moved

    def reached(self, place: Place) -> None:
        """The place has moved."""
        if self._inside:
            self._dirty[place.vbucket] = place

    def complete(self, place: Place) -> None:
        """A snapshot was handed over completely."""
        if self._native:
            self._boundaries.setdefault(place.vbucket, []).append(place.whole)
        self._dirty[place.vbucket] = place

    def adopted(self, place: Place) -> None:
        """The place has another failover log. One that nothing came for need not be kept."""
        if place.kept or place.seqno:
            self._dirty[place.vbucket] = place

    def idle(self) -> Task:
        """Write what was reached: nothing more comes for now."""
        if self._dirty:
            yield from self.make_durable()
            self._commit(RingColumns(), {})

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

    def going_back(self, place: Place, seqno: int) -> None:
        """Write that a place is at `seqno`, before the handler undoes anything.

        The ring stays. Should we die half-way, perhaps a node comes next that has the history which
        this one lost: it streams everything after `seqno` again. Any other one has it undone, from
        the first step. Where the handler's own writes are in the state's transactions, this goes
        with the first of them: one that was not told to go back has not lost its place either.
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
        self, place: Place, seqno: int, log: FailoverLog, put_back: Sequence[tuple[int, bytes]] = ()
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

    def _write(self, place: Place, entries: list[tuple[int, bytes]], cut: int) -> None:
        vbucket = place.vbucket
        chunks = [RingChunk(vbucket, entries)] if entries else []
        if entries:
            place.remember(max(entries[-1][0], cut), len(entries), self._ring_items)
        saved = {vbucket: place.saved(inside=self._inside)}
        self.state.commit(saved, chunks, {}, {vbucket: cut})
        place.kept, place.durable = True, saved[vbucket]
        self._dirty.pop(vbucket, None)

    def start_over(self, place: Place) -> None:
        """Forget a vBucket of which the handler holds nothing any more."""
        self.state.forget([place.vbucket])
        self._dirty.pop(place.vbucket, None)
        place.start_over()

    def _drop_boundaries(self, vbucket: int, above: int) -> None:
        pending = self._boundaries.pop(vbucket, [])
        kept = [end for end in pending if end <= above]
        if kept:
            self._boundaries[vbucket] = kept
