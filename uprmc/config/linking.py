"""Settings of links to other data centres."""

from __future__ import annotations

from dataclasses import dataclass

from uprmc.config.declaring import setting
from uprmc.config.sizes import GIB, KIB, MIB


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
