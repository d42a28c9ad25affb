"""A simulated notifier: it waits for news of every vBucket and fetches nothing.

Source: UPR reference 2.1 (flag 0x02) and 4.5.
"""

from __future__ import annotations

from tests.sim import upr_codec as codec
from tests.sim.judges import complain
from tests.sim.upr_codec import Frame, Position
from tests.sim.upr_connection import Connection, Listener, Manners
from tests.sim.upr_judges import RequestJudge
from tests.sim.upr_truth import Log, Truth
from tests.sim.world import World

_MANNERS = Manners(flags=codec.AS_NOTIFIER)
_PAUSE_S = 0.1


class Notifier:
    """See the module docstring.

    Attributes:
        fired: how often it was told that there is news.
    """

    def __init__(self, world: World, node: Listener, truth: Truth, vbuckets: int) -> None:
        self.fired = 0
        self.done = False
        self._world = world
        self._node = node
        self._truth = truth
        self._requests = RequestJudge(truth)
        self._logs: dict[int, Log] = dict.fromkeys(range(vbuckets), ())
        self._seen = dict.fromkeys(range(vbuckets), 0)
        self._waiting: dict[int, tuple[int, Position, int]] = {}
        self._granted: set[int] = set()
        self._connection: Connection | None = None
        self._think()

    def _think(self) -> None:
        if self.done:
            return
        if self._connection is None:
            connection = Connection(
                self._world, self._node, b"notifier", _MANNERS, self._pushed, self._lost
            )
            self._connection = connection if connection.open else None
        else:
            for number in self._logs:
                if number not in self._waiting and self._world.chance(0.3):
                    self._ask(self._connection, number)
        self._world.after(self._world.between(0, _PAUSE_S), self._think)

    def _ask(self, connection: Connection, number: int) -> None:
        log = [entry for entry in self._logs[number] if entry[1] <= self._seen[number]]
        start = self._seen[number]
        asked = Position(start, codec.NEVER, log[0][0] if log else 0, start, start)
        step = self._truth.step
        opaque = connection.ask_stream(number, asked, lambda reply: self._asked(number, reply))
        self._waiting[number] = (opaque, asked, step)

    def _asked(self, number: int, reply: Frame) -> None:
        _, asked, step = self._waiting[number]
        self._requests.answered(number, asked, step, reply.place, reply.value, notifier=True)
        if reply.place == codec.OK:
            self._granted.add(number)
            self._logs[number] = codec.failover_log(reply.value)
            return
        del self._waiting[number]
        if reply.place == codec.ROLLBACK:
            self._seen[number] = codec.number64(reply.value)

    def _pushed(self, frame: Frame) -> None:
        number = frame.place
        opaque, asked, step = self._waiting.pop(number, (0, None, 0))
        if frame.opcode != codec.STREAM_END or opaque != frame.opaque or asked is None:
            complain(f"a notifier gets {frame}")
        if number not in self._granted:
            complain(f"a notifier's stream ends before it is granted: {frame}")
        self._granted.discard(number)
        if codec.number32(frame.extras) == codec.END_OK:
            high = max(look.high for look in self._truth.since(number, step))
            if high <= asked.start:
                complain(f"a notifier is told of news after {asked.start}; there is {high}")
            self._seen[number] = self._truth.now(number).high
            self.fired += 1

    def _lost(self) -> None:
        self._connection = None
        self._waiting.clear()
        self._granted.clear()

    def settled(self) -> bool:
        """Tell whether it knows of everything."""
        for number in self._logs:
            look = self._truth.now(number)
            served = look.state in (codec.ACTIVE, codec.REPLICA)
            if served and (number not in self._granted or self._seen[number] < look.high):
                return False
        return True

    def leave(self) -> None:
        """Go for good."""
        self.done = True
        if self._connection is not None:
            self._connection.hang_up()
