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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
    batch: CommitBatch = field(default_factory=CommitBatch)

    @property
    def item_count(self) -> int:
        """Number of items in the batch."""
        return sum(len(part.records) for part in self.parts)

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


# --- queues that take several commits -----------------------------------------------------------


@dataclass(slots=True)
class Cursor:
    """How far one view of one queue has been written."""

    queue: WriteQueue
    view: QueueView
    start: int  # the persisted seqno when the view was opened
    whole: int  # the end of the last complete snapshot that was persisted then
    snapshot: SnapshotRange  # the range to which the view's newest items belong
    position: int  # the seqno up to which the view has been written

    def snapshot_at(self, seqno: int) -> SnapshotRange:
        """Return the range to store in a commit that ends at `seqno`."""
        if seqno < self.view.high_seqno:
            return SnapshotRange(self.whole, self.snapshot.end)
        return self.snapshot


class QueueCursors:
    """The cursor of each vBucket whose queue is being written in several commits."""

    def __init__(self) -> None:
        self._cursors: dict[int, Cursor] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._cursors

    def has(self, cursor: Cursor, vbucket: VBucket) -> bool:
        """Tell whether `cursor` is that of this vBucket, and not of its former history."""
        return self._cursors.get(vbucket.id) is cursor

    def of(self, vbucket: VBucket) -> Cursor | None:
        """Return the cursor of a vBucket's present queue."""
        cursor = self._cursors.get(vbucket.id)
        return cursor if cursor is not None and cursor.queue is vbucket.queue else None

    def open(self, vbucket: VBucket) -> Cursor:
        """Return the cursor of a vBucket's present queue; a new one if it has none."""
        cursor = self.of(vbucket)
        if cursor is None:
            self.close(vbucket.id)
            start = vbucket.persisted_seqno
            whole = last_complete_seqno(start, vbucket.persisted_snapshot)
            view = vbucket.queue.open_view()
            cursor = Cursor(vbucket.queue, view, start, whole, vbucket.snapshot, start)
            self._cursors[vbucket.id] = cursor
        return cursor

    def close(self, number: int) -> None:
        """End a vBucket's cursor if it has one."""
        cursor = self._cursors.pop(number, None)
        if cursor is not None:
            cursor.view.close()


# --- what a commit removes and heals ------------------------------------------------------------


class Disposals:
    """Collects what the next commit removes, until the flusher takes it."""

    def __init__(self, vbuckets: Mapping[int, VBucket]) -> None:
        self._vbuckets = vbuckets
        self._removed: set[int] = set()
        self._drops: dict[int, Sequence[Record]] = {}
        self._heals: dict[VBucket, list[bytes]] = {}

    @property
    def pending(self) -> bool:
        """Whether a vBucket is to be removed. Callers that drop tombstones mark it dirty."""
        return bool(self._removed)

    def is_gone(self, vbucket: VBucket) -> bool:
        """Tell whether a vBucket was removed, even if another one has its number now."""
        return self._vbuckets.get(vbucket.id) is not vbucket

    def remove(self, numbers: Iterable[int]) -> None:
        """Schedule vBuckets for removal, or again after a failure."""
        self._removed.update(numbers)

    def take_removed(self) -> list[int]:
        """Return the vBuckets to remove now, except those that were created again."""
        removed, self._removed = self._removed, set()
        return sorted(removed - self._vbuckets.keys())

    def drop(self, vbucket: VBucket, records: Sequence[Record]) -> None:
        """Schedule tombstones of a vBucket to be dropped."""
        self._drops[vbucket.id] = records

    def forget_drops(self, vbucket: VBucket) -> None:
        """Cancel the drops of this vBucket that are not already under way."""
        self._drops.pop(vbucket.id, None)

    def take_drops(self, vbucket: VBucket) -> Sequence[Record]:
        """Return the tombstones to drop now."""
        return self._drops.pop(vbucket.id, ())

    def heal(self, vbucket: VBucket, record: bytes) -> None:
        """Schedule a version to take the place of its damaged record."""
        self._heals.setdefault(vbucket, []).append(record)

    def take_heals(self, vbucket: VBucket) -> Sequence[bytes]:
        """Return the versions to heal now."""
        return self._heals.pop(vbucket, ())


# --- when a flush is due ------------------------------------------------------------------------


#: Shortest time between two questions whether a flush is due.
_LEAST_LOOK_S = 0.001

#: This many batches may gather while replicas are far behind their source.
_FILLING_BATCHES = 32


class FlushPace:
    """Says how long the flusher may rest.

    Attributes:
        filling: connections that fill replicas which are far behind.
        batch_items: how many items the last commit had room for.
    """

    def __init__(self, settings: FlushSettings) -> None:
        self._settings = settings
        self._hurried = False
        self.filling = 0
        self.batch_items = settings.batch_items

    def configure(self, settings: FlushSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings

    def hurry(self) -> None:
        """End the rest, because a client has asked whether a change is on disk."""
        self._hurried = True

    def begun(self) -> None:
        """Rest again after the flush that begins now."""
        self._hurried = False

    def delay(self, account: MemoryAccount, age_s: float, last_flush_s: float) -> float:
        """Return the seconds after which to ask again whether a flush is due; 0 = it is due now.

        It is due at once when a batch is full or memory is short. `hurry` cuts the rest short.
        """
        settings = self._settings
        batch_items = self.batch_items * (_FILLING_BATCHES if self.filling else 1)
        if queued_in(account.dirty) >= batch_items or account.used > account.high_mark:
            return 0.0
        rest = 0.0 if self._hurried else settings.rest_factor * last_flush_s
        wait = min(max(rest, settings.min_delay_s), settings.max_delay_s)
        return min(max(wait - age_s, 0.0), max(settings.min_delay_s, _LEAST_LOOK_S))


# --- gathering: what a commit writes ------------------------------------------------------------


class Gathering:
    """Fills one flush with parts and changes.

    Args:
        flush: what is filled.
        room: how much more it may take.
        vbuckets: those of the bucket now.
        cursors: opened where a queue is too long for one commit.
        disposals: tombstones to drop.
        next_time: dirty vBuckets that the next flush must look at are added to this list.
    """

    def __init__(
        self,
        flush: Flush,
        room: CommitRoom,
        vbuckets: Mapping[int, VBucket],
        cursors: QueueCursors,
        disposals: Disposals,
        next_time: list[VBucket],
    ) -> None:
        self._flush = flush
        self._room = room
        self._vbuckets = vbuckets
        self._cursors = cursors
        self._disposals = disposals
        self._next_time = next_time

    def take(self, dirty: list[VBucket]) -> Generator[None, None, bool]:
        """Take what fits, yielding after each short step; tell whether every vBucket is reset."""
        dirty = [each for each in dirty if not self._disposals.is_gone(each)]
        begun = [Begun.of(each) for each in dirty if each.header_dirty or each.reset_pending]
        later = [each for each in dirty if not (each.header_dirty or each.reset_pending)]
        resets = sum(each.reset for each in begun)
        reset_all = 0 < resets == len(self._vbuckets)
        for each in sorted(begun, key=lambda each: not each.vbucket.rewinding):
            yield from self._take_begun(each)
            if not each.vbucket.rewinding:  # what was rolled back is taken before the first step
                yield
        since_yield = 0
        for vbucket in later:
            if not self._room.left:
                self._leave(vbucket)
            elif self._is_short(vbucket):
                since_yield += self._take_all(vbucket)
            elif not (yield from self._take_portion(vbucket, reset=False)):
                self._leave(vbucket)
            since_yield += VBUCKET_AS_ITEMS
            if since_yield >= STEP_ITEMS:
                since_yield = 0
                yield
        return reset_all

    def _leave(self, vbucket: VBucket) -> None:
        """Leave a dirty vBucket for the next flush."""
        if not self._disposals.is_gone(vbucket):
            self._next_time.append(vbucket)

    def _take_begun(self, begun: Begun) -> Generator[None, None, None]:
        """Add a vBucket's share, or only the header if its history has ended."""
        vbucket, table, header, reset = begun
        if vbucket.table is table and (yield from self._take_portion(vbucket, reset=reset)):
            return
        self._flush.parts.append(
            FlushPart(
                vbucket, table, None, None, [], header.high_seqno, header.snapshot, reset, True
            )
        )
        self._flush.changes.append(VBucketChange(vbucket.id, header, [], reset))
        self._leave(vbucket)

    def _is_short(self, vbucket: VBucket) -> bool:
        """Tell whether a vBucket without anything special has so little that it is taken at once.

        That needs no view: all of it is in one commit, and if that fails nothing of it is on disk.
        """
        return (
            vbucket.queue.live <= STEP_ITEMS
            and vbucket.id not in self._cursors
            and not (vbucket.rewinding or vbucket.reset_pending or self._disposals.is_gone(vbucket))
        )

    def _take_all(self, vbucket: VBucket) -> int:
        """Add everything that a vBucket has; return how many records that is."""
        drop = self._take_drops(vbucket)
        records = vbucket.queue.since(vbucket.queue.persisted)
        self._room.use(records)
        upto = seqno_of(records[-1]) if records else vbucket.persisted_seqno
        self._add(vbucket, None, records, upto, vbucket.snapshot, drop)
        return len(records)

    def _take_portion(self, vbucket: VBucket, *, reset: bool) -> Generator[None, None, bool]:
        """Add as much of a vBucket as fits; ``False`` if its history has changed meanwhile.

        All of a rollback is in one commit, however long it is; its newest item may be on disk
        already.
        """
        if self._disposals.is_gone(vbucket) or vbucket.reset_pending != reset:
            return False
        cursor = self._cursors.open(vbucket)
        drop = self._take_drops(vbucket)
        above, forget = vbucket.forgetting or (None, frozenset())
        if above is None:
            records = yield from self._read(cursor, vbucket)
            if records is None:
                return False
            upto = seqno_of(records[-1]) if records else cursor.position
        else:
            records = list(cursor.view.records())
            self._room.use(records)
            upto = cursor.view.high_seqno
        snapshot = cursor.snapshot_at(upto)
        self._add(vbucket, cursor, records, upto, snapshot, drop, above, sorted(forget))
        return True

    def _take_drops(self, vbucket: VBucket) -> Sequence[Record]:
        drop = self._disposals.take_drops(vbucket)
        self._room.use_drops(len(drop))
        return drop

    def _read(self, cursor: Cursor, vbucket: VBucket) -> Generator[None, None, list[bytes] | None]:
        """Return the next records of a view, as many as there is room for.

        ``None`` if the vBucket began another history or was removed in the meantime.
        """
        records: list[bytes] = []
        room, view, upto = self._room, cursor.view, cursor.position
        while room.left and upto < view.high_seqno:
            if records:
                yield
                if self._cursors.of(vbucket) is not cursor:
                    return None
            found = view.take(min(room.items, STEP_ITEMS), upto)
            if not found:
                break
            room.use(found)
            records += found
            upto = seqno_of(found[-1])
        return records

    def _add(
        self,
        vbucket: VBucket,
        cursor: Cursor | None,
        records: list[bytes],
        upto: int,
        snapshot: SnapshotRange,
        drop: Sequence[Record],
        above: int | None = None,
        forget: Sequence[bytes] = (),
    ) -> None:
        """Add a part to the flush, and what it does to the store; the vBucket is clean now."""
        table, queue = vbucket.table, vbucket.queue
        reset, header_dirty = vbucket.reset_pending, vbucket.header_dirty
        self._flush.parts.append(
            FlushPart(vbucket, table, queue, cursor, records, upto, snapshot, reset, header_dirty)
        )
        header = vbucket.header(upto, snapshot)
        self._flush.changes.append(
            VBucketChange(
                vbucket.id,
                header,
                records,
                reset,
                drop,
                above,
                forget,
                self._disposals.take_heals(vbucket),
            )
        )
        vbucket.dirty = vbucket.header_dirty = vbucket.reset_pending = False


# --- settling: what a commit has written --------------------------------------------------------


def settle(flush: Flush, cursors: QueueCursors, disposals: Disposals) -> Iterator[None]:
    """Tell the vBuckets of a flush that is on disk, yielding after each short step."""
    since_yield = 0
    for part in flush.parts:
        if part.cursor is not None:
            yield from _settle_portion(part, part.cursor, cursors)
        elif not disposals.is_gone(part.vbucket):
            _persisted(part, part.records)
        since_yield += len(part.records) + VBUCKET_AS_ITEMS
        if since_yield >= STEP_ITEMS:
            since_yield = 0
            yield


def _settle_portion(part: FlushPart, cursor: Cursor, cursors: QueueCursors) -> Iterator[None]:
    """Tell a vBucket which part of a view is on disk, a little at a time if that is much.

    The cursor stays until the last step: until then the vBucket's durable seqno has not risen.
    """
    vbucket = part.vbucket
    if not cursors.has(cursor, vbucket):
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
    if complete and cursors.has(cursor, vbucket):
        cursors.close(vbucket.id)
    _persisted(part, part.records[settled:])


def _persisted(part: FlushPart, records: list[bytes]) -> None:
    """Tell a vBucket what is on disk now, unless that belongs to a former history."""
    vbucket = part.vbucket
    if part.queue is not vbucket.queue or part.table is not vbucket.table:
        return
    vbucket.persisted(records, part.upto, part.snapshot)
    if vbucket.queue.live:  # beyond this batch, or accepted since it was begun
        vbucket.mark_dirty()
    elif part.snapshot != vbucket.snapshot:  # a branch has completed it in the meantime
        vbucket.change_header()


# --- the flusher --------------------------------------------------------------------------------


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

        It is due at once when something waits; otherwise, the pace decides.

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
        flush.batch = CommitBatch(flush.changes, local, reset_all)

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
