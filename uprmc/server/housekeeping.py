"""What a node does now and then: eject values, delete the expired, free memory and cycles.

Whatever takes long is a piece of the node's long work, so that nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet.task import LoopingCall

from uprmc.engine.bucket import Bucket
from uprmc.errors import StoreError, StoreTaken
from uprmc.server.consumer_lag import INTERVAL_S
from uprmc.server.log import Log
from uprmc.server.slices import InSlices, LongWork
from uprmc.upr.hub import Hub

#: How often due times and the memory mark are looked at.
TICK_S = 0.1

#: How often it is looked which client keeps how many deletions.
PINNING_S = 10.0

#: How often cycles are looked for when there is no long work: the rarer, the longer a look takes.
COLLECT_S = 0.025

#: How often the data directory is asked whose it is.
OWNER_S = 1.0

_log = Log("housekeeping")


class Housekeeping:
    """Keeps one bucket tidy from `start` to `stop`.

    Args:
        looks: gives the steps of what is looked at about once a second.

    Attributes:
        on_taken: told that another process has opened the data directory.
    """

    def __init__(
        self,
        reactor: Any,
        bucket: Bucket,
        hub: Hub,
        looks: Callable[[], Iterator[None]],
        work: LongWork,
    ) -> None:
        self._bucket = bucket
        self._hub = hub
        self._paging = InSlices(work, self._page)
        self._expiring = InSlices(work, self._expire)
        self._freeing = InSlices(work, bucket.account.leftovers.steps)
        self._ticker = LoopingCall(self._tick)
        self._expirer = LoopingCall(self._expiring.start)
        self._purging = InSlices(work, bucket.purger.steps)
        self._purger = LoopingCall(self._purging.start)
        self._pinning = InSlices(work, bucket.pinning.steps)
        self._pinner = LoopingCall(self._pinning.start)
        self._looking = InSlices(work, looks)
        self._looker = LoopingCall(self._looking.start)
        self._collector = LoopingCall(work.collect_soon)
        self._owner = LoopingCall(self._check_owner)
        self._calls = (
            self._ticker,
            self._expirer,
            self._purger,
            self._pinner,
            self._looker,
            self._collector,
            self._owner,
        )
        for call in self._calls:
            call.clock = reactor
        self.on_taken: Callable[[StoreTaken], None] = lambda _: None
        bucket.account.on_pressure = self._paging.start

    def start(self) -> None:
        """Begin; what is done at intervals is done an interval from now for the first time."""
        interval_s = self._bucket.settings.purge.interval_s
        if interval_s:
            self._purger.start(interval_s, now=False)
        self._pinner.start(PINNING_S, now=False)
        self._looker.start(INTERVAL_S, now=False)
        self._ticker.start(TICK_S, now=False)
        self._collector.start(COLLECT_S, now=False)
        self._owner.start(OWNER_S, now=False)
        self._expirer.start(self._bucket.settings.engine.expiry_interval_s, now=False)

    def expire_every(self, seconds: float) -> None:
        """Look for expired items at another interval from now on."""
        if self._expirer.running:
            self._expirer.stop()
            self._expirer.start(seconds, now=False)

    def expire_now(self) -> None:
        """Look for expired items from the next turn on, whenever the next look is due."""
        if self._expirer.running:
            self._expiring.start()

    def stop(self) -> None:
        """Cease; harmless when nothing runs."""
        for call in self._calls:
            if call.running:
                call.stop()
        for work in (
            self._paging,
            self._expiring,
            self._purging,
            self._pinning,
            self._looking,
            self._freeing,
        ):
            work.stop()
        self._bucket.watermarks.tell_all_events()

    def _tick(self) -> None:
        try:
            self._bucket.tick()
            self._hub.tick()
            if self._bucket.evictor.needed:
                self._paging.start()
            if self._bucket.account.leftovers:
                self._freeing.start()
        except Exception:  # a bug of ours must not end housekeeping for good
            _log.failure("tick_failed")

    def _check_owner(self) -> None:
        """See whether the data directory is still ours: a node without writes must notice, too."""
        try:
            self._bucket.store.check_owner()
        except StoreTaken as error:
            self._owner.stop()
            self.on_taken(error)
        except StoreError:
            return  # whoever needs the store will say so

    def _page(self) -> Iterator[None]:
        while self._bucket.evictor.run_slice():
            yield

    def _expire(self) -> Iterator[None]:
        return self._bucket.expirer.run(self._bucket.steady.now())
