"""Groups about the node as a whole: memory, warm-up, disk, timings, the process of the index."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from uprmc.core.fronts import SEGMENT_BITS
from uprmc.engine.bucket import Bucket
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES
from uprmc.engine.stats import MEMCACHEDS, Histogram
from uprmc.kv.services import StatGroup
from uprmc.record import RECORD_OVERHEAD_BYTES, key_of, value_bytes_of

if TYPE_CHECKING:
    from uprmc.server.node import Node


# --- who has the memory ---------------------------------------------------------------------------
# What the memory of a node is used for, holder by holder: the answer to "why is memory full".
#
# Documents are what the quota counts; their parts are estimated from a sample. Everything else is
# not in the quota and is estimated by what one of its kind takes. The sum of all holders is the
# anonymous memory of the process, because what no holder explains is one, too.
#
# Costs less than a millisecond with 1,024 vBuckets; streams are looked at by `consumers`.


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


class MemoryHolder(NamedTuple):
    """One use of memory."""

    name: str  # one word
    bytes: int  # that it takes
    number: int  # of the things that take it
    in_quota: bool  # whether the quota counts it
    what: str  # these things, in the plural


def holders(node: Node) -> list[MemoryHolder]:
    """Return all holders; the bytes come to the anonymous memory of the process."""
    found = [*_documents(node.bucket), *_engine(node.bucket), *_clients(node)]
    rest = resident_bytes() - sum(each.bytes for each in found)
    return [*found, MemoryHolder("program", max(0, rest), 1, False, "code, caches, freed memory")]


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


def _documents(bucket: Bucket) -> Iterator[MemoryHolder]:
    """Divide what the quota counts into values, which can be evicted, and the rest."""
    entries = sum(len(vbucket.table) for vbucket in bucket.vbuckets.values())
    absent = sum(vbucket.table.absent for vbucket in bucket.vbuckets.values())
    used = bucket.account.used
    values = int(used * _value_share(bucket))
    yield MemoryHolder("values", values, entries - absent, True, "values in memory")
    yield MemoryHolder("keys", used - values, entries, True, "keys with their bookkeeping")


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


def _engine(bucket: Bucket) -> Iterator[MemoryHolder]:
    vbuckets = bucket.vbuckets.values()
    documents = sum(len(vbucket.table) for vbucket in vbuckets)
    mean = bucket.account.used / documents if documents else 0.0
    queued = segments = held = 0
    for vbucket in vbuckets:
        queue = vbucket.queue
        queued += queue.live
        segments += queue.segments
        held += queue.retired
    yield MemoryHolder(
        "queue", segments * _SEGMENT_BYTES, queued, False, "changes not persisted yet"
    )
    yield MemoryHolder("views", int(held * mean), held, False, "old versions kept for readers")
    number = len(bucket.vbuckets)
    yield MemoryHolder("vbuckets", number * _VBUCKET_BYTES, number, False, "vBuckets")
    number = bucket.account.timetable.entries
    yield MemoryHolder(
        "expiry", number * _TIMETABLE_ENTRY_BYTES, number, False, "documents that expire"
    )
    number = bucket.flusher.tombstones.total.number
    yield MemoryHolder("tombstones", number * _TOMBSTONE_BYTES, number, False, "deletions on disk")
    number = bucket.watermarks.row_count
    yield MemoryHolder(
        "watermarks", number * _ROW_BYTES, number, False, "rows of registered clients"
    )


def _clients(node: Node) -> Iterator[MemoryHolder]:
    leases = node.upr.leases.open.values()
    readings = sum(len(lease.readings) for lease in leases)
    keys = sum(lease.keys for lease in leases)
    size = readings * _READING_BYTES + keys * _READING_KEY_BYTES
    yield MemoryHolder("leases", size, len(leases), False, "snapshot leases")
    lags = node.consumer_lags.found
    size = sum(lag.memory for lag in lags)
    yield MemoryHolder("streams", size, sum(lag.streams for lag in lags), False, "streams")
    connections = node.connections
    size = connections.current * _CONNECTION_BYTES + connections.buffers.total
    yield MemoryHolder(
        "connections", size, connections.current, False, "connections; buffers, also of HTTP"
    )


# --- the node -------------------------------------------------------------------------------------


def warmup(node: Node) -> StatGroup:
    """Return how far warm-up is, or how it went."""
    progress = node.warmup
    return [
        ("ep_warmup", "enabled"),
        ("ep_warmup_state", progress.state.value),
        ("ep_warmup_thread", "complete" if node.bucket.warm else "running"),
        ("ep_warmup_key_count", str(progress.keys)),
        ("ep_warmup_value_count", str(progress.values)),
        ("ep_warmup_estimated_key_count", str(progress.records)),
        ("ep_warmup_time", str(int(node.warmup_s * 1_000_000))),
        ("ep_warmup_clean", str(progress.was_clean).lower()),
    ]


def components(node: Node) -> dict[str, str]:
    """Return for each part of a node whether it is at work.

    ``up``; ``off``: switched off by a setting; ``warming_up``; ``failing``: the disk; for the
    index see `IndexDriver.state`.
    """
    bucket = node.bucket
    return {
        "kv": "up" if bucket.traffic else "warming_up",
        "storage": "failing" if bucket.account.disk_reason else "up",
        "upr": "up",
        "replication": "up",
        "purger": "up" if bucket.settings.purge.interval_s else "off",
        "xdcr": "up",
        "tap": "off" if node.tap is None else "up",
        "index": node.index.state,
    }


def memory(node: Node) -> StatGroup:
    """Return what is used, against which marks."""
    account = node.bucket.account
    rss = resident_bytes()
    return [
        ("mem_used", str(account.used)),
        ("ep_max_size", str(account.quota)),
        ("ep_mem_low_wat", str(account.low_mark)),
        ("ep_mem_high_wat", str(account.high_mark)),
        ("ep_mutation_mem_limit", str(account.mutation_limit)),
        ("ep_item_overhead", str(RECORD_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES)),
        ("ep_num_non_resident", str(non_resident(node.bucket))),
        ("total_rss_bytes", str(rss)),
        ("rss_per_mem_used", f"{rss / account.used:.3f}" if account.used else "0"),
    ]


def own(node: Node) -> StatGroup:
    """Return what no other server has a name for."""
    account, connections = node.bucket.account, node.connections
    counted = node.bucket.stats.items()
    return [
        *((name, str(value)) for name, value in counted if name not in MEMCACHEDS),
        ("session_errors", str(connections.session_errors)),
        ("shed_connections", str(connections.buffers.shed)),
        ("conn_received_bytes", str(connections.buffers.received)),
        ("conn_unsent_bytes", str(connections.buffers.unsent)),
        ("conn_buffer_limit", str(connections.buffers.limit)),
        ("writes_refused_memory", str(account.refused_memory)),
        ("writes_refused_disk", str(account.refused_disk)),
        ("disk_error", account.disk_reason),
        ("flush_queue", str(node.bucket.flusher.queued)),
        ("fetch_waiting", str(node.bucket.fetcher.waiting)),
        *((name, str(value)) for name, value in disk(node.bucket).items()),
    ]


def timings(node: Node) -> StatGroup:
    """Return ``NAME_FROM,BELOW`` in microseconds and how often; what never happened is left out."""
    return [
        (f"{name}_{low},{high}", str(count))
        for name, histogram in node.bucket.timings.items()
        for low, high, count in histogram.counts()
    ]


def disk(bucket: Bucket) -> dict[str, int]:
    """Return the store's sizes in bytes."""
    usage = bucket.store.usage()
    return {
        "disk_file_bytes": usage.file_bytes,
        "disk_map_bytes": usage.map_bytes,
        "disk_free_bytes": usage.free_bytes,
        "disk_pinned_bytes": usage.pinned_bytes,
    }


def non_resident(bucket: Bucket) -> int:
    """Return the number of documents whose value is on disk only."""
    return sum(vbucket.table.absent for vbucket in bucket.vbuckets.values())


# --- names of Couchbase's engine ------------------------------------------------------------------
# Groups that Couchbase's engine of 2014 has, by its names: what exists here, and nothing else.
#
# One store serves all vBuckets, so it is one shard: ``rw_0`` is what writes it, ``ro_0`` what reads
# it for commands. The engine's pools of threads are one pool here, which does all work on the disk:
# its threads are shown as those for I/O of any kind (``auxio``), and the node's own as the one that
# does the rest (``nonio``).


_BACKEND = "lmdb"


def uuid(node: Node) -> StatGroup:
    """Return the identity of the data, which the cluster map tells as the bucket's."""
    return [("uuid", f"{node.uuid:032x}")]


def kvstore(node: Node) -> StatGroup:
    """Return what the store has done."""
    bucket, stats = node.bucket, node.bucket.stats
    return [
        ("rw_0:backend_type", _BACKEND),
        ("rw_0:numLoadedVb", str(len(node.warmup.origins))),
        ("rw_0:lastCommDocs", str(bucket.flusher.last_commit_items)),
        ("rw_0:failure_set", str(stats.commit_failures)),
        ("ro_0:backend_type", _BACKEND),
        ("ro_0:failure_get", str(stats.bg_fetch_failures)),
    ]


def kvtimings(node: Node) -> StatGroup:
    """Return how long the store took."""
    timings = node.bucket.timings
    return [
        *_histogram("rw_0:commit", timings.disk_commit),
        *_histogram("ro_0:readTime", timings.bg_load),
    ]


def scheduler(node: Node) -> StatGroup:
    """Return how long tasks waited until they ran."""
    return _histogram("bg_fetcher_tasks", node.bucket.timings.bg_wait)


def runtimes(node: Node) -> StatGroup:
    """Return how long tasks ran."""
    timings = node.bucket.timings
    return [
        *_histogram("bg_fetcher_tasks", timings.bg_load),
        *_histogram("flusher_tasks", timings.disk_commit),
    ]


def dispatcher(node: Node) -> StatGroup:
    """Return what each thread of the pool is doing."""
    pool = node.disk_pool
    busy = len(pool.working)
    return [
        (f"auxio_worker_{number}:state", "running" if number < busy else "sleeping")
        for number in range(pool.workers)
    ]


def workload(node: Node) -> StatGroup:
    """Return by how many threads the work is done, and what waits for one."""
    pool = node.disk_pool
    return [
        ("ep_workload:num_shards", "1"),
        ("ep_workload:num_auxio", str(pool.max)),
        ("ep_workload:num_nonio", "1"),
        ("ep_workload:ready_tasks", str(pool.q.qsize())),
    ]


def config(node: Node) -> StatGroup:
    """Return those settings in force that the engine has, too."""
    settings, account = node.bucket.settings, node.bucket.account
    engine, tap = settings.engine, settings.tap
    return [
        ("ep_backend", _BACKEND),
        ("ep_dbname", os.path.abspath(settings.storage.data)),
        ("ep_max_vbuckets", str(engine.vbuckets)),
        ("ep_max_size", str(account.quota)),
        ("ep_mem_low_wat", str(account.low_mark)),
        ("ep_mem_high_wat", str(account.high_mark)),
        ("ep_max_item_size", str(settings.kv.max_item_bytes)),
        ("ep_max_failover_entries", str(engine.max_failover_entries)),
        ("ep_exp_pager_stime", f"{engine.expiry_interval_s:g}"),
        ("ep_getl_default_timeout", str(engine.lock_default_s)),
        ("ep_getl_max_timeout", str(engine.lock_max_s)),
        ("ep_tap_ack_interval", str(tap.ack_interval)),
        ("ep_tap_ack_window_size", str(tap.ack_window)),
        ("ep_tap_ack_grace_period", f"{tap.ack_grace_s:g}"),
        ("ep_tap_backoff_period", f"{tap.backoff_s:g}"),
        ("ep_tap_noop_interval", f"{tap.noop_interval_s:g}"),
    ]


def _histogram(name: str, histogram: Histogram) -> StatGroup:
    return [(f"{name}_{low},{high}", str(count)) for low, high, count in histogram.counts()]


# --- holders as a group ---------------------------------------------------------------------------


def memory_holders(node: Node) -> StatGroup:
    """Return every holder with its bytes and the number of its things."""
    rows: StatGroup = []
    for holder in holders(node):
        rows += [
            (f"{holder.name}:bytes", str(holder.bytes)),
            (f"{holder.name}:number", str(holder.number)),
            (f"{holder.name}:what", holder.what),
        ]
    return rows


# --- the index ------------------------------------------------------------------------------------


def index(node: Node) -> StatGroup:
    """Return where it listens, and how it is; what it has indexed it tells itself."""
    driver = node.index
    return [
        ("views", driver.address),
        ("views_tls", "yes" if driver.https else "no"),
        ("state", driver.state),
        ("pid", str(driver.pid)),
        ("restarts", str(driver.restarts)),
        ("error", driver.error),
    ]


def index_page(node: Node) -> dict[str, object]:
    """Return the same for ``/status.json``."""
    driver = node.index
    return {**dict(index(node)), "pid": driver.pid, "restarts": driver.restarts}
