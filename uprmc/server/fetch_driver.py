"""Running the fetcher: ejected values are read in worker threads, some rounds at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from uprmc.engine.fetcher import Fetch, Fetcher
from uprmc.engine.timings import Timings
from uprmc.errors import StoreError
from uprmc.server.log import Log, Throttle
from uprmc.storage.interface import DamagedRecords

_UNREAD_LOG_S = 1.0

_log = Log("fetch")


class FetchDriver:
    """Drives one bucket's fetcher until `stop`.

    At most `rounds` rounds are under way at a time; what is wanted then gathers for the next.
    """

    def __init__(
        self, reactor: Any, pool: ThreadPool, fetcher: Fetcher, timings: Timings, rounds: int
    ) -> None:
        self._reactor = reactor
        self._pool = pool
        self._fetcher = fetcher
        self._timings = timings
        self._rounds = rounds
        self._wanted_at: float | None = None
        self._under_way = 0
        self._scheduled = False
        self._stopped: Deferred[None] | None = None
        self._unread_log = Throttle(_UNREAD_LOG_S, reactor.seconds)
        fetcher.on_wanted = self._wanted

    @property
    def busy(self) -> bool:
        """Whether a round is under way or about to begin."""
        return bool(self._under_way) or self._scheduled

    def stop(self) -> Deferred[None]:
        """Begin no round any more; fires when none is under way. Call it once.

        Callers that wait for a later one are not called: they have left before the node stops.
        """
        self._stopped = Deferred()
        if not self._under_way:
            self._stopped.callback(None)
        return self._stopped

    def _wanted(self) -> None:
        """Start at the end of this turn, so that everything wanted in it shares a round."""
        if self._wanted_at is None:
            self._wanted_at = self._reactor.seconds()
        if not self._scheduled and self._under_way < self._rounds and self._stopped is None:
            self._scheduled = True
            self._reactor.callLater(0, self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self._stopped is not None:
            return
        wanted_at, self._wanted_at = self._wanted_at, None
        while self._under_way < self._rounds:
            try:
                fetch = self._fetcher.begin(self._rounds - self._under_way)
            except StoreError:
                _log.failure("failed")
                return
            if fetch is None:
                return
            self._begun(fetch, wanted_at)
        if self._fetcher.waiting:
            self._wanted_at = wanted_at

    def _begun(self, fetch: Fetch, wanted_at: float | None) -> None:
        self._under_way += 1
        now = self._reactor.seconds()
        if wanted_at is not None:
            self._timings.bg_wait.add(now - wanted_at)
        reading = deferToThreadPool(self._reactor, self._pool, self._fetcher.commit, fetch)
        reading.addCallbacks(self._finished, self._failed, (fetch, now), {}, (fetch,))

    def _finished(self, _: None, fetch: Fetch, began_at: float) -> None:
        self._under_way -= 1
        self._timings.bg_load.add(self._reactor.seconds() - began_at)
        self._note_unread(fetch)
        self._tell(self._fetcher.finish, fetch)
        self._next()

    def _tell(self, end: Callable[[Fetch], None], fetch: Fetch) -> None:
        """End a round; a waiter that breaks must not end fetching for good."""
        while True:
            try:
                end(fetch)
                return
            except Exception:
                _log.failure("waiter_broke")
                end = self._fetcher.tell

    def _note_unread(self, fetch: Fetch) -> None:
        for (number, key), error in fetch.unread.items():
            if isinstance(error, DamagedRecords):
                continue  # `Healer` names it
            held_back = self._unread_log.passed()
            if held_back is not None:
                _log.error("unread", vbucket=number, key=key, error=str(error), unlogged=held_back)

    def _failed(self, failure: Failure, fetch: Fetch) -> None:
        _log.failure("failed", failure)
        self._under_way -= 1
        self._tell(self._fetcher.failed, fetch)
        self._next()

    def _next(self) -> None:
        if self._stopped is not None:
            if not self._under_way:
                self._stopped.callback(None)
        elif self._fetcher.waiting:
            self._wanted()
