"""A simulated node among others: it dials them, follows them, hands over to them.

Everything of `node` is as it was; what is new is the dialler, which makes wires to other nodes of
the `Cluster` by their addresses, and `Replication`, driven as `uprmc.server` drives it.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.disk import Disk
from tests.sim.judges import BranchJudge, StoreJudge
from tests.sim.node import Node, Pace
from tests.sim.replica_wire import NEAR, PROFILES, SLOW, Cutter, Wire, WireProfile
from tests.sim.world import World
from uprmc.config import Settings
from uprmc.kv.services import Services
from uprmc.ports import Session
from uprmc.upr.replication import Replication
from uprmc.upr.source import StreamStanding

_DIAL_MAX_S = 0.02

#: Every so many steps a node checks itself.
_CHECK_EVERY = 7

MakeSession = Callable[[Callable[[], None]], Session]


def address(name: str) -> str:
    """Return where a node listens."""
    return f"{name}:11210"


class Cluster:
    """The nodes, and the network between them.

    Attributes:
        nodes: by address.
        parted: pairs of names that cannot reach each other.
        faulty: whether wires fall silent.
        cutters: for the next wires from one name to another.
        slow: names of nodes that take few bytes at a time.
    """

    def __init__(self, world: World, *, varied: bool) -> None:
        self.world = world
        self.nodes: dict[str, ReplicaNode] = {}
        self.parted: set[frozenset[str]] = set()
        self.faulty = True
        self.slow: set[str] = set()
        self.cutters: dict[tuple[str, str], Cutter] = {}
        self.wires: list[Wire] = []
        self._varied = varied

    def profile(self, called: str) -> WireProfile:
        """Return how the next wire to a node behaves."""
        if called in self.slow:
            return SLOW
        return self.world.random.choice(PROFILES) if self._varied else NEAR

    def part(self, one: str, other: str) -> None:
        """Let two nodes reach each other no more; what they have ends."""
        self.parted.add(frozenset((one, other)))
        for wire in list(self.wires):
            if wire.ends == frozenset((one, other)):
                wire.cut()

    def join(self) -> None:
        """Let everybody reach everybody, without faults."""
        self.parted.clear()
        self.slow.clear()
        self.faulty = False
        self._varied = False
        for wire in self.wires:
            wire.faulty = False
            wire.profile = NEAR


class Call:
    """A connection that was asked for; the port `Dialled` of rules."""

    def __init__(
        self,
        cluster: Cluster,
        caller: ReplicaNode,
        place: str,
        make_session: MakeSession,
        failed: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._caller = caller
        self._place = place
        self._make_session = make_session
        self._failed = failed
        self._life = caller.life
        self._wire: NamedWire | None = None
        self._over = False
        cluster.world.after(cluster.world.between(0, _DIAL_MAX_S), self._connect)

    def _connect(self) -> None:
        caller = self._caller
        if self._over or caller.life != self._life:
            return
        called = self._cluster.nodes.get(self._place)
        if called is None:
            self._failed(f"{self._place} is unknown")
            return
        pair = frozenset((caller.name, called.name))
        if pair in self._cluster.parted:
            return  # nobody answers
        if not called.up or called.stopping:
            self._failed(f"{self._place} refuses the connection")
            return
        self._make_wire(caller, called, pair)

    def _make_wire(self, caller: ReplicaNode, called: ReplicaNode, pair: frozenset[str]) -> None:
        cluster = self._cluster
        cutter = cluster.cutters.pop((caller.name, called.name), None)
        wire = NamedWire(
            cluster.world,
            self._make_session,
            called.session,
            cluster.profile(called.name),
            self._gone,
            cutter,
        )
        wire.ends = pair
        wire.faulty = cluster.faulty
        self._wire = wire
        cluster.wires.append(wire)
        caller.links.append(wire.near)
        called.links.append(wire.far)
        wire.begin()

    def _gone(self, wire: Wire) -> None:
        self._cluster.wires.remove(wire)  # type: ignore[arg-type]
        for node in self._cluster.nodes.values():
            for end in (wire.near, wire.far):
                if end in node.links:
                    node.links.remove(end)

    def abandon(self) -> None:
        """End it."""
        self._over = True
        if self._wire is not None:
            self._wire.end()


class NamedWire(Wire):
    """A wire that knows whose it is."""

    ends: frozenset[str] = frozenset()


class FallingBranches(BranchJudge):
    """Lets replicas take something back: `replica_truth` judges that."""

    def _fell(self, vbucket: object, before: int) -> None:
        """See `BranchJudge`."""


class ReplicaNode(Node):
    """See the module docstring.

    Attributes:
        name: its name; `address` makes an address of it.
        replication: of the present life.
        instance: its name in the watermarks of its sources; empty = it does not register.
    """

    replication: Replication
    instance = b""

    def __init__(
        self, cluster: Cluster, name: str, settings: Settings, pace: Pace, *, sync: bool
    ) -> None:
        world = cluster.world
        self.name = name
        self.store_judge = StoreJudge()
        super().__init__(world, Disk(world, self.store_judge, sync=sync), settings, pace)
        self.disk.weak_views = True
        self.branches = FallingBranches()
        self._cluster = cluster
        self._steps = 0
        cluster.nodes[address(name)] = self
        self.journal.on_up.append(lambda _: self.replication.resume())

    def _life_began(self) -> None:
        self.upr.instance = self.instance
        self.replication = Replication(self.upr, self._dial)

    def _services(self) -> Services:
        services = super()._services()
        services.replication = self.replication
        return services

    def stop(self) -> None:
        """See `Node.stop`; first it follows nobody any more."""
        self.replication.close()
        super().stop()

    def _dial(self, place: str, make_session: MakeSession, failed: Callable[[str], None]) -> Call:
        return Call(self._cluster, self, place, make_session, failed)

    def _tick(self) -> None:
        self.replication.tick(self._world.now)
        super()._tick()

    def awaits_a_word(self, number: int) -> bool:
        """Tell whether it does not follow its source, which seems to have lost its data."""
        if not self.up:
            return False
        source = self.replication.source_of(number)
        if source is None or source.followed[number].standing is StreamStanding.STREAMING:
            return False
        return "lost its data" in source.followed[number].error

    def check(self) -> None:
        """See `Node.check`; not after every step, because there are several nodes."""
        self._steps += 1
        if not self._steps % _CHECK_EVERY:
            super().check()
