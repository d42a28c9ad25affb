"""What becomes of an index that an operator may want to look up, from its store's counters.

The updater's thread counts; whoever looks now and then in another one learns what has happened in
between. So there is at most one event of a kind for each look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from uprmc.index.store import IndexStore

#: Tells that something happened: its name and fields, as `server.log_events` explains them.
OnEvent = Callable[[str, dict[str, object]], None]


class Counts(NamedTuple):
    """Where the counters of a store stand; see `IndexStore`."""

    building: bool
    rollbacks: Mapping[str, int]
    compactions: int


def counts_of(store: IndexStore) -> Counts:
    """Return where they stand now; any thread may call it."""
    return Counts(store.is_building, dict(store.rollbacks), store.compacting.done)


def tell_news(before: Counts, store: IndexStore, on_event: OnEvent, design: str) -> Counts:
    """Tell what has happened since the counters stood so; return where they stand now."""
    now = counts_of(store)
    if before.building and not now.building:
        on_event("index_built", {"design": design, "documents": store.view.trees.ids.count})
    for kind, count in now.rollbacks.items():
        more = count - before.rollbacks.get(kind, 0)
        if more:
            on_event("index_rolled_back", {"design": design, "kind": kind, "count": more})
    if now.compactions > before.compactions:
        on_event("index_compacted", {"design": design, "disk_bytes": store.files.disk_bytes})
    return now
