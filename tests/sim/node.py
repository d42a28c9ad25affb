"""A simulated node: the real engine and the real sessions on a pretend disk, clock and network.

What drives its disk is what drives it in `uprmc.server`, on a pretend reactor and pretend workers:
every step of a flush or a fetch is an event of its own, so that anything can happen between two of
them. A node has many lives: `crash` ends one, `start` begins the next through the real warm-up,
`stop` ends one in order.

The judges of what a node shows look at it after every step of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Protocol

from twisted.python.failure import Failure

from tests.sim.disk import Disk
from tests.sim.judges import BranchJudge, MemoryJudge, Stored, complain
from tests.sim.link import Client, Link, LinkProfile
from tests.sim.reactor import DRIVER_LOG, WorldPool, WorldReactor
from tests.sim.world import Timer, World, WorldClock, WorldEntropy
from uprmc.config import EngineSettings, FlushSettings, KvSettings, MemorySettings, Settings
from uprmc.engine.bucket import Bucket
from uprmc.engine.fetcher import Fetch
from uprmc.engine.flusher import Flush
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES
from uprmc.engine.warmup import Warmup
from uprmc.errors import StoreError
from uprmc.kv.services import Services
from uprmc.kv.session import Negotiation
from uprmc.ports import Session
from uprmc.record import RECORD_OVERHEAD_BYTES
from uprmc.server.work.disk import DiskWork
from uprmc.server.work.turns import LongWork
from uprmc.upr.hub import Hub

_TICK_S = 0.1

#: The local document that says that everything was written before the end.
_CLEAN_MARK = b"uprmc/clean"

#: Within this time a commit that finds the map full must have more room: two workers may be
#: reading, one may have to begin after them, and none after that.
_GROW_MAX_S = 0.3

#: Sizes of the engine's own that are made small, so that little data comes in many portions: a
#: flush takes whole segments of a queue, begins and ends in slices, and so does warm-up. What
#: drivers log is looked into.
SMALL = (
    ("uprmc.engine.write_queue", "SEGMENT_BITS", 2),
    ("uprmc.engine.flusher", "STEP_ITEMS", 1),
    ("uprmc.engine.flusher", "SHORT_ITEMS", 1),
    ("uprmc.engine.flusher", "SETTLE_ITEMS", 1),
    ("uprmc.engine.memory", "_STEP_ENTRIES", 3),
    ("uprmc.engine.memory", "SPARE_ENTRIES", 10),
    ("uprmc.engine.memory", "_STEP_ENTRIES", 3),
    ("uprmc.engine.warmup", "_STEP_ITEMS", 3),
    ("uprmc.engine.purge", "_READ_RECORDS", 3),
    ("uprmc.server.work.disk", "_flush_log", DRIVER_LOG),
    ("uprmc.server.work.disk", "_fetch_log", DRIVER_LOG),
    ("uprmc.server.work.disk", "_compaction_log", DRIVER_LOG),
    ("uprmc.upr.feed", "_PORTION_BYTES", 300),
    ("uprmc.upr.stream", "_CHECKPOINT_ITEMS", 20),
    ("uprmc.kv.upr_session", "GENTLE_BYTES", 600),
    ("uprmc.kv.upr_session", "GENTLE_PULL_BYTES", 200),
    ("uprmc.tap_adapter.feed", "PULL_BYTES", 400),
    ("uprmc.tap_adapter.feed", "KEPT_BYTES", 600),
    ("uprmc.tap_adapter.window", "STRETCHES_MAX", 4),
    ("uprmc.tap_adapter.producer", "SAVE_INTERVAL_S", 0.1),
    ("uprmc.tap_adapter.openings", "FETCHED_AT_ONCE", 2),
    ("uprmc.tap_adapter.local", "PORTION_KEYS", 2),
)


def shrink() -> None:
    """Make them small in a process of its own."""
    for module, name, value in SMALL:
        assert hasattr(import_module(module), name)
        setattr(import_module(module), name, value)


#: What a small document takes; another figure in each form of the core.
_DOCUMENT_BYTES = RECORD_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES + 20


def small_settings(*, vbuckets: int = 2, quota: int = 5_500, sync: bool = True) -> Settings:
    """Return settings under which everything happens soon: ejection, long queues, backpressure."""
    return Settings(
        kv=KvSettings(max_unsent_bytes=1_500),
        engine=EngineSettings(vbuckets=vbuckets, expiry_interval_s=1.5),
        memory=MemorySettings(quota=quota * _DOCUMENT_BYTES // 330, pager_slice=5),
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


@dataclass(slots=True)
class Pace:
    """How fast the disk is.

    Attributes:
        work_max_s: how long a worker takes, and its answer, each at most.
        automatic: the node flushes and fetches by itself; a directed test does that by hand.
    """

    work_max_s: float = 0.02
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
        flush, fetch: those that are under way by hand.
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
        self._work: DiskWork
        self._pool: WorldPool
        self._paging = False
        DRIVER_LOG.forget()
        world.watchers.append(self.check)
        world.watchers.append(DRIVER_LOG.check)

    # --- lives ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life: open the disk and warm up, step by step."""
        assert not self.up
        self.life += 1
        self.up = True
        self.serving = self.stopping = self.committed = False
        self._paging = False
        self.flush = self.fetch = None
        self._clean = False
        self.branches.life_begins()
        self._world.note(f"start {self.life}")
        world = self._world
        self.bucket = bucket = Bucket(
            self.settings, self.disk.open(), self._clock(), WorldEntropy(world)
        )
        self.upr = Hub(bucket, self.settings.upr)
        bucket.account.on_pressure = self._page_soon
        if self.pace.automatic:
            self._drive()
        self._life_began()
        warmup = Warmup(bucket)
        self._warm_up(warmup, warmup.steps())

    def _drive(self) -> None:
        after = partial(self._after_in, self.life)
        self._pool = WorldPool(self._world, after, self.pace.work_max_s)
        reactor = WorldReactor(self._world, after)
        self._work = DiskWork(
            reactor,
            self._pool,  # type: ignore[arg-type]
            self.bucket,
            self.settings.flush,
            LongWork(reactor),
        )

    def _clock(self) -> WorldClock:
        """Return the clock of this machine."""
        return WorldClock(self._world)

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
        under_way = self._uncommitted()
        if under_way is not None and self.disk.works and self._world.chance(0.5):
            self.disk.write(under_way.batch)
        self._world.note(f"crash power={power}")
        self._end()
        if power:
            self.disk.power_fails()
        else:
            self.disk.process_ends()
        if self.stopping:  # perhaps as far as its mark, with everything on disk before it
            self._left_in_order = _CLEAN_MARK in self.disk.judge.found.local
        held = not power or self.disk.sync
        for observer in self.journal.on_down:
            observer(self.disk.judge.found, held)

    def _uncommitted(self) -> Flush | None:
        if self.flush is not None and not self.committed:
            return self.flush
        return self._pool.flush if self.pace.automatic else None

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
        if not self.pace.automatic:
            self._drive()
        self.upr.release_views()
        stopping = self._work.stop(orderly=True)
        stopping.addCallbacks(self._stopped, self._not_stopped)
        stopping.addErrback(lambda failure: DRIVER_LOG.failure("stop", failure))

    def _stopped(self, _: None) -> None:
        self._left_in_order = True
        for clean in self.journal.on_clean:
            clean()
        self.judge_freed()
        self._leave()

    def _not_stopped(self, failure: Failure) -> None:
        failure.trap(StoreError)
        self._world.note(f"cannot stop in order: {failure.value}")
        self._leave()

    def _leave(self) -> None:
        if self._pool.jobs:
            complain(f"the store is closed while workers do {self._pool.jobs}")
        self._end()
        self.disk.process_ends()
        for observer in self.journal.on_down:
            observer(self.disk.judge.found, True)

    def judge_freed(self) -> None:
        """When nobody is connected any more, nobody holds anything.

        A compaction may be given up with the node. A waiter that has raised is told of first: what
        it should have freed is held because of that.
        """
        DRIVER_LOG.check()
        hub, bucket = self.upr, self.bucket
        followers = [w for v in bucket.vbuckets.values() for w in (*v.waiting, *v.watchers)]
        compactor = bucket.compactor
        given_up = [compactor._current, *compactor._gathered.values()]
        held: dict[str, object] = {
            "producers": list(hub.producers),
            "permits": hub.backfills.used,
            "waiting for a permit": list(hub.backfills._waiting),
            "views of the store": self.disk.open_views,
            "views of queues": [v.id for v in bucket.vbuckets.values() if v.queue.open_views],
            "retired entries": [v.id for v in bucket.vbuckets.values() if v.queue.retired],
            "watchers": [each for each in followers if each not in given_up],
            "rollbacks": [v.id for v in bucket.vbuckets.values() if v.rewinding],
            "a shut gate": bucket.gate.is_shut,
        }
        left = {what: found for what, found in held.items() if found}
        if left:
            complain(f"life {self.life} holds at its end: {left}")

    def _end(self) -> None:
        self.up = self.serving = False
        self.life += 1  # timers of the life that ends do nothing any more
        self.flush = self.fetch = None
        for link in list(self.links):
            link.server_died()

    def _after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Plan something for this life only."""
        return self._after_in(self.life, delay_s, action)

    def _after_in(self, life: int, delay_s: float, action: Callable[[], None]) -> Timer:
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

    # --- flushing by hand -------------------------------------------------------------------------

    def flush_begin(self) -> bool:
        """Take what is dirty; ``False`` when nothing is."""
        self.flush = self.bucket.flusher.begin()
        self.committed = False
        return self.flush is not None

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
        self.flush = None

    def flush_fail(self, error: StoreError) -> None:
        """Let the engine know that nothing was written."""
        assert self.flush is not None
        self.bucket.flusher.failed(self.flush, error)
        self.flush = None

    # --- fetching by hand -------------------------------------------------------------------------

    def fetch_begin(self) -> bool:
        """Take what is wanted and open a view; ``False`` when nothing is."""
        self.fetch = self.bucket.fetcher.begin()
        if self.fetch is None:
            return False
        self._world.note(f"fetch begins: {self.fetch.wanted}")
        return True

    def fetch_read(self) -> None:
        """Read the values."""
        assert self.fetch is not None
        self.bucket.fetcher.commit(self.fetch)

    def fetch_finish(self) -> None:
        """Put them where they are wanted."""
        assert self.fetch is not None
        fetch, self.fetch = self.fetch, None
        self.bucket.fetcher.finish(fetch)

    # --- time -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.bucket.tick()
        self.upr.tick()
        for link in list(self.links):
            link.tick(self._world.now)
        if self.bucket.evictor.needed:
            self._page_soon()
        for _ in self.bucket.account.leftovers.steps():
            pass
        self._after(_TICK_S, self._tick)

    def _page_soon(self) -> None:
        if not self._paging:
            self._paging = True
            self._after(0, self._page)

    def _page(self) -> None:
        self._paging = False
        if self.bucket.evictor.run_slice():
            self._page_soon()

    def _expire(self) -> None:
        self._expire_slice(self.bucket.expirer.run(self.bucket.steady.now()))
        self._after(self.settings.engine.expiry_interval_s, self._expire)

    def _expire_slice(self, steps: Iterator[None]) -> None:
        if self.stopping:  # a node ends its housekeeping before it writes what is queued
            return
        if next(steps, self) is not self:
            self._after(0, lambda: self._expire_slice(steps))

    # --- judges ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Let the judges look, and the engine check itself."""
        if not self.up:
            return
        self._check_room()
        vbuckets = self.bucket.vbuckets.values()
        for vbucket in vbuckets:
            vbucket.check()
        self._memory.look(vbuckets, self.bucket.account.used)
        self.branches.look(vbuckets)

    def _check_room(self) -> None:
        """A store grows as soon as no worker reads it, whoever else wants to read it."""
        since = self.disk.waits_since
        if since is not None and self._world.now - since > _GROW_MAX_S and self.pace.automatic:
            complain(f"the store has not grown for {self._world.now - since:.3f} s")

    @property
    def quiet(self) -> bool:
        """Whether everything accepted is on disk and nobody waits."""
        bucket = self.bucket
        return self.serving and not (
            (self.pace.automatic and self._work.busy)
            or bucket.flusher.queued
            or bucket.flusher.pending
            or bucket.fetcher.waiting
            or self.fetch
            or bucket.compactor.waiting
        )
