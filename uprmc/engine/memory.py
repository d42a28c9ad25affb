"""What is in memory, for how long, and what makes room: account, pager, timetable and expiry.

The **account** is what all vBuckets of a bucket share, so that a vBucket can work without knowing
the bucket. `write_limit` folds every reason to refuse writes into one comparison on the hot path:
it is the mutation threshold in normal times and below zero while the disk refuses commits.

The **pager** (`Evictor`): when memory runs short, values that are safe on disk leave it, coldest
first. Only clean values are evicted, never keys or metadata and never anything unpersisted, so no
data is lost. Each record has an age of two bits: a read makes it the youngest, each sweep raises
it, and a sweep evicts values whose age is `COLD`. After four sweeps every clean value has been
considered.

**Expiry**: an expired item is a miss at once. It becomes a deletion with a seqno when it is next
accessed, or soon after it is due: every stream sees an expiry exactly once.

Lifetimes count on monotonic time. A document has the Unix time at which it expires, by the wall
clock that showed when it was stored; when that clock is set, every document of an active vBucket
that may have been given a lifetime goes on living for the rest of it. The records stay as they are:
the vBucket knows by how much the clock was set after which seqno (`VBucket.due`). Only the process
that stored a document knows that; after a restart, or at a promoted replica, the wall clock counts.

The **timetable** says when documents expire, so that no scan of all of them is needed. An entry is
a key and the number of its vBucket, and means: check this document at that time. Each document of
an active vBucket that expires has an entry in a slot that is due no later than the document. So a
document whose expiry is postponed needs no other entry: when its slot is due it is entered again.
The entry of a document that was replaced, deleted or no longer expires is then dropped. The sooner
a slot is due the narrower it is, down to one second: there are only some hundred slots, and an
entry moves only a few times. Moving an expiry back and forth leaves obsolete entries; the expirer
begins another timetable when there are too many.

**Leftovers**: to free a table of a million items takes a fifth of a second, all at once, in the
turn in which the last reference goes. So code that discards a large table or list puts it here, and
housekeeping runs `steps` while others have their turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from uprmc.config import MemorySettings
from uprmc.core.fronts import AccountFront
from uprmc.core.numbered import Numbered
from uprmc.core.records import ENTRY_BYTES
from uprmc.engine import cas_clock
from uprmc.engine.stats import Stats
from uprmc.errors import DiskRefuses, OutOfMemory, TemporaryFailure
from uprmc.model import ConflictRule, VBucketState
from uprmc.ports import Clock
from uprmc.record import (
    AGE_BITS,
    AGE_STEP,
    COLD,
    KIND_AT,
    LOST,
    RECORD_OVERHEAD_BYTES,
    key_of,
    seqno_of,
    unpack,
    value_bytes_of,
)

if TYPE_CHECKING:
    from uprmc.engine.vbucket import VBucket

# --- what is freed little by little -------------------------------------------------------------


#: Entries freed between two looks at the clock.
_FREED_ENTRIES = 500


class Leftovers:
    """Discarded objects that wait to be freed.

    What is put here must not be referenced elsewhere.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[dict[Any, Any] | list[Any]] = []

    def __bool__(self) -> bool:
        """Tell whether there is something to free."""
        return bool(self._kept)

    def add(self, thing: dict[Any, Any] | list[Any]) -> None:
        """Schedule something to be freed; O(1)."""
        if thing:
            self._kept.append(thing)

    def steps(self) -> Iterator[None]:
        """Free everything that is here or is added in the meantime, a step at a time."""
        while self._kept:
            thing = self._kept[-1]
            if isinstance(thing, dict):
                for _ in range(min(len(thing), _FREED_ENTRIES)):
                    thing.popitem()
            else:
                del thing[-_FREED_ENTRIES:]
            if not thing:
                self._kept.pop()
            yield


# --- when documents expire ----------------------------------------------------------------------


#: A slot is at most 1 / 2**(this - 1) as wide as the time until it is due.
_FINE_BITS = 5
_FINE_S = 1 << _FINE_BITS


class Timetable:
    """The expiry times of all documents, in slots."""

    __slots__ = ("_slots", "entries", "now")

    def __init__(self, now: float) -> None:
        self.now = int(now)  # Unix time in whole seconds when the due ones were last asked for
        self.entries = 0  # number of entries
        # Number and key of each entry one after the other: half the size of pairs.
        self._slots: dict[int, list[int | bytes]] = {}

    def add(self, number: int, key: bytes, expiry: int) -> None:
        """Schedule the document `key` of vBucket `number` to be checked by `expiry`."""
        slot, left = expiry, expiry - self.now
        if left >= _FINE_S:
            shift = left.bit_length() - _FINE_BITS
            slot = expiry >> shift << shift
        entries = self._slots.get(slot)
        if entries is None:
            entries = self._slots[slot] = []
        entries.append(number)
        entries.append(key)
        self.entries += 1

    def take_due(self, now: float) -> Iterator[list[int | bytes]]:
        """Yield the slots that are due, as lists of number, key, number, key; they are gone."""
        self.now = int(now)
        for slot in sorted(slot for slot in self._slots if slot <= now):
            entries = self._slots.pop(slot, None)
            if entries is not None:  # they were not all taken in the meantime
                self.entries -= len(entries) // 2
                yield entries

    def take_all(self) -> list[list[int | bytes]]:
        """Return all slots and forget them."""
        slots, self._slots = self._slots, {}
        self.entries = 0
        return list(slots.values())


# --- the account --------------------------------------------------------------------------------


#: What an item takes beyond the bytes of its key and its record.
ITEM_OVERHEAD_BYTES = ENTRY_BYTES


def _nothing() -> None:
    """Do nothing: the default of callbacks."""


class MemoryAccount(AccountFront):
    """Shared accounts. Plain attributes, because the hot path reads and writes them.

    Attributes:
        timetable: when documents expire.
        last_cas: the next CAS is one more than this: the newest one given out or received, or one
            below the clock's.
        by_timestamp: whether that is the time; for the hot path.
        back: seconds by which the wall clock was set back, in all; a document that expires as much
            later than now may have expired by the time at which it was stored.
        used: bytes of keys, values and bookkeeping in memory.
        write_limit: writes that need memory are refused while `used` is above it.
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
        # What decides between versions that were made at different places.
        self.conflict_rule = conflict_rule
        self.leftovers = Leftovers()  # discarded objects that are still to be freed
        # Number -> `Table.get` of an active vBucket, for the hot path: it saves one memory access
        # compared with going through the vBucket.
        self.lookups: Numbered[Callable[[bytes], bytes | None]] = Numbered()
        self.cas_step = 1  # distance of the next CAS from one that was received from another node
        self.timeline = cas_clock.Timeline()  # tells which times are believed
        self.tell_time(now)
        # Nothing is left that could be evicted: keys and metadata fill the quota.
        self.exhausted = False
        # Monotonic time when the last lock ever granted lapses, 0 before the first. After it
        # nothing is locked.
        self.locked_until = 0.0
        self.dirty: list[Any] = []  # each `VBucket` that has something for the flusher
        self.refused_memory = 0
        self.refused_disk = 0
        self.on_dirty: Callable[[], None] = _nothing  # called when the first vBucket becomes dirty
        # Called when a write was refused for lack of memory.
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


# --- walking over all items ---------------------------------------------------------------------


def slices(
    vbuckets: Iterable[VBucket], slice_items: int
) -> Iterator[list[tuple[VBucket, list[bytes]]]]:
    """Yield groups of about `slice_items` records, of each vBucket those of its table when reached.

    Between two slices anything may change: check a record against the table before acting on it.
    """
    group: list[tuple[VBucket, list[bytes]]] = []
    size = 0
    for vbucket in vbuckets:
        for records in vbucket.table.portions():
            for start in range(0, len(records), slice_items):
                chunk = records[start : start + slice_items]
                group.append((vbucket, chunk))
                size += len(chunk)
                if size >= slice_items:
                    yield group
                    group, size = [], 0
    if group:
        yield group


# --- the pager ----------------------------------------------------------------------------------


_SWEEPS = 4


class Evictor:
    """Evicts values while `MemoryAccount.used` is high, a slice at a time."""

    def __init__(
        self,
        vbuckets: Callable[[], Iterable[VBucket]],
        account: MemoryAccount,
        stats: Stats,
        slice_items: int,
    ) -> None:
        self._vbuckets = vbuckets
        self._account = account
        self._stats = stats
        self._slice_items = slice_items
        self._run: Iterator[None] | None = None
        self._fruitless_at = -1

    @property
    def needed(self) -> bool:
        """Whether a run should start, or is under way.

        After a run that found nothing to evict, the next one waits until something has become clean
        or has been fetched.
        """
        if self._run is not None:
            return True
        return (
            self._account.used > self._account.high_mark and self._ejectable != self._fruitless_at
        )

    @property
    def _ejectable(self) -> int:
        """A number that grows with every value that becomes ejectable."""
        return self._stats.items_flushed + self._stats.bg_fetched

    def run_slice(self) -> bool:
        """Do a slice of work; ``False`` when the run is over (or none was needed)."""
        if self._run is None:
            if not self.needed:
                return False
            self._stats.pager_runs += 1
            self._run = self._sweep_all()
        if next(self._run, self) is self:
            self._run = None
        return self._run is not None

    def _sweep_all(self) -> Iterator[None]:
        ejects, ejectable = self._stats.value_ejects, self._ejectable
        self._account.exhausted = False
        for _ in range(_SWEEPS):
            ordered = sorted(self._vbuckets(), key=lambda v: v.state == VBucketState.ACTIVE)
            for group in slices(ordered, self._slice_items):
                for vbucket, records in group:
                    self._sweep(vbucket, records)
                    if self._account.used <= self._account.low_mark:
                        return
                yield
        if self._stats.value_ejects == ejects:
            self._fruitless_at = ejectable
            self._account.exhausted = not any(vbucket.queue.live for vbucket in self._vbuckets())

    def _sweep(self, vbucket: VBucket, records: list[bytes]) -> None:
        table, persisted = vbucket.table, vbucket.persisted_seqno
        for record in records:
            if not value_bytes_of(record) or seqno_of(record) > persisted:
                continue
            key = key_of(record)
            if table.get(key) is not record:
                continue
            age = record[KIND_AT] & AGE_BITS
            if age != COLD:
                table.set_age(key, record, age + AGE_STEP & AGE_BITS)
            else:
                table.eject(key, record)
                self._stats.value_ejects += 1
                if self._account.used <= self._account.low_mark:
                    return


# --- expiry -------------------------------------------------------------------------------------


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
    """

    def __init__(
        self, vbuckets: Mapping[int, VBucket], account: MemoryAccount, stats: Stats
    ) -> None:
        self._vbuckets = vbuckets
        self._leftovers = account.leftovers
        self._stats = stats
        self._unseen: dict[int, None] = {}
        self.timetable = account.timetable  # when documents expire

    def survey(self, number: int) -> None:
        """Schedule a survey of a vBucket that received documents while it was not active."""
        self._unseen[number] = None

    def bound(self) -> None:
        """Begin a new timetable if most entries of this one are obsolete."""
        entries = self.timetable.entries
        if entries <= SPARE_ENTRIES:
            return
        if entries > 2 * sum(len(each.table) for each in self._vbuckets.values()) + SPARE_ENTRIES:
            self.start_over()

    def forget_all(self) -> None:
        """Forget all entries, because there are no documents any more."""
        for slot in self.timetable.take_all():
            self._leftovers.add(slot)

    def start_over(self) -> None:
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
            record = vbucket.table.get(key)
            if record is None or record[KIND_AT] & LOST:
                continue  # of a damaged one it is not known when it is due; the others are
            item = unpack(record)
            if item.life or not item.expiry:
                continue
            due = vbucket.due(item.expiry, item.seqno)
            if due <= now:
                vbucket.expire(item)
                self._stats.expired_pager += 1
            else:
                self.timetable.add(number, key, due)
