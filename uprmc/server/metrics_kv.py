"""Metrics of commands, memory and the disk, and of connections."""

from __future__ import annotations

from platform import python_version

from uprmc import __version__
from uprmc.core.form import FORM
from uprmc.server import stat_node, stat_vbuckets
from uprmc.server.metric_info import counter, gauge, stat, stats

_LOOKED_UP = ("get", "delete", "touch", "incr", "decr", "cas")
_RESULTS = {"hits": "hit", "misses": "miss"}

COMMANDS = (
    stats(
        "commands_total",
        "Get, set, touch and flush commands; each key of a get counts, as a touch if it touches.",
        ("command",),
        {f"cmd_{name}": (name,) for name in ("get", "set", "touch", "flush")},
    ),
    stat(
        "meta_commands_total",
        "Meta debug commands (me); other meta commands count as what they do.",
        "cmd_meta",
    ),
    stats(
        "key_lookups_total",
        "Keys that commands looked up: found (hit), absent (miss), or with another CAS (mismatch).",
        ("command", "result"),
        {
            f"{command}_{found}": (command, result)
            for command in _LOOKED_UP
            for found, result in _RESULTS.items()
        }
        | {"cas_badval": ("cas", "mismatch")},
    ),
    stat("get_expired_total", "Keys that a command found expired.", "get_expired"),
    stat("sets_stored_total", "Documents that storage commands stored.", "total_items"),
    stats(
        "items_expired_total",
        "Documents that expired, found by a command (access) or by the expiry task (schedule).",
        ("trigger",),
        {"expired_access": ("access",), "expired_pager": ("schedule",)},
    ),
    stats(
        "with_meta_total",
        "GET_META, SET_WITH_META or ADD_WITH_META, and DEL_WITH_META commands.",
        ("operation",),
        {"ops_get_meta": ("get",), "ops_set_meta": ("set",), "ops_del_meta": ("delete",)},
    ),
    stats(
        "with_meta_conflicts_lost_total",
        "Versions with metadata that were dropped because the existing version won.",
        ("operation",),
        {"ops_set_meta_res_fail": ("set",), "ops_del_meta_res_fail": ("delete",)},
    ),
    stats(
        "with_meta_drift_total",
        "Accepted versions with metadata whose CAS was more than 5 seconds off the clock.",
        ("direction",),
        {"cas_ahead": ("ahead",), "cas_behind": ("behind",)},
    ),
    stats(
        "return_meta_total",
        "RETURN_META commands that stored or deleted a document.",
        ("operation",),
        {"ops_set_ret_meta": ("set",), "ops_del_ret_meta": ("delete",)},
    ),
    stat(
        "writes_too_large_total",
        "Writes refused because the document is larger than kv.max_item_bytes.",
        "store_too_large",
    ),
    counter(
        "writes_refused_total",
        "Writes answered with a temporary failure because memory or the disk was full.",
        lambda scrape: {
            ("memory",): scrape.account.refused_memory,
            ("disk",): scrape.account.refused_disk,
        },
        "reason",
    ),
)

MEMORY_AND_DISK = (
    gauge(
        "ready", "1 once warm-up is done and clients are served.", lambda s: float(s.bucket.traffic)
    ),
    gauge(
        "build_info",
        "Always 1; the labels tell the form of the core, the version of Python, and the release.",
        lambda s: {(FORM, python_version(), __version__): 1},
        "core",
        "python",
        "version",
    ),
    gauge("uptime_seconds", "Time since the node started.", lambda s: s.uptime_s),
    gauge("items", "Documents in active vBuckets.", lambda s: s.bucket.item_count),
    gauge(
        "items_non_resident",
        "Documents whose value is on disk only.",
        lambda s: stat_node.non_resident(s.bucket),
    ),
    gauge(
        "vbuckets",
        "vBuckets, by state.",
        lambda s: {(name,): count for name, count in stat_vbuckets.state_counts(s.bucket).items()},
        "state",
    ),
    stat(
        "vbuckets_deposed_total",
        "Active vBuckets that were made dead here because another node was promoted.",
        "vbuckets_deposed",
    ),
    gauge(
        "memory_used_bytes",
        "Memory taken by keys, values and bookkeeping, as the quota counts it.",
        lambda s: s.account.used,
    ),
    gauge("memory_quota_bytes", "The memory quota.", lambda s: s.account.quota),
    gauge(
        "memory_holder_bytes",
        "Memory of the process by what it is used for; `values` and `keys` are in the quota.",
        lambda s: {(each.name,): each.bytes for each in s.holders},
        "holder",
    ),
    gauge(
        "memory_holder_things",
        "How many things of this kind there are.",
        lambda s: {(each.name,): each.number for each in s.holders},
        "holder",
    ),
    stat("values_evicted_total", "Values that were evicted from memory.", "value_ejects"),
    stat("evictor_runs_total", "Times that the evictor started.", "pager_runs"),
    stat("values_fetched_total", "Evicted values that were read back from disk.", "bg_fetched"),
    stat(
        "value_fetch_failures_total",
        "Evicted values that could not be read from disk.",
        "bg_fetch_failures",
    ),
    stat(
        "deletions_looked_up_total",
        "Deleted keys that were looked up on disk.",
        "bg_meta_fetched",
    ),
    gauge(
        "fetches_waiting",
        "Reads that wait for a value from disk.",
        lambda s: s.bucket.fetcher.waiting,
    ),
    gauge(
        "flush_queue_items",
        "Changes that are not persisted yet.",
        lambda s: s.bucket.flusher.queued,
    ),
    stat("commits_total", "Commits that succeeded.", "commits"),
    stat("commit_failures_total", "Commits that failed.", "commit_failures"),
    stat(
        "records_found_damaged_total",
        "Records on disk that were found not to be what was written.",
        "damaged_records",
    ),
    stat("records_healed_total", "Damaged records that were written again.", "healed_records"),
    gauge(
        "damaged_records",
        "Records on disk that are known to be damaged now.",
        lambda s: s.bucket.healer.pending,
    ),
    stat("items_persisted_total", "Changes that commits wrote to disk.", "items_flushed"),
    gauge(
        "disk_failing",
        "1 while the disk refuses commits.",
        lambda s: float(bool(s.account.disk_reason)),
    ),
    gauge("disk_file_bytes", "Size of the store's file.", lambda s: s.disk["disk_file_bytes"]),
    gauge(
        "disk_map_bytes",
        "Address space reserved for the store.",
        lambda s: s.disk["disk_map_bytes"],
    ),
    gauge(
        "disk_free_bytes",
        "Pages in the store's file that commits can use.",
        lambda s: s.disk["disk_free_bytes"],
    ),
    gauge(
        "disk_pinned_bytes",
        "Pages of replaced data that leases, streams and other readers keep from being used.",
        lambda s: s.disk["disk_pinned_bytes"],
    ),
    gauge(
        "purge_seqno_lag",
        "Most seqnos between the purge seqno of a vBucket with deletions and its newest on disk.",
        lambda s: s.purge_lag,
    ),
)

CONNECTIONS = (
    gauge("connections_open", "Connections that are open.", lambda s: s.connections.current),
    counter(
        "connections_opened_total",
        "Connections that were accepted, or dialled by this node.",
        lambda s: s.connections.total,
    ),
    counter(
        "connections_rejected_total",
        "Connections refused because of server.max_connections.",
        lambda s: s.connections.rejected,
    ),
    counter(
        "connections_yields_total",
        "Times that a connection let others have their turn before all its replies were sent.",
        lambda s: s.connections.yields,
    ),
    counter(
        "connections_shed_total",
        "Connections closed because all together exceeded server.buffer_bytes.",
        lambda s: s.connections.buffers.shed,
    ),
    gauge(
        "connections_received_bytes",
        "Received input that is not processed yet, such as incomplete requests.",
        lambda s: s.connections.buffers.received,
    ),
    gauge(
        "connections_unsent_bytes",
        "Replies that clients have not read yet.",
        lambda s: s.connections.buffers.unsent,
    ),
    counter(
        "network_received_bytes_total",
        "Bytes received on all connections.",
        lambda s: s.connections.bytes_read,
    ),
    counter(
        "network_sent_bytes_total",
        "Bytes sent on all connections.",
        lambda s: s.connections.bytes_written,
    ),
    stats(
        "logins_total",
        "Logins and refusals: attempts, failed ones, and commands that a role was missing for.",
        ("what",),
        {"auth_cmds": ("attempt",), "auth_errors": ("failed",), "auth_denied": ("denied",)},
    ),
    counter(
        "audit_lines_lost_total",
        "Lines that the audit log lacks: it could not be written, or refusals were too many.",
        lambda s: {("unwritable",): s.audit.lost, ("too_many",): s.audit.dropped},
        "why",
    ),
    stat(
        "protocol_errors_total",
        "Connections closed because the peer broke the protocol.",
        "protocol_errors",
    ),
    counter(
        "session_errors_total",
        "Connections closed by a defect of uprmc.",
        lambda s: s.connections.session_errors,
    ),
)
