"""Which tombstones were dropped lately, so that an outpaced client can be told what it missed.

Memory is bounded: of each vBucket the newest seqnos and the newest keys are remembered, until the
node stops.

Row X08.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from uprmc.engine.tombstones import Record
from uprmc.engine.vbucket import VBucket

KEYS_MAX = 100
_SEQNOS_MAX = 4_096


class Missed(NamedTuple):
    """Deletions that a client has missed."""

    number: int  # how many are known
    exact: bool  # whether that is all of them
    keys: list[bytes]  # the newest of them, at most `KEYS_MAX`


class _OfOne:
    """What was dropped of one vBucket.

    Attributes:
        since: above this seqno nothing is forgotten.
        rising: whether the seqnos rise, as they do unless deletions were kept for their age.
    """

    def __init__(self, since: int) -> None:
        self.since = since
        self.rising = True
        self.seqnos = array("Q")
        self.records: deque[Record] = deque(maxlen=KEYS_MAX)


class Dropped:
    """Remembers which tombstones were dropped."""

    def __init__(self) -> None:
        self._known: dict[int, _OfOne] = {}

    def note(self, vbucket: VBucket, records: Sequence[Record]) -> None:
        """Remember what is being dropped; called before the purge seqno rises."""
        known = self._known.get(vbucket.id)
        if known is None or (known.seqnos and max(known.seqnos) > vbucket.purge_seqno):
            known = self._known[vbucket.id] = _OfOne(vbucket.purge_seqno)  # another history
        known.records.extend(records[-KEYS_MAX:])
        kept = records[-_SEQNOS_MAX:]
        known.rising = known.rising and (not known.seqnos or known.seqnos[-1] < kept[0][1])
        known.seqnos.extend([seqno for _, seqno in kept])
        forgotten = known.seqnos[:-_SEQNOS_MAX]
        forgotten.extend([seqno for _, seqno in records[: -len(kept)][-1:]])
        if forgotten:
            known.since = max(known.since, max(forgotten))
            del known.seqnos[:-_SEQNOS_MAX]

    def between(self, vbucket: VBucket, low: int, high: int) -> Missed:
        """Return the deletions above `low` up to `high` that were dropped."""
        known = self._known.get(vbucket.id) or _OfOne(vbucket.purge_seqno)
        seqnos = known.seqnos
        if known.rising:
            count = max(0, bisect_right(seqnos, high) - bisect_right(seqnos, low))
        else:
            count = sum(low < seqno <= high for seqno in seqnos)
        keys = [key for key, seqno in known.records if low < seqno <= high]
        return Missed(count, known.since <= low, keys)
