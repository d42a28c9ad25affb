"""The write queue of one vBucket: unpersisted changes by seqno, with views that cost nothing.

Job: keep every change from its acceptance until it is on disk, in seqno order, while any number of
readers (the flusher, streams) each see the queue as it was when they opened their view.

Neighbours: `vbucket` puts, `flusher` drains, `change_source` reads it together with a store view
taken in the same turn.

Note: opening a view copies nothing. A view is two numbers, the high seqno and its own running
number. An entry that was **retired** (superseded by a newer version of its key, or persisted) while
views are open stays, stamped with the number of the next view: views opened before see it, later
ones do not. Each retired entry belongs to the newest view that needs it; when that view closes, the
entry moves to the next older view or is freed at once. So nothing outlives the last view that can
need it, and a key that is overwritten a million times while one slow view is open costs one extra
entry, not a million.

Entries live in short segments, ``SortedDict[seqno >> SEGMENT_BITS -> dict[seqno -> record]]``:
order is kept between segments by the sorted dict and within one by insertion, since seqnos only
rise.

Source: seed 000, "Write Queue/Immutable Tree"; acceptance rows D07, D08, D18, D22.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from uprmc.core.records import seqnos_of
from uprmc.record import key_of, seqno_of

#: 64 entries a segment: one sorted insert per 64 writes, and a small list to copy while reading.
SEGMENT_BITS = 6


class QueueView:
    """The queue as it was at one moment. Close it: an open view keeps superseded entries alive."""

    __slots__ = ("_held", "_passed", "_queue", "high_seqno", "number")

    def __init__(self, queue: WriteQueue, number: int, high_seqno: int) -> None:
        self._queue = queue
        self._held: list[int] = []
        self._passed = 0
        self.number = number
        self.high_seqno = high_seqno

    def records(self, after: int = 0) -> Iterator[bytes]:
        """Yield the entries with ``after < seqno <= high_seqno`` by rising seqno.

        Writes, flushes and other views may happen while this is being read.
        """
        while batch := self.take(1 << SEGMENT_BITS, after):
            yield from batch
            after = seqno_of(batch[-1])

    def take(self, limit: int, after: int = 0) -> list[bytes]:
        """Return the first entries after seqno `after`, at least one if any is left.

        Complete segments are taken until `limit` is reached, so the list may be a segment longer.
        """
        assert self.number in self._queue._views, "the view is closed"
        return self._queue._read(self, after, limit)

    def pass_by(self, seqno: int) -> None:
        """Read nothing up to `seqno` again: entries of it that retire are freed at once."""
        self._passed = seqno

    def close(self) -> None:
        """Close the view and free the entries that only it needed. Closing twice is harmless."""
        self._queue._close(self)


class WriteQueue:
    """Unpersisted changes of one vBucket. Methods cost O(1) or O(log n) unless stated otherwise.

    Attributes:
        live: number of entries that a view opened now would show.
        high_seqno: seqno of the newest entry ever put, 0 before the first.
        persisted: everything up to this seqno has been dropped as persisted.
    """

    __slots__ = (
        "_dead",
        "_next_view",
        "_segments",
        "_tail",
        "_tail_number",
        "_views",
        "high_seqno",
        "live",
        "persisted",
    )

    def __init__(self, high_seqno: int = 0) -> None:
        self._segments: SortedDict = SortedDict()
        self._tail: dict[int, bytes] = {}
        self._tail_number = -1
        self._dead: dict[int, int] = {}
        self._views: dict[int, QueueView] = {}
        self._next_view = 1
        self.live = 0
        self.high_seqno = high_seqno
        self.persisted = high_seqno

    def restarted(self) -> WriteQueue:
        """Return an empty queue before seqno 1: this one if no view is open."""
        if self._segments or self._views:
            return WriteQueue()
        self.high_seqno = self.persisted = 0
        self._tail_number = -1
        return self

    def put(self, seqno: int, record: bytes, replaced_seqno: int) -> None:
        """Append a change; its seqno must be above all earlier ones.

        Args:
            seqno: the record's seqno.
            record: the new version.
            replaced_seqno: seqno of the key's previous version, 0 if it had none. If that version
                is still queued it is retired.
        """
        number = seqno >> SEGMENT_BITS
        if number != self._tail_number:
            self._open_segment(number)
        self._tail[seqno] = record
        self.high_seqno = seqno
        self.live += 1
        if replaced_seqno > self.persisted:
            self._retire(replaced_seqno)

    def put_all(self, records: list[bytes], replaced_seqnos: Sequence[int]) -> None:
        """Do what `put` does for each; `replaced_seqnos` are those of all of them, without 0."""
        seqnos = seqnos_of(records)
        first, count = 0, len(seqnos)
        while first < count:
            number = seqnos[first] >> SEGMENT_BITS
            if number != self._tail_number:
                self._open_segment(number)
            end = bisect_left(seqnos, number + 1 << SEGMENT_BITS, first)
            self._tail.update(zip(seqnos[first:end], records[first:end], strict=True))
            first = end
        if seqnos:
            self.high_seqno = seqnos[-1]
        self.live += len(records)
        for seqno in replaced_seqnos:
            if seqno > self.persisted:
                self._retire(seqno)

    def since(self, seqno: int) -> list[bytes]:
        """Return the entries above `seqno` that a view opened now would show, in order.

        For a reader that uses them before anything else can happen; it needs no view.
        O(entries returned).
        """
        found: list[bytes] = []
        dead = self._dead
        first = (seqno + 1) >> SEGMENT_BITS
        if first == self._tail_number:
            tail = self._tail
            for each in reversed(tail):
                if each <= seqno:
                    break
                if each not in dead:
                    found.append(tail[each])
            if len(found) > 1:
                found.reverse()
            return found
        for number in self._segments.irange(minimum=first, reverse=True):
            segment = self._segments[number]
            for each in reversed(segment):
                if each <= seqno:
                    break
                if each not in dead:
                    found.append(segment[each])
        found.reverse()
        return found

    def open_view(self) -> QueueView:
        """Return the queue as it is now, in O(1)."""
        number = self._next_view
        self._next_view = number + 1
        view = self._views[number] = QueueView(self, number, self.high_seqno)
        return view

    def drop_persisted(self, upto: int) -> None:
        """Retire every entry with ``seqno <= upto``; costs O(entries dropped).

        Call it only when all of them are in a finished commit.
        """
        if self._views:
            self._retire_upto(upto)
        elif upto >= self.high_seqno:
            self._segments.clear()
            self._tail = {}
            self._tail_number = -1
            self.live = 0
        else:
            self._remove_upto(upto)
        self.persisted = max(self.persisted, upto)

    @property
    def open_views(self) -> int:
        """Number of views not yet closed."""
        return len(self._views)

    @property
    def held(self) -> int:
        """Number of retired entries that open views keep alive."""
        return len(self._dead)

    def check(self) -> None:
        """Verify every invariant of the structure; for tests and the simulator. O(n)."""
        seen: list[int] = []
        for number, segment in self._segments.items():
            assert segment, "an empty segment stayed"
            assert all(seqno >> SEGMENT_BITS == number for seqno in segment)
            assert all(seqno == seqno_of(record) for seqno, record in segment.items())
            seen.extend(segment)
        assert seen == sorted(seen), "entries are out of order"
        assert self.live == len(seen) - len(self._dead)
        held = [seqno for view in self._views.values() for seqno in view._held]
        assert sorted(held) == sorted(self._dead), "a retired entry has no view, or two"
        for view in self._views.values():
            assert all(seqno <= view.high_seqno for seqno in view._held)
        live = [
            key_of(record)
            for segment in self._segments.values()
            for seqno, record in segment.items()
            if seqno not in self._dead
        ]
        assert len(live) == len(set(live)), "a key has two live entries"

    def _open_segment(self, number: int) -> None:
        segment = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = {}
        self._tail = segment
        self._tail_number = number

    def _remove_segment(self, number: int) -> None:
        del self._segments[number]
        if number == self._tail_number:
            self._tail_number = -1

    def _retire(self, seqno: int) -> None:
        number = seqno >> SEGMENT_BITS
        segment = self._segments.get(number)
        if segment is None or seqno not in segment or seqno in self._dead:
            return
        self.live -= 1
        for view in reversed(self._views.values()):
            if view.high_seqno < seqno:
                break  # older views show even less
            if view._passed < seqno:
                self._dead[seqno] = self._next_view
                view._held.append(seqno)
                return
        self._remove(seqno)

    def _retire_upto(self, upto: int) -> None:
        for segment in self._due_segments(upto):
            for seqno in [seqno for seqno in segment if seqno <= upto]:
                self._retire(seqno)

    def _remove_upto(self, upto: int) -> None:
        """Remove what is due while no view is open, so nothing is retired."""
        for segment in self._due_segments(upto):
            number = next(iter(segment)) >> SEGMENT_BITS
            due = [seqno for seqno in segment if seqno <= upto]
            self.live -= len(due)
            if len(due) == len(segment):
                self._remove_segment(number)
            else:
                for seqno in due:
                    del segment[seqno]

    def _due_segments(self, upto: int) -> list[dict[int, bytes]]:
        first, last = (self.persisted + 1) >> SEGMENT_BITS, upto >> SEGMENT_BITS
        return [self._segments[number] for number in self._segments.irange(first, last)]

    def _remove(self, seqno: int) -> None:
        number = seqno >> SEGMENT_BITS
        segment = self._segments[number]
        del segment[seqno]
        if not segment:
            self._remove_segment(number)

    def _read(self, view: QueueView, after: int, limit: int) -> list[bytes]:
        segments, dead, number_of_view = self._segments, self._dead, view.number
        found: list[bytes] = []
        high = view.high_seqno
        first, last = (after + 1) >> SEGMENT_BITS, high >> SEGMENT_BITS
        for number in segments.irange(first, last):
            segment = segments[number]
            if not dead and next(iter(segment)) > after and next(reversed(segment)) <= high:
                found += segment.values()
            else:
                found += [
                    record
                    for seqno, record in segment.items()
                    if after < seqno <= high and (seqno not in dead or number_of_view < dead[seqno])
                ]
            if len(found) >= limit:
                break
        return found

    def _close(self, view: QueueView) -> None:
        if self._views.pop(view.number, None) is None:
            return
        if not view._held:
            return
        older = [each for each in reversed(self._views.values()) if each.number < view.number]
        for seqno in view._held:
            for each in older:
                if each._passed < seqno <= each.high_seqno:
                    each._held.append(seqno)
                    break
            else:
                del self._dead[seqno]
                self._remove(seqno)
        view._held = []
        if not self._dead:
            self._dead = {}  # an emptied dict keeps its memory
