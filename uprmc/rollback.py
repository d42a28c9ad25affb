"""How far a consumer must fall back before it may stream: the rollback decision.

A consumer names its place: the last seqno it holds, the snapshot that seqno lies in, and the branch
of history it followed. The vBucket knows its own branches. What both went through together is
shared; a consumer may go on only from a state that lies inside that.

A snapshot counts as one piece. Inside a half-received one the consumer has not been sent the older
versions of keys that come again before its end, so it may go on only if the *end* is shared too;
otherwise it falls back to where the snapshot began.

Everything here is pure. The caller applies the flags of a request: under `Rule.CURRENT` after
`rollback_point`, under `Rule.V3_0_0` before `check_range`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from uprmc.errors import InvalidArguments, RangeExceeded
from uprmc.model import SEQNO_MAX, SEQNO_NONE, FailoverEntry, FailoverLog, Origin, SnapshotRange


class Rule(Enum):
    """Whose decision: setting ``upr.rollback_rule``.

    `V3_0_0` is the server of July 2014: it knows no purge check and no strict uuid, and sends a
    consumer that holds a whole snapshot back to that snapshot's start.
    """

    CURRENT = "current"
    V3_0_0 = "3.0.0"


class ConsumerPosition(NamedTuple):
    """What a consumer says it holds.

    Attributes:
        start_seqno: last seqno it has; 0 asks for everything.
        snapshot: the snapshot that seqno lies in; ``(start, start)`` when it is whole.
        uuid: the branch it followed last; 0 = none.
        known_versions: its whole failover log, newest first, beginning with `uuid` (extension
            ``uprmc_versions``); empty when it names only `uuid`.
    """

    start_seqno: int
    snapshot: SnapshotRange
    uuid: int
    known_versions: Sequence[FailoverEntry] = ()


class VBucketHoldings(NamedTuple):
    """What the vBucket holds.

    Attributes:
        failover_log: newest first, never empty.
        high_seqno: highest seqno it has.
        purge_seqno: highest seqno of a tombstone that was dropped.
    """

    failover_log: FailoverLog
    high_seqno: int
    purge_seqno: int


def check_range(position: ConsumerPosition, end_seqno: int) -> None:
    """Refuse seqnos that contradict each other.

    Raises:
        RangeExceeded: the start lies beyond the end of the stream or outside its own snapshot.
    """
    start, snapshot = position.start_seqno, position.snapshot
    if start > end_seqno or not snapshot.start <= start <= snapshot.end:
        raise RangeExceeded(f"start {start}, end {end_seqno}, snapshot {snapshot}")


def check_versions(position: ConsumerPosition, limit: int) -> None:
    """Refuse a list of known versions that is no failover log or has more than `limit` entries.

    Raises:
        InvalidArguments: too long; not beginning with the request's uuid; a uuid that is 0 or
            comes twice; seqnos that rise from newer to older.
    """
    versions = position.known_versions
    if not versions:
        return
    if len(versions) > limit:
        raise InvalidArguments(f"{len(versions)} known versions, at most {limit} are read")
    uuids = {version.uuid for version in versions}
    if versions[0].uuid != position.uuid or 0 in uuids or len(uuids) < len(versions):
        raise InvalidArguments("known versions must begin with the uuid and not repeat one")
    seqnos = [version.seqno for version in versions]
    if seqnos != sorted(seqnos, reverse=True):
        raise InvalidArguments("known versions must be newest first")


def check_reach(start_seqno: int, end_seqno: int, high_seqno: int) -> None:
    """Refuse a start that lies beyond what there is, once flags have moved the end.

    Raises:
        RangeExceeded: the start is above the high seqno or above the end.
    """
    if start_seqno > high_seqno or start_seqno > end_seqno:
        raise RangeExceeded(f"start {start_seqno}, end {end_seqno}, high seqno {high_seqno}")


def shared_until(
    ours: Sequence[FailoverEntry],
    our_high: int,
    theirs: Sequence[FailoverEntry],
    their_high: int,
) -> int | None:
    """Return the seqno up to which two histories are the same; ``None`` if nothing says they are.

    The newest branch that both went through decides. Each side followed it until its own next
    branch began, or to its high seqno; they were together until the first of the two left. Older
    common branches end where this one begins, so they cannot give more. Swapping the sides gives
    the same answer: a consumer that was sent the failover log finds what the server would.

    Args:
        ours: failover log of one side, newest first.
        our_high: last seqno of that side.
        theirs: failover log of the other side.
        their_high: last seqno of that side.
    """
    our_ends = ends_of_branches(ours, our_high)
    their_ends = ends_of_branches(theirs, their_high)
    for uuid, their_end in their_ends.items():
        our_end = our_ends.get(uuid)
        if our_end is not None:
            return min(our_end, their_end)
    return None


def rollback_point(
    position: ConsumerPosition,
    held: VBucketHoldings,
    *,
    strict_uuid: bool = False,
    ignore_purged: bool = False,
    rule: Rule = Rule.CURRENT,
) -> int | None:
    """Return the seqno a consumer must fall back to first, ``None`` if it may go on.

    The consumer drops what it holds above its newest own snapshot boundary at or below that seqno,
    and asks again; 0 means start over. Every answer is below the start that was asked for, or 0,
    so asking again ends.

    Args:
        position: what passed `check_range` and, with known versions, `check_versions`.
        held: the vBucket's side.
        strict_uuid: flag 0x20: a uuid must be known even when the start is 0.
        ignore_purged: flag 0x80: the consumer does not mind missing dropped tombstones.
        rule: which server's decision.
    """
    start, current = position.start_seqno, rule is Rule.CURRENT
    if start == SEQNO_NONE and not (current and strict_uuid and position.uuid):
        return None
    if current and SEQNO_NONE < start < held.purge_seqno and not ignore_purged:
        return SEQNO_NONE
    # What the consumer follows last it may have been promised beyond what it holds.
    known = position.known_versions or (FailoverEntry(position.uuid, 0),)
    upper = shared_until(held.failover_log, held.high_seqno, known, SEQNO_MAX)
    if upper is None:
        return SEQNO_NONE
    return _newest_boundary(start, position.snapshot, upper, current)


def _newest_boundary(start: int, snapshot: SnapshotRange, upper: int, current: bool) -> int | None:
    begin, end = snapshot
    if start == begin:
        end = start  # announced, nothing of it received
    if end <= upper:
        return None
    if current and start == end:
        begin = start  # received to its end: the consumer may hold older boundaries inside
    return min(begin, upper)


def ends_of_branches(log: Sequence[FailoverEntry], high_seqno: int) -> dict[int, int]:
    """Return the last seqno that belongs to each branch or one before it, newest first."""
    ends = {}
    end = high_seqno
    for uuid, seqno in log:
        ends[uuid] = end
        end = seqno
    return ends


def history_of(log: Sequence[tuple[int, int]], seqno: int) -> int:
    """Return the uuid of the history in which a seqno was given, 0 = it is the beginning.

    A log keeps a limited number of branches. What was written before all of them counts as written
    in the oldest one, and that of a branch that was dropped as written in the one before it: all
    copies of the vBucket have the same log, and so come to the same answer. A branch that begins
    right at the seqno names nothing that was written then, and may be unknown to a node that knows
    the older one.

    Args:
        log: (vb_uuid, seqno after which the branch begins), newest first; an empty one tells none.
        seqno: of a version, or of a place in the stream.
    """
    if not (seqno and log):
        return 0
    return next((uuid for uuid, begin in log if begin < seqno), log[-1][0])


def origin_here(log: Sequence[tuple[int, int]], seqno: int) -> Origin:
    """Return the origin of a version that was first accepted in the vBucket with this log."""
    return Origin(history_of(log, seqno), seqno)
