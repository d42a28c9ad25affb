"""One run of the simulation of TAP: a cluster with its faults, and TAP clients at its nodes.

At the end everything heals, and what each client holds must be what its node holds.
"""

from __future__ import annotations

from collections import Counter

from tests.sim.node import Pace
from tests.sim.replica_node import ReplicaNode
from tests.sim.replica_operator import Script
from tests.sim.replica_run import ReplicaRun
from tests.sim.tap_consumer import TapConsumer
from tests.sim.tap_judges import Limits, VersionBook
from tests.sim.tap_node import TapNode
from tests.sim.tap_plan import TapPlan, random_tap_plan
from tests.sim.tap_taker import TapTaker
from tests.sim.world import World
from uprmc.config import Settings

#: A hand-over whose answer was lost may still come to its end after the operator has given it up.
_LATE_S = 1.0


class TapRun(ReplicaRun):
    """See the module docstring."""

    simulation = "tap"
    plan: TapPlan

    def __init__(self, seed: int, plan: TapPlan | None = None) -> None:
        super().__init__(seed, plan or random_tap_plan(World(seed ^ 0x5A5A)))
        self.book = VersionBook(self.histories)
        self.limits = Limits(self.plan.tap.ack_interval, self.plan.tap.ack_window)
        self.clients: list[TapConsumer] = []
        self.taken: Counter[str] = Counter()

    def _make_node(self, name: str, settings: Settings) -> ReplicaNode:
        return TapNode(self.cluster, name, settings, Pace(), sync=self.plan.sync, tap=self.plan.tap)

    def start(self) -> None:
        """See `ReplicaRun.start`; TAP clients come last."""
        super().start()
        for place, kind in enumerate(self.plan.clients):
            node = self.nodes[place % len(self.nodes)]
            assert isinstance(node, TapNode)
            self.clients.append(
                TapConsumer(
                    self.world,
                    node,
                    self.histories.node(node.name),
                    self.book,
                    self.plan.vbuckets,
                    kind,
                    place,
                    self.limits,
                )
            )

    # --- what the operator thinks of --------------------------------------------------------------

    def _tap_takeover(self) -> Script:
        """Hand a vBucket out of the cluster, then make it active again where it was."""
        number, active, _ = self._pick()
        node = self.operator.node(active)
        taker = TapTaker(
            self.world, node, self.histories.node(active), self.book, number, self.limits
        )
        life = node.life
        while not taker.over:
            yield
        self.taken[taker.outcome] += 1
        if node.life == life:
            taker.judge()
        yield from self.operator.fail_over(active, [number])
        yield from self._tidy([number])

    def _tap_flush(self) -> Script:
        """Have a node with something active forget everything."""
        _, active, _ = self._pick()
        yield from self.operator.flush(active)

    # --- the end ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """See `ReplicaRun.heal`."""
        for client in self.clients:
            client.calm = True
        super().heal()
        self.world.run_for(_LATE_S)
        self.operator.do(self.operator.order())
        self.orders_done()

    def rest(self) -> None:
        """See `ReplicaRun.rest`; clients must come as far, first as they are, then once more."""
        super().rest()
        for client in self.clients:
            self._until(client.followed, client.name, client.standing)
        for client in self.clients:
            client.come_again()
        for client in self.clients:
            self._until(client.settled, client.name, client.standing)
        self._until(self._all_at_rest, "clients")

    def _all_at_rest(self) -> bool:
        return self._at_rest() and all(client.settled() for client in self.clients)

    def finish(self) -> None:
        """See `ReplicaRun.finish`."""
        for client in self.clients:
            client.judge()
            client.leave()
        super().finish()

    def account(self) -> dict[str, int]:
        """See `ReplicaRun.account`."""
        total = Counter(super().account())
        for client in self.clients:
            total.update({f"tap {what}": count for what, count in client.counts.items()})
        total.update({f"tap takeover {what}": count for what, count in self.taken.items()})
        return total
