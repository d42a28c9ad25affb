"""A vBucket that is filled by another node: versions come with their seqnos, in snapshots.

Seqnos, CAS, revisions and times are the active's; nothing is resolved and nothing renumbered. While
a snapshot is half received the vBucket says so (`VBucket.receiving`), in memory and on disk:
what it holds then is no state that the active ever had.

Source: UPR reference 3.2, 5; row D51.
"""

from __future__ import annotations

from collections.abc import Sequence

from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.errors import InvalidArguments, RangeExceeded
from uprmc.model import FailoverEntry, Item, SnapshotRange, VBucketState

#: As many more can be counted from here as can be taken.
NUMBER_MAX = 2**63 - 1


def apply(vbucket: VBucket, item: Item, snapshot: SnapshotRange, purge_seqno: int = 0) -> None:
    """Take a version of the snapshot that was announced last; see `apply_all`.

    Raises:
        RangeExceeded: as `apply_all`.
        InvalidArguments: no version that a server made has such a CAS, revision or seqno; after
            them our own counters would come to their end.
    """
    _check_place(vbucket, item.seqno, item.seqno, snapshot)
    if max(item.cas, item.rev, item.seqno) > NUMBER_MAX:
        raise InvalidArguments(f"CAS {item.cas}, revision {item.rev}, seqno {item.seqno}")
    apply_all(vbucket, [item], snapshot, purge_seqno)


def apply_all(
    vbucket: VBucket, items: list[Item], snapshot: SnapshotRange, purge_seqno: int = 0
) -> None:
    """Take versions of the snapshot that was announced last.

    Args:
        vbucket: a replica, or an active one that is being filled by order: what that holds is a
            state of its own at any time, so nothing is half received there.
        items: at least one, by rising seqno, with no number above `NUMBER_MAX`; the caller has
            looked.
        snapshot: as announced.
        purge_seqno: deletions up to here may be missing from the snapshot.

    Raises:
        RangeExceeded: the seqnos are not above all before, or not inside of the snapshot.
    """
    last = items[-1].seqno
    _check_place(vbucket, items[0].seqno, last, snapshot)
    receiving = vbucket.receiving
    whole, end = vbucket.high_seqno, snapshot.end
    if receiving is not None and snapshot.start <= receiving.end:
        # The same one, announced again. It is whole where the first announcement said, or later.
        whole, end = receiving.start, max(end, receiving.end)
    half = last < end and vbucket.state != VBucketState.ACTIVE
    vbucket.receiving = SnapshotRange(whole, end) if half else None
    if purge_seqno > vbucket.purge_seqno:
        vbucket.purge_seqno = purge_seqno
    vbucket.adopt_all(items)


def outrank(vbucket: VBucket, rev: int) -> None:
    """Have documents that begin here outrank another node's deletions, those it dropped included.

    Raises:
        InvalidArguments: no version that a server made has such a revision.
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
    """Take over the active's failover log and its term; they are on disk with the next commit.

    Who follows this vBucket is told when that is another one: they know what comes by its name.
    An active keeps its own: it has given out seqnos under that name and goes on doing so.

    Args:
        vbucket: a replica.
        log: the active's.
        term: the log's; 0 where the source knows none, then ours stays as it is.
    """
    if vbucket.state == VBucketState.ACTIVE:
        return
    vbucket.take_term(term)
    if vbucket.failover_log == tuple(log):
        return
    vbucket.failover_log = tuple(log)
    vbucket.change_header()
    vbucket.interrupt(Interruption.STATE_CHANGED)
