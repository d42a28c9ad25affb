"""The network without sockets: bytes in order, delayed, split and cut as the world pleases.

A client is connected to a node by a `Link`; a node that dials another one is by a `Wire`, if the
`Net` lets them reach each other. Each end at a node plays the part of `uprmc.server.net.adapter`
towards its session, by the same rules: everything that arrives is followed by a pull; while the way
out is blocked nothing is pulled; while it is blocked or the session's `input_full` is set, nothing
is delivered to the session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tests.sim.world import World
from uprmc.ports import Session

if TYPE_CHECKING:
    from tests.sim.node import Node

#: What a way holds before it is blocked, like a transport's buffer and the kernel's.
_BUFFER_BYTES = 2_000

_BUDGETS = (1, 64, 700, 65_536)
_HEADER_BYTES = 24

#: Who hangs up waits so long for what it has written to be taken.
_FAREWELL_S = 0.5

_DIAL_MAX_S = 0.02

MakeSession = Callable[[Callable[[], None]], Session]


class Client(Protocol):
    """What a link needs of its client."""

    def receive(self, data: bytes) -> None:
        """Take bytes from the server."""

    def disconnected(self) -> None:
        """The link is gone."""


class End:
    """A session at a node, and what it has written that the other side has not taken yet."""

    closed = False  # no byte goes through any more

    def __init__(self, world: World, make_session: MakeSession) -> None:
        self._world = world
        self._written = bytearray()
        self._delivering = self._woken = False
        self.session = make_session(self._wake)

    @property
    def _full(self) -> bool:
        return len(self._written) > _BUFFER_BYTES

    @property
    def _takes(self) -> bool:
        """Whether bytes may be delivered to the session."""
        session = self.session
        return not (session.input_full or session.closing or self._full)

    def _wake(self) -> None:
        if not self._woken and not self.closed:
            self._woken = True
            self._world.after(0, self._woken_up)

    def _woken_up(self) -> None:
        self._woken = False
        if not self.closed:
            self.pump()

    def tick(self, now: float) -> None:
        """Tell the session the time."""
        if not self.closed:
            self.session.tick(now)
            self.pump()

    def pump(self) -> None:
        """Put on the way what the session wants to send."""
        self.follow()
        while not self._full:
            pieces = self.session.data_to_send(self._world.random.choice(_BUDGETS))
            if not pieces:
                if self.follow():
                    continue
                break
            self._written += b"".join(pieces)
        self._pulled()

    def _pulled(self) -> None:
        raise NotImplementedError

    def follow(self) -> bool:
        """Go on with the session's successor, if it has one."""
        changed = False
        while self.session.successor is not None:
            self.session = self.session.successor
            changed = True
        return changed


# --- a client and a node --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """How a link treats its bytes."""

    delay_max_s: float = 0.002  # a chunk takes up to so long, in each direction
    read_pause_max_s: float = 0.002  # the client reads at most this often
    read_chunk_max: int = 65_536  # and at most so many bytes at a time


FAST = LinkProfile()
SLOW_READER = LinkProfile(read_pause_max_s=0.05, read_chunk_max=300)
FAR_AWAY = LinkProfile(delay_max_s=0.1, read_pause_max_s=0.1)


class Link(End):
    """A client's connection: what it has sent, and the end at the node."""

    in_order = False  # the session hung up and everything that it said had arrived

    def __init__(
        self,
        world: World,
        client: Client,
        make_session: MakeSession,
        profile: LinkProfile,
        gone: Callable[[Link], None],
    ) -> None:
        self._client = client
        self._profile = profile
        self._gone = gone
        self._to_server = bytearray()
        self._reading = False
        super().__init__(world, make_session)

    def send(self, data: bytes) -> None:
        """Put bytes on the way to the server."""
        if not self.closed:
            self._to_server += data
            self._deliver_later()

    def _deliver_later(self) -> None:
        if not self._delivering and self._to_server:
            self._delivering = True
            self._world.after(self._world.between(0, self._profile.delay_max_s), self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        if self.closed or not self._takes:
            return  # what unblocks it delivers again
        self.session.receive_data(self._chunk(self._to_server, len(self._to_server)))
        self.pump()

    def _chunk(self, way: bytearray, most: int) -> bytes:
        """Take a piece off the front: all of it, some of it, or a single byte."""
        size = min(len(way), most)
        if self._world.chance(0.5):
            size = self._world.random.randint(1, size)
        elif self._world.chance(0.1):
            size = 1
        chunk = bytes(way[:size])
        del way[:size]
        return chunk

    def _pulled(self) -> None:
        if self._written or self.session.closing:
            self._read_later()
        if self._takes:
            self._deliver_later()

    def _read_later(self) -> None:
        if not self._reading:
            self._reading = True
            delay = self._world.between(0, self._profile.delay_max_s)
            pause = self._world.between(0, self._profile.read_pause_max_s)
            self._world.after(delay + pause, self._read)

    def _read(self) -> None:
        self._reading = False
        if self.closed:
            return
        if self._written:
            self._client.receive(self._chunk(self._written, self._profile.read_chunk_max))
        if not self.closed:
            self.pump()
            if self.session.closing and not self._written:
                self.in_order = True
                self._end()

    def cut(self) -> None:
        """Break the connection; what is on its way arrives up to some byte, in each direction."""
        if self.closed:
            return
        if self._to_server and self._takes and self._world.chance(0.5):
            self.session.receive_data(self._chunk(self._to_server, len(self._to_server)))
            self.follow()
        self.server_died()

    def server_died(self) -> None:
        """End as after a crash of the server: some of what it had sent still arrives."""
        if self.closed:
            return
        if self._written and self._world.chance(0.5):
            self._client.receive(self._chunk(self._written, len(self._written)))
        self._end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.session.connection_lost()
        self._gone(self)
        self._client.disconnected()


# --- two nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WireProfile:
    """How a wire treats its bytes, in both directions."""

    delay_max_s: float = 0.002  # a chunk takes up to so long
    chunk_max: int = 65_536  # so many bytes arrive at a time, at most
    silent: float = 0.0  # chance that a direction says nothing for a while instead of delivering
    silence_max_s: float = 0.0  # for so long at most


NEAR = WireProfile()
FAR = WireProfile(delay_max_s=0.08)
NARROW = WireProfile(delay_max_s=0.01, chunk_max=120)
SLOW = WireProfile(delay_max_s=0.08, chunk_max=150)
MUTE = WireProfile(silent=0.02, silence_max_s=1.5)
PROFILES = (NEAR, NEAR, FAR, NARROW, MUTE)


class Cutter:
    """Ends a wire after so many messages, counted over both directions."""

    def __init__(self, messages: int | None = None) -> None:
        self.passed = 0  # whole messages that came through
        self.cut = False
        self._limit = messages
        self._heads = {False: bytearray(), True: bytearray()}
        self._left = {False: 0, True: 0}

    def let_through(self, data: bytes, way: bool) -> int:
        """Return how many bytes of `data` may pass before the cut."""
        place = 0
        while place < len(data):
            if self._limit is not None and self.passed >= self._limit:
                self.cut = True
                return place
            place += self._step(data, place, way)
        if self._limit is not None and self.passed >= self._limit:
            self.cut = True
        return place

    def _step(self, data: bytes, place: int, way: bool) -> int:
        head = self._heads[way]
        if len(head) < _HEADER_BYTES:
            piece = data[place : place + _HEADER_BYTES - len(head)]
            head += piece
            if len(head) == _HEADER_BYTES:
                self._left[way] = int.from_bytes(head[8:12], "big")
                self._whole(way)
            return len(piece)
        size = min(self._left[way], len(data) - place)
        self._left[way] -= size
        self._whole(way)
        return size

    def _whole(self, way: bool) -> None:
        if not self._left[way]:
            self.passed += 1
            self._heads[way].clear()


class WireEnd(End):
    """One end of a wire; `far` is the other one."""

    far: WireEnd

    def __init__(self, wire: Wire, make_session: MakeSession, way: bool) -> None:
        self._wire = wire
        self._way = way
        super().__init__(wire.world, make_session)

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return self._wire.closed

    def cut(self) -> None:
        """Break the connection; what is on its way arrives up to some byte, in each direction."""
        self._wire.cut()

    def server_died(self) -> None:
        """The node of this end is gone; some of what it had sent still arrives."""
        self._wire.died(self)

    def _pulled(self) -> None:
        if self._written or self.session.closing:
            self._deliver_later()
        if self.session.closing:
            self._wire.say_farewell()
        if self._takes:
            self.far._deliver_later()

    def _deliver_later(self) -> None:
        if not self._delivering and not self.closed:
            self._delivering = True
            delay_s = self._world.between(0, self._wire.profile.delay_max_s)
            self._world.after(delay_s, self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        wire = self._wire
        if wire.closed:
            return
        if not self._written:
            if self.session.closing:
                wire.end()
            return
        if not self.far._takes:
            return  # what unblocks it delivers again
        if self._is_silent():
            return
        self._hand_over(wire.profile.chunk_max)
        if not wire.closed and (self._written or self.session.closing):
            self._deliver_later()

    def _is_silent(self) -> bool:
        profile, world = self._wire.profile, self._world
        if self._wire.faulty and profile.silent and world.chance(profile.silent):
            self._delivering = True
            world.after(world.between(0, profile.silence_max_s), self._deliver)
            return True
        return False

    def _hand_over(self, most: int) -> None:
        random, wire = self._world.random, self._wire
        size = min(len(self._written), most)
        if random.random() < 0.5:
            size = random.randint(1, size)
        data = bytes(self._written[:size])
        allowed = wire.cutter.let_through(data, self._way)
        del self._written[:size]
        if allowed:
            self.far.session.receive_data(data[:allowed])
        if wire.cutter.cut:
            wire.end()
            return
        self.far.pump()
        self.pump()

    def last_words(self) -> None:
        """Some of what was sent may arrive after the end."""
        if self._written and self.far._takes and self._world.chance(0.5):
            data = bytes(self._written)[: self._world.random.randint(1, len(self._written))]
            self._written.clear()
            allowed = self._wire.cutter.let_through(data, self._way)
            self.far.session.receive_data(data[:allowed])
            self.far.follow()


class Wire:
    """A connection that one node dialled to another: it delays, splits, falls silent, is cut.

    It is cut at any byte by chance, or after exactly so many messages.
    """

    def __init__(
        self, net: Net, dialling: MakeSession, caller: Node, called: Node, cutter: Cutter
    ) -> None:
        self.world = net.world
        self.ends = frozenset((caller.name, called.name))
        self.profile = net.profile(called.name)
        self.cutter = cutter
        self.closed = False
        self.faulty = net.faulty  # whether silences happen
        self._leaving = False
        self._net = net
        self.far = WireEnd(self, called.session, True)
        self.near = WireEnd(self, dialling, False)
        self.near.far, self.far.far = self.far, self.near
        net.wires.append(self)
        caller.links.append(self.near)
        called.links.append(self.far)

    def begin(self) -> None:
        """It is connected: the dialling session speaks first."""
        self.near.pump()
        self.far.pump()

    def cut(self) -> None:
        """Break it; what is on its way arrives up to some byte, in each direction."""
        if not self.closed:
            self.near.last_words()
            self.far.last_words()
            self.end()

    def say_farewell(self) -> None:
        """One side hangs up: the other may take what is on its way, but not for ever."""
        if not self._leaving:
            self._leaving = True
            self.world.after(_FAREWELL_S, self.end)

    def died(self, end: WireEnd) -> None:
        """The process at one end is gone."""
        if not self.closed:
            end.last_words()
            self.end()

    def end(self) -> None:
        """It is over; both sessions learn of it."""
        if self.closed:
            return
        self.closed = True
        self._net.wires.remove(self)
        for node in self._net.nodes.values():
            for end in (self.near, self.far):
                if end in node.links:
                    node.links.remove(end)
        for end in (self.near, self.far):
            end.follow()
            end.session.connection_lost()


def address(name: str) -> str:
    """Return where a node listens."""
    return f"{name}:11210"


class Net:
    """The nodes, and how they reach each other."""

    def __init__(self, world: World, *, varied: bool = False) -> None:
        self.world = world
        self.nodes: dict[str, Node] = {}  # by address
        self.parted: set[frozenset[str]] = set()  # pairs of names that cannot reach each other
        self.faulty = True  # whether wires fall silent
        self.slow: set[str] = set()  # names of nodes that take few bytes at a time
        self.cutters: dict[tuple[str, str], Cutter] = {}  # for the next wire from one to another
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

    def part_for(self, seconds: tuple[float, float], names: list[str]) -> None:
        """Part two of these nodes for some time."""
        one, other = self.world.random.sample(names, 2)
        self.part(one, other)
        pair = frozenset((one, other))
        self.world.after(self.world.between(*seconds), lambda: self.parted.discard(pair))

    def join(self) -> None:
        """Let everybody reach everybody, without faults."""
        self.parted.clear()
        self.slow.clear()
        self.cutters.clear()
        self.faulty = self._varied = False
        for wire in self.wires:
            wire.faulty = False
            wire.profile = NEAR


class Call:
    """A connection that a node asks for; the port `Dialled` of rules."""

    def __init__(
        self,
        net: Net,
        caller: Node,
        place: str,
        make_session: MakeSession,
        failed: Callable[[str], None],
    ) -> None:
        self._net = net
        self._caller = caller
        self._place = place
        self._make_session = make_session
        self._failed = failed
        self._life = caller.life
        self._wire: Wire | None = None
        self._over = False
        net.world.after(net.world.between(0, _DIAL_MAX_S), self._connect)

    def _connect(self) -> None:
        caller, net = self._caller, self._net
        if self._over or caller.life != self._life:
            return
        called = net.nodes.get(self._place)
        if called is None:
            self._failed(f"{self._place} is unknown")
        elif frozenset((caller.name, called.name)) in net.parted:
            return  # nobody answers
        elif not called.up or called.stopping:
            self._failed(f"{self._place} refuses the connection")
        else:
            cutter = net.cutters.pop((caller.name, called.name), None) or Cutter()
            self._wire = Wire(net, self._make_session, caller, called, cutter)
            self._wire.begin()

    def abandon(self) -> None:
        self._over = True
        if self._wire is not None:
            self._wire.end()
