"""A run: one simulated world with its actors, their faults, and all the judges.

A `Simulation` is a kind of run and how a plan for it is drawn. A run goes on for a while among
faults, heals, comes to rest, and has everything judged; a seed that fails says how to run it again.
Here are the runs of one node: `StoreRun`, what clients see of documents, and `StreamsRun`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from tests.sim import codec, linearity
from tests.sim.client import Client, Habits
from tests.sim.consumer import Consumer
from tests.sim.faults import ALL_FAULTS, Faults, NodeFaults
from tests.sim.guests import Guest, Lessee, Notifier, Taker
from tests.sim.judges import (
    CasJudge,
    History,
    Op,
    PromiseJudge,
    Record,
    SeqnoJudge,
    Stored,
    complain,
    naming,
)
from tests.sim.net import FAR_AWAY, FAST, SLOW_READER, LinkProfile, Net
from tests.sim.node import Node, small_settings
from tests.sim.plan import StreamsPlan, draw_streams
from tests.sim.truth import Truth
from tests.sim.world import STEPS_MAX, NotHappened, World
from tests.sim.writer import Manager, Pauser, Writer


class Run:
    """What all runs have in common."""

    nodes: list[Node]

    def __init__(self, world: World, plan: Any, absences_s: tuple[float, ...]) -> None:
        """Make it; `absences_s` are the times for which a node may be down."""
        self.world = world
        self.plan = plan
        self.net = Net(world)
        self.faults: list[NodeFaults] = []
        self._absences_s = absences_s

    def _add_nodes(self, *nodes: Node) -> None:
        self.nodes = list(nodes)
        self.faults = [NodeFaults(self.world, node, self._absences_s) for node in nodes]

    def go(self) -> None:
        """Let everybody act among faults; then heal, come to rest, be judged."""
        self.start()
        for faults in self.faults:
            faults.begin(self.plan.faults)
        self.act()
        self.world.run(self.plan.steps)
        self.heal()
        self.rest()
        self.finish()

    def start(self) -> None:
        """Start the nodes, then everybody else."""
        raise NotImplementedError

    def act(self) -> None:
        """Let those begin who act only among faults."""

    def heal(self) -> None:
        """Let no new fault happen, and mend what is broken."""
        raise NotImplementedError

    def rest(self) -> None:
        """Let everything end: those who write first, then whoever follows them."""
        raise NotImplementedError

    def finish(self) -> None:
        """Judge what everybody holds, and that nothing is held for those who have left."""
        raise NotImplementedError

    def account(self) -> dict[str, int]:
        """Return what happened, so that a test can see that something did."""
        return {
            "crashes": sum(faults.crashes for faults in self.faults),
            "cuts": sum(faults.cuts for faults in self.faults),
        }

    def _start_nodes(self) -> None:
        for node in self.nodes:
            node.start()
        self._until(lambda: all(node.serving for node in self.nodes), "nodes")

    def _heal_nodes(self) -> None:
        for faults in self.faults:
            faults.heal()
        self.net.join()

    def _until_nodes_serve(self) -> None:
        self._until(lambda: all(n.serving and not n.stopping for n in self.nodes), "nodes")

    def _until_quiet(self) -> None:
        self._until(lambda: all(node.quiet for node in self.nodes), "flushers")

    def _until(
        self,
        happened: Callable[[], bool],
        what: str,
        how: Callable[[], str] = str,
        steps_max: int = STEPS_MAX,
    ) -> None:
        """Go on until `happened`; a judge complains of what never does, and tells how it stands."""
        try:
            self.world.run_until(happened, steps_max)
        except NotHappened as error:
            complain(f"{what} never come to rest: {error} {how()}")


class Story(NamedTuple):
    """What is left of a run."""

    account: Mapping[str, int]
    digest: str


class Simulation(NamedTuple):
    """A kind of run."""

    name: str  # what `tests.sim.seeds` calls it
    run: Callable[[World, Any], Run]
    draw: Callable[[World], Any]  # a plan
    dice: int = 0  # the plan is drawn with a seed of its own: the run's, changed by this

    def random(self, seed: int, plan: Any = None) -> Any:
        """Run a seed, with the plan that it draws if none is given.

        Raises:
            Verdict: with the seed in its text, and how to run it again.
        """
        world = World(seed)
        if plan is None:
            plan = self.draw(World(seed ^ self.dice) if self.dice else world)
        run = self.run(world, plan)
        with naming(seed, world.log, f"python -m tests.sim.seeds {self.name}"):
            run.go()
        return run

    def story(self, seed: int) -> Story:
        """Run a seed with the plan that it draws, once for all tests of a process."""
        return _story(self, seed)


@cache
def _story(simulation: Simulation, seed: int) -> Story:
    run = simulation.random(seed)
    return Story(run.account(), run.world.digest())


# --- what clients see of one node -----------------------------------------------------------------

EVERYTHING = {
    "get": 30,
    "set": 30,
    "add": 4,
    "replace": 4,
    "append": 5,
    "incr": 6,
    "delete": 6,
    "touch": 4,
    "getl": 3,
    "unlock": 3,
    "observe": 8,
    "observe_seqno": 4,
    "flush": 1,
}


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A node and its clients."""

    faults: Faults
    steps: int = 2_500
    weights: dict[str, int] = field(default_factory=lambda: EVERYTHING)
    clients: int = 3
    sync: bool = True
    short_lives: bool = False  # documents may get expiry times of a few seconds
    quota: int = 5_500
    automatic: bool = True  # the node flushes and fetches by itself


class StoreRun(Run):
    """Clients of all dialects; every answer is explained by one order of all operations."""

    plan: StorePlan

    def __init__(self, world: World, plan: StorePlan) -> None:
        super().__init__(world, plan, absences_s=(0.0, 0.1, 1.0))
        self.history = History(world)
        settings = small_settings(quota=plan.quota, sync=plan.sync)
        self.node = node = Node(
            self.net, "a", settings, sync=plan.sync, automatic=plan.automatic, alone=True
        )
        node.disk.weak_views = False
        self._add_nodes(node)
        self.disk = node.disk
        self.clients: list[Client] = []
        self.cas = CasJudge()
        self.seqnos = SeqnoJudge()
        self.promises = PromiseJudge(node.branches, self.cas)
        self._high_at_start = 0
        self._on_disk: dict[bytes, Record] = {}  # when the present life began
        self.history.on_begin += [self.seqnos.began, self.promises.began]
        self.history.on_end += [self.seqnos.ended, self.cas.ended, self.promises.ended]
        node.on_up.append(self._came_up)
        node.on_clean.append(self.promises.stopped_clean)
        node.on_down.append(self._went_down)

    @classmethod
    def directed(cls, *, sync: bool = True, seed: int = 0) -> StoreRun:
        """Return a node that serves, flushes only by hand, and one client of it."""
        plan = StorePlan(Faults(), sync=sync, quota=1_000_000, automatic=False, clients=0)
        run = cls(World(seed), plan)
        run.start()
        run.client(Habits(EVERYTHING)).connect()
        return run

    def habits(self, place: int) -> Habits:
        """Return different habits for each client."""
        profiles: tuple[LinkProfile, ...] = (FAST, SLOW_READER, FAR_AWAY)
        return Habits(
            self.plan.weights,
            depth=(4, 6, 3)[place % 3],
            by_key=place % 2 == 1,
            hello=place % 4 != 3,
            quiet=(0.0, 0.2, 0.1)[place % 3],
            short_lives=self.plan.short_lives,
            profile=profiles[place % 3],
        )

    # --- steps of a run ---------------------------------------------------------------------------

    def start(self) -> None:
        self.node.start()
        self.world.run_until(lambda: self.node.serving)
        for place in range(len(self.clients), self.plan.clients):
            self.client(self.habits(place))

    def act(self) -> None:
        for client in self.clients:
            client.work()

    def client(self, habits: Habits) -> Client:
        """Add a client; it is not connected yet."""
        client = Client(
            f"c{len(self.clients)}",
            self.world,
            self.history,
            self.node.connect,
            self.node.settings.engine.vbuckets,
            habits,
        )
        self.clients.append(client)
        return client

    def done(self, op: Op) -> Op:
        """Wait until an operation has ended."""
        self.world.run_until(lambda: op.ended is not None)
        return op

    def heal(self) -> None:
        self._heal_nodes()
        self._until_nodes_serve()

    def rest(self) -> None:
        """Let every request have its reply, and everything accepted come to disk."""
        self.rest_of_clients()
        self.world.run_until(lambda: self.node.quiet)

    def rest_of_clients(self) -> None:
        """Let every request have its reply."""
        for client in self.clients:
            client.rest()
        self.world.run_until(lambda: not any(client.under_way for client in self.clients))

    def restart(self, *, power: bool = False) -> None:
        """Crash and come back."""
        self.node.crash(power=power)
        self.start()

    def stop_and_start(self) -> None:
        """Stop in order and come back."""
        self.node.stop()
        self.world.run_until(lambda: not self.node.up)
        self.start()

    # --- judgement ------------------------------------------------------------------------------

    def _came_up(self, clean: bool) -> None:
        self._high_at_start = self._high()

    def _high(self) -> int:
        return sum(vbucket.high_seqno for vbucket in self.node.bucket.vbuckets.values())

    def _went_down(self, stored: Stored, promises_hold: bool) -> None:
        """Judge the life that has ended, and what the disk shows of it."""
        self._judge_life()
        self.promises.reopened(stored, promises_hold=promises_hold)
        self.history.life += 1
        self._on_disk = {
            key: record
            for _, records in stored.vbuckets.values()
            for key, record in records.items()
        }

    def _judge_life(self) -> None:
        ops = self.history.of_life(self.history.life)
        flushes = [op for op in ops if op.kind == "flush"]
        by_key: dict[bytes, list[Op]] = {}
        for op in ops:
            if op.key:
                by_key.setdefault(op.key, []).append(op)
        for key, of_key in by_key.items():
            begin = linearity.stored(self._on_disk.get(key))
            linearity.judge_key(key, begin, sorted(of_key + flushes, key=lambda op: op.began))

    def finish(self) -> None:
        """Judge the life that goes on, and that a crash now would find everything on disk."""
        stats = self.node.bucket.stats
        ops = self.history.of_life(self.history.life)
        if not any(op.kind == "flush" for op in ops):
            expired = stats.expired_access + stats.expired_pager
            self.seqnos.count(ops, self._high() - self._high_at_start, expired)
        if self.node.quiet:
            self.promises.stopped_clean()
        self.node.crash()


STORE = Simulation("store", StoreRun, lambda world: StorePlan(ALL_FAULTS, short_lives=True))


# --- streams of one node --------------------------------------------------------------------------


class StreamsRun(Run):
    """A node, writers, a manager, consumers of all kinds and other guests."""

    plan: StreamsPlan

    def __init__(self, world: World, plan: StreamsPlan) -> None:
        super().__init__(world, plan, absences_s=(0.0, 0.1, 0.5))
        settings = small_settings(vbuckets=plan.vbuckets, quota=plan.quota, sync=plan.sync)
        settings = replace(
            settings,
            engine=replace(settings.engine, max_failover_entries=plan.max_failover_entries),
            purge=replace(settings.purge, batch_items=2),
            upr=plan.upr,
        )
        self.node = Node(self.net, "a", settings, sync=plan.sync, alone=True)
        self._add_nodes(self.node)
        self.truth = Truth(plan.max_failover_entries)
        self.node.on_up.append(self._came_up)
        world.watchers.append(self._look)
        self.consumers: list[Consumer] = []
        self.writers: list[Writer] = []
        self.manager: Manager
        self.pauser: Pauser | None = None
        self.notifier: Notifier | None = None
        self.lessee: Lessee | None = None
        self.taker: Taker | None = None

    def start(self) -> None:
        self._start_nodes()
        plan = self.plan
        common = (self.world, self.node, self.truth, plan.vbuckets)
        self.writers = [Writer(*common, 0.03, plan.keys) for _ in range(plan.writers)]
        self.manager = Manager(*common, 0.3, plan.managing)
        self.pauser = Pauser(*common, 1.0) if plan.pauses else None
        self.notifier = Notifier(*common) if plan.notifier else None
        self.lessee = Lessee(*common) if plan.leases else None
        self.taker = Taker(*common) if plan.takeovers else None
        for number, kind in enumerate(plan.kinds):
            self.consumers.append(Consumer(*common, kind, number))

    def heal(self) -> None:
        """Let no new fault happen, mend what is broken, have every vBucket active."""
        self._heal_nodes()
        for consumer in self.consumers:
            consumer.calm = True
        self._until_nodes_serve()
        if self.pauser is not None:
            self.pauser.working = False
            self.pauser.resume()
            self.world.run_until(lambda: not self.node.bucket.flusher.paused)
        if self.taker is not None:
            self.taker.leave()
        self.manager.mending = True
        self._until(self._is_mended, "vBuckets")
        self.world.run(100)  # writers find everything in order for a while

    def _is_mended(self) -> bool:
        """Tell whether every vBucket is active, and no older command can change that any more."""
        numbers = range(self.plan.vbuckets)
        active = all(self.truth.now(number).state == codec.ACTIVE for number in numbers)
        return active and not self.manager.busy

    def rest(self) -> None:
        for commander in (*self.writers, self.manager):
            commander.working = False
        self._until(lambda: all(writer.resting for writer in self.writers), "writers")
        self._until_quiet()
        for consumer in self.consumers:
            self._until(consumer.settled, consumer.name)
        if self.notifier is not None:
            self._until(self.notifier.settled, "notifier")

    def finish(self) -> None:
        for consumer in self.consumers:
            consumer.judge()
            consumer.leave()
        guests: tuple[Guest | None, ...] = (self.notifier, self.lessee)
        for guest in guests:
            if guest is not None:
                guest.leave()
        if self.lessee is not None:
            self._until(lambda: not self.node.upr.leases.open, "leases")
        self._until_quiet()
        self.node.judge_freed()

    def account(self) -> dict[str, int]:
        total = Counter(super().account())
        for consumer in self.consumers:
            total.update(consumer.account.counts())
        total["notified"] += self.notifier.fired if self.notifier else 0
        total["takeovers"] += self.taker.taken if self.taker else 0
        total["leases read again"] += self.lessee.repeats if self.lessee else 0
        total.update(self.manager.done)
        return total

    # --- watching ---------------------------------------------------------------------------------

    def _came_up(self, clean: bool) -> None:
        self.truth.came_up(self.node.store_judge.found, self.node.bucket.vbuckets.values())

    def _look(self) -> None:
        node = self.node
        serving = node.up and node.serving
        self.truth.look(node.bucket.vbuckets.values() if serving else (), serving=serving)


STREAMS = Simulation("streams", StreamsRun, draw_streams)
