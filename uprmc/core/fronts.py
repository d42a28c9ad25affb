"""What every set reads and writes of the engine's objects, in the form that runs here.

`VBucket`, `WriteQueue` and `MemoryAccount` of the engine have subclasses of these. The fields are
here because the compiled core changes them without Python's look-ups; everything that is a rule
stays in the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uprmc.core.form import COMPILED, FORM
from uprmc.record import seqno_of

#: A segment of a write queue has the entries of this many seqnos: one sorted insert for as many
#: writes, and a small list to copy while reading.
SEGMENT_BITS = 6


class DictSegment(dict[int, bytes]):
    """Entries of a write queue whose seqnos agree in all but the lowest bits; they only rise."""

    __slots__ = ()

    def __init__(self, number: int, bits: int) -> None:
        """Make an empty one; `number` is what its seqnos have above their lowest `bits`."""

    def append(self, seqno: int, record: bytes) -> None:
        """Put in an entry above all others."""
        self[seqno] = record

    def remove(self, seqno: int) -> None:
        """Take out an entry that is there."""
        del self[seqno]

    def between(self, after: int, upto: int) -> list[bytes]:
        """Return the entries with ``after < seqno <= upto``, in order."""
        found: list[bytes] = []
        for seqno in reversed(self):
            if seqno <= after:
                break
            if seqno <= upto:
                found.append(self[seqno])
        found.reverse()
        return found


class InterpretedQueueFront:
    """The newest entries of a write queue.

    Attributes:
        bits: seqnos that agree in all but so many bits are in one segment.
        tail: the newest segment, ``None`` if there is none.
        tail_number: its number; another one than any seqno's without a tail.
        viewed: whether views are open.
        live: number of entries that a view opened now would show.
        high_seqno: seqno of the newest entry ever put, 0 before the first.
        persisted: everything up to this seqno has been dropped as persisted.
    """

    __slots__ = ("bits", "high_seqno", "live", "persisted", "tail", "tail_number", "viewed")

    def __init__(self, high_seqno: int, bits: int) -> None:
        self.bits = bits
        self.tail: DictSegment | None = None
        self.tail_number = -1
        self.viewed = False
        self.live = 0
        self.high_seqno = high_seqno
        self.persisted = high_seqno

    def put(self, seqno: int, record: bytes, replaced_seqno: int) -> None:
        """Append a change; its seqno must be above all earlier ones.

        Args:
            seqno: the record's seqno.
            record: the new version.
            replaced_seqno: seqno of the key's previous version, 0 if it had none. If that version
                is still queued it is retired.
        """
        tail = self.tail
        number = seqno >> self.bits
        if tail is None or number != self.tail_number:
            tail = self.open_segment(number)
        tail[seqno] = record
        self.high_seqno = seqno
        self.live += 1
        if replaced_seqno > self.persisted:
            self.retire(replaced_seqno)

    def put_all(self, records: list[bytes], replaced_seqnos: list[int]) -> None:
        """Do what `put` does for each; `replaced_seqnos` are those of all of them, without 0."""
        for record in records:
            self.put(seqno_of(record), record, 0)
        for seqno in replaced_seqnos:
            if seqno > self.persisted:
                self.retire(seqno)

    def open_segment(self, number: int) -> DictSegment:
        """Make the segment of that number the tail, and return it."""
        raise NotImplementedError  # abstract: the write queue has it

    def retire(self, seqno: int) -> None:
        """Let an entry go, if it is there, as far as open views allow."""
        raise NotImplementedError  # abstract: the write queue has it


class InterpretedAccountFront:
    """The counters of the memory account; see `engine.memory_account` for the attributes."""

    __slots__ = ("back", "by_timestamp", "last_cas", "timetable", "used", "write_limit")

    def __init__(self, timetable: Any, by_timestamp: bool) -> None:
        self.used = 0
        self.write_limit = 0
        self.last_cas = 0
        self.by_timestamp = by_timestamp
        self.timetable = timetable
        self.back = 0

    def mark_dirty(self, vbucket: Any) -> None:
        """Put a vBucket on the flusher's list; the caller has checked that it is not there."""
        raise NotImplementedError  # abstract: the account has it


class InterpretedVBucketFront:
    """The numbers of a vBucket; see `engine.vbucket` for the attributes."""

    __slots__ = ("dirty", "high_seqno", "id", "max_cas", "max_deleted_rev", "queue", "waiting")

    def __init__(self, number: int, queue: InterpretedQueueFront) -> None:
        self.id = number
        self.high_seqno = 0
        self.max_cas = 0
        self.max_deleted_rev = 0
        self.dirty = False
        self.waiting: list[Any] = []
        self.queue = queue

    def know_cas(self, cas: int) -> None:
        """Take note of a CAS that was given out elsewhere."""
        raise NotImplementedError  # abstract: the vBucket has it

    def tell_waiting(self) -> None:
        """Call those who wait for a change."""
        raise NotImplementedError  # abstract: the vBucket has it


def count_queued(vbuckets: list[InterpretedVBucketFront]) -> int:
    """Return how many entries the queues of vBuckets show."""
    return sum([vbucket.queue.live for vbucket in vbuckets])


if TYPE_CHECKING or FORM != COMPILED:
    Segment = DictSegment
    QueueFront = InterpretedQueueFront
    AccountFront = InterpretedAccountFront
    VBucketFront = InterpretedVBucketFront
    queued_in = count_queued
else:
    from uprmc.core.native.fronts import (
        AccountFront,
        QueueFront,
        Segment,
        VBucketFront,
        queued_in,
    )

__all__ = ["SEGMENT_BITS", "AccountFront", "QueueFront", "Segment", "VBucketFront", "queued_in"]
