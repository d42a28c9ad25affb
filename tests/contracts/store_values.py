"""Short ways to write items, headers and batches down in tests of a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.contents import change_of
from uprmc.model import (
    SEQNO_MAX,
    FailoverEntry,
    Item,
    Life,
    SnapshotRange,
    VBucketHeader,
    VBucketState,
)
from uprmc.record import seqno_of
from uprmc.storage.interface import CommitBatch, StoreView


def live(key: bytes, seqno: int, value: bytes = b"value") -> Item:
    """Return a document whose every number can be told from the others."""
    return Item(key, value, 0xAABBCCDD, 2**31 + seqno, 2**62 + seqno, seqno, seqno + 7, 1)


def tombstone(key: bytes, seqno: int, life: Life = Life.DELETED) -> Item:
    """Return the record of a document that is gone."""
    return Item(key, None, 0, 1_700_000_000, 2**61 + seqno, seqno, 9, life=life)


def header(high_seqno: int = 0, uuid: int = 0xBEEF) -> VBucketHeader:
    """Return the header of an active vBucket."""
    return VBucketHeader(
        VBucketState.ACTIVE,
        high_seqno,
        SnapshotRange(high_seqno, high_seqno),
        (FailoverEntry(uuid, 0),),
    )


def write(
    *items: Item,
    vbucket: int = 0,
    reset: bool = False,
    drop: Sequence[tuple[bytes, int]] = (),
    rewind: int | None = None,
    forget: Sequence[bytes] = (),
) -> CommitBatch:
    """Return a batch for one vBucket, with a header that fits."""
    high = max((item.seqno for item in items), default=0)
    return CommitBatch([change_of(vbucket, header(high), items, reset, drop, rewind, forget)])


def removal(vbucket: int) -> CommitBatch:
    """Return a batch that removes a vBucket with everything in it."""
    return CommitBatch([change_of(vbucket, None)])


def by_seq(view: StoreView, vbucket: int = 0, after: int = 0) -> list[tuple[bytes, int]]:
    """Return ``(key, seqno)`` as the by-seq index tells them."""
    return [(item.key, item.seqno) for item in view.changes_after(vbucket, after)]


def by_id(view: StoreView, vbucket: int | None = None) -> list[tuple[int, bytes, int]]:
    """Return ``(vbucket, key, seqno)`` by key, as the by-id index tells them of by-seq's keys."""
    return [
        (number, key, seqno_of(record))
        for number in (sorted(view.headers()) if vbucket is None else [vbucket])
        for key, _ in sorted(by_seq(view, number))
        if (record := view.get(number, key)) is not None
    ]


def contents(view: StoreView, vbuckets: Iterable[int]) -> dict[str, object]:
    """Return all that a view can tell of `vbuckets`, for comparing."""
    return {
        "headers": view.headers(),
        "count": view.count(),
        "documents": {
            (vbucket, key): view.get(vbucket, key)
            for vbucket in vbuckets
            for key, _ in by_seq(view, vbucket)
        },
        "changes": {vbucket: list(view.changes_after(vbucket, 0)) for vbucket in vbuckets},
        "back": {vbucket: list(view.changes_before(vbucket, SEQNO_MAX)) for vbucket in vbuckets},
    }
