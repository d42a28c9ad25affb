"""One run of the simulation of streams: a node, writers, a manager, consumers of all kinds, faults.

What a run is made of is its `Plan`. At the end everything heals, and all must come to rest equal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tests.sim import upr_codec as codec
from tests.sim.disk import Disk
from tests.sim.faults import FaultyRun
from tests.sim.judged import Judged
from tests.sim.judges import Stored, StoreJudge
from tests.sim.node import Node, Pace, small_settings
from tests.sim.upr_consumer import Consumer
from tests.sim.upr_lessee import Lessee
from tests.sim.upr_notifier import Notifier
from tests.sim.upr_plan import Plan, random_plan
from tests.sim.upr_taker import Taker
from tests.sim.upr_truth import Truth
from tests.sim.upr_writer import Manager, Pauser, Writer
from tests.sim.world import World
from uprmc.config import Settings


class UprRun(FaultyRun, Judged[Plan]):
    """See the module docstring."""

    simulation = "streams"

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        super().__init__(absences_s=(0.0, 0.1, 0.5))
        self.world = World(seed)
        self.plan = plan = plan or random_plan(self.world)
        self.store_judge = StoreJudge()
        self.disk = Disk(self.world, self.store_judge, sync=plan.sync)
        self.disk.weak_views = True
        self.node = Node(self.world, self.disk, self._settings(plan), Pace())
        self.truth = Truth(plan.max_failover_entries)
        self.node.journal.on_up.append(self._came_up)
        self.world.watchers.append(self._look)
        self.consumers: list[Consumer] = []
        self.writers: list[Writer] = []
        self.manager: Manager | None = None
        self.pauser: Pauser | None = None
        self.notifier: Notifier | None = None
        self.lessee: Lessee | None = None
        self.taker: Taker | None = None

    @staticmethod
    def _settings(plan: Plan) -> Settings:
        settings = small_settings(vbuckets=plan.vbuckets, quota=plan.quota, sync=plan.sync)
        engine = replace(settings.engine, max_failover_entries=plan.max_failover_entries)
        purge = replace(settings.purge, batch_items=2)
        return replace(settings, engine=engine, purge=purge, upr=plan.upr)

    def go(self) -> None:
        """See `random`."""
        self.start()
        self._begin_faults(self.plan.faults)
        self.world.run(self.plan.steps)
        self.heal()
        self.rest()
        self.finish()

    # --- steps of a run ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the node, then everybody else."""
        self.node.start()
        self.world.run_until(lambda: self.node.serving)
        plan = self.plan
        common = (self.world, self.node, self.truth, plan.vbuckets)
        self.writers = [Writer(*common, 0.03, plan.keys) for _ in range(plan.writers)]
        self.manager = Manager(*common, 0.3, plan.managing)
        if plan.pauses:
            self.pauser = Pauser(*common, 1.0)
        if plan.notifier:
            self.notifier = Notifier(*common)
        if plan.leases:
            self.lessee = Lessee(*common)
        if plan.takeovers:
            self.taker = Taker(*common)
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
        if self.taker is not None:
            self.taker.leave()
        assert self.manager is not None
        self.manager.mend()
        self.world.run_until(lambda: self._mended)
        self.world.run(100)  # writers find everything in order for a while

    @property
    def _mended(self) -> bool:
        """Whether every vBucket is active, and no older command can change that any more."""
        assert self.manager is not None
        numbers = range(self.plan.vbuckets)
        active = all(self.truth.now(number).state == codec.ACTIVE for number in numbers)
        return active and not self.manager.busy

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

    def finish(self) -> None:
        """Judge what everybody holds, and that nothing is held for those who have left."""
        for consumer in self.consumers:
            consumer.judge_copies()
            consumer.leave()
        if self.notifier is not None:
            self.notifier.leave()
        if self.lessee is not None:
            self.lessee.leave()
            self._until(lambda: not self.node.upr.leases.open, "leases")
        self._until(lambda: self.node.quiet, "flusher")
        self.node.judge_freed()

    def account(self) -> dict[str, int]:
        """Return what everybody went through, so that a test can see that something happened."""
        total = Counter[str]({"crashes": self.crashes, "cuts": self.cuts})
        for consumer in self.consumers:
            total.update(consumer.account.counts())
        if self.notifier is not None:
            total["notified"] += self.notifier.fired
        if self.taker is not None:
            total["takeovers"] += self.taker.taken
        if self.lessee is not None:
            total["leases read again"] += self.lessee.repeats
        if self.manager is not None:
            total.update(self.manager.done)
        return total

    # --- watching ---------------------------------------------------------------------------------

    def _came_up(self, clean: bool) -> None:
        stored: Stored = self.disk.judge.found
        self.truth.came_up(stored, self.node.bucket.vbuckets.values())

    def _look(self) -> None:
        node = self.node
        serving = node.up and node.serving
        self.truth.look(node.bucket.vbuckets.values() if serving else (), serving=serving)
