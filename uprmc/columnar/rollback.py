"""How far a reader must go back when history branched: the node's rule, on the driver's side.

A node refuses a stream whose beginning is not in its history. The driver of a stream or of a backup
asks for the failover logs first and decides by the same rule (`rollback_point`), so that nothing is
planned that would be refused. The node's answer N is not yet where to go on: what a reader holds is
a state the node ever had only at the end of a snapshot that was read completely. Therefore it goes
back to the newest such boundary at or below N (`newest_boundary`), which may be the beginning.

Source: ``docs/streams.md``, rollback (the table there is this module's test vector); acceptance
rows D12 to D14, P10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: A failover log: (vb_uuid, seqno after which it begins), newest first.
LogEntries = Sequence[tuple[int, int]]


def rollback_point(
    log: LogEntries,
    high_seqno: int,
    purge_seqno: int,
    start: int,
    snap_start: int,
    snap_end: int,
    uuid: int,
) -> int | None:
    """Return the seqno up to which history is shared at most; ``None`` = go on at `start`.

    Args:
        log: the vBucket's failover log, newest first.
        high_seqno: its newest seqno.
        purge_seqno: highest seqno of a deletion that was dropped for good.
        start: the last seqno that the reader has; 0 is never refused.
        snap_start: where the snapshot that `start` lies in begins; `start` if it is complete.
        snap_end: its end; `start` if it is complete.
        uuid: the history that the reader followed last.

    Raises:
        ValueError: `start` is not inside of its snapshot.
    """
    if not snap_start <= start <= snap_end:
        raise ValueError(f"start {start} is not inside of {snap_start}..{snap_end}")
    if not start:
        return None
    upper = shared_until(log, high_seqno, uuid)
    if upper is None or start < purge_seqno:
        return 0
    if start == snap_start:
        snap_end = start  # announced, nothing of it was received
    if snap_end <= upper:
        return None
    if start == snap_end:
        snap_start = start  # received to its end
    return min(snap_start, upper)


def shared_until(log: LogEntries, high_seqno: int, uuid: int) -> int | None:
    """Return the last seqno that belongs to history `uuid` or to one before it, if it is known."""
    end = high_seqno
    for entry, seqno in log:
        if entry == uuid:
            return end
        end = seqno
    return None


def newest_boundary(point: int, boundaries: Iterable[int]) -> int:
    """Return the newest of a reader's complete states that lies in shared history; 0 = none.

    Args:
        point: what `rollback_point` or a node's refusal says.
        boundaries: ends of snapshots that were read completely, in any order.
    """
    return max((each for each in boundaries if each <= point), default=0)


def history_of(log: LogEntries, seqno: int) -> int:
    """Return the uuid of the history in which `seqno` was given.

    One that begins right at `seqno` names nothing that a reader holds, and may be unknown to a node
    that knows the older one. At the beginning every history will do: the newest is returned.
    """
    below = (uuid for uuid, begin in log if begin < seqno)
    return next(below, log[0][0])
