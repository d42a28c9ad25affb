"""One run of the simulation of replicas: nodes, writers, an operator, consumers, faults.

What a run is made of is its `Plan`. At the end everything heals, and every node must be equal to
the active one, on disk, key by key with metadata and seqnos.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from tests.sim import replica_codec as rc
from tests.sim import upr_codec as codec
from tests.sim.faults import NodeFaults
from tests.sim.judged import Judged
from tests.sim.node import Pace, small_settings
from tests.sim.replica_client import Program
from tests.sim.replica_judges import judge_equal
from tests.sim.replica_node import Cluster, ReplicaNode, address
from tests.sim.replica_operator import Operator, Script
from tests.sim.replica_plan import TOPOLOGIES, Plan, random_plan
from tests.sim.replica_terms import Herald, TermJudge
from tests.sim.replica_truth import Histories
from tests.sim.replica_wire import Cutter
from tests.sim.upr_consumer import Consumer
from tests.sim.upr_writer import Writer
from tests.sim.world import STEPS_MAX, World
from uprmc.config import Settings
from uprmc.remote.registering import Instance

_NAMES = ("a", "b", "c")

#: How long a node may be down.
ABSENCES_S = (0.0, 0.1, 0.5, 1.5)

#: A hand-over whose answer is lost is waited for a second for each vBucket, and each client thinks
#: a thousand times meanwhile.
_ORDERS_STEPS_MAX = 3 * STEPS_MAX


class ReplicaRun(Judged[Plan]):
    """See the module docstring."""

    simulation = "replicas"

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.world = World(seed)
        self.plan = plan = plan or self.draw(self.world)
        self.cluster = Cluster(self.world, varied=plan.varied_wires)
        self.cluster.faulty = plan.silences
        self.histories = Histories(plan.max_failover_entries)
        self.terms = TermJudge()
        names = _NAMES[: 1 + max(place for pair in TOPOLOGIES[plan.topology] for place in pair)]
        self.nodes = [self._make_node(name, self._settings(plan)) for name in names]
        self.faults = [NodeFaults(self.world, node, ABSENCES_S) for node in self.nodes]
        for node in self.nodes:
            self._watch(node)
        self.world.watchers.append(self._look)
        self.consumers: list[Consumer] = []
        self.writers: list[Writer] = []
        self.programs: list[Program] = []
        self.operator: Operator

    @staticmethod
    def draw(world: World) -> Plan:
        """Draw a plan."""
        return random_plan(world)

    def _make_node(self, name: str, settings: Settings) -> ReplicaNode:
        return ReplicaNode(self.cluster, name, settings, Pace(), sync=self.plan.sync)

    @staticmethod
    def _settings(plan: Plan) -> Settings:
        settings = small_settings(vbuckets=plan.vbuckets, quota=plan.quota, sync=plan.sync)
        engine = replace(settings.engine, max_failover_entries=plan.max_failover_entries)
        purge = replace(settings.purge, batch_items=2)
        return replace(settings, engine=engine, purge=purge, upr=plan.upr)

    def _watch(self, node: ReplicaNode) -> None:
        truth = self.histories.node(node.name)
        node.journal.on_up.append(
            lambda _: truth.came_up(node.disk.judge.found, node.bucket.vbuckets.values())
        )
        node.journal.on_up.append(
            lambda _: self.terms.came_up(
                node.name, node.disk.judge.found.vbuckets, node.bucket.vbuckets.values()
            )
        )

    def _look(self) -> None:
        self.histories.step += 1
        for node in self.nodes:
            serving = node.up and node.serving
            vbuckets = node.bucket.vbuckets.values() if serving else ()
            self.histories.node(node.name).look(vbuckets, serving=serving)
            self.terms.look(node.name, vbuckets)

    def go(self) -> None:
        """See `random`."""
        self.start()
        for faults in self.faults:
            faults.begin(self.plan.faults)
        self._operate()
        self.world.run(self.plan.steps)
        self.heal()
        self.rest()
        self.finish()

    # --- steps of a run ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the nodes, the operator's order, then everybody else."""
        for node in self.nodes:
            node.start()
        self._until(lambda: all(node.serving for node in self.nodes), "nodes")
        plan = self.plan
        self.operator = operator = Operator(self.cluster, self.histories, plan.vbuckets)
        numbers = range(plan.vbuckets)
        operator.do(operator.make(self.nodes[0].name, numbers))
        for follower, source in TOPOLOGIES[plan.topology]:
            names = self.nodes[follower].name, self.nodes[source].name
            operator.do(operator.follow(*names, numbers))
        self.orders_done()
        for node in self.nodes:
            truth = self.histories.node(node.name)
            self.writers.append(
                Writer(self.world, node, truth, plan.vbuckets, plan.writer_s, plan.keys)
            )
        for place, kind in enumerate(plan.kinds):
            node = self.nodes[-1 - place % len(self.nodes)]
            truth = self.histories.node(node.name)
            self.consumers.append(
                Consumer(self.world, node, truth, plan.vbuckets, kind, place)  # type: ignore[arg-type]
            )

        for kind in plan.programs:
            self.program(kind, plan.ring_items, plan.death)

    def program(self, kind: str, ring_items: int = 10_000, death: float = 0.0) -> Program:
        """Add a program that uses the client library."""
        made = Program(
            self.cluster,
            self.histories,
            kind,
            number=len(self.programs),
            ring_items=ring_items,
            death=death,
            instance=self.instance(),
        )
        self.programs.append(made)
        return made

    def instance(self) -> Instance | None:
        """Return as what the next program is registered; ``None`` = it is not."""
        return None

    def orders_done(self) -> None:
        """Wait until the operator has nothing to do."""
        self._until(lambda: not self.operator.busy, "operator", steps_max=_ORDERS_STEPS_MAX)

    def _operate(self) -> None:
        self.operator.working = True
        self._act_later()

    def _act_later(self) -> None:
        self.world.after(self.world.between(0, 2 * self.plan.operator_s), self._act)

    def _act(self) -> None:
        operator, plan = self.operator, self.plan
        if not operator.working:
            return
        if not operator.busy and plan.operating:
            kinds, weights = list(plan.operating), list(plan.operating.values())
            kind = self.world.random.choices(kinds, weights)[0]
            self.world.note(f"operator: {kind}")
            operator.do(getattr(self, f"_{kind}")())
        self._act_later()

    # --- what the operator thinks of --------------------------------------------------------------

    def _pick(self) -> tuple[int, str, list[str]]:
        """Return a vBucket, who is to be active, and the others."""
        number = self.world.random.randrange(self.plan.vbuckets)
        active = self.operator.wanted[number]
        return number, active, [node.name for node in self.nodes if node.name != active]

    def _numbers(self, active: str, number: int) -> list[int]:
        """Return that vBucket, or all that are active at the same node."""
        if self.world.chance(0.5):
            return [number]
        return [each for each, name in self.operator.wanted.items() if name == active]

    def _takeover(self) -> Script:
        number, active, others = self._pick()
        target = self.world.random.choice(others)
        if self.plan.cut_handovers and self.world.chance(0.7):
            messages = self.world.random.randint(0, 60)
            self.cluster.cutters[target, active] = Cutter(messages)
        numbers = self._numbers(active, number)
        yield from self.operator.take_over(active, target, numbers)
        self.cluster.cutters.pop((target, active), None)
        yield from self._tidy(numbers)

    def _failover(self) -> Script:
        number, active, others = self._pick()
        numbers = self._numbers(active, number)
        yield from self.operator.fail_over(self.world.random.choice(others), numbers)
        yield from self.operator.pause(self.world.random.choice((0.0, 0.3, 1.0)))
        yield from self._tidy(numbers)

    def _twice(self) -> Script:
        """Two failovers in a row, the second before anybody has followed the first."""
        number, _, others = self._pick()
        yield from self.operator.fail_over(others[0], [number])
        yield from self.operator.fail_over(others[-1], [number])
        yield from self._tidy([number])

    def _tidy(self, numbers: list[int]) -> Script:
        """The old active and whoever it leaves alone follow the new one; some later."""
        for name in [node.name for node in self.nodes]:
            for number in numbers:
                wanted = self.operator.wanted[number]
                if name != wanted and self.world.chance(0.8):
                    source = self.operator.source_of(number, name)
                    yield from self.operator.follow(name, source, [number], tries=5)

    def _rewire(self) -> Script:
        number, _, others = self._pick()
        name = self.world.random.choice(others)
        sources = [node.name for node in self.nodes if node.name != name]
        source = self.world.random.choice(sources)
        if self.world.chance(0.2):
            yield from self.operator.stop(name, [number])
        yield from self.operator.follow(name, source, [number], tries=5)

    def _part(self) -> Script:
        one, other = self.world.random.sample([node.name for node in self.nodes], 2)
        self.cluster.part(one, other)
        pair = frozenset((one, other))
        self.world.after(self.world.between(0.2, 3.0), lambda: self.cluster.parted.discard(pair))
        yield

    def _herald(self) -> Script:
        """A client that has seen the latest promotion comes to a node that has not, if there is."""
        number = self.world.random.randrange(self.plan.vbuckets)
        here = [(n, n.bucket.vbuckets[number]) for n in self.nodes if n.up and n.serving]
        if here:
            latest = max((vbucket for _, vbucket in here), key=lambda vbucket: vbucket.term)
            told = [each for each in here if each[1].term < latest.term]
            active = [each for each in told if int(each[1].state) == codec.ACTIVE]
            for node, vbucket in (active or told)[:1]:
                seen = {entry.uuid for entry in latest.failover_log}
                shared = [entry.uuid for entry in vbucket.failover_log if entry.uuid in seen]
                if shared:
                    settle = partial(self._told, node.name, number, latest.term)
                    Herald(node, number, latest.term, shared[0]).ask(settle)
        yield

    def _told(self, name: str, number: int, term: int, status: int) -> None:
        if status == codec.NOT_MY_VBUCKET:
            self.terms.told(name, number, term)

    def _compact(self) -> Script:
        number, active, others = self._pick()
        name = self.world.random.choice([active, *others])
        yield from self.operator.compact(name, number)

    # --- the end ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Let no new fault happen, mend what is broken, have one active and the others follow."""
        self.operator.working = False
        for faults in self.faults:
            faults.heal()
        self.cluster.join()
        self.cluster.cutters.clear()
        for writer in self.writers:
            writer.slow_down(0.2)
        for follower in (*self.consumers, *self.programs):
            follower.calm = True
        self._until(lambda: all(n.serving and not n.stopping for n in self.nodes), "nodes")
        self.orders_done()
        if self.plan.orderly:
            self.operator.do(self.operator.order())
            self.orders_done()
        self.world.run(200)

    def rest(self) -> None:
        """Let everything end: writers first, then whoever follows them."""
        for writer in self.writers:
            writer.working = False
        self._until(lambda: all(writer.resting for writer in self.writers), "writers")
        self._until(lambda: self._reinstated() and self.level(), "replicas", self._standing)
        self._until(lambda: all(node.quiet for node in self.nodes), "flushers")
        for consumer in self.consumers:
            self._until(consumer.settled, consumer.name)
        for program in self.programs:
            self._until(
                lambda each=program: self._reinstated() and each.settled(),
                f"a program ({program.kind})",
                program.standing,
            )
        # Documents expire at any time.
        self._until(self._at_rest, "replicas, programs and flushers")

    def _reinstated(self) -> bool:
        """Promote again who died of the term of one that the operator has promoted in between.

        That one was promoted and demoted while they did not hear of each other. A program may have
        followed it, and its promotion may be lost: then the program follows nobody until somebody
        has a higher term. Who does not follow an active that has lost its data is told to.
        """
        for (number, name), source in list(self.operator.sources.items()):
            if self.cluster.nodes[address(name)].awaits_a_word(number) and not self.operator.busy:
                self.operator.do(self.operator.follow(name, source, [number]))
        for number, wanted in self.operator.wanted.items():
            now = self.histories.node(wanted).now(number)
            if self.operator.busy:
                break
            if now.state == codec.DEAD:
                self.operator.do(self.operator.fail_over(wanted, [number]))
            elif any(program.waits_for_a_promotion(number) for program in self.programs):
                self.operator.do(self.operator.promote_again(wanted, number))
        return not self.operator.busy

    def _at_rest(self) -> bool:
        return (
            self._reinstated()
            and self.level()
            and all(node.quiet for node in self.nodes)
            and all(program.settled() for program in self.programs)
        )

    def level(self) -> bool:
        """Tell whether every node has come as far as the active one, with its history.

        Who is to be active may turn out to be deposed, by one that was promoted out of its sight
        and now follows it: then the operator promotes it once more.
        """
        for number, wanted in self.operator.wanted.items():
            active = self.histories.node(wanted).now(number)
            if active.state == codec.DEAD and not self.operator.busy:
                self.operator.do(self.operator.fail_over(wanted, [number]))
            for node in self.nodes:
                now = self.histories.node(node.name).now(number)
                if now.log != active.log or now.high != active.high or now.partial:
                    return False
                if (node.name == wanted) != (now.state == codec.ACTIVE):
                    return False
        return True

    def _standing(self) -> str:
        return "; ".join(
            f"vBucket {number} at {node.name}: {self.histories.node(node.name).now(number)}"
            for number in self.operator.wanted
            for node in self.nodes
        )

    def finish(self) -> None:
        """Judge what everybody holds, and that nothing is held for those who have left."""
        for number, wanted in self.operator.wanted.items():
            active = self.cluster.nodes[address(wanted)]
            for node in self.nodes:
                self.histories.node(node.name).judge(number)
                if node is not active:
                    judge_equal(active, node, number)
        for consumer in self.consumers:
            consumer.judge_copies()
            consumer.leave()
        for program in self.programs:
            program.judge()
            program.leave()
        self.judge_freed()

    def judge_freed(self) -> None:
        """When nobody is connected any more, nobody holds anything."""
        for node in self.nodes:
            node.replication.close()
            for link in list(node.links):
                link.cut()
        self._until(lambda: all(node.quiet for node in self.nodes), "flushers")
        for node in self.nodes:
            node.judge_freed()

    def account(self) -> dict[str, int]:
        """Return what everybody went through, so that a test can see that something happened."""
        total = Counter[str](self.operator.done)
        total["rollbacks"] += self.histories.rollbacks
        total["promotions"] += self.terms.promotions
        total["deposed"] += self.terms.deposed
        total["handed over"] += len(self.histories.hand_overs)
        total["interrupted"] += self.operator.verdicts.get(rc.INTERRUPTED, 0)
        total["refused"] += self.operator.verdicts.get(rc.REFUSED, 0)
        for faults in self.faults:
            total["crashes"] += faults.crashes
            total["cuts"] += faults.cuts
        for program in self.programs:
            total["program deaths"] += program.deaths
            total["program changes"] += program.changes
            total["program keys undone"] += program.undone
            total["program rollbacks"] += program.back
        for consumer in self.consumers:
            total.update({f"consumer {k}": v for k, v in consumer.account.counts().items()})
        return total
