"""What a node does now and then: eject values, expire the forgotten, flush late, free cycles.

Long walks are done in slices with a breath in between, so that nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.internet.task import LoopingCall

from uprmc.engine.bucket import Bucket
from uprmc.engine.expiry import expire_due
from uprmc.server import collector
from uprmc.server.log import Log
from uprmc.upr.hub import Hub

#: How often due times and the memory mark are looked at.
TICK_S = 0.1

_EXPIRY_SLICE_ITEMS = 2_000

_log = Log("housekeeping")


class Housekeeping:
    """Runs the pagers of one bucket from `start` to `stop`."""

    def __init__(self, reactor: Any, bucket: Bucket, hub: Hub) -> None:
        self._reactor = reactor
        self._bucket = bucket
        self._hub = hub
        self._ticker = LoopingCall(self._tick)
        self._ticker.clock = reactor
        self._expirer = LoopingCall(self._expire)
        self._expirer.clock = reactor
        self._paging: Any = None
        self._expiring: Any = None
        bucket.ledger.on_pressure = self._page_soon

    def start(self) -> None:
        """Begin; the first look for expired items comes an interval from now."""
        self._ticker.start(TICK_S, now=False)
        self._expirer.start(self._bucket.settings.engine.expiry_interval_s, now=False)

    def expire_every(self, seconds: float) -> None:
        """Look for expired items at another interval from now on."""
        if self._expirer.running:
            self._expirer.stop()
            self._expirer.start(seconds, now=False)

    def stop(self) -> None:
        """Cease; harmless when nothing runs."""
        for call in (self._ticker, self._expirer):
            if call.running:
                call.stop()
        for timer in (self._paging, self._expiring):
            if timer is not None and timer.active():
                timer.cancel()

    def _tick(self) -> None:
        try:
            collector.tend()
            self._bucket.tick()
            self._hub.tick()
            if self._bucket.pager.needed:
                self._page_soon()
        except Exception:  # a bug of ours must not end housekeeping for good
            _log.failure("tick_failed")

    def _page_soon(self) -> None:
        if self._paging is None:
            self._paging = self._reactor.callLater(0, self._page)

    def _page(self) -> None:
        self._paging = None
        if self._bucket.pager.run_slice():
            self._page_soon()

    def _expire(self) -> None:
        if self._expiring is None:
            bucket = self._bucket
            walk = expire_due(
                list(bucket.vbuckets.values()),
                bucket.stats,
                bucket.clock.now(),
                _EXPIRY_SLICE_ITEMS,
            )
            self._expire_slice(walk, 0)

    def _expire_slice(self, walk: Iterator[int], before: int) -> None:
        self._expiring = None
        count = next(walk, None)
        if count is not None:
            self._expiring = self._reactor.callLater(0, self._expire_slice, walk, count)
        elif before:
            _log.info("expired", items=before)
