"""From the write queues to the store, in three steps so that the slow one can run elsewhere.

`begin` (rules) takes views of the dirty vBuckets and makes one batch; `commit` (any thread, touches
no rules) writes it; `finish` (rules) drops what was written from the queues and forgets deleted
documents that were not written again in the meantime. Only one flush is under way at a time; the
driver calls the three in order, or `begin`, `commit`, `failed`. With many changes `begin` and
`finish` take a while, so there are also versions of them in short steps.

`gathering` chooses what a batch consists of, and `settling` does the work of `finish`. `flush_pace`
says when a flush is due; `queue_cursors` knows the queues that take several commits.

While the flusher is paused the driver begins no flush, but an orderly stop still drains it.

Source: seed 000 "How items in the partition write queue flow to couchstore"; rows D21 to D23.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence

from uprmc.config import FlushSettings
from uprmc.engine.commit_room import CommitRoom
from uprmc.engine.disposal import Disposals, Record
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.flush import Flush, LocalDocument, Waiter
from uprmc.engine.flush_pace import FlushPace
from uprmc.engine.gathering import Gathering
from uprmc.engine.memory_account import MemoryAccount
from uprmc.engine.queue_cursors import QueueCursors
from uprmc.engine.settling import settle
from uprmc.engine.stats import Stats
from uprmc.engine.tombstone_count import Tombstones
from uprmc.engine.vbucket import VBucket
from uprmc.errors import StoreError
from uprmc.storage.interface import Batch, Store, VBucketChange

#: Of a batch, one key in this many may have come while the batch was taken.
_LATER_KEYS = 16


class Flusher:
    """Owns all that waits for the disk, and takes it through the three steps.

    Attributes:
        paused: no flush may begin, except for an orderly stop.
        last_commit_items: changes that the last finished commit wrote.
        pace: when a flush is due.
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
        self._cursors = QueueCursors()
        self._waiters: list[Waiter] = []
        self._impatient: list[Waiter] = []
        self._local: dict[bytes, LocalDocument] = {}
        self._disposals = Disposals(vbuckets)
        self.tombstones = Tombstones()
        self.paused = False
        self.last_commit_items = 0
        self.pace = FlushPace(settings)
        self.on_drop: Callable[[VBucket, Sequence[Record]], None] = lambda _, __: None

    def delay(self, age_s: float, last_flush_s: float) -> float:
        """Return the seconds after which to ask again whether a flush is due; 0 = it is due now.

        It is due at once when something waits; otherwise, `flush_pace` decides.

        Args:
            age_s: how long something has been dirty.
            last_flush_s: how long the last flush took.
        """
        if self._waiters or self._impatient:
            return 0.0
        return self.pace.delay(self._account, age_s, last_flush_s)

    def configure(self, settings: FlushSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings
        self.pace.configure(settings)

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
        cursor = self._cursors.of(vbucket)
        return vbucket.persisted_seqno if cursor is None else cursor.start

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
        self._cursors.close(vbucket.id)
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

    def heal(self, vbucket: VBucket, record: bytes, done: Waiter) -> None:
        """Write a version in the place of its damaged record; `done` is an impatient waiter.

        It is not retried if the commit fails.
        """
        self._disposals.heal(vbucket, record)
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
        self.pace.begun()
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

    def _gather(self, flush: Flush, dirty: list[VBucket]) -> Generator[None, None, None]:
        """Fill `flush` with as much as fits in one commit."""
        flush.changes += [VBucketChange(number, None) for number in flush.removed]
        room = self.commit_room(flush.removed)
        self.pace.batch_items = room.items
        gathering = Gathering(
            flush, room, self._vbuckets, self._cursors, self._disposals, self._account.dirty
        )
        reset_all = yield from gathering.take(dirty)
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
        yield from settle(flush, self._cursors, self._disposals)
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
        # What there is will be retried; nothing else ends the refusal.
        if flush.parts or flush.removed or flush.local:
            self._account.disk_failed(str(error))
        self._disposals.remove(flush.removed)
        self._local = {**flush.local, **self._local}
        for part in flush.parts:
            vbucket = part.vbucket
            vbucket.reset_pending |= part.reset
            vbucket.header_dirty |= part.header
            vbucket.mark_dirty()
        flush.tell(False)


def _has_other_history(vbucket: VBucket) -> bool:
    return vbucket.reset_pending or vbucket.rewinding
