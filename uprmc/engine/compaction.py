"""Compaction: tombstones that are no longer needed are dropped for good.

Compaction repeats these steps until all records of a vBucket have been examined: `begin` (rules)
opens a view of the store, `read` (any thread, touches no rules) looks for tombstones in it,
`finish` (rules) closes the view and passes the tombstones to the flusher, which drops them in one
commit with the header. Each step examines a bounded number of records, no view outlives its step,
and only one compaction runs at a time. The driver calls `begin` whenever something is `waiting`.

A tombstone is dropped only if all of these allow it:

* `PurgeRule` selects it;
* it is not above `Bucket.purge_limit`;
* it is on disk together with everything before it, and not in a half-received snapshot;
* it is not the newest item on disk, so that the highest seqno always belongs to a record.

A vBucket's `purge_seqno` rises to the highest seqno dropped, before the commit that drops it begins
and on disk within that commit. A consumer that has not reached it must begin at 0.

Note: the table need not be examined. A tombstone leaves it as soon as it is on disk, and what is
not on disk is not dropped.

Source: `reference/systems.md` a.5; `reference/upr.md` 6 (COMPACT_DB) and 7; rows X03, X17.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from uprmc.config import Settings
from uprmc.engine.disposal import Record
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.flusher import Flusher, Waiter
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.engine.view_gate import ViewGate
from uprmc.model import SEQNO_MAX, Item
from uprmc.record import KIND_AT, LIFE_BITS, seqno_of, unpack
from uprmc.storage.interface import Store, StoreView

#: Records examined in one scan: some milliseconds in a worker thread.
_READ_RECORDS = 2_000


class PurgeRule(NamedTuple):
    """Which tombstones a compaction shall drop.

    A bound of 0 counts as absent; the bounds that are given must all hold. Without any bound
    nothing is dropped. ep-engine has the same rule, except that its purge-before-seq alone dropped
    nothing.

    Attributes:
        before_s: tombstones of deletions before this Unix time.
        upto_seqno: tombstones with this seqno or a lower one.
        every: all tombstones, whatever the bounds.
    """

    before_s: int = 0
    upto_seqno: int = 0
    every: bool = False

    def names(self, tombstone: Item) -> bool:
        """Tell whether to drop this tombstone."""
        if self.every:
            return True
        if not (self.before_s or self.upto_seqno):
            return False
        old = not self.before_s or tombstone.expiry < self.before_s
        return old and (not self.upto_seqno or tombstone.seqno <= self.upto_seqno)


@dataclass(slots=True)
class Scan:
    """One look into the store.

    Attributes:
        after: the last seqno examined.
        found: tombstones to drop, by key.
        oldest_left: when the oldest tombstone that stays was created.
        exhausted: the vBucket's last record has been examined.
    """

    view: StoreView
    vbucket: int
    rule: PurgeRule
    limit: int
    most: int
    after: int
    found: list[Record] = field(default_factory=list)
    oldest_left: int = SEQNO_MAX
    exhausted: bool = False


class _Request(NamedTuple):
    number: int
    rule: PurgeRule
    done: Waiter


class _Compaction:
    """The compaction in progress. It watches its vBucket, whose seqnos repeat after a reset."""

    __slots__ = (
        "_flusher",
        "after",
        "committing",
        "done",
        "exhausted",
        "found",
        "oldest_left",
        "over",
        "rule",
        "vbucket",
    )

    def __init__(self, vbucket: VBucket, rule: PurgeRule, done: Waiter, flusher: Flusher) -> None:
        self._flusher = flusher
        self.vbucket = vbucket
        self.rule = rule
        self.done = done
        self.after = 0
        self.found: list[Record] = []
        self.oldest_left = SEQNO_MAX
        self.exhausted = self.committing = self.over = False

    def changed(self) -> None:
        """Continue: what is new is not on disk."""

    def interrupted(self, why: Interruption) -> None:
        """Drop nothing more: the seqnos that were found may now belong to other documents.

        Those who wait are called at the next step, not in the middle of the interruption.
        """
        self.over = True
        self._flusher.forget_drops(self.vbucket)


class Compactor:
    """See the module docstring.

    Attributes:
        oldest_left: when the oldest tombstone that the last finished compaction left was created; a
            number beyond all times if it left none.
        on_wanted: called when `begin` has something to do and no call of it is pending.
    """

    def __init__(
        self,
        store: Store,
        vbuckets: Mapping[int, VBucket],
        flusher: Flusher,
        settings: Settings,
        purge_limit: Callable[[VBucket], int],
        gate: ViewGate,
    ) -> None:
        self._store = store
        self._vbuckets = vbuckets
        self._flusher = flusher
        self._settings = settings
        self._purge_limit = purge_limit
        self._gate = gate
        self._requests: deque[_Request] = deque()
        self._current: _Compaction | None = None
        self.oldest_left = SEQNO_MAX
        self.on_wanted: Callable[[], None] = lambda: None

    @property
    def waiting(self) -> bool:
        """Whether `begin` has something to do, provided that no scan is under way."""
        if self._current is not None:
            return not self._current.committing
        return bool(self._requests)

    def want(self, number: int, rule: PurgeRule, done: Waiter) -> None:
        """Ask for a compaction; `done` is called once, with ``False`` if it was cancelled."""
        self._requests.append(_Request(number, rule, done))
        if self._current is None and len(self._requests) == 1:
            self.on_wanted()

    def begin(self) -> Scan | None:
        """Open a view for the next scan; ``None`` when there is nothing to scan now.

        ``None`` as well while the gate is shut; `on_wanted` is called when it opens.

        Raises:
            StoreError: the store cannot be read; those who wait have been informed.
        """
        if not self.waiting:
            return None
        if self._gate.is_shut:
            self._gate.when_open(self._opened)
            return None
        current = self._current or self._next()
        if current is None:
            return None
        if current.over:
            self._end(current, False)
            return None
        try:
            limit, most = self._limit(current.vbucket), self._most() - len(current.found)
            view = self._store.view()
        except Exception:
            self._end(current, False)
            raise
        return Scan(view, current.vbucket.id, current.rule, limit, most, current.after)

    def read(self, scan: Scan) -> None:
        """Scan. Safe in a worker thread. Raises `StoreError`: then call `failed`."""
        looked = 0
        records = scan.view.records_after(scan.vbucket, scan.after)
        for record in islice(records, _READ_RECORDS):
            looked += 1
            scan.after = seqno_of(record)
            if not record[KIND_AT] & LIFE_BITS:
                continue
            item = unpack(record)
            if item.seqno > scan.limit or not scan.rule.names(item):
                scan.oldest_left = min(scan.oldest_left, item.expiry)
            else:
                scan.found.append((item.key, item.seqno))
                if len(scan.found) >= scan.most:
                    return
        scan.exhausted = looked < _READ_RECORDS

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
        current.oldest_left = min(current.oldest_left, scan.oldest_left)
        if current.exhausted or len(scan.found) >= scan.most:
            self._submit(current)

    def failed(self, scan: Scan) -> None:
        """Cancel the compaction, because the scan failed."""
        scan.view.close()
        assert self._current is not None
        self._end(self._current, False)

    def _opened(self) -> None:
        if self.waiting:
            self.on_wanted()

    def _next(self) -> _Compaction | None:
        """Turn to the next request; cancel those for vBuckets that no longer exist."""
        while self._requests:
            request = self._requests.popleft()
            vbucket = self._vbuckets.get(request.number)
            if vbucket is None:
                request.done(False)
                continue
            self._current = _Compaction(vbucket, request.rule, request.done, self._flusher)
            vbucket.watchers.append(self._current)
            return self._current
        return None

    def _limit(self, vbucket: VBucket) -> int:
        """Return the highest seqno that may be dropped now."""
        return min(
            self._purge_limit(vbucket),
            self._flusher.durable_seqno(vbucket),
            last_complete_seqno(vbucket.high_seqno, vbucket.snapshot),
            vbucket.persisted_seqno - 1,
        )

    def _most(self) -> int:
        """Return how many tombstones may be dropped in one commit."""
        return min(self._settings.engine.compaction_slice, self._flusher.commit_room().items)

    def _submit(self, current: _Compaction) -> None:
        """Ask the flusher to drop what was found and may still be dropped."""
        limit = self._limit(current.vbucket)
        records = [record for record in current.found if record[1] <= limit]
        if len(records) < len(current.found):
            current.oldest_left = 0
        current.found = []
        if records:
            current.committing = True
            self._flusher.drop(current.vbucket, records, self._committed)
        elif current.exhausted:
            self._end(current, True)

    def _committed(self, ok: bool) -> None:
        current = self._current
        assert current is not None
        current.committing = False
        if current.over or not ok:
            self._end(current, False)
        elif current.exhausted:
            self._end(current, True)
        else:
            self.on_wanted()

    def _end(self, current: _Compaction, ok: bool) -> None:
        """Report to the caller, and turn to the next request."""
        current.vbucket.unwatch(current)
        self._current = None
        self.oldest_left = current.oldest_left
        if self._requests:
            self.on_wanted()
        current.done(ok)
