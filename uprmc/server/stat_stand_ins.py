"""Groups about structures that we do not have, as tools want to read them all the same.

Checkpoints: a vBucket's write queue is shown as one checkpoint that is always open, with the
flusher's cursor in it; see `kv.tap_commands` for its id. Hash tables: a vBucket's table is a dict,
shown as a table with a slot for each entry and never two in one.

Source: UPR reference 6.1.
"""

from __future__ import annotations

from uprmc.kv.services import StatGroup
from uprmc.kv.tap_commands import PERSISTED_CHECKPOINT, last_closed
from uprmc.server.observed import ObservedNode
from uprmc.server.stat_vbuckets import bytes_per_document


def checkpoints(node: ObservedNode, numbers: list[int]) -> StatGroup:
    """Return each vBucket's write queue as one open checkpoint."""
    group: StatGroup = []
    for number in numbers:
        vbucket = node.bucket.vbuckets[number]
        queued = str(vbucket.queue.live)
        closed = last_closed(node.tap, number)
        opened = str(closed + 1)
        name = f"vb_{number}"
        group += [
            (f"{name}:state", vbucket.state.name.lower()),
            (f"{name}:open_checkpoint_id", opened),
            (f"{name}:last_closed_checkpoint_id", str(closed)),
            (f"{name}:persisted_checkpoint_id", str(PERSISTED_CHECKPOINT)),
            (f"{name}:num_checkpoints", "1"),
            (f"{name}:num_tap_cursors", str(len(vbucket.watchers))),
            (f"{name}:num_checkpoint_items", queued),
            (f"{name}:num_open_checkpoint_items", queued),
            (f"{name}:num_items_for_persistence", queued),
            (f"{name}:persistence:cursor_checkpoint_id", opened),
            (f"{name}:persistence:cursor_seqno", str(vbucket.persisted_seqno)),
        ]
    return group


def hash_tables(node: ObservedNode, numbers: list[int]) -> StatGroup:
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
