"""The fields that every set reads and writes, and the end of a write queue: compiled only.

The engine's classes are subclasses of these; their other fields and all rules are there. See
`uprmc.core.fronts`, which says what is promised.
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import read_i64_be
from mypy_extensions import i64, mypyc_attr

SEQNO_AT: Final[i64] = 16
_ABOVE: Final = 1 << 64


def seqno_of(record: bytes) -> int:
    """Return a record's seqno."""
    raw = read_i64_be(record, SEQNO_AT)
    seqno = int(raw)
    return seqno if raw >= 0 else seqno + _ABOVE


class Segment:
    """See `uprmc.core.fronts.Segment`. A slot for each seqno from `first` to `last`."""

    __slots__ = ("count", "first", "last", "slots")

    def __init__(self, number: int, bits: int) -> None:
        self.first: int = number << bits
        self.last: int = self.first + (1 << bits) - 1
        self.slots: list[bytes | None] = [None] * (1 << bits)
        self.count: i64 = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, seqno: int) -> bool:
        return self.first <= seqno <= self.last and self.slots[seqno - self.first] is not None

    def append(self, seqno: int, record: bytes) -> None:
        """See `uprmc.core.fronts.Segment`."""
        self.slots[seqno - self.first] = record
        self.count += 1

    def remove(self, seqno: int) -> None:
        """See `uprmc.core.fronts.Segment`."""
        self.slots[seqno - self.first] = None
        self.count -= 1

    def between(self, after: int, upto: int) -> list[bytes]:
        """See `uprmc.core.fronts.Segment`."""
        found: list[bytes] = []
        place: i64 = 0
        end = i64(min(upto, self.last) - self.first) + 1
        if after >= self.first:
            place = i64(min(after, self.last) - self.first) + 1
        while place < end:
            record = self.slots[place]
            if record is not None:
                found.append(record)
            place += 1
        return found


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueFront:
    """See `uprmc.core.fronts.QueueFront`."""

    def __init__(self, high_seqno: int, bits: int) -> None:
        self.bits: int = bits
        self.tail: Segment | None = None
        self.tail_number: int = -1
        self.viewed = False
        self.live: int = 0
        self.high_seqno: int = high_seqno
        self.persisted: int = high_seqno

    def put(self, seqno: int, record: bytes, replaced_seqno: int) -> None:
        """See `uprmc.core.fronts.QueueFront`."""
        append(self, seqno, record, replaced_seqno)

    def put_all(self, records: list[bytes], replaced_seqnos: list[int]) -> None:
        """See `uprmc.core.fronts.QueueFront`."""
        for record in records:
            append(self, seqno_of(record), record, 0)
        for seqno in replaced_seqnos:
            if seqno > self.persisted:
                self.retire(seqno)

    def open_segment(self, number: int) -> Segment:
        """See `uprmc.core.fronts.QueueFront`."""
        raise NotImplementedError

    def retire(self, seqno: int) -> None:
        """See `uprmc.core.fronts.QueueFront`."""
        raise NotImplementedError


def append(queue: QueueFront, seqno: int, record: bytes, replaced_seqno: int) -> None:
    """Do what `QueueFront.put` does."""
    tail = queue.tail
    if tail is None or not tail.first <= seqno <= tail.last:
        tail = queue.open_segment(seqno >> queue.bits)
    tail.slots[seqno - tail.first] = record
    tail.count += 1
    queue.high_seqno = seqno
    queue.live += 1
    if replaced_seqno > queue.persisted:
        if queue.viewed or replaced_seqno < tail.first:
            queue.retire(replaced_seqno)
        elif tail.slots[replaced_seqno - tail.first] is not None:
            tail.slots[replaced_seqno - tail.first] = None
            tail.count -= 1
            queue.live -= 1


@mypyc_attr(allow_interpreted_subclasses=True)
class AccountFront:
    """See `uprmc.core.fronts.AccountFront`."""

    def __init__(self, timetable: Any, by_timestamp: bool) -> None:
        self.used: int = 0
        self.write_limit: int = 0
        self.last_cas: int = 0
        self.by_timestamp = by_timestamp
        self.timetable: Any = timetable
        self.told: float = 0.0
        self.back: int = 0

    def mark_dirty(self, vbucket: Any) -> None:
        """See `uprmc.core.fronts.AccountFront`."""
        raise NotImplementedError


def queued_in(vbuckets: list[VBucketFront]) -> int:
    """See `uprmc.core.fronts`."""
    total: int = 0
    for vbucket in vbuckets:
        total += vbucket.queue.live
    return total


@mypyc_attr(allow_interpreted_subclasses=True)
class VBucketFront:
    """See `uprmc.core.fronts.VBucketFront`."""

    def __init__(self, number: int, queue: QueueFront) -> None:
        self.id: int = number
        self.high_seqno: int = 0
        self.max_cas: int = 0
        self.max_deleted_rev: int = 0
        self.dirty = False
        self.waiting: list[Any] = []
        self.queue: QueueFront = queue

    def know_cas(self, cas: int) -> None:
        """See `uprmc.core.fronts.VBucketFront`."""
        raise NotImplementedError

    def tell_waiting(self) -> None:
        """See `uprmc.core.fronts.VBucketFront`."""
        raise NotImplementedError
