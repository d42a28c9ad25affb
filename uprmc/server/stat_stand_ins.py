"""Groups about structures that we do not have, as tools want to read them all the same.

Checkpoints: a vBucket's write queue is shown as one checkpoint that is always open, with the
flusher's cursor in it. Hash tables: a vBucket's table is a dict, shown as a table with a slot for
each entry and never two in one. TAP: nobody is connected, and the settings are the defaults that
the original had.

Source: UPR reference 6.1; TAP reference 4 for the defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uprmc.kv.services import StatGroup
from uprmc.server.stat_vbuckets import bytes_per_document

if TYPE_CHECKING:
    from uprmc.server.node import Node

#: The number of the one checkpoint of each vBucket.
_CHECKPOINT = "1"

_TAP: StatGroup = [
    ("ep_tap_count", "0"),
    ("ep_tap_total_queue", "0"),
    ("ep_tap_total_fetched", "0"),
    ("ep_tap_total_backlog_size", "0"),
    ("ep_tap_bg_fetched", "0"),
    ("ep_tap_bg_fetch_requeued", "0"),
    ("ep_tap_fg_fetched", "0"),
    ("ep_tap_deletes", "0"),
    ("ep_tap_throttled", "0"),
    ("ep_tap_queue_fill", "0"),
    ("ep_tap_queue_drain", "0"),
    ("ep_tap_queue_backoff", "0"),
    ("ep_tap_queue_backfill", "0"),
    ("ep_tap_queue_itemondisk", "0"),
    ("ep_tap_queue_backfillremaining", "0"),
    ("ep_tap_ack_grace_period", "300"),
    ("ep_tap_ack_interval", "1000"),
    ("ep_tap_ack_window_size", "10"),
    ("ep_tap_backoff_period", "5"),
    ("ep_tap_backlog_limit", "5000"),
    ("ep_tap_bg_max_pending", "500"),
    ("ep_tap_keepalive", "0"),
    ("ep_tap_noop_interval", "200"),
    ("ep_tap_requeue_sleep_time", "0.1"),
    ("ep_tap_throttle_threshold", "90"),
    ("ep_tap_throttle_queue_cap", "1000000"),
    ("ep_tap_throttle_cap_pcnt", "10"),
]

_TAP_TOTALS = (
    "count",
    "qlen",
    "fill",
    "drain",
    "backoff",
    "backfill_remaining",
    "itemondisk",
    "total_backlog_size",
)


def checkpoints(node: Node, numbers: list[int]) -> StatGroup:
    """Return each vBucket's write queue as one open checkpoint."""
    group: StatGroup = []
    for number in numbers:
        vbucket = node.bucket.vbuckets[number]
        queued = str(vbucket.queue.live)
        name = f"vb_{number}"
        group += [
            (f"{name}:state", vbucket.state.name.lower()),
            (f"{name}:open_checkpoint_id", _CHECKPOINT),
            (f"{name}:last_closed_checkpoint_id", "0"),
            (f"{name}:persisted_checkpoint_id", "0"),
            (f"{name}:num_checkpoints", "1"),
            (f"{name}:num_tap_cursors", str(len(vbucket.watchers))),
            (f"{name}:num_checkpoint_items", queued),
            (f"{name}:num_open_checkpoint_items", queued),
            (f"{name}:num_items_for_persistence", queued),
            (f"{name}:persistence:cursor_checkpoint_id", _CHECKPOINT),
            (f"{name}:persistence:cursor_seqno", str(vbucket.persisted_seqno)),
        ]
    return group


def hash_tables(node: Node, numbers: list[int]) -> StatGroup:
    """Return each vBucket's table as a hash table; its memory is an estimate."""
    bytes_each = bytes_per_document(node.bucket)
    group: StatGroup = []
    for number in numbers:
        vbucket = node.bucket.vbuckets[number]
        entries = len(vbucket.table)
        depth, size = str(min(entries, 1)), str(int(bytes_each * entries))
        documents = str(vbucket.item_count)
        name = f"vb_{number}"
        group += [
            (f"{name}:state", vbucket.state.name.lower()),
            (f"{name}:size", str(entries)),
            (f"{name}:locks", "0"),
            (f"{name}:min_depth", depth),
            (f"{name}:max_depth", depth),
            (f"{name}:reported", documents),
            (f"{name}:counted", documents),
            (f"{name}:resized", "0"),
            (f"{name}:mem_size", size),
            (f"{name}:mem_size_counted", size),
        ]
    return group


def tap(node: Node) -> StatGroup:
    """Return what old tools read of TAP."""
    return list(_TAP)


def tap_totals(node: Node, separator: str) -> StatGroup:
    """Return the sums over TAP connections by what their names begin with, up to `separator`."""
    return [(f"_total:{name}", "0") for name in _TAP_TOTALS]
