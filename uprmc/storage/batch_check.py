"""What every store refuses to commit: a batch that would leave its two indexes at odds."""

from __future__ import annotations

from uprmc.errors import StoreError
from uprmc.model import Life
from uprmc.storage.interface import Batch, VBucketChange

#: vBucket numbers are below this, whatever number of them a node has.
VBUCKETS_MAX = 1_024


def check_batch(batch: Batch) -> None:
    """Hold the caller to the rules of `VBucketChange`.

    Raises:
        StoreError: a vBucket comes twice or is out of range, a key comes twice in one vBucket,
            seqnos do not rise, or a live document lacks its value.
    """
    numbers = [change.vbucket for change in batch.changes]
    if len(set(numbers)) != len(numbers):
        raise StoreError("a batch has two changes of one vBucket")
    for change in batch.changes:
        if not 0 <= change.vbucket < VBUCKETS_MAX:
            raise StoreError(f"there is no vBucket {change.vbucket}")
        _check_items(change)


def _check_items(change: VBucketChange) -> None:
    items = change.items
    if len({item.key for item in items}) != len(items):
        raise StoreError(f"a key comes twice in the batch of vBucket {change.vbucket}")
    last = 0
    for item in items:
        if item.seqno <= last:
            raise StoreError(f"seqno {item.seqno} follows {last} in vBucket {change.vbucket}")
        last = item.seqno
        if item.value is None and item.life == Life.LIVE:
            raise StoreError(f"{item.key!r}: a live document is stored with its value only")
