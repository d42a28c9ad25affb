"""Settings of the data: vBuckets, memory, the disk, and what is forgotten."""

from __future__ import annotations

from dataclasses import dataclass

from uprmc.config.declaring import lifetime, setting
from uprmc.config.sizes import GIB, MIB

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
