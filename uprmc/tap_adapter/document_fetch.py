"""The present versions of many documents of a vBucket, values included, wherever they are.

They are looked up portion by portion. What is not in memory is asked of the disk, and the portion
looked up again when the disk has answered; that is repeated a few times, because values may be
ejected, and documents changed, in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from uprmc.engine.bucket import Bucket
from uprmc.engine.vbucket import VBucket
from uprmc.errors import NotResident, TemporaryFailure
from uprmc.model import Item, Life
from uprmc.record import unpack

#: At most this many keys are looked up at a time.
PORTION_KEYS = 256

#: The disk is asked this often for one portion.
TRIES = 4


class DocumentFetch:
    """One fetch; `begin` it. `abandon` it to hear nothing of it any more."""

    def __init__(
        self,
        bucket: Bucket,
        vbucket: VBucket,
        keys: Sequence[bytes],
        done: Callable[[DocumentFetch, list[Item] | None], None],
    ) -> None:
        """See the class.

        Args:
            bucket: the node's.
            vbucket: the keys'.
            keys: of which the versions are wanted; may be of any number.
            done: gets this and the versions, in order, once. A document that is not there is a
                tombstone, with a revision if there is one on disk. ``None``: they cannot be had.
        """
        self._bucket = bucket
        self._vbucket = vbucket
        self._keys = keys
        self._done: Callable[[DocumentFetch, list[Item] | None], None] | None = done
        self._found: list[Item] = []
        self._tries = TRIES

    def abandon(self) -> None:
        """Call nobody any more."""
        self._done = None

    def begin(self) -> None:
        """Look up what is left, as far as it can be had without the disk."""
        keys, found = self._keys, self._found
        while self._done is not None and len(found) < len(keys):
            portion = keys[len(found) : len(found) + PORTION_KEYS]
            try:
                versions = [self._version(key) for key in portion]
            except TemporaryFailure:
                self._end(None)
                return
            missing = [key for key, item in zip(portion, versions, strict=True) if item is None]
            if missing:
                self._ask_disk(missing)
                return
            found += [item for item in versions if item is not None]
            self._tries = TRIES
        self._end(found)

    def _version(self, key: bytes) -> Item | None:
        """Return the present version; ``None`` = ask the disk.

        Raises:
            TemporaryFailure: the disk shows a history that is over.
        """
        item = self._vbucket.table.find(key)
        if item is not None:
            return item if item.life or item.value is not None else None
        try:
            tombstone = self._bucket.fetcher.tombstone(self._vbucket, key)
        except NotResident:
            if self._tries:
                return None
            tombstone = None  # it is gone in any case; only its revision stays unknown
        if tombstone is not None:
            return unpack(tombstone)
        return Item(key, None, 0, 0, 0, 0, 0, life=Life.DELETED)

    def _ask_disk(self, keys: list[bytes]) -> None:
        if not self._tries:
            self._end(None)
            return
        self._tries -= 1
        number = self._vbucket.id
        self._bucket.fetcher.want([(number, key) for key in keys], self._fetched)

    def _fetched(self, ok: bool) -> None:
        if ok and self._bucket.vbuckets.get(self._vbucket.id) is self._vbucket:
            self.begin()
        else:
            self._end(None)

    def _end(self, versions: list[Item] | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self, versions)
