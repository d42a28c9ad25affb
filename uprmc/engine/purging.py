"""Tombstones are dropped for good once they are old enough.

A consumer that was absent for that long starts over, because it may have missed a deletion. Active
vBuckets are compacted one after the other, and only those that can have tombstones which are due; a
replica leaves this to its active node.
"""

from __future__ import annotations

from collections.abc import Mapping

from uprmc.config import PurgeSettings
from uprmc.engine.compaction import Compactor, PurgeRule
from uprmc.engine.vbucket import VBucket
from uprmc.model import VBucketState
from uprmc.ports import Clock


class Purger:
    """Purges a bucket's vBuckets whenever `begin` is called."""

    def __init__(
        self,
        vbuckets: Mapping[int, VBucket],
        compactor: Compactor,
        clock: Clock,
        settings: PurgeSettings,
    ) -> None:
        self._vbuckets = vbuckets
        self._compactor = compactor
        self._clock = clock
        self._settings = settings
        self._left: list[int] = []
        self._waiting = False
        #: Number -> history that was examined, and when its oldest tombstone was created.
        self._oldest: dict[int, tuple[int, int]] = {}

    def begin(self) -> None:
        """Examine all vBuckets that may have something to purge; harmless while this goes on."""
        if not self._waiting:
            self._left = sorted(self._vbuckets, reverse=True)
            self._next()

    def _next(self) -> None:
        now = int(self._clock.now())
        before_s = now - self._settings.min_age_s
        while self._left:
            vbucket = self._vbuckets.get(self._left.pop())
            if vbucket is not None and self._worth_a_look(vbucket, before_s):
                self._look(vbucket, now, before_s)
                return

    def _worth_a_look(self, vbucket: VBucket, before_s: int) -> bool:
        if vbucket.state != VBucketState.ACTIVE or not vbucket.max_deleted_rev or before_s <= 0:
            return False
        uuid, oldest = self._oldest.get(vbucket.id, (0, 0))
        return uuid != vbucket.failover_log[0].uuid or oldest < before_s

    def _look(self, vbucket: VBucket, now: int, before_s: int) -> None:
        number, uuid = vbucket.id, vbucket.failover_log[0].uuid

        def done(ok: bool) -> None:
            self._waiting = False
            if ok:
                self._oldest[number] = uuid, min(now, self._compactor.oldest_left)
            self._next()

        self._waiting = True
        self._compactor.want(number, PurgeRule(before_s), done)
