"""The group without a name: what memcached counts, and what Couchbase's tools read first."""

from __future__ import annotations

import os
import resource

from uprmc import MEMCACHED_VERSION, __version__
from uprmc.core.form import FORM
from uprmc.engine.bucket import Bucket
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
)


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
        ("curr_items_tot", str(bucket.total_item_count)),
    ]
    group += [(name, str(value)) for name, value in bucket.stats.items()]
    group += [(name, "0") for name in _NEVER]
    group += _engine(node)
    group += _with_metadata(bucket)
    return group + _vbuckets(bucket)


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
        ("shed_connections", str(connections.buffers.shed)),
        ("conn_received_bytes", str(connections.buffers.received)),
        ("conn_unsent_bytes", str(connections.buffers.unsent)),
        ("conn_buffer_limit", str(connections.buffers.limit)),
        ("accepting_conns", str(int(not connections.full))),
        ("threads", "1"),
        ("bytes_read", str(connections.bytes_read)),
        ("bytes_written", str(connections.bytes_written)),
    ]


def _engine(node: ObservedNode) -> StatGroup:
    bucket, stats = node.bucket, node.bucket.stats
    account, flusher = bucket.account, bucket.flusher
    usage = bucket.store.usage()
    queued = str(flusher.queued)
    return [
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
