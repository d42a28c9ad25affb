"""The group without a name, and the other statistics of Couchbase's engine.

Programs that watch memcached read the first into a buffer of 4,096 bytes, and get nothing of what
is longer. So it has the names of memcached and those that Couchbase's tools ask for there, and is
shorter even if every number is as long as it can get; whatever else is counted is in other groups.
"""

from __future__ import annotations

import os
import resource

from uprmc import MEMCACHED_VERSION, __version__
from uprmc.core.form import FORM
from uprmc.engine.bucket import Bucket
from uprmc.engine.stats import MEMCACHEDS
from uprmc.kv.services import StatGroup
from uprmc.model import ConflictRule, VBucketState
from uprmc.server import stat_node
from uprmc.server.observed import ObservedNode

#: memcached counts these; here they cannot happen, or are counted under another name.
_NEVER = (
    "get_flushed",
    "evictions",
    "reclaimed",
    "expired_unfetched",
    "evicted_unfetched",
    "evicted_active",
    "direct_reclaims",
    "listen_disabled_num",
    "time_in_listen_disabled_us",
    "response_obj_oom",
    "read_buf_bytes_free",
    "malloc_fails",
    "hash_is_expanding",
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
    "slab_global_page_pool",
    "lru_crawler_starts",
    "lru_maintainer_juggles",
    "lrutail_reflocked",
    "lru_bumps_dropped",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "log_worker_dropped",
    "log_worker_written",
    "log_watcher_skipped",
    "log_watcher_sent",
    "log_watchers",
    "unexpected_napi_ids",
    "round_robin_fallback",
)

#: What tools of Couchbase ask the general group for.
_READ_FIRST = frozenset(
    {
        *("curr_items_tot", "vb_active_curr_items", "vb_active_num", "vb_replica_num"),
        *("mem_used", "ep_max_size", "ep_mem_high_wat", "ep_num_non_resident"),
        *("ep_queue_size", "ep_flusher_todo", "ep_flusher_state", "ep_commit_num"),
        *("ep_degraded_mode", "ep_conflict_resolution_type", "ep_dbname"),
    }
)

#: A longer path is left out of the groups that memcached has.
TEXT_MOST_BYTES = 160

#: A hash table's slot with its tag, and the part of the slots that is in use, in the compiled form.
_SLOT_BYTES, _FILLING = 9, 0.7


#: As Couchbase's tools know them.
_RULES = {ConflictRule.REVISION: "seqno", ConflictRule.TIMESTAMP: "lww"}


def general(node: ObservedNode) -> StatGroup:
    """Return the general group."""
    bucket = node.bucket
    group = _process(node) + _connections(node)
    group += [
        ("bytes", str(bucket.account.used)),
        ("limit_maxbytes", str(bucket.account.quota)),
        ("curr_items", str(bucket.item_count)),
    ]
    group += [(name, str(value)) for name, value in bucket.stats.items() if name in MEMCACHEDS]
    group += _memcached(node)
    group += [(name, "0") for name in _NEVER]
    return group + [(name, value) for name, value in engine(node) if _is_general(name, value)]


def _is_general(name: str, value: str) -> bool:
    """Tell whether a statistic of the engine is in the general group, too."""
    return name in _READ_FIRST and len(os.fsencode(value)) <= TEXT_MOST_BYTES


def engine(node: ObservedNode) -> StatGroup:
    """Return what Couchbase's engine has in its general group."""
    bucket = node.bucket
    return _engine(node) + _with_metadata(bucket) + _vbuckets(bucket)


def _process(node: ObservedNode) -> StatGroup:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return [
        ("pid", str(os.getpid())),
        ("uptime", str(int(node.uptime_s()))),
        ("time", str(int(node.bucket.clock.now()))),
        ("version", MEMCACHED_VERSION),
        ("uprmc_version", __version__),
        ("uprmc_core", FORM),
        ("pointer_size", "64"),
        ("rusage_user", f"{usage.ru_utime:.6f}"),
        ("rusage_system", f"{usage.ru_stime:.6f}"),
    ]


def _connections(node: ObservedNode) -> StatGroup:
    connections = node.connections
    return [
        ("max_connections", str(connections.limit)),
        ("curr_connections", str(connections.current)),
        ("total_connections", str(connections.total)),
        ("rejected_connections", str(connections.rejected)),
        ("accepting_conns", str(int(not connections.full))),
        ("threads", "1"),
        ("bytes_read", str(connections.bytes_read)),
        ("bytes_written", str(connections.bytes_written)),
    ]


def _memcached(node: ObservedNode) -> StatGroup:
    """Return what memcached counts and has another meaning, or another name, here."""
    bucket, buffers = node.bucket, node.connections.buffers
    entries = sum(len(vbucket.table) for vbucket in bucket.vbuckets.values())
    slots = int(entries / _FILLING)
    return [
        ("connection_structures", str(node.connections.current)),
        ("reserved_fds", str(node.connections.reserved_files)),
        ("conn_yields", str(node.connections.yields)),
        ("read_buf_count", str(buffers.receiving)),
        ("read_buf_bytes", str(buffers.received)),
        ("read_buf_oom", str(buffers.shed)),
        ("response_obj_count", str(buffers.sending)),
        ("response_obj_bytes", str(buffers.unsent)),
        ("store_no_memory", str(bucket.account.refused_memory)),
        ("hash_power_level", str(slots.bit_length())),
        ("hash_bytes", str(slots * _SLOT_BYTES)),
        ("crawler_reclaimed", str(bucket.stats.expired_pager)),
        ("crawler_items_checked", str(bucket.stats.expired_pager)),
        ("lru_crawler_running", str(int(bool(node.crawler.dumps)))),
    ]


def _engine(node: ObservedNode) -> StatGroup:
    bucket, stats = node.bucket, node.bucket.stats
    account, flusher = bucket.account, bucket.flusher
    usage = bucket.store.usage()
    queued = str(flusher.queued)
    return [
        ("curr_items_tot", str(bucket.total_item_count)),
        ("mem_used", str(account.used)),
        ("ep_kv_size", str(account.used)),
        ("ep_max_size", str(account.quota)),
        ("ep_mem_low_wat", str(account.low_mark)),
        ("ep_mem_high_wat", str(account.high_mark)),
        ("ep_queue_size", queued),
        ("ep_flusher_todo", queued),
        ("ep_diskqueue_items", queued),
        ("ep_flusher_state", "paused" if flusher.paused else "running"),
        ("ep_commit_num", str(stats.commits)),
        ("ep_total_persisted", str(stats.items_flushed)),
        ("ep_item_commit_failed", str(stats.commit_failures)),
        ("ep_num_value_ejects", str(stats.value_ejects)),
        ("ep_num_non_resident", str(stat_node.non_resident(bucket))),
        ("ep_num_pager_runs", str(stats.pager_runs)),
        ("ep_bg_fetched", str(stats.bg_fetched)),
        ("ep_tmp_oom_errors", str(account.refused_memory)),
        ("ep_expired_access", str(stats.expired_access)),
        ("ep_expired_pager", str(stats.expired_pager)),
        ("ep_degraded_mode", "0" if bucket.traffic else "1"),
        ("ep_conflict_resolution_type", _RULES[account.conflict_rule]),
        ("ep_dbname", os.path.abspath(node.settings.storage.data)),
        ("ep_db_file_size", str(usage.file_bytes)),
        ("ep_db_data_size", str(usage.used_bytes)),
    ]


def _with_metadata(bucket: Bucket) -> StatGroup:
    """Return the counters of commands with metadata by the names that Couchbase's tools know."""
    stats = bucket.stats
    return [
        ("ep_bg_meta_fetched", str(stats.bg_meta_fetched)),
        ("ep_num_ops_get_meta", str(stats.ops_get_meta)),
        ("ep_num_ops_set_meta", str(stats.ops_set_meta)),
        ("ep_num_ops_del_meta", str(stats.ops_del_meta)),
        ("ep_num_ops_set_meta_res_fail", str(stats.ops_set_meta_res_fail)),
        ("ep_num_ops_del_meta_res_fail", str(stats.ops_del_meta_res_fail)),
        ("ep_active_ahead_exceptions", str(stats.cas_ahead)),
        ("ep_active_behind_exceptions", str(stats.cas_behind)),
        ("ep_num_ops_set_ret_meta", str(stats.ops_set_ret_meta)),
        ("ep_num_ops_del_ret_meta", str(stats.ops_del_ret_meta)),
    ]


def _vbuckets(bucket: Bucket) -> StatGroup:
    """Return how many vBuckets and documents there are in each state, and how many have expired.

    Documents of active vBuckets are those that clients can reach now, none during warm-up.
    """
    numbers = dict.fromkeys(VBucketState, 0)
    documents = dict.fromkeys(VBucketState, 0)
    expired = dict.fromkeys(VBucketState, 0)
    for vbucket in bucket.vbuckets.values():
        numbers[vbucket.state] += 1
        documents[vbucket.state] += vbucket.item_count
        expired[vbucket.state] += vbucket.expired
    documents[VBucketState.ACTIVE] = bucket.item_count
    group = [("ep_vb_total", str(len(bucket.vbuckets)))]
    for state in VBucketState:
        name = f"vb_{state.name.lower()}"
        group.append((f"{name}_num", str(numbers[state])))
        group.append((f"{name}_curr_items", str(documents[state])))
        group.append((f"{name}_expired", str(expired[state])))
    return group
