"""Finished versions enter a vBucket, histories begin and end, and watchers are informed.

Job: everything that an active vBucket and a replica have in common. `adopt` and `adopt_all` take
versions that already have seqnos; `reset` and `roll_back` replace the history by another one;
`persisted` and `header` are for the flusher. Nothing is refused here: conflicts, locks and memory
are the job of `vbucket`, the order of a stream is that of `replica`.
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
        """Put a finished version into table and queue; its seqno is above all earlier ones.

        Nothing is checked, neither conflicts nor memory. The CAS may come from elsewhere; new ones
        will be above it. Like any change, this opens the document's lock.
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
            # At least 1, so that 0 means that there never was a tombstone.
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
        """Do what `adopt` does for each, by rising seqno; call those who wait once, at the end."""
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
        """Enter an expiry, unless the present entry is due in time; see `timetable`."""
        if old is None or old.life or not old.expiry or item.expiry < old.expiry:
            self._account.timetable.add(self.id, item.key, item.expiry)

    def outrank(self, rev: int) -> None:
        """Make new documents outrank deletions of up to this revision, which were made elsewhere.

        The next commit stores it; a lower revision than before changes nothing.
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
        """Return to a state of another history; see `rewind.roll_back`, which has the rule.

        Nothing of it counts as persisted until a commit contains all of it.

        Args:
            high_seqno: the newest seqno afterwards; not 0.
            versions: versions of documents, by rising seqno, none above `high_seqno`.
            keys: keys whose records the store must delete.
            log: the history from now on.
            receiving: the snapshot of which a part has been received.
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
        """Delete everything: the vBucket is empty afterwards, with a new history and seqno 0.

        Open views keep their content. The next commit deletes the records from the store.

        Args:
            uuid: the uuid of the new history.
            size: bytes to subtract from the memory account, if known; otherwise they are counted.
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
        """Take the next term for a history that begins here; the next header stores it."""
        self.term = self.known_term = promoted(self.term, self.known_term)

    def take_term(self, term: int) -> None:
        """Take the term of a failover log that another node sent, 0 = not known.

        The highest known term is kept, so that a promotion is above every term ever seen.
        """
        if term and term != self.term:
            self.term, self.known_term = term, max(term, self.known_term)
            self.change_header()

    # --- who follows ----------------------------------------------------------------------------

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
        """Write the header with the next commit although no item changed."""
        self.header_dirty = True
        self._become_dirty()

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

    def persisted(self, items: list[Item], upto: int, snapshot: SnapshotRange) -> None:
        """Take note of a finished commit of `items`, the queue's content up to `upto`."""
        self.queue.drop_persisted(upto)
        self.persisted_seqno = upto
        self.persisted_snapshot = snapshot
        self.forgetting = None
        if self.tombstones:
            self._forget_tombstones(items)

    def _become_dirty(self) -> None:
        """Put this on the flusher's list; only a `VBucket` is ever there."""
        raise NotImplementedError
