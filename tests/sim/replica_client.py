"""The client library in the simulated world: its core over simulated links, with many lives.

It is driven as `uprmc.client.blocking` drives it. The program may die at every write point of its
own (`replica_mirror`); it comes back with what was on its disks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from tests.sim.judges import complain
from tests.sim.link import FAR_AWAY, FAST, SLOW_READER, Link
from tests.sim.replica_mirror import Disk, Mirror, Points, ProgramDied, StateDisk, of_version
from tests.sim.replica_node import Cluster, address
from tests.sim.replica_truth import Histories
from tests.sim.upr_codec import Version
from uprmc.client.core import Options, UprCore
from uprmc.client.errors import ClientError, ConnectionLost, NodeUnavailable, NodeUnreachable
from uprmc.remote.registering import Instance

_TURN_S = 0.05
_BACK_S = 0.1
_IDLE_S = 0.002

#: Logs that may have as many entries are never cut in these runs.
WHOLE_LOG = 25


class Wire:
    """The program's end of a connection."""

    def __init__(self, program: Program, place: str, profile: Any) -> None:
        self.place = place
        self.session: Any = None
        self._program = program
        self.over = False
        self.link: Link | None = program.node(place).connect(self, profile, False)

    def receive(self, data: bytes) -> None:
        """Take bytes from the node."""
        if not self.over:
            self._program.received(self, data)

    def disconnected(self) -> None:
        """The link is gone."""
        self.link = None
        if not self.over:
            self.over = True
            self._program.lost(self, ConnectionLost("the connection was cut"))

    def send(self) -> None:
        """Put on the wire what the session has to say."""
        data = self.session.data_to_send()
        if data and self.link is not None:
            self.link.send(bytes(data))

    def close(self) -> None:
        """End it without a word to the program."""
        self.over = True
        if self.link is not None:
            self.link.cut()


class Program:
    """See the module docstring.

    Attributes:
        points: its write points, of the present life.
        mirror: what it holds.
        deaths: how often it died.
        calm: it dies no more.
        deposed: values that were only ever written at a node after another one was promoted, and
            that nobody may be handed.
    """

    def __init__(
        self,
        cluster: Cluster,
        histories: Histories,
        kind: str,
        *,
        number: int = 0,
        ring_items: int = 10_000,
        death: float = 0.0,
        instance: Instance | None = None,
    ) -> None:
        self.kind = kind
        self._instance = instance
        self._number = number
        self.deaths = 0
        self.calm = False
        self.deposed: set[bytes] = set()
        self.undone = self.back = self.changes = 0
        self.points = Points()
        self._death = death
        self._cluster = cluster
        self._world = cluster.world
        self._histories = histories
        self._ring_items = ring_items
        self._disk = Disk()
        self._state = StateDisk(self.points, self._judge_saved)
        self._wires: list[Wire] = []
        self._idle_planned = False
        self.core: UprCore | None = None
        self.mirror: Mirror
        self._begin()

    def node(self, place: str) -> Any:
        """Return a node by its address."""
        return self._cluster.nodes[place]

    # --- lives ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.points.count = 0
        self.points.dies = self._dies
        self.mirror = Mirror(self.kind, self._disk, self._state, self.points)
        self.mirror.on_change = self._judge_change
        options = Options(
            name=f"program{self._number}-{self.deaths}",
            ring_items=self._ring_items,
            noop_interval_s=1.0,
            poll_s=0.3,
            jitter=self._world.random.random,
            instance=self._instance,
        )
        places = [address(node.name) for node in self._cluster.nodes.values()]
        self.core = UprCore(places, self.mirror, self._state, options)
        self._turn(self.core)

    def _dies(self) -> bool:
        return not self.calm and self._world.chance(self._death)

    def _die(self) -> None:
        self.deaths += 1
        self._world.note(f"the program dies after {self.points.count} points")
        self._count()
        self.core = None
        wires, self._wires = self._wires, []
        for wire in wires:
            wire.over = True
        self._world.after(0, lambda: [wire.close() for wire in wires])
        self._world.after(self._world.between(0, _BACK_S), self._begin)

    def _count(self) -> None:
        self.undone += self.mirror.undone
        self.back += self.mirror.back
        self.mirror.undone = self.mirror.back = 0

    def die(self) -> None:
        """Die now, and come back."""
        self._die()

    def leave(self) -> None:
        """Go for good."""
        self._count()
        self.core = None
        for wire in self._wires:
            wire.close()
        self._wires.clear()

    # --- driving ----------------------------------------------------------------------------------

    def _drive(self, task: Generator[Any, Any, Any]) -> Any:
        try:
            found = next(task)
        except StopIteration as ended:
            return ended.value
        return complain(f"the library waits for {found!r}")

    def _guarded(self, act: Callable[[], object]) -> bool:
        """Do something in which the program may die; says whether it lives."""
        try:
            act()
        except ProgramDied:
            self._die()
            return False
        return True

    def _turn(self, core: UprCore) -> None:
        if self.core is not core:
            return
        if self._guarded(lambda: self._take_turn(core)):
            self._world.after(self._world.between(0, _TURN_S), lambda: self._turn(core))

    def _take_turn(self, core: UprCore) -> None:
        now = self._world.now
        self._drive(core.turn(now))
        for place in core.due(now):
            self._dial(core, place, now)
        for wire in list(self._wires):
            self._look_after(wire)

    def _dial(self, core: UprCore, place: str, now: float) -> None:
        profile = self._world.random.choice((FAST, SLOW_READER, FAR_AWAY))
        wire = Wire(self, place, FAST if self.calm else profile)
        if wire.link is None:
            core.failed(place, NodeUnreachable(f"{place} does not listen"), now)
            return
        wire.session = self._drive(core.connected(place, now))
        self._wires.append(wire)
        wire.send()

    def _look_after(self, wire: Wire) -> None:
        if wire.session.error is not None:
            self._end(wire, wire.session.error)
        else:
            wire.send()

    def received(self, wire: Wire, data: bytes) -> None:
        """Bytes have come."""
        core = self.core
        if core is None:
            return

        def act() -> None:
            try:
                self._drive(core.received(wire.session, data, self._world.now))
            except ClientError as error:
                self._end(wire, error)
                return
            self._look_after(wire)

        if self._guarded(act) and not self._idle_planned:
            self._idle_planned = True
            self._world.after(self._world.between(0, _IDLE_S), self._idle)

    def _idle(self) -> None:
        self._idle_planned = False
        core = self.core
        if core is not None:
            self._guarded(lambda: self._drive(core.idle()))

    def lost(self, wire: Wire, error: ClientError) -> None:
        """A connection is gone."""
        if wire in self._wires:
            self._wires.remove(wire)
        if self.core is not None and wire.session is not None:
            self.core.lost(wire.session, error, self._world.now)

    def _end(self, wire: Wire, error: ClientError) -> None:
        if not isinstance(error, ConnectionLost | NodeUnavailable):
            complain(f"the library gives up: {type(error).__name__}: {error}")
        wire.over = True
        self._world.after(0, wire.close)
        self.lost(wire, error)

    # --- judging ----------------------------------------------------------------------------------

    def _judge_change(self, change: Any) -> None:
        self.changes += 1
        if change.value in self.deposed:
            complain(f"{change} was made at a node that had been deposed")
        if not change.vb_uuid and self._histories.max_entries < WHOLE_LOG:
            return  # older than the oldest branch that the log still names
        branch = self._histories.branches.get((change.vbucket, change.vb_uuid))
        if branch is None:
            complain(f"{change} is of a history that nobody had")
        deleted = change.op != "set"
        value = b"" if deleted else change.value
        flags, expiry = (0, 0) if deleted else (change.flags, change.expiry)
        version = Version(
            change.key, change.seqno, change.rev, change.cas, deleted, value, flags, expiry
        )
        if not branch.holds(version):
            complain(f"{change} never happened in {change.vb_uuid:x}")

    def _judge_saved(self, number: int, saved: Any) -> None:
        """What is written down is a pair (log, seqno) that a node once had (row D13)."""
        log = tuple((entry.uuid, entry.seqno) for entry in saved.log)
        begin, end = saved.snapshot
        if not begin <= saved.seqno <= end:
            complain(f"vBucket {number}: {saved} contradicts itself")
        if not saved.seqno:
            return
        if not log or not self._histories.had_log(number, log):
            complain(f"vBucket {number}: {saved} has a log that nobody had")
        branch = self._histories.branches.get((number, log[0][0]))
        if branch is None or branch.high < saved.seqno:
            complain(f"vBucket {number}: {saved} lies beyond its history")

    def settled(self) -> bool:
        """Tell whether it has come as far as the active nodes."""
        if self.core is None:
            return False
        places = self.core.writer.places
        for number in self._histories.numbers():
            for name in self._histories.active_at(number):
                look, place = self._histories.node(name).now(number), places.get(number)
                if place is None:
                    return False
                log = tuple((entry.uuid, entry.seqno) for entry in place.log)
                if (place.whole, place.seqno, log) != (look.high, look.high, look.log):
                    return False
        return True

    def standing(self) -> str:
        """Tell where it is, for a failure."""
        core = self.core
        return "dead" if core is None else f"{core.metrics(self._world.now)}"

    def waits_for_a_promotion(self, number: int) -> bool:
        """Whether it says that whoever has the vBucket is not the last one that was promoted."""
        if self.core is None:
            return False
        found = self.core.metrics(self._world.now).vbuckets.get(number)
        return found is not None and not found.node and "was promoted" in found.refusal

    def judge(self) -> None:
        """Hold what it has to what is true, key by key."""
        for number in self._histories.numbers():
            for name in self._histories.active_at(number):
                held = self._histories.node(name).held.get(number, {})
                true = {k: of_version(v) for k, v in held.items() if not v.deleted}
                mine = self.mirror.docs.get(number, {})
                for key in true.keys() | mine.keys():
                    if true.get(key) != mine.get(key):
                        complain(
                            f"the program ({self.kind}) holds {key!r} as {mine.get(key)}; "
                            f"{name} has {held.get(key)}"
                        )
