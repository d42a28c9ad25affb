"""A vBucket that a foreign master fills: it imposes versions, and this node numbers them.

Such a master knows CAS and revisions but neither seqnos nor histories. So its versions overwrite
what is here without a look at conflicts, and get the next seqno of this node, in a history of this
node. `replica` is for masters that number by themselves, `with_meta` for writers that compete.

What surprises:

- **A replica may have to begin a branch.** Seqnos that are given out here, in a vBucket that is not
  active, are safe to give out only under a name of a history that nobody else continues and of
  which nothing was lost. A name that came from a peer is not, nor one from before a crash (what was
  numbered but not yet on disk would be numbered again, as something else), nor one from before the
  vBucket was active or somebody set its state. So the first version begins a branch, unless
  `Bucket.numbered` says that this process has begun one and nothing has happened since. An active
  vBucket has had its branch by other rules.
- **The end of a snapshot is not known** while it is received, only that there is more to come. It
  is written down as one beyond the newest seqno, so that memory and disk show a snapshot that is
  not whole, and `VBucket.complete_snapshot` ends it.

Source: TAP reference, sections 9 and 11; design, "history" (D11, D53).
"""

from __future__ import annotations

from uprmc.engine.bucket import Bucket
from uprmc.engine.failover_log import branched
from uprmc.engine.vbucket import Interruption, StoreMode, VBucket
from uprmc.engine.with_meta import CAS_AHEAD_MAX_S, REV_MAX, check_room
from uprmc.errors import InvalidArguments
from uprmc.model import Item, SnapshotRange, VBucketState

_NANOS = 1_000_000_000


def overwrite(
    bucket: Bucket, vbucket: VBucket, version: Item, *, plain: bool, within_snapshot: bool
) -> Item | None:
    """Take `version`, whose seqno is still to be given, whatever is here.

    A tombstone is dated now whatever its sender wrote: purging asks how long it has been here.

    Args:
        bucket: what the vBucket is part of.
        vbucket: its state allows it; the caller has looked.
        version: with CAS 0 it gets one of this node.
        plain: whether CAS and revision are to be those of an ordinary change of this node.
        within_snapshot: whether more has to come until this is a state that the master had; without
            meaning for an active vBucket.

    Returns:
        The version as it is stored; ``None`` for a plain deletion of what is not here.

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
    check_room(bucket.account, version, present)
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
    vbucket.adopt(item)
    return item


def begin_anew(bucket: Bucket, vbucket: VBucket) -> None:
    """Empty a vBucket, under a history of its own; who follows it has to begin anew, too."""
    vbucket.reset(bucket.entropy.uuid48())
    _remember(bucket, vbucket)


def flush_all(bucket: Bucket) -> None:
    """Empty every vBucket now; the disk follows."""
    bucket.flush(bucket.clock.now(), _no_matter)
    for vbucket in bucket.vbuckets.values():
        _remember(bucket, vbucket)


def outrank(vbucket: VBucket, rev: int) -> None:
    """Have new documents outrank deletions of up to this revision, which the master has had.

    Raises:
        InvalidArguments: the revision is too high.
    """
    if rev > REV_MAX:
        raise InvalidArguments(f"the revision {rev} is too high")
    vbucket.outrank(rev)


def _no_matter(_durable: bool) -> None:
    """Stand in where nobody waits: the flusher tries again by itself."""


def _check_numbers(version: Item, now: float) -> None:
    if version.cas > int(now + CAS_AHEAD_MAX_S) * _NANOS:
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
    """Say that the next version is one of a snapshot with more to come, if it is one.

    What was left open by somebody else stays open: a version more does not make it whole.
    """
    if vbucket.receiving is not None or within_snapshot:
        vbucket.receiving = SnapshotRange(vbucket.whole_seqno, vbucket.high_seqno + 2)
