"""Running compactions: the store is read in a worker thread, a bounded look at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from uprmc.engine.compaction import Compactor
from uprmc.engine.compaction_run import Scan
from uprmc.server.log import Log

_log = Log("compaction")


class CompactionDriver:
    """Drives one bucket's compactor until `stop`; the flusher drives the rest of a compaction."""

    def __init__(self, reactor: Any, pool: ThreadPool, compactor: Compactor) -> None:
        self._reactor = reactor
        self._pool = pool
        self._compactor = compactor
        self._scheduled: Any = None
        self._busy = False
        self._stopped: Deferred[None] | None = None
        compactor.on_wanted = self._wanted

    @property
    def busy(self) -> bool:
        """Whether the store is looked into, or about to be."""
        return self._busy or self._scheduled is not None

    def stop(self) -> Deferred[None]:
        """Look no further; fires when no view of the store is open any more.

        A compaction that has not ended by then is given up with the node.
        """
        self._stopped = Deferred()
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        if not self._busy:
            self._stopped.callback(None)
        return self._stopped

    def _wanted(self) -> None:
        if self._scheduled is None and not self._busy and self._stopped is None:
            self._scheduled = self._reactor.callLater(self._compactor.rest_s, self._start)

    def _start(self) -> None:
        self._scheduled = None
        try:
            scan = self._compactor.begin()
        except Exception:  # of the store, or of a waiter
            _log.failure("failed")
            self._go_on()
            return
        if scan is None:
            return
        self._busy = True
        looking = deferToThreadPool(self._reactor, self._pool, self._compactor.read, scan)
        looking.addCallbacks(self._finished, self._failed, (scan,), {}, (scan,))

    def _finished(self, _: None, scan: Scan) -> None:
        self._end(self._compactor.finish, scan)

    def _failed(self, failure: Failure, scan: Scan) -> None:
        _log.failure("failed", failure)
        self._end(self._compactor.failed, scan)

    def _end(self, end: Callable[[Scan], None], scan: Scan) -> None:
        self._busy = False
        try:
            end(scan)
        except Exception:  # of a waiter; it must not end compacting for good
            _log.failure("waiter_broke")
        self._go_on()

    def _go_on(self) -> None:
        if self._stopped is not None:
            self._stopped.callback(None)
        elif self._compactor.waiting:
            self._wanted()
