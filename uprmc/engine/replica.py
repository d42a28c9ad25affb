"""A vBucket that is filled by another node: versions come with their seqnos, in snapshots.

Seqnos, CAS, revisions and times are the active's; nothing is resolved and nothing renumbered. While
a snapshot is half received the vBucket says so (`VBucket.receiving`), in memory and on disk:
what it holds then is no state that the active ever had.

Source: UPR reference 3.2, 5; row D51.
"""

from __future__ import annotations

from collections.abc import Sequence

from uprmc.engine.vbucket import VBucket
from uprmc.errors import RangeExceeded
from uprmc.model import FailoverEntry, Item, SnapshotRange


def apply(vbucket: VBucket, item: Item, snapshot: SnapshotRange) -> None:
    """Take a version of the snapshot that was announced last.

    Raises:
        RangeExceeded: its seqno is not above all before, or not inside of the snapshot.
    """
    if not max(vbucket.high_seqno + 1, snapshot.start) <= item.seqno <= snapshot.end:
        raise RangeExceeded(item.seqno)
    vbucket.receiving = snapshot if item.seqno < snapshot.end else None
    vbucket.adopt(item)


def take_history(vbucket: VBucket, log: Sequence[FailoverEntry]) -> None:
    """Take over the active's failover log; it is on disk with the next commit."""
    vbucket.failover_log = tuple(log)
    vbucket.change_header()
