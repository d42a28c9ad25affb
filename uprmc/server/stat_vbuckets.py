"""Groups about vBuckets: states, details, seqnos, failover logs.

Nothing here may walk through documents or queues: a node with 1,024 vBuckets shows 28,000 numbers,
and nobody else is served meanwhile. The hot path counts nothing for it either, so what was done to
a vBucket is worked out from its seqnos (`_Doings`), the memory of its documents is an estimate, and
what cannot be known is 0.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.engine.bucket import Bucket
from uprmc.engine.failover_log import last_complete_seqno
from uprmc.engine.vbucket import VBucket
from uprmc.engine.warmup import Origin
from uprmc.kv.services import StatGroup
from uprmc.model import SnapshotRange, VBucketState
from uprmc.server.observed import ObservedNode

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


def states(node: ObservedNode) -> StatGroup:
    """Return every vBucket's state."""
    return [
        (f"vb_{number}", _STATE_NAMES[vbucket.state])
        for number, vbucket in sorted(node.bucket.vbuckets.items())
    ]


def previous_states(node: ObservedNode) -> StatGroup:
    """Return what the states were when the node began."""
    return [
        (f"vb_{number}", _STATE_NAMES[origin.state])
        for number, origin in sorted(node.warmup.origins.items())
    ]


def state_counts(bucket: Bucket) -> dict[str, int]:
    """Return how many vBuckets are in each state."""
    found = [vbucket.state for vbucket in bucket.vbuckets.values()]
    return {name: found.count(state) for state, name in _STATE_NAMES.items()}


def details(node: ObservedNode, numbers: list[int]) -> StatGroup:
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
            (f"{name}:queue_held", str(queue.held)),
            (f"{name}:high_seqno", str(vbucket.high_seqno)),
            (f"{name}:persisted_seqno", str(durable_seqno(vbucket))),
            (f"{name}:purge_seqno", str(vbucket.purge_seqno)),
            (f"{name}:max_deleted_rev", str(vbucket.max_deleted_rev)),
            (f"{name}:uuid", str(vbucket.failover_log[0].uuid)),
        ]
        group += [(f"{name}:{unknown}", "0") for unknown in _UNKNOWN]
    return group


def seqnos(node: ObservedNode, numbers: list[int]) -> StatGroup:
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


def failovers(node: ObservedNode, numbers: list[int]) -> StatGroup:
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


def page(node: ObservedNode, number: int) -> dict[str, object]:
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


def _doings(vbucket: VBucket, origin: Origin | None) -> _Doings:
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
