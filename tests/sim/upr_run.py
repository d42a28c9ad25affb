"""One run of the simulation of streams: a node, writers, a manager, consumers of all kinds, faults.

Every seed picks its own faults and its own guests (swarm testing): a fault that is always on hides
what only happens in peace. At the end everything heals, and all must come to rest equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.sim import upr_codec as codec
from tests.sim.disk import Disk
from tests.sim.judges import Stored, StoreJudge, Verdict, complain
from tests.sim.link import FAR_AWAY, FAST, SLOW_READER
from tests.sim.node import Node, Pace, small_settings
from tests.sim.run import Faults
from tests.sim.upr_connection import Manners
from tests.sim.upr_consumer import Consumer, Kind
from tests.sim.upr_notifier import Notifier
from tests.sim.upr_truth import Truth
from tests.sim.upr_writer import Manager, Pauser, Writer
from tests.sim.world import World
from uprmc.config import Settings, UprSettings

PLAIN = Kind("plain")
ROUNDS = Kind(
    "rounds",
    Manners(controls=("uprmc_rounds", "uprmc_snapshot_end"), profile=FAR_AWAY),
    rounds=True,
    snapshot_ends=True,
)
SLOW = Kind(
    "slow",
    Manners(buffer_bytes=400, ack_delay_max_s=0.3, noop_s=0.5, profile=SLOW_READER),
    keep=5,
    whole_only=True,
)
MOODY = Kind(
    "moody",
    Manners(flags=codec.AS_PRODUCER | codec.DELETE_TIMES, controls=("uprmc_snapshot_end",)),
    snapshot_ends=True,
    moody=0.15,
)
RARE = Kind("rare", moody=0.3, absent_s=2.0)
VERSED = Kind("versed", Manners(controls=("uprmc_versions",)), versions=True, moody=0.03)
LATEST = Kind("latest", Manners(buffer_bytes=2_000, profile=FAR_AWAY), latest=True)

KINDS = (PLAIN, ROUNDS, SLOW, MOODY, RARE, VERSED, LATEST)

#: What may go wrong, each in some of the runs.
FAULTS = {
    "cut_s": 0.3,
    "crash_s": 0.8,
    "power_s": 2.0,
    "stop_s": 2.0,
    "full_s": 1.5,
    "broken_s": 1.0,
    "map_full_s": 1.0,
    "write_back_s": 0.3,
}

MANAGING = {"compact": 12, "state": 4, "failover": 4, "remove": 2, "flush": 1}


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run is made of.

    Attributes:
        managing: what the manager does; empty = there is none.
        steps: for so long there are faults.
    """

    kinds: tuple[Kind, ...]
    faults: Faults
    managing: dict[str, int]
    vbuckets: int = 2
    writers: int = 2
    quota: int = 200_000
    sync: bool = True
    steps: int = 1_200
    notifier: bool = False
    pauses: bool = False
    upr: UprSettings = UprSettings()
    max_failover_entries: int = 25


def random_plan(world: World) -> Plan:
    """Draw a plan."""
    random = world.random
    faults = {name: mean for name, mean in FAULTS.items() if random.random() < 0.4}
    managing = {name: weight for name, weight in MANAGING.items() if random.random() < 0.6}
    return Plan(
        kinds=tuple(random.sample(KINDS, random.randint(2, 4))),
        faults=Faults(**faults),
        managing=managing,
        vbuckets=random.choice((1, 2, 2, 4)),
        writers=random.choice((1, 2, 3)),
        quota=random.choice((5_500, 200_000, 200_000)),
        sync=random.random() < 0.7,
        notifier=random.random() < 0.3,
        pauses=random.random() < 0.2,
        upr=UprSettings(
            backfills=random.choice((1, 2, 64)),
            backfills_per_connection=random.choice((1, 8)),
            reading_max_s=random.choice((0.1, 0.5, 30.0)),
            reading_items=random.choice((2, 20, 10_000)),
            noop_interval_s=1.0,
        ),
        max_failover_entries=random.choice((3, 25)),
    )


class UprRun:
    """See the module docstring."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.world = World(seed)
        self.plan = plan = plan or random_plan(self.world)
        self.store_judge = StoreJudge()
        self.disk = Disk(self.world, self.store_judge, sync=plan.sync)
        self.node = Node(self.world, self.disk, self._settings(plan), Pace())
        self.truth = Truth(plan.max_failover_entries)
        self.node.journal.on_up.append(self._came_up)
        self.world.watchers.append(self._look)
        self.consumers: list[Consumer] = []
        self.writers: list[Writer] = []
        self.manager: Manager | None = None
        self.pauser: Pauser | None = None
        self.notifier: Notifier | None = None
        self.crashes = self.cuts = 0
        self._faulty = False

    @staticmethod
    def _settings(plan: Plan) -> Settings:
        settings = small_settings(vbuckets=plan.vbuckets, quota=plan.quota, sync=plan.sync)
        engine = replace(
            settings.engine, max_failover_entries=plan.max_failover_entries, compaction_slice=2
        )
        return replace(settings, engine=engine, upr=plan.upr)

    @classmethod
    def random(cls, seed: int, plan: Plan | None = None) -> UprRun:
        """Run, heal, come to rest, have everything judged.

        Raises:
            Verdict: with the seed in its text, and how to run it again.
        """
        run = cls(seed, plan)
        try:
            run.go()
        except AssertionError as error:
            last = "\n".join(run.world.log[-30:])
            again = f"python -m tests.sim.upr_run {seed}"
            raise Verdict(f"seed {seed} ({again}): {error}\nthe last events:\n{last}") from error
        return run

    def go(self) -> None:
        """See `random`."""
        self.start()
        self._faulty = True
        self._plan(self.plan.faults)
        self.world.run(self.plan.steps)
        self.heal()
        self.rest()
        self.finish()

    # --- steps of a run -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the node, then everybody else."""
        self.node.start()
        self.world.run_until(lambda: self.node.serving)
        plan = self.plan
        common = (self.world, self.node, self.truth, plan.vbuckets)
        self.writers = [Writer(*common, 0.03) for _ in range(plan.writers)]
        if plan.managing:
            self.manager = Manager(*common, 0.3, plan.managing)
        if plan.pauses:
            self.pauser = Pauser(*common, 1.0)
        if plan.notifier:
            self.notifier = Notifier(*common)
        for number, kind in enumerate(plan.kinds):
            self.consumers.append(Consumer(*common, kind, number))

    def heal(self) -> None:
        """Let no new fault happen, mend what is broken, have every vBucket active."""
        self._faulty = False
        disk = self.disk
        disk.full = disk.broken = disk.unreadable = disk.map_full = False
        for consumer in self.consumers:
            consumer.calm = True
        self.world.run_until(lambda: self.node.serving and not self.node.stopping)
        if self.pauser is not None:
            self.pauser.working = False
            self.pauser.resume()
            self.world.run_until(lambda: not self.node.bucket.flusher.paused)
        if self.manager is not None:
            self.manager.mend()
            self.world.run_until(self._all_active)
        self.world.run(100)  # writers find everything in order for a while

    def _all_active(self) -> bool:
        return all(self.truth.now(each).state == codec.ACTIVE for each in range(self.plan.vbuckets))

    def rest(self) -> None:
        """Let everything end: writers first, then whoever follows them."""
        for commander in (*self.writers, self.manager):
            if commander is not None:
                commander.working = False
        self._until(lambda: all(writer.resting for writer in self.writers), "writers")
        self._until(lambda: self.node.quiet, "flusher")
        for consumer in self.consumers:
            self._until(consumer.settled, consumer.name)
        if self.notifier is not None:
            self._until(self.notifier.settled, "notifier")

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        try:
            self.world.run_until(happened, 10_000)
        except AssertionError as error:
            complain(f"{what} never comes to rest: {error}")

    def finish(self) -> None:
        """Judge what everybody holds, and that nothing is held for those who have left."""
        for consumer in self.consumers:
            consumer.judge_copies()
            consumer.leave()
        if self.notifier is not None:
            self.notifier.leave()
        self._until(lambda: self.node.quiet, "flusher")
        self.judge_freed()

    def judge_freed(self) -> None:
        """Closing frees everything: views, watchers, permits, names."""
        node = self.node
        hub = node.upr
        if hub.producers or hub.backfills.used or hub.backfills._waiting:
            complain(f"{hub.producers} {hub.backfills.used} {hub.backfills._waiting} stay")
        for vbucket in node.bucket.vbuckets.values():
            held = (vbucket.waiting, vbucket.watchers, vbucket.queue.open_views, vbucket.queue.held)
            if any(held):
                complain(f"vBucket {vbucket.id}: {held} stay")
        if self.disk.open_views:
            complain(f"{self.disk.open_views} views of the store stay open")

    # --- watching -------------------------------------------------------------------------------

    def _came_up(self, clean: bool) -> None:
        stored: Stored = self.disk.judge.found
        self.truth.came_up(stored, self.node.bucket.vbuckets.values())

    def _look(self) -> None:
        node = self.node
        serving = node.up and node.serving
        self.truth.look(node.bucket.vbuckets.values() if serving else (), serving=serving)

    # --- faults ---------------------------------------------------------------------------------

    def _plan(self, faults: Faults) -> None:
        disk = self.disk
        for mean_s, happen in (
            (faults.cut_s, self._cut),
            (faults.crash_s, lambda: self._crash(power=False)),
            (faults.power_s, lambda: self._crash(power=True)),
            (faults.stop_s, self._stop),
            (faults.full_s, lambda: self._for_a_while("full")),
            (faults.broken_s, lambda: self._for_a_while("broken")),
            (faults.map_full_s, lambda: setattr(disk, "map_full", True)),
            (faults.write_back_s, disk.write_back),
        ):
            if mean_s:
                self._again(mean_s, happen)

    def _again(self, mean_s: float, happen: Callable[[], None]) -> None:
        def act() -> None:
            if self._faulty:
                happen()
                self._again(mean_s, happen)

        self.world.after(self.world.random.expovariate(1 / mean_s), act)

    def _cut(self) -> None:
        if self.node.links:
            self.cuts += 1
            self.world.note("cut")
            self.world.random.choice(self.node.links).cut()

    def _crash(self, *, power: bool) -> None:
        if self.node.up:
            self.crashes += 1
            self.node.crash(power=power)
            self._start_later()

    def _stop(self) -> None:
        if self.node.serving and not self.node.stopping:
            self.node.stop()
            self._start_later()

    def _start_later(self) -> None:
        def start() -> None:
            if self.node.up:
                if self.node.stopping:
                    self._start_later()
                return
            disk = self.disk
            disk.full = disk.broken = disk.map_full = False  # it could not start
            self.node.start()

        self.world.after(self.world.random.choice((0.0, 0.1, 0.5)), start)

    def _for_a_while(self, fault: str) -> None:
        self.world.note(f"disk {fault}")
        setattr(self.disk, fault, True)
        self.world.after(self.world.between(0.05, 0.3), lambda: setattr(self.disk, fault, False))


def main() -> None:
    """Run the seeds named on the command line: one, or a range "from to"."""
    import sys
    import time

    from tests.sim.node import shrink

    shrink()
    first = int(sys.argv[1])
    last = int(sys.argv[2]) if len(sys.argv) > 2 else first + 1
    began, failed = time.perf_counter(), 0
    for seed in range(first, last):
        try:
            UprRun.random(seed)
        except Exception as error:  # a seed that broke is told, the others go on
            failed += 1
            text = str(error) if last == first + 1 else str(error).split("\nthe last events")[0]
            print(f"seed {seed}: {type(error).__name__} {text[:3000]}", flush=True)
            if last == first + 1:
                raise
    took = time.perf_counter() - began
    print(f"{last - first} seeds, {failed} failed, {took:.1f} s")


if __name__ == "__main__":
    main()
