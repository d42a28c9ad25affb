"""A connection that one node dialled to another: two sessions, and bytes between them.

Each end plays the part of the adapter towards its session, by the rules of `link`. The wire delays,
splits, falls silent in one direction, and is cut: at any byte by chance, or after exactly so many
messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.world import World
from uprmc.ports import Session

#: What a way holds before it is blocked, like a transport's buffer and the kernel's.
_BUFFER_BYTES = 2_000

_BUDGETS = (1, 64, 700, 65_536)
_HEADER_BYTES = 24

#: Who hangs up waits so long for what it has written to be taken.
_FAREWELL_S = 0.5

MakeSession = Callable[[Callable[[], None]], Session]


@dataclass(frozen=True, slots=True)
class WireProfile:
    """How a wire treats its bytes, in both directions.

    Attributes:
        delay_max_s: a chunk takes up to so long.
        chunk_max: so many bytes arrive at a time, at most.
        silent: chance that a direction says nothing for a while instead of delivering.
        silence_max_s: for so long at most.
    """

    delay_max_s: float = 0.002
    chunk_max: int = 65_536
    silent: float = 0.0
    silence_max_s: float = 0.0


NEAR = WireProfile()
FAR = WireProfile(delay_max_s=0.08)
NARROW = WireProfile(delay_max_s=0.01, chunk_max=120)
SLOW = WireProfile(delay_max_s=0.08, chunk_max=150)
MUTE = WireProfile(silent=0.02, silence_max_s=1.5)
PROFILES = (NEAR, NEAR, FAR, NARROW, MUTE)


class Cutter:
    """Ends a wire after so many messages, counted over both directions.

    Attributes:
        passed: whole messages that came through.
        cut: whether it has happened.
    """

    def __init__(self, messages: int | None = None) -> None:
        self.passed = 0
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


class End:
    """One end of a wire: a session and what it has written. `far` is the other one."""

    far: End

    def __init__(self, wire: Wire, make_session: MakeSession, way: bool) -> None:
        self._wire = wire
        self._way = way
        self._written = bytearray()
        self._delivering = self._woken = False
        self._silent_until = 0.0
        self.session = make_session(self._wake)

    # --- what the node of this end does -----------------------------------------------------------

    def tick(self, now: float) -> None:
        """Tell the session the time."""
        if not self._wire.closed:
            self.session.tick(now)
            self.pump()

    def cut(self) -> None:
        """Break the connection; what is on its way arrives up to some byte, in each direction."""
        self._wire.cut()

    def server_died(self) -> None:
        """The node of this end is gone; some of what it had sent still arrives."""
        self._wire.died(self)

    # --- sending ----------------------------------------------------------------------------------

    @property
    def _full(self) -> bool:
        return len(self._written) > _BUFFER_BYTES

    @property
    def _takes(self) -> bool:
        session = self.session
        return not (session.input_full or session.closing or self._full)

    def _wake(self) -> None:
        if not self._woken and not self._wire.closed:
            self._woken = True
            self._wire.world.after(0, self._woken_up)

    def _woken_up(self) -> None:
        self._woken = False
        if not self._wire.closed:
            self.pump()

    def pump(self) -> None:
        """Put on the way what the session wants to send."""
        self._follow()
        random = self._wire.world.random
        while not self._full:
            pieces = self.session.data_to_send(random.choice(_BUDGETS))
            if not pieces:
                if self._follow():
                    continue
                break
            self._written += b"".join(pieces)
        if self._written or self.session.closing:
            self._deliver_later()
        if self.session.closing:
            self._wire.say_farewell()
        if self._takes:
            self.far._deliver_later()

    def _follow(self) -> bool:
        changed = False
        while self.session.successor is not None:
            self.session = self.session.successor
            changed = True
        return changed

    def _deliver_later(self) -> None:
        if not self._delivering and not self._wire.closed:
            self._delivering = True
            self._wire.world.after(self._wire.delay_s(), self._deliver)

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
        wire = self._wire
        profile, world = wire.profile, wire.world
        if wire.faulty and profile.silent and world.chance(profile.silent):
            self._delivering = True
            world.after(world.between(0, profile.silence_max_s), self._deliver)
            return True
        return False

    def _hand_over(self, most: int) -> None:
        random, wire = self._wire.world.random, self._wire
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
        if self._written and self.far._takes and self._wire.world.chance(0.5):
            data = bytes(self._written)[: self._wire.world.random.randint(1, len(self._written))]
            self._written.clear()
            allowed = self._wire.cutter.let_through(data, self._way)
            self.far.session.receive_data(data[:allowed])
            self.far._follow()


class Wire:
    """See the module docstring.

    Attributes:
        near, far: the dialling end, the accepting end.
        closed: no byte goes through any more.
        faulty: whether silences happen.
    """

    def __init__(
        self,
        world: World,
        dialling: MakeSession,
        accepting: MakeSession,
        profile: WireProfile,
        gone: Callable[[Wire], None],
        cutter: Cutter | None = None,
    ) -> None:
        self.world = world
        self.profile = profile
        self.cutter = cutter or Cutter()
        self.closed = False
        self.faulty = True
        self._leaving = False
        self._gone = gone
        self.far = End(self, accepting, True)
        self.near = End(self, dialling, False)
        self.near.far, self.far.far = self.far, self.near

    def delay_s(self) -> float:
        """Return how long the next chunk takes."""
        return self.world.between(0, self.profile.delay_max_s)

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

    def died(self, end: End) -> None:
        """The process at one end is gone."""
        if not self.closed:
            end.last_words()
            self.end()

    def end(self) -> None:
        """It is over; both sessions learn of it."""
        if self.closed:
            return
        self.closed = True
        self._gone(self)
        for end in (self.near, self.far):
            end._follow()
            end.session.connection_lost()
