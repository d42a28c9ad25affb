"""The write queue of one vBucket: unpersisted changes by seqno, with views that cost nothing.

Job: keep every change from its acceptance until it is on disk, in seqno order, while any number of
readers (the flusher, streams) each see the queue as it was when they opened their view.

Neighbours: `vbucket` puts, `flusher` drains, `reading` reads it together with a store view
taken in the same turn.

Note: opening a view copies nothing. A view is two numbers, the high seqno and its own running
number. An entry that was **retired** (superseded by a newer version of its key, or persisted) while
views are open stays, stamped with the number of the next view: views opened before see it, later
ones do not. Each retired entry belongs to the newest view that needs it; when that view closes, the
entry moves to the next older view or is freed at once. So nothing outlives the last view that can
need it, and a key that is overwritten a million times while one slow view is open costs one extra
entry, not a million.

Entries live in short segments, ``SortedDict[seqno >> SEGMENT_BITS -> Segment]``: order is kept
between segments by the sorted dict. The last segment, into which every change goes, is a field of
the base class, which `core.fronts` has in both forms.

Rows D07, D08, D18, D22.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from uprmc.core.fronts import SEGMENT_BITS, QueueFront, Segment
from uprmc.record import key_of, seqno_of

__all__ = ["SEGMENT_BITS", "QueueView", "WriteQueue"]


class QueueView:
    """The queue as it was at one moment. Close it: an open view keeps superseded entries alive."""

    __slots__ = ("_kept", "_passed", "_queue", "high_seqno", "number")

    def __init__(self, queue: WriteQueue, number: int, high_seqno: int) -> None:
        self._queue = queue
        self._kept: list[int] = []
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


class WriteQueue(QueueFront):
    """Unpersisted changes of one vBucket. Methods cost O(1) or O(log n) unless stated otherwise."""

    __slots__ = ("_dead", "_next_view", "_segments", "_views")

    def __init__(self, high_seqno: int = 0) -> None:
        super().__init__(high_seqno, SEGMENT_BITS)
        self._segments: SortedDict = SortedDict()
        self._dead: dict[int, int] = {}
        self._views: dict[int, QueueView] = {}
        self._next_view = 1

    def restarted(self, high_seqno: int = 0) -> WriteQueue:
        """Return an empty queue that goes on after a seqno: this one if no view is open."""
        if self._segments or self._views:
            return WriteQueue(high_seqno)
        self.high_seqno = self.persisted = high_seqno
        self._let_go_of_tail()
        return self

    def since(self, seqno: int) -> list[bytes]:
        """Return the entries above `seqno` that a view opened now would show, in order.

        For a reader that uses them before anything else can happen; it needs no view.
        O(entries returned).
        """
        high = self.high_seqno
        first = (seqno + 1) >> self.bits
        if self.tail is not None and first == self.tail_number:
            found = self.tail.between(seqno, high)
        else:
            found = []
            for number in self._segments.irange(minimum=first):
                found += self._segments[number].between(seqno, high)
        dead = self._dead
        if dead:
            return [record for record in found if seqno_of(record) not in dead]
        return found

    def open_view(self) -> QueueView:
        """Return the queue as it is now, in O(1)."""
        number = self._next_view
        self._next_view = number + 1
        view = self._views[number] = QueueView(self, number, self.high_seqno)
        self.viewed = True
        return view

    def drop_persisted(self, upto: int) -> None:
        """Retire every entry with ``seqno <= upto``; costs O(entries dropped).

        Call it only when all of them are in a finished commit.
        """
        if self._views:
            self._retire_upto(upto)
        elif upto >= self.high_seqno:
            if self.live:
                self._segments.clear()
                self._let_go_of_tail()
                self.live = 0
        else:
            self._remove_upto(upto)
        self.persisted = max(self.persisted, upto)

    @property
    def open_views(self) -> int:
        """Number of views not yet closed."""
        return len(self._views)

    @property
    def segments(self) -> int:
        """Number of segments that the entries are in."""
        return len(self._segments)

    @property
    def retired(self) -> int:
        """Number of retired entries that open views keep alive."""
        return len(self._dead)

    def check(self) -> None:
        """Verify every invariant of the structure; for tests and the simulator. O(n)."""
        seen: list[int] = []
        live: list[bytes] = []
        for number, segment in self._segments.items():
            entries = segment.between(0, self.high_seqno)
            assert 0 < len(entries) == len(segment), "an empty segment stayed, or a count is wrong"
            assert all(seqno_of(each) >> self.bits == number for each in entries)
            assert all(seqno_of(each) in segment for each in entries)
            seen.extend(map(seqno_of, entries))
            live += [key_of(each) for each in entries if seqno_of(each) not in self._dead]
        assert seen == sorted(seen), "entries are out of order"
        assert self.live == len(seen) - len(self._dead)
        assert self.viewed == bool(self._views)
        assert self.tail is self._segments.get(self.tail_number)
        kept = [seqno for view in self._views.values() for seqno in view._kept]
        assert sorted(kept) == sorted(self._dead), "a retired entry has no view, or two"
        for view in self._views.values():
            assert all(seqno <= view.high_seqno for seqno in view._kept)
        assert len(live) == len(set(live)), "a key has two live entries"

    def open_segment(self, number: int) -> Segment:
        """See `QueueFront`."""
        segment: Segment | None = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = Segment(number, self.bits)
        self.tail = segment
        self.tail_number = number
        return segment

    def _let_go_of_tail(self) -> None:
        self.tail = None
        self.tail_number = -1

    def _remove_segment(self, number: int) -> None:
        del self._segments[number]
        if number == self.tail_number:
            self._let_go_of_tail()

    def retire(self, seqno: int) -> None:
        """See `QueueFront`."""
        segment = self._segments.get(seqno >> self.bits)
        if segment is None or seqno not in segment or seqno in self._dead:
            return
        self.live -= 1
        for view in reversed(self._views.values()):
            if view.high_seqno < seqno:
                break  # older views show even less
            if view._passed < seqno:
                self._dead[seqno] = self._next_view
                view._kept.append(seqno)
                return
        self._remove(seqno)

    def _retire_upto(self, upto: int) -> None:
        for number in self._due_segments(upto):
            for record in self._segments[number].between(self.persisted, upto):
                self.retire(seqno_of(record))

    def _remove_upto(self, upto: int) -> None:
        """Remove what is due while no view is open, so nothing is retired."""
        for number in self._due_segments(upto):
            segment = self._segments[number]
            due = segment.between(self.persisted, upto)
            self.live -= len(due)
            if len(due) == len(segment):
                self._remove_segment(number)
            else:
                for record in due:
                    segment.remove(seqno_of(record))

    def _due_segments(self, upto: int) -> list[int]:
        first, last = (self.persisted + 1) >> self.bits, upto >> self.bits
        return list(self._segments.irange(first, last))

    def _remove(self, seqno: int) -> None:
        number = seqno >> self.bits
        segment = self._segments[number]
        segment.remove(seqno)
        if not segment:
            self._remove_segment(number)

    def _read(self, view: QueueView, after: int, limit: int) -> list[bytes]:
        segments, dead, number_of_view = self._segments, self._dead, view.number
        found: list[bytes] = []
        high = view.high_seqno
        first, last = (after + 1) >> self.bits, high >> self.bits
        for number in segments.irange(first, last):
            entries = segments[number].between(after, high)
            if dead:
                entries = [
                    record
                    for record in entries
                    if number_of_view < dead.get(seqno_of(record), self._next_view)
                ]
            found += entries
            if len(found) >= limit:
                break
        return found

    def _close(self, view: QueueView) -> None:
        if self._views.pop(view.number, None) is None:
            return
        self.viewed = bool(self._views)
        if not view._kept:
            return
        older = [each for each in reversed(self._views.values()) if each.number < view.number]
        for seqno in view._kept:
            for each in older:
                if each._passed < seqno <= each.high_seqno:
                    each._kept.append(seqno)
                    break
            else:
                del self._dead[seqno]
                self._remove(seqno)
        view._kept = []
        if not self._dead:
            self._dead = {}  # an emptied dict keeps its memory
