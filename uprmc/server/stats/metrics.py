"""The numbers of ``/metrics``, each declared once: name, what it counts, where it is read.

Names follow Prometheus' conventions: base units, counters end in ``_total``, a label where several
numbers are one thing seen in several ways. ``tools/reference.py`` makes the page about them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cached_property
from operator import attrgetter
from platform import python_version
from typing import TYPE_CHECKING, Literal, NamedTuple

from uprmc import __version__
from uprmc.core.form import FORM
from uprmc.engine.bucket import Bucket
from uprmc.engine.memory import MemoryAccount
from uprmc.engine.stats import Histogram, Stats
from uprmc.engine.tombstones import Amount
from uprmc.metrics import Metric, Samples
from uprmc.server.net.access import Audit
from uprmc.server.net.connections import Connections
from uprmc.server.net.transport import SAMPLED_EVERY
from uprmc.server.stats import engine, streams, vbuckets
from uprmc.server.stats.consumers import ConsumerLag, largest
from uprmc.server.stats.engine import MemoryHolder, holders
from uprmc.server.work.index import IndexDriver
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.upr.hub import Hub
from uprmc.upr.replication import Replication
from uprmc.xdcr.link import Link

if TYPE_CHECKING:
    from uprmc.server.node import Node


# --- how they are declared ------------------------------------------------------------------------


#: Consumers that have their own value of a label; all others are one more.
CONSUMERS_MOST = 20

#: What one scrape reads: a number, or one for each value of the metric's labels.
Reading = float | Mapping[tuple[str, ...], float | Histogram]


class Scrape:
    """One scrape of a node; what several metrics share is worked out once."""

    bucket: Bucket
    stats: Stats
    account: MemoryAccount
    connections: Connections
    audit: Audit
    upr: Hub
    tap: NodeTap | None
    replication: Replication
    links: list[Link]
    index: IndexDriver
    uptime_s: float
    items_sent: int

    def __init__(self, node: Node) -> None:
        self._node = node
        self.bucket = node.bucket
        self.stats = node.bucket.stats
        self.account = node.bucket.account
        self.connections = node.connections
        self.audit = node.audit
        self.upr = node.upr
        self.tap = node.tap
        self.replication = node.replication
        self.links = list(node.links.by_name.values())
        self.index = node.index
        self.uptime_s = node.uptime_s()
        self.items_sent = 0

    def steps(self) -> Generator[None, None, None]:
        """Work out what takes long."""
        self.items_sent = yield from streams.upr_items_sent_in_steps(self.upr)

    @cached_property
    def replicated(self) -> streams.Totals:
        """Return the sums over all sources."""
        return streams.replication_totals(self.replication)

    @cached_property
    def disk(self) -> dict[str, int]:
        """Return the sizes of the store."""
        return engine.disk(self.bucket)

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
        return vbuckets.pinned_by_client(self.bucket.pinning.kept)

    @cached_property
    def holders(self) -> list[MemoryHolder]:
        """Return who has the memory."""
        return holders(self._node)

    @cached_property
    def consumers(self) -> list[ConsumerLag]:
        """Return the consumers that are furthest behind, and the rest as one."""
        return largest(self._node.consumer_lags.found, CONSUMERS_MOST)

    @cached_property
    def pushed(self) -> tuple[int, int]:
        """Return the messages of TAP masters, and those that were refused."""
        return streams.messages_pushed(self.tap)


class MetricInfo(NamedTuple):
    """A metric as it is declared."""

    name: str  # without ``uprmc_``
    kind: Literal["counter", "gauge", "histogram"]  # see `Metric`
    help: str  # a sentence that says what is counted
    # gives the value; with labels one for each combination of their values.
    read: Callable[[Scrape], Reading]
    labels: tuple[str, ...] = ()  # names of the labels


def counter(name: str, help: str, read: Callable[[Scrape], Reading], *labels: str) -> MetricInfo:
    """Declare a counter; its name ends in ``_total``."""
    return MetricInfo(name, "counter", help, read, labels)


def gauge(name: str, help: str, read: Callable[[Scrape], Reading], *labels: str) -> MetricInfo:
    """Declare a gauge."""
    return MetricInfo(name, "gauge", help, read, labels)


def stat(name: str, help: str, attribute: str) -> MetricInfo:
    """Declare an attribute of `Stats`."""
    return counter(name, help, lambda scrape: getattr(scrape.stats, attribute))


def stats(
    name: str, help: str, labels: tuple[str, ...], attributes: Mapping[str, tuple[str, ...]]
) -> MetricInfo:
    """Declare several attributes of `Stats` as one metric, each with the values of its labels."""

    def read(scrape: Scrape) -> Mapping[tuple[str, ...], float]:
        return {values: getattr(scrape.stats, name) for name, values in attributes.items()}

    return counter(name, help, read, *labels)


def histogram(
    name: str,
    help: str,
    read: Callable[[Scrape], Mapping[tuple[str, ...], Histogram]],
    *labels: str,
) -> MetricInfo:
    """Declare a histogram of seconds."""
    return MetricInfo(name, "histogram", help, read, labels)


# --- commands, memory, disk, connections ----------------------------------------------------------


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
        lambda s: engine.non_resident(s.bucket),
    ),
    gauge(
        "vbuckets",
        "vBuckets, by state.",
        lambda s: {(name,): count for name, count in vbuckets.state_counts(s.bucket).items()},
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


# --- times ----------------------------------------------------------------------------------------


def _timing(name: str, help: str, attribute: str) -> MetricInfo:
    """Declare one of `Timings`."""
    read: Callable[[object], Histogram] = attrgetter(attribute)
    return histogram(name, help, lambda scrape: {(): read(scrape.bucket.timings)})


def _ops(scrape: Scrape) -> Mapping[tuple[str, ...], Histogram]:
    return {(op,): found for op, found in scrape.connections.op_times.by_op.items()}


TIMES = (
    histogram(
        "op_seconds",
        "Time from reading a piece of input to handing over its replies, by what the commands in"
        f" it did, for one piece in {SAMPLED_EVERY}; `mixed`: several kinds in one piece.",
        _ops,
        "op",
    ),
    _timing("commit_seconds", "Commits, including growth of the store's map.", "disk_commit"),
    _timing("fetch_wait_seconds", "Waits of evicted values for a disk thread.", "bg_wait"),
    _timing("fetch_seconds", "Reads of a batch of evicted values.", "bg_load"),
    _timing("backfill_seconds", "Readings of the disk by streams, begin to end.", "backfill"),
    _timing("barrier_seconds", "Barrier cookies, from their arrival to their return.", "barrier"),
    _timing("statistics_seconds", "Computation of one group for `stats`.", "get_stats_cmd"),
)


# --- streams, replication, links, the index -------------------------------------------------------


STREAMS = (
    gauge(
        "upr_connections",
        "UPR connections that are open.",
        lambda s: len(s.upr.producers) + len(s.upr.consumers),
    ),
    gauge("upr_streams", "Streams that are open.", lambda s: streams.stream_count(s.upr)),
    gauge("upr_backfills", "Streams that are reading the disk.", lambda s: s.upr.backfills.used),
    gauge("upr_leases", "Snapshot leases that are open.", lambda s: len(s.upr.leases.open)),
    counter(
        "upr_items_sent_total",
        "Changes sent on streams.",
        lambda s: s.items_sent,
    ),
    counter(
        "upr_sent_bytes_total", "Bytes sent on streams.", lambda s: streams.upr_bytes_sent(s.upr)
    ),
    stat(
        "upr_connections_timed_out_total",
        "Stream connections closed because the peer was silent for too long.",
        "upr_dead",
    ),
    gauge("tap_clients", "TAP clients that are connected.", lambda s: streams.tap_clients(s.tap)),
    gauge(
        "tap_pushers",
        "Connections that push documents by TAP.",
        lambda s: len(s.tap.pushes.pushers) if s.tap is not None else 0,
    ),
    counter(
        "tap_items_sent_total",
        "Documents and deletions sent to TAP clients.",
        lambda s: streams.tap_items_sent(s.tap),
    ),
    counter(
        "tap_connects_refused_total",
        "TAP CONNECT requests that were refused.",
        lambda s: s.tap.registry.refusals if s.tap is not None else 0,
    ),
    counter(
        "tap_messages_pushed_total", "Messages received from TAP masters.", lambda s: s.pushed[0]
    ),
    counter(
        "tap_messages_refused_total",
        "Messages of TAP masters that were answered with an error.",
        lambda s: s.pushed[1],
    ),
)

REPLICATION = (
    gauge(
        "replication_sources",
        "Nodes that vBuckets of this node replicate from.",
        lambda s: s.replicated.sources,
    ),
    gauge(
        "replication_sources_open",
        "Sources with an open connection.",
        lambda s: s.replicated.open,
    ),
    gauge(
        "replication_vbuckets", "vBuckets that follow a source.", lambda s: s.replicated.vbuckets
    ),
    gauge(
        "replication_streaming",
        "vBuckets that follow a source and have an open stream.",
        lambda s: s.replicated.streaming,
    ),
    gauge(
        "replication_lag_items",
        "Upper bound of the changes that this node's replicas lack.",
        lambda s: s.replicated.lag_items,
    ),
    gauge(
        "replication_lag_seconds",
        "Time since the replica that is furthest behind was up to date.",
        lambda s: s.replicated.lag_s,
    ),
    counter(
        "replication_items_received_total",
        "Changes received from sources.",
        lambda s: s.replication.received.items,
    ),
    counter(
        "replication_rollbacks_total",
        "Times that a source made a vBucket roll back.",
        lambda s: s.replication.received.rollbacks,
    ),
    counter(
        "replication_backoffs_total",
        "Times that acknowledging to a source was delayed for lack of memory.",
        lambda s: s.replication.received.backoffs,
    ),
)

WATERMARKS = (
    gauge(
        "watermark_rows",
        "Rows of registered clients, in all vBuckets.",
        lambda s: s.bucket.watermarks.row_count,
    ),
    gauge("tombstones", "Deletions on disk, of all vBuckets.", lambda s: s.tombstones.number),
    gauge("tombstone_bytes", "Their bytes.", lambda s: s.tombstones.bytes),
    gauge(
        "pinned_tombstones",
        "Deletions that only this registered client keeps, of those that keep most; every 10 s.",
        lambda s: {who: amount.number for who, amount in s.pinned.items()},
        "id",
        "kind",
    ),
    gauge(
        "pinned_tombstone_bytes",
        "Their bytes.",
        lambda s: {who: amount.bytes for who, amount in s.pinned.items()},
        "id",
        "kind",
    ),
    counter(
        "watermarks_expired_total",
        "Rows of registered clients that expired.",
        lambda s: s.bucket.watermarks.expired,
    ),
    counter(
        "watermarks_outpaced_total",
        "Times that a registered client had to begin at zero because it had missed deletions.",
        lambda s: s.bucket.watermarks.outpaced,
    ),
    counter(
        "missed_deletions_total",
        "Deletions that those clients had missed, as far as the node still knows them.",
        lambda s: s.bucket.watermarks.missed_deletions,
    ),
)


def _by_consumer(
    read: Callable[[ConsumerLag], float],
) -> Callable[[Scrape], Mapping[tuple[str, ...], float]]:
    return lambda scrape: {(lag.name, lag.kind): read(lag) for lag in scrape.consumers}


CONSUMERS = (
    gauge(
        "consumer_lag_items",
        "Upper bound of the changes left to send, of consumers that are furthest behind.",
        _by_consumer(lambda lag: lag.items),
        "consumer",
        "kind",
    ),
    gauge(
        "consumer_lag_bytes",
        "Their bytes, estimated by the mean size of what was sent.",
        _by_consumer(lambda lag: lag.bytes),
        "consumer",
        "kind",
    ),
    gauge(
        "consumer_lag_seconds",
        "Lower bound of the age of the oldest change left to send.",
        _by_consumer(lambda lag: lag.seconds),
        "consumer",
        "kind",
    ),
)


def _by_link(read: Callable[[Link], float]) -> Callable[[Scrape], Mapping[tuple[str, ...], float]]:
    return lambda scrape: {(link.spec.name,): read(link) for link in scrape.links}


LINKS = (
    gauge(
        "xdcr_running",
        "Whether a link is in the state `running`.",
        _by_link(lambda link: link.state == "running"),
        "link",
    ),
    gauge(
        "xdcr_lag_items",
        "Changes that have not arrived at the target of a link.",
        _by_link(lambda link: link.progress.left_at_last),
        "link",
    ),
    gauge(
        "xdcr_lag_bytes",
        "Their bytes, estimated by the mean size of what the link has sent.",
        _by_link(lambda link: link.progress.bytes_left),
        "link",
    ),
    gauge(
        "xdcr_lag_seconds",
        "Age of the oldest change that has not arrived.",
        _by_link(lambda link: link.progress.lag_seconds),
        "link",
    ),
    *(
        counter(f"xdcr_{name}_total", text, _by_link(attrgetter(f"counters.{name}")), "link")
        for name, text in (
            ("docs_written", "Documents and deletions that the target of a link has stored."),
            ("docs_checked", "Versions that a link has asked its target for."),
            ("docs_filtered", "Items that the filter of a link has left out."),
            ("docs_failed_cr_source", "Documents not sent: the target's version is newer."),
            ("docs_failed_cr_target", "Items that the target refused: its version is newer."),
            ("docs_refused", "Documents that the target of a link has refused."),
            ("echoes_stopped", "Versions not sent because they come from the target."),
            ("data_bytes", "Bytes of requests that a link has sent."),
            ("failed_checkpoints", "Checkpoints not written: the target's history had changed."),
        )
    ),
)

INDEX = (
    counter(
        "index_process_restarts_total",
        "Times that the index's process was started again after it had ended by itself.",
        lambda scrape: scrape.index.restarts,
    ),
    gauge(
        "index_process_up",
        "Whether the index's process answers; it is not started before it is needed.",
        lambda scrape: scrape.index.state == "up",
    ),
)


# --- reading them ---------------------------------------------------------------------------------


#: Histograms are told by powers of two of a microsecond, from 16 us to 17 s.
_SHORTEST_BITS, _LONGEST_BITS = 4, 24

METRICS = (
    *COMMANDS,
    *MEMORY_AND_DISK,
    *CONNECTIONS,
    *TIMES,
    *STREAMS,
    *CONSUMERS,
    *REPLICATION,
    *WATERMARKS,
    *LINKS,
    *INDEX,
)


def metrics(node: Node) -> Iterator[Metric | None]:
    """Read every metric of a node; ``None`` = the next one is not worked out yet."""
    scrape = Scrape(node)
    yield from scrape.steps()
    for info in METRICS:
        yield Metric(info.name, info.kind, info.help, list(_samples(info, scrape)))


def _samples(info: MetricInfo, scrape: Scrape) -> Samples:
    reading = info.read(scrape)
    by_values = reading if isinstance(reading, Mapping) else {(): reading}
    for values, value in by_values.items():
        labels = dict(zip(info.labels, values, strict=True))
        if isinstance(value, Histogram):
            yield from _classes(labels, value)
        else:
            yield labels, value


def _classes(labels: dict[str, str], histogram: Histogram) -> Samples:
    """Yield a histogram's classes by their ends in seconds, and its sum; see `Metric`."""
    for end_us, below in histogram.below(_SHORTEST_BITS, _LONGEST_BITS):
        yield {**labels, "le": repr(end_us / 1e6)}, below
    yield {**labels, "le": "+Inf"}, histogram.total
    yield {**labels, "le": "sum"}, histogram.sum_s
