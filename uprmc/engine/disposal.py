"""What is to leave the store with the next commit: whole vBuckets, and single tombstones.

The flusher asks here when it makes a batch, so that what goes is in one commit with the header that
tells of it: a purge seqno is on disk not later than the loss that it stands for.

What surprises: a vBucket that is made again under a removed one's number needs nothing here. It
begins with a reset, which forgets the old one's records in the very commit that brings the new
header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from uprmc.engine.vbucket import VBucket

#: A tombstone: (key, seqno).
Record = tuple[bytes, int]


class Disposals:
    """See the module docstring."""

    def __init__(self, vbuckets: Mapping[int, VBucket]) -> None:
        self._vbuckets = vbuckets
        self._removed: set[int] = set()
        self._drops: dict[int, Sequence[Record]] = {}

    @property
    def pending(self) -> bool:
        """Whether a vBucket is to be removed. Who drops tombstones marks the vBucket dirty."""
        return bool(self._removed)

    def remove(self, numbers: Iterable[int]) -> None:
        """Have vBuckets removed, or once more after that failed."""
        self._removed.update(numbers)

    def take_removed(self) -> list[int]:
        """Return the vBuckets to remove now; not those that were made again."""
        removed, self._removed = self._removed, set()
        return sorted(removed - self._vbuckets.keys())

    def drop(self, vbucket: VBucket, records: Sequence[Record]) -> None:
        """Have tombstones of a vBucket dropped."""
        self._drops[vbucket.id] = records

    def forget_drops(self, vbucket: VBucket) -> None:
        """Drop nothing of this vBucket, unless that is under way already."""
        self._drops.pop(vbucket.id, None)

    def take_drops(self, vbucket: VBucket) -> Sequence[Record]:
        """Return the tombstones to drop now."""
        return self._drops.pop(vbucket.id, ())
