"""One run with a legacy master: it pushes into one node, and another node follows that one by UPR.

At the end everything heals, and both must hold what the master holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.contents import table_of
from tests.sim import replica_codec as rc
from tests.sim import upr_codec as codec
from tests.sim.codec import Reply
from tests.sim.faults import Faults, NodeFaults
from tests.sim.judged import Judged
from tests.sim.judges import complain
from tests.sim.node import Pace, small_settings
from tests.sim.replica_judges import judge_equal, stored
from tests.sim.replica_node import Cluster, address
from tests.sim.replica_operator import Desk
from tests.sim.replica_plan import FAULTS
from tests.sim.replica_run import ABSENCES_S
from tests.sim.tap_master import Manners, TapMaster
from tests.sim.tap_node import TapNode
from tests.sim.tap_plan import SETTINGS as TAP
from tests.sim.upr_truth import Truth
from tests.sim.world import STEPS_MAX, World

#: With a window of one item, hundreds of them take a round trip each.
_MASTERS_STEPS_MAX = 4 * STEPS_MAX


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What one run is made of."""

    faults: Faults
    manners: Manners = field(default_factory=Manners)
    vbuckets: int = 2
    keys: int = 10
    sync: bool = True
    steps: int = 2_000
    promoted: bool = False


def random_push_plan(world: World) -> PushPlan:
    """Draw a plan."""
    random = world.random
    drawn = {name: mean for name, mean in FAULTS.items() if random.random() < 0.3}
    drawn.pop("stop_s", None)
    sync = random.random() < 0.8
    if not sync:
        drawn.pop("power_s", None)  # it may take away what the nodes were told at the beginning
    return PushPlan(
        Faults(**drawn),
        Manners(
            acks=random.random() < 0.8,
            checkpoints=random.random() < 0.6,
            specific=random.choice((9, 9, 8, 0)),
            network_order=random.random() < 0.5,
            interval=random.choice((1, 4, 10)),
            window=random.choice((1, 3)),
            flushes=random.choice((0.0, 0.0, 0.02)),
            anew=random.choice((0.0, 0.2, 1.0)),
        ),
        vbuckets=random.choice((1, 2, 4)),
        keys=random.choice((3, 10, 40)),
        sync=sync,
        steps=random.choice((800, 2_000, 4_000)),
        promoted=random.random() < 0.3,
    )


class PushRun(Judged[PushPlan]):
    """See the module docstring."""

    simulation = "push"

    def __init__(self, seed: int, plan: PushPlan | None = None) -> None:
        self.plan = plan = plan or random_push_plan(World(seed ^ 0xA5A5))
        self.world = World(seed)
        self.cluster = Cluster(self.world, varied=True)
        settings = small_settings(vbuckets=plan.vbuckets, quota=400_000, sync=plan.sync)
        self.first, self.second = (
            TapNode(self.cluster, name, settings, Pace(), sync=plan.sync, tap=TAP)
            for name in ("a", "b")
        )
        self.nodes = (self.first, self.second)
        self.faults = [NodeFaults(self.world, node, ABSENCES_S) for node in self.nodes]
        self.desks = [Desk(self.world, node, Truth(25), plan.vbuckets, 0.5) for node in self.nodes]
        self.master: TapMaster
        self._seen: dict[int, tuple[object, ...]] = {}

    def go(self) -> None:
        """See `random`."""
        for node in self.nodes:
            node.start()
        self._until(lambda: all(node.serving for node in self.nodes), "nodes")
        self._order()
        self._until(lambda: all(node.quiet for node in self.nodes), "flushers")
        self.master = TapMaster(
            self.world, self.first, self.plan.vbuckets, self.plan.keys, self.plan.manners
        )
        self.world.watchers.append(self._look)
        for faults in self.faults:
            faults.begin(self.plan.faults)
        self.world.run(self.plan.steps)
        self._heal()
        self._rest()

    # --- steps of a run ---------------------------------------------------------------------------

    def _order(self) -> None:
        """The first node has replicas that nobody fills; the second follows the first."""
        for number in range(self.plan.vbuckets):
            self._command(
                0,
                lambda settle, n=number: self.desks[0].ask(  # type: ignore[misc]
                    codec.SET_VBUCKET, settle, vbucket=n, extras=tap_state(codec.REPLICA)
                ),
            )
        self._command(
            1,
            lambda settle: self.desks[1].ask(
                rc.REPLICATE,
                settle,
                key=address("a").encode(),
                extras=rc.DEMOTE.to_bytes(4, "big"),
                value=rc.numbers(range(self.plan.vbuckets)),
                vbucket=0,
            ),
        )

    def _command(self, place: int, ask: Callable[[Callable[[Reply], None]], bool]) -> None:
        """Repeat a command until it is granted."""
        for _ in range(100):
            replies: list[Reply] = []
            if ask(replies.append):
                self._until(lambda: bool(replies), "an order")  # noqa: B023  # it is over then
                if replies[0].status == codec.OK:
                    return
            self.world.run_for(0.05)
        complain(f"{self.nodes[place].name} never does what it is told")

    def _look(self) -> None:
        """Look at the second node, which may show only what the master calls whole."""
        if not self.second.serving:
            return
        for number, vbucket in self.second.bucket.vbuckets.items():
            seen = (vbucket.high_seqno, vbucket.receiving, vbucket.failover_log)
            if self._seen.get(number) == seen:
                continue
            self._seen[number] = seen
            if vbucket.receiving is None and not vbucket.rewinding:
                live = [each for each in table_of(vbucket).values() if not each.life]
                state = frozenset((each.key, each.flags) for each in live)
                self.master.shown(self.second.name, number, state)

    def _heal(self) -> None:
        for faults in self.faults:
            faults.heal()
        self.cluster.join()
        self._until(lambda: all(n.serving and not n.stopping for n in self.nodes), "nodes")
        self.world.run(100)
        self.master.working = False

    def _rest(self) -> None:
        self._until_master_settled()
        self.master.close_checkpoints()
        self._until_master_settled()
        if self.plan.promoted:
            for number in range(self.plan.vbuckets):
                self.master.promote(number)
            self._until_master_settled()
        self._until(self._level, "nodes", self._standing)
        state = codec.ACTIVE if self.plan.promoted else codec.REPLICA
        for number in range(self.plan.vbuckets):
            header, records = stored(self.first, number)
            if int(header.state) != state:  # type: ignore[attr-defined]
                complain(f"vBucket {number} is {header}")
            self.master.judge(number, records)  # type: ignore[arg-type]
            judge_equal(self.first, self.second, number)
        for node in self.nodes:
            node.replication.close()
            for link in list(node.links):
                link.cut()
            node.judge_freed()

    def _until_master_settled(self) -> None:
        self._until(self.master.settled, "master", self.master.standing, _MASTERS_STEPS_MAX)

    def _level(self) -> bool:
        if not all(node.quiet for node in self.nodes):
            return False
        for number in range(self.plan.vbuckets):
            one, other = (node.bucket.vbuckets.get(number) for node in self.nodes)
            if one is None or other is None:
                return False
            same = one.high_seqno == other.high_seqno and one.failover_log == other.failover_log
            if not same or one.receiving is not None or other.receiving is not None:
                return False
        return True

    def _standing(self) -> str:
        return "; ".join(
            f"{node.name} {n}: {vb.high_seqno} {vb.failover_log} {vb.receiving} {node.quiet}"
            for node in self.nodes
            for n, vb in node.bucket.vbuckets.items()
        )

    def account(self) -> dict[str, int]:
        """Return what happened, so that a test can see that something did."""
        total = Counter({f"push {what}": count for what, count in self.master.counts.items()})
        for faults in self.faults:
            total["push crashes"] += faults.crashes
        return total


def tap_state(state: int) -> bytes:
    """Return the extras of SET_VBUCKET."""
    return state.to_bytes(4, "big")
