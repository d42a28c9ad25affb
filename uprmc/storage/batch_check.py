"""What every store refuses to commit: a batch that would leave its two indexes at odds."""

from __future__ import annotations

from uprmc.errors import StoreError
from uprmc.record import ABSENT, KIND_AT, key_of, seqno_of
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
        _check_records(change)


def _check_records(change: VBucketChange) -> None:
    records = change.records
    if len(set(map(key_of, records))) != len(records):
        raise StoreError(f"a key comes twice in the batch of vBucket {change.vbucket}")
    last = 0
    for record in records:
        seqno = seqno_of(record)
        if seqno <= last:
            raise StoreError(f"seqno {seqno} follows {last} in vBucket {change.vbucket}")
        last = seqno
        if record[KIND_AT] & ABSENT:
            raise StoreError(f"{key_of(record)!r}: a live document is stored with its value only")
