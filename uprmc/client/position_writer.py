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

from uprmc.client.handler import Handler
from uprmc.client.node_session import Task
from uprmc.client.position import BOUNDARY, Place
from uprmc.client.state import RingChunk, StateStore
from uprmc.consume.batch import Batch
from uprmc.model import FailoverLog

_Entries = dict[int, list[tuple[int, bytes]]]


class PositionWriter:
    """See the module docstring.

    Attributes:
        places: by vBucket, those that are followed.
        state: where they are kept.
    """

    def __init__(self, state: StateStore, handler: Handler, ring_items: int) -> None:
        self.state = state
        self.places: dict[int, Place] = {}
        self._ring_items = ring_items
        self._native = handler.native_rollback
        self._durable: Callable[[], Any] | None = getattr(handler, "durable", None)
        self._inside = self._durable is not None or bool(getattr(state, "shared", False))
        self._dirty: dict[int, Place] = {}
        self._boundaries: dict[int, list[tuple[int, bytes]]] = {}

    def load(self) -> dict[int, Place]:
        """Return the places that the state has."""
        found = {}
        for vbucket, saved in self.state.load().items():
            ahead = self.state.ring_after(vbucket, saved.seqno)
            # Each end of a snapshot is an entry, too, and there are no more of them than keys.
            keys = (self.state.ring_size(vbucket) + 1) // 2
            found[vbucket] = Place.of(vbucket, saved, ahead[-1][0] if ahead else 0, keys)
        return found

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
        entries = self._entries(batches)
        for vbucket in entries:
            place = self.places[vbucket]
            if not place.kept:
                self._dirty[vbucket] = place
        if entries:
            self._commit(entries)

    def _entries(self, batches: Iterable[Batch]) -> _Entries:
        """Return what goes into the ring: keys, and behind them the ends of snapshots.

        A native handler can return only to an end that it was told: these are written later.
        """
        entries: _Entries = {}
        for batch in batches:
            seqnos, keys = batch.seqnos, batch.keys
            for run in batch.runs:
                first, last, done = run.first, run.last, run.done
                if (first == last and done is None) or run.stream.dropped:
                    continue
                found = entries.setdefault(run.stream.vbucket, [])
                if self._native:
                    continue
                if last - first == 1:
                    found.append((seqnos[first], keys[first]))
                else:
                    found += zip(seqnos[first:last], keys[first:last], strict=True)
                if done is not None:
                    found.append((done, BOUNDARY))
        return entries

    def reached(self, place: Place) -> None:
        """The place has moved."""
        if self._inside:
            self._dirty[place.vbucket] = place

    def complete(self, place: Place) -> None:
        """A snapshot was handed over completely."""
        if self._native:
            self._boundaries.setdefault(place.vbucket, []).append((place.whole, BOUNDARY))
        self._dirty[place.vbucket] = place

    def adopted(self, place: Place) -> None:
        """The place has another failover log. One that nothing came for need not be kept."""
        if place.kept or place.seqno:
            self._dirty[place.vbucket] = place

    def idle(self) -> Task:
        """Write what was reached: nothing more comes for now."""
        if self._dirty:
            yield from self.make_durable()
            self._commit({})

    def _commit(self, entries: _Entries) -> None:
        dirty, places, keep = self._dirty, self.places, self._ring_items
        for vbucket, ends in self._boundaries.items():
            entries.setdefault(vbucket, []).extend(ends)
        self._boundaries = {}
        chunks, trims = [], {}
        for vbucket, found in entries.items():
            if found:
                chunks.append(RingChunk(vbucket, found))
                count = len(found) if self._native else _keys_among(found)
                trimmed = places[vbucket].remember(found[-1][0], count, keep)
                if trimmed is not None:
                    trims[vbucket] = trimmed
                    dirty[vbucket] = places[vbucket]
        inside = self._inside
        saved = {vbucket: place.saved(inside=inside) for vbucket, place in dirty.items()}
        self.state.commit(saved, chunks, trims, {})
        for place in dirty.values():
            place.kept = True
        self._dirty = {}

    # --- going back -----------------------------------------------------------------------------

    def keys_above(self, vbucket: int, seqno: int) -> list[bytes]:
        """Return the ring's keys above a seqno, newest first, each once."""
        entries = self.state.ring_after(vbucket, seqno)
        return list(dict.fromkeys(key for _, key in reversed(entries) if key != BOUNDARY))

    def boundaries(self, vbucket: int) -> list[int]:
        """Return the ends of snapshots that are remembered."""
        pending = self._boundaries.get(vbucket, [])
        entries = [*self.state.ring_after(vbucket, 0), *pending]
        return [seqno for seqno, key in entries if key == BOUNDARY]

    def going_back(self, place: Place, seqno: int) -> None:
        """Write that a place is at `seqno`, before the handler undoes anything.

        The ring stays. Should we die half-way, perhaps a node comes next that has the history which
        this one lost: it streams everything after `seqno` again. Any other one has it undone.
        """
        self._drop_boundaries(place.vbucket, seqno)
        place.go_back(seqno)
        self._dirty.pop(place.vbucket, None)
        if place.kept:
            self.state.commit({place.vbucket: place.saved(inside=False)}, [], {}, {})

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

    def settled(
        self, place: Place, until: int, log: FailoverLog, put_back: Sequence[tuple[int, bytes]]
    ) -> None:
        """Write that nothing above `until` is left of another history; the place stays."""
        entries = sorted(put_back)
        left = self.state.ring_after(place.vbucket, place.seqno)
        ends = [seqno for seqno, _ in left if seqno <= until] + [seqno for seqno, _ in entries]
        place.log = log
        place.applied = max([place.seqno, *ends])
        self._write(place, entries, until)

    def _write(self, place: Place, entries: list[tuple[int, bytes]], cut: int) -> None:
        vbucket = place.vbucket
        chunks = [RingChunk(vbucket, entries)] if entries else []
        if entries:
            place.remember(max(entries[-1][0], cut), len(entries), self._ring_items)
        saved = {vbucket: place.saved(inside=self._inside)}
        self.state.commit(saved, chunks, {}, {vbucket: cut})
        place.kept = True
        self._dirty.pop(vbucket, None)

    def start_over(self, place: Place) -> None:
        """Forget a vBucket of which the handler holds nothing any more."""
        self.state.forget([place.vbucket])
        self._dirty.pop(place.vbucket, None)
        place.start_over()

    def _drop_boundaries(self, vbucket: int, above: int) -> None:
        pending = self._boundaries.pop(vbucket, [])
        kept = [entry for entry in pending if entry[0] <= above]
        if kept:
            self._boundaries[vbucket] = kept


def _keys_among(entries: list[tuple[int, bytes]]) -> int:
    """Return how many entries are keys, not ends of snapshots."""
    return len(entries) - [key for _, key in entries].count(BOUNDARY)
