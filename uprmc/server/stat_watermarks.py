"""The group about registered clients: who holds back which purge.

Source: `reference/systems.md` a.1; contracts of the systems to come, section 2; row X10.
"""

from __future__ import annotations

from base64 import b64encode

from uprmc.engine.purge_rule import shown
from uprmc.engine.watermarks.rows import Row
from uprmc.kv.services import StatGroup
from uprmc.server.observed import ObservedNode


def watermarks(node: ObservedNode, numbers: list[int]) -> StatGroup:
    """Return how far each vBucket may be purged, and the rows of its clients."""
    bucket = node.bucket
    group: StatGroup = []
    for number in numbers:
        vbucket = bucket.vbuckets[number]
        limit = bucket.purge_limit(vbucket)
        rows = bucket.watermarks.rows(vbucket)
        name = f"vb_{number}"
        group += [
            (f"{name}:high_seqno", str(vbucket.high_seqno)),
            (f"{name}:purge_seqno", str(vbucket.purge_seqno)),
            (f"{name}:limit", str(limit.seqno)),
            (f"{name}:limited_by", shown(limit.limited_by) or ""),
            (f"{name}:incomplete", str(bucket.watermarks.is_incomplete(number)).lower()),
            (f"{name}:rows", str(len(rows))),
        ]
        for row in rows:
            group += [(f"{name}:row_{shown(row.id)}:{what}", text) for what, text in _fields(row)]
    return group


def _fields(row: Row) -> StatGroup:
    return [
        ("kind", row.kind.name.lower()),
        ("watermark", str(row.watermark)),
        ("floor", "" if row.floor is None else str(row.floor)),
        ("vb_uuid", str(row.vb_uuid)),
        ("reported_at", str(row.reported_at)),
        ("expires_in_s", str(row.lifetime_s)),
        ("expires_at", str(row.reported_at + row.lifetime_s) if row.lifetime_s else ""),
        ("meta", b64encode(row.meta).decode()),
    ]
