"""Terms: of several nodes that say "active" about a vBucket, the one with the higher term is right.

A term counts promotions: FAILOVER, SET_VBUCKET to active where it was not active, the hand-over of
a takeover. Nothing else raises it, neither a restart nor a crash, and nothing lowers it. It goes
where the failover log goes: into the vBucket's header, in the same commit, and to replicas.

Source: contracts of the systems to come, section 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from uprmc.engine.failover_log import FailoverLog
from uprmc.model import VBucketState


def promoted(term: int, known: int) -> int:
    """Return the term of a vBucket that becomes active, from its own and the highest known one."""
    return max(term, known) + 1


def is_deposed(state: VBucketState, term: int, known: int) -> bool:
    """Tell whether a vBucket is active here although somebody else was promoted since."""
    return state == VBucketState.ACTIVE and known > term


def shares_history(log: FailoverLog, uuids: Iterable[int]) -> bool:
    """Tell whether a log holds one of these histories.

    Who shows a higher term without one is a stranger to this data, say of a cluster that was wiped,
    and deposes nobody.
    """
    ours = {entry.uuid for entry in log}
    return not ours.isdisjoint(uuids)
