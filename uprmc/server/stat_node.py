"""Groups about the node as a whole: warm-up, memory, disk, timings, and what only we count."""

from __future__ import annotations

from uprmc.engine.bucket import Bucket
from uprmc.engine.memory_account import ITEM_OVERHEAD_BYTES
from uprmc.engine.stats import MEMCACHEDS
from uprmc.kv.services import StatGroup
from uprmc.record import RECORD_OVERHEAD_BYTES
from uprmc.server.memory_holders import resident_bytes
from uprmc.server.observed import ObservedNode


def warmup(node: ObservedNode) -> StatGroup:
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


def components(node: ObservedNode) -> dict[str, str]:
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


def memory(node: ObservedNode) -> StatGroup:
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


def own(node: ObservedNode) -> StatGroup:
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


def timings(node: ObservedNode) -> StatGroup:
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
