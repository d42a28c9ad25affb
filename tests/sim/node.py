"""A simulated node: the real engine and the real sessions on a pretend disk, clock and network.

It drives what `uprmc.server` drives, in the same order and with the same rules, but every step of a
flush or a fetch is an event of its own, so that anything can happen between two of them. A node has
many lives: `crash` ends one, `start` begins the next through the real warm-up, `stop` ends one in
order.

The judges of what a node shows look at it after every step of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

from tests.sim.disk import Disk
from tests.sim.judges import BranchJudge, MemoryJudge, Stored, complain
from tests.sim.link import Client, Link, LinkProfile
from tests.sim.world import Timer, World, WorldClock, WorldEntropy
from uprmc.config import EngineSettings, FlushSettings, KvSettings, MemorySettings, Settings
from uprmc.engine.bucket import Bucket
from uprmc.engine.compaction import Scan
from uprmc.engine.fetcher import Fetch
from uprmc.engine.flusher import Flush
from uprmc.engine.ledger import ITEM_OVERHEAD_BYTES
from uprmc.engine.warmup import CLEAN_MARK, Warmup
from uprmc.errors import StoreError, StoreMapFull
from uprmc.kv.services import Services
from uprmc.kv.session import Negotiation
from uprmc.ports import Session
from uprmc.storage.interface import Batch
from uprmc.upr.hub import Hub

_TICK_S = 0.1
_GROW_RETRY_S = 0.02

#: Between two slices of a flush's beginning or end, at most.
_SLICE_S = 0.003

#: Flushes that a stop in order may take.
_DRAIN_MAX = 1_000

#: Time passes between two turns of a real reactor; without it a delay of 1e-18 s never ends.
_TURN_S = 0.00001


#: Sizes of the engine's own that are made small, so that little data comes in many portions: a
#: flush takes whole segments of a queue, begins and ends in slices, and so does warm-up.
SMALL = (
    ("uprmc.engine.write_queue", "SEGMENT_BITS", 2),
    ("uprmc.engine.flusher", "_SLICE_VBUCKETS", 1),
    ("uprmc.engine.expiry", "_STEP_ENTRIES", 3),
    ("uprmc.engine.expiry", "SPARE_ENTRIES", 10),
    ("uprmc.engine.leftovers", "_STEP_ENTRIES", 3),
    ("uprmc.engine.warmup", "_STEP_ITEMS", 3),
    ("uprmc.engine.compaction", "_READ_RECORDS", 3),
    ("uprmc.upr.feed", "_PORTION_BYTES", 300),
    ("uprmc.upr.stream", "_CHECKPOINT_ITEMS", 20),
    ("uprmc.kv.upr_session", "GENTLE_BYTES", 600),
    ("uprmc.kv.upr_session", "GENTLE_PULL_BYTES", 200),
    ("uprmc.tap_adapter.feed", "PULL_BYTES", 400),
    ("uprmc.tap_adapter.feed", "KEPT_BYTES", 600),
    ("uprmc.tap_adapter.window", "STRETCHES_MAX", 4),
    ("uprmc.tap_adapter.corrections", "FETCHED_AT_ONCE", 2),
    ("uprmc.tap_adapter.document_fetch", "PORTION_KEYS", 2),
)


def shrink() -> None:
    """Make them small in a process of its own."""
    for module, name, value in SMALL:
        assert hasattr(import_module(module), name)
        setattr(import_module(module), name, value)


def small_settings(*, vbuckets: int = 2, quota: int = 5_500, sync: bool = True) -> Settings:
    """Return settings under which everything happens soon: ejection, long queues, backpressure."""
    return Settings(
        kv=KvSettings(max_unsent_bytes=1_500),
        engine=EngineSettings(vbuckets=vbuckets, expiry_interval_s=1.5),
        memory=MemorySettings(quota=quota, pager_slice=5),
        flush=FlushSettings(
            batch_items=2,
            rest_factor=3,
            min_delay_s=0.01,
            max_delay_s=0.05,
            retry_delay_s=0.05,
            sync=sync,
            fetch_batch=3,
        ),
    )


#: How long a flush is taken to last when the next one is planned.
_FLUSH_S = 0.02


@dataclass(slots=True)
class Pace:
    """How long the disk takes, in seconds, at most.

    Attributes:
        automatic: the node flushes and fetches by itself; a directed test does that by hand.
    """

    begin_max_s: float = 0.02
    commit_max_s: float = 0.02
    read_max_s: float = 0.01
    automatic: bool = True


@dataclass(slots=True)
class Journal:
    """Who wants to know how the lives of a node begin and end."""

    on_up: list[Callable[[bool], None]] = field(default_factory=list)
    on_down: list[Callable[[Stored, bool], None]] = field(default_factory=list)
    on_clean: list[Callable[[], None]] = field(default_factory=list)


class Connected(Protocol):
    """A node's end of a connection."""

    def tick(self, now: float) -> None:
        """Tell the session the time."""

    def cut(self) -> None:
        """Break the connection."""

    def server_died(self) -> None:
        """The node's process is gone."""


class Node:
    """See the module docstring.

    Attributes:
        bucket: of the present life; the last one's while the node is down.
        up: a process runs.
        serving: warm-up is over.
        stopping: it ends its life in order.
        life: counts up with every start.
        flush, fetch: those that are under way.
        committed: whether that flush is on disk already.
        misuse: what sessions reported.
    """

    def __init__(self, world: World, disk: Disk, settings: Settings, pace: Pace) -> None:
        self.pace = pace
        self.disk = disk
        self.settings = settings
        self.journal = Journal()
        self.branches = BranchJudge()
        self.up = self.serving = self.stopping = self.committed = False
        self.life = 0
        self.flush: Flush | None = None
        self.fetch: Fetch | None = None
        self.links: list[Connected] = []
        self.bucket: Bucket
        self.misuse: list[str] = []
        self._memory = MemoryJudge(ITEM_OVERHEAD_BYTES)
        self._world = world
        self._left_in_order = self._clean = False  # the last life; the one before this
        self._dirty_since: float | None = None
        self._look_timer: Timer | None = None
        self._paging = self._flushing = self._fetch_planned = self._compacting = False
        world.watchers.append(self.check)

    # --- lives ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life: open the disk and warm up, step by step."""
        assert not self.up
        self.life += 1
        self.up = True
        self.serving = self.stopping = self.committed = False
        self._paging = self._flushing = self._fetch_planned = self._compacting = False
        self.flush = self.fetch = self._look_timer = self._dirty_since = None
        self._clean = False
        self.branches.life_begins()
        self._world.note(f"start {self.life}")
        world = self._world
        self.bucket = bucket = Bucket(
            self.settings, self.disk.open(), WorldClock(world), WorldEntropy(world)
        )
        self.upr = Hub(bucket, self.settings.upr)
        bucket.ledger.on_dirty = self._became_dirty
        bucket.ledger.on_pressure = self._page_soon
        bucket.fetcher.on_wanted = self._fetch_soon
        bucket.compactor.on_wanted = self._compact_soon
        self._life_began()
        warmup = Warmup(bucket)
        self._warm_up(warmup, warmup.steps())

    def _life_began(self) -> None:
        """Wire what else belongs to a node; for kinds of nodes that have more."""

    def _warm_up(self, warmup: Warmup, steps: Iterator[None]) -> None:
        try:
            more = next(steps, self) is not self
        except StoreError as error:
            self._cannot_start(error)
            return
        if more:
            expected, self._left_in_order = self._left_in_order, False
            self._clean = self._clean or expected
            self._after(self._world.between(0, 0.005), lambda: self._warm_up(warmup, steps))
            return
        self.serving = True
        self._world.note(f"serving, clean={warmup.was_clean}")
        found = self.disk.judge.found
        self.branches.restarted(found, self.bucket.vbuckets.values(), clean=self._clean)
        for observer in self.journal.on_up:
            observer(warmup.was_clean)
        self._after(_TICK_S, self._tick)
        self._after(self.settings.engine.expiry_interval_s, self._expire)

    def _cannot_start(self, error: StoreError) -> None:
        """Give up and try again, as whoever supervises a process does."""
        self._world.note(f"cannot start: {error}")
        self._end()
        self.disk.process_ends()
        for observer in self.journal.on_down:
            observer(self.disk.judge.found, True)
        self._world.after(0.1, lambda: None if self.up else self.start())

    def crash(self, *, power: bool = False) -> None:
        """End the life at once, with `power` the machine; a commit under way may get through."""
        assert self.up
        under_way = self.flush is not None and not self.committed
        if under_way and self.disk.works and self._world.chance(0.5):
            self.disk.write(self.flush.batch)
        self._world.note(f"crash power={power}")
        self._end()
        if power:
            self.disk.power_fails()
        else:
            self.disk.process_ends()
        held = not power or self.disk.sync
        for observer in self.journal.on_down:
            observer(self.disk.judge.found, held)

    def stop(self) -> None:
        """End the life in order; clients lose their connections. It takes a while."""
        assert self.serving
        self._world.note("stop")
        self.stopping = True
        for link in list(self.links):
            link.cut()
        self.bucket.shut_traffic_out()
        self._after(0.01, self._drain)

    def _drain(self) -> None:
        if self._flushing:
            self._after(0.01, self._drain)
            return
        flusher, store = self.bucket.flusher, self.bucket.store
        try:
            for _ in range(_DRAIN_MAX):
                flush = flusher.begin()
                if flush is None:
                    break
                self._commit_growing(flush)
                flusher.finish(flush)
            else:
                complain(f"the queues are not empty after {_DRAIN_MAX} flushes")
            store.commit(Batch(local={CLEAN_MARK: b"1"}))
            store.sync()
        except StoreError as error:
            self._world.note(f"cannot stop in order: {error}")
            self._end()
            self.disk.process_ends()
        else:
            self._left_in_order = True
            for clean in self.journal.on_clean:
                clean()
            self._end()
            self.disk.process_ends()
        for observer in self.journal.on_down:
            observer(self.disk.judge.found, True)

    def _commit_growing(self, flush: Flush) -> None:
        try:
            self.bucket.flusher.commit(flush)
        except StoreMapFull:
            self.bucket.store.grow()
            self.bucket.flusher.commit(flush)

    def _end(self) -> None:
        self.up = self.serving = False
        self.life += 1  # timers of the life that ends do nothing any more
        self.flush = self.fetch = None
        for link in list(self.links):
            link.server_died()

    def _after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Plan something for this life only."""
        life = self.life

        def act() -> None:
            if self.life == life:
                action()

        return self._world.after(delay_s, act)

    # --- clients --------------------------------------------------------------------------------

    def connect(self, client: Client, profile: LinkProfile, by_key: bool) -> Link | None:
        """Accept a connection; ``None`` while nobody listens."""
        if not self.up or self.stopping:
            return None

        link = Link(
            self._world,
            client,
            lambda wake: self.session(wake, by_key=by_key),
            profile,
            self.links.remove,
        )
        self.links.append(link)
        return link

    def session(self, wake: Callable[[], None], *, by_key: bool = False) -> Session:
        """Return the session of a connection that was accepted."""
        return Negotiation(self._services(), wake, by_key=by_key)

    def _services(self) -> Services:
        return Services(
            bucket=self.bucket,
            settings=self.settings.kv,
            version=b"sim",
            stats=lambda words: None,
            reset_stats=self.bucket.stats.reset,
            set_verbosity=lambda level: None,
            report_misuse=self.misuse.append,
            upr=self.upr,
        )

    # --- flushing -------------------------------------------------------------------------------

    def _became_dirty(self) -> None:
        if self._dirty_since is None:
            self._dirty_since = self._world.now
        self._look_later(self.settings.flush.min_delay_s)

    def _look_later(self, delay_s: float) -> None:
        idle = self._look_timer is None and not self._flushing and self.up and not self.stopping
        if idle and self.pace.automatic:
            self._look_timer = self._after(max(delay_s, _TURN_S), self._look)

    def _look(self) -> None:
        self._look_timer = None
        if self._dirty_since is None or self.stopping or self.bucket.flusher.paused:
            return
        delay_s = self.bucket.flusher.delay(self._world.now - self._dirty_since, _FLUSH_S)
        if delay_s > 0:
            self._look_later(delay_s)
        else:
            self._flushing = True
            self._begin_slice(self.bucket.flusher.begin_in_slices())

    def _begin_slice(self, steps: Generator[None, None, Flush | None]) -> None:
        try:
            next(steps)
        except StopIteration as end:
            if self._begun(end.value):
                self._after(self._world.between(0, self.pace.begin_max_s), self._commit)
        else:
            self._after(self._world.between(0, _SLICE_S), lambda: self._begin_slice(steps))

    def flush_begin(self) -> bool:
        """Take what is dirty; ``False`` when nothing is."""
        return self._begun(self.bucket.flusher.begin())

    def _begun(self, flush: Flush | None) -> bool:
        self.flush = flush
        self.committed = False
        if self.flush is None:
            self._flushing = False
            self._dirty_since = None
            return False
        self._dirty_since = self._world.now
        ranges = [change.header for change in self.flush.batch.changes if change.header]
        parts = sum(header.high_seqno < header.snapshot.end for header in ranges)
        self._world.note(f"flush begins: {self.flush.item_count} items, {parts} incomplete")
        return True

    def _commit(self) -> None:
        try:
            self.flush_commit()
        except StoreMapFull:
            self._grow()
        except StoreError as error:
            self.flush_fail(error)
        else:
            assert self.flush is not None
            steps = self.bucket.flusher.finish_in_slices(self.flush)
            delay_s = self._world.between(0, self.pace.commit_max_s)
            self._after(delay_s, lambda: self._finish_slice(steps))

    def _grow(self) -> None:
        if self.bucket.store.grow():
            self._after(0, self._commit)
            return
        for holder in list(self.bucket.view_holders):
            holder.release_views()
        self._after(_GROW_RETRY_S, self._grow)

    def flush_commit(self) -> None:
        """Write what was taken; raises what the disk raises."""
        assert self.flush is not None
        self.bucket.flusher.commit(self.flush)
        self.committed = True
        self._world.note("flush committed")

    def flush_finish(self) -> None:
        """Let the engine know."""
        assert self.flush is not None
        self.bucket.flusher.finish(self.flush)
        self._finished()

    def _finish_slice(self, steps: Iterator[None]) -> None:
        if next(steps, self) is self:
            self._finished()
        else:
            self._after(self._world.between(0, _SLICE_S), lambda: self._finish_slice(steps))

    def _finished(self) -> None:
        self._world.note("flush finished")
        self._go_on(0.0)

    def flush_fail(self, error: StoreError) -> None:
        """Let the engine know that nothing was written."""
        assert self.flush is not None
        self.bucket.flusher.failed(self.flush, error)
        self._world.note(f"flush failed: {error}")
        self._go_on(self.settings.flush.retry_delay_s)

    def _go_on(self, delay_s: float) -> None:
        self.flush = None
        self._flushing = False
        if self.bucket.flusher.pending:
            self._look_later(delay_s)
        else:
            self._dirty_since = None

    # --- fetching, paging, expiring ---------------------------------------------------------------

    def _fetch_soon(self) -> None:
        if not self._fetch_planned and self.fetch is None and self.pace.automatic:
            self._fetch_planned = True
            self._after(0, self._fetch)

    def _fetch(self) -> None:
        self._fetch_planned = False
        if self.fetch_begin():
            self._after(self._world.between(0, self.pace.read_max_s), self._fetch_read)

    def fetch_begin(self) -> bool:
        """Take what is wanted and open a view; ``False`` when nothing is."""
        self.fetch = self.bucket.fetcher.begin()
        if self.fetch is None:
            return False
        self._world.note(f"fetch begins: {self.fetch.wanted}")
        return True

    def _fetch_read(self) -> None:
        if self.disk.unreadable:
            assert self.fetch is not None
            fetch, self.fetch = self.fetch, None
            self.bucket.fetcher.failed(fetch)
            self._fetch_next()
            return
        self.fetch_read()
        self._after(self._world.between(0, self.pace.read_max_s), self.fetch_finish)

    def fetch_read(self) -> None:
        """Read the values."""
        assert self.fetch is not None
        self.bucket.fetcher.commit(self.fetch)

    def fetch_finish(self) -> None:
        """Put them where they are wanted."""
        assert self.fetch is not None
        fetch, self.fetch = self.fetch, None
        self.bucket.fetcher.finish(fetch)
        self._fetch_next()

    def _fetch_next(self) -> None:
        if self.bucket.fetcher.waiting:
            self._fetch_soon()

    # --- compacting -----------------------------------------------------------------------------

    def _compact_soon(self) -> None:
        if not self._compacting and not self.stopping and self.pace.automatic:
            self._compacting = True
            self._after(0, self._compact)

    def _compact(self) -> None:
        self._compacting = False
        if self.stopping:
            return
        reading = self.bucket.compactor.begin()
        if reading is not None:
            self._compacting = True
            self._after(
                self._world.between(0, self.pace.read_max_s), lambda: self._look_into(reading)
            )

    def _look_into(self, reading: Scan) -> None:
        if self.disk.unreadable:
            self._compacting = False
            self.bucket.compactor.failed(reading)
            self._compact_on()
            return
        self.bucket.compactor.read(reading)
        self._after(self._world.between(0, self.pace.read_max_s), lambda: self._compacted(reading))

    def _compacted(self, reading: Scan) -> None:
        self._compacting = False
        self._world.note(f"compaction: {reading.found}")
        self.bucket.compactor.finish(reading)
        self._compact_on()

    def _compact_on(self) -> None:
        if self.bucket.compactor.waiting:
            self._compact_soon()

    # --- time -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.bucket.tick()
        self.upr.tick()
        for link in list(self.links):
            link.tick(self._world.now)
        if self.bucket.pager.needed:
            self._page_soon()
        for _ in self.bucket.ledger.leftovers.steps():
            pass
        self._after(_TICK_S, self._tick)

    def _page_soon(self) -> None:
        if not self._paging:
            self._paging = True
            self._after(0, self._page)

    def _page(self) -> None:
        self._paging = False
        if self.bucket.pager.run_slice():
            self._page_soon()

    def _expire(self) -> None:
        self._expire_slice(self.bucket.expirer.run(self.bucket.clock.now()))
        self._after(self.settings.engine.expiry_interval_s, self._expire)

    def _expire_slice(self, steps: Iterator[None]) -> None:
        if next(steps, self) is not self:
            self._after(0, lambda: self._expire_slice(steps))

    # --- judges ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Let the judges look, and the engine check itself."""
        if not self.up:
            return
        vbuckets = self.bucket.vbuckets.values()
        for vbucket in vbuckets:
            vbucket.check()
        self._memory.look(vbuckets, self.bucket.ledger.used)
        self.branches.look(vbuckets)

    @property
    def quiet(self) -> bool:
        """Whether everything accepted is on disk and nobody waits."""
        bucket = self.bucket
        return self.serving and not (
            self._flushing
            or bucket.flusher.queued
            or bucket.flusher.pending
            or bucket.fetcher.waiting
            or self.fetch
            or self._compacting
            or bucket.compactor.waiting
        )
