"""A manager that joins two nodes by hand: it adds streams at one and splices it to the other.

What the nodes say to each other it passes on unread; it keeps the answers to its own commands.

Source: UPR reference 5.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.sim import upr_codec as codec
from tests.sim.link import FAST, Link
from tests.sim.replica_node import ReplicaNode
from tests.sim.world import World

_THINK_S = 0.1
_OWN = 0xBEEF


class Side:
    """One of the two connections; hands whole frames to the splice."""

    def __init__(self, splice: Splice, node: ReplicaNode) -> None:
        self._splice = splice
        self._buffer = b""
        self.far: Side | None = None
        self.link: Link | None = node.connect(self, FAST, False)

    def send(self, data: bytes) -> None:
        """Put bytes on the way to the node."""
        if self.link is not None:
            self.link.send(data)

    def receive(self, data: bytes) -> None:
        """Pass whole frames on."""
        self._buffer += data
        while len(self._buffer) >= 24:
            end = 24 + int.from_bytes(self._buffer[8:12], "big")
            if len(self._buffer) < end:
                return
            frame, self._buffer = self._buffer[:end], self._buffer[end:]
            if int.from_bytes(frame[12:16], "big") == _OWN and frame[0] == 0x81:
                self._splice.answered(frame[1], int.from_bytes(frame[6:8], "big"))
            elif self.far is not None:
                self.far.send(frame)

    def disconnected(self) -> None:
        """One side gone, both are."""
        self.link = None
        self._splice.lost()

    def hang_up(self) -> None:
        """End it."""
        if self.link is not None:
            self.link.cut()


class Splice:
    """See the module docstring.

    Attributes:
        refused: answers to ADD_STREAM that were no success, by status.
        working: whether it comes back when it is lost.
    """

    def __init__(
        self, world: World, replica: ReplicaNode, source: ReplicaNode, numbers: Iterable[int]
    ) -> None:
        self.refused: dict[int, int] = {}
        self.working = True
        self._world = world
        self._nodes = replica, source
        self._numbers = list(numbers)
        self._sides: list[Side] = []
        self._think()

    def _think(self) -> None:
        if self.working and not self._sides and all(node.serving for node in self._nodes):
            self._join()
        self._world.after(self._world.between(0, _THINK_S), self._think)

    def _join(self) -> None:
        near, far = (Side(self, node) for node in self._nodes)
        if near.link is None or far.link is None:
            near.hang_up()
            far.hang_up()
            return
        near.far, far.far = far, near
        self._sides = [near, far]
        name = b"splice-%s" % self._nodes[0].name.encode()
        flags = codec.AS_PRODUCER | codec.DELETE_TIMES
        near.send(codec.open_connection(name, 0, _OWN))
        far.send(codec.open_connection(name, flags, _OWN))
        for number in self._numbers:
            near.send(
                codec.frame(codec.ADD_STREAM, extras=b"\0\0\0\0", vbucket=number, opaque=_OWN)
            )

    def answered(self, opcode: int, status: int) -> None:
        """One of our own commands was answered; a refused stream is asked for anew."""
        if opcode == codec.ADD_STREAM and status:
            self.refused[status] = self.refused.get(status, 0) + 1
            self.hang_up()

    def lost(self) -> None:
        """A side is gone."""
        sides, self._sides = self._sides, []
        for side in sides:
            side.hang_up()

    def hang_up(self) -> None:
        """End the connections."""
        self.lost()
