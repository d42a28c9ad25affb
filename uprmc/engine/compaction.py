"""Compaction: tombstones that are no longer needed are dropped for good.

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

Source: `reference/systems.md` a.5; `reference/upr.md` 6 (COMPACT_DB) and 7; rows X03, X17.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Protocol

from uprmc.config import KIB, PurgeSettings
from uprmc.engine.compaction_run import Compaction, Request, Scan
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.flush import Waiter
from uprmc.engine.flusher import Flusher
from uprmc.engine.purge_rule import Compacted, PurgeRule
from uprmc.engine.tombstones import pick
from uprmc.engine.vbucket import VBucket
from uprmc.engine.view_gate import ViewGate
from uprmc.engine.watermarks.rows import Limit
from uprmc.ports import Clock
from uprmc.storage.interface import Damaged, Store

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
    """Compacts vBuckets one after the other.

    Attributes:
        last: what the last compaction did, for its waiter.
        rest_s: how long to wait before the next `begin`, so that the rate is kept.
        on_wanted: called when `begin` has something to do and no call of it is pending.
        on_end: called with what each compaction did.
    """

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
        self._requests: deque[Request] = deque()
        self._current: Compaction | None = None
        self._gathered: dict[int, Compaction] = {}
        self._gathered_items = 0
        self._committing = 0
        self._ended: deque[tuple[Compaction, bool]] = deque()
        self.last = Compacted(0, 0)
        self.rest_s = 0.0
        self.on_wanted: Callable[[], None] = lambda: None
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
        self._requests.append(Request(number, rule, done, after))
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
            told = pick(portion, bounds, scan.most, scan.found, before)
            scan.after, scan.first_left, scan.oldest_left, above = told
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
