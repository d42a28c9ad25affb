"""One vBucket: its versions in their order, which changes it accepts, and which it refuses.

An accepted change gets the next seqno, and goes into the table and the write queue. A refused one
leaves no trace, not even in the seqno (D17). Nothing here waits: if a value is only on disk,
`NotResident` is raised before anything changes, and the caller runs the command again once the
value has been fetched.

`store` and its like are what clients ask for. `adopt` and `adopt_all` take versions that already
have seqnos: nothing of them is refused here, and their order is the job of `replica`. `reset`
begins another history (so does `replica.return_to`); `persisted` and `header` are for the
flusher. Touch is a change like any other (it takes a seqno, so that replicas learn of it) but keeps
the CAS, as in memcached.

The **table** has a vBucket's records by their keys: live documents and fresh tombstones, because a
deleted document stays until its deletion is on disk (D19). Everything that puts a record into a
table or takes one out goes through it, so that the memory account is right. `Table.get` is the
lookup of `core.records` itself, because the hot path of a GET is one call of it.

**Watchers**: streams, compaction and waiting commands add themselves to `watchers`, to learn that
the vBucket in its present form has ended, and to `waiting`, to learn once of the next change.

**Counters** are as memcached keeps them: decimal text, 64 bits, perhaps padded with blanks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, IntEnum
from typing import Any, NamedTuple, Protocol

from uprmc.core.fronts import VBucketFront
from uprmc.core.records import new_records, seqnos_of
from uprmc.engine.failover_log import new_log, promoted
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES, MemoryAccount
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
    TemporaryFailure,
)
from uprmc.model import (
    CAS_LOCKED,
    FailoverLog,
    Item,
    Life,
    SnapshotRange,
    VBucketHeader,
    VBucketState,
)
from uprmc.ports import Clock
from uprmc.record import (
    ABSENT,
    AGE_BITS,
    FRONT,
    KIND_AT,
    LIFE_BITS,
    LOST,
    READ,
    RECORD_VERSION,
    SEQNO,
    TAIL,
    UNREAD,
    age_bits,
    cas_of,
    key_of,
    pack,
    seqno_of,
    stand_in,
    unpack,
    value_bytes_of,
    with_kind,
    without_value,
)

# --- watchers -----------------------------------------------------------------------------------


class Interruption(Enum):
    """Why a watcher of a vBucket cannot continue."""

    STATE_CHANGED = "state changed"
    RESET = "reset"
    ROLLED_BACK = "rolled back"


class Watcher(Protocol):
    """Something that watches a vBucket, such as a stream."""

    def changed(self) -> None:
        """Take note of the first change since it was added to `VBucket.waiting`; must be cheap."""

    def interrupted(self, why: Interruption) -> None:
        """Take note that the vBucket in its present form has ended; it is no longer watched."""


# --- counters -----------------------------------------------------------------------------------


_LIMIT = 2**64
_COUNTER = re.compile(rb"[ \t\n\v\f\r]*([0-9]+)(?:[ \t\n\v\f\r]|\Z)")


def parse_counter(value: bytes) -> int | None:
    """Return the number a value stands for; ``None`` if it is none, or 2**64 or more."""
    match = _COUNTER.match(value)
    if match is None or len(match[1]) > 40:
        return None
    number = int(match[1])
    return number if number < _LIMIT else None


def shifted(number: int, delta: int) -> int:
    """Add `delta`; going up wraps at 2**64, going down stops at 0."""
    return (number + delta) % _LIMIT if delta >= 0 else max(0, number + delta)


def counter_text(number: int, least_length: int) -> bytes:
    """Return the value to store: no shorter than `least_length`, padded on the right."""
    return (b"%d" % number).ljust(least_length)


# --- the table ----------------------------------------------------------------------------------


_GONE = LIFE_BITS | ABSENT


def known(record: bytes) -> bytes:
    """Return a record whose metadata are known.

    Raises:
        TemporaryFailure: they are not, because what is on disk is damaged.
    """
    if record[KIND_AT] & LOST:
        raise TemporaryFailure(f"{key_of(record)!r}: its record on disk is damaged")
    return record


class Table:
    """The records of one vBucket by their keys."""

    __slots__ = ("_account", "_records", "absent", "get", "tombstones")

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._records = new_records()
        # Key -> its record, ``None`` if there is none.
        self.get: Callable[[bytes], bytes | None] = self._records.lookup
        self.tombstones = 0
        self.absent = 0  # documents whose value is only on disk

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: bytes) -> bool:
        return key in self._records

    def find(self, key: bytes) -> Item | None:
        """Return the decoded record of a key, ``None`` if there is none.

        Raises:
            TemporaryFailure: its record is damaged.
        """
        record = self.get(key)
        return None if record is None else unpack(known(record))

    def __iter__(self) -> Iterator[bytes]:
        """Yield all keys; the table must not change meanwhile."""
        return iter(self._records)

    def records(self) -> Iterable[bytes]:
        """Return all records; the table must not change while they are iterated over."""
        return self._records.values()

    def portions(self) -> Iterator[list[bytes]]:
        """Yield all records in portions, while they may change; see `core.records`."""
        return self._records.portions()

    def versions(self) -> Iterator[Item]:
        """Yield all records decoded; the table must not change meanwhile."""
        return map(unpack, self._records.values())

    # --- entries that come and go ---------------------------------------------------------------

    def put(self, key: bytes, record: bytes, old: bytes | None) -> None:
        """Put a record in the place of `old`, which is what the table has for the key."""
        if old is None:
            self._account.used += len(record) + len(key) + ITEM_OVERHEAD_BYTES
        else:
            self._account.used += len(record) - len(old)
            gone = old[KIND_AT] & _GONE
            if gone:
                self._count(gone, -1)
        gone = record[KIND_AT] & _GONE
        if gone:
            self._count(gone, 1)
        self._records[key] = record

    def put_all(self, records: list[bytes]) -> list[bytes | None]:
        """Put records; return what each has replaced."""
        replaced, grown, dead, absent = self._records.put_all(records, ITEM_OVERHEAD_BYTES)
        self._account.used += grown
        self.tombstones += dead
        self.absent += absent
        return replaced

    def remove(self, key: bytes) -> None:
        """Take an entry out."""
        record = self._records.pop(key)
        gone = record[KIND_AT] & _GONE
        if gone:
            self._count(gone, -1)
        self._account.used -= len(record) + len(key) + ITEM_OVERHEAD_BYTES

    # --- values that come and go ----------------------------------------------------------------

    def note_read(self, key: bytes, record: bytes) -> bytes:
        """Make an entry the youngest, and return it."""
        kind = record[KIND_AT]
        if kind & AGE_BITS != READ:
            record = self._records[key] = with_kind(record, kind & ~AGE_BITS | READ)
        return record

    def set_age(self, key: bytes, record: bytes, age: int) -> None:
        """Give an entry another age."""
        self._records[key] = with_kind(record, record[KIND_AT] & ~AGE_BITS | age)

    def eject(self, key: bytes, record: bytes) -> None:
        """Drop a document's value from memory."""
        self._account.used -= value_bytes_of(record)
        self.absent += 1
        self._records[key] = without_value(record)

    def bring_in(self, key: bytes, record: bytes) -> None:
        """Give a document its value back."""
        self._account.used += value_bytes_of(record)
        self.absent -= 1
        self._records[key] = record

    def memory_bytes(self) -> int:
        """Return the table's share of the memory account; O(entries)."""
        size = sum(map(len, self._records.values())) + sum(map(len, self._records))
        return size + ITEM_OVERHEAD_BYTES * len(self._records)

    def let_go(self) -> list[Any]:
        """Return what has the entries, to be freed little by little; this is not used any more."""
        return self._records.pieces()

    def own_bytes(self) -> int:
        """Return what the table takes itself, without its entries' objects."""
        return self._records.own_bytes()

    def _count(self, gone: int, by: int) -> None:
        if gone & LIFE_BITS:
            self.tombstones += by
        else:
            self.absent += by


# --- a vBucket ----------------------------------------------------------------------------------


NOTHING_PERSISTED = SnapshotRange(0, 0)

_unpack_front, _pack_front, _pack_tail = FRONT.unpack_from, FRONT.pack, TAIL.pack


class Forgetting(NamedTuple):
    """What the next commit must delete of a vBucket that was rolled back."""

    above: int  # every record above this seqno
    keys: frozenset[bytes]  # the records of these keys, whatever their seqno


class StoreMode(IntEnum):
    """What `VBucket.store` demands of the existing document."""

    SET = 0
    ADD = 1
    REPLACE = 2


class VBucket(VBucketFront):
    """See the module docstring. Attributes are public for the hot path, read-only for others."""

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
        # How many promotions led to the present history, which never decreases, and the highest
        # term that any node is known to have for this vBucket; see `failover_log`.
        self.term = self.known_term = 0
        self._account = account
        self._stats = stats
        self._now = clock.now
        self._monotonic = clock.monotonic
        self.header_dirty = False
        # The next commit deletes everything; no commit of this history has ended, so the store may
        # have another one.
        self.reset_pending = self.replaces = False
        self.purge_seqno = 0
        # Documents that have expired here since the node started, in any history.
        self.expired = 0
        # An operator has said that all of it may be given up for what a source has, although they
        # have nothing in common; until that has granted a stream.
        self.may_start_over = False
        # Those who are called when the vBucket changes its state or is reset. The others,
        # `waiting`, are called once, at the next change, or, while a snapshot is received, at its
        # end. All add themselves.
        self.watchers: list[Watcher] = []
        self._start_history(new_log(uuid))

    def _start_history(self, log: FailoverLog) -> None:
        self.table = Table(self._account)
        # Key -> (lock CAS, monotonic time when the lock lapses).
        self.locks: dict[bytes, tuple[int, float]] = {}
        # How the wall clock was set while this was active: the seqno before which documents were
        # stored by the earlier time, the seconds by which it was set, and the latest time that a
        # lifetime could reach then.
        self.steps: list[tuple[int, int, int]] = []
        self.queue = self.queue.restarted()
        self.failover_log = log
        self.high_seqno = 0
        # Everything up to here is in a finished commit, which stored this snapshot range.
        self.persisted_seqno = 0
        self.persisted_snapshot = NOTHING_PERSISTED
        self.max_deleted_rev = 0
        # The snapshot that a replica has received in part.
        self.receiving: SnapshotRange | None = None
        # What the store has not yet deleted of a history that was rolled back.
        self.forgetting: Forgetting | None = None
        # Documents deleted or expired since this history began or the node started.
        self.deletions = 0

    def know_cas(self, cas: int) -> None:
        """Take note of a CAS that was given out elsewhere."""
        self.max_cas = max(self.max_cas, cas)
        account = self._account
        if cas > account.last_cas:
            account.last_cas = cas + account.cas_step

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
        self.note_read(key)
        item.nru = 0
        return item

    def readable(self, key: bytes, record: bytes) -> bytes | None:
        """Return the table's record of a key if its tail may be sent as it is, and note the read.

        ``None`` means that there is something else to look at: it is gone or expired, its value is
        only on disk, or it has a datatype.
        """
        _, kind, datatype, expiry, _, _, seqno = _unpack_front(record)
        if kind & (LIFE_BITS | ABSENT) or datatype:
            return None
        if expiry and self.due(expiry, seqno) <= self._now():
            return None
        return self.table.note_read(key, record)

    def note_read(self, key: bytes) -> None:
        """Tell the pager that a document is in use."""
        record = self.table.get(key)
        if record is not None:
            self.table.note_read(key, record)

    def find(self, key: bytes) -> Item | None:
        """Return the live item, perhaps without its value; an expired one is deleted on the way."""
        item = self.table.find(key)
        if item is None or item.life:
            return None
        if self.is_due(item):
            self._stats.expired_access += 1
            self._stats.get_expired += 1
            self.expire(item)
            return None
        return item

    def is_due(self, item: Item) -> bool:
        """Tell whether an item has expired."""
        return bool(item.expiry) and self.due(item.expiry, item.seqno) <= self._now()

    def is_live(self, item: Item) -> bool:
        """Tell whether an item is a document that has not expired."""
        return not item.life and not self.is_due(item)

    def visible_cas(self, key: bytes, cas: int) -> int:
        """Return the CAS that a reader may see of a document's: that of a locked one is hidden."""
        return CAS_LOCKED if self.locks and self._live_lock(key) is not None else cas

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

        With a `cas` all three are the same compare-and-swap, as in memcached.

        Raises:
            KeyExists: the CAS differs, or add finds a document.
            KeyNotFound: replace or a CAS finds none.
            Locked: another client's lock.
            TemporaryFailure, OutOfMemory: see `MemoryAccount.refuse_write`.
        """
        return unpack(self.store_record(key, value, flags, expiry, cas, datatype, mode))

    def store_record(
        self,
        key: bytes,
        value: bytes,
        flags: int,
        expiry: int,
        cas: int = 0,
        datatype: int = 0,
        mode: int = StoreMode.SET,
    ) -> bytes:
        """Do what `store` does; the CAS of the record is `MemoryAccount.last_cas` afterwards."""
        account = self._account
        if account.used > account.write_limit:
            account.refuse_write(len(key) + len(value))
        old = self.table.get(key)
        if cas or mode or self.locks:
            self._check_store(key, None if old is None else unpack(known(old)), cas, mode)
        return self._accept(key, value, flags, expiry, old, datatype)

    def delete(self, key: bytes, cas: int = 0) -> Item:
        """Delete a document and return its tombstone.

        Raises:
            KeyNotFound, KeyExists, Locked; TemporaryFailure while the disk refuses commits.
        """
        self._account.check_disk()
        old = self.find(key)
        if old is None:
            raise KeyNotFound(key)
        self._check_cas(key, old, cas)
        return self._bury(old, Life.DELETED)

    def touch(self, key: bytes, expiry: int, nru: int = 0) -> Item:
        """Give a document a new expiry time, and the age `nru`; flags, value and CAS stay.

        Raises:
            KeyNotFound, Locked, NotResident; TemporaryFailure while the disk refuses commits.
        """
        old = self.find(key)
        if old is None:
            raise KeyNotFound(key)
        if old.value is None:
            raise NotResident(self.id, (key,))
        self._check_lock(key, 0)
        record = self.table.get(key)
        assert record is not None
        if self.due(old.expiry, old.seqno) != expiry:
            self._account.check_disk()
            record = self._accept(
                key, old.value, old.flags, expiry, record, old.datatype, cas=old.cas
            )
        self.table.set_age(key, record, age_bits(nru))
        return unpack(record)

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
            NotStored: there is no document, or the result would exceed `limit_bytes`.
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
        account = self._account
        if account.used > account.write_limit:
            account.refuse_write(len(key) + len(value))
        return self._replace(old, value)

    def add_delta(
        self,
        key: bytes,
        delta: int,
        cas: int = 0,
        *,
        initial: int | None = None,
        expiry: int = 0,
        padded: bool = True,
    ) -> tuple[int, Item]:
        """Add `delta` (negative: subtract, stopping at 0) to a counter; wraps at 2**64.

        Args:
            key: the counter.
            delta: what to add.
            cas: must match when it is not 0 and the counter exists.
            initial: value of a new counter; ``None`` = do not create one.
            expiry: expiry of a new counter.
            padded: whether the text keeps at least its length, as memcached's does; Couchbase's
                takes the length of the number.

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
        if not old.value:
            raise DeltaBadValue(key)  # before the CAS is compared, as in memcached
        self._check_cas(key, old, cas)
        assert old.value is not None
        number = parse_counter(old.value)
        if number is None:
            raise DeltaBadValue(key)
        number = shifted(number, delta)
        account = self._account
        if account.used > account.write_limit:
            account.refuse_write(len(key) + len(old.value))
        text = counter_text(number, len(old.value) if padded else 0)
        return number, self._replace(old, text)

    def lock(self, key: bytes, seconds: int) -> tuple[Item, int]:
        """Lock a document for `seconds`; return it and the CAS that opens the lock.

        Raises:
            KeyNotFound, Locked, NotResident.
        """
        item = self.get(key)
        if item is None:
            raise KeyNotFound(key)
        self._check_lock(key, 0)
        now = self._monotonic()
        for other, (_, until) in list(self.locks.items()):
            if until > now:
                break  # nearly in order of expiry, so later entries expire later or soon after
            del self.locks[other]
        cas = self._next_cas()
        self.change_header()  # no version has this CAS, and it must not be given out again
        until = now + seconds
        self.locks[key] = (cas, until)
        self._account.locked_until = max(self._account.locked_until, until)
        return item, cas

    def unlock(self, key: bytes, cas: int) -> None:
        """Open a lock early.

        Raises:
            KeyNotFound: no such document.
            NotLocked: it is not locked, or with another CAS.
        """
        if self.find(key) is None:
            raise KeyNotFound(key)
        lock = self._live_lock(key)
        if lock is None or lock != cas:
            raise NotLocked(key)
        del self.locks[key]

    def expire(self, item: Item) -> Item:
        """Turn an expired item into a tombstone, so that every replica learns of it."""
        self.locks.pop(item.key, None)
        self.expired += 1
        return self._bury(item, Life.EXPIRED)

    def check_change(self, key: bytes, cas: int, mode: int) -> None:
        """Raise what `store` would raise for its `cas`, its `mode`, or another client's lock."""
        self._check_store(key, self.table.find(key), cas, mode)

    # --- rules ----------------------------------------------------------------------------------

    def _replace(self, old: Item, value: bytes) -> Item:
        """Accept another value of a document; everything was checked before."""
        key = old.key
        present, expiry = self.table.get(key), self.due(old.expiry, old.seqno)
        return unpack(self._accept(key, value, old.flags, expiry, present, old.datatype))

    def _accept(
        self,
        key: bytes,
        value: bytes,
        flags: int,
        expiry: int,
        old: bytes | None,
        datatype: int,
        cas: int = 0,
    ) -> bytes:
        """Accept a change: next seqno, next CAS, table, queue. Everything was checked before."""
        account = self._account
        if not cas:
            cas = account.last_cas = self.max_cas = account.last_cas + 1
        if old is None:
            rev, replaced = self.max_deleted_rev + 1, 0
            enters = expiry
        else:
            _, kind, _, due, _, rev, replaced = _unpack_front(old)
            rev += 1
            if due and not kind & LIFE_BITS and self.due(due, replaced) <= self._now():
                self._stats.get_expired += 1
            enters = expiry and (expiry < due or not due or kind & LIFE_BITS)
        seqno = self.high_seqno + 1
        record = (
            _pack_front(RECORD_VERSION, UNREAD, datatype, expiry, len(key), rev, seqno)
            + key
            + _pack_tail(cas, flags)
            + value
        )
        if enters:
            account.timetable.add(self.id, key, expiry)
        # What follows is as in `adopt`: a call for it made a set 2 % dearer.
        self.high_seqno = seqno
        self.queue.put(seqno, record, replaced)
        self.table.put(key, record, old)
        if self.locks:  # only the holder of the document's lock gets here, or it has lapsed
            self.locks.pop(key, None)
        if not self.dirty:
            self.mark_dirty()
        if self.waiting and self.receiving is None:
            self.tell_waiting()
        return record

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
        self.adopt(pack(tombstone))
        return tombstone

    def _check_store(self, key: bytes, old: Item | None, cas: int, mode: int) -> None:
        expired = False
        if old is not None and not old.life:
            expired = self.is_due(old)
        if old is None or old.life or expired:
            if cas or mode == StoreMode.REPLACE:
                self._stats.get_expired += expired
                raise KeyNotFound(key)
        elif cas:
            self._check_cas(key, old, cas)
        elif mode == StoreMode.ADD:
            raise KeyExists(key)
        else:
            self._check_lock(key, 0)

    def _check_cas(self, key: bytes, old: Item, cas: int) -> None:
        """Accept a change whose CAS is 0 or the item's, or opens the item's lock."""
        if self.locks and self._check_lock(key, cas):
            return
        if cas and cas != old.cas:
            raise KeyExists(key)

    def _check_lock(self, key: bytes, cas: int) -> bool:
        """Raise `Locked` for another client's lock; return whether `cas` opens the present one."""
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
        if until <= self._monotonic():
            del self.locks[key]
            return None
        return cas

    def _next_cas(self) -> int:
        self.max_cas = self._account.next_cas()
        return self.max_cas

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
        will be above it.
        """
        _, kind, _, expiry, _, rev, seqno = _unpack_front(record)
        assert seqno > self.high_seqno
        key = key_of(record)
        old, replaced, due = self.table.get(key), 0, 0
        if old is not None:
            _, kind_before, _, due, _, _, replaced = _unpack_front(old)
            if kind_before & LIFE_BITS:
                due = 0
        self.know_cas(cas_of(record))
        if kind & LIFE_BITS:
            self._note_deletion(rev, old)
        elif expiry and self.state == VBucketState.ACTIVE and not 0 < due <= expiry:
            self._account.timetable.add(self.id, key, expiry)
        self.high_seqno = seqno
        self.queue.put(seqno, record, replaced)
        self.table.put(key, record, old)
        if self.locks:
            self.locks.pop(key, None)
        if not self.dirty:
            self.mark_dirty()
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
                self._note_deletion(_unpack_front(record)[5], old)
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

    def mark_dirty(self) -> None:
        """Put this on the flusher's list unless it is there."""
        if not self.dirty:
            self.dirty = True
            self._account.mark_dirty(self)

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
