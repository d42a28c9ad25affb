"""What has lately become of deletions and rows, for clients and operators.

**Dropped**: which tombstones were dropped, so that an outpaced client can learn what it missed.
Memory is bounded: of each vBucket the newest seqnos and the newest keys are remembered, until the
node stops.

**Events**: a row of a client expires in all vBuckets at the same time, and a manager sets them
together. What is noted between two calls of `tell` becomes one event for each client and reason.
Many clients may expire together, so `tell` leaves a part for the next call.

Row X08.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from uprmc.engine.tombstones import Amount, Record
from uprmc.engine.vbucket import VBucket
from uprmc.units import in_ranges

# --- dropped tombstones -------------------------------------------------------------------------

KEYS_MAX = 100
_SEQNOS_MAX = 4_096


class Missed(NamedTuple):
    """Deletions that a client has missed."""

    number: int  # how many are known
    exact: bool  # whether that is all of them
    keys: list[bytes]  # the newest of them, at most `KEYS_MAX`


class _OfOne:
    """What was dropped of one vBucket."""

    def __init__(self, since: int) -> None:
        self.since = since  # above this seqno nothing is forgotten
        self.rising = True  # the seqnos rise, unless deletions were kept for their age
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


# --- events -------------------------------------------------------------------------------------


#: This many vBuckets are named in one turn: each takes a fraction of a microsecond.
NAMED_AT_ONCE = 4_096

Tell = Callable[[str, dict[str, object]], None]


@dataclass(slots=True)
class _Group:
    """What became of one client: in which vBuckets, its lowest watermark, what it alone kept."""

    watermark: int
    vbuckets: list[int] = field(default_factory=list)
    kept: Amount = field(default_factory=Amount)


class GatheredEvents:
    """Gathers equal events of many vBuckets."""

    def __init__(self) -> None:
        self._expired: dict[tuple[str, str, str], _Group] = {}
        self._managed: dict[tuple[str, str], list[int]] = {}

    def expired(self, vbucket: int, who: tuple[str, str, str], seqno: int, kept: Amount) -> None:
        """Note that a row has expired; `who` is its id, its kind, and why."""
        group = self._expired.setdefault(who, _Group(seqno))
        group.watermark = min(group.watermark, seqno)
        group.vbuckets.append(vbucket)
        group.kept = group.kept.plus(kept)

    def managed(self, vbucket: int, name: str, done: str) -> None:
        """Note what a manager has done."""
        self._managed.setdefault((name, done), []).append(vbucket)

    def tell(self, on_event: Tell, most: int = NAMED_AT_ONCE) -> None:
        """Pass on what was noted, and forget it; the rest is for the next call.

        Args:
            on_event: called with the name of an event and its fields.
            most: about how many vBuckets are named at most.
        """
        while self._expired and most > 0:
            who = next(iter(self._expired))
            group = self._expired.pop(who)
            most -= len(group.vbuckets)
            on_event("watermark_expired", _expiry(*who, group))
        while self._managed and most > 0:
            name, done = next(iter(self._managed))
            vbuckets = self._managed.pop((name, done))
            most -= len(vbuckets)
            on_event("watermark_managed", {**_where(vbuckets), "id": name, "done": done})


def _expiry(name: str, kind: str, why: str, group: _Group) -> dict[str, object]:
    return {
        **_where(group.vbuckets),
        "id": name,
        "kind": kind,
        "watermark": group.watermark,
        "why": why,
        "pinned": group.kept.number,
        "pinned_bytes": group.kept.bytes,
    }


def _where(vbuckets: list[int]) -> dict[str, object]:
    return {"vb": min(vbuckets), "vbs": in_ranges(vbuckets)}
