"""One run of the simulation of watermarks: replicas, registered clients, purges all the time.

At the end all registered clients hold what the active nodes hold, so none has missed a deletion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from tests.sim import upr_codec as codec
from tests.sim.node import Pace
from tests.sim.replica_node import ReplicaNode
from tests.sim.replica_run import ReplicaRun
from tests.sim.watermark_client import Registered
from tests.sim.watermark_judges import WatermarkJudge
from tests.sim.watermark_plan import WatermarkPlan, watermark_plan
from tests.sim.world import World
from uprmc.config import Settings
from uprmc.remote.registering import Instance


class WatermarkRun(ReplicaRun):
    """See the module docstring.

    Attributes:
        clients: the registered ones; they are among the consumers, too.
        judge: of watermarks.
    """

    simulation = "watermarks"

    plan: WatermarkPlan

    def __init__(self, seed: int, plan: WatermarkPlan | None = None) -> None:
        self.clients: list[Registered] = []
        super().__init__(seed, plan)

    @staticmethod
    def draw(world: World) -> WatermarkPlan:
        """Draw a plan."""
        return watermark_plan(world)

    def _settings(self, plan: WatermarkPlan) -> Settings:  # type: ignore[override]
        settings = super()._settings(plan)
        upr = replace(settings.upr, watermarks_interval_s=plan.report_s)
        return replace(settings, purge=plan.purge(), upr=upr)

    def _make_node(self, name: str, settings: Settings) -> ReplicaNode:
        node = ReplicaNode(self.cluster, name, settings, Pace(), sync=self.plan.sync)
        node.instance = b"node-%s" % name.encode() if self.plan.replica_lifetime_s else b""
        return node

    def _watch(self, node: ReplicaNode) -> None:
        super()._watch(node)
        node.journal.on_up.append(lambda _: self._listen(node))
        node.journal.on_down.append(lambda *_: self.judge.went_down(node))

    def _listen(self, node: ReplicaNode) -> None:
        """Let the judge see what a replica is told."""
        learn = node.bucket.limits.learn_table

        def learn_table(vbucket: Any, purge: int, rows: Iterable[Any], **more: Any) -> None:
            rows = list(rows)
            self.judge.told(node, vbucket, rows)
            learn(vbucket, purge, rows, **more)

        node.bucket.limits.learn_table = learn_table  # type: ignore[method-assign]

    def _look(self) -> None:
        super()._look()
        for node in self.nodes:
            if node.up and node.serving:
                truth = self.histories.node(node.name)
                self.judge.look(node, truth, node.bucket.vbuckets.values())

    def start(self) -> None:
        """See `ReplicaRun.start`; then come the registered clients."""
        self.judge = WatermarkJudge(self.world)
        super().start()
        for kind in self.plan.clients:
            for number in range(self.plan.vbuckets):
                self.client(kind, number)
        for node in self.nodes:
            self._purge_later(node)

    def client(self, kind: str, number: int) -> Registered:
        """Add a registered client of one vBucket."""
        made = Registered(
            self.cluster,
            self.histories,
            self.operator,
            self.judge,
            kind,
            number,
            self.plan.lifetime_s,
            self.plan.loses,
        )
        self.clients.append(made)
        self.consumers.append(made)
        return made

    def instance(self) -> Instance:
        """Programs that use the client library are registered, too."""
        return Instance(b"program%d" % len(self.programs), codec.SPARK)

    def _purge_later(self, node: ReplicaNode) -> None:
        self.world.after(self.world.between(0, 2 * self.plan.purge_s), lambda: self._purge(node))

    def _purge(self, node: ReplicaNode) -> None:
        if node.up and node.serving and not node.stopping:
            self.judge.purging(node)
            node.bucket.purger.begin()
        self._purge_later(node)

    def account(self) -> dict[str, int]:
        """See `ReplicaRun.account`."""
        total = Counter(super().account())
        total.update({f"rows {name}": count for name, count in self.judge.counts.items()})
        for client in self.clients:
            total.update({f"clients {name}": n for name, n in asdict(client.fate).items()})
        total["purged"] += sum(self.histories.purged.values())
        return total
