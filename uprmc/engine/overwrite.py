"""A vBucket that a foreign master fills: it sends versions, and this node numbers them.

Such a master knows CAS and revisions but neither seqnos nor histories. Its versions overwrite
existing ones without conflict resolution, and get the next seqno of this node, in a history of this
node. `replica` is for masters that number their versions, `with_meta` for writers that compete.

Note:

- **A replica may have to begin a branch.** This node may give out seqnos in a vBucket that is not
active only in a history that no other node continues and of which nothing was lost. A history that
came from a peer does not qualify, nor one from before a crash (changes that were numbered but not
yet on disk would get the same numbers again for other changes), nor one from before the vBucket was
active or its state was set. So the first version begins a branch, unless `Bucket.numbered` shows
that this process has begun one and nothing has happened since. An active vBucket has begun its
branch by other rules.
- **The end of a snapshot is not known** while it is received, only that more will come. It is
recorded as one beyond the newest seqno, so that memory and disk show an incomplete snapshot, and
`VBucket.complete_snapshot` ends it.

Source: TAP reference, sections 9 and 11; design, "history" (D11, D53).
"""

from __future__ import annotations

from uprmc.engine.bucket import Bucket
from uprmc.engine.cas_clock import AHEAD_MAX_S
from uprmc.engine.failover_log import branched
from uprmc.engine.vbucket import Interruption, StoreMode, VBucket
from uprmc.engine.with_meta import REV_MAX, check_room
from uprmc.errors import InvalidArguments
from uprmc.model import Item, SnapshotRange, VBucketState
from uprmc.record import pack

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
    present = vbucket.metadata(version.key)
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


def begin_anew(bucket: Bucket, vbucket: VBucket) -> None:
    """Empty a vBucket and give it a new history; its consumers have to start over too."""
    vbucket.reset(bucket.entropy.uuid48())
    _remember(bucket, vbucket)


def flush_all(bucket: Bucket) -> None:
    """Empty every vBucket now; the disk follows."""
    bucket.flush(bucket.clock.now(), _no_matter)
    for vbucket in bucket.vbuckets.values():
        _remember(bucket, vbucket)


def outrank(vbucket: VBucket, rev: int) -> None:
    """Make new documents outrank deletions of up to this revision at the master.

    Raises:
        InvalidArguments: the revision is too high.
    """
    if rev > REV_MAX:
        raise InvalidArguments(f"the revision {rev} is too high")
    vbucket.outrank(rev)


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
