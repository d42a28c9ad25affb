"""A vBucket's fields, and its versions in their order: histories begin, grow and end here.

Job: everything that an active vBucket and a replica have in common. `adopt` and `adopt_all` take
versions that already have seqnos; `reset` begins another history (so does `rewind.take_history`);
`persisted` and `header` are for the flusher. Nothing is refused here: conflicts, locks and memory
are the job of `vbucket`, the order of a stream is that of `replica`.

Note: `vbucket` has the rules for clients' commands. It is a subclass of this class, because the hot
path visits all of these fields once.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.core.fronts import VBucketFront
from uprmc.core.records import seqnos_of
from uprmc.engine.failover_log import new_log
from uprmc.engine.memory_account import MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.table import Table
from uprmc.engine.terms import promoted
from uprmc.engine.watching import Interruption, Watcher
from uprmc.engine.write_queue import WriteQueue
from uprmc.model import FailoverLog, Item, SnapshotRange, VBucketHeader, VBucketState
from uprmc.ports import Clock
from uprmc.record import (
    ABSENT,
    FRONT,
    KIND_AT,
    LIFE_BITS,
    LOST,
    SEQNO,
    cas_of,
    key_of,
    seqno_of,
    stand_in,
    unpack,
)

NOTHING_PERSISTED = SnapshotRange(0, 0)


class Forgetting(NamedTuple):
    """What the next commit must delete of a vBucket that was rolled back.

    Attributes:
        above: every record above this seqno.
        keys: the records of these keys, whatever their seqno.
    """

    above: int
    keys: frozenset[bytes]


class History(VBucketFront):
    """What a vBucket has. Attributes are public for the hot path, read-only for others.

    Attributes:
        id: its number.
        state: what the node may do with the vBucket.
        table: current versions and fresh tombstones; each history has another table.
        queue: changes not yet persisted.
        high_seqno: highest seqno assigned.
        persisted_seqno: everything up to here is in a finished commit.
        persisted_snapshot: the snapshot range that this commit stored.
        max_cas: highest CAS that any version or lock ever had here.
        locks: key -> (lock CAS, monotonic time when the lock lapses).
        receiving: the snapshot that a replica has received in part, ``None`` = there is none.
        waiting: watchers that are called once, at the next change, or, while a snapshot is
            received, at its end; they add themselves.
        watchers: watchers that are called when the vBucket changes its state or is reset.
        may_start_over: whether an operator has said that all of it may be given up for what a
            source has, although they have nothing in common; until that has granted a stream.
        term: number of promotions that led to the present history; it never decreases, see `terms`.
        known_term: the highest term that any node is known to have for this vBucket.
        forgetting: what the store has not yet deleted of a history that was rolled back.
        replaces: whether no commit of this history has ended: the store may have another one.
        expired: documents that have expired here since the node started, in any history.
        deletions: documents that were deleted or expired since this history began or the node
            started.
        steps: how the wall clock was set while this was active: the seqno before which documents
            were stored by the earlier time, the seconds by which it was set, and the latest time
            that a lifetime could reach then.
    """

    __slots__ = (
        "_account",
        "_monotonic",
        "_now",
        "_stats",
        "deletions",
        "expired",
        "failover_log",
        "forgetting",
        "header_dirty",
        "known_term",
        "locks",
        "may_start_over",
        "persisted_seqno",
        "persisted_snapshot",
        "purge_seqno",
        "receiving",
        "replaces",
        "reset_pending",
        "state",
        "steps",
        "table",
        "term",
        "watchers",
    )

    queue: WriteQueue
    waiting: list[Watcher]

    def __init__(
        self,
        number: int,
        state: VBucketState,
        uuid: int,
        account: MemoryAccount,
        stats: Stats,
        clock: Clock,
    ) -> None:
        super().__init__(number, WriteQueue())
        self.state = state
        self.term = self.known_term = 0
        self._account = account
        self._stats = stats
        self._now = clock.now
        self._monotonic = clock.monotonic
        self.header_dirty = False
        self.reset_pending = self.replaces = False
        self.purge_seqno = 0
        self.expired = 0
        self.may_start_over = False
        self.watchers: list[Watcher] = []
        self._start_history(new_log(uuid))

    def _start_history(self, log: FailoverLog) -> None:
        self.table = Table(self._account)
        self.locks: dict[bytes, tuple[int, float]] = {}
        self.steps: list[tuple[int, int, int]] = []
        self.queue = self.queue.restarted()
        self.failover_log = log
        self.high_seqno = 0
        self.persisted_seqno = 0
        self.persisted_snapshot = NOTHING_PERSISTED
        self.max_deleted_rev = 0
        self.receiving: SnapshotRange | None = None
        self.forgetting: Forgetting | None = None
        self.deletions = 0

    def know_cas(self, cas: int) -> None:
        """Take note of a CAS that was given out elsewhere."""
        self.max_cas = max(self.max_cas, cas)
        account = self._account
        if cas > account.last_cas:
            account.last_cas = cas + account.cas_step

    def metadata(self, key: bytes) -> Item | None:
        """Return what the table knows of `key`, tombstones included."""
        return self.table.find(key)

    @property
    def snapshot(self) -> SnapshotRange:
        """The range to which the newest items belong; empty if no snapshot is half received."""
        return self.receiving or SnapshotRange(self.high_seqno, self.high_seqno)

    @property
    def whole_seqno(self) -> int:
        """The end of the last complete snapshot: below the high seqno inside a snapshot."""
        return self.high_seqno if self.receiving is None else self.receiving.start

    @property
    def rewinding(self) -> bool:
        """Whether a rollback is not on disk yet, so that the store has another history.

        Until then nothing counts as persisted, and no reading may be opened.
        """
        return self.forgetting is not None

    @property
    def former_on_disk(self) -> bool:
        """Whether the store still has another history, which a crash would bring back.

        Where a row speaks for this node, a source that was asked for everything relies on it that
        the older state never comes again.
        """
        return self.replaces or self.forgetting is not None

    @property
    def item_count(self) -> int:
        """Number of documents, including those whose expiry has not been noticed yet."""
        return len(self.table) - self.table.tombstones

    def due(self, expiry: int, seqno: int) -> int:
        """Return when a document expires by the present wall clock; 0 = never.

        Args:
            expiry: what its record says.
            seqno: of the record.
        """
        for before, step, latest in self.steps:
            if seqno <= before:
                if not 0 < expiry <= latest:
                    break  # it never was a lifetime
                expiry = max(1, expiry + step)
        return expiry

    # --- values that come and go ----------------------------------------------------------------

    def bring_in(self, record: bytes) -> bool:
        """Put a fetched value into the table's entry if that is still the same version.

        The CAS distinguishes versions that have the same seqno because of a flush in between; touch
        keeps it.
        """
        key = key_of(record)
        current = self.table.get(key)
        if current is None or not current[KIND_AT] & ABSENT:
            return False
        if current[SEQNO] != record[SEQNO] or cas_of(current) != cas_of(record):
            return False
        self.table.bring_in(key, record)
        return True

    def lose(self, key: bytes, seqno: int) -> None:
        """Put down that a document is there whose record is damaged."""
        if (present := self.table.get(key)) is None or seqno_of(present) < seqno:
            self.table.put(key, stand_in(key, seqno), present)

    def found_again(self, record: bytes) -> None:
        """Put a version into the table whose record was damaged and is healed."""
        key = key_of(record)
        present = self.table.get(key)
        if present is None or present[SEQNO] != record[SEQNO]:
            return
        if present[KIND_AT] & LOST and record[KIND_AT] & LIFE_BITS:
            self.table.remove(key)
        elif present[KIND_AT] & LOST:
            self.know_cas(cas_of(record))
            self.table.put(key, record, present)
        else:
            self.bring_in(record)

    def eject(self, key: bytes) -> None:
        """Drop the value of a clean document from memory; key and metadata stay."""
        record = self.table.get(key)
        assert record is not None
        assert seqno_of(record) <= self.persisted_seqno
        self.table.eject(key, record)

    def check(self) -> None:
        """Verify every invariant; for tests and the simulator. O(items)."""
        self.queue.check()
        assert self.persisted_seqno <= self.high_seqno
        assert self.queue.high_seqno <= self.high_seqno
        tombstones = absent = 0
        for key in self.table:
            record = self.table.get(key)
            assert record is not None
            item = unpack(record)
            assert item.key == key
            assert 0 < item.seqno <= self.high_seqno
            tombstones += bool(item.life)
            absent += item.value is None and not item.life
            dirty = item.seqno > self.persisted_seqno
            assert dirty or not item.life, "a persisted tombstone stayed"
            resident = item.life or item.value is not None
            assert resident or not dirty or self.rewinding, "a dirty value was evicted"
        assert tombstones == self.table.tombstones
        assert absent == self.table.absent

    # --- versions -------------------------------------------------------------------------------

    def adopt(self, record: bytes) -> None:
        """Put a finished version into table and queue; its seqno is above all earlier ones.

        Nothing is checked, neither conflicts nor memory. The CAS may come from elsewhere; new ones
        will be above it. Like any change, this opens the document's lock.
        """
        _, kind, _, expiry, _, rev, seqno = FRONT.unpack_from(record)
        assert seqno > self.high_seqno
        key = key_of(record)
        old = self.table.get(key)
        self.table.put(key, record, old)
        self.high_seqno = seqno
        self.know_cas(cas_of(record))
        if kind & LIFE_BITS:
            self._note_deletion(rev, old)
        elif expiry and self.state == VBucketState.ACTIVE:
            self._enter_expiry(key, expiry, old)
        self.queue.put(seqno, record, 0 if old is None else seqno_of(old))
        self.mark_dirty()
        self.locks.pop(key, None)
        if self.waiting and self.receiving is None:
            self.tell_waiting()

    def adopt_all(self, records: list[bytes], highest_cas: int) -> None:
        """Do what `adopt` does for each, by rising seqno; call waiting watchers once, at the end.

        Args:
            records: what to adopt.
            highest_cas: the highest CAS among them.
        """
        if not records:
            return
        assert seqno_of(records[0]) > self.high_seqno
        replaced = self.table.put_all(records)
        for record, old in zip(records, replaced, strict=True):
            if record[KIND_AT] & LIFE_BITS:
                _, _, _, _, _, rev, _ = FRONT.unpack_from(record)
                self._note_deletion(rev, old)
        self.high_seqno = seqno_of(records[-1])
        self.know_cas(highest_cas)
        self.queue.put_all(records, seqnos_of([old for old in replaced if old is not None]))
        self.mark_dirty()
        if self.locks:
            for record in records:
                self.locks.pop(key_of(record), None)
        if self.waiting and self.receiving is None:
            self.tell_waiting()

    def _note_deletion(self, rev: int, old: bytes | None) -> None:
        """Take note of a tombstone that takes the place of `old`."""
        self.deletions += old is not None and not old[KIND_AT] & LIFE_BITS
        # At least 1, so that 0 means that there never was a tombstone.
        self.max_deleted_rev = max(self.max_deleted_rev, rev, 1)

    def _enter_expiry(self, key: bytes, expiry: int, old: bytes | None) -> None:
        """Enter an expiry, unless the present entry is due in time; see `timetable`."""
        if old is not None and not old[KIND_AT] & LIFE_BITS:
            due = FRONT.unpack_from(old)[3]
            if due and due <= expiry:
                return
        self._account.timetable.add(self.id, key, expiry)

    def outrank(self, rev: int) -> None:
        """Make new documents outrank deletions of up to this revision, which were made elsewhere.

        The next commit stores it; a lower revision than before changes nothing.
        """
        if rev > self.max_deleted_rev:
            self.max_deleted_rev = rev
            self.change_header()

    # --- another history ------------------------------------------------------------------------

    def reset(self, uuid: int, size: int | None = None) -> None:
        """Delete everything: the vBucket is empty afterwards, with a new history and seqno 0.

        Open views keep their content. The next commit deletes the records from the store.

        Args:
            uuid: the uuid of the new history.
            size: bytes to subtract from the memory account, if known; otherwise they are counted.
        """
        former = self.former_on_disk or self.high_seqno > 0
        account = self._account
        account.used -= self.table.memory_bytes() if size is None else size
        for piece in self.table.let_go():
            account.leftovers.add(piece)
        self._start_history(new_log(uuid))
        if self.id in account.lookups:
            account.lookups[self.id] = self.table.get
        self.purge_seqno = 0
        self.reset_pending = True
        self.replaces = former
        self.change_header()
        self.interrupt(Interruption.RESET)

    # --- terms ----------------------------------------------------------------------------------

    def promote(self) -> None:
        """Take the next term for a history that begins here; the next header stores it."""
        self.term = self.known_term = promoted(self.term, self.known_term)

    def take_term(self, term: int) -> None:
        """Take the term of a failover log that another node sent, 0 = not known.

        The highest known term is kept, so that a promotion is above every term ever seen.
        """
        if term and term != self.term:
            self.term, self.known_term = term, max(term, self.known_term)
            self.change_header()

    # --- watchers -------------------------------------------------------------------------------

    def interrupt(self, why: Interruption) -> None:
        """Tell all watchers that they cannot continue, and forget them."""
        if not self.watchers and not self.waiting:
            return
        watchers, self.watchers, self.waiting = self.watchers, [], []
        for watcher in watchers:
            watcher.interrupted(why)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop informing `watcher`; harmless if it was not watching."""
        if watcher in self.watchers:
            self.watchers.remove(watcher)
        if watcher in self.waiting:
            self.waiting.remove(watcher)

    def complete_snapshot(self) -> None:
        """Mark a half-received snapshot as complete: it may be passed on from now on."""
        if self.receiving is None:
            return
        self.receiving = None
        self.change_header()
        if self.waiting:
            self.tell_waiting()

    def tell_waiting(self) -> None:
        """Call the watchers that wait for a change."""
        waiting = self.waiting
        if len(waiting) == 1:
            waiting.pop().changed()
            return
        self.waiting = []
        for watcher in waiting:
            watcher.changed()

    # --- persistence ----------------------------------------------------------------------------

    def change_header(self) -> None:
        """Write the header with the next commit although no item changed."""
        self.header_dirty = True
        self.mark_dirty()

    def header(self, high_seqno: int, snapshot: SnapshotRange) -> VBucketHeader:
        """Return the header to store with items up to `high_seqno`."""
        return VBucketHeader(
            self.state,
            high_seqno,
            snapshot,
            self.failover_log,
            self.purge_seqno,
            self.max_deleted_rev,
            term=self.term,
            known_term=self.known_term,
            max_cas=self.max_cas,
        )

    def persisted(self, records: list[bytes], upto: int, snapshot: SnapshotRange) -> None:
        """Take note of a finished commit of `records`, the queue's content up to `upto`."""
        self.queue.drop_persisted(upto)
        self.persisted_seqno = upto
        self.persisted_snapshot = snapshot
        self.forgetting = None
        self.replaces = False
        if self.table.tombstones:
            self._forget_tombstones(records)

    def _forget_tombstones(self, records: list[bytes]) -> None:
        """Drop persisted deletions whose key was not written again in the meantime (D23)."""
        table = self.table
        for record in records:
            if record[KIND_AT] & LIFE_BITS:
                key = key_of(record)
                if table.get(key) is record:
                    table.remove(key)

    def mark_dirty(self) -> None:
        """Put this on the flusher's list; only a `VBucket` is ever there."""
        raise NotImplementedError
