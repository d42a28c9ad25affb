"""What a program does with the client library, and what of it survives the program's death.

A mirror keeps the documents it is told of. When they are on its disk depends on its kind: at once,
at the end of each snapshot, whenever it is asked to (`durable`), or at the end of each snapshot
with every earlier one still at hand (it rolls back by itself). `StateDisk` is the disk of the
library's own state. Every write of either is a point at which the program may die.

Source: systems reference g; rows D13, D44 to D49.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from tests.sim.codec import Version
from tests.sim.judges import complain
from tests.sim.net import FAR_AWAY, FAST, SLOW_READER, Link, Net, address
from tests.sim.truth import Histories
from uprmc.client.core import Options, UprCore
from uprmc.client.errors import ClientError, ConnectionLost, NodeUnavailable, NodeUnreachable
from uprmc.client.handler import Handler
from uprmc.client.state import MemoryState
from uprmc.remote.registering import Instance

Docs = dict[int, dict[bytes, tuple[object, ...]]]

#: Kinds of mirrors.
AT_ONCE, AT_ENDS, WHEN_ASKED, NATIVE = "at once", "at ends", "when asked", "native"
KINDS = (AT_ONCE, AT_ENDS, WHEN_ASKED, NATIVE)


class ProgramDied(Exception):
    """The program was killed."""


class Points:
    """Counts write points; lets the program die at one of them."""

    def __init__(self) -> None:
        self.count = 0  # so many there were in this life
        self.dies: Callable[[], bool] = lambda: False  # asked at each point

    def point(self) -> None:
        """Here something is about to be written, or was just written."""
        self.count += 1
        if self.dies():
            raise ProgramDied


def told(change: Any) -> tuple[object, ...]:
    """Return what is kept of a document."""
    return (change.value, change.rev, change.cas, change.flags, change.expiry)


def of_version(version: Version) -> tuple[object, ...]:
    """Return the same of a version that is true."""
    return (version.value, version.rev, version.cas, version.flags, version.expiry)


class MirrorDisk:
    """What a mirror has written down."""

    def __init__(self) -> None:
        self.docs: Docs = {}  # by vBucket and key
        # by vBucket, the documents at each end of a snapshot; of a native mirror
        self.ends: dict[int, dict[int, dict[bytes, tuple[object, ...]]]] = {}


class StateDisk(MemoryState):
    """The library's state, with a judge of what is written into it."""

    def __init__(self, points: Points, judge: Callable[[int, Any], None]) -> None:
        super().__init__()
        # by vBucket, what was ever written into it and not cut: (seqno, key)
        self.ring: dict[int, set[tuple[int, bytes]]] = {}
        self._points = points
        self._judge = judge

    def commit(
        self,
        saved: Mapping[int, Any],
        ring: Sequence[Any],
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        self._points.point()
        for vbucket, one in saved.items():
            self._judge(vbucket, one)
        for vbucket, seqno in cuts.items():
            kept = {entry for entry in self.ring.get(vbucket, ()) if entry[0] <= seqno}
            self.ring[vbucket] = kept
        for chunk in ring:
            self.ring.setdefault(chunk.vbucket, set()).update(chunk.entries)
        super().commit(saved, ring, trims, cuts)
        self._points.point()

    def forget(self, vbuckets: Iterable[int]) -> None:
        numbers = list(vbuckets)
        self._points.point()
        for number in numbers:
            self.ring.pop(number, None)
        super().forget(numbers)
        self._points.point()


class Mirror(Handler):
    """See the module docstring; one life of the program."""

    def __init__(self, kind: str, disk: MirrorDisk, state: StateDisk, points: Points) -> None:
        self.kind = kind
        self.native_rollback = kind == NATIVE
        # as the program sees them
        self.docs: Docs = {number: dict(docs) for number, docs in disk.docs.items()}
        # undone, back: how often a key was undone, a vBucket was rolled back
        self.undone = self.back = 0
        self._disk = disk
        self._state = state
        self._points = points
        self._target: dict[int, int] = {}
        self.on_change: Callable[[Any], None] = lambda change: None
        if kind == WHEN_ASKED:
            self.durable = self._write_all

    # --- the program's disk -----------------------------------------------------------------------

    def _write(self, number: int) -> None:
        self._points.point()
        self._disk.docs[number] = dict(self.docs.get(number, {}))
        self._points.point()

    def _write_all(self) -> None:
        for number in self.docs:
            self._write(number)

    # --- what it is told --------------------------------------------------------------------------

    def mutation(self, change: Any) -> None:
        self._take(change)
        self.docs.setdefault(change.vbucket, {})[change.key] = told(change)
        if self.kind == AT_ONCE:
            self._write(change.vbucket)

    def deletion(self, change: Any) -> None:
        self._take(change)
        self.docs.setdefault(change.vbucket, {}).pop(change.key, None)
        if self.kind == AT_ONCE:
            self._write(change.vbucket)

    def _take(self, change: Any) -> None:
        self._target.pop(change.vbucket, None)
        self.on_change(change)
        known = self._state.ring_after(change.vbucket, change.seqno - 1)
        if not self.native_rollback and (change.seqno, change.key) not in known:
            complain(f"{change} is handed over, and is not in the ring: {known[:3]}")

    def snapshot_end(self, vbucket: int, end: int) -> None:
        if self.kind == NATIVE:
            self._disk.ends.setdefault(vbucket, {})[end] = dict(self.docs.get(vbucket, {}))
        if self.kind in (AT_ENDS, NATIVE):
            self._write(vbucket)

    def rollback(self, vbucket: int, seqno: int) -> bool:
        self._points.point()
        self._target[vbucket] = seqno
        if not seqno:
            self.back += bool(self.docs.get(vbucket))
            self.docs[vbucket] = {}
            self._disk.ends.pop(vbucket, None)
            self._write(vbucket)
            return self.kind == NATIVE
        if self.kind != NATIVE:
            self.back += 1
            return False
        ends = self._disk.ends.get(vbucket, {})
        if seqno not in ends:
            return False
        self.back += any(end > seqno for end in ends)
        self.docs[vbucket] = dict(ends[seqno])
        self._disk.ends[vbucket] = {end: docs for end, docs in ends.items() if end <= seqno}
        self._write(vbucket)
        return True

    def undo(self, vbucket: int, key: bytes, document: Any) -> None:
        self._points.point()
        above = self._target.get(vbucket)
        received = self._state.ring.get(vbucket, set())
        if above is not None and not any(s > above and k == key for s, k in received):
            complain(f"vBucket {vbucket}: {key!r} is undone above {above}, which never came")
        self.undone += 1
        if document is None:
            self.docs.setdefault(vbucket, {}).pop(key, None)
        else:
            self.docs.setdefault(vbucket, {})[key] = told(document)
        self._write(vbucket)


# --- programs -------------------------------------------------------------------------------------


_TURN_S = 0.05
_BACK_S = 0.1
_IDLE_S = 0.002

#: Logs that may have as many entries are never cut in these runs.
WHOLE_LOG = 25


class ProgramWire:
    """The program's end of a connection."""

    def __init__(self, program: Program, place: str, profile: Any) -> None:
        self.place = place
        self.session: Any = None
        self._program = program
        self.over = False
        self.link: Link | None = program.node(place).connect(self, profile, False)

    def receive(self, data: bytes) -> None:
        if not self.over:
            self._program.received(self, data)

    def disconnected(self) -> None:
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
    """The client library in the simulated world: its core over simulated links, with many lives.

    It is driven as `uprmc.client.blocking` drives it. The program may die at every write point of
    its own; it comes back with what was on its disks.
    """

    def __init__(
        self,
        net: Net,
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
        self.deaths = 0  # how often it died
        self.calm = False  # it dies no more
        # values that were only ever written at a node after another one was promoted, and that
        # nobody may be handed
        self.deposed: set[bytes] = set()
        self.undone = self.back = self.changes = 0
        self.points = Points()  # its write points, of the present life
        self._death = death
        self._net = net
        self._world = net.world
        self._histories = histories
        self._ring_items = ring_items
        self._disk = MirrorDisk()
        self._state = StateDisk(self.points, self._judge_saved)
        self._wires: list[ProgramWire] = []
        self._idle_planned = False
        self.core: UprCore | None = None
        self.mirror: Mirror  # what it holds
        self._begin()

    def node(self, place: str) -> Any:
        return self._net.nodes[place]

    # --- lives ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.points.count = 0
        self.points.dies = self._dies
        self.mirror = Mirror(self.kind, self._disk, self._state, self.points)
        self.mirror.on_change = self._judge_change
        self._turn(self._follow_all(self.mirror, self._state, ring_items=self._ring_items))

    def _follow_all(self, handler: Any, state: Any, **more: Any) -> UprCore:
        """Begin to follow the nodes."""
        options = Options(
            name=f"{self.kind}{self._number}-{self.deaths}",
            noop_interval_s=1.0,
            poll_s=0.3,
            jitter=self._world.random.random,
            instance=self._instance,
            **more,
        )
        places = [address(node.name) for node in self._net.nodes.values()]
        self.core = UprCore(places, handler, state, options)
        return self.core

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
        wire = ProgramWire(self, place, FAST if self.calm else profile)
        if wire.link is None:
            core.failed(place, NodeUnreachable(f"{place} does not listen"), now)
            return
        wire.session = self._drive(core.connected(place, now))
        self._wires.append(wire)
        wire.send()

    def _look_after(self, wire: ProgramWire) -> None:
        if wire.session.error is not None:
            self._end(wire, wire.session.error)
        else:
            wire.send()

    def received(self, wire: ProgramWire, data: bytes) -> None:
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

    def lost(self, wire: ProgramWire, error: ClientError) -> None:
        """A connection is gone."""
        if wire in self._wires:
            self._wires.remove(wire)
        if self.core is not None and wire.session is not None:
            self.core.lost(wire.session, error, self._world.now)

    def _end(self, wire: ProgramWire, error: ClientError) -> None:
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
