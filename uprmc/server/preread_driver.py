"""Streams do not wait for the device in the reactor's thread: a worker touches what comes next.

A stream reads the store by its memory map. A page that is not in memory keeps the thread that
touches it, and so everybody, until the device has brought it. So where that happens (the system
counts it) a worker reads the next stretch first, by a view of its own, and the stream waits for
that instead. Once the worker meets no such page any more streams read on by themselves: what is
in memory costs nothing extra.
"""

from __future__ import annotations

import resource
from collections import deque
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from uprmc.engine.bucket import Bucket
from uprmc.errors import StoreError
from uprmc.model import SEQNO_MAX
from uprmc.record import seqno_of
from uprmc.server.log import Log
from uprmc.storage.interface import DamagedRecords, StoreView
from uprmc.upr.hub import DiskReader

#: What a worker reads for a stream at a time.
STRETCH_BYTES = 512 * 1024

#: After this many stretches in a row that were in memory already, streams are trusted to be quick.
_WARM_STRETCHES = 8

#: What Linux has; elsewhere nothing is counted, so nothing is read ahead.
_THREAD = getattr(resource, "RUSAGE_THREAD", None)

_log = Log("preread")


def faults_of_thread() -> int:
    """Return for how many pages this thread has waited for the device so far."""
    return resource.getrusage(_THREAD).ru_majflt if _THREAD is not None else 0


class PrereadDriver:
    """Reads ahead of one bucket's streams until `stop`; implements `upr.hub.Preread`.

    One stretch is under way at a time; streams wait in turn.

    Attributes:
        stretches: how many have been read.
    """

    def __init__(self, reactor: Any, pool: ThreadPool, bucket: Bucket) -> None:
        self._reactor = reactor
        self._pool = pool
        self._bucket = bucket
        self._faults = faults_of_thread()
        self._cold = 0
        self._waiting: deque[DiskReader] = deque()
        self._current: DiskReader | None = None
        self._stopped: Deferred[None] | None = None
        self.stretches = 0

    @property
    def busy(self) -> bool:
        """Whether a stretch is being read."""
        return self._current is not None

    def stop(self) -> Deferred[None]:
        """Read nothing any more; fires when nothing is under way. Call it once."""
        self._stopped = Deferred()
        self._tell_all()
        if not self.busy:
            self._stopped.callback(None)
        return self._stopped

    def may_read_on(self, stream: DiskReader) -> bool:
        """See `upr.hub.Preread`."""
        faults = faults_of_thread()
        if faults != self._faults:
            self._faults, self._cold = faults, _WARM_STRETCHES
        if not self._cold or stream.touched_seqno > stream.last_seqno:
            return True
        if self._stopped is not None or self._bucket.gate.is_shut:
            return True
        if stream is not self._current and stream not in self._waiting:
            self._waiting.append(stream)
        if not self.busy:
            self._begin()
        return False

    def _begin(self) -> None:
        while self._waiting:
            if self._bucket.gate.is_shut:
                self._tell_all()
                return
            stream = self._waiting.popleft()
            try:
                view = self._bucket.store.view()
            except StoreError:
                self._touched(stream, SEQNO_MAX)  # it will meet the error itself
                continue
            self._current = stream
            number, after = stream.vbucket.id, stream.last_seqno
            reading = deferToThreadPool(self._reactor, self._pool, touch, view, number, after)
            reading.addCallbacks(self._read, self._failed, (stream, view), {}, (stream, view))
            return

    def _read(self, found: tuple[int, int], stream: DiskReader, view: StoreView) -> None:
        upto, faults = found
        self.stretches += 1
        self._cold = _WARM_STRETCHES if faults else max(0, self._cold - 1)
        self._end(stream, view, upto)

    def _failed(self, failure: Failure, stream: DiskReader, view: StoreView) -> None:
        if not isinstance(failure.value, DamagedRecords):  # the stream meets it, too
            _log.failure("failed", failure)
        self._end(stream, view, SEQNO_MAX)

    def _end(self, stream: DiskReader, view: StoreView, upto: int) -> None:
        self._current = None
        view.close()
        self._touched(stream, upto)
        if self._stopped is not None:
            self._stopped.callback(None)
        else:
            self._begin()

    def _touched(self, stream: DiskReader, upto: int) -> None:
        stream.touched_seqno = upto
        stream.tell_ready()

    def _tell_all(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for stream in waiting:
            self._touched(stream, SEQNO_MAX)


def touch(view: StoreView, number: int, after: int) -> tuple[int, int]:
    """Read a stretch of a vBucket's records; return its end, and how often that had to wait.

    The end is beyond all seqnos if there is nothing more.
    """
    before = faults_of_thread()
    size = 0
    for record in view.records_after(number, after):
        size += len(record)
        if size >= STRETCH_BYTES:
            return seqno_of(record), faults_of_thread() - before
    return SEQNO_MAX, faults_of_thread() - before
