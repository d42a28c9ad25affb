"""What tables, queues and stores hold, decoded: tests compare items, the product passes records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from uprmc.engine import replica
from uprmc.engine.vbucket import VBucket
from uprmc.engine.write_queue import QueueView, WriteQueue
from uprmc.model import Item, SnapshotRange, VBucketHeader
from uprmc.record import pack, unpack
from uprmc.storage.interface import StoreView, VBucketChange


def table_of(vbucket: VBucket) -> dict[bytes, Item]:
    """Return a copy of a vBucket's table."""
    return {item.key: item for item in vbucket.table.versions()}


def change_of(
    vbucket: int,
    header: VBucketHeader | None,
    items: Iterable[Item] = (),
    reset: bool = False,
    drop: Sequence[tuple[bytes, int]] = (),
    rewind: int | None = None,
    forget: Sequence[bytes] = (),
) -> VBucketChange:
    """Return what a commit does to a vBucket."""
    return VBucketChange(vbucket, header, list(map(pack, items)), reset, drop, rewind, forget)


def decoded(records: Iterable[bytes]) -> list[Item]:
    """Return records as items."""
    return list(map(unpack, records))


def got(view: StoreView, vbucket: int, key: bytes) -> Item | None:
    """Return what a view has of a key."""
    record = view.get(vbucket, key)
    return None if record is None else unpack(record)


def put(queue: WriteQueue, item: Item, replaced_seqno: int) -> None:
    """Append an item to a queue."""
    queue.put(item.seqno, pack(item), replaced_seqno)


def queued(view: QueueView, after: int = 0) -> list[Item]:
    """Return what a view of a queue shows."""
    return decoded(view.records(after))


def receive_all(
    vbucket: VBucket, items: Sequence[Item], snapshot: SnapshotRange, purge_seqno: int = 0
) -> None:
    """Let a vBucket take versions of a snapshot in one go."""
    highest_cas = max([item.cas for item in items])
    replica.apply_all(vbucket, list(map(pack, items)), highest_cas, snapshot, purge_seqno)


def adopt_all(vbucket: VBucket, items: Sequence[Item]) -> None:
    """Let a vBucket adopt versions in one go."""
    vbucket.adopt_all(list(map(pack, items)), max([item.cas for item in items], default=0))
