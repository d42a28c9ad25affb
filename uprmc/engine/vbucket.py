"""One vBucket: its table of current items, and the order in which it accepts changes.

Job: decide whether a change is accepted (CAS, locks, memory), give an accepted one the next seqno,
put it into the table and the write queue. A refused change leaves no trace, not even in the seqno
(D17). Nothing here waits: a value that is only on disk raises `NotResident` before anything
changed, and the caller runs the command again once it has been fetched.

Neighbours: `bucket` picks the vBucket; `flusher` persists the queue and then calls `persisted`;
`pager` ejects values; `warmup` fills the table.

What surprises: a deleted document stays in the table as a tombstone until its deletion is on disk
(D19), so `table` holds live items and fresh tombstones. Touch is a change like any other (it takes
a seqno, so that replicas learn of it) but keeps the CAS, as memcached does.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Protocol

from uprmc.engine import numbers
from uprmc.engine.failover_log import FailoverLog, new_log
from uprmc.engine.ledger import ITEM_OVERHEAD_BYTES, Ledger
from uprmc.engine.stats import Stats
from uprmc.engine.write_queue import WriteQueue
from uprmc.errors import (
    DeltaBadValue,
    KeyExists,
    KeyNotFound,
    Locked,
    NotLocked,
    NotResident,
    NotStored,
)
from uprmc.model import CAS_LOCKED, Item, Life, SnapshotRange, VBucketHeader, VBucketState


class StoreMode(IntEnum):
    """What `VBucket.store` demands of the document that is there."""

    SET = 0
    ADD = 1
    REPLACE = 2


class Interruption(Enum):
    """Why whoever follows a vBucket cannot go on."""

    STATE_CHANGED = "state changed"
    RESET = "reset"


class Watcher(Protocol):
    """Somebody who follows a vBucket: a stream."""

    def changed(self) -> None:
        """Learn of the first change since it was put on `VBucket.waiting`; must be cheap."""

    def interrupted(self, why: Interruption) -> None:
        """Learn that this vBucket, as it was, is over; it is no longer watched after this."""


class VBucket:
    """See the module docstring. Attributes are public for the hot path and read-only for others.

    Attributes:
        id: its number.
        state: what the node may do with it.
        table: key -> current item or fresh tombstone; the same dict for ever.
        queue: changes not yet persisted.
        high_seqno: highest seqno assigned.
        persisted_seqno: everything up to here is in a finished commit.
        persisted_snapshot: the range stored by that commit.
        locks: key -> (lock CAS, Unix time when the lock lapses).
        receiving: the snapshot that a replica holds a part of, ``None`` = nothing is half received.
        waiting: watchers to be told, once, of the next change; they put themselves there.
        watchers: everybody who is to be told when the vBucket changes its state or begins anew.
        tombstones: number of tombstones in `table`.
        non_resident: number of items in `table` whose value is only on disk.
        deletions: documents that were deleted or expired since this history or the node began.
    """

    __slots__ = (
        "_ledger",
        "_now",
        "_stats",
        "deletions",
        "dirty",
        "failover_log",
        "header_dirty",
        "high_seqno",
        "id",
        "locks",
        "max_deleted_rev",
        "non_resident",
        "persisted_seqno",
        "persisted_snapshot",
        "purge_seqno",
        "queue",
        "receiving",
        "reset_pending",
        "state",
        "table",
        "tombstones",
        "waiting",
        "watchers",
    )

    def __init__(
        self,
        number: int,
        state: VBucketState,
        uuid: int,
        ledger: Ledger,
        stats: Stats,
        now: Callable[[], float],
    ) -> None:
        self.id = number
        self.state = state
        self._ledger = ledger
        self._stats = stats
        self._now = now
        self.dirty = False
        self.header_dirty = False
        self.reset_pending = False
        self.purge_seqno = 0
        self.table: dict[bytes, Item] = {}
        self.waiting: list[Watcher] = []
        self.watchers: list[Watcher] = []
        self._start_history(new_log(uuid))

    def _start_history(self, log: FailoverLog) -> None:
        self.table.clear()
        self.locks: dict[bytes, tuple[int, float]] = {}
        self.queue = WriteQueue()
        self.failover_log = log
        self.high_seqno = 0
        self.persisted_seqno = 0
        self.persisted_snapshot = SnapshotRange(0, 0)
        self.max_deleted_rev = 0
        self.receiving: SnapshotRange | None = None
        self.tombstones = 0
        self.non_resident = 0
        self.deletions = 0

    # --- reading --------------------------------------------------------------------------------

    def get(self, key: bytes) -> Item | None:
        """Return the live item with its value, ``None`` on a miss.

        Raises:
            NotResident: the value is on disk.
        """
        item = self.find(key)
        if item is None:
            return None
        if item.value is None:
            raise NotResident(self.id, (key,))
        item.nru = 0
        return item

    def find(self, key: bytes) -> Item | None:
        """Return the live item, perhaps without its value; an expired one is deleted on the way."""
        item = self.table.get(key)
        if item is None or item.life:
            return None
        if item.expiry and item.expiry <= self._now():
            self._stats.expired_access += 1
            self.expire(item)
            return None
        return item

    def metadata(self, key: bytes) -> Item | None:
        """Return what the table knows of `key`, tombstones included."""
        return self.table.get(key)

    def visible_cas(self, item: Item) -> int:
        """Return the CAS a reader may see: a locked item's is hidden."""
        return self._masked_cas(item) if self.locks else item.cas

    @property
    def snapshot(self) -> SnapshotRange:
        """The range that the newest items belong to; empty while nothing is half received."""
        return self.receiving or SnapshotRange(self.high_seqno, self.high_seqno)

    @property
    def whole_seqno(self) -> int:
        """Up to where this is a state that the active had: below the high seqno in mid-snapshot."""
        return self.high_seqno if self.receiving is None else self.receiving.start

    @property
    def item_count(self) -> int:
        """Number of documents, those that expired unnoticed included."""
        return len(self.table) - self.tombstones

    # --- changing -------------------------------------------------------------------------------

    def store(
        self,
        key: bytes,
        value: bytes,
        flags: int,
        expiry: int,
        cas: int = 0,
        datatype: int = 0,
        mode: int = StoreMode.SET,
    ) -> Item:
        """Set, add or replace a document and return its new version.

        With a `cas` all three are the same compare-and-store, as in memcached.

        Raises:
            KeyExists: the CAS differs, or add found a document.
            KeyNotFound: replace or a CAS found none.
            Locked: somebody else's lock.
            TemporaryFailure, OutOfMemory: see `Ledger.refuse_write`.
        """
        ledger = self._ledger
        if ledger.used > ledger.write_limit:
            ledger.refuse_write(len(key) + len(value))
        old = self.table.get(key)
        if cas or mode or self.locks:
            self._check_store(key, old, cas, mode)
        return self._accept(key, value, flags, expiry, old, datatype)

    def delete(self, key: bytes, cas: int = 0) -> Item:
        """Delete a document and return its tombstone.

        Raises:
            KeyNotFound, KeyExists, Locked; TemporaryFailure while the disk refuses commits.
        """
        self._ledger.check_disk()
        old = self.find(key)
        if old is None:
            raise KeyNotFound(key)
        self._check_cas(key, old, cas)
        return self._bury(old, Life.DELETED)

    def touch(self, key: bytes, expiry: int) -> Item:
        """Give a document a new expiry time; flags, value and CAS stay.

        Raises:
            KeyNotFound, Locked, NotResident; TemporaryFailure while the disk refuses commits.
        """
        old = self.get(key)
        if old is None:
            raise KeyNotFound(key)
        self._check_lock(key, 0)
        if old.expiry == expiry:
            return old
        self._ledger.check_disk()
        assert old.value is not None
        item = self._accept(key, old.value, old.flags, expiry, old, old.datatype, cas=old.cas)
        item.nru = 0
        return item

    def extend(
        self,
        key: bytes,
        piece: bytes,
        cas: int,
        *,
        front: bool,
        limit_bytes: int,
    ) -> Item:
        """Append or prepend to the value; flags and expiry stay.

        Raises:
            NotStored: nothing there, or the whole would exceed `limit_bytes`.
            KeyExists, Locked, NotResident, TemporaryFailure, OutOfMemory.
        """
        old = self.get(key)
        if old is None:
            raise NotStored(key)
        self._check_cas(key, old, cas)
        assert old.value is not None
        value = piece + old.value if front else old.value + piece
        if len(value) > limit_bytes:
            raise NotStored(key)
        ledger = self._ledger
        if ledger.used > ledger.write_limit:
            ledger.refuse_write(len(key) + len(value))
        return self._accept(key, value, old.flags, old.expiry, old, old.datatype)

    def add_delta(
        self,
        key: bytes,
        delta: int,
        cas: int = 0,
        *,
        initial: int | None = None,
        expiry: int = 0,
    ) -> tuple[int, Item]:
        """Add `delta` (negative: subtract, stopping at 0) to a counter; wraps at 2**64.

        Args:
            key: the counter.
            delta: what to add.
            cas: must match when it is not 0 and the counter exists.
            initial: value and `expiry` of a counter that has to be made; ``None`` = do not make it.
            expiry: see `initial`.

        Returns:
            The new number and the new version of the item.

        Raises:
            KeyNotFound, KeyExists, Locked, DeltaBadValue, NotResident, TemporaryFailure.
        """
        old = self.get(key)
        if old is None:
            if initial is None:
                raise KeyNotFound(key)
            return initial, self.store(key, b"%d" % initial, 0, expiry)
        self._check_cas(key, old, cas)
        assert old.value is not None
        number = numbers.parse_counter(old.value)
        if number is None:
            raise DeltaBadValue(key)
        number = numbers.shifted(number, delta)
        ledger = self._ledger
        if ledger.used > ledger.write_limit:
            ledger.refuse_write(len(key) + len(old.value))
        text = numbers.counter_text(number, len(old.value))
        return number, self._accept(key, text, old.flags, old.expiry, old, old.datatype)

    def lock(self, key: bytes, seconds: int) -> tuple[Item, int]:
        """Lock a document for `seconds`; return it and the CAS that opens the lock.

        Raises:
            KeyNotFound, Locked, NotResident.
        """
        item = self.get(key)
        if item is None:
            raise KeyNotFound(key)
        self._check_lock(key, 0)
        now = self._now()
        for other, (_, until) in list(self.locks.items()):
            if until > now:
                break  # nearly in order of lapsing, so what is behind lapses later or soon after
            del self.locks[other]
        cas = self._next_cas()
        until = now + seconds
        self.locks[key] = (cas, until)
        self._ledger.locked_until = max(self._ledger.locked_until, until)
        return item, cas

    def unlock(self, key: bytes, cas: int) -> None:
        """Open a lock early.

        Raises:
            KeyNotFound: no such document.
            NotLocked: it is not locked, or by another CAS.
        """
        if self.find(key) is None:
            raise KeyNotFound(key)
        lock = self._live_lock(key)
        if lock is None or lock != cas:
            raise NotLocked(key)
        del self.locks[key]

    def expire(self, item: Item) -> Item:
        """Turn an item whose time has come into a tombstone, so that every replica learns of it."""
        self.locks.pop(item.key, None)
        return self._bury(item, Life.EXPIRED)

    def check_change(self, key: bytes, cas: int, mode: int) -> None:
        """Raise what `store` would raise for its `cas`, its `mode`, or somebody else's lock."""
        self._check_store(key, self.table.get(key), cas, mode)

    def adopt(self, item: Item) -> None:
        """Take a finished version into table and queue; its seqno is above all before.

        Nothing is checked, neither conflicts nor memory. The CAS may be a stranger's: those that
        are given out from now on are above it. The document's lock is opened, as by any change.
        """
        assert item.seqno > self.high_seqno
        key, ledger = item.key, self._ledger
        old = self.table.get(key)
        self.high_seqno = item.seqno
        ledger.last_cas = max(ledger.last_cas, item.cas)
        ledger.used += len(item.value or b"")
        if old is None:
            ledger.used += len(key) + ITEM_OVERHEAD_BYTES
        elif old.life:
            self.tombstones -= 1
        elif old.value is None:
            self.non_resident -= 1
        else:
            ledger.used -= len(old.value)
        if item.life:
            self.tombstones += 1
            self.deletions += old is not None and not old.life
            # At least 1, so that 0 says that there never was a tombstone.
            self.max_deleted_rev = max(self.max_deleted_rev, item.rev, 1)
        self.queue.put(item, 0 if old is None else old.seqno)
        self._become_dirty()
        self.table[key] = item
        self.locks.pop(key, None)
        if self.waiting:
            self._tell_waiting()

    def reset(self, uuid: int) -> None:
        """Forget everything: an empty vBucket with a history of its own, seqno 0.

        Open views keep what they show. The store forgets with the next commit.
        """
        self._ledger.used -= self.memory_bytes()
        self._start_history(new_log(uuid))
        self.purge_seqno = 0
        self.reset_pending = True
        self.change_header()
        self.interrupt(Interruption.RESET)

    # --- who follows ----------------------------------------------------------------------------

    def interrupt(self, why: Interruption) -> None:
        """Tell everybody who follows that they cannot go on, and forget them."""
        watchers, self.watchers, self.waiting = self.watchers, [], []
        for watcher in watchers:
            watcher.interrupted(why)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell `watcher` nothing any more; harmless when it was told nothing before."""
        if watcher in self.watchers:
            self.watchers.remove(watcher)
        if watcher in self.waiting:
            self.waiting.remove(watcher)

    def _tell_waiting(self) -> None:
        waiting = self.waiting
        if len(waiting) == 1:
            waiting.pop().changed()
            return
        self.waiting = []
        for watcher in waiting:
            watcher.changed()

    # --- persistence and memory -----------------------------------------------------------------

    def change_header(self) -> None:
        """Have the header written with the next commit though no item changed."""
        self.header_dirty = True
        self._become_dirty()

    def header(self, high_seqno: int, snapshot: SnapshotRange) -> VBucketHeader:
        """Return the header to store beside items up to `high_seqno`."""
        return VBucketHeader(
            self.state,
            high_seqno,
            snapshot,
            self.failover_log,
            self.purge_seqno,
            self.max_deleted_rev,
        )

    def persisted(self, items: list[Item], upto: int, snapshot: SnapshotRange) -> None:
        """Learn that a commit holding `items`, the queue's content up to `upto`, is finished."""
        self.queue.drop_persisted(upto)
        self.persisted_seqno = upto
        self.persisted_snapshot = snapshot
        if self.tombstones:
            self._forget_tombstones(items)

    def install(self, items: list[Item]) -> None:
        """Put items that the store holds into the empty table, at warm-up.

        Those without a value are documents whose value stays on disk for now.
        """
        table = self.table
        size = absent = 0
        for item in items:
            key, value = item.key, item.value
            table[key] = item
            size += len(key)
            if value is None:
                absent += 1
            else:
                size += len(value)
        self.non_resident += absent
        self._ledger.used += size + ITEM_OVERHEAD_BYTES * len(items)

    def bring_in(self, item: Item) -> bool:
        """Give a fetched value to the table's entry if that is still the same version.

        The CAS tells versions apart that a flush in between gave the same seqno; touch keeps it.
        """
        current = self.table.get(item.key)
        if current is None or current.seqno != item.seqno or current.cas != item.cas:
            return False
        if current.value is not None:
            return False
        assert item.value is not None
        self.table[item.key] = item
        self.non_resident -= 1
        self._ledger.used += len(item.value)
        return True

    def eject(self, item: Item) -> None:
        """Leave the value of a clean item to the disk; key and metadata stay."""
        assert item.seqno <= self.persisted_seqno
        assert item.value is not None
        self.table[item.key] = item.with_value(None)
        self.non_resident += 1
        self._ledger.used -= len(item.value)

    def memory_bytes(self) -> int:
        """Return what the table is accounted for; O(items)."""
        return sum(
            len(item.key) + ITEM_OVERHEAD_BYTES + (len(item.value) if item.value else 0)
            for item in self.table.values()
        )

    def check(self) -> None:
        """Verify every invariant; for tests and the simulator. O(items)."""
        self.queue.check()
        assert self.persisted_seqno <= self.high_seqno
        assert self.queue.high_seqno <= self.high_seqno
        tombstones = non_resident = 0
        for key, item in self.table.items():
            assert item.key == key
            assert 0 < item.seqno <= self.high_seqno
            tombstones += bool(item.life)
            non_resident += item.value is None and not item.life
            dirty = item.seqno > self.persisted_seqno
            assert dirty or not item.life, "a persisted tombstone stayed"
            assert not dirty or item.life or item.value is not None, "a dirty value was ejected"
        assert tombstones == self.tombstones
        assert non_resident == self.non_resident

    # --- rules ----------------------------------------------------------------------------------

    def _accept(
        self,
        key: bytes,
        value: bytes,
        flags: int,
        expiry: int,
        old: Item | None,
        datatype: int,
        cas: int = 0,
    ) -> Item:
        """Take a change: next seqno, next CAS, table, queue. Everything was checked before.

        It opens the document's lock: only the lock's holder gets here, or a lock that has lapsed.
        """
        ledger = self._ledger
        seqno = self.high_seqno = self.high_seqno + 1
        if not cas:
            cas = ledger.last_cas = ledger.last_cas + 1
        if old is None:
            item = Item(key, value, flags, expiry, cas, seqno, self.max_deleted_rev + 1, datatype)
            ledger.used += len(key) + len(value) + ITEM_OVERHEAD_BYTES
            self.queue.put(item, 0)
        else:
            item = Item(key, value, flags, expiry, cas, seqno, old.rev + 1, datatype)
            replaced = old.value
            if replaced is not None:
                ledger.used += len(value) - len(replaced)
            else:
                ledger.used += len(value)
                if old.life:
                    self.tombstones -= 1
                else:
                    self.non_resident -= 1
            self.queue.put(item, old.seqno)
        self.table[key] = item
        if self.locks:
            self.locks.pop(key, None)
        if not self.dirty:
            self.dirty = True
            ledger.mark_dirty(self)
        if self.waiting:
            self._tell_waiting()
        return item

    def _bury(self, old: Item, life: Life) -> Item:
        tombstone = Item(
            old.key,
            None,
            old.flags,
            int(self._now()),
            self._next_cas(),
            self.high_seqno + 1,
            old.rev + 1,
            0,
            life,
        )
        self.adopt(tombstone)
        return tombstone

    def _become_dirty(self) -> None:
        if not self.dirty:
            self.dirty = True
            self._ledger.mark_dirty(self)

    def _forget_tombstones(self, items: list[Item]) -> None:
        """Drop persisted deletions whose key was not written again meanwhile (D23)."""
        table = self.table
        for item in items:
            if item.life and table.get(item.key) is item:
                del table[item.key]
                self.tombstones -= 1
                self._ledger.used -= len(item.key) + ITEM_OVERHEAD_BYTES

    def _check_store(self, key: bytes, old: Item | None, cas: int, mode: int) -> None:
        if old is not None and (old.life or (old.expiry and old.expiry <= self._now())):
            old = None
        if old is None:
            if cas or mode == StoreMode.REPLACE:
                raise KeyNotFound(key)
        elif cas:
            self._check_cas(key, old, cas)
        elif mode == StoreMode.ADD:
            raise KeyExists(key)
        else:
            self._check_lock(key, 0)

    def _check_cas(self, key: bytes, old: Item, cas: int) -> None:
        """Let a change pass whose CAS is 0, the item's, or opens the item's lock."""
        if self.locks and self._check_lock(key, cas):
            return
        if cas and cas != old.cas:
            raise KeyExists(key)

    def _check_lock(self, key: bytes, cas: int) -> bool:
        """Raise `Locked` for a foreign lock; say whether `cas` opens the one that is there."""
        lock = self._live_lock(key)
        if lock is None:
            return False
        if lock != cas:
            raise Locked(key)
        return True

    def _live_lock(self, key: bytes) -> int | None:
        lock = self.locks.get(key)
        if lock is None:
            return None
        cas, until = lock
        if until <= self._now():
            del self.locks[key]
            return None
        return cas

    def _masked_cas(self, item: Item) -> int:
        return item.cas if self._live_lock(item.key) is None else CAS_LOCKED

    def _next_cas(self) -> int:
        self._ledger.last_cas += 1
        return self._ledger.last_cas
