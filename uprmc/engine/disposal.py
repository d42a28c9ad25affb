"""What the next commit does to the store beside new versions: it removes, and it heals.

It removes complete vBuckets and single tombstones, and replaces damaged records. The flusher asks
here when it makes a batch, so that a removal is in one commit with the header that reports it: a
purge seqno is on disk no later than the loss that it describes.

Note: a vBucket that is created with the number of a removed one needs nothing here. It begins with
a reset, which deletes the old records in the same commit that writes the new header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from uprmc.engine.vbucket import VBucket

#: A tombstone: (key, seqno).
Record = tuple[bytes, int]


class Disposals:
    """Collects what the next commit removes, until the flusher takes it."""

    def __init__(self, vbuckets: Mapping[int, VBucket]) -> None:
        self._vbuckets = vbuckets
        self._removed: set[int] = set()
        self._drops: dict[int, Sequence[Record]] = {}
        self._heals: dict[VBucket, list[bytes]] = {}

    @property
    def pending(self) -> bool:
        """Whether a vBucket is to be removed. Callers that drop tombstones mark it dirty."""
        return bool(self._removed)

    def is_gone(self, vbucket: VBucket) -> bool:
        """Tell whether a vBucket was removed, even if another one has its number now."""
        return self._vbuckets.get(vbucket.id) is not vbucket

    def remove(self, numbers: Iterable[int]) -> None:
        """Schedule vBuckets for removal, or again after a failure."""
        self._removed.update(numbers)

    def take_removed(self) -> list[int]:
        """Return the vBuckets to remove now, except those that were created again."""
        removed, self._removed = self._removed, set()
        return sorted(removed - self._vbuckets.keys())

    def drop(self, vbucket: VBucket, records: Sequence[Record]) -> None:
        """Schedule tombstones of a vBucket to be dropped."""
        self._drops[vbucket.id] = records

    def forget_drops(self, vbucket: VBucket) -> None:
        """Cancel the drops of this vBucket that are not already under way."""
        self._drops.pop(vbucket.id, None)

    def take_drops(self, vbucket: VBucket) -> Sequence[Record]:
        """Return the tombstones to drop now."""
        return self._drops.pop(vbucket.id, ())

    def heal(self, vbucket: VBucket, record: bytes) -> None:
        """Schedule a version to take the place of its damaged record."""
        self._heals.setdefault(vbucket, []).append(record)

    def take_heals(self, vbucket: VBucket) -> Sequence[bytes]:
        """Return the versions to heal now."""
        return self._heals.pop(vbucket, ())
