"""What the page at ``/`` shows: one function for each panel, in one table.

A panel of a later system is a function here, and one in ``page/panels.js``. A function gives a JSON
value for a sample of the node; a long one is a generator that yields between short steps and
returns the value. Numbers are numbers; what people call things (names of consumers, texts of
errors) comes as it is, and the page escapes it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import islice
from typing import TYPE_CHECKING, Any

from uprmc import __version__
from uprmc.core.form import FORM
from uprmc.server.stats.consumers import largest
from uprmc.server.stats.engine import components, disk, holders, index_page
from uprmc.server.stats.health import panel as health_panel
from uprmc.server.stats.streams import (
    messages_pushed,
    source_facts,
    tap_clients,
    tap_items_sent,
    upr_items_sent_in_steps,
)
from uprmc.server.stats.vbuckets import pinned_by_client

if TYPE_CHECKING:
    from uprmc.server.node import Node


Steps = Generator[None, None, Any]

#: Rows of a panel; what is behind them is summed up, or told as a number.
ROWS_MAX = 50

EVENTS_MAX = 30

_VBUCKETS_AT_ONCE = 128


def node(node: Node) -> dict[str, object]:
    """Return what the head of the page shows."""
    bucket = node.bucket
    return {
        "version": __version__,
        "core": FORM,
        "uptime_s": int(node.uptime_s()),
        "ready": bucket.traffic,
        "listeners": node.addresses(),
        "components": components(node),
        "items": bucket.item_count,
        "connections": node.connections.current,
        "connections_max": node.connections.limit,
        "bytes_read": node.connections.bytes_read,
        "bytes_written": node.connections.bytes_written,
    }


def operations(node: Node) -> Steps:
    """Return counters; the page makes rates of them."""
    streamed = yield from upr_items_sent_in_steps(node.upr)
    stats = node.bucket.stats
    return {
        "gets": stats.cmd_get,
        "hits": stats.get_hits,
        "sets": stats.cmd_set,
        "deletes": stats.delete_hits + stats.delete_misses,
        "counts": stats.incr_hits + stats.incr_misses + stats.decr_hits + stats.decr_misses,
        "touches": stats.cmd_touch,
        "versions": stats.ops_set_meta + stats.ops_del_meta,
        "disk_reads": stats.bg_fetched,
        "streamed": streamed,
    }


def memory(node: Node) -> dict[str, object]:
    """Return the quota, and who has the memory."""
    account = node.bucket.account
    return {
        "used": account.used,
        "quota": account.quota,
        "low_mark": account.low_mark,
        "high_mark": account.high_mark,
        "refused": {"memory": account.refused_memory, "disk": account.refused_disk},
        "holders": [
            [each.name, each.bytes, each.number, each.in_quota, each.what] for each in holders(node)
        ],
    }


def queue(node: Node) -> dict[str, object]:
    """Return the write queue, and what commits have done."""
    bucket = node.bucket
    return {
        "waiting": sum(vbucket.queue.live for vbucket in bucket.vbuckets.values()),
        "commits": bucket.stats.commits,
        "failures": bucket.stats.commit_failures,
        "flushed": bucket.stats.items_flushed,
        "error": bucket.account.disk_reason,
        **disk(bucket),
    }


def vbuckets(node: Node) -> Steps:
    """Return (number, state, high seqno, persisted seqno, documents, branches) of each vBucket."""
    rows = []
    for count, (number, one) in enumerate(sorted(node.bucket.vbuckets.items()), 1):
        rows.append(
            (
                number,
                one.state.name.lower(),
                one.high_seqno,
                one.persisted_seqno,
                one.item_count,
                len(one.failover_log),
            )
        )
        if not count % _VBUCKETS_AT_ONCE:
            yield
    return rows


def streams(node: Node) -> list[dict[str, object]]:
    """Return the consumers that are furthest behind, and the sum of the others."""
    return [lag._asdict() for lag in largest(node.consumer_lags.found, ROWS_MAX)]


def replication(node: Node) -> list[dict[str, object]]:
    """Return the nodes that this one follows."""
    sources = islice(node.replication.sources.values(), ROWS_MAX)
    return [{"place": each.place, **source_facts(each)} for each in sources]


def leases(node: Node) -> list[dict[str, object]]:
    """Return the snapshots that are held."""
    now = node.bucket.clock.monotonic()
    return [
        {
            "id": f"{lease.id:016x}",
            "vbuckets": len(lease.readings),
            "ends_s": max(0, int(lease.expires_at - now)),
        }
        for lease in islice(node.upr.leases.open.values(), ROWS_MAX)
    ]


def tap(node: Node) -> dict[str, object]:
    """Return how many TAP clients there are, and what they got."""
    received, refused = messages_pushed(node.tap)
    return {
        "clients": tap_clients(node.tap),
        "items_sent": tap_items_sent(node.tap),
        "pushed": received,
        "pushes_refused": refused,
    }


def watermarks(node: Node) -> dict[str, object]:
    """Return how many rows of registered clients there are, and whose keep deletions."""
    pinned = pinned_by_client(node.bucket.pinning.kept)
    return {
        "rows": node.bucket.watermarks.row_count,
        "pinned": [
            {"kind": kind, "id": name, **amount._asdict()}
            for (name, kind), amount in islice(pinned.items(), ROWS_MAX)
        ],
    }


def links(node: Node) -> list[dict[str, object]]:
    """Return the links to other data centres."""
    return [
        {
            "name": link.spec.name,
            "to": link.spec.to,
            "state": link.state,
            "lag_s": round(link.progress.lag_seconds, 1),
            "error": link.error,
        }
        for link in islice(node.links.by_name.values(), ROWS_MAX)
    ]


def index(node: Node) -> dict[str, object]:
    """Return whether the process of the index runs, and for which designs."""
    return {**index_page(node), "designs": node.index.designs}


def events(node: Node) -> list[dict[str, object]]:
    """Return the newest events, newest first."""
    return list(islice(reversed(node.events.newest()), EVENTS_MAX))


def health(node: Node) -> list[dict[str, object]]:
    """Return what is wrong, the worst first."""
    return health_panel(node)


PANELS: dict[str, Callable[[Node], Any]] = {
    "node": node,
    "operations": operations,
    "memory": memory,
    "queue": queue,
    "vbuckets": vbuckets,
    "streams": streams,
    "replication": replication,
    "leases": leases,
    "tap": tap,
    "watermarks": watermarks,
    "links": links,
    "index": index,
    "events": events,
    "health": health,
}
