"""The group about registered clients: who holds back which purge.

Source: `reference/systems.md` a.1; contracts of the systems to come, section 2; row X10.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from heapq import nlargest
from operator import itemgetter

from uprmc.engine.purge_rule import shown
from uprmc.engine.tombstone_count import Amount
from uprmc.engine.watermarks.pinning import Client
from uprmc.engine.watermarks.rows import Row
from uprmc.kv.services import StatGroup
from uprmc.server.observed import ObservedNode

#: Clients that metrics name, at most.
CLIENTS_MAX = 100


def watermarks(node: ObservedNode, numbers: list[int]) -> StatGroup:
    """Return how far each vBucket may be purged, and the rows of its clients."""
    bucket = node.bucket
    group: StatGroup = []
    for number in numbers:
        vbucket = bucket.vbuckets[number]
        limit = bucket.purge_limit(vbucket)
        rows = bucket.watermarks.rows(vbucket)
        pinned = bucket.pinned(vbucket)
        tombstones = bucket.flusher.tombstones.of(number)
        name = f"vb_{number}"
        group += [
            (f"{name}:high_seqno", str(vbucket.high_seqno)),
            (f"{name}:purge_seqno", str(vbucket.purge_seqno)),
            (f"{name}:limit", str(limit.seqno)),
            (f"{name}:limited_by", shown(limit.limited_by) or ""),
            (f"{name}:incomplete", str(bucket.watermarks.is_incomplete(number)).lower()),
            (f"{name}:tombstones", str(tombstones.number)),
            (f"{name}:tombstone_bytes", str(tombstones.bytes)),
            (f"{name}:rows", str(len(rows))),
        ]
        for row in rows:
            kept = pinned.amount if pinned is not None and pinned.row.id == row.id else Amount()
            fields = _fields(row, kept)
            group += [(f"{name}:row_{shown(row.id)}:{what}", text) for what, text in fields]
    return group


def pinned_by_client(kept: Mapping[Client, Amount]) -> dict[tuple[str, str], Amount]:
    """Return what clients alone keep, by id and kind as text; of many those that keep most."""
    most = nlargest(CLIENTS_MAX, kept.items(), key=itemgetter(1))
    return {(str(shown(name)), kind.name.lower()): amount for (name, kind), amount in most}


def _fields(row: Row, kept: Amount) -> StatGroup:
    return [
        ("kind", row.kind.name.lower()),
        ("watermark", str(row.watermark)),
        ("floor", "" if row.floor is None else str(row.floor)),
        ("vb_uuid", str(row.vb_uuid)),
        ("reported_at", str(row.reported_at)),
        ("expires_in_s", str(row.lifetime_s)),
        ("expires_at", str(row.reported_at + row.lifetime_s) if row.lifetime_s else ""),
        ("pinned_tombstones", str(kept.number)),
        ("pinned_bytes", str(kept.bytes)),
        ("meta", b64encode(row.meta).decode()),
    ]
