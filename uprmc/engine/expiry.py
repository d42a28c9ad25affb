"""Expiry: times as memcached's clients write them, and deletion of documents that are not accessed.

An expired item is a miss at once. It becomes a deletion with a seqno when it is next accessed, or
soon after it is due: every stream sees an expiry exactly once.

Lifetimes count on monotonic time. A document has the Unix time at which it expires, by the wall
clock that showed when it was stored; when that clock is set, every document of an active vBucket
that may have been given a lifetime goes on living for the rest of it. The records stay as they are:
the vBucket knows by how much the clock was set after which seqno (`History.due`). Only the process
that stored a document knows that; after a restart, or at a promoted replica, the wall clock counts.

Source: `reference/memcached.md` 4.1; `reference/systems.md` (f).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from uprmc.engine.memory_account import MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.vbucket import VBucket
from uprmc.engine.walk import slices
from uprmc.model import VBucketState
from uprmc.ports import Clock
from uprmc.record import key_of

#: Up to 30 days a number means "from now", above it is an absolute Unix time.
RELATIVE_MAX_S = 30 * 24 * 3600

#: An absolute time that has passed whatever the clock says (0 would mean "never").
LONG_AGO = 1

#: The timetable may have this many entries more than twice the number of documents.
SPARE_ENTRIES = 100_000

#: The clock was set if it is off by this much since the last look at it; expiry counts in seconds.
STEP_LEAST_S = 1.0

#: A vBucket knows so many steps of the clock. When there are more, it forgets the oldest, and the
#: documents from before it expire by the time that their record says.
STEPS_MAX = 64

#: Documents looked at between two looks at the clock.
_STEP_ENTRIES = 50


def absolute_expiry(exptime: int, now: float) -> int:
    """Turn a client's number into a Unix time; 0 = never, negative = already expired."""
    if exptime == 0:
        return 0
    if exptime < 0:
        return LONG_AGO
    return int(now) + exptime if exptime <= RELATIVE_MAX_S else exptime


class SteadyClock:
    """Unix time that goes on steadily from one `look` at the wall clock to the next.

    Lifetimes begin and end by it, so that they see no step that the vBuckets have not heard of.
    """

    __slots__ = ("_offset", "_wall", "monotonic")

    def __init__(self, clock: Clock) -> None:
        self._wall = clock.now
        self.monotonic = clock.monotonic
        self._offset = clock.now() - clock.monotonic()

    def now(self) -> float:
        """Return Unix time in seconds."""
        return self.monotonic() + self._offset

    def look(self) -> int:
        """Follow the wall clock; return by how many seconds it has been set since the last look."""
        offset = self._wall() - self.monotonic()
        step, self._offset = offset - self._offset, offset
        return round(step) if abs(step) >= STEP_LEAST_S else 0


class Expirer:
    """Turns documents whose time has come into deletions, in active vBuckets.

    It uses the timetable of the memory account. When a vBucket that has documents becomes active,
    all of them are examined once and entered. Documents of a replica are not entered, because the
    active node expires them.

    Attributes:
        timetable: when documents expire.
    """

    def __init__(
        self, vbuckets: Mapping[int, VBucket], account: MemoryAccount, stats: Stats
    ) -> None:
        self._vbuckets = vbuckets
        self._leftovers = account.leftovers
        self._stats = stats
        self._unseen: dict[int, None] = {}
        self.timetable = account.timetable

    def survey(self, number: int) -> None:
        """Schedule a survey of a vBucket that received documents while it was not active."""
        self._unseen[number] = None

    def bound(self) -> None:
        """Begin a new timetable if most entries of this one are obsolete."""
        entries = self.timetable.entries
        if entries <= SPARE_ENTRIES:
            return
        if entries > 2 * sum(len(each.table) for each in self._vbuckets.values()) + SPARE_ENTRIES:
            self.begin_anew()

    def forget_all(self) -> None:
        """Forget all entries, because there are no documents any more."""
        for slot in self.timetable.take_all():
            self._leftovers.add(slot)

    def begin_anew(self) -> None:
        """Discard the timetable and enter every document again, in the next run."""
        self.forget_all()
        for number in self._vbuckets:
            self.survey(number)

    def run(self, now: float) -> Iterator[None]:
        """Delete every document that is due at `now`, and do the scheduled surveys.

        Between two steps anything may change.
        """
        while self._unseen:
            vbucket = self._vbuckets.get(self._unseen.popitem()[0])
            if vbucket is not None:
                for group in slices([vbucket], _STEP_ENTRIES):
                    for _, records in group:
                        self._look_at([(vbucket.id, key_of(record)) for record in records], now)
                    yield
        for slot in self.timetable.take_due(now):
            while slot:
                chunk = slot[-2 * _STEP_ENTRIES :]
                del slot[-2 * _STEP_ENTRIES :]
                self._look_at(zip(chunk[::2], chunk[1::2], strict=True), now)
                yield

    def _look_at(self, entries: Iterable[tuple[Any, Any]], now: float) -> None:
        for number, key in entries:
            vbucket = self._vbuckets.get(number)
            if vbucket is None or vbucket.state != VBucketState.ACTIVE:
                continue
            item = vbucket.table.find(key)
            if item is None or item.life or not item.expiry:
                continue
            due = vbucket.due(item.expiry, item.seqno)
            if due <= now:
                vbucket.expire(item)
                self._stats.expired_pager += 1
            else:
                self.timetable.add(number, key, due)
