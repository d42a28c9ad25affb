"""Every setting of a node: default, unit, range and one line of help, checked once.

A setting is named ``section.name`` everywhere: in the TOML file (``[section]`` tables), in the
environment (``UPRMC_SECTION_NAME``), on the command line (``--set section.name=value``) and in
statistics. Later sources win in that order. Whatever is unknown, malformed or out of range is
refused with the reason (`ConfigError`, one line).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from uprmc import units
from uprmc.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

#: Highest value of ``kv.max_item_bytes``.
ITEM_LIMIT_MAX_BYTES = 128 * MIB

#: What connections may hold, all together, when nobody sets it.
BUFFER_BYTES = 256 * MIB

#: Value of ``server.views`` that means this address, or none if another process has it.
VIEWS_AUTO = "auto"
VIEWS_DEFAULT = "127.0.0.1:8092"

#: Value of ``purge.min_age_s`` that leaves the age to the node.
PURGE_AGE_AUTO = -1

#: Largest frame on any wire: such an item, and all that can stand around its key and value.
FRAME_MAX_BYTES = ITEM_LIMIT_MAX_BYTES + 1 * MIB


#: Environment variables of verbs and of the core, which name no settings.
_OF_VERBS = frozenset(
    {
        "UPRMC_CORE",
        "UPRMC_NODE",
        "UPRMC_VIEWS",
        "UPRMC_TLS",
        "UPRMC_TLS_CA",
        "UPRMC_NO_TLS_VERIFY",
    }
)


def _setting(
    default: Any, unit: str, doc: str, low: float | None = None, high: float | None = None
) -> Any:
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "doc": doc})


def _lifetime(default_s: int, whose: str) -> Any:
    doc = f"Forget a registered client {whose} after this long without a report; 0 = never."
    return _setting(default_s, "seconds", doc, 0, 315_360_000)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Listeners and connections."""

    memcached: str = _setting(
        "127.0.0.1:11211",
        "address",
        "Listener for memcached clients: HOST:PORT, or a Twisted endpoint.",
    )
    upr: str = _setting(
        "127.0.0.1:11210",
        "address",
        "Listener for UPR, TAP and vBucket-aware clients; it uses the vBucket in the request.",
    )
    http: str = _setting(
        "127.0.0.1:8091",
        "address",
        "Listener for health checks, status and metrics; 'off' switches it off.",
    )
    views: str = _setting(
        VIEWS_AUTO,
        "address",
        "Listener for design documents and queries of the index: HOST:PORT; 'off' switches it "
        f"off; 'auto' is {VIEWS_DEFAULT}, or off if that address is in use.",
    )
    tls_cert: str = _setting(
        "", "path", "PEM certificate chain; with tls_key it turns on TLS for both listeners."
    )
    tls_key: str = _setting("", "path", "PEM private key that belongs to tls_cert.")
    max_connections: int = _setting(
        10_000,
        "connections",
        "Connections above this limit get an error and are closed.",
        1,
        1_000_000,
    )
    buffer_bytes: int = _setting(
        BUFFER_BYTES,
        "bytes",
        "Limit for incomplete requests and unread replies of all connections; above it "
        "the oldest are closed.",
        4 * MIB,
        1_024 * GIB,
    )
    idle_timeout_s: float = _setting(
        0.0,
        "seconds",
        "Close a connection that transfers no bytes for this long; 0 = never.",
        0,
        86_400,
    )
    listen_backlog: int = _setting(1_024, "connections", "Length of the accept queue.", 1, 65_535)


@dataclass(frozen=True, slots=True)
class KvSettings:
    """Limits of one client conversation."""

    max_item_bytes: int = _setting(
        1 * MIB,
        "bytes",
        "Largest document: key, value and about 50 bytes of metadata.",
        1 * KIB,
        ITEM_LIMIT_MAX_BYTES,
    )
    max_frame_bytes: int = _setting(
        FRAME_MAX_BYTES,
        "bytes",
        "Close a connection that announces a larger frame; smaller ones are read and refused.",
        2 * MIB,
        2 * GIB,
    )
    max_line_bytes: int = _setting(
        2_048, "bytes", "Close a connection that sends a longer text line.", 512, 64 * KIB
    )
    max_retrieval_line_bytes: int = _setting(
        1 * MIB,
        "bytes",
        "Close a connection that sends a longer text line beginning with get or gets.",
        2 * KIB,
        64 * MIB,
    )
    max_unsent_bytes: int = _setting(
        1 * MIB,
        "bytes",
        "Stop reading requests from a client that has this much unread output.",
        64 * KIB,
        1 * GIB,
    )
    max_listed_keys: int = _setting(
        10_000,
        "keys",
        "Most keys that GET_KEYS returns, or that one OBSERVE may name.",
        1,
        100_000,
    )
    persistence_timeout_s: float = _setting(
        30.0, "seconds", "Longest time that SEQNO_PERSISTENCE waits before it fails.", 0.1, 3_600
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The vBuckets and what they hold."""

    vbuckets: int = _setting(
        0,
        "count",
        "Number of vBuckets, a power of two; it cannot change later. 0 = as stored, 1024 if new.",
        0,
        1_024,
    )
    expiry_interval_s: float = _setting(
        1.0, "seconds", "How often expired documents are deleted.", 1, 604_800
    )
    lock_default_s: int = _setting(
        15, "seconds", "Duration of a lock when the request names none.", 1, 30
    )
    lock_max_s: int = _setting(
        30, "seconds", "Longest lock; a request for a longer one gets the default duration.", 1, 30
    )
    max_failover_entries: int = _setting(
        25, "entries", "Number of entries that a failover log keeps.", 2, 1_000
    )
    after_unclean_start: str = _setting(
        "active",
        "active|pending",
        "State of formerly active vBuckets after a crash; a pending one serves no clients "
        "until it is made active.",
    )
    conflict_resolution: str = _setting(
        "stored",
        "stored|revision|timestamp",
        "What decides between two versions of a document that data centres made independently: "
        "the number of changes, or the time. It is fixed when the data directory is made; "
        "'stored' is what the directory has, 'revision' in a new one.",
    )


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """The quota and its marks, as shares of it."""

    quota: int = _setting(
        1 * GIB,
        "bytes",
        "Memory limit for keys, values and their bookkeeping.",
        8 * MIB,
        4_096 * GIB,
    )
    low_mark: float = _setting(
        0.75,
        "share",
        "Share of the quota at which eviction stops, and at which warm-up stops loading values.",
        0.1,
        0.98,
    )
    high_mark: float = _setting(
        0.85, "share", "Share of the quota at which eviction of persisted values starts.", 0.1, 0.98
    )
    mutation_limit: float = _setting(
        0.93, "share", "Share of the quota above which writes get a temporary failure.", 0.1, 1.0
    )
    pager_slice: int = _setting(
        100,
        "items",
        "Documents that the evictor examines before it checks the clock.",
        10,
        1_000_000,
    )


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """How queued changes reach the disk."""

    batch_items: int = _setting(
        30_000,
        "items",
        "A commit starts when this many changes are queued, and holds about this many at most.",
        1,
        1_000_000,
    )
    commit_memory: int = _setting(
        256 * MIB,
        "bytes",
        "Memory that the store may need to write one commit, at most an eighth of the quota.",
        1 * MIB,
        64 * GIB,
    )
    min_delay_s: float = _setting(
        0.02,
        "seconds",
        "Shortest time that a change waits, so that others can join its commit.",
        0,
        60,
    )
    max_delay_s: float = _setting(
        2.0, "seconds", "Longest time that a change waits before its commit starts.", 0, 60
    )
    rest_factor: float = _setting(
        19.0,
        "times",
        "Between both delays, wait this multiple of the last commit's duration.",
        0,
        1_000,
    )
    retry_delay_s: float = _setting(
        1.0, "seconds", "Wait this long after a failed commit before the next attempt.", 0.01, 600
    )
    sync: bool = _setting(
        True, "yes/no", "Make each commit wait until the device has written it (fsync)."
    )
    fetch_batch: int = _setting(
        1_000, "keys", "Most evicted values that are read from disk in one round.", 1, 100_000
    )
    fetch_rounds: int = _setting(
        4, "rounds", "Most rounds of reading evicted values that run at the same time.", 1, 64
    )


@dataclass(frozen=True, slots=True)
class PurgeSettings:
    """When the records of deletions are dropped for good."""

    interval_s: float = _setting(
        3_600.0, "seconds", "How often deletions are purged; 0 = only on request.", 0, 604_800
    )
    min_age_s: int = _setting(
        PURGE_AGE_AUTO,
        "seconds",
        "Keep deletions for this long; a consumer that has no watermark and was away for longer "
        "is resynced from zero. -1 = 259,200 if a stream without a watermark was served within "
        "that time, otherwise 0.",
        PURGE_AGE_AUTO,
        315_360_000,
    )
    max_rows: int = _setting(
        1_024, "rows", "Clients that may be registered for one vBucket.", 1, 65_536
    )
    max_pinned_bytes: int = _setting(
        0,
        "bytes",
        "Deletions that may be kept for one registered client alone; one that keeps more is "
        "forgotten early. 0 = no limit.",
        0,
        16 * 1024 * GIB,
    )
    expires_other_s: int = _lifetime(3_600, "of no special kind")
    expires_xdcr_s: int = _lifetime(3_600, "that replicates to another cluster")
    expires_index_s: int = _lifetime(86_400, "that maintains an index")
    expires_replica_s: int = _lifetime(3_600, "that is a replica")
    expires_rebalance_s: int = _lifetime(900, "that moves vBuckets")
    expires_backup_s: int = _lifetime(691_200, "that makes backups")
    expires_spark_s: int = _lifetime(86_400, "that is a Spark stream")
    slice: float = _setting(
        0.002,
        "seconds",
        "Time that one look for deletions in a worker thread takes before others may run.",
        0.0001,
        1,
    )
    batch_items: int = _setting(
        10_000, "tombstones", "Most deletions that one commit drops for good.", 1, 1_000_000
    )
    rate: int = _setting(
        0, "tombstones/s", "Most deletions that are purged in a second; 0 = no limit.", 0, 10**9
    )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The files."""

    data: str = _setting("./uprmc-data", "path", "Data directory; created when it does not exist.")
    map_initial: int = _setting(
        16 * GIB,
        "bytes",
        "Address space reserved for the store at first; doubled as the store grows.",
        1 * MIB,
        64 * 1024 * GIB,
    )
    map_max: int = _setting(
        16 * 1024 * GIB, "bytes", "Largest size of the store.", 1 * MIB, 64 * 1024 * GIB
    )


@dataclass(frozen=True, slots=True)
class UprSettings:
    """Streams and what they may hold."""

    rollback_rule: str = _setting(
        "current",
        "current|3.0.0",
        "Rule that judges a consumer's position: the current one, or that of UPR 3.0.0 (2014).",
    )
    register: str = _setting(
        "off",
        "off|connected",
        "With connected, deletions are kept for each named connection with flow control, as for a "
        "registered client of kind other: until it has acknowledged them, or until "
        "`purge.expires_other_s` after it has closed.",
    )
    add_stream_on_active: bool = _setting(
        False,
        "yes/no",
        "Let a consumer add streams for active vBuckets, as was allowed until August 2014.",
    )
    noop_interval_s: float = _setting(
        180.0,
        "seconds",
        "Keep-alive interval of connections that enable keep-alives and name no interval.",
        1,
        10_800,
    )
    backfills: int = _setting(
        64, "streams", "Streams that may read the disk at the same time.", 1, 1_024
    )
    backfills_per_connection: int = _setting(
        8,
        "streams",
        "Streams of one connection that may read the disk at the same time; its others wait.",
        1,
        1_024,
    )
    reading_max_s: float = _setting(
        30.0,
        "seconds",
        "Longest time that a stream keeps one view of the data; then it continues from a new one.",
        0.1,
        3_600,
    )
    reading_items: int = _setting(
        10_000,
        "items",
        "Replaced queue entries of a vBucket kept for streams; above this they continue "
        "from new views.",
        1,
        10_000_000,
    )
    watermarks_interval_s: float = _setting(
        1.0,
        "seconds",
        "How often at most a replica reports what it has on disk, and a source sends its "
        "watermarks to a replica.",
        0.01,
        3_600,
    )
    consumer_buffer: int = _setting(
        10 * MIB,
        "bytes",
        "Bytes that a source may send to this node before it waits for an acknowledgement.",
        64 * KIB,
        1 * GIB,
    )
    barriers: int = _setting(
        256, "cookies", "Barriers that one connection may have pending.", 1, 100_000
    )
    known_versions: int = _setting(
        64, "entries", "Histories that one stream request may name.", 1, 10_000
    )
    leases: int = _setting(
        16, "leases", "Snapshot leases that may be open at the same time.", 1, 1_000
    )
    lease_max_s: int = _setting(
        3_600,
        "seconds",
        "Longest lifetime of a lease; a longer one is shortened to this.",
        1,
        86_400,
    )
    rollback_keys: int = _setting(
        100_000,
        "documents",
        "Most documents that a replica undoes after a rollback; with more it is resynced "
        "from zero.",
        0,
        10_000_000,
    )
    sources: int = _setting(64, "nodes", "Nodes that this one may replicate from.", 1, 1_000)
    dial_timeout_s: float = _setting(
        10.0,
        "seconds",
        "Close a connection to a source that does not answer for this long, and retry.",
        0.1,
        600,
    )
    redial_max_s: float = _setting(
        15.0, "seconds", "Longest wait between two attempts to reach a source.", 0.1, 3_600
    )
    dial_ca: str = _setting(
        "",
        "path",
        "PEM certificate of the authority that signs sources' certificates; empty = "
        "connect without TLS.",
    )


@dataclass(frozen=True, slots=True)
class XdcrSettings:
    """Links to other clusters, and what they may hold."""

    links: int = _setting(32, "links", "Links that this node may have.", 1, 1_000)
    batches: int = _setting(
        32,
        "batches",
        "Batches that a link may have sent to one node of its target without an answer; what it "
        "has read at once may exceed it.",
        1,
        1_000,
    )
    unanswered_bytes: int = _setting(
        16 * MIB,
        "bytes",
        "Bytes that a link may have sent to one node of its target without an answer; the last "
        "document may exceed it.",
        64 * KIB,
        4 * GIB,
    )
    queued_parts: int = _setting(
        4_096,
        "parts",
        "Groups of changes that a link has read and not sent: they wait for another node, or for "
        "`ship`. With this many it reads no more.",
        1,
        1_000_000,
    )
    queued_bytes: int = _setting(
        64 * MIB,
        "bytes",
        "Bytes of such changes; with this many a link reads no more.",
        64 * KIB,
        4 * GIB,
    )
    records: int = _setting(
        64,
        "checkpoints",
        "Checkpoints of other nodes' links that are kept for one vBucket; the oldest go first.",
        5,
        10_000,
    )
    branches: int = _setting(
        1_000,
        "entries",
        "Ranges of lost changes that the status of a link shows; the oldest go first.",
        1,
        100_000,
    )
    listed_keys: int = _setting(
        100, "keys", "Keys that `uprmc xdcr reconcile` lists for one vBucket.", 0, 10_000
    )
    reconcile_wait_s: float = _setting(
        60.0,
        "seconds",
        "End `uprmc xdcr reconcile` when it has lost its target and has got no further for this "
        "long.",
        0,
        3_600,
    )
    dial_timeout_s: float = _setting(
        15.0,
        "seconds",
        "Give up a connection to a target if it does not tell what it has within this time; retry.",
        0.1,
        600,
    )
    redial_max_s: float = _setting(
        5.0, "seconds", "Longest wait between two attempts to reach a target.", 0.1, 3_600
    )
    silence_s: float = _setting(
        30.0,
        "seconds",
        "Give up a connection to a target that answers nothing for this long, and retry.",
        1,
        3_600,
    )


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Map/reduce indexes: how they keep up, what they may hold, and what one request may take."""

    update_interval_s: float = _setting(
        5.0,
        "seconds",
        "Write the header of an index file, from which it goes on after a crash, this often while "
        "changes come.",
        0,
        3_600,
    )
    update_min_changes: int = _setting(
        5_000, "changes", "Write it earlier after this many changes.", 1, 10_000_000
    )
    max_key_bytes: int = _setting(
        4_096, "bytes", "Largest key that a map may emit, as JSON.", 16, 1 * MIB
    )
    max_row_bytes: int = _setting(
        1 * MIB, "bytes", "Largest value that a map may emit, as JSON.", 16, 64 * MIB
    )
    max_document_bytes: int = _setting(
        16 * MIB,
        "bytes",
        "Most that all rows of one document may have in one view.",
        1 * KIB,
        1 * GIB,
    )
    max_document_rows: int = _setting(
        100_000, "rows", "Most rows of one document in one view.", 1, 10_000_000
    )
    max_reduction_bytes: int = _setting(
        65_535, "bytes", "Largest value that a reduce may return, as JSON.", 16, 1 * MIB
    )
    max_definition_bytes: int = _setting(
        1 * MIB, "bytes", "Largest design document.", 1 * KIB, 64 * MIB
    )
    designs: int = _setting(64, "designs", "Design documents that may exist.", 1, 10_000)
    views: int = _setting(64, "views", "Views of one design document.", 1, 1_000)
    fragmentation: float = _setting(
        0.3,
        "fraction",
        "Compact an index file when this much of it is no longer used; 1 = only on request.",
        0.01,
        1,
    )
    compact_min_bytes: int = _setting(
        1 * MIB, "bytes", "Compact no index file that is smaller than this.", 4 * KIB, 1_024 * GIB
    )
    workers: int = _setting(
        1, "processes", "Processes that run the JavaScript of one design document.", 1, 64
    )
    nice: int = _setting(
        0,
        "levels",
        "Run the index of a node at a priority that is lower than the node's by this much.",
        0,
        19,
    )
    worker_memory: int = _setting(
        512 * MIB, "bytes", "Memory of one such process.", 64 * MIB, 64 * GIB
    )
    map_timeout_s: float = _setting(
        5.0,
        "seconds",
        "Give up a document, or a reduction, whose function runs for this long.",
        0.01,
        3_600,
    )
    keep_old_s: float = _setting(
        3_600.0,
        "seconds",
        "Keep the index of a changed design document for this long, so that the change can be "
        "undone.",
        0,
        2_592_000,
    )
    python_modules: str = _setting(
        "", "names", "Comma-separated modules whose functions may be used as maps."
    )
    nodes: str = _setting(
        "",
        "addresses",
        "Comma-separated views listeners over which queries are scattered; empty = this one only.",
    )
    replicas: bool = _setting(
        False,
        "yes/no",
        "Index replica vBuckets, too, apart from the others, so that a failover needs no build.",
    )
    connection_timeout_s: float = _setting(
        60.0,
        "seconds",
        "Wait this long for an index to be fresh enough if the request does not say; then answer "
        "504.",
        0.001,
        86_400,
    )
    poll_s: float = _setting(
        1.0, "seconds", "Ask the source this often which vBuckets are active there.", 0.05, 60
    )
    queue_bytes: int = _setting(
        16 * MIB,
        "bytes",
        "Changes that an index has received and not yet applied; then it reads no more.",
        1 * MIB,
        4 * GIB,
    )
    batch_changes: int = _setting(
        5_000, "changes", "Most changes that one update of the trees applies.", 1, 1_000_000
    )
    sort_bytes: int = _setting(
        64 * MIB,
        "bytes",
        "Memory for sorting the rows of a first build; what does not fit is sorted in files.",
        1 * MIB,
        64 * GIB,
    )
    cache_bytes: int = _setting(
        64 * MIB,
        "bytes",
        "Memory for parts of index files that were read, of all indexes together.",
        1 * MIB,
        1_024 * GIB,
    )
    waiting: int = _setting(
        10_000, "requests", "Requests that may wait for one index; others get 503.", 1, 1_000_000
    )
    map_errors: int = _setting(
        100, "documents", "Documents whose maps failed that are remembered.", 0, 10_000
    )
    connections: int = _setting(
        2_000, "connections", "Connections above this limit are closed.", 1, 100_000
    )
    query_threads: int = _setting(
        4, "threads", "Threads that make the answers to queries, for all connections.", 1, 256
    )
    max_request_bytes: int = _setting(
        1 * MIB, "bytes", "Largest body of a query, such as a list of keys.", 1 * KIB, 64 * MIB
    )
    stall_timeout_s: float = _setting(
        30.0,
        "seconds",
        "Disconnect a client that does not read its answer for this long.",
        0.1,
        86_400,
    )
    cors_origins: str = _setting(
        "",
        "origins",
        "Comma-separated origins, or *, whose web pages may use this listener; empty = none.",
    )


@dataclass(frozen=True, slots=True)
class TapSettings:
    """Replicas, masters and tools that speak TAP."""

    enabled: bool = _setting(True, "yes/no", "Serve TAP on the listeners.")
    ack_interval: int = _setting(
        1_000,
        "messages",
        "Ask a client for an acknowledgement after this many messages.",
        1,
        1_000_000,
    )
    ack_window: int = _setting(
        10, "intervals", "Stop sending when this many intervals are unacknowledged.", 1, 1_000
    )
    ack_grace_s: float = _setting(
        300.0,
        "seconds",
        "Disconnect a client that sends no acknowledgement for this long.",
        1,
        86_400,
    )
    backoff_s: float = _setting(
        5.0, "seconds", "Pause after a client reports a temporary failure.", 0, 3_600
    )
    noop_interval_s: float = _setting(
        200.0, "seconds", "Send a keep-alive on a stream that was silent for this long.", 1, 10_800
    )
    keepalive_s: float = _setting(
        0.0,
        "seconds",
        "How long the position of a named client is kept after it disconnects.",
        0,
        86_400,
    )
    registered_expiry_s: float = _setting(
        604_800.0,
        "seconds",
        "How long a registered client's position is kept after it disconnects, also over restarts.",
        60,
        31_536_000,
    )
    names: int = _setting(
        1_000,
        "names",
        "Most clients, connected or remembered; further ones are refused.",
        1,
        100_000,
    )
    undo_keys: int = _setting(
        10_000,
        "keys",
        "Most keys that are remembered per client to correct it after a rollback.",
        0,
        10_000_000,
    )
    rollback: str = _setting(
        "rewind",
        "rewind|restart",
        "What a client gets after a rollback: corrections, or everything from the beginning.",
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What standard error says."""

    level: str = _setting("info", "debug|info|warn|error", "Least important level that is shown.")
    format: str = _setting(
        "text", "text|json", "One line per event: text for people, json for programs."
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections. Build it with `load`, or directly in tests."""

    server: ServerSettings = field(default_factory=ServerSettings)
    kv: KvSettings = field(default_factory=KvSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    purge: PurgeSettings = field(default_factory=PurgeSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    upr: UprSettings = field(default_factory=UprSettings)
    xdcr: XdcrSettings = field(default_factory=XdcrSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    tap: TapSettings = field(default_factory=TapSettings)
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting, described for help pages and statistics."""

    name: str
    kind: type
    default: Any
    unit: str
    low: float | None
    high: float | None
    doc: str


_SECTIONS: dict[str, type[Any]] = {
    "server": ServerSettings,
    "kv": KvSettings,
    "engine": EngineSettings,
    "memory": MemorySettings,
    "flush": FlushSettings,
    "purge": PurgeSettings,
    "storage": StorageSettings,
    "upr": UprSettings,
    "xdcr": XdcrSettings,
    "index": IndexSettings,
    "tap": TapSettings,
    "log": LogSettings,
}

_CHOICES = {
    "engine.after_unclean_start": ("active", "pending"),
    "engine.conflict_resolution": ("stored", "revision", "timestamp"),
    "upr.register": ("off", "connected"),
    "upr.rollback_rule": ("current", "3.0.0"),
    "tap.rollback": ("rewind", "restart"),
    "log.level": ("debug", "info", "warn", "error"),
    "log.format": ("text", "json"),
}

#: Settings that have another name now.
_FORMER_NAMES = {"engine.compaction_slice": "purge.batch_items"}

#: Values that have another name now.
_FORMER_VALUES = {"tap.rollback": {"correct": "rewind", "reset": "restart"}}


def describe() -> Iterator[SettingInfo]:
    """Yield every setting in the order in which they are declared."""
    defaults = Settings()
    for section in fields(Settings):
        values = getattr(defaults, section.name)
        for item in fields(values):
            default = getattr(values, item.name)
            meta = item.metadata
            yield SettingInfo(
                f"{section.name}.{item.name}",
                type(default),
                default,
                meta["unit"],
                meta["low"],
                meta["high"],
                meta["doc"],
            )


def values_of(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield ``(name, value)`` of every setting in force."""
    for info in describe():
        section, name = info.name.split(".")
        yield info.name, getattr(getattr(settings, section), name)


def _converted(info: SettingInfo, value: Any) -> Any:
    if isinstance(value, str) and info.kind is not str:
        value = _from_text(info, value)
    if info.kind is float and type(value) is int:
        value = _as_float(value)
    if type(value) is not info.kind:
        raise ConfigError(f"{info.name}: {value!r} is not {_kind_name(info)}")
    return value


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # the range check refuses it


def _from_text(info: SettingInfo, text: str) -> Any:
    try:
        return _reader(info)(text)
    except ValueError as error:
        raise ConfigError(f"{info.name}: {text!r} is not {error}") from None


def _reader(info: SettingInfo) -> Callable[[str], Any]:
    if info.kind is bool:
        return units.switch
    if info.unit == "bytes":
        return units.size
    if info.unit == "seconds":
        return units.seconds if info.kind is float else _whole_seconds
    return lambda text: _number(info, text)


def _whole_seconds(text: str) -> int:
    found = units.seconds(text)
    if not found.is_integer():
        raise ValueError("a whole number of seconds")
    return int(found)


def _number(info: SettingInfo, text: str) -> Any:
    try:
        return info.kind(text)
    except ValueError:
        raise ValueError(_kind_name(info)) from None


def _kind_name(info: SettingInfo) -> str:
    names = {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}
    return f"{names[info.kind]} of {info.unit}" if info.kind in (int, float) else names[info.kind]


def _checked(info: SettingInfo, value: Any) -> Any:
    value = _converted(info, value)
    if info.low is not None and not value >= info.low:
        raise ConfigError(f"{info.name}: {value} is below the least, {info.low} {info.unit}")
    if info.high is not None and not value <= info.high:
        raise ConfigError(f"{info.name}: {value} is above the most, {info.high} {info.unit}")
    choices = _CHOICES.get(info.name)
    if choices and value not in choices:
        raise ConfigError(f"{info.name}: {value!r} is none of {', '.join(choices)}")
    return value


def build(changes: Mapping[str, Any]) -> Settings:
    """Make settings from the defaults and ``{"section.name": value}``; text values are converted.

    Raises:
        ConfigError: a name is unknown, a value malformed or out of range, or two contradict.
    """
    known = {info.name: info for info in describe()}
    sections: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        if name not in known:
            meant = units.nearest(name, list(known))
            hint = f"did you mean {meant}?" if meant else "'uprmc settings' lists them all"
            raise ConfigError(f"there is no setting {name!r}; {hint}")
        section, item = name.split(".")
        sections.setdefault(section, {})[item] = _checked(known[name], value)
    settings = Settings(
        **{name: kind(**sections.get(name, {})) for name, kind in _SECTIONS.items()}
    )
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    vbuckets = settings.engine.vbuckets
    if vbuckets & (vbuckets - 1):
        raise ConfigError(f"engine.vbuckets: {vbuckets} is not a power of two")
    memory = settings.memory
    if not memory.low_mark < memory.high_mark < memory.mutation_limit:
        raise ConfigError("memory: low_mark < high_mark < mutation_limit must hold")
    if bool(settings.server.tls_cert) != bool(settings.server.tls_key):
        raise ConfigError("server.tls_cert and server.tls_key go together; one is missing")
    if settings.kv.max_item_bytes > memory.quota * memory.mutation_limit:
        raise ConfigError("kv.max_item_bytes: such an item would not fit into memory.quota")
    if settings.kv.max_item_bytes > settings.kv.max_frame_bytes - 1 * MIB:
        raise ConfigError("kv.max_item_bytes must be at least 1 MiB below kv.max_frame_bytes")
    if settings.kv.max_item_bytes > settings.server.buffer_bytes // 2:
        raise ConfigError("kv.max_item_bytes: server.buffer_bytes must be at least twice as much")
    if settings.storage.map_initial > settings.storage.map_max:
        raise ConfigError("storage.map_initial is above storage.map_max")


def from_file(path: Path) -> dict[str, Any]:
    """Read a TOML file into ``{"section.name": value}``; raises `ConfigError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: {error}") from None
    found: dict[str, Any] = {}
    for section, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section!r} stands outside of a [section]")
        found.update({f"{section}.{name}": value for name, value in table.items()})
    return found


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Pick ``UPRMC_SECTION_NAME`` variables; one that names no setting is refused."""
    names = [*(info.name for info in describe()), *_FORMER_NAMES]
    known = {f"UPRMC_{name.replace('.', '_').upper()}": name for name in names}
    found: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith("UPRMC_") or variable in _OF_VERBS:
            continue
        if variable not in known:
            raise ConfigError(f"the environment variable {variable} names no setting")
        found[known[variable]] = value
    return found


def _unheard(_: str) -> None:
    """Take a warning that is of no interest."""


def load(
    file: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
    warn: Callable[[str], None] = _unheard,
) -> Settings:
    """Combine file, environment and command line options, later ones winning.

    `warn` is called with a line about each setting and each value that has another name now.
    """
    changes: dict[str, Any] = {}
    for source in (from_file(file) if file else {}, from_environment(environment), options):
        for name, value in source.items():
            if name in _FORMER_NAMES:
                warn(f"{name} is now {_FORMER_NAMES[name]}")
            changes[_FORMER_NAMES.get(name, name)] = value
    for name, former in _FORMER_VALUES.items():
        given = changes.get(name)
        if isinstance(given, str) and given in former:
            changes[name] = former[given]
            warn(f"{given!r} of {name} is now {former[given]!r}")
    return build(changes)
