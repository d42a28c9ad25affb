"""Those who change things while streams run: writers of documents, and a manager of vBuckets.

Leaner than `client.Client`: their replies are only counted, because whether a change was accepted
is seen in the vBucket itself (`truth`). One cross-check is made: a place (uuid, seqno) that a
reply names must hold that very document there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.sim import codec
from tests.sim.codec import Frame, FrameReader
from tests.sim.judges import complain
from tests.sim.net import FAST, Link
from tests.sim.node import Node
from tests.sim.truth import Truth
from tests.sim.world import World

_RETRY_S = 0.05


class Commander:
    """Somebody with an ordinary connection who commands from time to time."""

    depth = 8  # requests under way at most

    def __init__(
        self, world: World, node: Node, truth: Truth, vbuckets: int, pace_s: float
    ) -> None:
        self.working = True  # whether it goes on
        self._world = world
        self._node = node
        self._truth = truth
        self._vbuckets = vbuckets
        self._pace_s = pace_s
        self._link: Link | None = None
        self._reader = FrameReader()
        self._under_way: deque[tuple[int, Callable[[Frame], None] | None]] = deque()
        self._opaque = 0
        self._act_later()

    @property
    def busy(self) -> bool:
        """Whether a command of its is under way."""
        return bool(self._under_way)

    @property
    def resting(self) -> bool:
        """Whether it has stopped, and nothing of its is under way."""
        return not self.working and not self._under_way

    def slow_down(self, pace_s: float) -> None:
        """Act no more often than that."""
        self._pace_s = max(self._pace_s, pace_s)

    def _act_later(self) -> None:
        self._world.after(self._world.between(0, self._pace_s), self._act)

    def _act(self) -> None:
        if not self.working:
            return
        if self._link is None:
            self._connect()
        if self._link is not None and len(self._under_way) < self.depth:
            self._command()
        self._act_later()

    def _connect(self) -> None:
        self._link = self._node.connect(self, FAST, False)
        self._reader = FrameReader()
        if self._link is not None:
            self.send(codec.HELLO, value=codec.hello_value([codec.WITH_SEQNOS]))

    def send(
        self,
        opcode: int,
        *,
        key: bytes = b"",
        extras: bytes = b"",
        value: bytes = b"",
        vbucket: int | None = None,
        settle: Callable[[Frame], None] | None = None,
    ) -> None:
        """Put a request on the wire."""
        assert self._link is not None
        self._opaque += 1
        self._under_way.append((self._opaque, settle))
        number = codec.vbucket_of(key, self._vbuckets) if vbucket is None else vbucket
        self._link.send(
            codec.frame(
                opcode, key=key, extras=extras, value=value, vbucket=number, opaque=self._opaque
            )
        )

    def receive(self, data: bytes) -> None:
        for reply in self._reader.feed(data):
            opaque, settle = self._under_way.popleft()
            if opaque != reply.opaque:
                complain(f"{reply} was not asked for")
            if settle is not None:
                settle(reply)

    def disconnected(self) -> None:
        self._link = None
        self._under_way.clear()

    def _command(self) -> None:
        raise NotImplementedError


class Clerk(Commander):
    """Somebody who commands what others ask for."""

    def _command(self) -> None:
        """Think of nothing."""

    def ask(self, opcode: int, settle: Callable[[Frame], None], **parts: object) -> bool:
        """Send a command; says whether there is a connection."""
        if self._link is None:
            self._connect()
        if self._link is None:
            return False
        self.send(opcode, settle=settle, **parts)  # type: ignore[arg-type]
        return True

    def done(self, opcode: int, **parts: object) -> Frame:
        """Send a command to a node that listens; return its reply."""
        replies: list[Frame] = []
        assert self.ask(opcode, replies.append, **parts)
        self._world.run_until(lambda: bool(replies))
        return replies[0]

    @property
    def connection(self) -> object | None:
        """What carries it, if anything does; another one after a loss, however short."""
        return self._link


class Writer(Commander):
    """Sets, deletes, extends, touches documents; some of them live only for seconds."""

    value_max = 160

    def __init__(
        self,
        world: World,
        node: Node,
        truth: Truth,
        vbuckets: int,
        pace_s: float,
        keys: int,
    ) -> None:
        super().__init__(world, node, truth, vbuckets, pace_s)
        self.keys = tuple(b"k%d" % number for number in range(keys))

    def _command(self) -> None:
        random = self._world.random
        for _ in range(random.choice((1, 1, 2, 5))):
            key = random.choice(self.keys)
            kind = random.choices(("set", "delete", "append", "touch"), (60, 25, 5, 10))[0]
            if kind == "set":
                self._set(key)
            elif kind == "delete":
                self.send(codec.DELETE, key=key)
            elif kind == "append":
                self.send(codec.APPEND, key=key, value=b"+%d" % self._opaque)
            else:
                self.send(codec.TOUCH, key=key, extras=codec.number32(random.randint(1, 90_000)))

    def _set(self, key: bytes) -> None:
        random = self._world.random
        value = b"%d;" % self._opaque
        value = value.ljust(random.randint(0, self.value_max), b".")
        exptime = random.choice((0, 0, 0, 1, 2, 80_000))
        extras = codec.store_extras(random.getrandbits(32), exptime)
        number = codec.vbucket_of(key, self._vbuckets)

        def settle(reply: Frame) -> None:
            if reply.status == codec.OK and reply.token is not None:
                self._check_place(number, key, value, reply)

        self.send(codec.SET, key=key, extras=extras, value=value, settle=settle)

    def _check_place(self, number: int, key: bytes, value: bytes, reply: Frame) -> None:
        assert reply.token is not None
        uuid, seqno = reply.token
        if not self._truth.knows(number, uuid):
            return  # it came and went within one step
        for version in self._truth.branch(number, uuid).segment(seqno - 1, seqno):
            if (version.key, version.value, version.cas) != (key, value, reply.cas):
                complain(f"{reply} was told for {key!r} {value!r}; there is {version}")


class Manager(Commander):
    """Changes states, removes and makes vBuckets, compacts, now and then forgets everything."""

    depth = 1  # two states within one step could not be told apart

    def __init__(
        self,
        world: World,
        node: Node,
        truth: Truth,
        vbuckets: int,
        pace_s: float,
        weights: dict[str, int],
    ) -> None:
        super().__init__(world, node, truth, vbuckets, pace_s)
        self.weights = weights  # how often it does what
        self.mending = False  # whether it only puts everything into the active state
        self.done: dict[str, int] = {}  # what it did, how often

    def _command(self) -> None:
        random = self._world.random
        number = random.randrange(self._vbuckets)
        if self.mending:
            self._mend()
            return
        if not self.weights:
            return
        kind = random.choices(list(self.weights), list(self.weights.values()))[0]
        look = self._truth.now(number)
        self.done[kind] = self.done.get(kind, 0) + 1
        if kind == "compact":
            upto = random.choice((0, random.randint(0, look.high + 1)))
            every = not upto or random.random() < 0.2
            self._send(codec.compact(number, upto, self._next(), every=every))
        elif kind == "state":
            self._set_state(number, random.choice((1, 1, 2, 2, 3, 4)))
        elif kind == "failover":
            self._set_state(number, codec.REPLICA, lambda _: self._activate(number))
        elif kind == "remove":
            self._set_state(number, codec.DEAD, lambda _: self._remove(number))
        else:
            assert kind == "flush"
            self.send(codec.FLUSH)

    def _activate(self, number: int) -> None:
        if self._link is not None:
            self._set_state(number, codec.ACTIVE)

    def _remove(self, number: int) -> None:
        again = self._world.chance(0.7)
        if self._link is not None:
            self.send(
                codec.DELETE_VBUCKET,
                vbucket=number,
                settle=lambda _: self._activate(number) if again else None,
            )

    def _mend(self) -> None:
        for number in range(self._vbuckets):
            if self._truth.now(number).state != codec.ACTIVE:
                self._set_state(number, codec.ACTIVE)

    def _set_state(
        self, number: int, state: int, settle: Callable[[Frame], None] | None = None
    ) -> None:
        self._send(codec.set_vbucket(number, state, self._next(settle)))

    def _next(self, settle: Callable[[Frame], None] | None = None) -> int:
        self._opaque += 1
        self._under_way.append((self._opaque, settle))
        return self._opaque

    def _send(self, data: bytes) -> None:
        assert self._link is not None
        self._link.send(data)


class Pauser(Commander):
    """Stops persistence for a while, now and then; on a connection that waits for nothing else."""

    def _command(self) -> None:
        self.send(codec.STOP_PERSISTENCE)
        self._world.after(self._world.between(0, 0.4), self.resume)

    def resume(self) -> None:
        """Have everything written that waits."""
        if self._link is not None:
            self.send(codec.START_PERSISTENCE)
        elif not self.working:
            self._connect()
            self._world.after(0.1, self.resume)
