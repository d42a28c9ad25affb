"""Running the flusher: when it is due, in a worker thread, again after a failure.

The rules are in `engine.flusher`; here are the clock and the thread. One flush is under way at a
time. While something is dirty a short timer asks the flusher whether it is due, so the hot path
never touches a timer. While the flusher is paused there is none; resuming announces what is dirty.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from uprmc.config import FlushSettings
from uprmc.engine.bucket import Bucket
from uprmc.engine.flush import Flush
from uprmc.errors import StoreError, StoreFull, StoreMapFull, StoreTaken
from uprmc.server.log import Log
from uprmc.server.slices import LongWork

#: The store cannot grow while a worker reads it: how often it is tried whether it is done.
_GROW_RETRY_S = 0.005

#: A flush of more documents is freed in steps.
_FREED_AT_ONCE = 256

_log = Log("flush")


class FlushDriver:
    """Drives one bucket's flusher until `stop`.

    Attributes:
        last_error: why the last commit failed, ``""`` after one that worked.
    """

    def __init__(
        self,
        reactor: Any,
        pool: ThreadPool,
        bucket: Bucket,
        settings: FlushSettings,
        work: LongWork,
    ) -> None:
        self._work = work
        self._reactor = reactor
        self._pool = pool
        self._bucket = bucket
        self._settings = settings
        self._timer: Any = None
        self._dirty_since: float | None = None
        self._busy: Deferred[None] | None = None
        self._stopped = False
        self._room_made = False
        self._last_flush_s = 0.0
        self.last_error = ""
        self.on_taken: Callable[[StoreTaken], None] = lambda _: None
        bucket.account.on_dirty = self._became_dirty

    def _became_dirty(self) -> None:
        if self._dirty_since is None:
            self._dirty_since = self._reactor.seconds()
        self._look_again(0.0 if self._settings.min_delay_s == 0 else None)

    def _look_again(self, delay_s: float | None = None) -> None:
        if self._timer is None and self._busy is None and not self._stopped:
            wait = self._settings.min_delay_s if delay_s is None else delay_s
            self._timer = self._reactor.callLater(wait, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._dirty_since is None or self._bucket.flusher.paused:
            return
        age_s = self._reactor.seconds() - self._dirty_since
        delay_s = self._bucket.flusher.delay(age_s, self._last_flush_s)
        if delay_s > 0:
            self._look_again(delay_s)
        else:
            self._start()

    def _start(self) -> None:
        self._dirty_since = self._reactor.seconds()
        self._busy = self._run()
        if self._busy.called:
            self._busy = None

    @inlineCallbacks
    def _run(self) -> Generator[Deferred[Any], Any, None]:
        began = self._reactor.seconds()
        ok = yield from self._flush()
        self._busy = None
        self._last_flush_s = self._reactor.seconds() - began
        if self._bucket.flusher.pending:
            self._look_again(0.0 if ok else self._settings.retry_delay_s)
        else:
            self._dirty_since = None

    def _flush(self) -> Generator[Deferred[Any], Any, bool]:
        """Write what is dirty; ``False`` if that failed. A bug of ours must not end flushing."""
        flush: Flush | None = None
        try:
            flush = yield self._work.do(self._bucket.flusher.begin_in_slices())
            if flush is not None:
                yield from self._timed_commit(flush)
        except Exception as error:
            refusal = self._refusal(error)
            self._note_failure(refusal)
            if flush is not None:
                self._fail(flush, refusal)
            if isinstance(refusal, StoreTaken):
                self.on_taken(refusal)
            return False
        if flush is not None:
            if self.last_error:
                _log.info("works_again", after=self.last_error)
                self.last_error = ""
            yield from self._finish(flush)
        return True

    def _finish(self, flush: Flush) -> Generator[Deferred[Any], Any, None]:
        try:
            yield self._work.do(self._bucket.flusher.finish_in_slices(flush))
        except Exception:  # of a waiter; it must not end flushing for good
            _log.failure("waiter_broke")
            self._tell_others(flush, ok=True)
        if flush.item_count > _FREED_AT_ONCE:
            self._work.add(flush.let_go())

    def _fail(self, flush: Flush, error: StoreError) -> None:
        try:
            self._bucket.flusher.failed(flush, error)
        except Exception:
            _log.failure("waiter_broke")
            self._tell_others(flush, ok=False)

    def _tell_others(self, flush: Flush, *, ok: bool) -> None:
        while flush.waiters:
            try:
                flush.tell(ok)
            except Exception:
                _log.failure("waiter_broke")

    def _timed_commit(self, flush: Flush) -> Generator[Deferred[Any], Any, None]:
        began = self._reactor.seconds()
        yield from self._commit(flush)
        self._bucket.timings.disk_commit.add(self._reactor.seconds() - began)

    def _commit(self, flush: Flush) -> Generator[Deferred[Any], Any, None]:
        """Commit in the worker; make room in the store as often as that takes.

        While the store is full what is read pins the pages that the last commits replaced. It is
        given up once; what begins to be read afterwards pins nothing until a commit succeeds.
        """
        while True:
            try:
                yield deferToThreadPool(
                    self._reactor, self._pool, self._bucket.flusher.commit, flush
                )
                self._room_made = False
                return
            except StoreMapFull:
                refusal = yield from self._grow()
            except StoreFull as error:
                refusal = error
            if refusal is not None:
                if self._room_made:
                    raise refusal
                self._room_made = True
                self._bucket.release_views()

    def _grow(self) -> Generator[Deferred[Any], Any, StoreFull | None]:
        """Grow the store's map as soon as no worker reads it; return why it is as large as can be.

        Others have to close their views in the turn in which it grows, and open none until then.
        """
        bucket = self._bucket
        bucket.gate.shut()
        try:
            while not bucket.store.grow():
                bucket.release_views()
                if bucket.store.grow():
                    break
                yield self._pause(_GROW_RETRY_S)
        except StoreFull as error:
            return error
        finally:
            bucket.gate.open()
        _log.info("map_grown", bytes=bucket.store.usage().map_bytes)
        return None

    def _pause(self, seconds: float) -> Deferred[None]:
        waiting: Deferred[None] = Deferred()
        self._reactor.callLater(seconds, waiting.callback, None)
        return waiting

    def _refusal(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        _log.failure("commit_broke")
        return StoreError(f"{type(error).__name__}: {error}")

    def _note_failure(self, error: StoreError) -> None:
        if str(error) != self.last_error:
            _log.error("failed", error=str(error), retry_s=self._settings.retry_delay_s)
        self.last_error = str(error)

    @property
    def busy(self) -> bool:
        """Whether a flush is under way."""
        return self._busy is not None

    def stop(self) -> Deferred[None]:
        """Begin no flush any more; fires when none is under way. Call it once."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        stopped: Deferred[None] = Deferred()
        (self._busy or succeed(None)).addBoth(lambda _: stopped.callback(None))
        return stopped

    def drain(self) -> Generator[Deferred[Any], Any, None]:
        """Write everything that is queued; to be run after `stop`.

        Raises:
            StoreError: the store refuses; what is queued is not on disk.
        """
        while flush := self._bucket.flusher.begin():
            try:
                yield from self._commit(flush)
            except StoreError as error:
                self._fail(flush, error)
                raise
            yield from self._finish(flush)
