"""Metrics of streams and their consumers, replication, watermarks, links and the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from uprmc.server import stat_tap, stat_upr
from uprmc.server.consumer_lag import ConsumerLag
from uprmc.server.metric_info import Scrape, counter, gauge, stat
from uprmc.xdcr.link import Link

STREAMS = (
    gauge(
        "upr_connections",
        "UPR connections that are open.",
        lambda s: len(s.upr.producers) + len(s.upr.consumers),
    ),
    gauge("upr_streams", "Streams that are open.", lambda s: stat_upr.stream_count(s.upr)),
    gauge("upr_backfills", "Streams that are reading the disk.", lambda s: s.upr.backfills.used),
    gauge("upr_leases", "Snapshot leases that are open.", lambda s: len(s.upr.leases.open)),
    counter(
        "upr_items_sent_total",
        "Changes sent on streams.",
        lambda s: s.items_sent,
    ),
    counter("upr_sent_bytes_total", "Bytes sent on streams.", lambda s: stat_upr.bytes_sent(s.upr)),
    stat(
        "upr_connections_timed_out_total",
        "Stream connections closed because the peer was silent for too long.",
        "upr_dead",
    ),
    gauge("tap_clients", "TAP clients that are connected.", lambda s: stat_tap.clients(s.tap)),
    gauge(
        "tap_pushers",
        "Connections that push documents by TAP.",
        lambda s: len(s.tap.pushes.pushers) if s.tap is not None else 0,
    ),
    counter(
        "tap_items_sent_total",
        "Documents and deletions sent to TAP clients.",
        lambda s: stat_tap.items_sent(s.tap),
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
