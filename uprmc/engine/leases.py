"""Snapshot leases: vBuckets kept as they are now, for a limited time, to be read repeatedly.

A lease is a set of readings (`change_source`) taken in one turn over one view of the store. Streams
that name it read the same bytes as often as needed, from any connection, while writes continue. It
pins pages of the store and queue entries, so the number and lifetime of leases are limited. When
the store must grow all leases end: a node that cannot write is worse than a reader that has to
start again.

Source: design, decision 12; `reference/spark.md` 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from uprmc.config import UprSettings
from uprmc.engine.bucket import Bucket
from uprmc.engine.change_source import Reading
from uprmc.engine.vbucket import VBucket
from uprmc.errors import (
    InvalidArguments,
    KeyNotFound,
    NotMyVBucket,
    StoreError,
    TemporaryFailure,
)
from uprmc.model import VBucketState
from uprmc.rollback import Held
from uprmc.storage.interface import StoreView


class Lease:
    """One lease.

    Attributes:
        id: its name, a number of 48 bits.
        expires_at: monotonic time in seconds.
        vbuckets: by number; also a removed one, and not the one that was created in its place.
        readings: by vBucket.
        held: the history of each vBucket, by vBucket.
        reader: the id of the registered client that reads it, empty = none is named.
        readers: called when the lease ends; readers add themselves.
        reads: how many streams have read from it.
    """

    def __init__(
        self,
        number: int,
        expires_at: float,
        view: StoreView,
        vbuckets: Mapping[int, VBucket],
        readings: Mapping[int, Reading],
        held: Mapping[int, Held],
        reader: bytes = b"",
    ) -> None:
        self.id = number
        self.reader = reader
        self.expires_at = expires_at
        self.vbuckets = vbuckets
        self.readings = readings
        self.held = held
        self.readers: dict[Callable[[], None], None] = {}
        self.reads = 0
        self._view = view

    def read(self, vbucket: VBucket) -> Reading:
        """Take the reading of one of its vBuckets, in the turn in which the lease is created."""
        on_disk = vbucket.queue.persisted > 0
        return Reading(vbucket, self._view if on_disk else None, owns_view=False)

    @property
    def keys(self) -> int:
        """The number of keys that its readings remember because the queue has newer versions."""
        return sum([reading.remembered for reading in self.readings.values()])

    def close(self) -> None:
        """Release everything; readers are called first."""
        readers, self.readers = self.readers, {}
        for ended in readers:
            ended()
        for reading in self.readings.values():
            reading.close()
        self._view.close()


class Leases:
    """All leases of a node.

    Attributes:
        open: the open leases by number, oldest first.
        granted, expired, withdrawn: counters.
    """

    def __init__(self, bucket: Bucket, settings: UprSettings) -> None:
        self.open: dict[int, Lease] = {}
        self.granted = self.expired = self.withdrawn = 0
        self._bucket = bucket
        self._settings = settings

    def acquire(
        self, vbuckets: Sequence[int], lifetime_s: int, reader: bytes = b"", spare: int = 0
    ) -> tuple[Lease, int]:
        """Keep vBuckets as they are now.

        Args:
            vbuckets: their numbers; empty = all active ones.
            lifetime_s: for how long; reduced to the limit if it is longer.
            reader: see `Lease`.
            spare: leases that must stay free for others, if there are more than that at all.

        Returns:
            The lease and its lifetime in seconds.

        Raises:
            TemporaryFailure: warm-up is going on, the store has to grow first, a replica is inside
                a snapshot or is rolling back, or the maximum number of leases is reached.
            NotMyVBucket: one of them is neither active nor a replica here.
            InvalidArguments: a number occurs twice, or the lifetime is 0.
            StoreError: the store cannot be read.
        """
        bucket = self._bucket
        if not bucket.traffic:
            raise TemporaryFailure("warming up")
        numbers = sorted(vbuckets) if vbuckets else sorted(bucket.active)
        if len(set(numbers)) < len(numbers):
            raise InvalidArguments("a vBucket is named twice")
        granted_s = self._lifetime(lifetime_s)
        for number in numbers:
            self._check_served(number)
        if bucket.gate.is_shut:
            raise TemporaryFailure("the store has to grow first")
        limit = self._settings.leases
        if len(self.open) + min(spare, limit - 1) >= limit:
            spared = f", and {limit - len(self.open)} stay free for others" if spare else ""
            raise TemporaryFailure(f"there are {len(self.open)} leases already{spared}")
        lease = self._hold(numbers, bucket.clock.monotonic() + granted_s, reader)
        self.open[lease.id] = lease
        self.granted += 1
        return lease, granted_s

    def find(self, number: int) -> Lease:
        """Return an open lease; raises `KeyNotFound`."""
        lease = self.open.get(number)
        if lease is None:
            raise KeyNotFound(number)
        return lease

    def renew(self, number: int, lifetime_s: int) -> int:
        """Set the lifetime from now on; returns what was granted, in seconds.

        Raises:
            KeyNotFound, InvalidArguments: as `find` and `acquire`.
        """
        lease = self.find(number)
        granted_s = self._lifetime(lifetime_s)
        lease.expires_at = self._bucket.clock.monotonic() + granted_s
        return granted_s

    def release(self, number: int) -> None:
        """End it early; raises `KeyNotFound`."""
        lease = self.find(number)
        del self.open[number]
        lease.close()

    def tick(self) -> None:
        """End leases whose time is over; call it about once a second."""
        now = self._bucket.clock.monotonic()
        for number, lease in list(self.open.items()):
            if lease.expires_at <= now:
                self.release(number)
                self.expired += 1

    def release_views(self) -> None:
        """End all leases, because the store needs the room that they pin."""
        self.withdrawn += len(self.open)
        for number in list(self.open):
            self.release(number)

    def _lifetime(self, lifetime_s: int) -> int:
        if not lifetime_s:
            raise InvalidArguments("a lease needs a lifetime")
        return min(lifetime_s, self._settings.lease_max_s)

    def _check_served(self, number: int) -> None:
        vbucket = self._bucket.vbuckets.get(number)
        if vbucket is None or vbucket.state not in (VBucketState.ACTIVE, VBucketState.REPLICA):
            raise NotMyVBucket(number)
        if vbucket.receiving is not None:
            raise TemporaryFailure(f"vBucket {number} is receiving a snapshot")
        if vbucket.rewinding:
            raise TemporaryFailure(f"vBucket {number} is rolling back")

    def _hold(self, numbers: Sequence[int], expires_at: float, reader: bytes) -> Lease:
        bucket = self._bucket
        vbuckets = {number: bucket.vbuckets[number] for number in numbers}
        readings: dict[int, Reading] = {}
        held: dict[int, Held] = {}
        name, view = bucket.entropy.uuid48(), bucket.store.view()
        lease = Lease(name, expires_at, view, vbuckets, readings, held, reader)
        try:
            for number, vbucket in vbuckets.items():
                reading = readings[number] = lease.read(vbucket)
                log = vbucket.failover_log
                held[number] = Held(log, reading.end_seqno, reading.purge_seqno)
        except StoreError:
            lease.close()
            raise
        return lease
