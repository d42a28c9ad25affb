"""The group about registered clients: who holds back which purge.

Source: `reference/systems.md` a.1; contracts of the systems to come, section 2; row X10.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest, nsmallest
from operator import attrgetter, itemgetter

from uprmc.engine.purge_rule import shown
from uprmc.engine.tombstone_count import Amount
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.pinning import Client
from uprmc.engine.watermarks.rows import Row
from uprmc.kv.services import StatRows
from uprmc.server.observed import ObservedNode

#: Clients that metrics name, at most.
CLIENTS_MAX = 100

#: Rows that one page shows, at most.
ROWS_MAX = 256

_Facts = dict[str, str | int | None]


def watermarks(node: ObservedNode, numbers: list[int]) -> StatRows:
    """Yield how far each vBucket may be purged, and the rows of its clients."""
    for number in numbers:
        if number not in node.bucket.vbuckets:  # gone since the last slice
            continue
        vbucket = node.bucket.vbuckets[number]
        rows = node.bucket.watermarks.rows(vbucket)
        about = {**_facts(node, vbucket), "rows": len(rows)}
        yield from ((f"vb_{number}:{what}", _text(value)) for what, value in about.items())
        for row in _rows(node, vbucket, rows):
            begin = f"vb_{number}:row_{row.pop('id')}"
            yield from ((f"{begin}:{what}", _text(value)) for what, value in row.items())


def page(node: ObservedNode, number: int) -> dict[str, object]:
    """Return the same of one vBucket as JSON shows it; of many clients those furthest behind."""
    vbucket = node.bucket.vbuckets[number]
    rows = node.bucket.watermarks.rows(vbucket)
    last = nsmallest(ROWS_MAX, rows, key=attrgetter("effective", "id"))
    about = {"vbucket": number, **_facts(node, vbucket), "row_count": len(rows)}
    return {**about, "rows": list(_rows(node, vbucket, last))}


def _facts(node: ObservedNode, vbucket: VBucket) -> _Facts:
    bucket = node.bucket
    limit = bucket.purge_limit(vbucket)
    tombstones = bucket.flusher.tombstones.of(vbucket.id)
    return {
        "high_seqno": vbucket.high_seqno,
        "purge_seqno": vbucket.purge_seqno,
        "limit": limit.seqno,
        "limited_by": shown(limit.limited_by) or None,
        "incomplete": bucket.watermarks.is_incomplete(vbucket.id),
        "tombstones": tombstones.number,
        "tombstone_bytes": tombstones.bytes,
    }


def _rows(node: ObservedNode, vbucket: VBucket, rows: Iterable[Row]) -> Iterator[_Facts]:
    pinned = node.bucket.limits.pinned(vbucket)
    kept = {} if pinned is None else {pinned.row.id: pinned.amount}
    return (_row(row, kept.get(row.id, Amount())) for row in rows)


def pinned_by_client(kept: Mapping[Client, Amount]) -> dict[tuple[str, str], Amount]:
    """Return what clients alone keep, by id and kind as text; of many those that keep most."""
    most = nlargest(CLIENTS_MAX, kept.items(), key=itemgetter(1))
    return {(str(shown(name)), kind.name.lower()): amount for (name, kind), amount in most}


def _row(row: Row, kept: Amount) -> _Facts:
    return {
        "id": str(shown(row.id)),
        "kind": row.kind.name.lower(),
        "watermark": row.watermark,
        "floor": row.floor,
        "vb_uuid": str(row.vb_uuid),
        "reported_at": row.reported_at,
        "expires_in_s": row.lifetime_s,
        "expires_at": row.reported_at + row.lifetime_s if row.lifetime_s else None,
        "pinned_tombstones": kept.number,
        "pinned_bytes": kept.bytes,
        "meta": b64encode(row.meta).decode(),
    }


def _text(value: object) -> str:
    """Return a value as statistics show it: nothing for ``None``, and small letters for a bool."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
