"""What a node does now and then: housekeeping, and the ticks of replication and of TAP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from uprmc.engine.bucket import Bucket
from uprmc.errors import StoreError, StoreTaken
from uprmc.server.log import Log, Throttle
from uprmc.server.stats.consumers import INTERVAL_S
from uprmc.server.work.turns import InSlices, LongWork, Ticker
from uprmc.tap_adapter.producer import text_of
from uprmc.tap_adapter.session import TapRegistry
from uprmc.upr.hub import Hub
from uprmc.upr.replication import Replication

# --- housekeeping ---------------------------------------------------------------------------------
# What a node does now and then: eject values, delete the expired, free memory and cycles.
#
# Whatever takes long is a piece of the node's long work, so that nobody waits for it.


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
    """

    def __init__(
        self,
        reactor: Any,
        bucket: Bucket,
        hub: Hub,
        looks: Callable[[], Iterator[None]],
        work: LongWork,
    ) -> None:
        engine, purge = bucket.settings.engine, bucket.settings.purge
        self._bucket = bucket
        self._hub = hub
        self._paging = InSlices(work, self._page)
        self._expiring = InSlices(work, self._expire)
        self._freeing = InSlices(work, bucket.account.leftovers.steps)
        purging = InSlices(work, bucket.purger.steps)
        pinning = InSlices(work, bucket.pinning.steps)
        looking = InSlices(work, looks)
        self._works = (self._paging, self._expiring, self._freeing, purging, pinning, looking)
        self._expirer = Ticker(reactor, engine.expiry_interval_s, self._expiring.start)
        self._owner = Ticker(reactor, OWNER_S, self._check_owner)
        self._tickers = [
            *([Ticker(reactor, purge.interval_s, purging.start)] if purge.interval_s else []),
            Ticker(reactor, PINNING_S, pinning.start),
            Ticker(reactor, INTERVAL_S, looking.start),
            Ticker(reactor, TICK_S, self._tick, lambda: _log.failure("tick_failed")),
            Ticker(reactor, COLLECT_S, work.collect_soon),
            self._owner,
            self._expirer,
        ]
        # Told that another process has opened the data directory.
        self.on_taken: Callable[[StoreTaken], None] = lambda _: None
        bucket.account.on_pressure = self._paging.start

    def start(self) -> None:
        """Begin; what is done at intervals is done an interval from now for the first time."""
        for ticker in self._tickers:
            ticker.start()

    def expire_every(self, seconds: float) -> None:
        """Look for expired items at another interval from now on."""
        if self._expirer.running:
            self._expirer.stop()
            self._expirer.every_s = seconds
            self._expirer.start()

    def expire_now(self) -> None:
        """Look for expired items from the next turn on, whenever the next look is due."""
        if self._expirer.running:
            self._expiring.start()

    def stop(self) -> None:
        """Cease; harmless when nothing runs."""
        for ticker in self._tickers:
            ticker.stop()
        for work in self._works:
            work.stop()
        self._bucket.watermarks.tell_all_events()

    def _tick(self) -> None:
        self._bucket.tick()
        self._hub.tick()
        if self._bucket.evictor.needed:
            self._paging.start()
        if self._bucket.account.leftovers:
            self._freeing.start()

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


# --- replication ----------------------------------------------------------------------------------


#: How often it is looked what is due: a lost source is dialled again after that long at best.
REPLICATION_TICK_S = 0.1

_TROUBLE_LOG_S = 1.0

_replication_log = Log("replication")


class ReplicationDriver:
    """Drives one node's replication from `start` to `stop`, and logs what becomes of it."""

    def __init__(
        self, reactor: Any, replication: Replication, monotonic: Callable[[], float]
    ) -> None:
        self._replication = replication
        self._monotonic = monotonic
        self._trouble_log = Throttle(_TROUBLE_LOG_S, monotonic)
        self._ticker = Ticker(
            reactor,
            REPLICATION_TICK_S,
            lambda: replication.tick(monotonic()),
            lambda: _replication_log.failure("tick_failed"),
        )
        replication.on_open = self._open
        replication.on_trouble = self._trouble
        replication.on_change = self._change

    def start(self) -> None:
        """Go on with what was followed before; call it when warm-up is over."""
        self._replication.tick(self._monotonic())
        self._replication.resume()
        self._ticker.start()

    def stop(self) -> None:
        """Hang up everywhere; harmless when it was never started."""
        self._ticker.stop()
        self._replication.close()

    def _open(self, source: str, _: str) -> None:
        _replication_log.info("connected", source=source)

    def _change(self, source: str, what: str) -> None:
        _replication_log.info("changed", source=source, what=what)

    def _trouble(self, source: str, reason: str) -> None:
        held_back = self._trouble_log.passed()
        if held_back is not None:
            _replication_log.warn("trouble", source=source, reason=reason, unlogged=held_back)


# --- TAP ------------------------------------------------------------------------------------------


#: How often it is looked which clients' time is over.
TAP_TICK_S = 1.0

_LOG_S = 1.0

_tap_log = Log("tap")


class TapDriver:
    """Drives one adapter from `start` to `stop`, and logs what becomes of it.

    Args:
        trouble: what was found damaged at the start, one line each.
    """

    def __init__(
        self,
        reactor: Any,
        registry: TapRegistry,
        trouble: Iterable[str],
        monotonic: Callable[[], float],
    ) -> None:
        self._refused_log = Throttle(_LOG_S, monotonic)
        self._closed_log = Throttle(_LOG_S, monotonic)
        self._ticker = Ticker(
            reactor, TAP_TICK_S, registry.tick, lambda: _tap_log.failure("tick_failed")
        )
        registry.on_refused = self._refused
        registry.on_closed = self._closed
        for reason in trouble:
            _tap_log.warn("damaged", reason=reason)

    def start(self) -> None:
        """Begin to forget who has been gone for too long."""
        self._ticker.start(now=True)

    def stop(self) -> None:
        """Cease; harmless when it was never started."""
        self._ticker.stop()

    def _refused(self, name: bytes, reason: str) -> None:
        held_back = self._refused_log.passed()
        if held_back is not None:
            _tap_log.warn("refused", name=text_of(name), reason=reason, unlogged=held_back)

    def _closed(self, name: bytes, reason: str, done: bool) -> None:
        held_back = self._closed_log.passed()
        if held_back is not None:
            _tap_log.info(
                "closed", name=text_of(name), reason=reason, done=done, unlogged=held_back
            )
