"""Failover logs and terms: which histories a vBucket has been through, and whose is the right one.

An entry (uuid, seqno) of a log says "this branch of history begins after seqno". The log is an
immutable tuple, newest first and never empty, so that it can be shared with a commit or a reply
without copying.

If several nodes claim a vBucket as active, the one with the higher term is right. A term counts
promotions: FAILOVER, SET_VBUCKET to active where it was not active, and the hand-over of a
takeover. Nothing else raises it, not even a restart or a crash, and nothing lowers it. It
accompanies the failover log: into the vBucket's header in the same commit, and to replicas.

Rows D11, D12.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from uprmc.errors import StoreCorrupt
from uprmc.model import FailoverEntry, FailoverLog, SnapshotRange, VBucketState


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


# --- terms --------------------------------------------------------------------------------------


#: The local document with the terms of vBuckets that were removed: JSON, by number.
REMOVED_NAME = b"uprmc/removed-terms"


def promoted(term: int, known: int) -> int:
    """Return the term of a vBucket that becomes active, from its own and the highest known one."""
    return max(term, known) + 1


def is_deposed(state: VBucketState, term: int, known: int) -> bool:
    """Tell whether a vBucket is active here although another node was promoted since."""
    return state == VBucketState.ACTIVE and known > term


def shares_history(log: FailoverLog, uuids: Iterable[int]) -> bool:
    """Tell whether a log contains one of these histories.

    A peer that shows a higher term without one does not belong to this data, for example after its
    cluster was wiped, and deposes no node.
    """
    ours = {entry.uuid for entry in log}
    return not ours.isdisjoint(uuids)


def encode_removed(terms: Mapping[int, int]) -> bytes:
    """Return the document that keeps the terms of removed vBuckets."""
    return json.dumps({str(number): term for number, term in terms.items()}).encode()


def decode_removed(document: bytes | None) -> dict[int, int]:
    """Read it back, empty if there is none; raises `StoreCorrupt`."""
    if document is None:
        return {}
    try:
        return {int(number): int(term) for number, term in json.loads(document).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise StoreCorrupt("the stored terms of removed vBuckets cannot be read") from None
