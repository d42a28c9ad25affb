"""A vBucket that another node fills: versions arrive with their seqnos, in snapshots.

Seqnos, CAS, revisions and times are those of the active node; no conflict is resolved and nothing
is renumbered. While a snapshot is half received, `VBucket.receiving` records this in memory and on
disk, because the vBucket is then in no state that the active node ever had.

Source: UPR reference 3.2, 5; row D51.
"""

from __future__ import annotations

from collections.abc import Sequence

from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.errors import InvalidArguments, RangeExceeded
from uprmc.model import FailoverEntry, Item, SnapshotRange, VBucketState
from uprmc.record import pack, seqno_of

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
