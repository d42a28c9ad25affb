"""Settings of the index."""

from __future__ import annotations

from dataclasses import dataclass

from uprmc.config.declaring import setting
from uprmc.config.sizes import GIB, KIB, MIB


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
