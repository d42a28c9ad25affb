"""Ordered readings of vBuckets, and leases of them: what streams read.

A `Reading` is what is on disk and what is queued, as one sequence. It takes a view of the queue
and, where that is not enough, a view of the store **in the same turn**. Together they have the
vBucket as it was then: every key at its newest version, once, by rising seqno. `changes` reads it
from any seqno on, as often as wanted.

How the two fit together: the store's own header says up to which seqno the store view is complete
(the hand-over seqno; memory's idea of it can lag behind, when a commit is on disk but its `finish`
has not run yet). Up to there changes are read from disk, except those of keys that have a newer
version in the queue view, which are read from the queue in the second part. So a key is never sent
twice, and nothing newer than the reading appears in it (ruling R3).

A **lease** is a set of readings taken in one turn over one view of the store, kept for a limited
time. Streams that name it read the same bytes as often as needed, from any connection, while writes
continue. It pins pages of the store and queue entries, so the number and lifetime of leases are
limited. When the store must grow all leases end: a node that cannot write is worse than a reader
that has to start again.

The **gate** says whether readings of the store may begin: it can grow only while it is not being
read. The code that grows it shuts the gate, asks all readers to close their views, and opens the
gate again when the store has grown. Without the gate those readers would be back before the last
reading in a worker thread is over, and the store might never grow.

Rows D40 to D42.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from uprmc.config import UprSettings
from uprmc.engine.vbucket import VBucket
from uprmc.errors import InvalidArguments, KeyNotFound, NotMyVBucket, StoreError, TemporaryFailure
from uprmc.model import Item, VBucketHeader, VBucketState
from uprmc.record import key_of, seqno_of, unpack
from uprmc.rollback import VBucketHoldings
from uprmc.storage.interface import StoreView

if TYPE_CHECKING:
    from uprmc.engine.bucket import Bucket

#: Queue entries looked up at a time.
_PORTION_ITEMS = 64

#: A portion of the store counts as this many records at least: others in it may be stale.
_PORTION_RECORDS = 32


class Reading:
    """One ordered reading of a vBucket.

    Close it: it pins queue entries and pages of the store.
    """

    def __init__(self, vbucket: VBucket, view: StoreView | None, *, owns_view: bool = True) -> None:
        """Take the views.

        Args:
            vbucket: what to read.
            view: a store view opened in this turn; ``None`` reads only the queue.
            owns_view: whether closing this closes the store view.

        Raises:
            StoreError: the view cannot be read. A view that is owned has been closed.
        """
        assert view is None or vbucket.queue.persisted, "the store may hold a former history"
        assert not vbucket.rewinding, "the store still has the history that was rolled back"
        self._view = view
        self._owns_view = owns_view
        header = self._header(vbucket.id)
        self.vbucket = vbucket.id  # its number
        self.uuid = vbucket.failover_log[0].uuid  # the history that it belongs to
        self.from_disk = view is not None  # whether the store is read too
        self.purge_seqno = vbucket.purge_seqno  # deletions up to here may be missing from it
        self._queue_view = vbucket.queue.open_view()
        self.end_seqno = self._queue_view.high_seqno  # the newest seqno in it
        self._closed = False
        self._handover = 0
        if header is not None:
            self._handover = header.high_seqno
            self.purge_seqno = max(self.purge_seqno, header.purge_seqno)

    @cached_property
    def newer(self) -> frozenset[bytes]:
        """Keys whose version in the queue is newer than in the store: skip them in the store.

        They are found when they are first asked for, since most of a lease is never read at once.
        """
        if not self.from_disk or self._closed:
            return frozenset()
        return frozenset(map(key_of, self._queue_view.records(self._handover)))

    @property
    def remembered(self) -> int:
        """The number of `newer` keys, 0 while they have not been asked for."""
        return len(self.__dict__.get("newer", ()))

    def changes(self, after: int) -> Iterator[Item]:
        """Yield everything above seqno `after`, by rising seqno, one item for each key.

        This is `records` without `newer` keys, followed by `queued`; streams read these directly.

        Raises:
            StoreError: the disk cannot be read, or the reading was closed in the meantime.
        """
        stored = (each for each in self.records(after) if key_of(each) not in self.newer)
        return map(unpack, chain(stored, self.queued(after)))

    def records(self, after: int) -> Iterator[bytes]:
        """Yield the store's part above seqno `after` as records, those of `newer` keys included.

        A backfill consists of these, because most of a record is copied to the wire unchanged.
        `queued` has the rest. Raises as `changes`.
        """
        if self._closed:
            raise StoreError("the reading is closed")
        if self._view is None or after >= self._handover:
            return iter(())
        return self._view.records_after(self.vbucket, after)

    def queued(self, after: int) -> Iterator[bytes]:
        """Yield the queue's part above seqno `after`; raises as `changes`."""
        return chain.from_iterable(self._queued_portions(max(after, self._handover)))

    def reached(
        self, after: int, rows: int, slice_records: int, slice_bytes: int
    ) -> Iterator[tuple[int, int]]:
        """Count changes above seqno `after`, a slice at a time.

        Args:
            after: see `changes`.
            rows: stop when this number of them is reached.
            slice_records, slice_bytes: about how much to look at in a slice.

        Yields:
            After each slice how far the count is: a seqno, and the number of changes up to it. The
            last one is the answer; its seqno is the reading's end if there are no more changes.

        Raises:
            As `changes`.
        """
        seqno, found = after, 0
        records = size_bytes = 0
        for portion, newer in self._portions(after):
            for record in portion:
                if key_of(record) not in newer:
                    seqno, found = seqno_of(record), found + 1
                    if found == rows:
                        yield seqno, found
                        return
            records += max(len(portion), _PORTION_RECORDS)
            size_bytes += sum(map(len, portion))
            if records >= slice_records or size_bytes >= slice_bytes:
                yield seqno, found
                records = size_bytes = 0
        yield max(after, self.end_seqno), found

    def close(self) -> None:
        """Close the views; items that were read stay valid. Closing twice is harmless."""
        self._closed = True
        self._queue_view.close()
        self._close_view()

    def _portions(self, after: int) -> Iterator[tuple[list[bytes], frozenset[bytes]]]:
        """Yield `records` and `queued` as they are read, with the keys that do not count there.

        A portion may be empty: all that was read is stale.
        """
        if self._closed:
            raise StoreError("the reading is closed")
        if self._view is not None and after < self._handover:
            for portion in self._view.portions_after(self.vbucket, after):
                yield portion, self.newer
        for portion in self._queued_portions(max(after, self._handover)):
            yield portion, frozenset()

    def _queued_portions(self, after: int) -> Iterator[list[bytes]]:
        """Yield what the queue view holds after seqno `after`."""
        while True:
            if self._closed:
                raise StoreError("the reading is closed")
            portion = self._queue_view.take(_PORTION_ITEMS, after)
            if not portion:
                return
            yield portion
            after = seqno_of(portion[-1])

    def _header(self, number: int) -> VBucketHeader | None:
        if self._view is None:
            return None
        try:
            return self._view.header(number)
        except StoreError:
            self._close_view()
            raise

    def _close_view(self) -> None:
        view, self._view = self._view, None
        if view is not None and self._owns_view:
            view.close()


def needs_disk(vbucket: VBucket, after: int) -> bool:
    """Tell whether the queue alone does not hold everything above seqno `after`."""
    return vbucket.queue.persisted > after


# --- the gate -----------------------------------------------------------------------------------


class ViewGate:
    """Open while readings of the store may begin."""

    def __init__(self) -> None:
        self.is_shut = False  # no reading may begin
        self._waiting: dict[Callable[[], object], None] = {}

    def shut(self) -> None:
        """Let no reading begin from now on."""
        self.is_shut = True

    def open(self) -> None:
        """Let readings begin, and call those who wait."""
        self.is_shut = False
        waiting, self._waiting = self._waiting, {}
        for opened in waiting:
            opened()

    def when_open(self, opened: Callable[[], object]) -> None:
        """Call `opened` once when the shut gate opens, even if it is passed several times."""
        self._waiting[opened] = None


# --- leases -------------------------------------------------------------------------------------


class EngineLease:
    """One lease."""

    def __init__(
        self,
        number: int,
        expires_at: float,
        view: StoreView,
        vbuckets: Mapping[int, VBucket],
        readings: Mapping[int, Reading],
        holdings: Mapping[int, VBucketHoldings],
        reader: bytes = b"",
    ) -> None:
        self.id = number  # its name, a number of 48 bits
        self.reader = reader  # the id of the registered client that reads it, empty = none is named
        self.expires_at = expires_at  # monotonic time in seconds
        # By number; also a removed one, and not the one that was created in its place.
        self.vbuckets = vbuckets
        self.readings = readings  # by vBucket
        self.holdings = holdings  # the history of each vBucket, by vBucket
        # Called when the lease ends; readers add themselves.
        self.readers: dict[Callable[[], None], None] = {}
        self.reads = 0  # how many streams have read from it
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
    """All leases of a node."""

    def __init__(self, bucket: Bucket, settings: UprSettings) -> None:
        self.open: dict[int, EngineLease] = {}  # the open leases by number, oldest first
        self.granted = self.expired = self.withdrawn = 0  # counters
        self._bucket = bucket
        self._settings = settings

    def acquire(
        self, vbuckets: Sequence[int], lifetime_s: int, reader: bytes = b"", spare: int = 0
    ) -> tuple[EngineLease, int]:
        """Keep vBuckets as they are now.

        Args:
            vbuckets: their numbers; empty = all active ones.
            lifetime_s: for how long; reduced to the limit if it is longer.
            reader: see `EngineLease`.
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

    def find(self, number: int) -> EngineLease:
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

    def _hold(self, numbers: Sequence[int], expires_at: float, reader: bytes) -> EngineLease:
        bucket = self._bucket
        vbuckets = {number: bucket.vbuckets[number] for number in numbers}
        readings: dict[int, Reading] = {}
        holdings: dict[int, VBucketHoldings] = {}
        name, view = bucket.entropy.uuid48(), bucket.store.view()
        lease = EngineLease(name, expires_at, view, vbuckets, readings, holdings, reader)
        try:
            for number, vbucket in vbuckets.items():
                reading = readings[number] = lease.read(vbucket)
                log = vbucket.failover_log
                holdings[number] = VBucketHoldings(log, reading.end_seqno, reading.purge_seqno)
        except StoreError:
            lease.close()
            raise
        return lease
