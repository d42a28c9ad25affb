"""Events of one client in many vBuckets are told as one.

A row of a client expires in all vBuckets at the same time, and a manager sets them together. What
is noted between two calls of `tell` becomes one event for each client and reason. Many clients may
expire together, so `tell` leaves a part for the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from uprmc.engine.tombstones import Amount
from uprmc.units import in_ranges

#: This many vBuckets are named in one turn: each takes a fraction of a microsecond.
TOLD_AT_ONCE = 4_096

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

    def tell(self, on_event: Tell, most: int = TOLD_AT_ONCE) -> None:
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
