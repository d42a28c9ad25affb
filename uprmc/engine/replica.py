"""A vBucket that is filled by another node: versions come with their seqnos, in snapshots.

Seqnos, CAS, revisions and times are the active's; nothing is resolved and nothing renumbered. While
a snapshot is half received the vBucket says so (`VBucket.receiving`), in memory and on disk:
what it holds then is no state that the active ever had.

Source: UPR reference 3.2, 5; row D51.
"""

from __future__ import annotations

from collections.abc import Sequence

from uprmc.engine.vbucket import VBucket
from uprmc.errors import InvalidArguments, RangeExceeded
from uprmc.model import FailoverEntry, Item, SnapshotRange

#: As many more can be counted from here as can be taken.
_NUMBER_MAX = 2**63 - 1


def apply(vbucket: VBucket, item: Item, snapshot: SnapshotRange) -> None:
    """Take a version of the snapshot that was announced last.

    Raises:
        RangeExceeded: its seqno is not above all before, or not inside of the snapshot.
        InvalidArguments: no version that a server made has such a CAS, revision or seqno; after
            them our own counters would come to their end.
    """
    if not max(vbucket.high_seqno + 1, snapshot.start) <= item.seqno <= snapshot.end:
        raise RangeExceeded(item.seqno)
    if max(item.cas, item.rev, item.seqno) > _NUMBER_MAX:
        raise InvalidArguments(f"CAS {item.cas}, revision {item.rev}, seqno {item.seqno}")
    whole = _whole_seqno(vbucket, snapshot)
    vbucket.receiving = SnapshotRange(whole, snapshot.end) if item.seqno < snapshot.end else None
    vbucket.adopt(item)


def _whole_seqno(vbucket: VBucket, snapshot: SnapshotRange) -> int:
    """Return up to where the vBucket held a whole state before `snapshot`.

    A marker's own start says less: it may be the snapshot's first item. One that begins above what
    is here says that the snapshot before was whole; otherwise it is the same one, announced again.
    """
    receiving = vbucket.receiving
    if receiving is None or snapshot.start > vbucket.high_seqno:
        return vbucket.high_seqno
    return receiving.start


def take_history(vbucket: VBucket, log: Sequence[FailoverEntry]) -> None:
    """Take over the active's failover log; it is on disk with the next commit."""
    vbucket.failover_log = tuple(log)
    vbucket.change_header()
