"""One vBucket: the order in which it accepts changes, and which changes it refuses.

Job: decide whether a change is accepted (CAS, locks, memory), give an accepted one the next seqno,
and put it into the table and the write queue. A refused change leaves no trace, not even in the
seqno (D17). Nothing here waits: if a value is only on disk, `NotResident` is raised before anything
changes, and the caller runs the command again once the value has been fetched.

Neighbours: `history` is its base class; `bucket` picks the vBucket; `flusher`
persists the queue and then calls `persisted`; `evictor` evicts values; `warmup` fills the table.

Note: touch is a change like any other (it takes a seqno, so that replicas learn of it) but keeps
the CAS, as in memcached.
"""

from __future__ import annotations

from enum import IntEnum

from uprmc.engine import numbers
from uprmc.engine.history import History
from uprmc.engine.table import known
from uprmc.engine.watching import Interruption, Watcher
from uprmc.errors import (
    DeltaBadValue,
    KeyExists,
    KeyNotFound,
    Locked,
    NotLocked,
    NotResident,
    NotStored,
)
from uprmc.model import CAS_LOCKED, Item, Life
from uprmc.record import (
    ABSENT,
    FRONT,
    LIFE_BITS,
    RECORD_VERSION,
    TAIL,
    UNREAD,
    age_bits,
    pack,
    unpack,
)

_unpack_front, _pack_front, _pack_tail = FRONT.unpack_from, FRONT.pack, TAIL.pack

__all__ = ["Interruption", "StoreMode", "VBucket", "Watcher"]


class StoreMode(IntEnum):
    """What `VBucket.store` demands of the existing document."""

    SET = 0
    ADD = 1
    REPLACE = 2


class VBucket(History):
    """A vBucket that accepts the changes of clients; see `History` for the attributes."""

    __slots__ = ()

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
        number = numbers.parse_counter(old.value)
        if number is None:
            raise DeltaBadValue(key)
        number = numbers.shifted(number, delta)
        account = self._account
        if account.used > account.write_limit:
            account.refuse_write(len(key) + len(old.value))
        text = numbers.counter_text(number, len(old.value) if padded else 0)
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
        """Accept a change: next seqno, next CAS, table, queue. Everything was checked before.

        It opens the document's lock: only the holder of the lock gets here, or the lock has
        expired.
        """
        account = self._account
        seqno = self.high_seqno = self.high_seqno + 1
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
        record = (
            _pack_front(RECORD_VERSION, UNREAD, datatype, expiry, len(key), rev, seqno)
            + key
            + _pack_tail(cas, flags)
            + value
        )
        self.queue.put(seqno, record, replaced)
        self.table.put(key, record, old)
        if enters:
            account.timetable.add(self.id, key, expiry)
        if self.locks:
            self.locks.pop(key, None)
        if not self.dirty:
            self.dirty = True
            account.mark_dirty(self)
        if self.waiting:
            self.tell_waiting()
        return record

    def mark_dirty(self) -> None:
        """Put this on the flusher's list unless it is there."""
        if not self.dirty:
            self.dirty = True
            self._account.mark_dirty(self)

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
