"""A connection without a socket: bytes in order, cut and delayed as the world pleases.

It plays the part of `uprmc.server.net.adapter` towards the session, by the same rules: everything
that arrives is followed by a pull; while the way to the client is blocked nothing is pulled; while
it is blocked or the session's `input_full` is set, nothing is delivered to the session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tests.sim.world import World
from uprmc.ports import Session

#: What the way to the client holds before it is blocked, like a transport's buffer.
_BUFFER_BYTES = 2_000

_BUDGETS = (1, 64, 700, 65_536)


class Client(Protocol):
    """What a link needs of its client."""

    def receive(self, data: bytes) -> None:
        """Take bytes from the server."""

    def disconnected(self) -> None:
        """The link is gone."""


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """How a link treats its bytes.

    Attributes:
        delay_max_s: a chunk takes up to so long, in each direction.
        read_pause_max_s: the client reads at most this often.
        read_chunk_max: and at most so many bytes at a time.
    """

    delay_max_s: float = 0.002
    read_pause_max_s: float = 0.002
    read_chunk_max: int = 65_536


FAST = LinkProfile()
SLOW_READER = LinkProfile(read_pause_max_s=0.05, read_chunk_max=300)
FAR_AWAY = LinkProfile(delay_max_s=0.1, read_pause_max_s=0.1)


class Link:
    """See the module docstring.

    Attributes:
        closed: no byte goes through any more.
        in_order: whether the session hung up and everything that it said had arrived.
    """

    def __init__(
        self,
        world: World,
        client: Client,
        make_session: Callable[[Callable[[], None]], Session],
        profile: LinkProfile,
        gone: Callable[[Link], None],
    ) -> None:
        self._world = world
        self._client = client
        self._profile = profile
        self._gone = gone
        self._to_server = bytearray()
        self._to_client = bytearray()
        self._delivering = self._reading = self._woken = False
        self.closed = self.in_order = False
        self.session = make_session(self._wake)

    # --- the client's end -----------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Put bytes on the way to the server."""
        if not self.closed:
            self._to_server += data
            self._deliver_later()

    # --- the way to the server ------------------------------------------------------------------

    @property
    def _blocked(self) -> bool:
        session = self.session
        return session.input_full or session.closing or len(self._to_client) > _BUFFER_BYTES

    def _deliver_later(self) -> None:
        if not self._delivering and self._to_server:
            self._delivering = True
            self._world.after(self._world.between(0, self._profile.delay_max_s), self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        if self.closed or self._blocked:
            return  # what unblocks it delivers again
        chunk = self._chunk(self._to_server, len(self._to_server))
        self.session.receive_data(chunk)
        self._pump()

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

    # --- the way to the client ------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._woken and not self.closed:
            self._woken = True
            self._world.after(0, self._woken_up)

    def _woken_up(self) -> None:
        self._woken = False
        if not self.closed:
            self._pump()

    def _pump(self) -> None:
        self._follow()
        while len(self._to_client) <= _BUFFER_BYTES:
            pieces = self.session.data_to_send(self._world.random.choice(_BUDGETS))
            if not pieces:
                if self._follow():
                    continue
                break
            self._to_client += b"".join(pieces)
        if self._to_client or self.session.closing:
            self._read_later()
        if not self._blocked:
            self._deliver_later()

    def _follow(self) -> bool:
        changed = False
        while self.session.successor is not None:
            self.session = self.session.successor
            changed = True
        return changed

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
        if self._to_client:
            self._client.receive(self._chunk(self._to_client, self._profile.read_chunk_max))
        if not self.closed:
            self._pump()
            if self.session.closing and not self._to_client:
                self.in_order = True
                self._end()

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Tell the session the time."""
        if not self.closed:
            self.session.tick(now)
            self._pump()

    # --- the end --------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break the connection; what is on its way arrives up to some byte, in each direction."""
        if self.closed:
            return
        if self._to_server and not self._blocked and self._world.chance(0.5):
            self.session.receive_data(self._chunk(self._to_server, len(self._to_server)))
            self._follow()
        self.server_died()

    def server_died(self) -> None:
        """End as after a crash of the server: some of what it had sent still arrives."""
        if self.closed:
            return
        if self._to_client and self._world.chance(0.5):
            self._client.receive(self._chunk(self._to_client, len(self._to_client)))
        self._end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.session.connection_lost()
        self._gone(self)
        self._client.disconnected()
