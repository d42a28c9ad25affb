"""All that a node does with its disk while it runs, and how that ends.

What is committed, fetched and compacted is decided by the engine; here are the threads for it. A
stop ends in this order: readers, then the flusher, then the mark that says that the end was
orderly, then everything is forced to the device. When it has ended no worker touches the store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from uprmc.config import FlushSettings
from uprmc.engine.bucket import Bucket
from uprmc.engine.commit_room import commit_growing
from uprmc.engine.purging import SERVED_NAME
from uprmc.errors import StoreTaken
from uprmc.server.compaction_driver import CompactionDriver
from uprmc.server.fetch_driver import FetchDriver
from uprmc.server.flush_driver import FlushDriver
from uprmc.server.preread_driver import PrereadDriver
from uprmc.server.slices import LongWork
from uprmc.storage.interface import CLEAN_MARK, Batch


class DiskWork:
    """Drives one bucket's flusher, fetcher and compactor until `stop`.

    Args:
        reactor: with a clock and timers.
        pool: the threads.
        bucket: the bucket whose data are on the disk.
        settings: those of the flusher.
        work: the node's long work; it has to go on until the stop is over.

    Attributes:
        preread: reads the disk ahead of streams.
        on_taken: told that another process has opened the data directory.
    """

    def __init__(
        self,
        reactor: Any,
        pool: ThreadPool,
        bucket: Bucket,
        settings: FlushSettings,
        work: LongWork,
    ) -> None:
        self._reactor = reactor
        self._pool = pool
        self._bucket = bucket
        self._flushing = FlushDriver(reactor, pool, bucket, settings, work)
        self._fetching = FetchDriver(
            reactor, pool, bucket.fetcher, bucket.timings, settings.fetch_rounds
        )
        self.on_taken: Callable[[StoreTaken], None] = lambda _: None
        self._flushing.on_taken = lambda error: self.on_taken(error)
        self._compacting = CompactionDriver(reactor, pool, bucket.compactor)
        self.preread = PrereadDriver(reactor, pool, bucket)

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        reading = self._fetching.busy or self._compacting.busy or self.preread.busy
        return self._flushing.busy or reading

    @inlineCallbacks
    def stop(self, *, orderly: bool) -> Generator[Deferred[Any], Any, None]:
        """End all work; fires when no worker touches the store any more. Call it once.

        Args:
            orderly: write everything that is queued and leave the mark of a clean end.

        Raises:
            StoreError: not everything could be written; the mark is not left.
        """
        yield self.preread.stop()
        yield self._compacting.stop()
        yield self._fetching.stop()
        yield self._flushing.stop()
        if orderly:
            yield from self._flushing.drain()
            served = self._bucket.purge_policy.document()
            commit_growing(self._bucket.store, Batch(local={CLEAN_MARK: b"1", SERVED_NAME: served}))
            yield deferToThreadPool(self._reactor, self._pool, self._bucket.store.sync)
