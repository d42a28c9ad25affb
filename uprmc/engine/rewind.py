"""A replica rolls back by seqno, using its by-seq index and the versions of the active node.

The active node has sent us back to a seqno: it lacks the changes above it here, or has others. A
key whose newest version here is above that seqno is **lost**. The streaming code (`upr`) asks
`target` how far to go back, fetches the active node's versions of the `lost_keys`, and passes them
to `roll_back`:

* a version at or below the seqno was here before it was overwritten: it is restored with its own
  seqno;
* a version above it belongs to the active node's history and arrives with the stream. Until the
  stream has reached the highest of those, the vBucket is in no state that the active node ever had,
  and records this (`VBucket.receiving` from 0);
* a key that the active node does not have is removed.

In memory this happens at once, on disk in one commit, which removes what is above, restores
versions, and writes a header with the new history. After a crash before it, the old state is there
and is sent back again.

Note: a lost key that is only queued may have an older version on disk, from before the seqno. The
store deletes it by its key (`VBucket.forgetting`), even if a flush that is under way writes it once
more.

Source: design, decision 10; UPR reference 3.4; row P10.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from uprmc.engine.bucket import Bucket
from uprmc.engine.flush import Waiter
from uprmc.engine.history import NOTHING_PERSISTED, Forgetting
from uprmc.engine.replica import NUMBER_MAX
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.engine.write_queue import WriteQueue
from uprmc.errors import InvalidArguments
from uprmc.model import FailoverLog, Item, SnapshotRange
from uprmc.record import key_of, pack, seqno_of


class Rewind(NamedTuple):
    """The answers of the active node.

    Attributes:
        seqno: the seqno to go back to, as `target` returned it.
        log: its complete failover log.
        versions: its newest versions of lost keys that lie at or below `seqno`, with values;
            tombstones too.
        later_seqno: the highest seqno of its versions of lost keys that are above, 0 = none.
        purge_seqno: its purge seqno, 0 if unknown. It may lack a lost key because it has dropped
            the deletion, which was at or below `seqno`.
        term: the term of its log, 0 if it knows none.
    """

    seqno: int
    log: FailoverLog
    versions: Sequence[Item]
    later_seqno: int
    purge_seqno: int = 0
    term: int = 0


def target(vbucket: VBucket, seqno: int) -> int:
    """Return the seqno to go back to when the active node says `seqno`: a complete state on both.

    Inside a half-received snapshot we lack versions that were overwritten before its end.
    """
    return min(seqno, vbucket.whole_seqno)


def lost_keys(bucket: Bucket, vbucket: VBucket, seqno: int, limit: int) -> list[bytes] | None:
    """Return the keys that have a version above `seqno`, live or a tombstone.

    Returns:
        ``None`` when the vBucket cannot be rolled back and must start over: nothing is left at that
        seqno, deletions below it were dropped, or there are more than `limit` keys.

    Raises:
        StoreError: the store cannot be read.
    """
    if seqno == 0 or seqno < vbucket.purge_seqno or seqno > vbucket.whole_seqno:
        return None
    keys = dict.fromkeys(map(key_of, vbucket.queue.since(seqno)))
    if vbucket.queue.persisted or vbucket.rewinding:
        view = bucket.store.view()
        try:
            stored = view.changes_after(vbucket.id, seqno)
            keys.update((item.key, None) for item in islice(stored, limit + 1))
        finally:
            view.close()
    return list(keys) if len(keys) <= limit else None


def roll_back(bucket: Bucket, vbucket: VBucket, rewind: Rewind, done: Waiter) -> None:
    """Take the active node's history; `done` as of `Flusher.when_durable`.

    Nothing changes when it raises. If nothing is left, or deletions above what is left were dropped
    here or at the active node, the vBucket is reset (`VBucket.reset`).

    Raises:
        InvalidArguments: the active's answers cannot be true: versions above the seqno, or two at
            one seqno or of one key; or there is no complete state at that seqno here.
        StoreError: the store cannot be read.
    """
    _check(vbucket, rewind)
    given = {item.key: item for item in rewind.versions}
    queued = set(map(key_of, vbucket.queue.since(rewind.seqno)))
    forgotten = frozenset(queued - given.keys())
    high = _newest_in_memory(vbucket, rewind.seqno, given)
    high = _newest_tombstone(bucket, vbucket, rewind.seqno, high, forgotten | given.keys())
    purge_seqno = max(vbucket.purge_seqno, rewind.purge_seqno)
    if high < max(1, purge_seqno):  # this is not the state at that seqno
        vbucket.reset(bucket.entropy.uuid48())
    else:
        later = rewind.later_seqno
        receiving = SnapshotRange(0, later) if later else None
        versions = sorted(rewind.versions, key=attrgetter("seqno"))
        vbucket.purge_seqno = purge_seqno
        take_history(vbucket, high, versions, forgotten, rewind.log, receiving)
        vbucket.take_term(rewind.term)
    bucket.flusher.when_durable(done)


def take_history(
    vbucket: VBucket,
    high_seqno: int,
    versions: Sequence[Item],
    keys: frozenset[bytes],
    log: FailoverLog,
    receiving: SnapshotRange | None,
) -> None:
    """Return a vBucket to a state of another history.

    Nothing of it counts as persisted until a commit contains all of it.

    Args:
        vbucket: the vBucket.
        high_seqno: the newest seqno afterwards; not 0.
        versions: versions of documents, by rising seqno, none above `high_seqno`.
        keys: keys whose records the store must delete.
        log: the history from now on.
        receiving: the snapshot of which a part has been received.
    """
    assert vbucket.purge_seqno <= high_seqno
    table = vbucket.table
    for record in [record for record in table.records() if seqno_of(record) > high_seqno]:
        table.remove(key_of(record))
    given = {item.key: pack(item) for item in versions}
    kept = [record for record in vbucket.queue.since(0) if seqno_of(record) <= high_seqno]
    queued = [record for record in kept if key_of(record) not in given]
    for item in versions:
        vbucket.know_cas(item.cas)
        table.put(item.key, given[item.key], table.get(item.key))
    vbucket.queue = WriteQueue()
    vbucket.queue.put_all(sorted([*queued, *given.values()], key=seqno_of), [])
    vbucket.queue.high_seqno = vbucket.high_seqno = high_seqno
    pending = vbucket.forgetting or Forgetting(high_seqno, frozenset())
    vbucket.forgetting = Forgetting(min(high_seqno, pending.above), keys | pending.keys)
    vbucket.persisted_seqno = 0
    vbucket.persisted_snapshot = NOTHING_PERSISTED
    vbucket.failover_log = log
    vbucket.receiving = receiving
    vbucket.locks.clear()
    vbucket.change_header()
    vbucket.interrupt(Interruption.ROLLED_BACK)


def _check(vbucket: VBucket, rewind: Rewind) -> None:
    """Refuse what would leave the vBucket in a state that no active node can have had."""
    seqno, log, versions, later_seqno, *_ = rewind
    if not 0 < seqno <= vbucket.whole_seqno:
        raise InvalidArguments(f"there is no complete snapshot at {seqno} to roll back to")
    if not log:
        raise InvalidArguments("a failover log is never empty")
    if later_seqno and not seqno < later_seqno <= NUMBER_MAX:
        raise InvalidArguments(f"seqno {later_seqno} is not above {seqno}")
    for item in versions:
        if not 0 < item.seqno <= seqno:
            raise InvalidArguments(f"a version at {item.seqno} is not from before {seqno}")
        if max(item.cas, item.rev) > NUMBER_MAX:
            raise InvalidArguments(f"CAS {item.cas}, revision {item.rev}")
        if bool(item.life) != (item.value is None):
            raise InvalidArguments(f"{item.key!r} has a value and is deleted, or neither")
    for what in ({item.seqno for item in versions}, {item.key for item in versions}):
        if len(what) < len(versions):
            raise InvalidArguments("two versions have one seqno or one key")


def _newest_in_memory(vbucket: VBucket, seqno: int, given: Mapping[bytes, Item]) -> int:
    """Return the highest seqno at or below `seqno` that stays in the table or is put into it.

    Raises:
        InvalidArguments: a version has the seqno of another document.
    """
    seqnos = {item.seqno for item in given.values()}
    newest = max(seqnos, default=0)
    for record in vbucket.table.records():
        present = seqno_of(record)
        if present <= seqno and key_of(record) not in given:
            if present in seqnos:
                raise InvalidArguments(f"two documents have seqno {present}")
            newest = max(newest, present)
    return newest


def _newest_tombstone(
    bucket: Bucket, vbucket: VBucket, seqno: int, floor: int, lost: Container[bytes]
) -> int:
    """Return the highest seqno at or below `seqno` that only the disk knows, or `floor`.

    It belongs to a tombstone, because the table has everything except tombstones on disk. Those at
    or below the purge seqno do not count: a commit that is under way may drop them.
    """
    forgetting = vbucket.forgetting
    if forgetting is None and not vbucket.queue.persisted:
        return floor  # the store has a former history
    gone: Container[bytes] = ()
    if forgetting is not None:
        seqno, gone = min(seqno, forgetting.above), forgetting.keys
    stop = max(floor, vbucket.purge_seqno)
    view = bucket.store.view()
    try:
        for item in view.changes_before(vbucket.id, seqno):
            if item.seqno <= stop:
                break
            if not (item.key in lost or item.key in gone):
                return item.seqno
    finally:
        view.close()
    return floor
