"""From the write queues to the store, in three steps so that the slow one can run elsewhere.

`begin` (rules) takes views of the dirty vBuckets and makes one batch; `commit` (any thread, touches
no rules) writes it; `finish` (rules) drops what was written from the queues and forgets deleted
documents that were not written again in the meantime. Only one flush is under way at a time; the
driver calls the three in order, or `begin`, `commit`, `failed`. With many changes `begin` and
`finish` take a while, so there are also versions of them in short steps.

While the flusher is paused the driver begins no flush, but an orderly stop still drains it.

**Gathering**: first come the vBuckets whose headers have changed, because `Flusher.begin_in_slices`
promises that these headers are in the batch. A vBucket with a short queue is taken at once; a
longer queue is taken from a view, in steps, and its rest is left for the next flush. Such a queue
is written from *one* view in several commits. Until the last of them the stored snapshot range says
"incomplete". After a crash in between, the items are kept, but history branches at the last
complete state. For the same reason, the part of a snapshot that a replica has received is stored
with that snapshot's range.

**Pace**: the flusher rests for a multiple of the time that it worked. A fast commit is repeated
soon; a slow one waits for more changes, because a document in a batch of 30,000 costs half of one
in a batch of 10,000 and a tenth of one in a batch of 100. While replicas are being filled many
batches may gather: their source has everything, and writing would take time from receiving.

**Disposal**: a commit also removes complete vBuckets and single tombstones, and replaces damaged
records. A removal is in one commit with the header that reports it: a purge seqno is on disk no
later than the loss that it describes. A vBucket that is created with the number of a removed one
needs nothing: it begins with a reset, which deletes the old records in the same commit that writes
the new header.

Rows D21 to D23.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from uprmc.config import FlushSettings
from uprmc.core.fronts import queued_in
from uprmc.engine.commit_room import CommitRoom
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.memory import MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.tombstones import Record, Tombstones
from uprmc.engine.vbucket import Table, VBucket
from uprmc.engine.write_queue import QueueView, WriteQueue
from uprmc.errors import StoreError
from uprmc.model import SnapshotRange, VBucketHeader
from uprmc.record import seqno_of
from uprmc.storage.interface import CommitBatch, Store, VBucketChange

# --- one flush ----------------------------------------------------------------------------------


Waiter = Callable[[bool], None]

#: A local document, ``None`` to delete it, or what makes it when its commit begins.
LocalDocument = bytes | None | Callable[[], bytes | None]

#: Most items taken from a queue before the room is checked again and others may run.
STEP_ITEMS = 64

#: A queue that has no more than this is taken without a view.
SHORT_ITEMS = STEP_ITEMS

#: A vBucket counts for this many items beside its own when steps are measured.
VBUCKET_AS_ITEMS = 8

#: Most items of one vBucket that are marked persisted, or freed, before others may run.
SETTLE_ITEMS = 256


class Begun(NamedTuple):
    """A vBucket whose header is in the flush, even if the vBucket changes in the meantime."""

    vbucket: VBucket
    table: Table  # the table of its history when the flush was begun
    header: VBucketHeader  # what is stored if that history ends before its items are taken
    reset: bool  # whether the store must delete what precedes that history

    @classmethod
    def of(cls, vbucket: VBucket) -> Self:
        """Return a vBucket as it is now."""
        header = vbucket.header(vbucket.persisted_seqno, vbucket.persisted_snapshot)
        return cls(vbucket, vbucket.table, header, vbucket.reset_pending)


@dataclass(slots=True)
class Cursor:
    """How far one view of one queue, which takes several commits, has been written."""

    queue: WriteQueue
    view: QueueView
    start: int  # the persisted seqno when the view was opened
    whole: int  # the end of the last complete snapshot that was persisted then
    snapshot: SnapshotRange  # the range to which the view's newest items belong
    position: int  # the seqno up to which the view has been written


@dataclass(slots=True)
class FlushPart:
    """One vBucket's share of a flush."""

    vbucket: VBucket
    table: Table  # the table of the history that it belongs to
    # where the records come from; ``None`` = only the header of an ended history.
    queue: WriteQueue | None
    cursor: Cursor | None  # the view that they come from; ``None`` = all that was in the queue
    records: list[bytes]
    upto: int
    snapshot: SnapshotRange
    reset: bool
    header: bool


@dataclass(slots=True)
class Flush:
    """One flush under way: what to commit, and what to do afterwards."""

    waiters: deque[Waiter]
    removed: list[int] = field(default_factory=list)
    local: dict[bytes, LocalDocument] = field(default_factory=dict)
    parts: list[FlushPart] = field(default_factory=list)
    changes: list[VBucketChange] = field(default_factory=list)
    item_count: int = 0  # records in the batch
    batch: CommitBatch = field(default_factory=CommitBatch)

    def tell(self, ok: bool) -> None:
        """Report the result to the waiters, each once. If one raises, call again for the others."""
        while self.waiters:
            self.waiters.popleft()(ok)

    def let_go(self) -> Iterator[None]:
        """Free what was written in steps: of tombstones and old versions it has the last."""
        for part in self.parts:
            while part.records:
                del part.records[-SETTLE_ITEMS:]
                yield


# --- the flusher --------------------------------------------------------------------------------


#: Shortest time between two questions whether a flush is due.
_LEAST_LOOK_S = 0.001

#: This many batches may gather while replicas are far behind their source.
_FILLING_BATCHES = 32

#: Of a batch, one key in this many may have come while the batch was taken.
_LATER_KEYS = 16


class Flusher:
    """Owns all that waits for the disk, and takes it through the three steps."""

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
        self._waiters: list[Waiter] = []
        self._impatient: list[Waiter] = []
        self._local: dict[bytes, LocalDocument] = {}
        # What the next commit removes and heals.
        self._removed: set[int] = set()
        self._drops: dict[int, Sequence[Record]] = {}
        self._heals: dict[VBucket, list[bytes]] = {}
        # Of each vBucket whose queue is being written in several commits.
        self._cursors: dict[int, Cursor] = {}
        # Clients have asked whether a change is on disk; what the last commit had room for.
        self._hurried = False
        self._batch_items = settings.batch_items
        # Connections that fill replicas which are far behind.
        self.filling = 0
        # No flush may begin, except for an orderly stop.
        self.paused = False
        # What the newest commit has left of them, and how many changes it has written.
        self.tombstones = Tombstones()
        self.last_commit_items = 0
        # Called with tombstones that are being dropped.
        self.on_drop: Callable[[VBucket, Sequence[Record]], None] = lambda _, __: None

    def configure(self, settings: FlushSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings

    # --- when a flush is due --------------------------------------------------------------------

    def delay(self, age_s: float, last_flush_s: float) -> float:
        """Return the seconds after which to ask again whether a flush is due; 0 = it is due now.

        It is due at once when something waits, a batch is full, or memory is short.

        Args:
            age_s: how long something has been dirty.
            last_flush_s: how long the last flush took.
        """
        settings, account = self._settings, self._account
        batch_items = self._batch_items * (_FILLING_BATCHES if self.filling else 1)
        if (
            self._waiters
            or self._impatient
            or queued_in(account.dirty) >= batch_items
            or account.used > account.high_mark
        ):
            return 0.0
        rest = 0.0 if self._hurried else settings.rest_factor * last_flush_s
        wait = min(max(rest, settings.min_delay_s), settings.max_delay_s)
        return min(max(wait - age_s, 0.0), max(settings.min_delay_s, _LEAST_LOOK_S))

    def hurry(self) -> None:
        """Rest no longer before the next flush: a client has asked whether a change is on disk."""
        self._hurried = True

    # --- what is there to write -----------------------------------------------------------------

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
        return bool(self._account.dirty or waiters or self._local or self._removed)

    @property
    def queued(self) -> int:
        """Changes accepted and not yet persisted. O(vBuckets)."""
        return sum(vbucket.queue.live for vbucket in self._vbuckets.values())

    def commit_room(self, *, removing: bool = False) -> CommitRoom:
        """Return what one commit may take now; `removing` if it removes vBuckets besides."""
        most = None if removing else self._records_most
        return CommitRoom.of(self._settings, self._account.quota, self._store, most)

    def _records_most(self) -> int | None:
        """Return how many records the store may have after the next commit at most.

        Each is of a key in a table, or a tombstone that is on disk now; some more may come until
        all is taken. ``None`` if the store still has records of another history. O(vBuckets).
        """
        vbuckets = self._vbuckets.values()
        if self._removed or any(each.reset_pending or each.rewinding for each in vbuckets):
            return None
        keys = sum([len(each.table) for each in vbuckets])
        return keys + self.tombstones.total.number + self._settings.batch_items // _LATER_KEYS

    # --- what waits for the disk ----------------------------------------------------------------

    def durable_seqno(self, vbucket: VBucket) -> int:
        """Return the seqno up to which every change, or a newer version of its key, is on disk.

        This is what clients see. While a long queue is written in several commits it lags behind
        `VBucket.persisted_seqno`: a key that was changed twice since the previous view is written
        with its newer seqno, perhaps in a later commit, and until then with neither.
        """
        cursor = self._cursor_of(vbucket)
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
        self._close_cursor(vbucket)
        if vbucket in self._account.dirty:
            self._account.dirty.remove(vbucket)
        vbucket.dirty = True  # so that nothing puts it on the list again
        self._removed.add(vbucket.id)
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
        self._drops[vbucket.id] = records
        vbucket.change_header()
        self.when_durable(done, patient=False)

    def heal(self, vbucket: VBucket, record: bytes, done: Waiter) -> None:
        """Write a version in the place of its damaged record; `done` is an impatient waiter.

        It is not retried if the commit fails.
        """
        self._heals.setdefault(vbucket, []).append(record)
        vbucket.change_header()
        self.when_durable(done, patient=False)

    def forget_drops(self, vbucket: VBucket) -> None:
        """Cancel the requested drops that are not already under way."""
        self._drops.pop(vbucket.id, None)

    # --- gathering: what a commit writes --------------------------------------------------------

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
        removed, self._removed = self._removed, set()
        local, self._local = self._local, {}
        if not (dirty or waiters or removed or local):
            return None
        # Those that were created again are reset by the commit that has their header.
        flush = Flush(deque(waiters), sorted(removed - self._vbuckets.keys()), local)
        try:
            yield from self._gather(flush, dirty)
        except Exception as error:  # a bug here must not lose what is dirty
            self._put_back(flush, dirty, error)
            raise
        return flush

    def _gather(self, flush: Flush, dirty: list[VBucket]) -> Generator[None, None, None]:
        """Fill `flush` with as much as fits in one commit."""
        flush.changes += [VBucketChange(number, None) for number in flush.removed]
        room = self.commit_room(removing=bool(flush.removed))
        self._batch_items = room.items
        begun = [Begun.of(each) for each in dirty if each.header_dirty or each.reset_pending]
        later = [each for each in dirty if not (each.header_dirty or each.reset_pending)]
        resets = sum(each.reset for each in begun)
        reset_all = 0 < resets == len(self._vbuckets)
        for each in sorted(begun, key=lambda each: not each.vbucket.rewinding):
            yield from self._take_begun(flush, room, each)
            if not each.vbucket.rewinding:  # what was rolled back is taken before the first step
                yield
        since_yield = 0
        for vbucket in later:
            if not room.left:
                self._leave(vbucket)
            elif (  # all of it is in one commit, and if that fails nothing of it is on disk
                vbucket.queue.live <= SHORT_ITEMS
                and vbucket.id not in self._cursors
                and vbucket.id not in self._drops
                and vbucket.forgetting is None
                and not vbucket.reset_pending
            ):
                records = vbucket.queue.since(vbucket.queue.persisted)
                upto = seqno_of(records[-1]) if records else vbucket.persisted_seqno
                room.use(records)
                self._add(flush, vbucket, None, records, upto, vbucket.snapshot)
                since_yield += len(records)
            elif not (yield from self._take_portion(flush, room, vbucket, reset=False)):
                self._leave(vbucket)
            since_yield += VBUCKET_AS_ITEMS
            if since_yield >= STEP_ITEMS:
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
        flush.batch = CommitBatch(flush.changes, local, reset_all)

    def _leave(self, vbucket: VBucket) -> None:
        """Leave a dirty vBucket for the next flush, unless it was removed meanwhile."""
        if self._vbuckets.get(vbucket.id) is vbucket:
            self._account.dirty.append(vbucket)

    def _take_begun(
        self, flush: Flush, room: CommitRoom, begun: Begun
    ) -> Generator[None, None, None]:
        """Add a vBucket's share, or only the header if its history has ended."""
        vbucket, table, header, reset = begun
        if vbucket.table is table and (
            yield from self._take_portion(flush, room, vbucket, reset=reset)
        ):
            return
        flush.parts.append(
            FlushPart(
                vbucket, table, None, None, [], header.high_seqno, header.snapshot, reset, True
            )
        )
        flush.changes.append(VBucketChange(vbucket.id, header, [], reset))
        self._leave(vbucket)

    def _take_portion(
        self, flush: Flush, room: CommitRoom, vbucket: VBucket, *, reset: bool
    ) -> Generator[None, None, bool]:
        """Add as much of a vBucket as fits; ``False`` if its history has changed meanwhile.

        All of a rollback is in one commit, however long it is; its newest item may be on disk
        already.
        """
        if vbucket.reset_pending != reset:
            return False
        room.use_drops(len(self._drops.get(vbucket.id, ())))
        cursor = self._open_cursor(vbucket)
        view, snapshot = cursor.view, cursor.snapshot
        above, forget = vbucket.forgetting or (None, frozenset())
        if above is None:
            records: list[bytes] = []
            upto = cursor.position
            while room.left and upto < view.high_seqno:
                if records:
                    yield
                    if self._cursor_of(vbucket) is not cursor:
                        return False
                found = view.take(min(room.items, STEP_ITEMS), upto)
                if not found:
                    break
                room.use(found)
                records += found
                upto = seqno_of(found[-1])
        else:
            records = list(view.records())
            room.use(records)
            upto = view.high_seqno
        if upto < view.high_seqno:
            snapshot = SnapshotRange(cursor.whole, snapshot.end)
        self._add(flush, vbucket, cursor, records, upto, snapshot, above, sorted(forget))
        return True

    def _add(
        self,
        flush: Flush,
        vbucket: VBucket,
        cursor: Cursor | None,
        records: list[bytes],
        upto: int,
        snapshot: SnapshotRange,
        above: int | None = None,
        forget: Sequence[bytes] = (),
    ) -> None:
        """Add a part to the flush, and what it does to the store; the vBucket is clean now."""
        reset = vbucket.reset_pending
        drop, heal = self._drops.pop(vbucket.id, ()), self._heals.pop(vbucket, ())
        header = vbucket.header(upto, snapshot)
        flush.parts.append(
            FlushPart(
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
        flush.changes.append(
            VBucketChange(vbucket.id, header, records, reset, drop, above, forget, heal)
        )
        flush.item_count += len(records)
        vbucket.dirty = vbucket.header_dirty = vbucket.reset_pending = False

    def _cursor_of(self, vbucket: VBucket) -> Cursor | None:
        """Return the cursor of a vBucket's present queue."""
        cursor = self._cursors.get(vbucket.id)
        return cursor if cursor is not None and cursor.queue is vbucket.queue else None

    def _open_cursor(self, vbucket: VBucket) -> Cursor:
        """Return the cursor of a vBucket's present queue; a new one if it has none."""
        cursor = self._cursor_of(vbucket)
        if cursor is None:
            self._close_cursor(vbucket)
            start = vbucket.persisted_seqno
            whole = last_complete_seqno(start, vbucket.persisted_snapshot)
            view = vbucket.queue.open_view()
            cursor = Cursor(vbucket.queue, view, start, whole, vbucket.snapshot, start)
            self._cursors[vbucket.id] = cursor
        return cursor

    def _close_cursor(self, vbucket: VBucket) -> None:
        cursor = self._cursors.pop(vbucket.id, None)
        if cursor is not None:
            cursor.view.close()

    def _put_back(self, flush: Flush, dirty: list[VBucket], error: Exception) -> None:
        """Put back everything that was taken by a flush which could not begin."""
        left = set(self._account.dirty)
        for vbucket in dirty:
            if vbucket.dirty and vbucket not in left:
                self._leave(vbucket)
        try:
            self.failed(flush, StoreError(f"{type(error).__name__}: {error}"))
        finally:  # waiters after one that raises are called by the next flush
            self._waiters += flush.waiters

    # --- the commit, and what it has written ----------------------------------------------------

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
            if part.cursor is None:
                self._persisted(part, part.records)
            elif self._cursors.get(part.vbucket.id) is part.cursor:
                yield from self._settle_portion(part, part.cursor)
            since_yield += len(part.records) + VBUCKET_AS_ITEMS
            if since_yield >= STEP_ITEMS:
                since_yield = 0
                yield
        self._account.disk_works()
        if flush.item_count:
            self._account.exhausted = False  # what is clean now may be evicted
        self._stats.commits += 1
        self.last_commit_items = flush.item_count
        self._stats.items_flushed += flush.item_count
        flush.tell(True)

    def _settle_portion(self, part: FlushPart, cursor: Cursor) -> Iterator[None]:
        """Tell a vBucket which part of a view is on disk, a little at a time if that is much.

        The cursor stays until the last step: until then the vBucket's durable seqno has not risen.
        """
        vbucket = part.vbucket
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
            self._close_cursor(vbucket)
        self._persisted(part, part.records[settled:])

    def _persisted(self, part: FlushPart, records: list[bytes]) -> None:
        """Tell a vBucket what is on disk now, unless that belongs to a former history."""
        vbucket = part.vbucket
        if part.queue is not vbucket.queue or part.table is not vbucket.table:
            return
        vbucket.persisted(records, part.upto, part.snapshot)
        if vbucket.queue.live:  # beyond this batch, or accepted since it was begun
            vbucket.mark_dirty()
        elif part.snapshot != vbucket.snapshot:  # a branch has completed it in the meantime
            vbucket.change_header()

    def failed(self, flush: Flush, error: StoreError) -> None:
        """Handle a failed commit: nothing was written; refuse writes, keep everything queued."""
        self._stats.commit_failures += 1
        # What there is will be retried; nothing else ends the refusal.
        if flush.parts or flush.removed or flush.local:
            self._account.disk_failed(str(error))
        self._removed.update(flush.removed)
        self._local = {**flush.local, **self._local}
        for part in flush.parts:
            vbucket = part.vbucket
            vbucket.reset_pending |= part.reset
            vbucket.header_dirty |= part.header
            vbucket.mark_dirty()
        flush.tell(False)
