"""Simulated clients: they keep several requests under way and check how they are answered.

A client is the judge of its own connection: replies come in the order of requests, one for each,
with its opaque and opcode; a quiet request may be passed over in silence, no other may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.sim import codec
from tests.sim.codec import Frame, FrameReader
from tests.sim.judges import History, Op, complain
from tests.sim.net import FAST, Link, LinkProfile
from tests.sim.world import World

#: Makes a link for a client, ``None`` while nobody listens.
Connect = Callable[["Client", LinkProfile, bool], Link | None]

_NO_CAS = (0, codec.CAS_HIDDEN)

_QUIET = {
    codec.GET: codec.GETQ,
    codec.SET: codec.SETQ,
    codec.ADD: codec.ADDQ,
    codec.REPLACE: codec.REPLACEQ,
    codec.DELETE: codec.DELETEQ,
    codec.INCREMENT: codec.INCREMENTQ,
    codec.APPEND: codec.APPENDQ,
}


@dataclass(frozen=True, slots=True)
class Habits:
    """How a client behaves."""

    weights: dict[str, int]  # how often it does what, by kind
    depth: int = 4  # requests under way at most
    think_max_s: float = 0.01  # pause before the next ones
    # the documents it works on, and counters
    keys: tuple[bytes, ...] = (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h")
    counters: tuple[bytes, ...] = (b"n1", b"n2")
    value_max: int = 900  # longest value
    by_key: bool = False  # uses the listener that computes the vBucket itself
    hello: bool = True  # negotiates seqnos and lock status
    quiet: float = 0.1  # share of requests in their quiet form
    short_lives: bool = False  # whether documents may get expiry times of a few seconds
    profile: LinkProfile = FAST  # what its link is like


class Client:
    """See the module docstring."""

    def __init__(
        self,
        name: str,
        world: World,
        history: History,
        connect: Connect,
        vbuckets: int,
        habits: Habits,
    ) -> None:
        self.name = name
        self.habits = habits
        self.working = False  # whether it thinks of new requests by itself
        self.last: dict[bytes, int] = {}  # per key the CAS it saw last
        self.locked: dict[bytes, int] = {}
        self.uuids: dict[int, int] = {}
        self.under_way: deque[Op] = deque()
        self._world = world
        self._history = history
        self._connect = connect
        self._vbuckets = vbuckets
        self._link: Link | None = None
        self._reader = FrameReader()
        self._connection = 0
        self._opaque = 0
        self._thinking = False
        self._lock_status = False

    # --- the connection -------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._link is not None

    def connect(self) -> bool:
        """Try to get a link; a new one begins with HELLO if that is the habit."""
        self._link = self._connect(self, self.habits.profile, self.habits.by_key)
        if self._link is None:
            return False
        self._reader = FrameReader()
        self._connection += 1
        self._lock_status = False
        if self.habits.hello:
            features = [codec.WITH_SEQNOS, codec.WITH_LOCK_STATUS]
            self.send(self.make("hello", codec.HELLO), value=codec.hello_value(features))
            self._lock_status = True
        return True

    def hang_up(self) -> None:
        """End the connection from this side, wherever it is."""
        if self._link is not None:
            self._link.cut()

    def disconnected(self) -> None:
        """The link is gone: what was under way has happened or never will."""
        self._link = None
        while self.under_way:
            self._history.ends(self.under_way.popleft())
        self._think_later()

    def receive(self, data: bytes) -> None:
        """Match replies with requests."""
        for reply in self._reader.feed(data):
            self._settle(reply)
        self._think_later()

    def _settle(self, reply: Frame) -> None:
        while self.under_way:
            op = self.under_way.popleft()
            if op.opaque == reply.opaque:
                if op.opcode != reply.opcode:
                    complain(f"{op} was answered with opcode {reply.opcode:#04x}")
                expected = codec.NOT_FOUND if op.kind == "get" else codec.OK
                if op.quiet and reply.status == expected:
                    complain(f"{op} is quiet and was answered: {reply}")
                op.reply = reply
                self._learn(op, reply)
                self._history.ends(op)
                return
            if not op.quiet:
                complain(f"{op} was passed over; then came {reply}")
            op.silent = True
            self._history.ends(op)
        complain(f"{self.name}: a reply nobody asked for: {reply}")

    def _learn(self, op: Op, reply: Frame) -> None:
        if reply.status != codec.OK:
            return
        if op.kind == "getl":
            self.locked[op.key] = reply.cas
        elif op.kind in ("unlock", "delete"):
            self.locked.pop(op.key, None)
        if (
            op.kind in ("get", "set", "add", "replace", "append", "incr", "touch")
            and reply.cas not in _NO_CAS
        ):
            self.last[op.key] = reply.cas
        if reply.token is not None:
            self.uuids[op.vbucket] = reply.token[0]

    # --- requests -------------------------------------------------------------------------------

    def make(self, kind: str, opcode: int, key: bytes = b"") -> Op:
        self._opaque += 1
        return Op(
            kind,
            key,
            codec.vbucket_of(key, self._vbuckets) if key else 0,
            self.name,
            self._connection,
            opcode,
            self._opaque,
            lock_status=self._lock_status,
        )

    def send(self, op: Op, *, extras: bytes = b"", value: bytes = b"") -> Op:
        """Put an operation on the wire."""
        assert self._link is not None
        if op.quiet:
            op.opcode = _QUIET[op.opcode]
        self.under_way.append(op)
        self._history.begins(op)
        self._link.send(
            codec.frame(
                op.opcode,
                key=b"" if op.kind == "observe" else op.key,
                extras=extras,
                value=value,
                vbucket=op.vbucket,
                opaque=op.opaque,
                cas=op.cas,
            )
        )
        return op

    def get(self, key: bytes, *, quiet: bool = False) -> Op:
        op = self.make("get", codec.GET, key)
        op.quiet = quiet
        return self.send(op)

    def store(
        self,
        key: bytes,
        value: bytes,
        *,
        kind: str = "set",
        cas: int = 0,
        flags: int = 0,
        exptime: int = 0,
        quiet: bool = False,
    ) -> Op:
        """Set, add or replace a document."""
        opcode = {"set": codec.SET, "add": codec.ADD, "replace": codec.REPLACE}[kind]
        op = self.make(kind, opcode, key)
        op.value, op.cas, op.flags, op.exptime, op.quiet = value, cas, flags, exptime, quiet
        return self.send(op, extras=codec.store_extras(flags, exptime), value=value)

    def append(self, key: bytes, piece: bytes, *, cas: int = 0, quiet: bool = False) -> Op:
        op = self.make("append", codec.APPEND, key)
        op.value, op.cas, op.quiet = piece, cas, quiet
        return self.send(op, value=piece)

    def increment(
        self, key: bytes, delta: int, *, initial: int = 0, create: bool = True, cas: int = 0
    ) -> Op:
        op = self.make("incr", codec.INCREMENT, key)
        op.delta, op.initial, op.cas = delta, initial, cas
        op.exptime = 0 if create else codec.NEVER_CREATE
        return self.send(op, extras=codec.counter_extras(delta, initial, op.exptime))

    def delete(self, key: bytes, *, cas: int = 0, quiet: bool = False) -> Op:
        op = self.make("delete", codec.DELETE, key)
        op.cas, op.quiet = cas, quiet
        return self.send(op)

    def touch(self, key: bytes, exptime: int) -> Op:
        op = self.make("touch", codec.TOUCH, key)
        op.exptime = exptime
        return self.send(op, extras=codec.number32(exptime))

    def get_and_lock(self, key: bytes, seconds: int) -> Op:
        op = self.make("getl", codec.GETL, key)
        op.exptime = seconds
        return self.send(op, extras=codec.number32(seconds))

    def unlock(self, key: bytes, cas: int) -> Op:
        op = self.make("unlock", codec.UNLOCK, key)
        op.cas = cas
        return self.send(op)

    def observe(self, key: bytes) -> Op:
        """Ask whether a document is on disk."""
        op = self.make("observe", codec.OBSERVE, key)
        return self.send(op, value=codec.observe_value([(op.vbucket, key)]))

    def observe_seqno(self, vbucket: int, uuid: int) -> Op:
        """Ask how far a vBucket is on disk."""
        op = self.make("observe_seqno", codec.OBSERVE_SEQNO)
        op.vbucket = vbucket
        op.uuid = uuid
        return self.send(op, value=codec.number64(uuid))

    def flush(self) -> Op:
        return self.send(self.make("flush", codec.FLUSH))

    def noop(self) -> Op:
        """Ask for a sign of life; also settles quiet requests before it."""
        return self.send(self.make("noop", codec.NOOP))

    # --- a will of its own ----------------------------------------------------------------------

    def work(self) -> None:
        """Begin to think of requests."""
        self.working = True
        self._think_later()

    def rest(self) -> None:
        """Think of nothing new; let what is under way end."""
        self.working = False
        if self.under_way and self.under_way[-1].quiet:
            self.noop()

    def _think_later(self) -> None:
        if self.working and not self._thinking:
            self._thinking = True
            self._world.after(self._world.between(0, self.habits.think_max_s), self._think)

    def _think(self) -> None:
        self._thinking = False
        if not self.working:
            return
        if self._link is None and not self.connect():
            self._thinking = True
            self._world.after(self._world.between(0.01, 0.1), self._think)
            return
        room = self.habits.depth - len(self.under_way)
        for _ in range(self._world.random.randint(0, max(0, room))):
            self._one()
        if self.under_way:
            if self.under_way[-1].quiet:
                self.noop()
        else:
            self._think_later()

    def _one(self) -> None:
        habits, random = self.habits, self._world.random
        kinds = list(habits.weights)
        kind = random.choices(kinds, [habits.weights[each] for each in kinds])[0]
        key = random.choice(habits.counters if kind == "incr" else habits.keys)
        quiet = random.random() < habits.quiet
        cas = random.choice((0, 0, self.last.get(key, 0), self.locked.get(key, 0)))
        if kind == "get":
            self.get(random.choice(habits.keys + habits.counters), quiet=quiet)
        elif kind in ("set", "add", "replace"):
            cas = 0 if kind == "add" else cas
            flags = random.getrandbits(32)
            exptime, value = self._exptime(), self._value()
            self.store(key, value, kind=kind, cas=cas, flags=flags, exptime=exptime, quiet=quiet)
        elif kind == "append":
            self.append(key, b"+%s%d" % (self.name.encode(), self._opaque), cas=cas, quiet=quiet)
        elif kind == "incr":
            create = random.random() < 0.7
            self.increment(key, random.randint(1, 9), initial=random.randint(0, 9), create=create)
        elif kind == "delete":
            self.delete(random.choice(habits.keys + habits.counters), quiet=quiet)
        elif kind == "touch":
            self.touch(key, self._exptime())
        elif kind == "getl":
            self.get_and_lock(key, random.randint(1, 3))
        elif kind == "unlock":
            self.unlock(key, self.locked.get(key, 12345))
        elif kind == "observe":
            self.observe(random.choice(habits.keys + habits.counters))
        elif kind == "observe_seqno":
            number = codec.vbucket_of(key, self._vbuckets)
            self.observe_seqno(number, self.uuids.get(number, 1))
        else:
            assert kind == "flush"
            self.flush()

    def _exptime(self) -> int:
        random = self._world.random
        if self.habits.short_lives and random.random() < 0.3:
            return random.randint(1, 3)
        return random.choice((0, 0, 100_000, random.randint(200_000, 300_000)))

    def _value(self) -> bytes:
        """Return a value that no other operation writes."""
        random = self._world.random
        head = b"%s.%d;" % (self.name.encode(), self._opaque)
        return head.ljust(random.randint(1, self.habits.value_max), b".")
