"""From the write queues to the store, in three steps so that the slow one can run elsewhere.

`begin` (rules) takes views of the dirty vBuckets and makes one batch; `commit` (any thread, touches
no rules) writes it; `finish` (rules) drops what was written from the queues and forgets deleted
documents that were not written again in the meantime. Only one flush is under way at a time; the
driver calls the three in order, or `begin`, `commit`, `failed`. With many changes `begin` and
`finish` take a while, so there are also versions of them in short steps.

Note: a queue longer than a batch is written from *one* view in several commits. Until the last of
them the stored snapshot range says "incomplete". After a crash in between, the items are kept, but
history branches at the last complete state. For the same reason, the part of a snapshot that a
replica has received is stored with that snapshot's range.

While the flusher is paused the driver begins no flush, but an orderly stop still drains it.

Source: seed 000 "How items in the partition write queue flow to couchstore"; rows D21 to D23.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from uprmc.config import FlushSettings
from uprmc.core.fronts import queued_in
from uprmc.engine.commit_room import CommitRoom
from uprmc.engine.disposal import Disposals, Record
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.flush import SETTLE_ITEMS, Begun, Cursor, Flush, LocalDocument, Part, Waiter
from uprmc.engine.memory_account import MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.tombstone_count import Tombstones
from uprmc.engine.vbucket import VBucket
from uprmc.errors import StoreError
from uprmc.model import SnapshotRange
from uprmc.record import seqno_of
from uprmc.storage.interface import Batch, Store, VBucketChange

#: Shortest time between two questions whether a flush is due.
_LEAST_LOOK_S = 0.001

#: This many batches may gather while replicas are far behind their source.
_FILLING_BATCHES = 32

#: Most items taken from a queue before the room is checked again and others may run.
_TAKE_ITEMS = 64

#: Of a batch so much may be keys that came while it was taken: one in so many.
_LATER_KEYS = 16

#: What a vBucket counts for beside its items when others may run after so many of them.
_VBUCKET_AS_ITEMS = 8


class Flusher:
    """See the module docstring.

    Attributes:
        paused: no flush may begin, except for an orderly stop.
        last_commit_items: changes that the last finished commit wrote.
        filling: connections that fill replicas which are far behind.
        on_drop: called with tombstones that are being dropped.
        tombstones: what the newest commit has left of them.
    """

    def __init__(
        self,
        store: Store,
        vbuckets: Mapping[int, VBucket],
        account: MemoryAccount,
        stats: Stats,
        settings: FlushSettings,
    ) -> None:
        self._store = store
        self._vbuckets = vbuckets
        self._account = account
        self._stats = stats
        self._settings = settings
        self._cursors: dict[int, Cursor] = {}
        self._waiters: list[Waiter] = []
        self._impatient: list[Waiter] = []
        self._local: dict[bytes, LocalDocument] = {}
        self._disposals = Disposals(vbuckets)
        self.tombstones = Tombstones()
        self._hurried = False
        self.paused = False
        self.last_commit_items = 0
        self.filling = 0
        self.on_drop: Callable[[VBucket, Sequence[Record]], None] = lambda _, __: None
        self._batch_items = settings.batch_items

    def delay(self, age_s: float, last_flush_s: float) -> float:
        """Return the seconds after which to ask again whether a flush is due; 0 = it is due now.

        The flusher rests for a multiple of the time that it worked. A fast commit is repeated soon;
        a slow one waits for more changes, because a document in a batch of 30,000 costs half of one
        in a batch of 10,000 and a tenth of one in a batch of 100. There is no rest when the batch
        is full, memory is short, or something waits; `hurry` cuts the rest short. While replicas
        are being filled many batches may gather: their source has everything, and writing would
        take time from receiving.

        Args:
            age_s: how long something has been dirty.
            last_flush_s: how long the last flush took.
        """
        account, settings = self._account, self._settings
        batch_items = self._batch_items * (_FILLING_BATCHES if self.filling else 1)
        queued = queued_in(account.dirty)
        full = queued >= batch_items or account.used > account.high_mark
        if self._waiters or self._impatient or full:
            return 0.0
        rest = 0.0 if self._hurried else settings.rest_factor * last_flush_s
        wait = min(max(rest, settings.min_delay_s), settings.max_delay_s)
        return min(max(wait - age_s, 0.0), max(settings.min_delay_s, _LEAST_LOOK_S))

    def hurry(self) -> None:
        """End the rest, because a client has asked whether a change is on disk."""
        self._hurried = True

    def configure(self, settings: FlushSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings

    def pause(self) -> None:
        """Begin no flush from now on; one that is under way is finished.

        Waiters that are not patient get ``False``, unless they wait for the one under way.
        """
        self.paused = True
        while self._impatient:
            self._impatient.pop(0)(False)

    def resume(self) -> None:
        """Continue; changes that have gathered are announced as if they were new."""
        self.paused = False
        if self.pending:
            self._account.on_dirty()

    @property
    def pending(self) -> bool:
        """Whether a flush begun now would have something to do."""
        waiters = self._waiters or self._impatient
        return bool(self._account.dirty or waiters or self._local or self._disposals.pending)

    @property
    def queued(self) -> int:
        """Changes accepted and not yet persisted. O(vBuckets)."""
        return sum(vbucket.queue.live for vbucket in self._vbuckets.values())

    def commit_room(self, removed: Sequence[int] = ()) -> CommitRoom:
        """Return what one commit may take now, which removes these vBuckets beside."""

        def records_most() -> int | None:
            return None if removed else self._records_most()

        return CommitRoom.of(self._settings, self._account.quota, self._store, records_most)

    def _records_most(self) -> int | None:
        """Return how many records the store may have after the next commit at most.

        Each is of a key in a table, or a tombstone that is on disk now; some more may come until
        all is taken. ``None`` if the store still has records of another history. O(vBuckets).
        """
        vbuckets = self._vbuckets.values()
        if self._disposals.pending or any(map(_has_other_history, vbuckets)):
            return None
        keys = sum([len(each.table) for each in vbuckets])
        return keys + self.tombstones.total.number + self._settings.batch_items // _LATER_KEYS

    def durable_seqno(self, vbucket: VBucket) -> int:
        """Return the seqno up to which every change, or a newer version of its key, is on disk.

        This is what clients see. While a long queue is written in several commits it lags behind
        `VBucket.persisted_seqno`: a key that was changed twice since the previous view is written
        with its newer seqno, perhaps in a later commit, and until then with neither.
        """
        cursor = self._cursors.get(vbucket.id)
        if cursor is None or cursor.queue is not vbucket.queue:
            return vbucket.persisted_seqno
        return cursor.start

    def whole_seqno(self, vbucket: VBucket) -> int | None:
        """Return the end of the newest complete snapshot that is on disk, ``None`` = unknown now.

        An active vBucket is complete at any time.
        """
        durable_seqno = self.durable_seqno(vbucket)
        if durable_seqno >= vbucket.whole_seqno:
            return vbucket.whole_seqno
        if durable_seqno < vbucket.persisted_seqno or vbucket.rewinding:
            return None
        return last_complete_seqno(vbucket.persisted_seqno, vbucket.persisted_snapshot)

    def when_durable(self, waiter: Waiter, *, patient: bool = True) -> None:
        """Call `waiter` once everything accepted until now in the headers is on disk.

        It gets ``True`` when the next flush to begin has finished, or ``False`` if that failed (the
        flush itself will be retried in any case).

        Args:
            waiter: called once.
            patient: whether it waits if persistence is stopped, until it is started again.
                Otherwise it gets ``False`` then, at once if persistence is already stopped.
        """
        if patient:
            self._waiters.append(waiter)
        elif self.paused:
            waiter(False)
            return
        else:
            self._impatient.append(waiter)
        self._account.on_dirty()

    def write_local(
        self, name: bytes, document: bytes | None, done: Waiter, *, patient: bool = True
    ) -> None:
        """Write a local document of the store (``None`` deletes) with the next commit.

        It is in one commit with all changes of headers until now. After a failure it is retried,
        unless there is a newer one. `done` is a waiter as of `when_durable`.
        """
        self._local[name] = document
        self.when_durable(done, patient=patient)

    def keep_local(self, name: bytes, make: Callable[[], bytes | None]) -> None:
        """Write a local document with the next commit, as `make` returns it then.

        For documents that change often: it hurries nothing, and changes until then cost no more.
        """
        if name not in self._local:
            self._local[name] = make
            self._account.on_dirty()

    def remove(self, vbucket: VBucket, done: Waiter) -> None:
        """Forget a vBucket that the node has removed; the next commit deletes it from the store.

        A part of it that is already under way is written first. `done` is an impatient waiter as of
        `when_durable`.
        """
        cursor = self._cursors.pop(vbucket.id, None)
        if cursor is not None:
            cursor.view.close()
        if vbucket in self._account.dirty:
            self._account.dirty.remove(vbucket)
        vbucket.dirty = True  # so that nothing puts it on the list again
        self._disposals.remove([vbucket.id])
        self.when_durable(done, patient=False)

    def drop(self, vbucket: VBucket, records: Sequence[Record], done: Waiter) -> None:
        """Drop tombstones for good with the next commit.

        The purge seqno rises at once, because a stream that is accepted before the commit may open
        its view after it. It stays raised if the commit fails, and the drop is not retried. Watch
        the vBucket and call `forget_drops` when it is interrupted: after a reset the same seqnos
        belong to other documents.

        Args:
            vbucket: the vBucket of the tombstones.
            records: (key, seqno) of each by rising seqno, all persisted; not empty.
            done: an impatient waiter as of `when_durable`.
        """
        self.on_drop(vbucket, records)
        vbucket.purge_seqno = max(vbucket.purge_seqno, records[-1][1])
        self._disposals.drop(vbucket, records)
        vbucket.change_header()
        self.when_durable(done, patient=False)

    def forget_drops(self, vbucket: VBucket) -> None:
        """Cancel the requested drops that are not already under way."""
        self._disposals.forget_drops(vbucket)

    def begin(self) -> Flush | None:
        """Take dirty vBuckets, up to one batch; ``None`` when there are none."""
        steps = self.begin_in_slices()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                flush: Flush | None = end.value
                return flush

    def begin_in_slices(self) -> Generator[None, None, Flush | None]:
        """Do what `begin` does, yielding after each short step so that others can run.

        Headers, resets and removals from before the first step are in this batch: a `Bucket.flush`
        is completely in one batch, this one or, if it comes later, the next. An exception leaves
        everything for the next flush, and informs waiters as `failed` does.
        """
        self._hurried = False
        dirty, self._account.dirty = self._account.dirty, []
        waiters, self._waiters, self._impatient = [*self._waiters, *self._impatient], [], []
        removed = self._disposals.take_removed()
        local, self._local = self._local, {}
        if not (dirty or waiters or removed or local):
            return None
        flush = Flush(deque(waiters), removed, local)
        try:
            yield from self._gather(flush, dirty)
        except Exception as error:  # a bug here must not lose what is dirty
            self._put_back(flush, dirty, error)
            raise
        return flush

    def _gather(self, flush: Flush, dirty: list[VBucket]) -> Iterator[None]:
        """Fill `flush` with as much as fits in one commit."""
        flush.changes += [VBucketChange(number, None) for number in flush.removed]
        room = self.commit_room(flush.removed)
        self._batch_items = room.items
        dirty = [each for each in dirty if not self._is_gone(each)]
        begun = [Begun.of(each) for each in dirty if each.header_dirty or each.reset_pending]
        later = [each for each in dirty if not (each.header_dirty or each.reset_pending)]
        resets = sum(each.reset for each in begun)
        reset_all = 0 < resets == len(self._vbuckets)
        for each in sorted(begun, key=lambda each: not each.vbucket.rewinding):
            yield from self._take_begun(flush, each, room)
            if not each.vbucket.rewinding:  # what was rolled back is taken before the first step
                yield
        since_yield = 0
        for vbucket in later:
            if not room.left:
                self._take_next_time(vbucket)
            elif self._is_short(vbucket):
                since_yield += self._take_all(flush, vbucket, room)
            elif not (yield from self._take(flush, vbucket, room, reset=False)):
                self._take_next_time(vbucket)
            since_yield += _VBUCKET_AS_ITEMS
            if since_yield >= _TAKE_ITEMS:
                since_yield = 0
                yield
        # What allowed a drop of this batch must not be stored after it.
        flush.local, self._local = {**flush.local, **self._local}, {}
        local: dict[bytes, bytes | None] = {}
        for name, made in flush.local.items():
            if callable(made):
                local[name] = made()
                yield
            else:
                local[name] = made
        flush.batch = Batch(flush.changes, local, reset_all)

    def _take_begun(
        self, flush: Flush, begun: Begun, room: CommitRoom
    ) -> Generator[None, None, None]:
        """Add a vBucket's share, or only the header if its history has ended."""
        vbucket, table, header, reset = begun
        if vbucket.table is table and (yield from self._take(flush, vbucket, room, reset=reset)):
            return
        flush.parts.append(
            Part(vbucket, table, None, None, [], header.high_seqno, header.snapshot, reset, True)
        )
        flush.changes.append(VBucketChange(vbucket.id, header, [], reset))
        self._take_next_time(vbucket)

    def _take_next_time(self, vbucket: VBucket) -> None:
        """Leave a dirty vBucket for the next flush."""
        if not self._is_gone(vbucket):
            self._account.dirty.append(vbucket)

    def _put_back(self, flush: Flush, dirty: list[VBucket], error: Exception) -> None:
        """Put back everything that was taken by a flush which could not begin."""
        left = set(self._account.dirty)
        self._account.dirty += [each for each in dirty if each.dirty and each not in left]
        try:
            self.failed(flush, StoreError(f"{type(error).__name__}: {error}"))
        finally:  # waiters after one that raises are called by the next flush
            self._waiters += flush.waiters

    def commit(self, flush: Flush) -> None:
        """Write the batch. This is the only slow step; it is safe in a worker thread.

        Raises:
            StoreError: nothing was written; call `failed`, not `finish`.
        """
        self._store.commit(flush.batch)

    def finish(self, flush: Flush) -> None:
        """Take note that the batch is on disk."""
        for _ in self.finish_in_slices(flush):
            pass

    def finish_in_slices(self, flush: Flush) -> Generator[None, None, None]:
        """Do what `finish` does, yielding after each short step so that others can run."""
        yield from self.tombstones.committed(flush.batch)
        since_yield = 0
        for part in flush.parts:
            if part.cursor is not None:
                yield from self._settle(part)
            elif not self._is_gone(part.vbucket):
                self._persisted(part, part.records)
            since_yield += len(part.records) + _VBUCKET_AS_ITEMS
            if since_yield >= _TAKE_ITEMS:
                since_yield = 0
                yield
        self._account.disk_works()
        if flush.item_count:
            self._account.exhausted = False  # what is clean now may be evicted
        self._stats.commits += 1
        self.last_commit_items = flush.item_count
        self._stats.items_flushed += flush.item_count
        flush.tell(True)

    def failed(self, flush: Flush, error: StoreError) -> None:
        """Handle a failed commit: nothing was written; refuse writes, keep everything queued."""
        self._stats.commit_failures += 1
        if (
            flush.parts or flush.removed or flush.local
        ):  # will be retried; nothing else ends the refusal
            self._account.disk_failed(str(error))
        self._disposals.remove(flush.removed)
        self._local = {**flush.local, **self._local}
        for part in flush.parts:
            vbucket = part.vbucket
            vbucket.reset_pending |= part.reset
            vbucket.header_dirty |= part.header
            self._mark_dirty(vbucket)
        flush.tell(False)

    def _take(
        self, flush: Flush, vbucket: VBucket, room: CommitRoom, *, reset: bool
    ) -> Generator[None, None, bool]:
        """Add a vBucket's share to `flush`; ``False`` if its history has changed."""
        if self._is_gone(vbucket) or vbucket.reset_pending != reset:
            return False
        cursor = self._cursor(vbucket)
        drop = self._disposals.take_drops(vbucket)
        room.use_drops(len(drop))
        above, forget = vbucket.forgetting or (None, frozenset())
        if above is None:
            records = yield from self._portion(cursor, vbucket, room)
            if records is None:
                return False
            upto = seqno_of(records[-1]) if records else cursor.position
        else:  # all of a rollback is in one commit; its newest item may be on disk already
            records = list(cursor.view.records())
            room.use(records)
            upto = cursor.view.high_seqno
        snapshot = cursor.snapshot
        if upto < cursor.view.high_seqno:
            snapshot = SnapshotRange(cursor.whole, snapshot.end)
        self._add(flush, vbucket, cursor, records, upto, snapshot, drop, above, sorted(forget))
        return True

    def _is_short(self, vbucket: VBucket) -> bool:
        """Tell whether a vBucket without anything special has so little that it is taken at once.

        That needs no view: all of it is in one commit, and if that fails nothing of it is on disk.
        """
        return (
            vbucket.queue.live <= _TAKE_ITEMS
            and vbucket.id not in self._cursors
            and not (vbucket.rewinding or vbucket.reset_pending or self._is_gone(vbucket))
        )

    def _take_all(self, flush: Flush, vbucket: VBucket, room: CommitRoom) -> int:
        """Add everything that a vBucket has to `flush`; return how many records that is."""
        drop = self._disposals.take_drops(vbucket)
        room.use_drops(len(drop))
        records = vbucket.queue.since(vbucket.queue.persisted)
        room.use(records)
        upto = seqno_of(records[-1]) if records else vbucket.persisted_seqno
        self._add(flush, vbucket, None, records, upto, vbucket.snapshot, drop)
        return len(records)

    def _add(
        self,
        flush: Flush,
        vbucket: VBucket,
        cursor: Cursor | None,
        records: list[bytes],
        upto: int,
        snapshot: SnapshotRange,
        drop: Sequence[Record],
        above: int | None = None,
        forget: Sequence[bytes] = (),
    ) -> None:
        """Add a part to a flush, and what it does to the store."""
        reset = vbucket.reset_pending
        flush.parts.append(
            Part(
                vbucket,
                vbucket.table,
                vbucket.queue,
                cursor,
                records,
                upto,
                snapshot,
                reset,
                vbucket.header_dirty,
            )
        )
        header = vbucket.header(upto, snapshot)
        flush.changes.append(VBucketChange(vbucket.id, header, records, reset, drop, above, forget))
        vbucket.dirty = vbucket.header_dirty = vbucket.reset_pending = False

    def _portion(
        self, cursor: Cursor, vbucket: VBucket, room: CommitRoom
    ) -> Generator[None, None, list[bytes] | None]:
        """Return the next records of a view, as many as there is room for.

        ``None`` if the vBucket began another history or was removed in the meantime.
        """
        records: list[bytes] = []
        view, upto = cursor.view, cursor.position
        while room.left and upto < view.high_seqno:
            if records:
                yield
                if self._cursors.get(vbucket.id) is not cursor or vbucket.queue is not cursor.queue:
                    return None
            found = view.take(min(room.items, _TAKE_ITEMS), upto)
            if not found:
                break
            room.use(found)
            records += found
            upto = seqno_of(found[-1])
        return records

    def _cursor(self, vbucket: VBucket) -> Cursor:
        cursor = self._cursors.get(vbucket.id)
        if cursor is not None and cursor.queue is vbucket.queue:
            return cursor
        if cursor is not None:
            cursor.view.close()
        start = vbucket.persisted_seqno
        whole = last_complete_seqno(start, vbucket.persisted_snapshot)
        view = vbucket.queue.open_view()
        cursor = Cursor(vbucket.queue, view, start, whole, vbucket.snapshot, start)
        self._cursors[vbucket.id] = cursor
        return cursor

    def _settle(self, part: Part) -> Iterator[None]:
        """Tell a vBucket what is on disk, a little at a time if that is much."""
        vbucket, cursor = part.vbucket, part.cursor
        if cursor is None or self._cursors.get(vbucket.id) is not cursor:
            return
        cursor.position = part.upto
        complete = part.upto >= cursor.view.high_seqno
        if complete:
            cursor.view.close()
        else:
            cursor.view.pass_by(part.upto)
        settled = 0
        if not vbucket.rewinding:
            between = SnapshotRange(cursor.whole, cursor.snapshot.end)
            while len(part.records) - settled > SETTLE_ITEMS and part.queue is vbucket.queue:
                few = part.records[settled : settled + SETTLE_ITEMS]
                settled += len(few)
                vbucket.persisted(few, seqno_of(few[-1]), between)
                yield
        if complete and self._cursors.get(vbucket.id) is cursor:
            del self._cursors[vbucket.id]
        self._persisted(part, part.records[settled:])

    def _persisted(self, part: Part, records: list[bytes]) -> None:
        """Tell a vBucket what is on disk now, unless that belongs to a former history."""
        vbucket = part.vbucket
        if part.queue is not vbucket.queue or part.table is not vbucket.table:
            return
        vbucket.persisted(records, part.upto, part.snapshot)
        if vbucket.queue.live:  # beyond this batch, or accepted since it was begun
            self._mark_dirty(vbucket)
        elif part.snapshot != vbucket.snapshot:  # a branch has completed it in the meantime
            vbucket.change_header()

    def _is_gone(self, vbucket: VBucket) -> bool:
        """Tell whether a vBucket was removed, even if another one has its number now."""
        return self._vbuckets.get(vbucket.id) is not vbucket

    def _mark_dirty(self, vbucket: VBucket) -> None:
        if not vbucket.dirty:
            vbucket.dirty = True
            self._account.mark_dirty(vbucket)


def _has_other_history(vbucket: VBucket) -> bool:
    return vbucket.reset_pending or vbucket.rewinding
