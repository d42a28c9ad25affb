"""What all vBuckets of a bucket share: the CAS clock, the memory account, the list of dirty ones.

It exists so that a vBucket can work without knowing the bucket. `write_limit` folds every reason
to refuse writes into one comparison on the hot path: it is the mutation threshold in normal times
and below zero while the disk refuses commits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uprmc.config import MemorySettings
from uprmc.core.fronts import AccountFront
from uprmc.core.numbered import Numbered
from uprmc.core.records import ENTRY_BYTES
from uprmc.engine import cas_clock
from uprmc.engine.leftovers import Leftovers
from uprmc.engine.timetable import Timetable
from uprmc.errors import DiskRefuses, OutOfMemory, TemporaryFailure
from uprmc.model import ConflictRule
from uprmc.ports import Clock
from uprmc.record import RECORD_OVERHEAD_BYTES

#: What an item takes beyond the bytes of its key and its record.
ITEM_OVERHEAD_BYTES = ENTRY_BYTES


def _nothing() -> None:
    """Do nothing: the default of callbacks."""


class MemoryAccount(AccountFront):
    """Shared accounts. Plain attributes, because the hot path reads and writes them.

    Attributes:
        timetable: when documents expire.
        leftovers: discarded objects that are still to be freed.
        lookups: number -> `Table.get` of an active vBucket, for the hot path: it saves one memory
            access compared with going through the vBucket.
        exhausted: nothing is left that could be evicted: keys and metadata fill the quota.
        last_cas: the next CAS is one more than this: the newest one given out or received, or one
            below the clock's.
        conflict_rule: what decides between versions that were made at different places.
        by_timestamp: whether that is the time; for the hot path.
        timeline: tells which times are believed.
        back: seconds by which the wall clock was set back, in all; a document that expires as much
            later than now may have expired by the time at which it was stored.
        cas_step: distance of the next CAS from one that was received from another node.
        used: bytes of keys, values and bookkeeping in memory.
        dirty: each `VBucket` that has something for the flusher.
        locked_until: monotonic time when the last lock ever granted lapses, 0 before the first.
            After it nothing is locked.
        write_limit: writes that need memory are refused while `used` is above it.
        on_dirty: called when the first vBucket becomes dirty.
        on_pressure: called when a write was refused for lack of memory.
    """

    __slots__ = (
        "_disk_reason",
        "cas_step",
        "conflict_rule",
        "dirty",
        "exhausted",
        "high_mark",
        "leftovers",
        "locked_until",
        "lookups",
        "low_mark",
        "mutation_limit",
        "on_dirty",
        "on_pressure",
        "quota",
        "refused_disk",
        "refused_memory",
        "timeline",
    )

    timetable: Timetable

    def __init__(
        self,
        settings: MemorySettings,
        now: float = 0.0,
        conflict_rule: ConflictRule = ConflictRule.REVISION,
    ) -> None:
        super().__init__(Timetable(now), conflict_rule is ConflictRule.TIMESTAMP)
        self.conflict_rule = conflict_rule
        self.leftovers = Leftovers()
        self.lookups: Numbered[Callable[[bytes], bytes | None]] = Numbered()
        self.cas_step = 1
        self.timeline = cas_clock.Timeline()
        self.tell_time(now)
        self.exhausted = False
        self.locked_until = 0.0
        self.dirty: list[Any] = []
        self.refused_memory = 0
        self.refused_disk = 0
        self.on_dirty: Callable[[], None] = _nothing
        self.on_pressure: Callable[[], None] = _nothing
        self._disk_reason = ""
        self.set_quota(settings.quota, settings)

    def set_quota(self, quota: int, shares: MemorySettings) -> None:
        """Set the quota in bytes, and the marks as shares of it."""
        self.quota = quota
        self.low_mark = int(quota * shares.low_mark)
        self.high_mark = int(quota * shares.high_mark)
        self.mutation_limit = int(quota * shares.mutation_limit)
        if not self._disk_reason:
            self.write_limit = self.mutation_limit

    def believed(self, now_s: float) -> float:
        """Return Unix time, unless the clock has leapt ahead."""
        return now_s if now_s <= self.timeline.until else self.timeline.instead

    def tell_time(self, now_s: float) -> None:
        """Set Unix time: the next CAS is not below it. Once per turn is often enough."""
        below = cas_clock.reading(self.believed(now_s)) - 1
        if below > self.last_cas:
            self.last_cas = below

    def unlocked(self, clock: Clock) -> bool:
        """Tell whether no document can be locked now."""
        return not self.locked_until or self.locked_until <= clock.monotonic()

    def next_cas(self) -> int:
        """Give out a CAS."""
        self.last_cas += 1
        return self.last_cas

    def disk_failed(self, reason: str) -> None:
        """Refuse every write from now on, because it could not be stored."""
        self._disk_reason = reason or "the store refuses commits"
        self.write_limit = -1

    def disk_works(self) -> None:
        """Accept writes again."""
        self._disk_reason = ""
        self.write_limit = self.mutation_limit

    @property
    def disk_reason(self) -> str:
        """Why writes are refused, ``""`` while the disk works."""
        return self._disk_reason

    def check_disk(self) -> None:
        """Raise `TemporaryFailure` while the disk refuses commits; for writes that free memory."""
        if self._disk_reason:
            self.refused_disk += 1
            raise DiskRefuses(f"the disk refuses commits: {self._disk_reason}")

    def refuse_write(self, size: int) -> None:
        """Raise the refusal that fits; call it when ``used > write_limit``.

        Raises:
            TemporaryFailure: the disk is full, or eviction may still make room.
            OutOfMemory: an item of `size` bytes could never fit, or nothing can be evicted for it.
        """
        self.check_disk()
        self.refused_memory += 1
        if size + RECORD_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES > self.mutation_limit:
            raise OutOfMemory("the item is larger than the memory quota")
        if self.exhausted:
            raise OutOfMemory("keys and metadata alone fill the memory quota")
        self.on_pressure()
        raise TemporaryFailure("memory is short")

    def mark_dirty(self, vbucket: object) -> None:
        """Put a vBucket on the flusher's list; the caller has checked that it is not there."""
        self.dirty.append(vbucket)
        if len(self.dirty) == 1:
            self.on_dirty()
