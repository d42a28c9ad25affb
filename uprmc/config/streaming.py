"""Settings of streams: UPR and TAP."""

from __future__ import annotations

from dataclasses import dataclass

from uprmc.config.declaring import setting
from uprmc.config.sizes import GIB, KIB, MIB


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
