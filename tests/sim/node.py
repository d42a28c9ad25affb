"""A simulated node: the real engine and the real sessions on a pretend disk, clock and network.

What drives its disk is what drives it in `uprmc.server`, on a pretend reactor and pretend workers:
every step of a flush or a fetch is an event of its own, so that anything can happen between two of
them. A node has many lives: `crash` ends one, `start` begins the next through the real warm-up,
`stop` ends one in order. It dials others by the `Net`, follows them and hands over to them; it may
speak TAP, and have links to other clusters.

The judges of what a node shows look at it after steps of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from twisted.python.failure import Failure

from tests.sim.disk import Disk
from tests.sim.judges import BranchJudge, MemoryJudge, Stored, StoreJudge, complain
from tests.sim.net import Call, Client, Link, LinkProfile, Net, WireEnd, address
from tests.sim.reactor import DRIVER_LOG, WorldPool, WorldReactor
from tests.sim.world import Drift, Timer, WorldClock, WorldEntropy
from uprmc.config import EngineSettings, FlushSettings, KvSettings, MemorySettings, Settings
from uprmc.engine.bucket import Bucket
from uprmc.engine.fetcher import Fetch
from uprmc.engine.flusher import Flush
from uprmc.engine.memory import ITEM_OVERHEAD_BYTES
from uprmc.engine.warmup import Warmup
from uprmc.errors import CommandError, StoreError
from uprmc.kv.services import Services
from uprmc.kv.session import Negotiation
from uprmc.model import VBucketState
from uprmc.ports import Session
from uprmc.protocol.tap import Connect
from uprmc.record import RECORD_OVERHEAD_BYTES
from uprmc.server.work.disk import DiskWork
from uprmc.server.work.turns import LongWork
from uprmc.tap_adapter.node_tap import NodeTap
from uprmc.tap_adapter.producer import TapProducer
from uprmc.tap_adapter.session import TapOpened
from uprmc.upr.hub import Hub
from uprmc.upr.replication import Replication
from uprmc.upr.source import StreamStanding
from uprmc.xdcr.links import Links
from uprmc.xdcr.received import ReceivedRecords
from uprmc.xdcr.world import World as Surroundings

_TICK_S = 0.1

#: How long a worker takes, and its answer, each at most.
_WORK_MAX_S = 0.02

#: Every so many steps a node among others checks itself; whole tables only where something has
#: changed, or after so many times.
_CHECK_EVERY = 7
_UNCHECKED_MAX = 50

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
    ("uprmc.xdcr.sender", "_PULL_BYTES", 400),
    ("uprmc.xdcr.world", "SLICE_S", 0.0),
)


def shrink() -> None:
    """Make them small in a process of its own."""
    for module, name, value in SMALL:
        assert hasattr(import_module(module), name), (module, name)
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


class Node:
    """See the module docstring."""

    #: Of the present life, while there are any; the last one's while the node is down.
    bucket: Bucket
    upr: Hub
    replication: Replication
    tap: NodeTap
    xdcr: Links

    def __init__(
        self,
        net: Net,
        name: str,
        settings: Settings,
        *,
        sync: bool = True,
        automatic: bool = True,
        alone: bool = False,
        speaks_tap: bool = False,
        has_links: bool = False,
        instance: bytes = b"",
    ) -> None:
        """Make it; it does not run yet.

        Args:
            automatic: it flushes and fetches by itself; a directed test does that by hand.
            alone: it follows nobody, so its seqnos never fall.
            instance: its name in the watermarks of its sources; empty = it does not register.
        """
        world = net.world
        self.name = name
        self.settings = settings
        self.store_judge = StoreJudge()
        self.disk = Disk(world, self.store_judge, sync=sync)
        self.disk.weak_views = True
        self.branches = BranchJudge(may_fall=not alone)
        self.up = False  # a process runs
        self.serving = False  # warm-up is over
        self.stopping = False  # it ends its life in order
        self.life = 0  # counts up with every start and every end
        self.links: list[Link | WireEnd] = []
        self.misuse: list[str] = []  # what sessions reported
        self.instance = instance
        # Who wants to know how lives begin and end.
        self.on_up: list[Callable[[bool], None]] = []
        self.on_down: list[Callable[[Stored, bool], None]] = []
        self.on_clean: list[Callable[[], None]] = []
        # What is under way by hand, and whether that flush is on disk already.
        self.flush: Flush | None = None
        self.fetch: Fetch | None = None
        self.committed = False
        # Of streams of TAP that were begun, by the wake-up of their connections: only whether a
        # server says that it has sent everything, which its client cannot see.
        self.producers: dict[Callable[[], None], TapProducer] = {}
        self.drift = Drift()  # of its clock
        #: Names its data; the restoration of an older copy gives it another one.
        self.uuid = world.random.getrandbits(128) if has_links else 0
        self.events: list[tuple[str, dict[str, object]]] = []  # what links reported, in all lives
        self.copies: list[tuple[Any, Stored]] = []  # states of its disk that were kept
        self._restored = False
        self._automatic, self._alone = automatic, alone
        self._speaks_tap, self._has_links = speaks_tap, has_links
        self._net, self._world = net, world
        self._memory = MemoryJudge(ITEM_OVERHEAD_BYTES)
        self._left_in_order = self._clean = False  # the last life; the one before this
        self._work: DiskWork
        self._pool: WorldPool
        self._paging = False
        self._steps = self._unchecked = 0
        self._checked: tuple[object, ...] = ()
        net.nodes[address(name)] = self
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
            self.settings, self.disk.open(), WorldClock(world, self.drift), WorldEntropy(world)
        )
        self.upr = Hub(bucket, self.settings.upr)
        bucket.account.on_pressure = self._page_soon
        if self._automatic:
            self._drive()
        self._life_began()
        warmup = Warmup(bucket)
        self._warm_up(warmup, warmup.steps())

    def _drive(self) -> None:
        after = partial(self._after_in, self.life)
        self._pool = WorldPool(self._world, after, _WORK_MAX_S)
        reactor = WorldReactor(self._world, after)
        self._work = DiskWork(
            reactor,
            self._pool,  # type: ignore[arg-type]
            self.bucket,
            self.settings.flush,
            LongWork(reactor),
        )

    def _life_began(self) -> None:
        """Wire what else belongs to a node."""
        if not self._alone:
            self.upr.instance = self.instance
            self.replication = Replication(self.upr, partial(Call, self._net, self))
        if self._speaks_tap:
            self._begin_tap()
        if self._has_links:
            self._begin_links()

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
        if not self._alone:
            self.replication.resume()
        if self._has_links:
            self._start_links()
        for observer in self.on_up:
            observer(warmup.was_clean)
        self._after(_TICK_S, self._tick)
        self._after(self.settings.engine.expiry_interval_s, self._expire)

    def _cannot_start(self, error: StoreError) -> None:
        """Give up and try again, as whoever supervises a process does."""
        self._world.note(f"cannot start: {error}")
        self._end()
        self.disk.process_ends()
        for observer in self.on_down:
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
        for observer in self.on_down:
            observer(self.disk.judge.found, held)

    def _uncommitted(self) -> Flush | None:
        if self.flush is not None and not self.committed:
            return self.flush
        return self._pool.flush if self._automatic else None

    def stop(self) -> None:
        """End the life in order; clients lose their connections. It takes a while."""
        assert self.serving
        if self._has_links:
            self.xdcr.close()
        if not self._alone:
            self.replication.close()
        self._world.note("stop")
        self.stopping = True
        for link in list(self.links):
            link.cut()
        self.bucket.shut_traffic_out()
        self._after(0.01, self._drain)

    def _drain(self) -> None:
        if not self._automatic:
            self._drive()
        self.upr.release_views()
        stopping = self._work.stop(orderly=True)
        stopping.addCallbacks(self._stopped, self._not_stopped)
        stopping.addErrback(lambda failure: DRIVER_LOG.failure("stop", failure))

    def _stopped(self, _: None) -> None:
        self._left_in_order = True
        for clean in self.on_clean:
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
        for observer in self.on_down:
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
        if self._speaks_tap:
            names = self.tap.registry.names
            held["TAP clients"] = [known.name for known in names if known.producer is not None]
            held["pushes"] = self.tap.pushes.pushers
        left = {what: found for what, found in held.items() if found}
        if left:
            complain(f"{self.name}: life {self.life} holds at its end: {left}")

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
        services = Services(
            bucket=self.bucket,
            settings=self.settings.kv,
            version=b"sim",
            stats=lambda words: None,
            reset_stats=self.bucket.stats.reset,
            set_verbosity=lambda level: None,
            report_misuse=self.misuse.append,
            upr=self.upr,
        )
        if not self._alone:
            services.replication = self.replication
        if self._speaks_tap:
            services.tap = self.tap
        if self._has_links:
            services.xdcr = self.xdcr
            services.control.cluster_map.uuid = self.uuid
            rule = {"revision": "seqno", "timestamp": "lww"}[
                self.bucket.account.conflict_rule.value
            ]
            services.stats = lambda _words: [("ep_conflict_resolution_type", rule)]
        return services

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
        if self._speaks_tap:
            self.tap.registry.tick()
        if self._has_links:
            self.xdcr.tick(self._world.now)
        if not self._alone:
            self.replication.tick(self._world.now)
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

    # --- replication, TAP, links to other clusters ------------------------------------------------

    def awaits_a_word(self, number: int) -> bool:
        """Tell whether it does not follow its source, which seems to have lost its data."""
        if not self.up:
            return False
        source = self.replication.source_of(number)
        if source is None or source.followed[number].standing is StreamStanding.STREAMING:
            return False
        return "lost its data" in source.followed[number].error

    def _begin_tap(self) -> None:
        self.tap = NodeTap(self.upr, self.settings.tap, lambda: self._world.now, lambda: b"the map")
        door_open = self.tap.registry.open

        def noted(connect: Connect, wake: Callable[[], None]) -> TapOpened:
            opened = door_open(connect, wake)
            self.producers[wake] = opened.producer
            return opened

        self.tap.registry.open = noted  # type: ignore[method-assign]

    def said_done(self, link: Link) -> bool:
        """Tell whether the stream of a connection that is over said that it was complete."""
        producer = self.producers.pop(link._wake, None)
        return producer is not None and producer.done

    def _begin_links(self) -> None:
        received = ReceivedRecords(self.bucket, lambda why: self._trouble("", why))
        life = self.life
        self.xdcr = Links(
            Surroundings(
                self.upr,
                self.uuid,
                received,
                lambda _spec: self._dial_for_link,
                lambda _spec, checked: checked(""),
                lambda delay_s, action: self._after_in(life, max(delay_s, 1e-5), action),
                lambda event, fields: self.events.append((event, fields)),
                self._trouble,
            )
        )

    def _dial_for_link(self, place: str, make: Any, failed: Any, _unusable: Any) -> Any:
        return Call(self._net, self, place, partial(make, None), failed)

    def _trouble(self, link: str, why: str) -> None:
        self._world.note(f"{self.name}: link {link}: {why}")

    def _start_links(self) -> None:
        if self._restored:  # what `Node` of the server does with a copied directory
            self._restored = False
            for number in list(self.bucket.active):
                self.bucket.set_state(number, VBucketState.REPLICA)
                self.bucket.set_state(number, VBucketState.ACTIVE)
        self.xdcr.start()

    def command(
        self, verb: str, done: Callable[[object], None] | None = None, **given: object
    ) -> None:
        """Carry out a verb of ``uprmc xdcr``; raises as it does."""
        refused = partial(self._refused, verb)
        self.xdcr.command(verb, given, done or (lambda _: None), refused)

    def _refused(self, verb: str, error: CommandError) -> None:
        self._world.note(f"{self.name}: {verb}: {error!r}")

    def keep_copy(self) -> None:
        """Copy the disk, as a backup of its file does."""
        disk: Disk = self.disk
        self.copies.append((disk._medium._state, self.store_judge.newest))

    def restore_copy(self) -> Stored:
        """Put a copy in the place of the disk; the node is down, and begins another history.

        Return what is on it.
        """
        assert not self.up
        state, stored = self.copies.pop()
        medium = self.disk._medium
        medium._state = medium._synced = state
        self.store_judge._states = [stored]
        self.store_judge.found = stored
        self.uuid = self._world.random.getrandbits(128)
        self._restored = True
        self._left_in_order = False
        return stored

    # --- judges ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Let the judges look, and the engine check itself."""
        self._steps += 1
        if not self.up or not (self._alone or self._steps % _CHECK_EVERY == 0):
            return
        self._check_room()
        bucket = self.bucket
        vbuckets = bucket.vbuckets.values()
        shown = (
            self.life,
            bucket.account.used,
            *((v.high_seqno, v.persisted_seqno, v.queue.live, v.rewinding) for v in vbuckets),
        )
        if shown != self._checked or self._unchecked >= _UNCHECKED_MAX:
            self._checked, self._unchecked = shown, 0
            for vbucket in vbuckets:
                vbucket.check()
            self._memory.look(vbuckets, bucket.account.used)
        self._unchecked += 1
        self.branches.look(vbuckets)

    def _check_room(self) -> None:
        """A store grows as soon as no worker reads it, whoever else wants to read it."""
        since = self.disk.waits_since
        if since is not None and self._world.now - since > _GROW_MAX_S and self._automatic:
            complain(f"the store has not grown for {self._world.now - since:.3f} s")

    @property
    def quiet(self) -> bool:
        """Whether everything accepted is on disk and nobody waits."""
        bucket = self.bucket
        return self.serving and not (
            (self._automatic and self._work.busy)
            or bucket.flusher.queued
            or bucket.flusher.pending
            or bucket.fetcher.waiting
            or self.fetch
            or bucket.compactor.waiting
        )
