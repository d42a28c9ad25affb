"""Groups about vBuckets: states, details, seqnos, failover logs.

Nothing here may walk through documents or queues: a node with 1,024 vBuckets shows 28,000 numbers,
and nobody else is served meanwhile. The hot path counts nothing for it either, so what was done to
a vBucket is worked out from its seqnos (`_Doings`), the memory of its documents is an estimate, and
what cannot be known is 0.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest, nsmallest
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

from uprmc.engine.bucket import Bucket
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.purge import Client
from uprmc.engine.tombstones import Amount, shown
from uprmc.engine.vbucket import VBucket
from uprmc.engine.warmup import WarmupStart
from uprmc.engine.watermarks.rows import Row
from uprmc.kv.admin import PERSISTED_CHECKPOINT, last_closed
from uprmc.kv.services import StatGroup, StatRows
from uprmc.model import SnapshotRange, VBucketState

if TYPE_CHECKING:
    from uprmc.server.node import Node


# --- vBuckets -------------------------------------------------------------------------------------


#: Couchbase counts these for each vBucket; here they are not known, or cannot happen.
_UNKNOWN = (
    "num_temp_items",
    "ht_cache_size",
    "num_ejects",
    "ops_reject",
    "queue_memory",
    "queue_age",
    "pending_writes",
    "db_data_size",
    "db_file_size",
)

_STATE_NAMES = {state: state.name.lower() for state in VBucketState}


class _Doings(NamedTuple):
    """What was done to a vBucket since the node, or its present history, began."""

    changes: int
    creates: int
    updates: int
    deletes: int


def states(node: Node) -> StatGroup:
    """Return every vBucket's state."""
    return [
        (f"vb_{number}", _STATE_NAMES[vbucket.state])
        for number, vbucket in sorted(node.bucket.vbuckets.items())
    ]


def previous_states(node: Node) -> StatGroup:
    """Return what the states were when the node began."""
    return [
        (f"vb_{number}", _STATE_NAMES[origin.state])
        for number, origin in sorted(node.warmup.origins.items())
    ]


def state_counts(bucket: Bucket) -> dict[str, int]:
    """Return how many vBuckets are in each state."""
    found = [vbucket.state for vbucket in bucket.vbuckets.values()]
    return {name: found.count(state) for state, name in _STATE_NAMES.items()}


def details(node: Node, numbers: list[int]) -> StatGroup:
    """Return what each vBucket holds and what was done to it."""
    bucket, origins = node.bucket, node.warmup.origins
    durable_seqno = bucket.flusher.durable_seqno
    bytes_each = bytes_per_document(bucket)
    group: StatGroup = []
    for number in numbers:
        vbucket = bucket.vbuckets[number]
        queue, done = vbucket.queue, _doings(vbucket, origins.get(number))
        name = f"vb_{number}"
        group += [
            (name, _STATE_NAMES[vbucket.state]),
            (f"{name}:term", str(vbucket.term)),
            (f"{name}:num_items", str(vbucket.item_count)),
            (f"{name}:num_non_resident", str(vbucket.table.absent)),
            (f"{name}:ht_memory", str(vbucket.table.own_bytes())),
            (f"{name}:ht_item_memory", str(int(bytes_each * len(vbucket.table)))),
            (f"{name}:ops_create", str(done.creates)),
            (f"{name}:ops_update", str(done.updates)),
            (f"{name}:ops_delete", str(done.deletes)),
            (f"{name}:queue_size", str(queue.live)),
            (f"{name}:queue_fill", str(done.changes)),
            (f"{name}:queue_drain", str(max(done.changes - queue.live, 0))),
            (f"{name}:queue_views", str(queue.open_views)),
            (f"{name}:queue_held", str(queue.retired)),
            (f"{name}:high_seqno", str(vbucket.high_seqno)),
            (f"{name}:persisted_seqno", str(durable_seqno(vbucket))),
            (f"{name}:purge_seqno", str(vbucket.purge_seqno)),
            (f"{name}:max_deleted_rev", str(vbucket.max_deleted_rev)),
            (f"{name}:uuid", str(vbucket.failover_log[0].uuid)),
        ]
        group += [(f"{name}:{unknown}", "0") for unknown in _UNKNOWN]
    return group


def seqnos(node: Node, numbers: list[int]) -> StatGroup:
    """Return how far each vBucket is.

    What a replica holds of an incomplete snapshot shows in ``abs_high_seqno`` only.
    """
    group: StatGroup = []
    durable_seqno = node.bucket.flusher.durable_seqno
    for number in numbers:
        vbucket = node.bucket.vbuckets[number]
        persisted_seqno = durable_seqno(vbucket)
        persisted = _persisted_snapshot(vbucket, persisted_seqno)
        complete_seqno = last_complete_seqno(vbucket.high_seqno, vbucket.snapshot)
        name = f"vb_{number}"
        group += [
            (f"{name}:high_seqno", str(complete_seqno)),
            (f"{name}:abs_high_seqno", str(vbucket.high_seqno)),
            (f"{name}:last_persisted_seqno", str(persisted_seqno)),
            (f"{name}:last_persisted_snap_start", str(persisted.start)),
            (f"{name}:last_persisted_snap_end", str(persisted.end)),
            (f"{name}:purge_seqno", str(vbucket.purge_seqno)),
            (f"{name}:uuid", str(vbucket.failover_log[0].uuid)),
        ]
    return group


def failovers(node: Node, numbers: list[int]) -> StatGroup:
    """Return the failover logs, newest entry first."""
    group: StatGroup = []
    for number in numbers:
        log = node.bucket.vbuckets[number].failover_log
        group.append((f"vb_{number}:term", str(node.bucket.vbuckets[number].term)))
        group.append((f"vb_{number}:num_entries", str(len(log))))
        for place, entry in enumerate(log):
            group.append((f"vb_{number}:{place}:id", str(entry.uuid)))
            group.append((f"vb_{number}:{place}:seq", str(entry.seqno)))
    return group


def vbucket_page(node: Node, number: int) -> dict[str, object]:
    """Return a vBucket with its branches of history, newest first."""
    one = node.bucket.vbuckets[number]
    return {
        "vbucket": number,
        "state": one.state.name.lower(),
        "term": one.term,
        "high_seqno": one.high_seqno,
        "persisted_seqno": one.persisted_seqno,
        "purge_seqno": one.purge_seqno,
        "items": one.item_count,
        "failover_log": [
            {"vb_uuid": str(branch.uuid), "seqno": branch.seqno} for branch in one.failover_log
        ],
    }


def bytes_per_document(bucket: Bucket) -> float:
    """Return what a document takes on average: the memory of a vBucket's is estimated by it."""
    documents = sum(len(vbucket.table) for vbucket in bucket.vbuckets.values())
    return bucket.account.used / documents if documents else 0.0


def _doings(vbucket: VBucket, origin: WarmupStart | None) -> _Doings:
    """Work out what was done.

    Every change took a seqno, and creates less deletes are what is there.

    A replica is not sent every version; those that it never saw count as updates, and so does a
    deletion that found no document.
    """
    high_seqno = item_count = 0
    if origin is not None and any(entry.uuid == origin.uuid for entry in vbucket.failover_log):
        high_seqno, item_count = origin.high_seqno, origin.item_count
    changes = max(vbucket.high_seqno - high_seqno, 0)
    deletes = vbucket.deletions
    creates = max(vbucket.item_count - item_count + deletes, 0)
    return _Doings(changes, creates, max(changes - creates - deletes, 0), deletes)


def _persisted_snapshot(vbucket: VBucket, persisted_seqno: int) -> SnapshotRange:
    receiving = vbucket.receiving
    if receiving is not None and receiving.start < persisted_seqno < receiving.end:
        return receiving
    return SnapshotRange(persisted_seqno, persisted_seqno)


# --- checkpoints and hash tables ------------------------------------------------------------------
# Groups about structures that we do not have, as tools want to read them all the same.
#
# Checkpoints: a vBucket's write queue is shown as one checkpoint that is always open, with the
# flusher's cursor in it; see `kv.tap_commands` for its id. Hash tables: a vBucket's table is a
# dict, shown as a table with a slot for each entry and never two in one.


def checkpoints(node: Node, numbers: list[int]) -> StatGroup:
    """Return each vBucket's write queue as one open checkpoint."""
    group: StatGroup = []
    for number in numbers:
        vbucket = node.bucket.vbuckets[number]
        queued = str(vbucket.queue.live)
        closed = last_closed(node.tap, number)
        opened = str(closed + 1)
        name = f"vb_{number}"
        group += [
            (f"{name}:state", vbucket.state.name.lower()),
            (f"{name}:open_checkpoint_id", opened),
            (f"{name}:last_closed_checkpoint_id", str(closed)),
            (f"{name}:persisted_checkpoint_id", str(PERSISTED_CHECKPOINT)),
            (f"{name}:num_checkpoints", "1"),
            (f"{name}:num_tap_cursors", str(len(vbucket.watchers))),
            (f"{name}:num_checkpoint_items", queued),
            (f"{name}:num_open_checkpoint_items", queued),
            (f"{name}:num_items_for_persistence", queued),
            (f"{name}:persistence:cursor_checkpoint_id", opened),
            (f"{name}:persistence:cursor_seqno", str(vbucket.persisted_seqno)),
        ]
    return group


def hash_tables(node: Node, numbers: list[int]) -> StatGroup:
    """Return each vBucket's table as a hash table; its memory is an estimate."""
    bytes_each = bytes_per_document(node.bucket)
    group: StatGroup = []
    for number in numbers:
        vbucket = node.bucket.vbuckets[number]
        entries = len(vbucket.table)
        depth, size = str(min(entries, 1)), str(int(bytes_each * entries))
        documents = str(vbucket.item_count)
        name = f"vb_{number}"
        group += [
            (f"{name}:state", vbucket.state.name.lower()),
            (f"{name}:size", str(entries)),
            (f"{name}:locks", "0"),
            (f"{name}:min_depth", depth),
            (f"{name}:max_depth", depth),
            (f"{name}:reported", documents),
            (f"{name}:counted", documents),
            (f"{name}:resized", "0"),
            (f"{name}:mem_size", size),
            (f"{name}:mem_size_counted", size),
        ]
    return group


# --- registered clients ---------------------------------------------------------------------------
# The group about registered clients: who holds back which purge.
#
# Row X10.


#: Clients that metrics name, at most.
CLIENTS_MAX = 100

#: Rows that one page shows, at most.
ROWS_MAX = 256

_Facts = dict[str, str | int | None]


def watermarks(node: Node, numbers: list[int]) -> StatRows:
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


def watermarks_page(node: Node, number: int) -> dict[str, object]:
    """Return the same of one vBucket as JSON shows it; of many clients those furthest behind."""
    vbucket = node.bucket.vbuckets[number]
    rows = node.bucket.watermarks.rows(vbucket)
    last = nsmallest(ROWS_MAX, rows, key=attrgetter("effective", "id"))
    about = {"vbucket": number, **_facts(node, vbucket), "row_count": len(rows)}
    return {**about, "rows": list(_rows(node, vbucket, last))}


def _facts(node: Node, vbucket: VBucket) -> _Facts:
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


def _rows(node: Node, vbucket: VBucket, rows: Iterable[Row]) -> Iterator[_Facts]:
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
