"""The thread that owns an index: it applies what was queued, in order, and writes headers in time.

Everything that changes the trees or their file happens in this thread, one thing after the other:
batches (as many as are there at once, up to a limit), and jobs. When nothing is queued it does
slices of background work. What it has published may be read by any thread.

A failure (a full disk, a damaged file, a store that cannot go on) ends it: `failed` fires, all jobs
fail, and the group opens the file again at its newest header. Until `stop` is called what was
published last can be read.

When the store has gone back to an older header, with all vBuckets, what was queued for the streams
before that is of no use, and would leave gaps: it is thrown away until `begin` is called.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from uprmc.client.handler import Handler
from uprmc.client.state import RingChunk, Saved
from uprmc.index.errors import WentBack
from uprmc.index.store import IndexStore
from uprmc.model import FailoverLog
from uprmc.remote.batch import Batch

# --- upr handler ----------------------------------------------------------------------------------


class IndexHandler(Handler):
    """The UPR side of an index: what the client library calls, handed on to the updater's thread.

    The handler takes whole batches and lets them queue up to a limit; above it the library waits,
    and with it the node. The state's positions are those of the index file's header. They are saved
    with the trees, so what the library commits here is only what it learned: failover logs, purge
    seqnos and terms. Nodes get as durable what the newest synced header has (rows I26,
    I28).

    A rollback is the store's affair. If it cuts its file to an older header, all vBuckets fall
    back, so the run ends with `WentBack` and the next one begins at that header's positions (rows
    I19, I20).
    """

    native_rollback = True
    returns_anywhere = True

    def __init__(self, updates: Updater) -> None:
        self._updates = updates

    def changes(self, batch: Batch) -> Deferred[None] | None:
        """Queue a batch."""
        return self._updates.take(batch)

    def rollback(self, vbucket: int, seqno: int) -> Deferred[bool] | bool:
        """See `Handler.rollback`."""
        return self._updates.roll_back(vbucket, seqno)


class IndexState:
    """A `StateStore` that keeps no ring: positions are in the index file."""

    shared = True  # positions inside of a snapshot are saved with the trees

    def __init__(self, updates: Updater) -> None:
        self._updates = updates
        self._learned: dict[int, tuple[FailoverLog, int, int]] = {}
        self.durable_of = updates.durable_of

    def load(self) -> dict[int, Saved]:
        """See `StateStore.load`."""
        return self._updates.positions()

    def commit(
        self,
        saved: Mapping[int, Saved],
        ring: Iterable[RingChunk],
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        """See `StateStore.commit`: where the trees stand follows from what they were given."""
        news = {}
        for vbucket, each in saved.items():
            facts = (each.log, each.purge_seqno, each.term)
            if self._learned.get(vbucket) != facts:
                self._learned[vbucket], news[vbucket] = facts, each
        if news:
            self._updates.learn(news)

    def abandon(self) -> None:
        """Nothing is to be undone: positions are those of what was applied."""

    def ring_after(self, vbucket: int, seqno: int) -> list[tuple[int, bytes]]:
        """See `StateStore.ring_after`."""
        return []

    def ring_size(self, vbucket: int) -> int:
        """See `StateStore.ring_size`."""
        return 0

    def forget(self, vbuckets: Iterable[int]) -> None:
        """See `StateStore.forget`."""
        gone = list(vbuckets)
        for vbucket in gone:
            self._learned.pop(vbucket, None)
        self._updates.forget(gone)

    def close(self) -> None:
        """See `StateStore.close`: the file is the updater's."""


# --- updater --------------------------------------------------------------------------------------


_Result = TypeVar("_Result")


class Stopped(Exception):
    """The updater does nothing any more, or begins again."""


def _nothing() -> None:
    """Nothing is to be done besides."""


class _Job(NamedTuple):
    what: Callable[[], Any]
    done: Deferred[Any] | None
    begins: bool = False


class Updater:
    """See the module docstring. All methods are for the reactor's thread.

    Args:
        reactor: whose thread calls, and is called.
        name: of the thread.
        open_store: makes the store, in the thread.
        limit_bytes: more is not queued; the library waits.
        batch_changes: most changes that are applied at once.
        on_progress: called when something was applied, a job was done, or a header was written.
        idle_s: after so long without anything to do the processes of its maps are ended.
    """

    store: IndexStore  # once `started` has fired

    def __init__(
        self,
        reactor: Any,
        name: str,
        open_store: Callable[[], IndexStore],
        limit_bytes: int,
        batch_changes: int,
        on_progress: Callable[[], None],
        idle_s: float,
    ) -> None:
        self._reactor = reactor
        self._open_store = open_store
        self._limit_bytes = limit_bytes
        self._batch_changes = batch_changes
        self._on_progress = on_progress
        self._idle_s = idle_s
        self._rests = False  # it has nothing to do, and keeps no processes for it
        self._queue: deque[Batch | _Job] = deque()
        self._ready = threading.Condition()
        self._queued_bytes = 0
        self._room: Deferred[None] | None = None
        self._stopping = self._orderly = self._has_ended = False
        self._went_back = False
        self._ended: Deferred[None] = Deferred()
        # Fires when the store is open, or fails with why it cannot be.
        self.started: Deferred[None] = Deferred()
        self.failed: Deferred[None] = Deferred()  # fires with a failure that has ended the thread
        self.failed.addErrback(lambda failure: failure)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # --- what is queued -------------------------------------------------------------------------

    def take(self, batch: Batch) -> Deferred[None] | None:
        """Apply changes; wait for what is returned before the next ones."""
        self._put(batch)
        self._queued_bytes += batch.kept_bytes
        if self._queued_bytes < self._limit_bytes:
            return None
        self._room = self._room or Deferred()
        return self._room

    def learn(self, saved: Mapping[int, Saved]) -> None:
        """Keep logs, purge seqnos and terms."""
        found = dict(saved)
        self._put(_Job(lambda: self.store.learn(found), None))

    def forget(self, vbuckets: Iterable[int]) -> None:
        """Keep nothing of what was learned of vBuckets that begin at zero."""
        found = list(vbuckets)
        self._put(_Job(lambda: self.store.forget(found), None))

    def roll_back(self, vbucket: int, seqno: int) -> Deferred[bool] | bool:
        """Return to `seqno`; ``False`` = only 0 is possible; fails with `WentBack`."""
        if seqno and not self._queued_bytes and self.store.seqno_of(vbucket) == seqno:
            return True
        return self.do(lambda: bool(self.store.roll_back(vbucket, seqno)))

    def positions(self) -> dict[int, Saved]:
        """Where the trees stand."""
        return self.store.positions()

    def durable_of(self, vbucket: int) -> Saved | None:
        """Where the newest synced header stands."""
        return self.store.durable_of(vbucket)

    def do(self, what: Callable[[], _Result]) -> Deferred[_Result]:
        """Do something in the thread, after everything that is queued."""
        done: Deferred[_Result] = Deferred()
        self._put(_Job(what, done))
        return done

    def begin(self) -> Deferred[None]:
        """Streams begin again where the store stands; fires when what came before is done with."""
        done: Deferred[None] = Deferred()
        self._put(_Job(lambda: self.store.begin(), done, begins=True))
        return done

    def level(self, then: Callable[[], None] = _nothing) -> Deferred[None]:
        """Fire when everything that is queued now was applied, and something was done then.

        Fails with `Stopped` if the store has gone back meanwhile.
        """

        def levelled() -> None:
            if self._went_back:
                raise Stopped
            then()

        return self.do(levelled)

    def look(self) -> None:
        """There may be work for when nothing else is to be done."""
        with self._ready:
            self._ready.notify()

    def stop(self, *, orderly: bool = True) -> Deferred[None]:
        """Apply what is queued (if `orderly`), close the store; fires when the thread has ended."""
        with self._ready:
            self._stopping, self._orderly = True, orderly
            self._ready.notify()
        return self._ended

    def _put(self, item: Batch | _Job) -> None:
        with self._ready:
            if self._has_ended:
                if isinstance(item, _Job) and item.done is not None:
                    item.done.errback(Stopped())
                return
            self._queue.append(item)
            self._ready.notify()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.store = self._open_store()
        except BaseException:
            self._call(self.started.errback, Failure())
            self._end(None)
            self._call(self._ended.callback, None)
            return
        self._call(self.started.callback, None)
        failure = None
        try:
            while self._turn():
                pass
        except BaseException:
            failure = Failure()
            self._end(failure)
            self._wait_for_stop()
        try:
            self.store.close(orderly=failure is None and self._orderly)
        except BaseException:
            failure = failure or Failure()
        self._end(failure)
        self._call(self._ended.callback, None)

    def _wait_for_stop(self) -> None:
        with self._ready:
            while not self._stopping:
                self._ready.wait()

    def _turn(self) -> bool:
        """Do the next thing; ``False`` = end."""
        due = self.store.header_due(time.monotonic())
        if due is not None and due <= 0:
            self.store.write_header()
            self._call(self._on_progress)
            return True
        work = None
        with self._ready:
            if self._stopping and not (self._orderly and self._queue):
                return False
            if not self._queue:
                work = self.store.work()
                if work is None:
                    rested = self._rests or due is not None
                    woken = self._ready.wait(due if rested else self._idle_s)
                    self._rests = not woken and due is None
            found = self._next() if self._queue else []
        if self._rests and not found:
            self.store.maps.close()  # its processes; the next changes begin new ones
        elif found:
            self._do(found)
        elif work is not None and next(work, self) is self:
            self._call(self._on_progress)
        return True

    def _next(self) -> list[Batch | _Job]:
        """Take the next job, or all batches that are applied together."""
        found = [self._queue.popleft()]
        if isinstance(found[0], _Job):
            return found
        changes = len(found[0])
        while self._queue and changes < self._batch_changes:
            item = self._queue[0]
            if isinstance(item, _Job):
                break
            changes += len(item)
            found.append(self._queue.popleft())
        return found

    def _do(self, found: list[Batch | _Job]) -> None:
        batches = [each for each in found if not isinstance(each, _Job)]
        if batches:
            if not self._went_back:
                self.store.apply(batches)
            self._call(self._applied, sum(batch.kept_bytes for batch in batches))
            return
        for job in found:
            assert isinstance(job, _Job)
            self._do_job(job)

    def _do_job(self, job: _Job) -> None:
        if job.done is None:
            if not self._went_back:
                job.what()
            return
        self._went_back = self._went_back and not job.begins
        try:
            result = job.what()
        except WentBack:
            self._went_back = True
            self._call(job.done.errback, Failure())
        except Stopped:
            self._call(job.done.errback, Stopped())
        except BaseException:
            self._call(job.done.errback, Stopped())
            raise
        else:
            self._call(job.done.callback, result)
        self._call(self._on_progress)

    # --- telling the reactor --------------------------------------------------------------------

    def _call(self, what: Callable[..., Any], *arguments: Any) -> None:
        self._reactor.callFromThread(what, *arguments)

    def _applied(self, size_bytes: int) -> None:
        self._queued_bytes -= size_bytes
        if self._room is not None and self._queued_bytes < self._limit_bytes // 2:
            room, self._room = self._room, None
            room.callback(None)
        self._on_progress()

    def _end(self, failure: Failure | None) -> None:
        with self._ready:
            if self._has_ended:
                return
            self._has_ended = True
            left = [each for each in self._queue if isinstance(each, _Job) and each.done]
            self._queue.clear()
        self._call(self._tell_end, failure, left)

    def _tell_end(self, failure: Failure | None, left: list[_Job]) -> None:
        for job in left:
            assert job.done is not None
            job.done.errback(Stopped())
        room, self._room = self._room, None
        if room is not None:
            room.errback(Stopped())
        if failure is not None:
            self.failed.errback(failure)
