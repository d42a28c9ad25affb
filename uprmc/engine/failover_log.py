"""The failover log: which histories a vBucket has been through, newest first.

An entry (uuid, seqno) says "this branch of history begins after seqno". The log is an immutable
tuple, never empty, so that it can be shared with a commit or a reply without copying.

Source: seed 000 "Failover Log"; `reference/upr.md` 3.1; acceptance rows D11, D12.
"""

from __future__ import annotations

from uprmc.model import FailoverEntry, SnapshotRange

FailoverLog = tuple[FailoverEntry, ...]


def new_log(uuid: int) -> FailoverLog:
    """Return the log of a vBucket that begins now."""
    return (FailoverEntry(uuid, 0),)


def branched(log: FailoverLog, uuid: int, seqno: int, limit: int) -> FailoverLog:
    """Return `log` with a branch at `seqno` in front.

    Entries that began after `seqno` describe a future that did not happen here and go; beyond
    `limit` entries the oldest go.
    """
    shared = tuple(entry for entry in log if entry.seqno <= seqno)
    return (FailoverEntry(uuid, seqno), *shared)[:limit]


def last_complete_seqno(high_seqno: int, snapshot: SnapshotRange) -> int:
    """Return the end of the last snapshot that is held completely.

    Items of a half-received snapshot are kept, but nobody may trust them as a consistent state:
    the branch is recorded where the snapshot began (ruling R11).
    """
    return snapshot.end if high_seqno >= snapshot.end else snapshot.start
