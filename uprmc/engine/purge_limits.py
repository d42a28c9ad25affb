"""How far a vBucket may be purged, and what keeps the purger from going further.

Registered clients set limits (`watermarks`), and so does a replica's source: a replica keeps what
its source may have (X22).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from uprmc.engine.flusher import Flusher
from uprmc.engine.vbucket import VBucket
from uprmc.engine.watermarks.registry import Pinned, Watermarks
from uprmc.engine.watermarks.rows import Limit, Row
from uprmc.model import VBucketState


class PurgeLimits:
    """The limits of all vBuckets.

    Args:
        flusher: knows what is on disk; nothing beyond is purged.
        watermarks: the registered clients.
        numbered: see `Bucket`.
    """

    def __init__(
        self, flusher: Flusher, watermarks: Watermarks, numbered: Mapping[int, int]
    ) -> None:
        self._flusher = flusher
        self._watermarks = watermarks
        self._numbered = numbered

    def of(self, vbucket: VBucket) -> Limit:
        """Return the limit that registered clients and a replica's source set."""
        return self._not_beyond_source(vbucket, self._watermarks.limit(vbucket))

    def forced(self, vbucket: VBucket) -> Limit:
        """Return the limit if registered clients do not matter."""
        return self._not_beyond_source(vbucket, Limit(self._flusher.durable_seqno(vbucket), None))

    def pinned(self, vbucket: VBucket) -> Pinned | None:
        """Return what one row of a vBucket alone keeps from being purged."""
        return self._watermarks.pinned(vbucket, self.forced(vbucket).seqno)

    def _not_beyond_source(self, vbucket: VBucket, limit: Limit) -> Limit:
        """Lower the limit of a replica to its source's purge seqno, which it knows.

        A vBucket that numbers its own versions has no source.
        """
        filled = vbucket.state in (VBucketState.REPLICA, VBucketState.PENDING)
        numbered = self._numbered.get(vbucket.id) == vbucket.failover_log[0].uuid
        if filled and not numbered and vbucket.purge_seqno < limit.seqno:
            return Limit(vbucket.purge_seqno, "source")
        return limit

    def learn_table(
        self, vbucket: VBucket, purge_seqno: int, rows: Iterable[Row], *, incomplete: bool
    ) -> None:
        """Take over what a replica's source has told of its watermarks.

        A purge seqno beyond what the replica has on disk as complete snapshots changes nothing.
        """
        stored_seqno = min(vbucket.whole_seqno, self._flusher.durable_seqno(vbucket))
        if vbucket.purge_seqno < purge_seqno <= stored_seqno:
            vbucket.purge_seqno = purge_seqno
            vbucket.change_header()
        self._watermarks.learn(vbucket, rows, incomplete=incomplete)
