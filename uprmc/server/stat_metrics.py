"""The numbers of ``/metrics``: counters, and what is so at the moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from uprmc.server import stat_node, stat_replication, stat_tap, stat_upr, stat_vbuckets
from uprmc.server.metrics import Metric, single

if TYPE_CHECKING:
    from uprmc.server.node import Node


def counters(node: Node) -> Iterator[Metric]:
    """Yield what only grows."""
    connections = node.connections
    for name, value in node.bucket.stats.items():
        yield single(f"{name}_total", "counter", f"{name}, as in stats.", value)
    pushed, refused = stat_tap.messages_pushed(node.tap)
    for name, value in (
        ("connections", connections.total),
        ("connections_rejected", connections.rejected),
        ("connections_shed", connections.buffers.shed),
        ("session_errors", connections.session_errors),
        ("read_bytes", connections.bytes_read),
        ("written_bytes", connections.bytes_written),
        ("writes_refused_memory", node.bucket.account.refused_memory),
        ("writes_refused_disk", node.bucket.account.refused_disk),
        ("upr_items_sent", stat_upr.items_sent(node.upr)),
        ("upr_sent_bytes", stat_upr.bytes_sent(node.upr)),
        ("tap_items_sent", stat_tap.items_sent(node.tap)),
        ("tap_connects_refused", node.tap.registry.refusals if node.tap is not None else 0),
        ("tap_messages_pushed", pushed),
        ("tap_messages_refused", refused),
        ("replication_items", node.replication.items),
        ("replication_rollbacks", node.replication.rollbacks),
    ):
        yield single(f"{name}_total", "counter", f"{name}, since the start.", value)


def gauges(node: Node) -> Iterator[Metric]:
    """Yield what goes up and down."""
    bucket = node.bucket
    account = bucket.account
    replicated = stat_replication.totals(node.replication)
    for name, text, value in (
        ("ready", "1 when warm-up is done.", float(bucket.traffic)),
        ("uptime_seconds", "Time since the start.", node.uptime_s()),
        ("items", "Documents in active vBuckets.", bucket.item_count),
        ("items_non_resident", "Documents whose value is on disk.", stat_node.non_resident(bucket)),
        ("memory_used_bytes", "Accounted memory.", account.used),
        ("memory_quota_bytes", "The memory quota.", account.quota),
        ("flush_queue_items", "Changes not yet persisted.", bucket.flusher.queued),
        ("fetch_waiting", "Reads that wait for the disk.", bucket.fetcher.waiting),
        ("connections_open", "Connections now.", node.connections.current),
        (
            "connections_received_bytes",
            "Input that connections hold: incomplete frames, and what waits behind a command.",
            node.connections.buffers.received,
        ),
        (
            "connections_unsent_bytes",
            "Replies that clients have not taken.",
            node.connections.buffers.unsent,
        ),
        (
            "upr_connections",
            "UPR connections now.",
            len(node.upr.producers) + len(node.upr.consumers),
        ),
        ("upr_streams", "Streams now.", stat_upr.stream_count(node.upr)),
        ("upr_backfills", "Streams that are reading the disk.", node.upr.backfills.used),
        ("upr_leases", "Snapshot leases held.", len(node.upr.leases.open)),
        ("tap_clients", "TAP clients that are connected.", stat_tap.clients(node.tap)),
        (
            "tap_pushers",
            "Connections that push by TAP.",
            len(node.tap.pushes.pushers) if node.tap is not None else 0,
        ),
        ("replication_sources", "Nodes that vBuckets are followed from.", replicated.sources),
        ("replication_sources_open", "Those with an open connection.", replicated.open),
        ("replication_vbuckets", "vBuckets that follow a source.", replicated.vbuckets),
        ("replication_streaming", "Those with a stream.", replicated.streaming),
        ("replication_lag_items", "Seqnos that sources are ahead.", replicated.lag_items),
        ("replication_lag_seconds", "Time since the worst was level.", replicated.lag_s),
        ("disk_failing", "1 while the disk refuses commits.", float(bool(account.disk_reason))),
    ):
        yield single(name, "gauge", text, value)
    for name, size in stat_node.disk(bucket).items():
        yield single(name, "gauge", f"{name} of the store.", size)
    counts = stat_vbuckets.state_counts(bucket)
    states = [({"state": state}, count) for state, count in counts.items()]
    yield Metric("vbuckets", "gauge", "vBuckets by state.", states)
