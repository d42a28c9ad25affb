"""What the memory of a node is used for, holder by holder: the answer to "why is memory full".

Documents are what the quota counts; their parts are estimated from a sample. Everything else is
not in the quota and is estimated by what one of its kind takes. The sum of all holders is the
anonymous memory of the process, because what no holder explains is one, too.

Costs less than a millisecond with 1,024 vBuckets; streams are looked at by `consumer_lag`.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from uprmc.core.fronts import SEGMENT_BITS
from uprmc.engine.bucket import Bucket
from uprmc.engine.memory_account import ITEM_OVERHEAD_BYTES
from uprmc.record import key_of, value_bytes_of
from uprmc.server.observed import ObservedNode

#: What one of a kind takes, measured in the compiled form.
_SEGMENT_BYTES = 160 + (8 << SEGMENT_BITS)
_VBUCKET_BYTES = 4_200
_READING_BYTES = 700
_READING_KEY_BYTES = 120
_CONNECTION_BYTES = 12_000
_ROW_BYTES = 500
_TOMBSTONE_BYTES = 4
_TIMETABLE_ENTRY_BYTES = 80

#: How many documents are looked at, and from how many vBuckets.
_SAMPLE_DOCUMENTS, _SAMPLE_VBUCKETS = 512, 8


class Holder(NamedTuple):
    """One use of memory.

    Attributes:
        name: one word.
        bytes: that it takes.
        number: of the things that take it.
        in_quota: whether the quota counts it.
        what: these things, in the plural.
    """

    name: str
    bytes: int
    number: int
    in_quota: bool
    what: str


def holders(node: ObservedNode) -> list[Holder]:
    """Return all holders; the bytes come to the anonymous memory of the process."""
    found = [*_documents(node.bucket), *_engine(node.bucket), *_clients(node)]
    rest = resident_bytes() - sum(each.bytes for each in found)
    return [*found, Holder("program", max(0, rest), 1, False, "code, caches, freed memory")]


def resident_bytes() -> int:
    """Return the anonymous memory of this process; the store's mapped file is not counted."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _documents(bucket: Bucket) -> Iterator[Holder]:
    """Divide what the quota counts into values, which can be evicted, and the rest."""
    entries = sum(len(vbucket.table) for vbucket in bucket.vbuckets.values())
    absent = sum(vbucket.table.absent for vbucket in bucket.vbuckets.values())
    used = bucket.account.used
    values = int(used * _value_share(bucket))
    yield Holder("values", values, entries - absent, True, "values in memory")
    yield Holder("keys", used - values, entries, True, "keys with their bookkeeping")


def _value_share(bucket: Bucket) -> float:
    """Return which part of the documents' memory is values, by a sample."""
    value_bytes = all_bytes = 0
    for record in _sample(bucket):
        value_bytes += value_bytes_of(record)
        all_bytes += len(record) + len(key_of(record)) + ITEM_OVERHEAD_BYTES
    return value_bytes / all_bytes if all_bytes else 0.0


def _sample(bucket: Bucket) -> Iterator[bytes]:
    """Yield some records of vBuckets that lie far from each other."""
    vbuckets = [each for each in bucket.vbuckets.values() if len(each.table)]
    step = max(1, len(vbuckets) // _SAMPLE_VBUCKETS)
    for vbucket in vbuckets[::step]:
        portion = next(iter(vbucket.table.portions()), [])
        yield from islice(portion, _SAMPLE_DOCUMENTS // _SAMPLE_VBUCKETS)


def _engine(bucket: Bucket) -> Iterator[Holder]:
    vbuckets = bucket.vbuckets.values()
    documents = sum(len(vbucket.table) for vbucket in vbuckets)
    mean = bucket.account.used / documents if documents else 0.0
    queued = segments = held = 0
    for vbucket in vbuckets:
        queue = vbucket.queue
        queued += queue.live
        segments += queue.segments
        held += queue.held
    yield Holder("queue", segments * _SEGMENT_BYTES, queued, False, "changes not persisted yet")
    yield Holder("views", int(held * mean), held, False, "old versions kept for readers")
    number = len(bucket.vbuckets)
    yield Holder("vbuckets", number * _VBUCKET_BYTES, number, False, "vBuckets")
    number = bucket.account.timetable.entries
    yield Holder("expiry", number * _TIMETABLE_ENTRY_BYTES, number, False, "documents that expire")
    number = bucket.flusher.tombstones.total.number
    yield Holder("tombstones", number * _TOMBSTONE_BYTES, number, False, "deletions on disk")
    number = bucket.watermarks.row_count
    yield Holder("watermarks", number * _ROW_BYTES, number, False, "rows of registered clients")


def _clients(node: ObservedNode) -> Iterator[Holder]:
    leases = node.upr.leases.open.values()
    readings = sum(len(lease.readings) for lease in leases)
    keys = sum(lease.keys for lease in leases)
    size = readings * _READING_BYTES + keys * _READING_KEY_BYTES
    yield Holder("leases", size, len(leases), False, "snapshot leases")
    lags = node.consumer_lags.found
    size = sum(lag.memory for lag in lags)
    yield Holder("streams", size, sum(lag.streams for lag in lags), False, "streams")
    connections = node.connections
    size = connections.current * _CONNECTION_BYTES + connections.buffers.total
    yield Holder(
        "connections", size, connections.current, False, "connections; buffers, also of HTTP"
    )
