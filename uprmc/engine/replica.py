"""A vBucket that another node fills, goes back with, or overwrites.

A vBucket that another node fills: versions arrive with their seqnos, in snapshots.

Seqnos, CAS, revisions and times are those of the active node; no conflict is resolved and nothing
is renumbered. While a snapshot is half received, `VBucket.receiving` records this in memory and on
disk, because the vBucket is then in no state that the active node ever had.

**Going back**: the active node has sent us back to a seqno: it lacks the changes above it here, or
has others. A key whose newest version here is above that seqno is **lost**. The streaming code
(`upr`) asks `target` how far to go back, fetches the active node's versions of the `lost_keys`, and
passes them to `roll_back`:

* a version at or below the seqno was here before it was overwritten: it is restored with its own
  seqno;
* a version above it belongs to the active node's history and arrives with the stream. Until the
  stream has reached the highest of those, the vBucket is in no state that the active node ever had,
  and records this (`VBucket.receiving` from 0);
* a key that the active node does not have is removed.

In memory this happens at once, on disk in one commit, which removes what is above, restores
versions, and writes a header with the new history. After a crash before it, the old state is there
and is sent back again. A lost key that is only queued may have an older version on disk, from
before the seqno. The store deletes it by its key (`VBucket.forgetting`), even if a flush that is
under way writes it once more.

**A foreign master** (TAP) knows CAS and revisions but neither seqnos nor histories. Its versions
overwrite existing ones without conflict resolution, and get the next seqno of this node, in a
history of this node.

- **A replica may have to begin a branch.** This node may give out seqnos in a vBucket that is not
  active only in a history that no other node continues and of which nothing was lost. A history
  that came from a peer does not qualify, nor one from before a crash (changes that were numbered
  but not yet on disk would get the same numbers again for other changes), nor one from before the
  vBucket was active or its state was set. So the first version begins a branch, unless
  `Bucket.numbered` shows that this process has begun one and nothing has happened since. An active
  vBucket has begun its branch by other rules.
- **The end of a snapshot is not known** while it is received, only that more will come. It is
  recorded as one beyond the newest seqno, so that memory and disk show an incomplete snapshot, and
  `VBucket.complete_snapshot` ends it.

Rows D51, P10.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from uprmc.engine.bucket import Bucket
from uprmc.engine.cas_clock import AHEAD_MAX_S
from uprmc.engine.failover_log import branched
from uprmc.engine.flusher import Waiter
from uprmc.engine.vbucket import NOTHING_PERSISTED, Forgetting, Interruption, StoreMode, VBucket
from uprmc.engine.with_meta import REV_MAX, check_room
from uprmc.engine.write_queue import WriteQueue
from uprmc.errors import InvalidArguments, RangeExceeded
from uprmc.model import FailoverEntry, FailoverLog, Item, SnapshotRange, VBucketState
from uprmc.record import key_of, pack, seqno_of

# --- in the source's order ----------------------------------------------------------------------


#: From here, as many more numbers can be counted as can be received.
NUMBER_MAX = 2**63 - 1


def apply(vbucket: VBucket, item: Item, snapshot: SnapshotRange, purge_seqno: int = 0) -> None:
    """Take a version of the snapshot that was announced last; see `apply_all`.

    Raises:
        RangeExceeded: as `apply_all`.
        InvalidArguments: the CAS, revision or seqno is higher than any that a server makes; our own
            counters would overflow after it.
    """
    _check_place(vbucket, item.seqno, item.seqno, snapshot)
    if max(item.cas, item.rev, item.seqno) > NUMBER_MAX:
        raise InvalidArguments(f"CAS {item.cas}, revision {item.rev}, seqno {item.seqno}")
    apply_all(vbucket, [pack(item)], item.cas, snapshot, purge_seqno)


def apply_all(
    vbucket: VBucket,
    records: list[bytes],
    highest_cas: int,
    snapshot: SnapshotRange,
    purge_seqno: int = 0,
) -> None:
    """Take versions of the snapshot that was announced last.

    Args:
        vbucket: a replica, or an active one that is filled on request: an active one is in a state
            of its own at any time, so no snapshot is half received there.
        records: at least one, by rising seqno, with no number above `NUMBER_MAX`; the caller has
            checked.
        highest_cas: the highest CAS among them.
        snapshot: the announced range.
        purge_seqno: deletions up to here may be missing from the snapshot.

    Raises:
        RangeExceeded: the seqnos are not above all earlier ones, or not inside the snapshot.
    """
    last = seqno_of(records[-1])
    _check_place(vbucket, seqno_of(records[0]), last, snapshot)
    receiving = vbucket.receiving
    whole, end = vbucket.high_seqno, snapshot.end
    if receiving is not None and snapshot.start <= receiving.end:
        # The same snapshot, announced again: complete at the first announced end, or later.
        whole, end = receiving.start, max(end, receiving.end)
    half = last < end and vbucket.state != VBucketState.ACTIVE
    vbucket.receiving = SnapshotRange(whole, end) if half else None
    if purge_seqno > vbucket.purge_seqno:
        vbucket.purge_seqno = purge_seqno
    vbucket.adopt_all(records, highest_cas)


def outrank(vbucket: VBucket, rev: int) -> None:
    """Make new documents outrank another node's deletions, including those that it dropped.

    Raises:
        InvalidArguments: the revision is higher than any that a server makes.
    """
    if rev > NUMBER_MAX:
        raise InvalidArguments(f"revision {rev}")
    vbucket.outrank(rev)


def _check_place(vbucket: VBucket, first: int, last: int, snapshot: SnapshotRange) -> None:
    high = vbucket.high_seqno
    if not max(high + 1, snapshot.start) <= first <= last <= snapshot.end:
        raise RangeExceeded(
            f"seqno {first} after {high}, in a snapshot from {snapshot.start} to {snapshot.end}"
        )


def take_history(vbucket: VBucket, log: Sequence[FailoverEntry], term: int = 0) -> None:
    """Take over the active node's failover log and term; the next commit stores them.

    If the history is another one its watchers are interrupted, because they know it by its name. An
    active vBucket keeps its own log: it has given out seqnos in that history and continues to.

    Args:
        vbucket: a replica.
        log: the log of the active node.
        term: the term of that log; 0 if the source knows none: then ours does not change.
    """
    if vbucket.state == VBucketState.ACTIVE:
        return
    vbucket.take_term(term)
    if vbucket.failover_log == tuple(log):
        return
    vbucket.failover_log = tuple(log)
    vbucket.change_header()
    vbucket.interrupt(Interruption.STATE_CHANGED)


# --- going back ---------------------------------------------------------------------------------


class Rewind(NamedTuple):
    """The answers of the active node."""

    seqno: int  # the seqno to go back to, as `target` returned it
    log: FailoverLog  # its complete failover log
    # its newest versions of lost keys that lie at or below `seqno`, with values; tombstones too.
    versions: Sequence[Item]
    later_seqno: int  # the highest seqno of its versions of lost keys that are above, 0 = none
    # its purge seqno, 0 if unknown. It may lack a lost key because it has dropped the deletion,
    # which was at or below `seqno`.
    purge_seqno: int = 0
    term: int = 0  # the term of its log, 0 if it knows none


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
        return_to(vbucket, high, versions, forgotten, rewind.log, receiving)
        vbucket.take_term(rewind.term)
    bucket.flusher.when_durable(done)


def return_to(
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


# --- versions without seqnos --------------------------------------------------------------------


_NANOS = 1_000_000_000


def overwrite(
    bucket: Bucket, vbucket: VBucket, version: Item, *, plain: bool, within_snapshot: bool
) -> Item | None:
    """Store `version` under the next seqno, whatever the present version is.

    A tombstone gets the present time, not the sender's, because purging depends on its age here.

    Args:
        bucket: the bucket of the vBucket.
        vbucket: its state allows this; the caller has checked.
        version: with CAS 0 it gets a new CAS of this node.
        plain: whether CAS and revision shall be those of an ordinary change of this node.
        within_snapshot: whether more must follow before this is a state that the master had;
            ignored for an active vBucket.

    Returns:
        The version as it is stored; ``None`` for a plain deletion of a key that is not here.

    Raises:
        InvalidArguments: the revision is too high, or the CAS too far in the future.
        Locked: a client of this node has locked the document (active vBuckets only).
        TemporaryFailure, OutOfMemory: there is no room.
    """
    now = bucket.clock.now()
    _check_numbers(version, now)
    present = vbucket.table.find(version.key)
    if plain and version.life and (present is None or present.life):
        return None
    size = len(version.key) + len(version.value or b"")
    check_room(bucket.account, size, frees=bool(version.life and present))
    active = vbucket.state == VBucketState.ACTIVE
    if active and vbucket.locks:
        vbucket.check_change(version.key, 0, StoreMode.SET)
    if not active:
        _begin_numbering(bucket, vbucket)
        _open_snapshot(vbucket, within_snapshot=within_snapshot)
    item = Item(
        version.key,
        version.value,
        version.flags,
        int(now) if version.life else version.expiry,
        bucket.account.next_cas() if plain or not version.cas else version.cas,
        vbucket.high_seqno + 1,
        _next_rev(vbucket, present) if plain else version.rev,
        version.datatype,
        version.life,
        version.nru,
    )
    vbucket.adopt(pack(item))
    return item


def begin_again(bucket: Bucket, vbucket: VBucket) -> None:
    """Empty a vBucket and give it a new history; its consumers have to start over too."""
    vbucket.reset(bucket.entropy.uuid48())
    _remember(bucket, vbucket)


def flush_all(bucket: Bucket) -> None:
    """Empty every vBucket now; the disk follows."""
    bucket.flush(bucket.steady.now(), _no_matter)
    for vbucket in bucket.vbuckets.values():
        _remember(bucket, vbucket)


def _no_matter(_durable: bool) -> None:
    """Do nothing: nothing waits, and the flusher retries on its own."""


def _check_numbers(version: Item, now: float) -> None:
    if version.cas > int(now + AHEAD_MAX_S) * _NANOS:
        raise InvalidArguments(f"the CAS {version.cas} is far in the future")
    if version.rev > REV_MAX:
        raise InvalidArguments(f"the revision {version.rev} is too high")


def _next_rev(vbucket: VBucket, present: Item | None) -> int:
    return (vbucket.max_deleted_rev if present is None else present.rev) + 1


def _begin_numbering(bucket: Bucket, vbucket: VBucket) -> None:
    if bucket.numbered.get(vbucket.id) == vbucket.failover_log[0].uuid:
        return
    vbucket.failover_log = branched(
        vbucket.failover_log,
        bucket.entropy.uuid48(),
        vbucket.whole_seqno,
        bucket.settings.engine.max_failover_entries,
    )
    vbucket.purge_seqno = min(vbucket.purge_seqno, vbucket.high_seqno)
    bucket.leave_lost_cas_behind(vbucket)
    _remember(bucket, vbucket)
    vbucket.change_header()
    vbucket.interrupt(Interruption.STATE_CHANGED)


def _remember(bucket: Bucket, vbucket: VBucket) -> None:
    bucket.numbered[vbucket.id] = vbucket.failover_log[0].uuid


def _open_snapshot(vbucket: VBucket, *, within_snapshot: bool) -> None:
    """Open a snapshot if the next version belongs to one that continues after it.

    A snapshot that was already open stays open: one more version does not complete it.
    """
    if vbucket.receiving is not None or within_snapshot:
        vbucket.receiving = SnapshotRange(vbucket.whole_seqno, vbucket.high_seqno + 2)
