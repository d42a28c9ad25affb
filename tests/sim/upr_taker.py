"""A simulated target of takeovers: it takes a vBucket over, then gives it back.

It answers every marker after the last item of its snapshot and every change of state. When the
stream has ended it must hold all that was ever accepted, and the source must be dead. Then it makes
the source active again, by command, as a manager would after the vBucket has wandered on.

Source: UPR reference 4.4; row D52.
"""

from __future__ import annotations

import struct

from tests.sim import upr_codec as codec
from tests.sim.judges import complain
from tests.sim.upr_codec import Frame, Position
from tests.sim.upr_connection import Connection, Listener, Manners
from tests.sim.upr_copy import Copy
from tests.sim.upr_judges import StreamJudge
from tests.sim.upr_truth import Truth
from tests.sim.world import World

_PAUSE_S = 0.3


class Taker:
    """See the module docstring.

    Attributes:
        taken: how often a takeover came to its end.
    """

    def __init__(self, world: World, node: Listener, truth: Truth, vbuckets: int) -> None:
        self.taken = 0
        self.done = False
        self._world = world
        self._node = node
        self._truth = truth
        self._vbuckets = vbuckets
        self._connection: Connection | None = None
        self._vbucket: int | None = None
        self._copy = Copy(1)
        self._judge: StreamJudge | None = None
        self._states: list[int] = []
        self._opaque = 0
        self._uuid = 0
        self._think()

    def _think(self) -> None:
        if self.done:
            return
        if self._connection is None:
            connection = Connection(
                self._world, self._node, b"taker", Manners(), self._pushed, self._lost
            )
            self._connection = connection if connection.open else None
        elif self._vbucket is None:
            self._begin(self._connection)
        self._world.after(self._world.between(0, _PAUSE_S), self._think)

    def _begin(self, connection: Connection) -> None:
        self._vbucket = self._world.random.randrange(self._vbuckets)
        self._copy, self._states = Copy(1), []
        asked = Position(0, codec.NEVER, 0, 0, 0, codec.TAKEOVER | codec.ACTIVE_ONLY)
        self._opaque = connection.ask_stream(self._vbucket, asked, self._asked)

    def _asked(self, reply: Frame) -> None:
        assert self._vbucket is not None
        if reply.place == codec.OK:
            self._uuid = codec.failover_log(reply.value)[0][0]
            self._judge = StreamJudge(self._truth, self._vbucket, self._uuid, self._copy)
        elif reply.place in (codec.NOT_MY_VBUCKET, codec.TRY_AGAIN):
            self._vbucket = None
        else:
            complain(f"a takeover is refused: {reply}")

    def _pushed(self, frame: Frame) -> None:
        judge, connection = self._judge, self._connection
        if judge is None or connection is None or frame.opaque != self._opaque:
            complain(f"a taker gets {frame}")
        if frame.opcode == codec.SNAPSHOT_MARKER:
            judge.announced(*codec.marker(frame.extras), acks=True)
        elif frame.opcode == codec.SET_STATE:
            self._told_state(connection, judge, frame)
        elif frame.opcode == codec.STREAM_END:
            self._ended(codec.number32(frame.extras))
        else:
            self._item(connection, judge, frame)

    def _item(self, connection: Connection, judge: StreamJudge, frame: Frame) -> None:
        version = codec.version(frame, timed=False)
        whole = judge.came(version)
        assert judge.marker is not None
        self._copy.apply(version, judge.marker)
        if whole:
            self._copy.complete()
            judge.whole()
            connection.answer(codec.SNAPSHOT_MARKER, frame.opaque)

    def _told_state(self, connection: Connection, judge: StreamJudge, frame: Frame) -> None:
        (state,) = struct.unpack(">B", frame.extras)
        self._states.append(state)
        in_order = self._states == [codec.PENDING, codec.ACTIVE][: len(self._states)]
        if judge.marker is not None or not in_order:
            complain(f"a taker is told {self._states} at {judge.marker}")
        connection.answer(codec.SET_STATE, frame.opaque)

    def _ended(self, reason: int) -> None:
        number, self._vbucket, self._judge = self._vbucket, None, None
        assert number is not None
        if reason != codec.END_OK:
            return
        if self._states != [codec.PENDING, codec.ACTIVE]:
            complain(f"a takeover ends with {self._states}")
        branch = self._truth.branch(number, self._uuid)
        if self._copy.last != branch.high:
            complain(f"a takeover of {number} ends at {self._copy.last} of {branch.high}")
        self.taken += 1
        if self._connection is not None:
            extras = struct.pack(">I", codec.ACTIVE)
            self._connection.send(
                codec.SET_VBUCKET, lambda reply: None, vbucket=number, extras=extras
            )

    def _lost(self) -> None:
        self._connection = self._judge = self._vbucket = None

    def leave(self) -> None:
        """Go for good."""
        self.done = True
        if self._connection is not None:
            self._connection.hang_up()
