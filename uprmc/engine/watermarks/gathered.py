"""Events of one client in many vBuckets are told as one.

A row of a client expires in all vBuckets at the same time, and a manager sets them together. What
is noted between two calls of `tell` becomes one event for each client and reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from uprmc.engine.tombstone_count import Amount
from uprmc.units import in_ranges

Tell = Callable[[str, dict[str, object]], None]


@dataclass(slots=True)
class _Group:
    """What became of one client: in which vBuckets, its lowest watermark, what it alone kept."""

    watermark: int
    vbuckets: list[int] = field(default_factory=list)
    kept: Amount = field(default_factory=Amount)


class GatheredEvents:
    """See the module docstring."""

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

    def tell(self, on_event: Tell) -> None:
        """Pass on what was noted, and forget it."""
        expired, self._expired = self._expired, {}
        managed, self._managed = self._managed, {}
        for (name, kind, why), group in expired.items():
            fields = {**_where(group.vbuckets), "id": name, "kind": kind}
            more = {"watermark": group.watermark, "why": why}
            kept = {"pinned": group.kept.number, "pinned_bytes": group.kept.bytes}
            on_event("watermark_expired", {**fields, **more, **kept})
        for (name, done), vbuckets in managed.items():
            on_event("watermark_managed", {**_where(vbuckets), "id": name, "done": done})


def _where(vbuckets: list[int]) -> dict[str, object]:
    return {"vb": min(vbuckets), "vbs": in_ranges(vbuckets)}
