"""Runs led by the hand: nodes, clerks and consumers that do what a test says, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.sim import codec
from tests.sim.cluster_run import ClusterRun
from tests.sim.codec import INTERRUPTED, REFUSED, TAKEN, Frame
from tests.sim.consumer import Consumer, Kind
from tests.sim.faults import NO_FAULTS
from tests.sim.net import Cutter
from tests.sim.node import Node
from tests.sim.plan import UPR, Plan, StreamsPlan
from tests.sim.run import StreamsRun
from tests.sim.truth import Look, Truth
from tests.sim.world import World
from tests.sim.writer import Clerk

__all__ = ["INTERRUPTED", "REFUSED", "TAKEN", "ReplicaDesk", "StreamsDesk"]


class Desk:
    """What both have."""

    def __init__(self, run: StreamsRun | ClusterRun, vbuckets: int) -> None:
        self.world = run.world
        self._vbuckets = vbuckets
        self._nodes = {node.name: node for node in run.nodes}
        self.clerks: dict[str, Clerk] = {}

    def _hire(self, node: Node, truth: Truth) -> None:
        self.clerks[node.name] = Clerk(self.world, node, truth, self._vbuckets, 1.0)

    def put(
        self, name: str, key: bytes, value: bytes = b"v", *, may_be_refused: bool = False
    ) -> Frame:
        """Set a document at a node; it must be accepted, unless it may be refused."""
        extras = codec.store_extras(0, 0)
        reply = self.clerks[name].done(codec.SET, key=key, value=value, extras=extras)
        assert reply.status == codec.OK or may_be_refused, reply
        return reply

    def delete(self, name: str, key: bytes) -> None:
        assert self.clerks[name].done(codec.DELETE, key=key).status == codec.OK

    def crash(self, name: str, *, power: bool = False) -> None:
        """End a node's life, and begin another."""
        self._nodes[name].crash(power=power)
        self._start(name)

    def stop(self, name: str) -> None:
        """End it in order, and begin another."""
        node = self._nodes[name]
        node.stop()
        self.world.run_until(lambda: not node.up)
        self._start(name)

    def _start(self, name: str) -> None:
        node = self._nodes[name]
        node.start()
        self.world.run_until(lambda: node.serving)


class StreamsDesk(Desk):
    """A node `a`, and a calm consumer of it."""

    def __init__(self, kind: Kind, *, vbuckets: int = 2, seed: int = 0) -> None:
        plan = StreamsPlan((kind,), NO_FAULTS, {}, vbuckets=vbuckets, writers=0)
        self.run = StreamsRun(World(seed), plan)
        self.run.start()
        super().__init__(self.run, vbuckets)
        self.consumer: Consumer = self.run.consumers[0]
        self.consumer.calm = True
        self._hire(self.run.node, self.run.truth)

    def set_state(self, vbucket: int, state: int) -> None:
        """Give a vBucket another state."""
        extras = state.to_bytes(4, "big")
        assert (
            self.clerks["a"].done(codec.SET_VBUCKET, vbucket=vbucket, extras=extras).status
            == codec.OK
        )

    def settle(self) -> None:
        """Wait until the consumer holds everything and everything is on disk."""
        self.world.run_until(self.consumer.settled)
        self.world.run_until(lambda: self.run.node.quiet)

    def hang_up(self) -> None:
        """End the consumer's connection; it comes back by itself."""
        connection = self.consumer.connection
        assert connection is not None
        connection.hang_up()

    def log(self, vbucket: int) -> tuple[tuple[int, int], ...]:
        """Return a vBucket's failover log, as the consumer was told it."""
        return self.consumer.copies[vbucket].log

    def finish(self) -> None:
        """Judge everything."""
        self.clerks["a"].working = False
        self.run.rest()
        self.run.finish()


class ReplicaDesk(Desk):
    """Several nodes with one vBucket, active at `a`; nobody writes or operates by himself."""

    def __init__(
        self, topology: str, *, seed: int = 0, rollback_keys: int = 1_000, quota: int = 4_000_000
    ) -> None:
        upr = replace(UPR, rollback_keys=rollback_keys)
        plan = Plan(topology, NO_FAULTS, {}, vbuckets=1, varied_wires=False, upr=upr, quota=quota)
        self.run = ClusterRun(World(seed), plan)
        self.run.start()
        super().__init__(self.run, 1)
        for writer in self.run.writers:
            writer.working = False
        self.run.writers.clear()
        self.operator = self.run.operator
        for node in self.run.nodes:
            self._hire(node, self.run.histories.node(node.name))

    # --- clients ----------------------------------------------------------------------------------

    def put_many(
        self, name: str, numbers: Iterable[int], value: bytes = b"v", **more: bool
    ) -> None:
        """Set documents k0, k1, ..."""
        for number in numbers:
            self.put(name, b"k%d" % number, value, **more)

    def refused(self, name: str, key: bytes) -> bool:
        """Tell whether a node refuses a write because the vBucket is not active there."""
        reply = self.clerks[name].done(
            codec.SET, key=key, value=b"x", extras=codec.store_extras(0, 0)
        )
        return reply.status == codec.NOT_MY_VBUCKET

    def consumer(self, name: str, kind: Kind) -> Consumer:
        """Let somebody follow a node."""
        node = self.operator.node(name)
        truth = self.run.histories.node(name)
        made = Consumer(self.world, node, truth, 1, kind, len(self.run.consumers))  # type: ignore[arg-type]
        made.calm = True
        self.run.consumers.append(made)
        return made

    def move(self, consumer: Consumer, name: str) -> None:
        """Let a consumer go to another node, with what it holds."""
        consumer.asleep = True
        if consumer.connection is not None:
            consumer.connection.hang_up()
        consumer._node = self.operator.node(name)
        consumer._truth = self.run.histories.node(name)
        consumer._requests._truth = consumer._truth
        consumer.asleep = False

    # --- the operator -----------------------------------------------------------------------------

    def follow(self, name: str, source: str) -> None:
        """Let a node follow another."""
        self.operator.do(self.operator.follow(name, source, [0]))
        self.run.orders_done()

    def fail_over(self, name: str) -> None:
        """Make a node active."""
        self.operator.do(self.operator.fail_over(name, [0]))
        self.run.orders_done()

    def take_over(self, source: str, target: str) -> int:
        """Hand over; return what became of it."""
        before = dict(self.operator.verdicts)
        self.operator.do(self.operator.take_over(source, target, [0]))
        self.run.orders_done()
        for outcome, count in self.operator.verdicts.items():
            if count > before.get(outcome, 0):
                return outcome
        raise AssertionError("the answer was lost")

    def compact(self, name: str) -> None:
        """Drop all deletions at a node."""
        extras = b"\0" * 16 + b"\1" + b"\0" * 7
        assert self.clerks[name].done(codec.COMPACT, vbucket=0, extras=extras).status == codec.OK

    def cut_after(self, caller: str, called: str, messages: int) -> Cutter:
        """Let the next wire between two nodes be cut after so many messages."""
        cutter = self.run.net.cutters[caller, called] = Cutter(messages)
        return cutter

    def part(self, one: str, other: str) -> None:
        """Let two nodes reach each other no more."""
        self.run.net.part(one, other)

    def join(self) -> None:
        """Let everybody reach everybody."""
        self.run.net.parted.clear()

    @contextmanager
    def parted(self, one: str, other: str) -> Iterator[None]:
        """Let two nodes not reach each other for a while."""
        self.part(one, other)
        yield
        self.join()

    # --- looking ----------------------------------------------------------------------------------

    def now(self, name: str) -> Look:
        """Return how the vBucket looks at a node."""
        return self.run.histories.node(name).now(0)

    def level(self, *names: str) -> None:
        """Wait until these nodes hold all that the first one holds, with its history."""
        first = names[0]

        def equal() -> bool:
            return len({(self.now(name).log, self.now(name).high) for name in names}) == 1 and not (
                any(self.now(name).partial for name in names)
            )

        self.run._until(equal, f"{names} after {first}", self.run._standing)

    def quiet(self) -> None:
        """Wait until everything is on disk."""
        self.world.run_until(lambda: all(node.quiet for node in self.run.nodes))

    @property
    def rollbacks(self) -> int:
        """How often a node had to take something back."""
        return self.run.histories.rollbacks

    def finish(self) -> None:
        """Let all come to rest; judge everything."""
        self.run.heal()
        self.run.rest()
        self.run.finish()
