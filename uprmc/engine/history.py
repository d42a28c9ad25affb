"""Finished versions come into a vBucket, and histories begin and end; who follows is told.

Job: everything that an active and a replica have in common. `adopt` and `adopt_all` take versions
that have their seqnos; `reset` and `roll_back` leave a history for another one; `persisted` and
`header` are the flusher's side of it. Nothing is refused here: conflicts, locks and memory are for
`vbucket`, the order of a stream for `replica`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from uprmc.engine.failover_log import new_log
from uprmc.engine.hash_table import Forgetting, HashTable
from uprmc.engine.memory_account import ITEM_OVERHEAD_BYTES
from uprmc.engine.terms import promoted
from uprmc.engine.watching import Interruption, Watcher
from uprmc.engine.write_queue import WriteQueue
from uprmc.model import FailoverLog, Item, SnapshotRange, VBucketHeader, VBucketState

_seqno_of = attrgetter("seqno")


class History(HashTable):
    """See the module docstring."""

    __slots__ = ()

    # --- versions -------------------------------------------------------------------------------

    def adopt(self, item: Item) -> None:
        """Take a finished version into table and queue; its seqno is above all before.

        Nothing is checked, neither conflicts nor memory. The CAS may be a stranger's: those that
        are given out from now on are above it. The document's lock is opened, as by any change.
        """
        assert item.seqno > self.high_seqno
        key, account = item.key, self._account
        old = self.table.get(key)
        self.high_seqno = item.seqno
        self.know_cas(item.cas)
        account.used += len(item.value or b"")
        if old is None:
            account.used += len(key) + ITEM_OVERHEAD_BYTES
        elif old.life:
            self.tombstones -= 1
        elif old.value is None:
            self.non_resident -= 1
        else:
            account.used -= len(old.value)
        if item.life:
            self.tombstones += 1
            self.deletions += old is not None and not old.life
            # At least 1, so that 0 says that there never was a tombstone.
            self.max_deleted_rev = max(self.max_deleted_rev, item.rev, 1)
        self.queue.put(item, 0 if old is None else old.seqno)
        self._become_dirty()
        self.table[key] = item
        if item.expiry and not item.life and self.state == VBucketState.ACTIVE:
            self._enter_expiry(item, old)
        self.locks.pop(key, None)
        if self.waiting and self.receiving is None:
            self._tell_waiting()

    def adopt_all(self, items: list[Item]) -> None:
        """Do what `adopt` does for each, by rising seqno; who waits is told once, at the end."""
        account, table = self._account, self.table
        max_cas, size, added = 0, 0, 0
        replaced: list[int] = []
        for item in items:
            key, value = item.key, item.value
            old = table.get(key)
            table[key] = item
            if old is None:
                added += 1
                size += len(key)
            else:
                replaced.append(old.seqno)
                self._take_out(old)
            if value is not None:
                size += len(value)
            if item.life:
                self.tombstones += 1
                self.deletions += old is not None and not old.life
                self.max_deleted_rev = max(self.max_deleted_rev, item.rev, 1)
            if item.cas > max_cas:
                max_cas = item.cas
        if not items:
            return
        assert items[0].seqno > self.high_seqno
        self.high_seqno = items[-1].seqno
        self.know_cas(max_cas)
        account.used += size + ITEM_OVERHEAD_BYTES * added
        self.queue.put_all(items, replaced)
        self._become_dirty()
        if self.locks:
            for item in items:
                self.locks.pop(item.key, None)
        if self.waiting and self.receiving is None:
            self._tell_waiting()

    def _enter_expiry(self, item: Item, old: Item | None) -> None:
        """See `timetable`: who expires not sooner than before has an entry that is due in time."""
        if old is None or old.life or not old.expiry or item.expiry < old.expiry:
            self._account.timetable.add(self.id, item.key, item.expiry)

    def outrank(self, rev: int) -> None:
        """Have new documents outrank deletions of up to this revision, which were made elsewhere.

        It is on disk with the next commit; less than before changes nothing.
        """
        if rev > self.max_deleted_rev:
            self.max_deleted_rev = rev
            self.change_header()

    # --- beginning anew -------------------------------------------------------------------------

    def roll_back(
        self,
        high_seqno: int,
        versions: Sequence[Item],
        keys: frozenset[bytes],
        log: FailoverLog,
        receiving: SnapshotRange | None,
    ) -> None:
        """Go back to a state of another history; see `rewind.roll_back`, which has the rule.

        Nothing of it counts as persisted until a commit holds all of it.

        Args:
            high_seqno: the newest seqno that is held afterwards; not 0.
            versions: of single documents, by rising seqno, none above `high_seqno`.
            keys: of which the store is to forget what it has.
            log: the history from now on.
            receiving: the snapshot that is held a part of.
        """
        assert self.purge_seqno <= high_seqno
        table = self.table
        for item in [item for item in table.values() if item.seqno > high_seqno]:
            self._remove(item)
        given = {item.key for item in versions}
        kept = [item for item in self.queue.since(0) if item.seqno <= high_seqno]
        queued = [item for item in kept if item.key not in given]
        for item in versions:
            self._put_back(item)
        self.queue = WriteQueue()
        self.queue.put_all(sorted([*queued, *versions], key=_seqno_of), ())
        self.queue.high_seqno = self.high_seqno = high_seqno
        pending = self.forgetting or Forgetting(high_seqno, frozenset())
        self.forgetting = Forgetting(min(high_seqno, pending.above), keys | pending.keys)
        self.persisted_seqno = 0
        self.persisted_snapshot = SnapshotRange(0, 0)
        self.failover_log = log
        self.receiving = receiving
        self.locks.clear()
        self.change_header()
        self.interrupt(Interruption.ROLLED_BACK)

    def reset(self, uuid: int, size: int | None = None) -> None:
        """Forget everything: an empty vBucket with a history of its own, seqno 0.

        Open views keep what they show. The store forgets with the next commit.

        Args:
            uuid: of the history that begins.
            size: what to take off the memory account, if the caller knows; else it is counted.
        """
        account = self._account
        account.used -= self.memory_bytes() if size is None else size
        account.leftovers.add(self.table)
        self._start_history(new_log(uuid))
        if self.id in account.lookups:
            account.lookups[self.id] = self.table.get
        self.purge_seqno = 0
        self.reset_pending = True
        self.change_header()
        self.interrupt(Interruption.RESET)

    # --- terms ----------------------------------------------------------------------------------

    def promote(self) -> None:
        """Get the term of a history that begins here; it is on disk with the next header."""
        self.term = self.known_term = promoted(self.term, self.known_term)

    def take_term(self, term: int) -> None:
        """Take the term of a log that comes from elsewhere, 0 = it is not known.

        The highest known one stays, so that a promotion is above all that was ever seen.
        """
        if term and term != self.term:
            self.term, self.known_term = term, max(term, self.known_term)
            self.change_header()

    # --- who follows ----------------------------------------------------------------------------

    def interrupt(self, why: Interruption) -> None:
        """Tell everybody who follows that they cannot go on, and forget them."""
        if not self.watchers and not self.waiting:
            return
        watchers, self.watchers, self.waiting = self.watchers, [], []
        for watcher in watchers:
            watcher.interrupted(why)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell `watcher` nothing any more; harmless when it was told nothing before."""
        if watcher in self.watchers:
            self.watchers.remove(watcher)
        if watcher in self.waiting:
            self.waiting.remove(watcher)

    def complete_snapshot(self) -> None:
        """What was half received turns out to be whole: from now on it may be passed on."""
        if self.receiving is None:
            return
        self.receiving = None
        self.change_header()
        if self.waiting:
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        waiting = self.waiting
        if len(waiting) == 1:
            waiting.pop().changed()
            return
        self.waiting = []
        for watcher in waiting:
            watcher.changed()

    # --- persistence ----------------------------------------------------------------------------

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
            term=self.term,
            known_term=self.known_term,
            max_cas=self.max_cas,
        )

    def persisted(self, items: list[Item], upto: int, snapshot: SnapshotRange) -> None:
        """Learn that a commit holding `items`, the queue's content up to `upto`, is finished."""
        self.queue.drop_persisted(upto)
        self.persisted_seqno = upto
        self.persisted_snapshot = snapshot
        self.forgetting = None
        if self.tombstones:
            self._forget_tombstones(items)

    def _become_dirty(self) -> None:
        """Put this on the flusher's list; only a `VBucket` is ever there."""
        raise NotImplementedError
