"""Groups that Couchbase's engine of 2014 has, by its names: what exists here, and nothing else.

One store serves all vBuckets, so it is one shard: ``rw_0`` is what writes it, ``ro_0`` what reads
it for commands. The engine's pools of threads are one pool here, which does all work on the disk:
its threads are shown as those for I/O of any kind (``auxio``), and the node's own as the one that
does the rest (``nonio``).

Source: UPR reference 6.1; statistics of ep-engine 3.0.
"""

from __future__ import annotations

import os

from uprmc.engine.timings import Histogram
from uprmc.kv.services import StatGroup
from uprmc.server.observed import ObservedNode

_BACKEND = "lmdb"


def uuid(node: ObservedNode) -> StatGroup:
    """Return the identity of the data, which the cluster map tells as the bucket's."""
    return [("uuid", f"{node.uuid:032x}")]


def kvstore(node: ObservedNode) -> StatGroup:
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


def kvtimings(node: ObservedNode) -> StatGroup:
    """Return how long the store took."""
    timings = node.bucket.timings
    return [
        *_histogram("rw_0:commit", timings.disk_commit),
        *_histogram("ro_0:readTime", timings.bg_load),
    ]


def scheduler(node: ObservedNode) -> StatGroup:
    """Return how long tasks waited until they ran."""
    return _histogram("bg_fetcher_tasks", node.bucket.timings.bg_wait)


def runtimes(node: ObservedNode) -> StatGroup:
    """Return how long tasks ran."""
    timings = node.bucket.timings
    return [
        *_histogram("bg_fetcher_tasks", timings.bg_load),
        *_histogram("flusher_tasks", timings.disk_commit),
    ]


def dispatcher(node: ObservedNode) -> StatGroup:
    """Return what each thread of the pool is doing."""
    pool = node.disk_pool
    busy = len(pool.working)
    return [
        (f"auxio_worker_{number}:state", "running" if number < busy else "sleeping")
        for number in range(pool.workers)
    ]


def workload(node: ObservedNode) -> StatGroup:
    """Return by how many threads the work is done, and what waits for one."""
    pool = node.disk_pool
    return [
        ("ep_workload:num_shards", "1"),
        ("ep_workload:num_auxio", str(pool.max)),
        ("ep_workload:num_nonio", "1"),
        ("ep_workload:ready_tasks", str(pool.q.qsize())),
    ]


def config(node: ObservedNode) -> StatGroup:
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
