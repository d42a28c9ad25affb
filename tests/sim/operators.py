"""The operator of a cluster: who follows whom, who fails over, who takes over, one after another.

It knows what it wants (`wanted`: who is to be active; `sources`: who follows whom) and repeats a
command until it is answered. What a command answered is held to what is true at that moment.

Source: reference `systems.md` e.5, e.6; ``docs/operations.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable

from tests.sim import codec
from tests.sim.codec import Frame
from tests.sim.judges import complain
from tests.sim.net import FAST, Link, Net, address
from tests.sim.node import Node
from tests.sim.replica_judges import HandOverJudge
from tests.sim.truth import Histories
from tests.sim.world import World
from tests.sim.writer import Clerk

_PAUSE_S = 0.01

#: Patience with an answer; then the connection is given up.
_PATIENCE = 2_000

Script = Generator[None]


class Operator:
    """See the module docstring."""

    def __init__(self, net: Net, histories: Histories, vbuckets: int) -> None:
        self.net = net
        self.names = [node.name for node in net.nodes.values()]  # of the nodes
        # by vBucket, who is to be active
        self.wanted = dict.fromkeys(range(vbuckets), self.names[0])
        # by (vBucket, name), who that one is to follow
        self.sources: dict[tuple[int, str], str] = {}
        self.done: dict[str, int] = {}  # what it did, how often
        self.verdicts: dict[int, int] = {}  # what takeovers answered, by number
        self.working = False  # whether it goes on thinking of things to do
        self._histories = histories
        self._judge = HandOverJudge(net, histories)
        self._world = net.world
        self._scripts: list[Script] = []
        self._clerks = {
            node.name: Clerk(net.world, node, histories.node(node.name), vbuckets, 1.0)
            for node in net.nodes.values()
        }
        self._think()

    # --- one thing after the other ----------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._scripts)

    def do(self, script: Script) -> None:
        """Do this after everything else."""
        self._scripts.append(script)

    def _think(self) -> None:
        if self._scripts and next(self._scripts[0], self) is self:
            self._scripts.pop(0)
        self._world.after(self._world.between(0, _PAUSE_S), self._think)

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def node(self, name: str) -> Node:
        return self.net.nodes[address(name)]

    def _ask(self, name: str, opcode: int, **parts: object) -> Generator[None, None, Frame | None]:
        """Send a command and wait; ``None`` = the connection was lost or there was none."""
        replies: list[Frame] = []
        clerk = self._clerks[name]
        if not clerk.ask(opcode, replies.append, **parts):
            yield
            return None
        connection = clerk.connection
        for _ in range(_PATIENCE):
            if replies:
                return replies[0]
            if connection is None or clerk.connection is not connection:
                return None
            yield
        complain(f"{name} does not answer {opcode:#x} within {_PATIENCE} looks")

    # --- scripts ----------------------------------------------------------------------------------

    def make(self, name: str, numbers: Iterable[int]) -> Script:
        """Make vBuckets active at the beginning."""
        for number in numbers:
            self.wanted[number] = name
            reply = yield from self._ask(
                name, codec.SET_VBUCKET, vbucket=number, extras=b"\0\0\0\1"
            )
            assert reply is not None
            assert reply.status == codec.OK

    def follow(
        self, name: str, source: str, numbers: Iterable[int], *, tries: int = 1_000_000
    ) -> Script:
        """Let `name` follow `source`, whatever it holds."""
        numbers = list(numbers)
        for number in numbers:
            self.sources[number, name] = source
        for _ in range(tries):
            reply = yield from self._ask(
                name,
                codec.REPLICATE,
                key=address(source).encode(),
                extras=codec.DEMOTE.to_bytes(4, "big"),
                value=codec.numbers(numbers),
                vbucket=0,
            )
            if reply is not None and reply.status == codec.OK:
                self._count("replicate")
                return
            if reply is not None and reply.status != codec.TRY_AGAIN:
                complain(f"{name} does not follow {source}: {reply}")
            yield from self._rest()

    def stop(self, name: str, numbers: Iterable[int]) -> Script:
        """Let `name` follow nobody."""
        numbers = list(numbers)
        for number in numbers:
            self.sources.pop((number, name), None)
        yield from self._ask(
            name,
            codec.REPLICATE,
            extras=codec.STOP.to_bytes(4, "big"),
            value=codec.numbers(numbers),
            vbucket=0,
        )

    def fail_over(self, name: str, numbers: Iterable[int]) -> Script:
        """Make `name` active, whatever the others are; later they follow it."""
        numbers = list(numbers)
        while True:
            reply = yield from self._ask(
                name, codec.FAIL_OVER, value=codec.numbers(numbers), vbucket=0
            )
            if reply is not None and reply.status == codec.OK:
                break
            if reply is not None and reply.status != codec.TRY_AGAIN:
                complain(f"{name} does not fail over: {reply}")
            yield from self._rest()
        self._count("failover")
        self._judge.failed_over(name, codec.branches(reply.value), numbers)
        for number in numbers:
            self.sources.pop((number, name), None)
            self.wanted[number] = name

    def promote_again(self, name: str, number: int) -> Script:
        """Give `name`, which is active, a term above all that anybody has heard of.

        It has to die first: FAILOVER of what is active changes nothing.
        """
        while True:
            reply = yield from self._ask(
                name, codec.SET_VBUCKET, vbucket=number, extras=b"\0\0\0\4"
            )
            if reply is not None and reply.status == codec.OK:
                break
            yield from self._rest()
        yield from self.fail_over(name, [number])

    def compact(self, name: str, number: int) -> Script:
        """Drop deletions at one node."""
        high = self._histories.node(name).now(number).high
        upto = self._world.random.choice((0, self._world.random.randint(0, high + 1)))
        extras = struct.pack(">QQB7x", 0, upto, not upto)
        self._count("compact")
        yield from self._ask(name, codec.COMPACT, vbucket=number, extras=extras)

    def flush(self, name: str) -> Script:
        """Have `name` forget everything; who follows it does the same."""
        self._histories.node(name).flushes_asked += 1
        self._count("flush")
        yield from self._ask(name, codec.FLUSH, vbucket=0)

    def take_over(self, source: str, target: str, numbers: Iterable[int]) -> Script:
        """Hand over from `source` to `target`; what is not taken is made right again."""
        numbers = list(numbers)
        self._judge.begins(numbers)
        was_active = self._has_some(target, numbers)
        reply = yield from self._ask(
            target,
            codec.TAKE_OVER,
            key=address(source).encode(),
            value=codec.numbers(numbers),
            vbucket=0,
        )
        self._count("takeover")
        if reply is None:
            yield from self._after_silence(source, target, numbers)
            return
        if reply.status != codec.OK:
            self._refused(reply, target, was_active or self._has_some(target, numbers))
            return
        told = codec.outcomes(reply.value)
        if sorted(told) != sorted(numbers):
            complain(f"{target} was asked for {numbers} and answers {told}")
        for number, outcome in told.items():
            self.verdicts[outcome] = self.verdicts.get(outcome, 0) + 1
            self._judge.answered(number, source, target, outcome)
            if outcome == codec.TAKEN:
                self._taken(number, source, target)
        for number, outcome in told.items():
            if outcome == codec.INTERRUPTED:
                yield from self._reactivate(number, source)

    def _has_some(self, name: str, numbers: list[int]) -> bool:
        return any(name in self._histories.active_at(number) for number in numbers)

    def _refused(self, reply: Frame, target: str, active: bool) -> None:
        """Nothing has changed: the source did not begin, or the target is active itself.

        It may have been when it was asked: a client tells it at any time that it was deposed.
        """
        if reply.status != codec.TRY_AGAIN and not (active and reply.status == codec.INVALID):
            complain(f"{target} does not take over: {reply}")
        self.verdicts[codec.REFUSED] = self.verdicts.get(codec.REFUSED, 0) + 1

    def _taken(self, number: int, source: str, target: str) -> None:
        self._count("taken")
        self.wanted[number] = target
        self.sources.pop((number, target), None)

    def _reactivate(self, number: int, source: str) -> Script:
        """Nobody may be active: give it back to the source."""
        while True:
            reply = yield from self._ask(
                source, codec.SET_VBUCKET, vbucket=number, extras=b"\0\0\0\1"
            )
            if reply is not None and reply.status == codec.OK:
                return
            yield from self._rest()

    def _after_silence(self, source: str, target: str, numbers: list[int]) -> Script:
        """The answer is lost: wait until both are up, look who is active."""
        self._count("answer lost")
        for number in numbers:
            while not (self.node(source).serving and self.node(target).serving):
                yield from self._rest()
            yield from self._rest(1.0)
            active = self._histories.active_at(number)
            if target in active:
                self._taken(number, source, target)
            elif source not in active:
                yield from self.fail_over(target, [number])

    def _rest(self, seconds: float = 0.05) -> Script:
        until = self._world.now + self._world.between(seconds / 2, seconds)
        while self._world.now < until:
            yield

    def pause(self, seconds: float) -> Script:
        """Do nothing for a while."""
        yield from self._rest(seconds)

    # --- the end ----------------------------------------------------------------------------------

    def order(self) -> Script:
        """Let everybody be what it is meant to be: one active, the others follow."""
        for number, wanted in self.wanted.items():
            if wanted not in self._histories.active_at(number):
                yield from self.fail_over(wanted, [number])
            for name in self.names:
                if name != wanted:
                    source = self.source_of(number, name)
                    yield from self.follow(name, source, [number])

    def source_of(self, number: int, name: str) -> str:
        """Return whom `name` is to follow so that it comes from the active, whatever was."""
        wanted = self.wanted[number]
        source, seen = self.sources.get((number, name), wanted), {name}
        first = source
        while source != wanted:
            if source in seen or source not in self.names:
                return wanted
            seen.add(source)
            source = self.sources.get((number, source), "")
        return first


# --- a manager that splices -----------------------------------------------------------------------


_THINK_S = 0.1
_OWN = 0xBEEF


class Side:
    """One of the two connections; hands whole frames to the splice."""

    def __init__(self, splice: Splice, node: Node) -> None:
        self._splice = splice
        self._packets = codec.Packets()
        self.far: Side | None = None
        self.link: Link | None = node.connect(self, FAST, False)

    def send(self, data: bytes) -> None:
        """Put bytes on the way to the node."""
        if self.link is not None:
            self.link.send(data)

    def receive(self, data: bytes) -> None:
        """Pass whole frames on."""
        for frame in self._packets.whole(data):
            if int.from_bytes(frame[12:16], "big") == _OWN and frame[0] == 0x81:
                self._splice.answered(frame[1], int.from_bytes(frame[6:8], "big"))
            elif self.far is not None:
                self.far.send(frame)

    def disconnected(self) -> None:
        """One side gone, both are."""
        self.link = None
        self._splice.lost()

    def hang_up(self) -> None:
        if self.link is not None:
            self.link.cut()


class Splice:
    """A manager that joins two nodes by hand: it adds streams at one and splices it to the other.

    What the nodes say to each other it passes on unread; it keeps the answers to its own commands.

    Source: UPR reference 5.
    """

    def __init__(self, world: World, replica: Node, source: Node, numbers: Iterable[int]) -> None:
        self.refused: dict[int, int] = {}  # answers to ADD_STREAM that were no success, by status
        self.working = True  # whether it comes back when it is lost
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
