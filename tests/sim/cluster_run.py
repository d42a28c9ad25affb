"""Several nodes that replicate: writers, an operator, consumers, programs, and other guests.

At the end everything heals, and every node must be equal to the active one, on disk, key by key
with metadata and seqnos. By the plan there may be more: registered clients and purges all the time
(none may miss a deletion), an index, sinks, TAP clients.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.sim import codec
from tests.sim.consumer import Consumer
from tests.sim.index_program import KIND as INDEX_KIND
from tests.sim.index_program import IndexProgram
from tests.sim.net import Cutter, Net, address
from tests.sim.node import Node
from tests.sim.operators import Operator, Script
from tests.sim.plan import (
    TOPOLOGIES,
    Plan,
    draw_index,
    draw_replicas,
    draw_sinks,
    draw_tap,
    draw_watermarks,
)
from tests.sim.program import Program
from tests.sim.registered import Registered
from tests.sim.replica_judges import Herald, TermJudge, judge_equal
from tests.sim.run import Run, Simulation
from tests.sim.sinks import SinkProgram
from tests.sim.tap_client import TapConsumer, TapTaker
from tests.sim.tap_judges import Limits, VersionBook
from tests.sim.truth import Histories
from tests.sim.watermark_judges import WatermarkJudge
from tests.sim.world import STEPS_MAX, World
from tests.sim.writer import Writer
from uprmc.remote.registering import Instance

_NAMES = ("a", "b", "c")

#: How long a node may be down.
ABSENCES_S = (0.0, 0.1, 0.5, 1.5)

#: A hand-over whose answer is lost is waited for a second for each vBucket, and each client thinks
#: a thousand times meanwhile.
_ORDERS_STEPS_MAX = 3 * STEPS_MAX

#: A hand-over whose answer was lost may still come to its end after the operator has given it up.
_LATE_S = 1.0


class ClusterRun(Run):
    """See the module docstring."""

    plan: Plan
    operator: Operator

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan, ABSENCES_S)
        self.net = Net(world, varied=plan.varied_wires)
        self.net.faulty = plan.silences
        self.histories = Histories(plan.max_failover_entries)
        self.terms = TermJudge()
        self.watermarks = WatermarkJudge(world) if plan.purge_s else None
        self.book = VersionBook(self.histories)
        names = _NAMES[: 1 + max(place for pair in TOPOLOGIES[plan.topology] for place in pair)]
        self._add_nodes(*(self._make_node(name) for name in names))
        for node in self.nodes:
            self._watch(node)
        world.watchers.append(self._look)
        self.consumers: list[Consumer] = []
        self.writers: list[Writer] = []
        self.programs: list[Program] = []
        self.clients: list[Registered] = []  # they are among the consumers, too
        self.tap_clients: list[TapConsumer] = []
        self.taken: Counter[str] = Counter()
        self.index: IndexProgram | None = None
        self._directory: Path

    def _make_node(self, name: str) -> Node:
        plan = self.plan
        registers = plan.purge_s and plan.replica_lifetime_s
        return Node(
            self.net,
            name,
            plan.settings(),
            sync=plan.sync,
            speaks_tap=plan.tap is not None,
            instance=b"node-%s" % name.encode() if registers else b"",
        )

    def _watch(self, node: Node) -> None:
        truth = self.histories.node(node.name)

        def came_up(_: bool) -> None:
            found, vbuckets = node.store_judge.found, node.bucket.vbuckets.values()
            truth.came_up(found, vbuckets)
            self.terms.came_up(node.name, found.vbuckets, vbuckets)
            if self.watermarks is not None:
                self._listen(node, self.watermarks)

        node.on_up.append(came_up)
        if self.watermarks is not None:
            node.on_down.append(partial(self._went_down, self.watermarks, node))

    @staticmethod
    def _went_down(judge: WatermarkJudge, node: Node, *_: object) -> None:
        judge.went_down(node)

    @staticmethod
    def _listen(node: Node, judge: WatermarkJudge) -> None:
        """Let the judge see what a replica is told."""
        learn = node.bucket.limits.learn_table

        def learn_table(vbucket: Any, purge: int, rows: Iterable[Any], **more: Any) -> None:
            rows = list(rows)
            judge.told(node, vbucket, rows)
            learn(vbucket, purge, rows, **more)

        node.bucket.limits.learn_table = learn_table  # type: ignore[method-assign]

    def _look(self) -> None:
        self.histories.step += 1
        for node in self.nodes:
            serving = node.up and node.serving
            vbuckets = node.bucket.vbuckets.values() if serving else ()
            self.histories.node(node.name).look(vbuckets, serving=serving)
            self.terms.look(node.name, vbuckets)
        if self.watermarks is not None:
            for node in self.nodes:
                if node.up and node.serving:
                    truth = self.histories.node(node.name)
                    self.watermarks.look(node, truth, node.bucket.vbuckets.values())

    def go(self) -> None:
        with ExitStack() as stack:
            if self.plan.index or self.plan.sinks:
                self._directory = Path(tempfile.mkdtemp(prefix="uprmc-sim-"))
                stack.callback(shutil.rmtree, self._directory)
                stack.callback(lambda: [program.leave() for program in self.programs])
            super().go()

    # --- steps of a run ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the nodes, the operator's order, then everybody else."""
        self._start_nodes()
        plan = self.plan
        self.operator = operator = Operator(self.net, self.histories, plan.vbuckets)
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
        for name in plan.programs:
            self.program(name, plan.ring_items, plan.death)
        for name in plan.clients:
            for number in numbers:
                self._register(name, number)
        for node in self.nodes if plan.purge_s else ():
            self._purge_later(node)
        if plan.index:
            self._add_index()
        for name in plan.sinks:
            self._add_sink(name)
        for place, tap_kind in enumerate(plan.tap_clients):
            self._add_tap_client(place, tap_kind)

    def program(self, kind: str, ring_items: int = 10_000, death: float = 0.0) -> Program:
        """Add a program that uses the client library; where rows are judged it is registered."""
        number = len(self.programs)
        made = Program(
            self.net,
            self.histories,
            kind,
            number=number,
            ring_items=ring_items,
            death=death,
            instance=Instance(b"program%d" % number, codec.SPARK) if self.watermarks else None,
        )
        self.programs.append(made)
        return made

    def _register(self, kind: str, number: int) -> None:
        assert self.watermarks is not None
        made = Registered(
            self.histories,
            self.operator,
            self.watermarks,
            kind,
            number,
            self.plan.lifetime_s,
            self.plan.loses,
        )
        self.clients.append(made)
        self.consumers.append(made)

    def _add_index(self) -> None:
        plan = self.plan
        self.index = IndexProgram(
            self.net,
            self.histories,
            self._directory,
            plan.vbuckets,
            death=plan.index_death,
            instance=Instance(b"index:sim", INDEX_KIND) if plan.registered else None,
            compacts=plan.compacts,
            pauses=plan.pauses,
        )
        self.programs.append(self.index)

    def _add_sink(self, kind: str) -> None:
        place = self._directory / kind
        place.mkdir()
        self.programs.append(
            SinkProgram(
                self.net,
                self.histories,
                kind,
                number=len(self.programs),
                ring_items=self.plan.ring_items,
                death=self.plan.death,
                directory=place,
            )
        )

    @property
    def _limits(self) -> Limits:
        assert self.plan.tap is not None
        return Limits(self.plan.tap.ack_interval, self.plan.tap.ack_window)

    def _add_tap_client(self, place: int, kind: Any) -> None:
        node = self.nodes[place % len(self.nodes)]
        self.tap_clients.append(
            TapConsumer(
                self.world,
                node,
                self.histories.node(node.name),
                self.book,
                self.plan.vbuckets,
                kind,
                place,
                self._limits,
            )
        )

    def _purge_later(self, node: Node) -> None:
        self.world.after(self.world.between(0, 2 * self.plan.purge_s), lambda: self._purge(node))

    def _purge(self, node: Node) -> None:
        if node.up and node.serving and not node.stopping:
            assert self.watermarks is not None
            self.watermarks.purging(node)
            node.bucket.purger.begin()
        self._purge_later(node)

    def orders_done(self) -> None:
        """Wait until the operator has nothing to do."""
        self._until(lambda: not self.operator.busy, "operator", steps_max=_ORDERS_STEPS_MAX)

    def act(self) -> None:
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
            self.net.cutters[target, active] = Cutter(messages)
        numbers = self._numbers(active, number)
        yield from self.operator.take_over(active, target, numbers)
        self.net.cutters.pop((target, active), None)
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
        self.net.part_for((0.2, 3.0), [node.name for node in self.nodes])
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

    def _tap_takeover(self) -> Script:
        """Hand a vBucket out of the cluster, then make it active again where it was."""
        number, active, _ = self._pick()
        node, truth = self.operator.node(active), self.histories.node(active)
        taker = TapTaker(self.world, node, truth, self.book, number, self._limits)
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
        """Let no new fault happen, mend what is broken, have one active and the others follow."""
        self.operator.working = False
        self._heal_nodes()
        for writer in self.writers:
            writer.slow_down(0.2)
        for follower in (*self.consumers, *self.programs, *self.tap_clients):
            follower.calm = True
        self._until_nodes_serve()
        self.orders_done()
        if self.plan.orderly:
            self.operator.do(self.operator.order())
            self.orders_done()
        self.world.run(200)
        if self.plan.tap is not None:
            self.world.run_for(_LATE_S)
            self.operator.do(self.operator.order())
            self.orders_done()

    def rest(self) -> None:
        """Let everything end: writers first, then whoever follows them."""
        for writer in self.writers:
            writer.working = False
        self._until(lambda: all(writer.resting for writer in self.writers), "writers")
        self._until(lambda: self._reinstated() and self.level(), "replicas", self._standing)
        self._until_quiet()
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
        if self.tap_clients:
            self._rest_of_tap()

    def _rest_of_tap(self) -> None:
        """TAP clients must come as far, first as they are, then once more."""
        for client in self.tap_clients:
            self._until(client.followed, client.name, client.standing)
        for client in self.tap_clients:
            client.come_again()
        for client in self.tap_clients:
            self._until(client.settled, client.name, client.standing)
        self._until(
            lambda: self._at_rest() and all(each.settled() for each in self.tap_clients), "clients"
        )

    def _reinstated(self) -> bool:
        """Promote again who died of the term of one that the operator has promoted in between.

        That one was promoted and demoted while they did not hear of each other. A program may have
        followed it, and its promotion may be lost: then the program follows nobody until somebody
        has a higher term. Who does not follow an active that has lost its data is told to.
        """
        for (number, name), source in list(self.operator.sources.items()):
            if self.net.nodes[address(name)].awaits_a_word(number) and not self.operator.busy:
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
        for client in self.tap_clients:
            client.judge()
            client.leave()
        for number, wanted in self.operator.wanted.items():
            active = self.net.nodes[address(wanted)]
            for node in self.nodes:
                self.histories.node(node.name).judge(number)
                if node is not active:
                    judge_equal(active, node, number)
        for follower in (*self.consumers, *self.programs):
            follower.judge()
            follower.leave()
        self.judge_freed()

    def judge_freed(self) -> None:
        """When nobody is connected any more, nobody holds anything."""
        for node in self.nodes:
            node.replication.close()
            for link in list(node.links):
                link.cut()
        self._until_quiet()
        for node in self.nodes:
            node.judge_freed()

    def account(self) -> dict[str, int]:
        total = Counter[str]({**super().account(), **self.operator.done})
        total["rollbacks"] += self.histories.rollbacks
        total["promotions"] += self.terms.promotions
        total["deposed"] += self.terms.deposed
        total["handed over"] += len(self.histories.hand_overs)
        total["interrupted"] += self.operator.verdicts.get(codec.INTERRUPTED, 0)
        total["refused"] += self.operator.verdicts.get(codec.REFUSED, 0)
        for consumer in self.consumers:
            total.update({f"consumer {k}": v for k, v in consumer.account.counts().items()})
        for program in self.programs:
            total["program deaths"] += program.deaths
            total["program changes"] += program.changes
            total["program keys undone"] += program.undone
            total["program rollbacks"] += program.back
            if isinstance(program, SinkProgram):
                total.update(program.counts())
        if self.watermarks is not None:
            counts = self.watermarks.counts.items()
            total.update({f"rows {name}": count for name, count in counts})
            total["purged"] += sum(self.histories.purged.values())
        for client in self.clients:
            total.update({f"clients {name}": n for name, n in asdict(client.fate).items()})
        if self.index is not None:
            total.update({f"index {name}": count for name, count in self.index.done.items()})
            total["index deaths"] = self.index.deaths
        for tap_client in self.tap_clients:
            total.update({f"tap {what}": count for what, count in tap_client.counts.items()})
        total.update({f"tap takeover {what}": count for what, count in self.taken.items()})
        return total


REPLICAS = Simulation("replicas", ClusterRun, draw_replicas)
WATERMARKS = Simulation("watermarks", ClusterRun, draw_watermarks)
INDEX = Simulation("index", ClusterRun, draw_index)
SINKS = Simulation("sinks", ClusterRun, draw_sinks)
TAP = Simulation("tap", ClusterRun, draw_tap, dice=0x5A5A)
