"""All that a node does with its disk while it runs, and how that ends.

What is committed, fetched and compacted is decided by the engine; here are the threads for it. A
stop ends in this order: readers, then the flusher, then the mark that says that the end was
orderly, then everything is forced to the device. When it has ended no worker touches the store.
"""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from uprmc.config import FlushSettings
from uprmc.engine.bucket import Bucket
from uprmc.engine.commit_room import commit_growing
from uprmc.engine.fetcher import Fetch, Fetcher
from uprmc.engine.flusher import Flush
from uprmc.engine.purge import SERVED_NAME, Compactor, Scan
from uprmc.engine.stats import Timings
from uprmc.errors import StoreError, StoreFull, StoreMapFull, StoreTaken
from uprmc.model import SEQNO_MAX
from uprmc.record import seqno_of
from uprmc.server.log import Log, Throttle
from uprmc.server.work.turns import LongWork
from uprmc.storage.interface import CLEAN_MARK, CommitBatch, DamagedRecords, StoreView
from uprmc.upr.hub import DiskReader

# --- work in threads ------------------------------------------------------------------------------

Piece = TypeVar("Piece")


class Worker(Generic[Piece]):
    """Has pieces of work begun, done in threads, and ended, until `stop`.

    All but the work itself happens in the reactor's thread.
    """

    def __init__(self, reactor: Any, pool: ThreadPool, most: int = 1) -> None:
        """Begin nothing yet; at most `most` pieces are under way at a time."""
        # Fires when nothing is under way any more, ``None`` before `stop`.
        self.stopped: Deferred[None] | None = None
        self._reactor = reactor
        self._pool = pool
        self._most = most
        self._under_way = 0
        self._timer: Any = None

    def begin(self) -> Piece | None:
        """Return the next piece, ``None`` = there is none for now."""
        raise NotImplementedError

    def work(self, piece: Piece) -> Any:
        """Do a piece, in a thread."""
        raise NotImplementedError

    def end(self, piece: Piece, result: Any) -> None:
        """Take what a piece came to, or its `Failure`. It must not raise."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether a piece is under way or about to begin."""
        return bool(self._under_way) or self._timer is not None

    @property
    def room(self) -> int:
        """How many pieces may begin now."""
        return self._most - self._under_way if self.stopped is None else 0

    def start(self) -> None:
        """Begin what there is, as far as there is room."""
        while self.room:
            piece = self.begin()
            if piece is None:
                return
            self._under_way += 1
            working = deferToThreadPool(self._reactor, self._pool, self.work, piece)
            working.addBoth(self._done, piece)

    def start_later(self, delay_s: float = 0.0) -> None:
        """Do that in a later turn; harmless if it is to be done anyway."""
        if self._timer is None and self.room:
            self._timer = self._reactor.callLater(delay_s, self._start_now)

    def stop(self) -> Deferred[None]:
        """Begin nothing any more; fires when nothing is under way. Call it once."""
        self.stopped = Deferred()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._under_way:
            self.stopped.callback(None)
        return self.stopped

    def _start_now(self) -> None:
        self._timer = None
        self.start()

    def _done(self, result: Any, piece: Piece) -> None:
        self._under_way -= 1
        self.end(piece, result)
        if self.stopped is not None and not self._under_way:
            self.stopped.callback(None)


# --- flushing -------------------------------------------------------------------------------------
# Running the flusher: when it is due, in a worker thread, again after a failure.
#
# The rules are in `engine.flusher`; here are the clock and the thread. One flush is under way at a
# time. While something is dirty a short timer asks the flusher whether it is due, so the hot path
# never touches a timer. While the flusher is paused there is none; resuming announces what is
# dirty.


#: The store cannot grow while a worker reads it: how often it is tried whether it is done.
_GROW_RETRY_S = 0.005

#: A flush of more documents is freed in steps.
_FREED_AT_ONCE = 256

_flush_log = Log("flush")


class FlushDriver:
    """Drives one bucket's flusher until `stop`."""

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
        self.last_error = ""  # why the last commit failed, ``""`` after one that worked
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
                began = self._reactor.seconds()
                yield from self._commit(flush)
                self._bucket.timings.disk_commit.add(self._reactor.seconds() - began)
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
                _flush_log.info("works_again", after=self.last_error)
                self.last_error = ""
            yield from self._finish(flush)
        return True

    def _finish(self, flush: Flush) -> Generator[Deferred[Any], Any, None]:
        try:
            yield self._work.do(self._bucket.flusher.finish_in_slices(flush))
        except Exception:  # of a waiter; it must not end flushing for good
            _flush_log.failure("waiter_broke")
            self._tell_others(flush, ok=True)
        if flush.item_count > _FREED_AT_ONCE:
            self._work.add(flush.let_go())

    def _fail(self, flush: Flush, error: StoreError) -> None:
        try:
            self._bucket.flusher.failed(flush, error)
        except Exception:
            _flush_log.failure("waiter_broke")
            self._tell_others(flush, ok=False)

    def _tell_others(self, flush: Flush, *, ok: bool) -> None:
        while flush.waiters:
            try:
                flush.tell(ok)
            except Exception:
                _flush_log.failure("waiter_broke")

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
                yield deferLater(self._reactor, _GROW_RETRY_S)
        except StoreFull as error:
            return error
        finally:
            bucket.gate.open()
        _flush_log.info("map_grown", bytes=bucket.store.usage().map_bytes)
        return None

    def _refusal(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        _flush_log.failure("commit_broke")
        return StoreError(f"{type(error).__name__}: {error}")

    def _note_failure(self, error: StoreError) -> None:
        if str(error) != self.last_error:
            _flush_log.error("failed", error=str(error), retry_s=self._settings.retry_delay_s)
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


# --- fetching -------------------------------------------------------------------------------------


_UNREAD_LOG_S = 1.0

_fetch_log = Log("fetch")


class FetchDriver(Worker[tuple[Fetch, float]]):
    """Drives one bucket's fetcher; a piece is a round, and when it began.

    What is wanted while as many rounds are under way as may be gathers for the next. Callers that
    wait for one when it is stopped are not called: they have left before the node stops.
    """

    def __init__(
        self, reactor: Any, pool: ThreadPool, fetcher: Fetcher, timings: Timings, rounds: int
    ) -> None:
        super().__init__(reactor, pool, rounds)
        self._fetcher = fetcher
        self._timings = timings
        self._wanted_at: float | None = None
        self._unread_log = Throttle(_UNREAD_LOG_S, reactor.seconds)
        fetcher.on_wanted = self._wanted

    def _wanted(self) -> None:
        """Start at the end of this turn, so that everything wanted in it shares a round."""
        if self._wanted_at is None:
            self._wanted_at = self._reactor.seconds()
        self.start_later()

    def begin(self) -> tuple[Fetch, float] | None:
        wanted_at = self._wanted_at
        try:
            fetch = self._fetcher.begin(self.room)
        except StoreError:
            _fetch_log.failure("failed")
            fetch = None
        if fetch is None or not self._fetcher.waiting:
            self._wanted_at = None
        if fetch is None:
            return None
        now = self._reactor.seconds()
        if wanted_at is not None:
            self._timings.bg_wait.add(now - wanted_at)
        return fetch, now

    def work(self, piece: tuple[Fetch, float]) -> None:
        self._fetcher.commit(piece[0])

    def end(self, piece: tuple[Fetch, float], result: Any) -> None:
        fetch, began_at = piece
        if isinstance(result, Failure):
            _fetch_log.failure("failed", result)
            self._tell(self._fetcher.failed, fetch)
        else:
            self._timings.bg_load.add(self._reactor.seconds() - began_at)
            self._note_unread(fetch)
            self._tell(self._fetcher.finish, fetch)
        self._next()

    def _next(self) -> None:
        if self._fetcher.waiting:
            self._wanted()

    def _tell(self, end: Callable[[Fetch], None], fetch: Fetch) -> None:
        """End a round; a waiter that breaks must not end fetching for good."""
        while True:
            try:
                end(fetch)
                return
            except Exception:
                _fetch_log.failure("waiter_broke")
                end = self._fetcher.tell

    def _note_unread(self, fetch: Fetch) -> None:
        for (number, key), error in fetch.unread.items():
            if isinstance(error, DamagedRecords):
                continue  # `Healer` names it
            held_back = self._unread_log.passed()
            if held_back is not None:
                _fetch_log.error(
                    "unread", vbucket=number, key=key, error=str(error), unlogged=held_back
                )


# --- compacting -----------------------------------------------------------------------------------


_compaction_log = Log("compaction")


class CompactionDriver(Worker[Scan]):
    """Drives one bucket's compactor; the flusher drives the rest of a compaction.

    A compaction that has not ended when it is stopped is given up with the node.
    """

    def __init__(self, reactor: Any, pool: ThreadPool, compactor: Compactor) -> None:
        super().__init__(reactor, pool)
        self._compactor = compactor
        compactor.on_wanted = self._wanted

    def _wanted(self) -> None:
        self.start_later(self._compactor.rest_s)

    def begin(self) -> Scan | None:
        try:
            return self._compactor.begin()
        except Exception:  # of the store, or of a waiter
            _compaction_log.failure("failed")
            self._next()
            return None

    def work(self, piece: Scan) -> None:
        self._compactor.read(piece)

    def end(self, piece: Scan, result: Any) -> None:
        try:
            if isinstance(result, Failure):
                _compaction_log.failure("failed", result)
                self._compactor.failed(piece)
            else:
                self._compactor.finish(piece)
        except Exception:  # of a waiter; it must not end compacting for good
            _compaction_log.failure("waiter_broke")
        self._next()

    def _next(self) -> None:
        if self._compactor.waiting:
            self._wanted()


# --- reading ahead --------------------------------------------------------------------------------
# Streams do not wait for the device in the reactor's thread: a worker touches what comes next.
#
# A stream reads the store by its memory map. A page that is not in memory keeps the thread that
# touches it, and so everybody, until the device has brought it. So where that happens (the system
# counts it) a worker reads the next stretch first, by a view of its own, and the stream waits for
# that instead. Once the worker meets no such page any more streams read on by themselves: what is
# in memory costs nothing extra.


#: What a worker reads for a stream at a time.
STRETCH_BYTES = 512 * 1024

#: After this many stretches in a row that were in memory already, streams are trusted to be quick.
_WARM_STRETCHES = 8

#: What Linux has; elsewhere nothing is counted, so nothing is read ahead.
_THREAD = getattr(resource, "RUSAGE_THREAD", None)

_preread_log = Log("preread")


def faults_of_thread() -> int:
    """Return for how many pages this thread has waited for the device so far."""
    return resource.getrusage(_THREAD).ru_majflt if _THREAD is not None else 0


class _Stretch(NamedTuple):
    """What is read for a stream."""

    stream: DiskReader
    view: StoreView
    vbucket: int
    after: int


class PrereadDriver(Worker[_Stretch]):
    """Reads ahead of one bucket's streams; implements `upr.hub.Preread`.

    One stretch is under way at a time; streams wait in turn.
    """

    def __init__(self, reactor: Any, pool: ThreadPool, bucket: Bucket) -> None:
        super().__init__(reactor, pool)
        self._bucket = bucket
        self._faults = faults_of_thread()
        self._cold = 0
        self._waiting: deque[DiskReader] = deque()
        self._current: DiskReader | None = None
        self.stretches = 0  # how many have been read

    def stop(self) -> Deferred[None]:
        """Read nothing any more; fires when nothing is under way. Call it once."""
        stopped = super().stop()
        self._tell_all()
        return stopped

    def may_read_on(self, stream: DiskReader) -> bool:
        """See `upr.hub.Preread`."""
        faults = faults_of_thread()
        if faults != self._faults:
            self._faults, self._cold = faults, _WARM_STRETCHES
        if not self._cold or stream.touched_seqno > stream.last_seqno:
            return True
        if self.stopped is not None or self._bucket.gate.is_shut:
            return True
        if stream is not self._current and stream not in self._waiting:
            self._waiting.append(stream)
        self.start()
        return False

    def begin(self) -> _Stretch | None:
        while self._waiting:
            if self._bucket.gate.is_shut:
                self._tell_all()
                return None
            stream = self._waiting.popleft()
            try:
                view = self._bucket.store.view()
            except StoreError:
                self._touched(stream, SEQNO_MAX)  # it will meet the error itself
                continue
            self._current = stream
            return _Stretch(stream, view, stream.vbucket.id, stream.last_seqno)
        return None

    def work(self, piece: _Stretch) -> tuple[int, int]:
        return touch(piece.view, piece.vbucket, piece.after)

    def end(self, piece: _Stretch, result: Any) -> None:
        if isinstance(result, Failure):
            if not isinstance(result.value, DamagedRecords):  # the stream meets it, too
                _preread_log.failure("failed", result)
            upto = SEQNO_MAX
        else:
            upto, faults = result
            self.stretches += 1
            self._cold = _WARM_STRETCHES if faults else max(0, self._cold - 1)
        self._current = None
        piece.view.close()
        self._touched(piece.stream, upto)
        self.start()

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


# --- all of it, and its end -----------------------------------------------------------------------


class DiskWork:
    """Drives one bucket's flusher, fetcher and compactor until `stop`.

    Args:
        reactor: with a clock and timers.
        pool: the threads.
        bucket: the bucket whose data are on the disk.
        settings: those of the flusher.
        work: the node's long work; it has to go on until the stop is over.
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
        # Told that another process has opened the data directory.
        self.on_taken: Callable[[StoreTaken], None] = lambda _: None
        self._flushing.on_taken = lambda error: self.on_taken(error)
        self._compacting = CompactionDriver(reactor, pool, bucket.compactor)
        self.preread = PrereadDriver(reactor, pool, bucket)  # reads the disk ahead of streams

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
            commit_growing(
                self._bucket.store, CommitBatch(local={CLEAN_MARK: b"1", SERVED_NAME: served})
            )
            yield deferToThreadPool(self._reactor, self._pool, self._bucket.store.sync)
