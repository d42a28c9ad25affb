"""The failover log: which histories a vBucket has been through, newest first.

An entry (uuid, seqno) says "this branch of history begins after seqno". The log is an immutable
tuple, never empty, so that it can be shared with a commit or a reply without copying.

Source: seed 000 "Failover Log"; `reference/upr.md` 3.1; acceptance rows D11, D12.
"""

from __future__ import annotations

from uprmc.model import FailoverEntry, FailoverLog, SnapshotRange


def new_log(uuid: int) -> FailoverLog:
    """Return the log of a new vBucket."""
    return (FailoverEntry(uuid, 0),)


def branched(log: FailoverLog, uuid: int, seqno: int, limit: int) -> FailoverLog:
    """Return `log` with a branch at `seqno` in front.

    Entries that began after `seqno` describe a future that did not happen here and are dropped.
    Beyond `limit` entries, those without any change are dropped first, then the oldest: a node that
    starts uncleanly again and again must not forget the histories of its consumers.
    """
    kept = [FailoverEntry(uuid, seqno), *(entry for entry in log if entry.seqno <= seqno)]
    while len(kept) > limit:
        del kept[_least_needed(kept)]
    return tuple(kept)


def _least_needed(log: list[FailoverEntry]) -> int:
    """Return the index of the oldest branch without a seqno, or of the oldest of all.

    The branch before the newest always stays, because consumers connected until now follow it.
    """
    for place in range(len(log) - 1, 1, -1):
        if log[place].seqno == log[place - 1].seqno:
            return place
    return len(log) - 1


def last_complete_seqno(high_seqno: int, snapshot: SnapshotRange) -> int:
    """Return the end of the last complete snapshot.

    Items of a half-received snapshot are kept, but they are not a consistent state: the branch
    begins where the snapshot began (ruling R11).
    """
    return snapshot.end if high_seqno >= snapshot.end else snapshot.start
