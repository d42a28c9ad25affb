"""All settings, by section: each with its default, unit, range and one line of help."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from uprmc.errors import ConfigError


def setting(
    default: Any, unit: str, doc: str, low: float | None = None, high: float | None = None
) -> Any:
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "doc": doc})


def lifetime(default_s: int, whose: str) -> Any:
    doc = f"Forget a registered client {whose} after this long without a report; 0 = never."
    return setting(default_s, "seconds", doc, 0, 315_360_000)


# --- sizes ----------------------------------------------------------------------------------------
# Units of sizes, and the largest things that any wire carries.


KIB = 1024


MIB = 1024 * KIB


GIB = 1024 * MIB


#: Highest value of ``kv.max_item_bytes``.
ITEM_LIMIT_MAX_BYTES = 128 * MIB


#: Largest frame on any wire: such an item, and all that can stand around its key and value.
FRAME_MAX_BYTES = ITEM_LIMIT_MAX_BYTES + 1 * MIB


# --- serving --------------------------------------------------------------------------------------
# Settings of listeners, of requests for keys and values, and of the log.


#: What connections may hold, all together, when nobody sets it.
BUFFER_BYTES = 256 * MIB

#: Where a node listens for views when nobody says where.
VIEWS_DEFAULT = "127.0.0.1:8092"

#: Permissions of a unix socket when nobody sets them.
UNIX_MODE = 0o700


def unix_mode(text: str, setting: str) -> int:
    """Read permissions in octal; raises `ConfigError`."""
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ConfigError(f"{setting}: {text!r} are no permissions in octal: say 700, or 770")
    return int(text, 8)


#: Value of ``server.views`` that means this address, or none if another process has it.
VIEWS_AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Listeners and connections."""

    memcached: str = setting(
        "127.0.0.1:11211",
        "address",
        "Listener for memcached clients: HOST:PORT, several of them separated by commas, "
        "unix:/path, or a Twisted endpoint.",
    )
    upr: str = setting(
        "127.0.0.1:11210",
        "address",
        "Listener for UPR, TAP and vBucket-aware clients; it uses the vBucket in the request.",
    )
    http: str = setting(
        "127.0.0.1:8091",
        "address",
        "Listener for health checks, status and metrics; 'off' switches it off.",
    )
    views: str = setting(
        VIEWS_AUTO,
        "address",
        "Listener for design documents and queries of the index: HOST:PORT; 'off' switches it "
        f"off; 'auto' is {VIEWS_DEFAULT}, or off if that address is in use.",
    )
    tls_cert: str = setting(
        "", "path", "PEM certificate chain; with tls_key it turns on TLS for all listeners."
    )
    tls_key: str = setting("", "path", "PEM private key that belongs to tls_cert.")
    http_tls: bool = setting(
        True,
        "yes/no",
        "With tls_cert, the listeners http and views speak HTTPS; 'no' leaves them at HTTP, for a "
        "proxy on the same machine that adds TLS.",
    )
    http_hosts: str = setting(
        "",
        "names",
        "Names, separated by commas, by which clients may call the listeners http and views, "
        "besides addresses, localhost and the name of this machine; '*' = any. A request whose "
        "header Host has another one gets 403: it may come from a web page of elsewhere.",
    )
    users: str = setting(
        "",
        "path",
        "File of users, made by 'uprmc user add'; with it everybody has to log in, on all "
        "listeners.",
    )
    login_timeout_s: float = setting(
        60.0,
        "seconds",
        "Close a connection that has not finished its TLS handshake, or that has not logged in to "
        "a node with users, for this long.",
        1,
        3_600,
    )
    max_connections: int = setting(
        10_000,
        "connections",
        "Connections above this limit get an error and are closed.",
        1,
        1_000_000,
    )
    buffer_bytes: int = setting(
        BUFFER_BYTES,
        "bytes",
        "Limit for incomplete requests and unread replies of all connections; above it "
        "the oldest are closed.",
        4 * MIB,
        1_024 * GIB,
    )
    idle_timeout_s: float = setting(
        0.0,
        "seconds",
        "Close a connection that transfers no bytes for this long; 0 = never.",
        0,
        86_400,
    )
    listen_backlog: int = setting(1_024, "connections", "Length of the accept queue.", 1, 65_535)
    unix_mode: str = setting(
        f"{UNIX_MODE:o}",
        "permissions",
        "Who may connect to listeners that are unix sockets, in octal: 700 is the node's own user, "
        "770 its group, too. An address such as unix:/path:mode=770 says so for itself.",
    )


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits of answers over HTTP that have no end."""

    change_readers: int = setting(
        16, "readers", "Readers of /changes above this limit get 503; 0 = none may read.", 0, 1_000
    )
    event_readers: int = setting(
        64,
        "readers",
        "Readers of /events as server-sent events above this limit get 503; 0 = none may read.",
        0,
        1_000,
    )
    viewers: int = setting(
        32, "pages", "Open pages (readers of /live) above this limit get 503; 0 = none.", 0, 1_000
    )
    reader_buffer_bytes: int = setting(
        128 * KIB,
        "bytes",
        "What the node's streams may be ahead of a reader of /changes.",
        16 * KIB,
        64 * MIB,
    )
    reader_timeout_s: float = setting(
        60.0,
        "seconds",
        "Disconnect a reader that leaves unread what was sent, for this long.",
        1,
        3_600,
    )

    @property
    def readers(self) -> int:
        """How many readers there may be of all kinds together."""
        return self.change_readers + self.event_readers + self.viewers

    @property
    def stream_files(self) -> int:
        """How many descriptors streams of the node to its own readers of changes take."""
        return 2 * self.change_readers


@dataclass(frozen=True, slots=True)
class KvSettings:
    """Limits of one client conversation."""

    max_item_bytes: int = setting(
        1 * MIB,
        "bytes",
        "Largest document: key, value and about 50 bytes of metadata.",
        1 * KIB,
        ITEM_LIMIT_MAX_BYTES,
    )
    max_frame_bytes: int = setting(
        FRAME_MAX_BYTES,
        "bytes",
        "Close a connection that announces a larger frame; smaller ones are read and refused.",
        2 * MIB,
        2 * GIB,
    )
    max_line_bytes: int = setting(
        2_048,
        "bytes",
        "Close a connection that sends a longer text line, except get and gat.",
        512,
        64 * KIB,
    )
    max_unsent_bytes: int = setting(
        1 * MIB,
        "bytes",
        "Stop reading requests from a client that has this much unread output.",
        64 * KIB,
        1 * GIB,
    )
    max_listed_keys: int = setting(
        10_000,
        "keys",
        "Most keys that GET_KEYS returns, or that one OBSERVE may name.",
        1,
        100_000,
    )
    persistence_timeout_s: float = setting(
        30.0, "seconds", "Longest time that SEQNO_PERSISTENCE waits before it fails.", 0.1, 3_600
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What standard error says."""

    level: str = setting("info", "debug|info|warn|error", "Least important level that is shown.")
    format: str = setting(
        "text", "text|json", "One line per event: text for people, json for programs."
    )
    audit: str = setting(
        "", "path", "File for one line of JSON per login, command for managers and refusal."
    )


# --- streaming ------------------------------------------------------------------------------------
# Settings of streams: UPR and TAP.


@dataclass(frozen=True, slots=True)
class UprSettings:
    """Streams and what they may hold."""

    rollback_rule: str = setting(
        "current",
        "current|3.0.0",
        "Rule that judges a consumer's position: the current one, or that of UPR 3.0.0 (2014).",
    )
    register: str = setting(
        "off",
        "off|connected",
        "With connected, deletions are kept for each named connection with flow control, as for a "
        "registered client of kind other: until it has acknowledged them, or until "
        "`purge.expires_other_s` after it has closed.",
    )
    add_stream_on_active: bool = setting(
        False,
        "yes/no",
        "Let a consumer add streams for active vBuckets, as was allowed until August 2014.",
    )
    noop_interval_s: float = setting(
        180.0,
        "seconds",
        "Keep-alive interval of connections that enable keep-alives and name no interval.",
        1,
        10_800,
    )
    backfills: int = setting(
        64, "streams", "Streams that may read the disk at the same time.", 1, 1_024
    )
    backfills_per_connection: int = setting(
        8,
        "streams",
        "Streams of one connection that may read the disk at the same time; its others wait.",
        1,
        1_024,
    )
    reading_max_s: float = setting(
        30.0,
        "seconds",
        "Longest time that a stream keeps one view of the data; then it continues from a new one.",
        0.1,
        3_600,
    )
    reading_items: int = setting(
        10_000,
        "items",
        "Replaced queue entries of a vBucket kept for streams; above this they continue "
        "from new views.",
        1,
        10_000_000,
    )
    watermarks_interval_s: float = setting(
        1.0,
        "seconds",
        "How often at most a replica reports what it has on disk, and a source sends its "
        "watermarks to a replica.",
        0.01,
        3_600,
    )
    consumer_buffer: int = setting(
        10 * MIB,
        "bytes",
        "Bytes that a source may send to this node before it waits for an acknowledgement.",
        64 * KIB,
        1 * GIB,
    )
    barriers: int = setting(
        256, "cookies", "Barriers that one connection may have pending.", 1, 100_000
    )
    known_versions: int = setting(
        64, "entries", "Histories that one stream request may name.", 1, 10_000
    )
    leases: int = setting(
        16, "leases", "Snapshot leases that may be open at the same time.", 1, 1_000
    )
    lease_max_s: int = setting(
        3_600,
        "seconds",
        "Longest lifetime of a lease; a longer one is shortened to this.",
        1,
        86_400,
    )
    rollback_keys: int = setting(
        100_000,
        "documents",
        "Most documents that a replica undoes after a rollback; with more it is resynced "
        "from zero.",
        0,
        10_000_000,
    )
    sources: int = setting(64, "nodes", "Nodes that this one may replicate from.", 1, 1_000)
    dial_timeout_s: float = setting(
        10.0,
        "seconds",
        "Close a connection to a source that does not answer for this long, and retry.",
        0.1,
        600,
    )
    redial_max_s: float = setting(
        15.0, "seconds", "Longest wait between two attempts to reach a source.", 0.1, 3_600
    )
    dial_ca: str = setting(
        "",
        "path",
        "PEM certificate of the authority that signs sources' certificates; empty = "
        "connect without TLS.",
    )
    dial_user: str = setting(
        "", "name", "User that this node logs in to sources as; empty = it does not log in."
    )
    dial_password_file: str = setting(
        "", "path", "File whose first line is the password of dial_user."
    )


@dataclass(frozen=True, slots=True)
class TapSettings:
    """Replicas, masters and tools that speak TAP."""

    enabled: bool = setting(True, "yes/no", "Serve TAP on the listeners.")
    ack_interval: int = setting(
        1_000,
        "messages",
        "Ask a client for an acknowledgement after this many messages.",
        1,
        1_000_000,
    )
    ack_window: int = setting(
        10, "intervals", "Stop sending when this many intervals are unacknowledged.", 1, 1_000
    )
    ack_grace_s: float = setting(
        300.0,
        "seconds",
        "Disconnect a client that sends no acknowledgement for this long.",
        1,
        86_400,
    )
    backoff_s: float = setting(
        5.0, "seconds", "Pause after a client reports a temporary failure.", 0, 3_600
    )
    noop_interval_s: float = setting(
        200.0, "seconds", "Send a keep-alive on a stream that was silent for this long.", 1, 10_800
    )
    keepalive_s: float = setting(
        0.0,
        "seconds",
        "How long the position of a named client is kept after it disconnects.",
        0,
        86_400,
    )
    registered_expiry_s: float = setting(
        604_800.0,
        "seconds",
        "How long a registered client's position is kept after it disconnects, also over restarts.",
        60,
        31_536_000,
    )
    names: int = setting(
        1_000,
        "names",
        "Most clients, connected or remembered; further ones are refused.",
        1,
        100_000,
    )
    undo_keys: int = setting(
        10_000,
        "keys",
        "Most keys that are remembered per client to correct it after a rollback.",
        0,
        10_000_000,
    )
    rollback: str = setting(
        "rewind",
        "rewind|restart",
        "What a client gets after a rollback: corrections, or everything from the beginning.",
    )


# --- keeping --------------------------------------------------------------------------------------
# Settings of the data: vBuckets, memory, the disk, and what is forgotten.


#: Value of ``purge.min_age_s`` that leaves the age to the node.
PURGE_AGE_AUTO = -1


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The vBuckets and what they hold."""

    vbuckets: int = setting(
        0,
        "count",
        "Number of vBuckets, a power of two; it cannot change later. 0 = as stored, 1024 if new.",
        0,
        1_024,
    )
    expiry_interval_s: float = setting(
        1.0, "seconds", "How often expired documents are deleted.", 1, 604_800
    )
    lock_default_s: int = setting(
        15, "seconds", "Duration of a lock when the request names none.", 1, 30
    )
    lock_max_s: int = setting(
        30, "seconds", "Longest lock; a request for a longer one gets the default duration.", 1, 30
    )
    max_failover_entries: int = setting(
        25, "entries", "Number of entries that a failover log keeps.", 2, 1_000
    )
    after_unclean_start: str = setting(
        "active",
        "active|pending",
        "State of formerly active vBuckets after a crash; a pending one serves no clients "
        "until it is made active.",
    )
    conflict_resolution: str = setting(
        "stored",
        "stored|revision|timestamp",
        "What decides between two versions of a document that data centres made independently: "
        "the number of changes, or the time. It is fixed when the data directory is made; "
        "'stored' is what the directory has, 'revision' in a new one.",
    )


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """The quota and its marks, as shares of it."""

    quota: int = setting(
        1 * GIB,
        "bytes",
        "Memory limit for keys, values and their bookkeeping.",
        8 * MIB,
        4_096 * GIB,
    )
    low_mark: float = setting(
        0.75,
        "share",
        "Share of the quota at which eviction stops, and at which warm-up stops loading values.",
        0.1,
        0.98,
    )
    high_mark: float = setting(
        0.85, "share", "Share of the quota at which eviction of persisted values starts.", 0.1, 0.98
    )
    mutation_limit: float = setting(
        0.93, "share", "Share of the quota above which writes get a temporary failure.", 0.1, 1.0
    )
    pager_slice: int = setting(
        100,
        "items",
        "Documents that the evictor examines before it checks the clock.",
        10,
        1_000_000,
    )


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """How queued changes reach the disk."""

    batch_items: int = setting(
        30_000,
        "items",
        "A commit starts when this many changes are queued, and holds about this many at most.",
        1,
        1_000_000,
    )
    commit_memory: int = setting(
        256 * MIB,
        "bytes",
        "Memory that the store may need to write one commit, at most an eighth of the quota.",
        1 * MIB,
        64 * GIB,
    )
    min_delay_s: float = setting(
        0.02,
        "seconds",
        "Shortest time that a change waits, so that others can join its commit.",
        0,
        60,
    )
    max_delay_s: float = setting(
        2.0, "seconds", "Longest time that a change waits before its commit starts.", 0, 60
    )
    rest_factor: float = setting(
        19.0,
        "times",
        "Between both delays, wait this multiple of the last commit's duration.",
        0,
        1_000,
    )
    retry_delay_s: float = setting(
        1.0, "seconds", "Wait this long after a failed commit before the next attempt.", 0.01, 600
    )
    sync: bool = setting(
        True, "yes/no", "Make each commit wait until the device has written it (fsync)."
    )
    fetch_batch: int = setting(
        1_000, "keys", "Most evicted values that are read from disk in one round.", 1, 100_000
    )
    fetch_rounds: int = setting(
        4, "rounds", "Most rounds of reading evicted values that run at the same time.", 1, 64
    )


@dataclass(frozen=True, slots=True)
class PurgeSettings:
    """When the records of deletions are dropped for good."""

    interval_s: float = setting(
        3_600.0, "seconds", "How often deletions are purged; 0 = only on request.", 0, 604_800
    )
    min_age_s: int = setting(
        PURGE_AGE_AUTO,
        "seconds",
        "Keep deletions for this long; a consumer that has no watermark and was away for longer "
        "is resynced from zero. -1 = 259,200 if a stream without a watermark was served within "
        "that time, otherwise 0.",
        PURGE_AGE_AUTO,
        315_360_000,
    )
    max_rows: int = setting(
        1_024, "rows", "Clients that may be registered for one vBucket.", 1, 65_536
    )
    max_pinned_bytes: int = setting(
        0,
        "bytes",
        "Deletions that may be kept for one registered client alone; one that keeps more is "
        "forgotten early. 0 = no limit.",
        0,
        16 * 1024 * GIB,
    )
    expires_other_s: int = lifetime(3_600, "of no special kind")
    expires_xdcr_s: int = lifetime(3_600, "that replicates to another cluster")
    expires_index_s: int = lifetime(86_400, "that maintains an index")
    expires_replica_s: int = lifetime(3_600, "that is a replica")
    expires_rebalance_s: int = lifetime(900, "that moves vBuckets")
    expires_backup_s: int = lifetime(691_200, "that makes backups")
    expires_spark_s: int = lifetime(86_400, "that is a Spark stream")
    slice: float = setting(
        0.002,
        "seconds",
        "Time that one look for deletions in a worker thread takes before others may run.",
        0.0001,
        1,
    )
    batch_items: int = setting(
        10_000, "tombstones", "Most deletions that one commit drops for good.", 1, 1_000_000
    )
    rate: int = setting(
        0, "tombstones/s", "Most deletions that are purged in a second; 0 = no limit.", 0, 10**9
    )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The files."""

    data: str = setting("./uprmc-data", "path", "Data directory; created when it does not exist.")
    start_empty: bool = setting(
        False,
        "yes/no",
        "Start with nothing although the data directory was used before and its data.mdb is gone.",
    )
    map_initial: int = setting(
        16 * GIB,
        "bytes",
        "Address space reserved for the store at first; doubled as the store grows.",
        1 * MIB,
        64 * 1024 * GIB,
    )
    map_max: int = setting(
        16 * 1024 * GIB, "bytes", "Largest size of the store.", 1 * MIB, 64 * 1024 * GIB
    )


# --- indexing -------------------------------------------------------------------------------------
# Settings of the index.


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Map/reduce indexes: how they keep up, what they may hold, and what one request may take."""

    update_interval_s: float = setting(
        5.0,
        "seconds",
        "Write the header of an index file, from which it goes on after a crash, this often while "
        "changes come.",
        0,
        3_600,
    )
    update_min_changes: int = setting(
        5_000, "changes", "Write it earlier after this many changes.", 1, 10_000_000
    )
    max_key_bytes: int = setting(
        4_096, "bytes", "Largest key that a map may emit, as JSON.", 16, 1 * MIB
    )
    max_row_bytes: int = setting(
        1 * MIB, "bytes", "Largest value that a map may emit, as JSON.", 16, 64 * MIB
    )
    max_document_bytes: int = setting(
        16 * MIB,
        "bytes",
        "Most that all rows of one document may have in one view.",
        1 * KIB,
        1 * GIB,
    )
    max_document_rows: int = setting(
        100_000, "rows", "Most rows of one document in one view.", 1, 10_000_000
    )
    max_reduction_bytes: int = setting(
        65_535, "bytes", "Largest value that a reduce may return, as JSON.", 16, 1 * MIB
    )
    max_definition_bytes: int = setting(
        1 * MIB, "bytes", "Largest design document.", 1 * KIB, 64 * MIB
    )
    designs: int = setting(64, "designs", "Design documents that may exist.", 1, 10_000)
    views: int = setting(64, "views", "Views of one design document.", 1, 1_000)
    fragmentation: float = setting(
        0.3,
        "fraction",
        "Compact an index file when this much of it is no longer used; 1 = only on request.",
        0.01,
        1,
    )
    compact_min_bytes: int = setting(
        1 * MIB, "bytes", "Compact no index file that is smaller than this.", 4 * KIB, 1_024 * GIB
    )
    workers: int = setting(
        1, "processes", "Processes that run the JavaScript of one design document.", 1, 64
    )
    nice: int = setting(
        0,
        "levels",
        "Run the index of a node at a priority that is lower than the node's by this much.",
        0,
        19,
    )
    worker_memory: int = setting(
        512 * MIB, "bytes", "Memory of one such process.", 64 * MIB, 64 * GIB
    )
    worker_idle_s: float = setting(
        60.0,
        "seconds",
        "End such a process when it has had nothing to do for this long; it takes about 80 MB.",
        0.1,
        86_400,
    )
    map_timeout_s: float = setting(
        5.0,
        "seconds",
        "Give up a document, or a reduction, whose function runs for this long.",
        0.01,
        3_600,
    )
    keep_old_s: float = setting(
        3_600.0,
        "seconds",
        "Keep the index of a changed design document for this long, so that the change can be "
        "undone.",
        0,
        2_592_000,
    )
    python_modules: str = setting(
        "", "names", "Comma-separated modules whose functions may be used as maps."
    )
    nodes: str = setting(
        "",
        "addresses",
        "Comma-separated views listeners over which queries are scattered; empty = this one only.",
    )
    replicas: bool = setting(
        False,
        "yes/no",
        "Index replica vBuckets, too, apart from the others, so that a failover needs no build.",
    )
    connection_timeout_s: float = setting(
        60.0,
        "seconds",
        "Wait this long for an index to be fresh enough if the request does not say; then answer "
        "504.",
        0.001,
        86_400,
    )
    poll_s: float = setting(
        1.0, "seconds", "Ask the source this often which vBuckets are active there.", 0.05, 60
    )
    queue_bytes: int = setting(
        16 * MIB,
        "bytes",
        "Changes that an index has received and not yet applied; then it reads no more.",
        1 * MIB,
        4 * GIB,
    )
    batch_changes: int = setting(
        5_000, "changes", "Most changes that one update of the trees applies.", 1, 1_000_000
    )
    sort_bytes: int = setting(
        64 * MIB,
        "bytes",
        "Memory for sorting the rows of a first build; what does not fit is sorted in files.",
        1 * MIB,
        64 * GIB,
    )
    cache_bytes: int = setting(
        64 * MIB,
        "bytes",
        "Memory for parts of index files that were read, of all indexes together.",
        1 * MIB,
        1_024 * GIB,
    )
    disk_bytes: int = setting(
        0,
        "bytes",
        "Most that all index files together may have, copies of compactions included; 0 = any "
        "number.",
        0,
        1_024 * 1_024 * GIB,
    )
    disk_reserve: int = setting(
        512 * MIB,
        "bytes",
        "Bytes of the disk that index files leave to the store and others; a tenth of the disk at "
        "most.",
        0,
        1_024 * GIB,
    )
    waiting: int = setting(
        10_000, "requests", "Requests that may wait for one index; others get 503.", 1, 1_000_000
    )
    map_errors: int = setting(
        100, "documents", "Documents whose maps failed that are remembered.", 0, 10_000
    )
    map_log: int = setting(
        100, "lines", "Lines of the function log() of JavaScript that are remembered.", 0, 10_000
    )
    connections: int = setting(
        2_000,
        "connections",
        "For a connection above this limit, the oldest idle one is closed, or itself.",
        1,
        100_000,
    )
    query_threads: int = setting(
        4, "threads", "Threads that make the answers to queries, for all connections.", 1, 256
    )
    max_request_bytes: int = setting(
        1 * MIB, "bytes", "Largest body of a query, such as a list of keys.", 1 * KIB, 64 * MIB
    )
    request_memory: int = setting(
        256 * MIB,
        "bytes",
        "Memory of all requests and answers together, as estimated; others get 503, and a client "
        "that does not read its answer is disconnected.",
        8 * MIB,
        1_024 * GIB,
    )
    stall_timeout_s: float = setting(
        30.0,
        "seconds",
        "Disconnect a client that does not read its answer for this long.",
        0.1,
        86_400,
    )
    cors_origins: str = setting(
        "",
        "origins",
        "Comma-separated origins, or *, whose web pages may use this listener; empty = none.",
    )


# --- linking --------------------------------------------------------------------------------------
# Settings of links to other data centres.


@dataclass(frozen=True, slots=True)
class XdcrSettings:
    """Links to other clusters, and what they may hold."""

    links: int = setting(32, "links", "Links that this node may have.", 1, 1_000)
    files: str = setting(
        "",
        "path",
        "Folder of the certificates and passwords that links use: `--tls-ca` and `--password-file` "
        "of `uprmc xdcr create` name files in it. Empty = links have none.",
    )
    batches: int = setting(
        32,
        "batches",
        "Batches that a link may have sent to one node of its target without an answer; what it "
        "has read at once may exceed it.",
        1,
        1_000,
    )
    unanswered_bytes: int = setting(
        16 * MIB,
        "bytes",
        "Bytes that a link may have sent to one node of its target without an answer; the last "
        "document may exceed it.",
        64 * KIB,
        4 * GIB,
    )
    queued_parts: int = setting(
        4_096,
        "parts",
        "Groups of changes that a link has read and not sent: they wait for another node, or for "
        "`ship`. With this many it reads no more.",
        1,
        1_000_000,
    )
    queued_bytes: int = setting(
        64 * MIB,
        "bytes",
        "Bytes of such changes; with this many a link reads no more.",
        64 * KIB,
        4 * GIB,
    )
    refused_items: int = setting(
        1_000,
        "documents",
        "Documents that the target of a link refuses and that are tried again; with this many the "
        "link reads no more. What was under way may exceed it.",
        1,
        100_000,
    )
    refused_bytes: int = setting(
        64 * MIB,
        "bytes",
        "Bytes of such documents; with this many a link reads no more.",
        64 * KIB,
        4 * GIB,
    )
    records: int = setting(
        64,
        "checkpoints",
        "Checkpoints of other nodes' links that are kept for one vBucket; the oldest go first.",
        5,
        10_000,
    )
    branches: int = setting(
        1_000,
        "entries",
        "Ranges of lost changes that the status of a link shows; the oldest go first.",
        1,
        100_000,
    )
    listed_keys: int = setting(
        100, "keys", "Keys that `uprmc xdcr reconcile` lists for one vBucket.", 0, 10_000
    )
    reconcile_wait_s: float = setting(
        60.0,
        "seconds",
        "End `uprmc xdcr reconcile` when it has lost its target and has got no further for this "
        "long.",
        0,
        3_600,
    )
    dial_timeout_s: float = setting(
        15.0,
        "seconds",
        "Give up a connection to a target if it does not tell what it has within this time; retry.",
        0.1,
        600,
    )
    redial_max_s: float = setting(
        5.0, "seconds", "Longest wait between two attempts to reach a target.", 0.1, 3_600
    )
    silence_s: float = setting(
        30.0,
        "seconds",
        "Give up a connection to a target that answers nothing for this long, and retry.",
        1,
        3_600,
    )
