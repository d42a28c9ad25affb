"""Tombstones that no client needs any more are dropped for good: compaction, and when it happens.

Compaction: tombstones that are no longer needed are dropped for good.

Compaction repeats these steps until all records that the vBucket had when it began have been
examined: `begin` (rules) opens a view of the store, `read` (any thread, touches no rules) looks for
tombstones in it, `finish` (rules) closes the view and passes the tombstones to the flusher, which
drops them in one commit with the headers. Each step examines a bounded number of records and no
view outlives its step. Only one vBucket is examined at a time, but what several have goes in one
commit, because a commit costs as much as hundreds of tombstones. The driver calls `begin` whenever
something is `waiting`.

A tombstone is dropped only if all of these allow it:

* `PurgeRule` selects it;
* it is not above `Bucket.purge_limit`, which is asked again at each step;
* it is on disk together with everything before it, and not in a half-received snapshot;
* it is not the newest item on disk, so that the highest seqno always belongs to a record.

A vBucket's `purge_seqno` rises to the highest seqno dropped, before the commit that drops it begins
and on disk within that commit. A consumer that has not reached it must begin at 0. So a watermark
that is set while a compaction runs is judged by what has been dropped so far, and holds from the
next commit on.

While the device is full, a commit drops no more than the free pages of the file have room for: it
takes pages before it frees any.

Note: the table need not be examined. A tombstone leaves it as soon as it is on disk, and what is
not on disk is not dropped.

**Limits**: registered clients set some (`watermarks`), and so does a replica's source: a replica
keeps what its source may have (X22).

**Policy**: tombstones are dropped for good once everyone who must see them has, and they are old
enough. Only vBuckets where there may be something to drop are compacted: what was examined before
is not read again. A consumer without a watermark that was absent for longer than the age starts
over, because it may have missed a deletion. So as long as such consumers are served, the age is
three days by default.

Rows X03, X04, X07, X17, X22.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import NamedTuple, Protocol

from uprmc.config import KIB, PURGE_AGE_AUTO, PurgeSettings
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.flusher import Flusher, Waiter
from uprmc.engine.memory import MemoryAccount
from uprmc.engine.reading import ViewGate
from uprmc.engine.tombstones import Amount, Compacted, PurgeRule, Record, pick
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.engine.watermarks.registry import Pinned, Watermarks
from uprmc.engine.watermarks.rows import Kind, Limit, Row
from uprmc.model import SEQNO_MAX, VBucketState
from uprmc.ports import Clock
from uprmc.storage.interface import Damaged, Store, StoreView

# --- the limits ---------------------------------------------------------------------------------


class PurgeLimits:
    """The limits of all vBuckets.

    Args:
        flusher: knows what is on disk; nothing beyond is purged.
        watermarks: the registered clients.
        numbered: see `Bucket`.
    """

    def __init__(
        self, flusher: Flusher, watermarks: Watermarks, numbered: Mapping[int, int]
    ) -> None:
        self._flusher = flusher
        self._watermarks = watermarks
        self._numbered = numbered

    def of(self, vbucket: VBucket) -> Limit:
        """Return the limit that registered clients and a replica's source set."""
        return self._not_beyond_source(vbucket, self._watermarks.limit(vbucket))

    def forced(self, vbucket: VBucket) -> Limit:
        """Return the limit if registered clients do not matter."""
        return self._not_beyond_source(vbucket, Limit(self._flusher.durable_seqno(vbucket), None))

    def pinned(self, vbucket: VBucket) -> Pinned | None:
        """Return what one row of a vBucket alone keeps from being purged."""
        return self._watermarks.pinned(vbucket, self.forced(vbucket).seqno)

    def _not_beyond_source(self, vbucket: VBucket, limit: Limit) -> Limit:
        """Lower the limit of a replica to its source's purge seqno, which it knows.

        A vBucket that numbers its own versions has no source.
        """
        filled = vbucket.state in (VBucketState.REPLICA, VBucketState.PENDING)
        numbered = self._numbered.get(vbucket.id) == vbucket.failover_log[0].uuid
        if filled and not numbered and vbucket.purge_seqno < limit.seqno:
            return Limit(vbucket.purge_seqno, "source")
        return limit

    def learn_table(
        self, vbucket: VBucket, purge_seqno: int, rows: Iterable[Row], *, incomplete: bool
    ) -> None:
        """Take over what a replica's source says of its watermarks.

        A purge seqno beyond what the replica has on disk as complete snapshots changes nothing.
        """
        stored_seqno = min(vbucket.whole_seqno, self._flusher.durable_seqno(vbucket))
        if vbucket.purge_seqno < purge_seqno <= stored_seqno:
            vbucket.purge_seqno = purge_seqno
            vbucket.change_header()
        self._watermarks.learn(vbucket, rows, incomplete=incomplete)


# --- one compaction -----------------------------------------------------------------------------


@dataclass(slots=True)
class Scan:
    """One look into the store."""

    view: StoreView
    vbucket: int
    rule: PurgeRule
    limit: int  # how far to look
    most: int  # how many tombstones to look for
    after: int  # the last seqno examined
    found: list[Record] = field(default_factory=list)  # tombstones to drop, by rising seqno
    first_left: int = SEQNO_MAX  # the lowest seqno of a tombstone that stays
    oldest_left: int = SEQNO_MAX  # when the oldest tombstone that stays was created
    exhausted: bool = False  # everything up to the limit has been examined


class CompactionRequest(NamedTuple):
    """A compaction that is asked for."""

    number: int  # the vBucket
    rule: PurgeRule  # which tombstones are to be dropped
    done: Waiter  # called at the end
    after: int  # records up to this seqno need not be examined


class Compaction:
    """The compaction in progress. It watches its vBucket, whose seqnos repeat after a reset."""

    __slots__ = (
        "_flusher",
        "after",
        "done",
        "end",
        "exhausted",
        "found",
        "over",
        "result",
        "rule",
        "vbucket",
    )

    def __init__(self, vbucket: VBucket, request: CompactionRequest, flusher: Flusher) -> None:
        self._flusher = flusher
        self.vbucket = vbucket
        self.rule = request.rule
        self.done = request.done
        self.after = request.after
        self.end = vbucket.high_seqno
        self.found: list[Record] = []
        self.result = Compacted(vbucket.id, vbucket.purge_seqno)
        self.exhausted = self.over = False

    def changed(self) -> None:
        """Continue: what is new is not on disk."""

    def interrupted(self, why: Interruption) -> None:
        """Drop nothing more: the seqnos that were found may now belong to other documents.

        Those who wait are called at the next step, not in the middle of the interruption.
        """
        self.over = True
        self._flusher.forget_drops(self.vbucket)


# --- the compactor ------------------------------------------------------------------------------


#: After how many records a scan ends; the clock is looked at after each portion of the store.
_READ_RECORDS = 10_000

#: What a commit may take for one tombstone before it frees anything: a page of each index, their
#: parents' share, and the segment that is written again.
_SCATTERED_DROP_BYTES = 16 * KIB

_SEQNO = itemgetter(1)


class Policy(Protocol):
    """What the compactor asks before it drops anything."""

    def due_before_s(self) -> int:
        """Return the time such that deletions before it are old enough."""

    def disk_is_full(self) -> bool:
        """Tell whether the store refuses commits."""


class Compactor:
    """Compacts vBuckets one after the other."""

    def __init__(
        self,
        store: Store,
        vbuckets: Mapping[int, VBucket],
        flusher: Flusher,
        settings: PurgeSettings,
        limit_for: Callable[[VBucket, PurgeRule], Limit],
        policy: Policy,
        gate: ViewGate,
        clock: Clock,
    ) -> None:
        self._store = store
        self._vbuckets = vbuckets
        self._flusher = flusher
        self._settings = settings
        self._limit_for = limit_for
        self._policy = policy
        self._gate = gate
        self._clock = clock
        self._requests: deque[CompactionRequest] = deque()
        self._current: Compaction | None = None
        self._gathered: dict[int, Compaction] = {}
        self._gathered_items = 0
        self._committing = 0
        self._ended: deque[tuple[Compaction, bool]] = deque()
        self.last = Compacted(0, 0)  # what the last compaction did, for its waiter
        self.rest_s = 0.0  # how long to wait before the next `begin`, so that the rate is kept
        # Called when `begin` has something to do and no call of it is pending.
        self.on_wanted: Callable[[], None] = lambda: None
        # Called with what each compaction did.
        self.on_end: Callable[[PurgeRule, Compacted], None] = lambda _rule, _result: None

    @property
    def waiting(self) -> bool:
        """Whether `begin` has something to do, provided that no scan is under way."""
        more = self._current or self._requests or self._gathered or self._ended
        return bool(more) and not self._committing

    def want(self, number: int, rule: PurgeRule, done: Waiter, after: int = 0) -> None:
        """Ask for a compaction of what lies above seqno `after`.

        `done` is called once, with ``False`` if it was cancelled.
        """
        self._requests.append(CompactionRequest(number, rule, done, after))
        if self.waiting and len(self._requests) == 1:
            self.on_wanted()

    def is_queued(self, number: int, rule: PurgeRule) -> bool:
        """Tell whether such a compaction is asked for already and has not begun."""
        return any((each.number, each.rule) == (number, rule) for each in self._requests)

    def limit(self, vbucket: VBucket, rule: PurgeRule) -> Limit:
        """Return the highest seqno that may be dropped now, and what keeps the others."""
        limit = self._limit_for(vbucket, rule)
        complete = last_complete_seqno(vbucket.high_seqno, vbucket.snapshot)
        return limit._replace(seqno=min(limit.seqno, complete, vbucket.persisted_seqno - 1))

    def begin(self) -> Scan | None:
        """Open a view for the next scan; ``None`` when there is nothing to scan now.

        ``None`` as well while the gate is shut; `on_wanted` is called when it opens.

        Raises:
            StoreError: the store cannot be read; those who wait have been informed.
        """
        self.rest_s = 0.0  # it has been waited for
        self._tell()
        if not self.waiting:
            return None
        if self._gate.is_shut:
            self._gate.when_open(self._opened)
            return None
        current = self._current or self._next()
        if current is None:
            self._submit()
            return None
        if current.over:
            self._end(current, False)
            return None
        try:
            limit, most = self._limit_now(current), self._most()
            if not most:
                self._end(current, False)
                return None
            most = max(1, most - len(current.found) - self._gathered_items)
            view = self._store.view()
        except Exception:
            self._end(current, False)
            raise
        return Scan(view, current.vbucket.id, current.rule, limit, most, current.after)

    def read(self, scan: Scan) -> None:
        """Scan. Safe in a worker thread. Raises `StoreError`: then call `failed`."""
        end = self._clock.monotonic() + self._settings.slice
        bounds = (scan.limit, *scan.rule.bounds())
        looked = 0
        damaged: list[Damaged] = []  # they stay: whether they are tombstones is not known
        for portion in scan.view.portions_after(scan.vbucket, scan.after, damaged):
            if looked >= _READ_RECORDS or (looked and self._clock.monotonic() > end):
                return
            before = scan.after, scan.first_left, scan.oldest_left
            left = pick(portion, bounds, scan.most, scan.found, before)
            scan.after, scan.first_left, scan.oldest_left, above = left
            if above:
                break
            if len(scan.found) >= scan.most:
                return
            looked += len(portion)
        scan.exhausted = True

    def finish(self, scan: Scan) -> None:
        """Take the tombstones that were found; pass a slice of them to the flusher."""
        scan.view.close()
        current = self._current
        assert current is not None
        if current.over:
            self._end(current, False)
            return
        current.after = scan.after
        current.exhausted = scan.exhausted
        current.found += scan.found
        current.result = current.result._replace(
            examined=max(scan.after, scan.limit) if scan.exhausted else scan.after,
            first_left=min(current.result.first_left, scan.first_left),
            oldest_left=min(current.result.oldest_left, scan.oldest_left),
        )
        full = len(scan.found) >= scan.most
        if current.exhausted:
            self._current = None
        if current.exhausted or full:
            self._gathered[current.vbucket.id] = current
            self._gathered_items += len(current.found)
        if full or not (self._current or self._requests):
            self._submit()

    def failed(self, scan: Scan) -> None:
        """Cancel the compaction, because the scan failed."""
        scan.view.close()
        assert self._current is not None
        self._end(self._current, False)

    def _opened(self) -> None:
        if self.waiting:
            self.on_wanted()

    def _next(self) -> Compaction | None:
        """Turn to the next request; cancel those for vBuckets that no longer exist.

        ``None`` as well if the vBucket has tombstones that must be dropped before.
        """
        while self._requests:
            number = self._requests[0].number
            if number in self._gathered:
                return None
            request = self._requests.popleft()
            vbucket = self._vbuckets.get(number)
            if vbucket is None:
                request.done(False)
                continue
            if request.rule.aged:
                before_s = max(0, self._policy.due_before_s())
                request = request._replace(rule=request.rule._replace(before_s=before_s))
            self._current = Compaction(vbucket, request, self._flusher)
            vbucket.watchers.append(self._current)
            return self._current
        return None

    def _limit_now(self, current: Compaction) -> int:
        limit = self.limit(current.vbucket, current.rule)
        current.result = current.result._replace(limited_by=limit.limited_by)
        return min(limit.seqno, current.end)

    def _most(self) -> int:
        """Return how many tombstones may be dropped in one commit."""
        room = self._flusher.commit_room()
        most = min(self._settings.batch_items, room.drops)
        if not self._policy.disk_is_full():
            return most
        return min(most, self._store.usage().free_bytes // _SCATTERED_DROP_BYTES)

    def _submit(self) -> None:
        """Ask the flusher to drop what was gathered and may still be dropped.

        If that raises for one vBucket, its compaction has ended and the others stay gathered.
        """
        items, self._gathered_items = self._gathered_items, 0
        self.rest_s = items / self._settings.rate if self._settings.rate else 0.0
        try:
            while self._gathered:
                compaction = self._gathered.pop(next(iter(self._gathered)))
                if compaction.over:
                    self._ended.append((compaction, False))
                else:
                    self._drop(compaction)
        finally:
            self._tell()

    def _drop(self, compaction: Compaction) -> None:
        try:
            limit = self._limit_now(compaction)
        except Exception:
            self._ended.append((compaction, False))
            raise
        found, compaction.found = compaction.found, []
        records = found[: bisect_right(found, limit, key=_SEQNO)]
        if len(records) < len(found):
            first = found[len(records)][1]
            compaction.result = compaction.result._replace(first_left=first, oldest_left=0)
        if records:
            self._committing += 1
            done = partial(self._committed, compaction, len(records))
            self._flusher.drop(compaction.vbucket, records, done)
        elif compaction.exhausted:
            self._ended.append((compaction, True))

    def _committed(self, compaction: Compaction, dropped: int, ok: bool) -> None:
        self._committing -= 1
        if compaction.over or not ok:
            self._ended.append((compaction, False))
        else:
            before = compaction.result.dropped
            compaction.result = compaction.result._replace(dropped=before + dropped)
            if compaction.exhausted:
                self._ended.append((compaction, True))
        self._tell()
        if self.waiting:
            self.on_wanted()

    def _tell(self) -> None:
        """Report the ends, each once. If a waiter raises, the others are called before it does."""
        broken: Exception | None = None
        while self._ended:
            try:
                self._end(*self._ended.popleft())
            except Exception as error:
                broken = broken or error
        if broken is not None:
            raise broken

    def _end(self, compaction: Compaction, ok: bool) -> None:
        """Report to the caller, and turn to the next request."""
        compaction.vbucket.unwatch(compaction)
        if self._current is compaction:
            self._current = None
        self.last = compaction.result._replace(end=compaction.vbucket.purge_seqno)
        self.on_end(compaction.rule, self.last)
        if self.waiting:
            self.on_wanted()
        compaction.done(ok)


# --- the policy ---------------------------------------------------------------------------------


#: Local document with the time when a stream without a watermark was last served.
SERVED_NAME = b"uprmc/unregistered"

#: Age of deletions while there are consumers without a watermark.
UNREGISTERED_AGE_S = 259_200

_AGED = PurgeRule(aged=True)


class PurgePolicy:
    """How young and when may be purged; implements `compaction.Policy`."""

    def __init__(self, account: MemoryAccount, clock: Clock, settings: PurgeSettings) -> None:
        self._account = account
        self._clock = clock
        self._settings = settings
        # Unix time when a stream without a watermark was last served, 0 = never.
        self.served_at = 0.0

    def _now(self) -> float:
        """Return Unix time; a clock that has leapt ahead makes no deletion old."""
        return self._account.believed(self._clock.now())

    def serve_unregistered(self) -> None:
        """Take note that a stream without a watermark is being served."""
        self.served_at = self._now()

    def restore(self, document: bytes | None, *, used: bool, clean: bool) -> None:
        """Take over what a directory knows; after a crash, or without a document, it was just now.

        Args:
            document: what `document` returned when the node was stopped.
            used: whether the directory holds vBuckets.
            clean: whether it was left in order.
        """
        known = clean and document is not None and document.isdigit()
        if known and document is not None:
            self.served_at = float(document)
        elif used:
            self.serve_unregistered()

    def document(self) -> bytes:
        """Return what an orderly stop writes under `SERVED_NAME`."""
        return b"%d" % self.served_at

    @property
    def min_age_s(self) -> int:
        """The age below which deletions are kept now."""
        if self._settings.min_age_s != PURGE_AGE_AUTO:
            return self._settings.min_age_s
        served = self.served_at and self._now() - self.served_at < UNREGISTERED_AGE_S
        return UNREGISTERED_AGE_S if served else 0

    def due_before_s(self) -> int:
        """Return the time such that deletions before it are old enough."""
        return int(self._now()) - self.min_age_s + 1

    def disk_is_full(self) -> bool:
        """Tell whether the store refuses commits."""
        return bool(self._account.disk_reason)


class Purger:
    """Purges a bucket's vBuckets whenever `begin` is called."""

    def __init__(
        self, vbuckets: Mapping[int, VBucket], compactor: Compactor, policy: PurgePolicy
    ) -> None:
        self._vbuckets = vbuckets
        self._compactor = compactor
        self._policy = policy
        self._asked: set[int] = set()
        #: Number -> history that was examined, and with what result.
        self._last: dict[int, tuple[int, Compacted]] = {}

    def begin(self) -> None:
        """Purge all vBuckets that may have something to purge; harmless while this goes on."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Do what `begin` does, yielding after each vBucket."""
        for number in sorted(self._vbuckets):
            vbucket = self._vbuckets.get(number)
            if vbucket is not None and number not in self._asked and self._is_worth_a_look(vbucket):
                self._look(vbucket)
            yield

    def _is_worth_a_look(self, vbucket: VBucket) -> bool:
        if vbucket.state == VBucketState.DEAD:
            return False  # its clients report elsewhere now, and it may follow that node again
        due_before_s = self._policy.due_before_s()
        if not vbucket.max_deleted_rev or due_before_s <= 0:
            return False
        limit, last = self._compactor.limit(vbucket, _AGED).seqno, self._last_of(vbucket)
        old = last.first_left <= limit and last.oldest_left < due_before_s
        return old or limit > last.examined

    def _last_of(self, vbucket: VBucket) -> Compacted:
        uuid, last = self._last.get(vbucket.id, (0, Compacted(0, 0)))
        same = uuid == _history(vbucket) and last.examined <= vbucket.high_seqno
        return last if same else Compacted(vbucket.id, 0)

    def _look(self, vbucket: VBucket) -> None:
        last, uuid = self._last_of(vbucket), _history(vbucket)

        def done(ok: bool) -> None:
            self._asked.discard(vbucket.id)
            if ok:
                self._last[vbucket.id] = uuid, self._compactor.last

        self._asked.add(vbucket.id)
        after = min(last.examined, last.first_left - 1)
        self._compactor.want(vbucket.id, _AGED, done, after)


def _history(vbucket: VBucket) -> int:
    return vbucket.failover_log[0].uuid


# --- clients that keep too much -----------------------------------------------------------------


#: A client: its id, and its kind.
Client = tuple[bytes, Kind]


class Pinning:
    """Looks at what each client alone keeps from being purged whenever `steps` is run.

    What counts is what would go without the client's rows, in all vBuckets that are active here. A
    client that keeps more than ``purge.max_pinned_bytes`` is forgotten early, with an event; if its
    connection is open it may register again, from where nothing has been purged.
    """

    def __init__(
        self,
        vbuckets: Mapping[int, VBucket],
        watermarks: Watermarks,
        limits: PurgeLimits,
        max_bytes: int,
    ) -> None:
        self._vbuckets = vbuckets
        self._watermarks = watermarks
        self._pinned = limits.pinned
        self._max_bytes = max_bytes
        # What the last look found, of clients that alone keep something.
        self.kept: dict[Client, Amount] = {}

    def steps(self) -> Iterator[None]:
        """Look at all vBuckets, again as long as a client was forgotten; yields after each."""
        while True:
            kept: dict[Client, Amount] = {}
            for vbucket in list(self._vbuckets.values()):
                pinned = self._pinned(vbucket)
                if pinned is not None:
                    client = pinned.row.id, pinned.row.kind
                    kept[client] = kept.get(client, Amount()).plus(pinned.amount)
                yield
            self.kept = kept
            over = {name for (name, _), amount in kept.items() if self._is_over(amount)}
            if not over:
                return
            yield from self._forget(over)

    def _is_over(self, amount: Amount) -> bool:
        return 0 < self._max_bytes < amount.bytes

    def _forget(self, names: set[bytes]) -> Iterator[None]:
        for vbucket in list(self._vbuckets.values()):
            for name in names:
                self._watermarks.expire_early(vbucket, name, self._pinned(vbucket))
                yield
