"""Tombstones are dropped for good once everyone who must see them has, and they are old enough.

Only vBuckets where there may be something to drop are compacted: what was examined before is not
read again.

A consumer without a watermark that was absent for longer than the age starts over, because it may
have missed a deletion. So as long as such consumers are served, the age is three days by default.

Source: `reference/systems.md` a.4 to a.6; rows X03, X04, X07, X22.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from uprmc.config import PURGE_AGE_AUTO, PurgeSettings
from uprmc.engine.compaction import Compactor
from uprmc.engine.memory_account import MemoryAccount
from uprmc.engine.purge_rule import Compacted, PurgeRule
from uprmc.engine.vbucket import VBucket
from uprmc.model import VBucketState
from uprmc.ports import Clock

#: Local document with the time when a stream without a watermark was last served.
SERVED_NAME = b"uprmc/unregistered"

#: Age of deletions while there are consumers without a watermark.
UNREGISTERED_AGE_S = 259_200

_AGED = PurgeRule(aged=True)


class PurgePolicy:
    """How young and when may be purged; implements `compaction.Policy`.

    Attributes:
        served_at: Unix time when a stream without a watermark was last served, 0 = never.
    """

    def __init__(self, account: MemoryAccount, clock: Clock, settings: PurgeSettings) -> None:
        self._account = account
        self._clock = clock
        self._settings = settings
        self.served_at = 0.0

    def _now(self) -> float:
        """Return Unix time; a clock that has leapt ahead makes no deletion old."""
        return self._account.believed(self._clock.now())

    def serve_unregistered(self) -> None:
        """Take note that a stream without a watermark is being served."""
        self.served_at = self._now()

    def restore(self, document: bytes | None, *, used: bool, clean: bool) -> None:
        """Take over what a directory knows; after a crash, or without a document, it was just now.

        Args:
            document: what `document` returned when the node was stopped.
            used: whether the directory holds vBuckets.
            clean: whether it was left in order.
        """
        known = clean and document is not None and document.isdigit()
        if known and document is not None:
            self.served_at = float(document)
        elif used:
            self.serve_unregistered()

    def document(self) -> bytes:
        """Return what an orderly stop writes under `SERVED_NAME`."""
        return b"%d" % self.served_at

    @property
    def min_age_s(self) -> int:
        """The age below which deletions are kept now."""
        if self._settings.min_age_s != PURGE_AGE_AUTO:
            return self._settings.min_age_s
        served = self.served_at and self._now() - self.served_at < UNREGISTERED_AGE_S
        return UNREGISTERED_AGE_S if served else 0

    def due_before_s(self) -> int:
        """Return the time such that deletions before it are old enough."""
        return int(self._now()) - self.min_age_s + 1

    def disk_is_full(self) -> bool:
        """Tell whether the store refuses commits."""
        return bool(self._account.disk_reason)


class Purger:
    """Purges a bucket's vBuckets whenever `begin` is called."""

    def __init__(
        self, vbuckets: Mapping[int, VBucket], compactor: Compactor, policy: PurgePolicy
    ) -> None:
        self._vbuckets = vbuckets
        self._compactor = compactor
        self._policy = policy
        self._asked: set[int] = set()
        #: Number -> history that was examined, and with what result.
        self._last: dict[int, tuple[int, Compacted]] = {}

    def begin(self) -> None:
        """Purge all vBuckets that may have something to purge; harmless while this goes on."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Do what `begin` does, yielding after each vBucket."""
        for number in sorted(self._vbuckets):
            vbucket = self._vbuckets.get(number)
            if vbucket is not None and number not in self._asked and self._is_worth_a_look(vbucket):
                self._look(vbucket)
            yield

    def _is_worth_a_look(self, vbucket: VBucket) -> bool:
        if vbucket.state == VBucketState.DEAD:
            return False  # its clients report elsewhere now, and it may follow that node again
        due_before_s = self._policy.due_before_s()
        if not vbucket.max_deleted_rev or due_before_s <= 0:
            return False
        limit, last = self._compactor.limit(vbucket, _AGED).seqno, self._last_of(vbucket)
        old = last.first_left <= limit and last.oldest_left < due_before_s
        return old or limit > last.examined

    def _last_of(self, vbucket: VBucket) -> Compacted:
        uuid, last = self._last.get(vbucket.id, (0, Compacted(0, 0)))
        same = uuid == _history(vbucket) and last.examined <= vbucket.high_seqno
        return last if same else Compacted(vbucket.id, 0)

    def _look(self, vbucket: VBucket) -> None:
        last, uuid = self._last_of(vbucket), _history(vbucket)

        def done(ok: bool) -> None:
            self._asked.discard(vbucket.id)
            if ok:
                self._last[vbucket.id] = uuid, self._compactor.last

        self._asked.add(vbucket.id)
        after = min(last.examined, last.first_left - 1)
        self._compactor.want(vbucket.id, _AGED, done, after)


def _history(vbucket: VBucket) -> int:
    return vbucket.failover_log[0].uuid
