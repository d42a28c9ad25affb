"""The group about who has the memory; see `memory_holders`."""

from __future__ import annotations

from uprmc.kv.services import StatGroup
from uprmc.server.memory_holders import holders
from uprmc.server.observed import ObservedNode


def memory_holders(node: ObservedNode) -> StatGroup:
    """Return every holder with its bytes and the number of its things."""
    rows: StatGroup = []
    for holder in holders(node):
        rows += [
            (f"{holder.name}:bytes", str(holder.bytes)),
            (f"{holder.name}:number", str(holder.number)),
            (f"{holder.name}:what", holder.what),
        ]
    return rows
