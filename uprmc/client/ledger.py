"""What of a consumer is written to its state, and when: before and after changes are handed over.

One commit for each batch: the places reached by the batches before, and the ring entries of this
one. Only then is the batch handed over (row D44). A place inside of a snapshot is written only if
the handler can make durable what it was told so far, or shares its transaction with the state;
otherwise its last whole snapshot is (row D45).

Source: systems reference g.2; acceptance rows D13, D44, D45, D48.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from uprmc.client.events import Run
from uprmc.client.handler import Change, Handler
from uprmc.client.node_session import Task
from uprmc.client.position import BOUNDARY, Place
from uprmc.client.state import RingChunk, StateStore
from uprmc.model import FailoverLog

_Entries = dict[int, list[tuple[int, bytes]]]

_SEQNO_AND_KEY = itemgetter(Change._fields.index("seqno"), Change._fields.index("key"))


class Ledger:
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

    def before(self, runs: Iterable[Run]) -> None:
        """Write what was reached, and the ring entries of what is about to be handed over.

        Raises:
            StateError: it could not be written; nothing is to be handed over.
        """
        entries = self._entries(runs)
        for vbucket in entries:
            place = self.places[vbucket]
            if not place.kept:
                self._dirty[vbucket] = place
        if entries:
            self._commit(entries)

    def _entries(self, runs: Iterable[Run]) -> _Entries:
        entries: _Entries = {}
        for inlet, changes, _ in runs:
            found = entries.setdefault(inlet.vbucket, [])
            if not self._native:
                found += map(_SEQNO_AND_KEY, changes)
        return entries

    def reached(self, place: Place) -> None:
        """The place has moved."""
        if self._inside:
            self._dirty[place.vbucket] = place

    def complete(self, place: Place) -> None:
        """A snapshot was handed over completely."""
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
        dirty = self._dirty
        for vbucket in dirty:
            if vbucket in self._boundaries:
                entries.setdefault(vbucket, [])
        chunks, trims = [], {}
        for vbucket, keys in entries.items():
            ends = self._boundaries.pop(vbucket, [])
            if keys or ends:
                found = ends + keys
                chunks.append(RingChunk(vbucket, found))
                place, count = self.places[vbucket], len(ends if self._native else keys)
                trimmed = place.remember(found[-1][0], count, self._ring_items)
                if trimmed is not None:
                    trims[vbucket] = trimmed
                    dirty[vbucket] = place
        saved = {vbucket: place.saved(inside=self._inside) for vbucket, place in dirty.items()}
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
