"""The contents of a vBucket: its table of current items, its unpersisted changes, its history.

Job: keep the table, the counts and the memory account consistent. Everything that puts an item into
the table or takes one out of it goes through here.

Neighbours: `history` takes finished versions and begins histories; `vbucket` has the rules for
clients' commands. Both are subclasses of this class, because they share every field and the hot
path visits it once.

Note: a deleted document stays in the table as a tombstone until its deletion is on disk (D19), so
`table` contains live items and fresh tombstones.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.engine.failover_log import new_log
from uprmc.engine.memory_account import ITEM_OVERHEAD_BYTES, MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.watching import Watcher
from uprmc.engine.write_queue import WriteQueue
from uprmc.model import FailoverLog, Item, SnapshotRange, VBucketState
from uprmc.ports import Clock

_NOTHING_PERSISTED = SnapshotRange(0, 0)


class Forgetting(NamedTuple):
    """What the next commit must delete of a vBucket that was rolled back.

    Attributes:
        above: every record above this seqno.
        keys: the records of these keys, whatever their seqno.
    """

    above: int
    keys: frozenset[bytes]


class HashTable:
    """See the module docstring. Attributes are public for the hot path, read-only for others.

    Attributes:
        id: its number.
        state: what the node may do with the vBucket.
        table: key -> current item or fresh tombstone; each history has another dict.
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
        tombstones: number of tombstones in `table`.
        non_resident: number of items in `table` whose value is only on disk.
        term: number of promotions that led to the present history; it never decreases, see `terms`.
        known_term: the highest term that any node is known to have for this vBucket.
        forgetting: what the store has not yet deleted of a history that was rolled back.
        expired: documents that have expired here since the node started, in any history.
        deletions: documents that were deleted or expired since this history began or the node
            started.
    """

    __slots__ = (
        "_account",
        "_monotonic",
        "_now",
        "_stats",
        "deletions",
        "dirty",
        "expired",
        "failover_log",
        "forgetting",
        "header_dirty",
        "high_seqno",
        "id",
        "known_term",
        "locks",
        "max_cas",
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
        "term",
        "tombstones",
        "waiting",
        "watchers",
    )

    def __init__(
        self,
        number: int,
        state: VBucketState,
        uuid: int,
        account: MemoryAccount,
        stats: Stats,
        clock: Clock,
    ) -> None:
        self.id = number
        self.state = state
        self.term = self.known_term = 0
        self.max_cas = 0
        self._account = account
        self._stats = stats
        self._now = clock.now
        self._monotonic = clock.monotonic
        self.dirty = False
        self.header_dirty = False
        self.reset_pending = False
        self.purge_seqno = 0
        self.expired = 0
        self.queue = WriteQueue()
        self.waiting: list[Watcher] = []
        self.watchers: list[Watcher] = []
        self._start_history(new_log(uuid))

    def _start_history(self, log: FailoverLog) -> None:
        self.table: dict[bytes, Item] = {}
        self.locks: dict[bytes, tuple[int, float]] = {}
        self.queue = self.queue.restarted()
        self.failover_log = log
        self.high_seqno = 0
        self.persisted_seqno = 0
        self.persisted_snapshot = _NOTHING_PERSISTED
        self.max_deleted_rev = 0
        self.receiving: SnapshotRange | None = None
        self.forgetting: Forgetting | None = None
        self.tombstones = 0
        self.non_resident = 0
        self.deletions = 0

    def know_cas(self, cas: int) -> None:
        """Take note of a CAS that was given out elsewhere."""
        self.max_cas = max(self.max_cas, cas)
        account = self._account
        if cas > account.last_cas:
            account.last_cas = cas + account.cas_step

    def metadata(self, key: bytes) -> Item | None:
        """Return what the table knows of `key`, tombstones included."""
        return self.table.get(key)

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
    def item_count(self) -> int:
        """Number of documents, including those whose expiry has not been noticed yet."""
        return len(self.table) - self.tombstones

    # --- values that come and go ----------------------------------------------------------------

    def install(self, items: list[Item]) -> None:
        """Put stored items into the empty table, at warm-up.

        Items without a value are documents whose value stays on disk for now.
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
        self._account.used += size + ITEM_OVERHEAD_BYTES * len(items)

    def bring_in(self, item: Item) -> bool:
        """Put a fetched value into the table's entry if that is still the same version.

        The CAS distinguishes versions that have the same seqno because of a flush in between; touch
        keeps it.
        """
        current = self.table.get(item.key)
        if current is None or current.seqno != item.seqno or current.cas != item.cas:
            return False
        if current.value is not None:
            return False
        assert item.value is not None
        self.table[item.key] = item
        self.non_resident -= 1
        self._account.used += len(item.value)
        return True

    def eject(self, item: Item) -> None:
        """Drop the value of a clean item from memory; key and metadata stay."""
        assert item.seqno <= self.persisted_seqno
        assert item.value is not None
        self.table[item.key] = item.with_value(None)
        self.non_resident += 1
        self._account.used -= len(item.value)

    def memory_bytes(self) -> int:
        """Return the accounted bytes of the table; O(items)."""
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
            resident = item.life or item.value is not None
            assert resident or not dirty or self.rewinding, "a dirty value was evicted"
        assert tombstones == self.tombstones
        assert non_resident == self.non_resident

    # --- the table's account --------------------------------------------------------------------

    def _take_out(self, old: Item) -> None:
        """Account for a version that another one replaces in the table."""
        if old.life:
            self.tombstones -= 1
        elif old.value is None:
            self.non_resident -= 1
        else:
            self._account.used -= len(old.value)

    def _remove(self, item: Item) -> None:
        """Take an entry out of the table."""
        self._take_out(item)
        self._account.used -= len(item.key) + ITEM_OVERHEAD_BYTES
        del self.table[item.key]

    def _put_back(self, item: Item) -> None:
        """Put a version into the table whatever its seqno."""
        old = self.table.get(item.key)
        if old is not None:
            self._remove(old)
        self._account.used += len(item.key) + len(item.value or b"") + ITEM_OVERHEAD_BYTES
        self.tombstones += bool(item.life)
        self.know_cas(item.cas)
        self.table[item.key] = item

    def _forget_tombstones(self, items: list[Item]) -> None:
        """Drop persisted deletions whose key was not written again in the meantime (D23)."""
        table = self.table
        for item in items:
            if item.life and table.get(item.key) is item:
                del table[item.key]
                self.tombstones -= 1
                self._account.used -= len(item.key) + ITEM_OVERHEAD_BYTES
