"""The numbers of ``/metrics``, each declared once: name, what it counts, where it is read.

Names follow Prometheus' conventions: base units, counters end in ``_total``, a label where several
numbers are one thing seen in several ways. ``tools/reference.py`` makes the page about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from operator import attrgetter
from typing import Literal, NamedTuple

from uprmc import __version__
from uprmc.core.form import FORM
from uprmc.engine.bucket import Bucket
from uprmc.engine.memory_account import MemoryAccount
from uprmc.engine.stats import Stats
from uprmc.engine.tombstone_count import Amount
from uprmc.metrics import Metric
from uprmc.server import (
    stat_node,
    stat_replication,
    stat_tap,
    stat_upr,
    stat_vbuckets,
    stat_watermarks,
)
from uprmc.server.connections import Connections
from uprmc.server.index_driver import IndexDriver
from uprmc.server.observed import ObservedNode
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.upr.follow.replication import Replication
from uprmc.upr.hub import Hub
from uprmc.xdcr.link import Link

#: What one scrape reads: a number, or one for each value of the metric's labels.
_Reading = float | Mapping[tuple[str, ...], float]


class Scrape:
    """One scrape of a node; what several metrics share is worked out once."""

    bucket: Bucket
    stats: Stats
    account: MemoryAccount
    connections: Connections
    upr: Hub
    tap: NodeTap | None
    replication: Replication
    links: list[Link]
    index: IndexDriver
    uptime_s: float

    def __init__(self, node: ObservedNode) -> None:
        self.bucket = node.bucket
        self.stats = node.bucket.stats
        self.account = node.bucket.account
        self.connections = node.connections
        self.upr = node.upr
        self.tap = node.tap
        self.replication = node.replication
        self.links = list(node.links.by_name.values())
        self.index = node.index
        self.uptime_s = node.uptime_s()

    @cached_property
    def replicated(self) -> stat_replication.Totals:
        """Return the sums over all sources."""
        return stat_replication.totals(self.replication)

    @cached_property
    def disk(self) -> dict[str, int]:
        """Return the sizes of the store."""
        return stat_node.disk(self.bucket)

    @cached_property
    def purge_lag(self) -> int:
        """Return the most changes between a vBucket's purge seqno and its newest one on disk."""
        found = [each for each in self.bucket.vbuckets.values() if each.max_deleted_rev]
        return max((each.persisted_seqno - each.purge_seqno for each in found), default=0)

    @cached_property
    def tombstones(self) -> Amount:
        """Return what is on disk."""
        return self.bucket.flusher.tombstones.total

    @cached_property
    def pinned(self) -> dict[tuple[str, str], Amount]:
        """Return what each registered client alone keeps, as (id, kind)."""
        return stat_watermarks.pinned_by_client(self.bucket.pinning.kept)

    @cached_property
    def pushed(self) -> tuple[int, int]:
        """Return the messages of TAP masters, and those that were refused."""
        return stat_tap.messages_pushed(self.tap)


class MetricInfo(NamedTuple):
    """A metric as it is declared.

    Attributes:
        name: without ``uprmc_``.
        kind: a counter only grows, until a restart or ``stats reset``; a gauge goes both ways.
        help: a sentence that says what is counted.
        read: gives the value; with labels one for each combination of their values.
        labels: names of the labels.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[Scrape], _Reading]
    labels: tuple[str, ...] = ()


def _counter(name: str, help: str, read: Callable[[Scrape], _Reading], *labels: str) -> MetricInfo:
    return MetricInfo(name, "counter", help, read, labels)


def _gauge(name: str, help: str, read: Callable[[Scrape], _Reading], *labels: str) -> MetricInfo:
    return MetricInfo(name, "gauge", help, read, labels)


def _stat(name: str, help: str, attribute: str) -> MetricInfo:
    return _counter(name, help, lambda scrape: getattr(scrape.stats, attribute))


def _stats(
    name: str, help: str, labels: tuple[str, ...], attributes: Mapping[str, tuple[str, ...]]
) -> MetricInfo:
    """Declare several attributes of `Stats` as one metric, each with the values of its labels."""

    def read(scrape: Scrape) -> Mapping[tuple[str, ...], float]:
        return {values: getattr(scrape.stats, name) for name, values in attributes.items()}

    return _counter(name, help, read, *labels)


_LOOKED_UP = ("get", "delete", "touch", "incr", "decr", "cas")
_RESULTS = {"hits": "hit", "misses": "miss"}

_COMMANDS = (
    _stats(
        "commands_total",
        "Get, set, touch and flush commands; a get of several keys counts each key.",
        ("command",),
        {f"cmd_{name}": (name,) for name in ("get", "set", "touch", "flush")},
    ),
    _stat(
        "meta_commands_total",
        "Text meta commands; the commands that they carry out are counted, too.",
        "cmd_meta",
    ),
    _stats(
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
    _stat("get_expired_total", "Keys that a get found expired.", "get_expired"),
    _stat("sets_stored_total", "Documents that storage commands stored.", "total_items"),
    _stats(
        "items_expired_total",
        "Documents that expired, found by a command (access) or by the expiry task (schedule).",
        ("trigger",),
        {"expired_access": ("access",), "expired_pager": ("schedule",)},
    ),
    _stats(
        "with_meta_total",
        "GET_META, SET_WITH_META or ADD_WITH_META, and DEL_WITH_META commands.",
        ("operation",),
        {"ops_get_meta": ("get",), "ops_set_meta": ("set",), "ops_del_meta": ("delete",)},
    ),
    _stats(
        "with_meta_conflicts_lost_total",
        "Versions with metadata that were dropped because the existing version won.",
        ("operation",),
        {"ops_set_meta_res_fail": ("set",), "ops_del_meta_res_fail": ("delete",)},
    ),
    _stats(
        "with_meta_drift_total",
        "Accepted versions with metadata whose CAS was more than 5 seconds off the clock.",
        ("direction",),
        {"cas_ahead": ("ahead",), "cas_behind": ("behind",)},
    ),
    _stats(
        "return_meta_total",
        "RETURN_META commands that stored or deleted a document.",
        ("operation",),
        {"ops_set_ret_meta": ("set",), "ops_del_ret_meta": ("delete",)},
    ),
    _stat(
        "writes_too_large_total",
        "Writes refused because the document is larger than kv.max_item_bytes.",
        "store_too_large",
    ),
    _counter(
        "writes_refused_total",
        "Writes answered with a temporary failure because memory or the disk was full.",
        lambda scrape: {
            ("memory",): scrape.account.refused_memory,
            ("disk",): scrape.account.refused_disk,
        },
        "reason",
    ),
)

_MEMORY_AND_DISK = (
    _gauge(
        "ready", "1 once warm-up is done and clients are served.", lambda s: float(s.bucket.traffic)
    ),
    _gauge(
        "version",
        "Always 1; the labels tell which release this is, and which form of the core runs.",
        lambda s: {(FORM, __version__): 1},
        "core",
        "version",
    ),
    _gauge("uptime_seconds", "Time since the node started.", lambda s: s.uptime_s),
    _gauge("items", "Documents in active vBuckets.", lambda s: s.bucket.item_count),
    _gauge(
        "items_non_resident",
        "Documents whose value is on disk only.",
        lambda s: stat_node.non_resident(s.bucket),
    ),
    _gauge(
        "vbuckets",
        "vBuckets, by state.",
        lambda s: {(name,): count for name, count in stat_vbuckets.state_counts(s.bucket).items()},
        "state",
    ),
    _stat(
        "vbuckets_deposed_total",
        "Active vBuckets that were made dead here because another node was promoted.",
        "vbuckets_deposed",
    ),
    _gauge(
        "memory_used_bytes",
        "Memory taken by keys, values and bookkeeping, as the quota counts it.",
        lambda s: s.account.used,
    ),
    _gauge("memory_quota_bytes", "The memory quota.", lambda s: s.account.quota),
    _stat("values_evicted_total", "Values that were evicted from memory.", "value_ejects"),
    _stat("evictor_runs_total", "Times that the evictor started.", "pager_runs"),
    _stat("values_fetched_total", "Evicted values that were read back from disk.", "bg_fetched"),
    _stat(
        "value_fetch_failures_total",
        "Evicted values that could not be read from disk.",
        "bg_fetch_failures",
    ),
    _stat(
        "deletions_looked_up_total",
        "Deleted keys that were looked up on disk.",
        "bg_meta_fetched",
    ),
    _gauge(
        "fetches_waiting",
        "Reads that wait for a value from disk.",
        lambda s: s.bucket.fetcher.waiting,
    ),
    _gauge(
        "flush_queue_items",
        "Changes that are not persisted yet.",
        lambda s: s.bucket.flusher.queued,
    ),
    _stat("commits_total", "Commits that succeeded.", "commits"),
    _stat("commit_failures_total", "Commits that failed.", "commit_failures"),
    _stat("items_persisted_total", "Changes that commits wrote to disk.", "items_flushed"),
    _gauge(
        "disk_failing",
        "1 while the disk refuses commits.",
        lambda s: float(bool(s.account.disk_reason)),
    ),
    _gauge("disk_file_bytes", "Size of the store's file.", lambda s: s.disk["disk_file_bytes"]),
    _gauge(
        "disk_map_bytes",
        "Address space reserved for the store.",
        lambda s: s.disk["disk_map_bytes"],
    ),
    _gauge(
        "disk_free_bytes",
        "Pages in the store's file that commits can use.",
        lambda s: s.disk["disk_free_bytes"],
    ),
    _gauge(
        "disk_pinned_bytes",
        "Pages of replaced data that leases, streams and other readers keep from being used.",
        lambda s: s.disk["disk_pinned_bytes"],
    ),
    _gauge(
        "purge_seqno_lag",
        "Most seqnos between the purge seqno of a vBucket with deletions and its newest on disk.",
        lambda s: s.purge_lag,
    ),
)

_CONNECTIONS = (
    _gauge("connections_open", "Connections that are open.", lambda s: s.connections.current),
    _counter(
        "connections_opened_total",
        "Connections that were accepted, or dialled by this node.",
        lambda s: s.connections.total,
    ),
    _counter(
        "connections_rejected_total",
        "Connections refused because of server.max_connections.",
        lambda s: s.connections.rejected,
    ),
    _counter(
        "connections_yields_total",
        "Times that a connection let others have their turn before all its replies were sent.",
        lambda s: s.connections.yields,
    ),
    _counter(
        "connections_shed_total",
        "Connections closed because all together exceeded server.buffer_bytes.",
        lambda s: s.connections.buffers.shed,
    ),
    _gauge(
        "connections_received_bytes",
        "Received input that is not processed yet, such as incomplete requests.",
        lambda s: s.connections.buffers.received,
    ),
    _gauge(
        "connections_unsent_bytes",
        "Replies that clients have not read yet.",
        lambda s: s.connections.buffers.unsent,
    ),
    _counter(
        "network_received_bytes_total",
        "Bytes received on all connections.",
        lambda s: s.connections.bytes_read,
    ),
    _counter(
        "network_sent_bytes_total",
        "Bytes sent on all connections.",
        lambda s: s.connections.bytes_written,
    ),
    _stats(
        "logins_total",
        "Logins and refusals: attempts, failed ones, and commands that a role was missing for.",
        ("what",),
        {"auth_cmds": ("attempt",), "auth_errors": ("failed",), "auth_denied": ("denied",)},
    ),
    _stat(
        "protocol_errors_total",
        "Connections closed because the peer broke the protocol.",
        "protocol_errors",
    ),
    _counter(
        "session_errors_total",
        "Connections closed by a defect of uprmc.",
        lambda s: s.connections.session_errors,
    ),
)

_STREAMS = (
    _gauge(
        "upr_connections",
        "UPR connections that are open.",
        lambda s: len(s.upr.producers) + len(s.upr.consumers),
    ),
    _gauge("upr_streams", "Streams that are open.", lambda s: stat_upr.stream_count(s.upr)),
    _gauge("upr_backfills", "Streams that are reading the disk.", lambda s: s.upr.backfills.used),
    _gauge("upr_leases", "Snapshot leases that are open.", lambda s: len(s.upr.leases.open)),
    _counter(
        "upr_items_sent_total",
        "Changes sent on streams.",
        lambda s: stat_upr.items_sent(s.upr),
    ),
    _counter(
        "upr_sent_bytes_total", "Bytes sent on streams.", lambda s: stat_upr.bytes_sent(s.upr)
    ),
    _stat(
        "upr_connections_timed_out_total",
        "Stream connections closed because the peer was silent for too long.",
        "upr_dead",
    ),
    _gauge("tap_clients", "TAP clients that are connected.", lambda s: stat_tap.clients(s.tap)),
    _gauge(
        "tap_pushers",
        "Connections that push documents by TAP.",
        lambda s: len(s.tap.pushes.pushers) if s.tap is not None else 0,
    ),
    _counter(
        "tap_items_sent_total",
        "Documents and deletions sent to TAP clients.",
        lambda s: stat_tap.items_sent(s.tap),
    ),
    _counter(
        "tap_connects_refused_total",
        "TAP CONNECT requests that were refused.",
        lambda s: s.tap.registry.refusals if s.tap is not None else 0,
    ),
    _counter(
        "tap_messages_pushed_total", "Messages received from TAP masters.", lambda s: s.pushed[0]
    ),
    _counter(
        "tap_messages_refused_total",
        "Messages of TAP masters that were answered with an error.",
        lambda s: s.pushed[1],
    ),
)

_REPLICATION = (
    _gauge(
        "replication_sources",
        "Nodes that vBuckets of this node replicate from.",
        lambda s: s.replicated.sources,
    ),
    _gauge(
        "replication_sources_open",
        "Sources with an open connection.",
        lambda s: s.replicated.open,
    ),
    _gauge(
        "replication_vbuckets", "vBuckets that follow a source.", lambda s: s.replicated.vbuckets
    ),
    _gauge(
        "replication_streaming",
        "vBuckets that follow a source and have an open stream.",
        lambda s: s.replicated.streaming,
    ),
    _gauge(
        "replication_lag_items",
        "Upper bound of the changes that this node's replicas lack.",
        lambda s: s.replicated.lag_items,
    ),
    _gauge(
        "replication_lag_seconds",
        "Time since the replica that is furthest behind was up to date.",
        lambda s: s.replicated.lag_s,
    ),
    _counter(
        "replication_items_received_total",
        "Changes received from sources.",
        lambda s: s.replication.received.items,
    ),
    _counter(
        "replication_rollbacks_total",
        "Times that a source made a vBucket roll back.",
        lambda s: s.replication.received.rollbacks,
    ),
    _counter(
        "replication_backoffs_total",
        "Times that acknowledging to a source was delayed for lack of memory.",
        lambda s: s.replication.received.backoffs,
    ),
)

_WATERMARKS = (
    _gauge(
        "watermark_rows",
        "Rows of registered clients, in all vBuckets.",
        lambda s: s.bucket.watermarks.row_count,
    ),
    _gauge("tombstones", "Deletions on disk, of all vBuckets.", lambda s: s.tombstones.number),
    _gauge("tombstone_bytes", "Their bytes.", lambda s: s.tombstones.bytes),
    _gauge(
        "pinned_tombstones",
        "Deletions that only this registered client keeps, of those that keep most; every 10 s.",
        lambda s: {who: amount.number for who, amount in s.pinned.items()},
        "id",
        "kind",
    ),
    _gauge(
        "pinned_tombstone_bytes",
        "Their bytes.",
        lambda s: {who: amount.bytes for who, amount in s.pinned.items()},
        "id",
        "kind",
    ),
    _counter(
        "watermarks_expired_total",
        "Rows of registered clients that expired.",
        lambda s: s.bucket.watermarks.expired,
    ),
    _counter(
        "watermarks_outpaced_total",
        "Times that a registered client had to begin at zero because it had missed deletions.",
        lambda s: s.bucket.watermarks.outpaced,
    ),
    _counter(
        "missed_deletions_total",
        "Deletions that those clients had missed, as far as the node still knows them.",
        lambda s: s.bucket.watermarks.missed_deletions,
    ),
)


def _by_link(read: Callable[[Link], float]) -> Callable[[Scrape], Mapping[tuple[str, ...], float]]:
    return lambda scrape: {(link.spec.name,): read(link) for link in scrape.links}


_LINKS = (
    _gauge(
        "xdcr_running",
        "Whether a link is in the state `running`.",
        _by_link(lambda link: link.state == "running"),
        "link",
    ),
    _gauge(
        "xdcr_lag_items",
        "Changes that have not arrived at the target of a link.",
        _by_link(lambda link: link.left_at_last),
        "link",
    ),
    _gauge(
        "xdcr_lag_bytes",
        "Their bytes, estimated by the mean size of what the link has sent.",
        _by_link(lambda link: link.bytes_left),
        "link",
    ),
    _gauge(
        "xdcr_lag_seconds",
        "Age of the oldest change that has not arrived.",
        _by_link(lambda link: link.lag_seconds),
        "link",
    ),
    *(
        _counter(f"xdcr_{name}_total", text, _by_link(attrgetter(f"counters.{name}")), "link")
        for name, text in (
            ("docs_written", "Documents and deletions that the target of a link has stored."),
            ("docs_checked", "Versions that a link has asked its target for."),
            ("docs_filtered", "Items that the filter of a link has left out."),
            ("docs_failed_cr_source", "Documents not sent: the target's version is newer."),
            ("docs_failed_cr_target", "Items that the target refused: its version is newer."),
            ("docs_refused", "Items that the target of a link cannot store."),
            ("echoes_stopped", "Versions not sent because they come from the target."),
            ("data_bytes", "Bytes of requests that a link has sent."),
            ("failed_checkpoints", "Checkpoints not written: the target's history had changed."),
        )
    ),
)

_INDEX = (
    _counter(
        "index_process_restarts_total",
        "Times that the index's process was started again after it had ended by itself.",
        lambda scrape: scrape.index.restarts,
    ),
    _gauge(
        "index_process_up",
        "Whether the index's process answers; it is not started before it is needed.",
        lambda scrape: scrape.index.state == "up",
    ),
)

METRICS = (
    *_COMMANDS,
    *_MEMORY_AND_DISK,
    *_CONNECTIONS,
    *_STREAMS,
    *_REPLICATION,
    *_WATERMARKS,
    *_LINKS,
    *_INDEX,
)


def metrics(node: ObservedNode) -> Iterator[Metric]:
    """Read every metric of a node."""
    scrape = Scrape(node)
    for info in METRICS:
        reading = info.read(scrape)
        by_values = reading if isinstance(reading, Mapping) else {(): reading}
        samples = [
            (dict(zip(info.labels, values, strict=True)), value)
            for values, value in by_values.items()
        ]
        yield Metric(info.name, info.kind, info.help, samples)
