"""The general group, and the other groups that memcached has."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from uprmc import MEMCACHED_VERSION, __version__
from uprmc.config import DEFAULT, values_of
from uprmc.core.form import COMPILED, FORM
from uprmc.engine.bucket import Bucket
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES, slices
from uprmc.engine.stats import MEMCACHEDS
from uprmc.kv.services import ITEM_HEADER_BYTES, StatGroup, StatRows
from uprmc.model import ConflictRule, VBucketState
from uprmc.record import KIND_AT, LIFE_BITS, key_of
from uprmc.server.stats.engine import non_resident

if TYPE_CHECKING:
    from uprmc.server.node import Node


# --- the general group ----------------------------------------------------------------------------
# The group without a name, and the other statistics of Couchbase's engine.
#
# Programs that watch memcached read the first into a buffer of 4,096 bytes, and get nothing of what
# is longer. So it has the names of memcached and those that Couchbase's tools ask for there, and is
# shorter even if every number is as long as it can get; whatever else is counted is in other
# groups.


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


def general(node: Node) -> StatGroup:
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


def engine(node: Node) -> StatGroup:
    """Return what Couchbase's engine has in its general group."""
    bucket = node.bucket
    return _engine(node) + _with_metadata(bucket) + _vbuckets(bucket)


def _process(node: Node) -> StatGroup:
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


def _connections(node: Node) -> StatGroup:
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


def _memcached(node: Node) -> StatGroup:
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


def _engine(node: Node) -> StatGroup:
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
        ("ep_num_non_resident", str(non_resident(bucket))),
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


# --- memcached's other groups ---------------------------------------------------------------------
# Groups that memcached has: settings, connections, and slabs, of which there are none here.


#: Item sizes are counted in classes of this many bytes in ``stats sizes``.
_SIZE_CLASS_BYTES = 32

#: Items counted before others have their turn: about a millisecond.
_COUNTED_AT_ONCE = 1_000

#: memcached's slab classes mean nothing here; every item is in this one.
_SLAB_CLASS = 1

#: Settings whose value a data directory has for good.
OF_THE_DIRECTORY = ("engine.vbuckets", "engine.conflict_resolution")

#: Settings of memcached that nothing here corresponds to, as a tool expects them.
_UNUSED_SETTINGS: StatGroup = [
    ("udpport", "0"),
    ("oldest", "0"),
    ("shutdown_command", "no"),
    ("growth_factor", "1.25"),
    ("num_threads_per_udp", "0"),
    ("stat_key_prefix", ":"),
    ("detail_enabled", "no"),
    ("reqs_per_event", "0"),
    ("maxconns_fast", "yes"),
    ("hashpower_init", "0"),
    ("slab_reassign", "no"),
    ("slab_automove", "0"),
    ("tail_repair_time", "0"),
    ("lru_maintainer_thread", "no"),
    ("lru_segmented", "no"),
    ("hot_lru_pct", "0"),
    ("warm_lru_pct", "0"),
    ("hot_max_factor", "0.00"),
    ("warm_max_factor", "0.00"),
    ("temp_lru", "no"),
    ("temporary_ttl", "0"),
    ("inline_ascii_response", "no"),
    ("memory_file", "(null)"),
]

#: Per-class counters of memcached that are always 0: values are evicted, documents are not, and
#: documents move between no lists.
_NEVER_OF_A_CLASS = (
    "number_warm",
    "number_cold",
    "age_hot",
    "age_warm",
    "evicted",
    "evicted_nonzero",
    "evicted_time",
    "tailrepairs",
    "reclaimed",
    "expired_unfetched",
    "evicted_unfetched",
    "evicted_active",
    "lrutail_reflocked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "direct_reclaims",
    "hits_to_warm",
    "hits_to_cold",
    "hits_to_temp",
)

#: Counters of the general group that are shown for the one class, too.
_COUNTED_BY_CLASS = (
    "get_hits",
    "cmd_set",
    "delete_hits",
    "incr_hits",
    "decr_hits",
    "cas_hits",
    "cas_badval",
    "touch_hits",
)


def settings(node: Node) -> StatGroup:
    """Return what is in force, by memcached's names."""
    return [*_in_force(node), *_listening(node), *_UNUSED_SETTINGS]


def own_settings(node: Node) -> StatGroup:
    """Return every setting with the value in force."""
    quota = str(node.bucket.account.quota)
    own = [(name, str(value)) for name, value in values_of(node.bucket.settings)]
    return [(name, quota if name == "memory.quota" else value) for name, value in own]


def _in_force(node: Node) -> StatGroup:
    server, item_bytes = node.settings.server, str(node.settings.kv.max_item_bytes)
    return [
        ("maxbytes", str(node.bucket.account.quota)),
        ("maxconns", str(node.connections.limit)),
        ("evictions", "off"),
        ("cas_enabled", "yes"),
        ("item_size_max", item_bytes),
        ("slab_chunk_max", item_bytes),
        ("chunk_size", str(ITEM_HEADER_BYTES)),
        ("binding_protocol", "auto-negotiate"),
        ("auth_enabled_sasl", "yes" if server.users else "no"),
        ("auth_enabled_ascii", "yes" if server.users else "no"),
        ("flush_enabled", "yes"),
        ("dump_enabled", "yes"),
        ("track_sizes", "yes"),
        ("num_threads", "1"),
        ("verbosity", str(node.verbosity)),
        ("tcp_backlog", str(server.listen_backlog)),
        ("umask", server.unix_mode),
        ("idle_timeout", str(int(server.idle_timeout_s))),
        ("lru_crawler", "yes" if node.crawler.enabled else "no"),
        ("lru_crawler_sleep", str(node.crawler.sleep_us)),
        ("lru_crawler_tocrawl", str(node.crawler.to_crawl)),
        ("hash_algorithm", "multiply-shift" if FORM == COMPILED else "python"),
    ]


def _listening(node: Node) -> StatGroup:
    """Return where the listener for memcached's clients is, and whether it speaks TLS."""
    server, address = node.settings.server, node.addresses().get("memcached", "off")
    local = address.startswith("unix:")
    places = [each.rpartition(":") for each in address.split(",")]
    host, port = ",".join(host for host, _, _ in places), places[0][2]
    return [
        ("tcpport", "0" if local or not port.isdecimal() else port),
        ("inter", "NULL" if local else host or "NULL"),
        ("domain_socket", address.removeprefix("unix:") if local else "NULL"),
        ("ssl_enabled", "yes" if server.tls_cert else "no"),
        ("ssl_chain_cert", _path(server.tls_cert)),
        ("ssl_key", _path(server.tls_key)),
    ]


def _path(path: str) -> str:
    """Return a path that fits where programs read this group; ``stats settings-uprmc`` has all."""
    return path if path and len(os.fsencode(path)) <= TEXT_MOST_BYTES else "(null)"


def setting_origins(node: Node) -> StatGroup:
    """Return of each setting where the value in force comes from."""
    at_start = dict(values_of(node.settings))
    in_force = dict(values_of(node.bucket.settings)) | {"memory.quota": node.bucket.account.quota}
    return [
        (name, _origin(node, name) if value == at_start[name] else "changed since the start")
        for name, value in in_force.items()
    ]


def _origin(node: Node, name: str) -> str:
    return "data directory" if name in OF_THE_DIRECTORY else node.origins.get(name, DEFAULT)


def items(node: Node) -> StatGroup:
    """Return what the one class holds; nothing on an empty node."""
    bucket = node.bucket
    if not bucket.item_count:
        return []
    documents = str(bucket.item_count)
    rows = [
        ("number", documents),
        ("number_hot", documents),
        ("age", str(int(node.uptime_s()))),
        ("outofmemory", str(bucket.account.refused_memory)),
        ("mem_requested", str(_requested(bucket))),
        ("hits_to_hot", str(bucket.stats.get_hits)),
        ("crawler_reclaimed", str(bucket.stats.expired_pager)),
        ("crawler_items_checked", str(bucket.stats.expired_pager)),
        *((name, "0") for name in _NEVER_OF_A_CLASS),
    ]
    return [(f"items:{_SLAB_CLASS}:{name}", value) for name, value in rows]


def slabs(node: Node) -> StatGroup:
    """Return the one class, whose chunks are as large as a document is on average.

    So chunks and pages, multiplied with their sizes, are the memory that is used, up to a page.
    """
    bucket = node.bucket
    rows: StatGroup = []
    used, requested, chunk_bytes, chunks = bucket.item_count, _requested(bucket), 0, 0
    if used:
        chunk_bytes = max(1, -(-requested // used))
        chunks_per_page = max(1, node.settings.kv.max_item_bytes // chunk_bytes)
        pages = -(-used // chunks_per_page)
        chunks = pages * chunks_per_page
        rows = [
            ("chunk_size", str(chunk_bytes)),
            ("chunks_per_page", str(chunks_per_page)),
            ("total_pages", str(pages)),
            ("total_chunks", str(chunks)),
            ("used_chunks", str(used)),
            ("free_chunks", str(chunks - used)),
            ("free_chunks_end", "0"),
            ("mem_requested", str(requested)),
            *((name, str(getattr(bucket.stats, name))) for name in _COUNTED_BY_CLASS),
        ]
    return [
        *((f"{_SLAB_CLASS}:{name}", value) for name, value in rows),
        ("active_slabs", str(int(bool(rows)))),
        ("total_malloced", str(chunks * chunk_bytes)),
    ]


def _requested(bucket: Bucket) -> int:
    """Return the memory of the documents that clients can reach: their share of what is used."""
    entries = sum(len(vbucket.table) for vbucket in bucket.vbuckets.values())
    return bucket.account.used * bucket.item_count // entries if entries else 0


def extstore(node: Node) -> StatGroup:
    """Return nothing, as memcached without such a store."""
    return []


def sizes(node: Node) -> StatRows:
    """Count items by size; looks at every item, as memcached's did."""
    found: dict[int, int] = {}
    for group in slices(list(node.bucket.active.values()), _COUNTED_AT_ONCE):
        for _, records in group:
            for record in records:
                if record[KIND_AT] & LIFE_BITS:
                    continue
                size = len(key_of(record)) + len(record) + ITEM_OVERHEAD_BYTES
                top = -(-size // _SIZE_CLASS_BYTES) * _SIZE_CLASS_BYTES
                found[top] = found.get(top, 0) + 1
        yield None
    yield from ((str(size), str(found[size])) for size in sorted(found))


def connections(node: Node) -> StatRows:
    """Yield every open connection."""
    for info in node.connections.infos():
        place = str(info.number)
        yield f"{place}:addr", info.peer if info.peer == "unix" else f"tcp:{info.peer}"
        yield f"{place}:listen_addr", _listen_address(node, info.listener)
        yield f"{place}:listener", info.listener
        yield f"{place}:state", info.state
        yield f"{place}:secs_since_last_cmd", str(int(info.idle_s))
        yield f"{place}:bytes_read", str(info.bytes_read)
        yield f"{place}:bytes_written", str(info.bytes_written)


def _listen_address(node: Node, listener: str) -> str:
    address = node.addresses().get(listener, "")
    if address.startswith("unix:") or not address:
        return address
    return ",".join(f"tcp:{each}" for each in address.split(","))
