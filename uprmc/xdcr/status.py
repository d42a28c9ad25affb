"""What people and tools see of a link: ``uprmc xdcr list``, ``status`` and ``checkpoints``.

Numbers that can exceed 2^53 are texts, as everywhere in the contract.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from uprmc.xdcr.checkpoint import Record
from uprmc.xdcr.link import Link
from uprmc.xdcr.shipment import shown

#: Documents that the target refuses, in one answer.
SHOWN_REFUSED = 20


def line_of(link: Link) -> dict[str, Any]:
    """Return what a list shows of a link."""
    spec = link.spec
    return {
        "name": spec.name,
        "id": spec.id,
        "to": spec.to,
        "state": link.state,
        "connected": len(link.targets),
        "changes_left": link.progress.changes_left,
        "lag_s": round(link.progress.lag_seconds, 3),
        "rate": link.progress.rate,
        "error": link.error,
    }


def status_of(link: Link, numbers: Iterable[int]) -> dict[str, Any]:
    """Return all that is known of a link, and of some of its vBuckets."""
    sent = set(link.numbers)
    return {
        **line_of(link),
        **link.counters.shown(),
        "filter_key": link.spec.filter_key,
        "settings": link.spec.settings.shown(),
        "tls_ca": link.spec.tls_ca,
        "user": link.spec.user,
        "target_features": link.features,
        "nodes": link.nodes_shown(),
        "last_errors": link.errors.shown(),
        "refused": [
            {"vbucket": number, "key": shown(key), "reason": debt.why}
            for number, key, debt in islice(link.refused, SHOWN_REFUSED)
        ],
        "needs_reconcile": link.needs_reconcile,
        "branches": list(link.branches),
        "vbuckets": [_vbucket(link, number) for number in numbers if number in sent],
    }


def _vbucket(link: Link, number: int) -> dict[str, Any]:
    shipment = link.shipments.get(number)
    records = link.records.get(number, ())
    newest = records[0] if records else Record(0, 0, 0, 0, 0, 0)
    uuid = newest.target_uuid if shipment is None else shipment.target_uuid
    return {
        "vbucket": number,
        "through_seqno": link.through(number),
        "high_seqno": link.high_seqno(number),
        "checkpoint_seqno": newest.seqno,
        "target_vb_uuid": str(uuid),
        "target_seqno": newest.target_seqno if shipment is None else shipment.target_seqno,
        "fast_forwarded_from": link.forwarded_from.get(number),
        "streaming": shipment is not None,
    }


def checkpoints_of(link: Link, numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return the checkpoints that a link has written of some vBuckets, newest first."""
    return [
        {
            "link": link.spec.name,
            "vbucket": number,
            "source_vb_uuid": str(record.uuid),
            "source_seqno": record.seqno,
            "snapshot_start": record.snapshot_start,
            "snapshot_end": record.snapshot_end,
            "target_vb_uuid": str(record.target_uuid),
            "target_seqno": record.target_seqno,
            "created": record.created,
        }
        for number in numbers
        for record in link.records.get(number, ())
        if record.seqno
    ]
