"""What kinds of TAP clients there are: what they ask for, how they answer, how moody they are.

Source: TAP reference, sections 3, 5, 7 and 13.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.sim import codec
from tests.sim import tap_codec as tap
from tests.sim.codec import Version
from tests.sim.judges import complain
from tests.sim.net import FAR_AWAY, FAST, SLOW_READER, Link, LinkProfile
from tests.sim.node import Node
from tests.sim.tap_codec import Message, MessageReader
from tests.sim.tap_judges import ConversationJudge, Limits, VersionBook
from tests.sim.truth import NodeTruth
from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class TapKind:
    """What a client is like."""

    name: str
    # of its connects, without those that bring data of their own (BACKFILL, LIST)
    flags: int = tap.SUPPORT_ACK
    age: int | None = None  # what it says with BACKFILL; ``None`` = it does not
    listed: bool = False  # it asks for some vBuckets, not for all
    named: bool = True  # it comes back by the same name; else it has none
    pairs: bool = False  # it says which checkpoints it has closed
    # it is told of closed checkpoints only; ``None`` = that byte is left out
    closed_only: bool | None = None
    ack_delay_max_s: float = 0.005  # how late it answers
    burst: float = 0.0  # chance that it lets answers pile up
    # it answers only the last of a pile, where an answer counts for all before it
    skips: bool = False
    nack: float = 0.0  # chance that it cannot take a message for now
    keyed: bool = False  # it puts a key into its answers
    moody: float = 0.0  # chance of each thought to hang up
    absent_s: float = 0.3  # how long it stays away then
    forgets: float = 0.0  # chance that it deregisters its name before it comes back
    think_max_s: float = 0.05  # pause between two thoughts
    profile: LinkProfile = FAST  # of its links

    def asks(self, flag: int) -> bool:
        """Tell whether a flag is among those it sends."""
        return bool(self.flags & flag)

    @property
    def acks(self) -> bool:
        """Whether it answers."""
        return self.asks(tap.SUPPORT_ACK)

    @property
    def dumps(self) -> bool:
        """Whether it wants a state and no more."""
        return self.asks(tap.DUMP)

    @property
    def skips_the_past(self) -> bool:
        """Whether it wants no backfill."""
        return self.age == tap.FUTURE


_REPLICATION = tap.SUPPORT_ACK | tap.CHECKPOINT | tap.BYTE_ORDER

PLAIN = TapKind("plain")
REPLICA = TapKind("replica", _REPLICATION, listed=True, moody=0.03)
REGISTERED = TapKind("registered", _REPLICATION | tap.REGISTERED, moody=0.1)
BACKUP = TapKind(
    "backup",
    _REPLICATION | tap.REGISTERED,
    closed_only=True,
    pairs=True,
    moody=0.1,
    absent_s=1.0,
    forgets=0.1,
)
BUSY = TapKind("busy", nack=0.08, ack_delay_max_s=0.03, burst=0.3, skips=True, moody=0.02)
SLOW = TapKind("slow", _REPLICATION, ack_delay_max_s=0.3, burst=0.5, profile=SLOW_READER)
SILENT = TapKind("silent", tap.BYTE_ORDER, named=False, profile=FAR_AWAY)
NAMES = TapKind("names", tap.SUPPORT_ACK | tap.KEYS_ONLY | tap.BYTE_ORDER, moody=0.02)
LIVE = TapKind("live", tap.SUPPORT_ACK, age=tap.FUTURE, moody=0.02)
DUMPER = TapKind("dumper", tap.SUPPORT_ACK | tap.DUMP, named=False, keyed=True, moody=0.01)

KINDS = (PLAIN, REPLICA, REGISTERED, BACKUP, BUSY, SLOW, SILENT, NAMES, LIVE, DUMPER)


def draw_kind(world: World) -> TapKind:
    """Draw a kind: one of those with a name, or anything that makes sense."""
    random = world.random
    if random.random() < 0.3:
        return random.choice(KINDS)
    flags = 0
    acks = random.random() < 0.8
    for flag, chance in (
        (tap.SUPPORT_ACK, 1.0 if acks else 0.0),
        (tap.DUMP, 0.12),
        (tap.KEYS_ONLY, 0.1),
        (tap.CHECKPOINT, 0.5),
        (tap.REGISTERED, 0.4 if acks else 0.0),
        (tap.BYTE_ORDER, 0.6),
    ):
        flags |= flag if random.random() < chance else 0
    if flags & tap.DUMP:
        flags &= ~(tap.REGISTERED | tap.CHECKPOINT)
    return _drawn(world, flags, acks)


def _drawn(world: World, flags: int, acks: bool) -> TapKind:
    random = world.random
    named = bool(flags & tap.REGISTERED) or (acks and random.random() < 0.7)
    return TapKind(
        f"kind{flags:x}",
        flags,
        age=None if flags & tap.DUMP else random.choice((None, None, 0, tap.FUTURE)),
        listed=random.random() < 0.4,
        named=named and not flags & tap.DUMP,
        pairs=bool(acks and flags & tap.CHECKPOINT and random.random() < 0.4),
        closed_only=random.choice((None, False, True)) if flags & tap.REGISTERED else None,
        ack_delay_max_s=random.choice((0.001, 0.02, 0.3)),
        burst=random.choice((0.0, 0.3, 0.7)),
        skips=random.random() < 0.4,
        nack=random.choice((0.0, 0.0, 0.01, 0.1)) if acks else 0.0,
        keyed=random.random() < 0.3,
        moody=random.choice((0.0, 0.02, 0.1)),
        absent_s=random.choice((0.0, 0.3, 1.5)),
        forgets=random.choice((0.0, 0.0, 0.2)),
        profile=random.choice((FAST, FAST, FAR_AWAY, SLOW_READER)),
    )


# --- what a client holds --------------------------------------------------------------------------


class Doc(NamedTuple):
    """A document; `value` is ``None`` where values are not wanted."""

    value: bytes | None
    flags: int
    expiry: int
    cas: int


class TapCopy:
    """What a TAP client holds of one vBucket: documents, and the checkpoint that is open.

    It is what a server of that time keeps: it is emptied by an initial stream, its checkpoints
    outlive the connection, and it has no place in any history that the producer could ask for.

    Source: TAP reference, sections 4, 6 and 9.
    """

    def __init__(self, owner: str, number: int, *, anywhere: bool = False) -> None:
        self._owner = f"{owner}: vBucket {number}"
        self.docs: dict[bytes, Doc] = {}  # by key
        # filled: whether it began empty, so that it is to hold everything; backfilling: between the
        # beginning and the end of a backfill
        self.filled = self.backfilling = False
        # open: id of the checkpoint that is open, 0 = none; closed: id of the last one that was
        # closed, 0 = none
        self.open = self.closed = 0
        # whether checkpoints may begin with any id: it was thrown away, which the producer does not
        # know
        self.anywhere = anywhere

    def begin(self) -> None:
        """Be emptied: a backfill follows."""
        self.docs = {}
        self.filled = self.backfilling = True
        self.open = self.closed = 0
        self.anywhere = False

    def flush(self) -> None:
        """Be emptied with all others: no backfill follows."""
        self.begin()
        self.backfilling = False

    def backfilled(self) -> None:
        """The backfill has ended."""
        if not self.backfilling:
            complain(f"{self._owner}: a backfill ends that never began")
        self.backfilling = False

    def take(self, message: Message) -> None:
        if message.opcode == tap.DELETE:
            self.docs.pop(message.key, None)
            return
        value = None if message.flags & tap.NO_VALUE else message.value
        self.docs[message.key] = Doc(value, message.true_flags, message.expiry, message.cas)

    def start(self, number: int, *, first: bool) -> None:
        """A checkpoint begins, and so a backfill has ended; it may be told again.

        Args:
            number: its id.
            first: whether it is the first one on this connection. What ends the one before it may
                have been lost with the last connection; servers of that time bear it.
        """
        self.backfilling = False
        if number == self.open:
            return
        if first and self.open and number == self.open + 1:
            self.closed, self.open = self.open, 0
        if self.anywhere:
            self.anywhere, self.closed = False, number - 1
        if self.open or number != self.closed + 1:
            complain(
                f"{self._owner}: checkpoint {number} begins; {self.open} is open, "
                f"{self.closed} was the last one"
            )
        self.open = number

    def end(self, number: int) -> None:
        """A checkpoint ends; one that has ended already may be told again."""
        if not self.open and (number == self.closed or self.anywhere):
            return
        if number != self.open or not number:
            complain(
                f"{self._owner}: checkpoint {number} ends; {self.open} is open, "
                f"{self.closed} was the last one"
            )
        self.closed, self.open = number, 0


# --- connections ----------------------------------------------------------------------------------


#: How often it may let answers pile up further before it gives them all.
_PILES = 3

#: What a client of that time puts into its answers.
_KEY = b"b95e1b0e-4376-43a6-8047-2be6efb86"

Take = Callable[[Message], bool]


class TapConnection:
    """A simulated TAP connection as its client sees it: the connect, messages, answers.

    It answers as its `TapKind` says: late, in piles, some not at all where a later one counts for
    them; what the client cannot take for now is refused. Everything is told to the judge of the
    conversation.
    """

    def __init__(
        self,
        world: World,
        node: Node,
        kind: TapKind,
        judge: ConversationJudge,
        take: Take,
        lost: Callable[[], None],
    ) -> None:
        # finished: whether the server hung up, and everything that it had said arrived; done:
        # whether the server said then that it had sent all it was asked for
        self.finished = self.done = False
        self.refused: int | None = None  # status of the answer to the connect, if one came
        self.judge = judge
        self._world = world
        self._node = node
        self._kind = kind
        self._take = take
        self._lost = lost
        self._reader = MessageReader()
        self._owed: deque[tuple[Message, int]] = deque()
        self._piled = 0
        self._answering = False
        self._link: Link | None = node.connect(self, kind.profile, False)

    @property
    def open(self) -> bool:
        return self._link is not None

    @property
    def quiet(self) -> bool:
        return not self._owed

    def put(self, data: bytes) -> None:
        if self._link is not None:
            self._link.send(data)

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            if message.is_reply:
                self._replied(message)
            elif message.opcode == tap.NOOP:
                if self._kind.keyed:
                    self.put(tap.answer(tap.NOOP, 0))
            else:
                self.judge.came(message)
                self._took(message, taken=self._take(message))

    def _replied(self, reply: Message) -> None:
        if reply.opcode == tap.CONNECT:
            self.refused = reply.place
        elif reply.opcode != tap.NOOP:
            complain(f"a stream brings {reply}")

    def _took(self, message: Message, *, taken: bool) -> None:
        status = tap.OK
        if not taken:
            status = self._world.random.choice((tap.BUSY, tap.TRY_AGAIN, tap.TRY_AGAIN))
        elif not (message.wants_answer and self._kind.acks):
            return
        self._owed.append((message, status))
        self._answer_later()

    # --- answering --------------------------------------------------------------------------------

    def _answer_later(self) -> None:
        if not self._answering and self._owed:
            self._answering = True
            delay_s = self._world.between(0, self._kind.ack_delay_max_s)
            self._world.after(delay_s, self._answer)

    def _answer(self) -> None:
        self._answering = False
        if self._link is None:
            return
        self._piled += 1
        if self._piled <= _PILES and self._world.chance(self._kind.burst):
            self._answer_later()
            return
        self._piled = 0
        while self._owed:
            message, status = self._owed.popleft()
            if self._kind.skips and status == tap.OK and self._owed:
                continue  # the next one counts for it, or refuses only itself
            self.judge.answered(message, status)
            key = _KEY if self._kind.keyed else b""
            self.put(tap.answer(message.opcode, message.sequence, status, key))

    # --- the end ----------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End it from this side."""
        if self._link is not None:
            self._link.cut()

    def disconnected(self) -> None:
        assert self._link is not None
        self.finished = self._link.in_order
        # Only whether the server believes it; whether it is true is for judges.
        self.done = self._node.said_done(self._link) and self.finished
        self._link = None
        self._owed.clear()
        self._lost()


class Errand:
    """One request on a connection of its own."""

    def __init__(self, node: Node, request: bytes) -> None:
        self.status: int | None = None  # of the reply, ``None`` until there is one
        self.over = False  # whether there is a reply, or there will be none
        self._reader = MessageReader()
        self._link = node.connect(self, FAST, False)
        if self._link is None:
            self.over = True
        else:
            self._link.send(request)

    def receive(self, data: bytes) -> None:
        for reply in self._reader.feed(data):
            self.status = reply.place
            self.over = True

    def leave(self) -> None:
        """Hang up, when nothing more is wanted."""
        if self._link is not None:
            self._link.cut()

    def disconnected(self) -> None:
        self._link = None
        self.over = True


# --- clients --------------------------------------------------------------------------------------


#: So long a client stays away that has lost its connection, or has its dump.
_PAUSE_S = 0.2


class TapConsumer:
    """Simulated TAP clients: they connect, keep what they are told, leave, and come back by name.

    A client obeys the reference and nothing else; what it is told goes to the judges first. How it
    behaves otherwise is in its `TapKind`. What it holds is never thrown away by itself: only an
    initial stream empties it, so whoever lets it go on from a wrong place is found out when all is
    at rest.

    Source: TAP reference, sections 3 to 7.
    """

    def __init__(
        self,
        world: World,
        node: Node,
        truth: NodeTruth,
        book: VersionBook,
        vbuckets: int,
        kind: TapKind,
        number: int,
        limits: Limits,
    ) -> None:
        self.kind = kind
        self.name = f"{kind.name}-{number}"  # what it calls itself, whether or not it says so
        self.counts: Counter[str] = Counter()  # what it went through
        # calm: it neither leaves nor refuses any more; done: it is gone for good
        self.calm = self.done = False
        # what it holds, by vBucket
        self.copies = {number: TapCopy(self.name, number) for number in range(vbuckets)}
        self.listed: list[int] | None = None
        if kind.listed:
            self.listed = sorted(
                world.random.sample(range(vbuckets), world.random.randint(1, vbuckets))
            )
        self._world = world
        self._node = node
        self._truth = truth
        self._book = book
        self._limits = limits
        self._connection: TapConnection | None = None
        self._errand: Errand | None = None
        self._unknown = True  # the server knows nothing of its name
        self._fresh = True  # it knew nothing when the present connection was made
        self._life = 0
        self._back_at = 0.0
        self._step = self._flushes = 0
        self._begun: set[int] = set()
        self._started: set[int] = set()
        self._branched: set[int] = set()
        self._looked: dict[int, int] = {}
        self._opened: set[int] = set()
        self._since: dict[int, int] = {}
        self._at_connect: dict[int, dict[bytes, Version]] = {}
        self._dumped_at = -1.0
        self._think_later()

    # --- a will of its own ------------------------------------------------------------------------

    def _think_later(self) -> None:
        self._world.after(self._world.between(0, self.kind.think_max_s), self._think)

    def _think(self) -> None:
        if self.done:
            return
        if self._errand is not None:
            self._wait_for_the_errand(self._errand)
        elif self._connection is not None:
            self._live(self._connection)
        elif self._world.now >= self._back_at:
            self._return()
        self._think_later()

    def _live(self, connection: TapConnection) -> None:
        if self.calm:
            return
        seen_all = self.kind.closed_only and self._opened >= self._wanted()
        if self._world.chance(self.kind.moody) or (seen_all and self._world.chance(0.1)):
            self._back_at = self._world.now + self._world.between(0, self.kind.absent_s)
            self.counts["left"] += 1
            connection.hang_up()

    def _return(self) -> None:
        if self.kind.named and not self.calm and self._world.chance(self.kind.forgets):
            request = tap.frame(tap.DEREGISTER, key=self.name.encode())
            self._errand = Errand(self._node, request)
        else:
            self._connect()

    def _wait_for_the_errand(self, errand: Errand) -> None:
        if not errand.over:
            return
        errand.leave()
        self._errand = None
        if errand.status is not None:
            if errand.status != tap.OK:
                complain(f"{self.name}: a name is not deregistered: {errand.status:#x}")
            self.counts["deregistered"] += 1
            self._unknown = True
            self._life = self._node.life

    # --- connecting -------------------------------------------------------------------------------

    def _connect(self) -> None:
        kind = self.kind
        numbers = None if self.listed is None else set(self.listed)
        judge = ConversationJudge(self.name, kind, self._limits, numbers, takeover=False)
        judge.branched = self._has_branched
        connection = TapConnection(
            self._world, self._node, kind, judge, self._came, self._disconnected
        )
        if not connection.open:
            return
        self._connection = connection
        self._step = self._truth.step
        self._begun.clear()
        self._flushes = 0
        self._started.clear()
        self._branched.clear()
        self._opened.clear()
        # What a server forgot it knows again when it dies too soon after.
        self._fresh = self._unknown and self._life in (0, self._node.life)
        goes_on = self._goes_on()
        self._unknown = not kind.named
        if kind.dumps or (kind.skips_the_past and not goes_on):
            numbers = list(self.copies)
            self.copies = {n: TapCopy(self.name, n, anywhere=True) for n in numbers}
            self._since.clear()
        self._at_connect = {n: dict(self._truth.held.get(n, {})) for n in self.copies}
        if self._world.chance(0.2):
            connection.put(tap.frame(tap.NOOP))
        connection.put(self._request())
        self.counts["connected"] += 1

    def _goes_on(self) -> bool:
        """Whether the server must know where it stood in each vBucket, whatever happened."""
        return self.kind.asks(tap.REGISTERED) and self.kind.listed and not self._unknown

    def _request(self) -> bytes:
        kind = self.kind
        flags = kind.flags
        flags |= 0 if kind.age is None else tap.BACKFILL
        flags |= 0 if self.listed is None else tap.LIST
        closed: dict[int, int] | None = None
        if kind.pairs:
            closed = {n: copy.closed for n, copy in self.copies.items() if copy.closed}
        return tap.connect(
            self.name.encode() if kind.named else b"",
            flags,
            age=kind.age or 0,
            vbuckets=self.listed or (),
            closed=closed,
            closed_only=kind.closed_only,
        )

    def _disconnected(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.refused == tap.TRY_AGAIN:
            self.counts["refused to connect"] += 1  # it warms up
        elif connection.refused is not None:
            complain(f"{self.name}: its connect is refused: {connection.refused:#x}")
        if self.kind.dumps and connection.done:
            self._judge_dump()
        pause_s = self._world.between(0, _PAUSE_S)
        self._back_at = max(self._back_at, self._world.now + pause_s)

    # --- what comes -------------------------------------------------------------------------------

    def _came(self, message: Message) -> bool:
        """Take a message; says whether it could."""
        connection = self._connection
        assert connection is not None
        if message.place not in self.copies:
            complain(f"{self.name}: {message} is of a vBucket that never was")
        if self.kind.skips_the_past:
            for number in self.copies:
                self._since.setdefault(number, self._truth.now(number).high)
        if not self.calm and self._world.chance(self.kind.nack):
            self.counts["refused"] += 1
            return False
        if message.opcode in (tap.MUTATION, tap.DELETE):
            self._item(message)
        elif message.opcode == tap.OPAQUE:
            self._command(connection, message)
        elif message.opcode == tap.FLUSH:
            self._flush(connection, message)
        elif message.opcode == tap.START:
            first = message.place not in self._started
            self._started.add(message.place)
            self.copies[message.place].start(message.checkpoint, first=first)
            self.counts["checkpoints"] += 1
        elif message.opcode == tap.END:
            self.copies[message.place].end(message.checkpoint)
        return True

    def _has_branched(self, number: int) -> bool:
        """Tell whether something was taken back there since the connection began."""
        looks = self._truth.looks.get(number, [])
        first, self._looked[number] = self._looked.get(number, 0), max(len(looks) - 1, 0)
        for then, now in pairwise(looks[first:]):
            if now.step > self._step and (now.log != then.log or now.high < then.high):
                self._branched.add(number)
        return number in self._branched

    def _item(self, message: Message) -> None:
        number = message.place
        self._book.judge(self.name, message, values=not self.kind.asks(tap.KEYS_ONLY))
        copy = self.copies[number]
        if number not in self._begun and self._must_begin():
            complain(f"{self.name}: {message} comes, and no initial stream was announced")
        if message.opcode == tap.DELETE:
            self.counts["deletions"] += 1
        self.counts["items"] += 1
        self.counts["resumed"] += number not in self._begun and copy.filled
        copy.take(message)

    def _flush(self, connection: TapConnection, message: Message) -> None:
        """Empty everything: once at most for each time that the node has."""
        self._flushes += 1
        if self._flushes > len({step for step in self._truth.flushed if step > self._step}):
            complain(f"{self.name}: {message}: nothing was flushed")
        for copy in self.copies.values():
            copy.flush()
        self._begun.update(self.copies)
        connection.judge.begun_again(None)
        self.counts["flushed"] += 1

    def _must_begin(self) -> bool:
        """Whether the server can know no place of this client, and so tells it everything."""
        return self._fresh and not self.kind.skips_the_past and not self.kind.dumps

    def _command(self, connection: TapConnection, message: Message) -> None:
        number, command = message.place, message.word
        if command == tap.INITIAL:
            self.copies[number].begin()
            self._begun.add(number)
            connection.judge.begun_again(number)
            self.counts["from zero"] += 1
        elif command == tap.CLOSE_BACKFILL:
            self.copies[number].backfilled()
        elif command == tap.OPEN_CHECKPOINT:
            self._opened.add(number)

    # --- at rest ----------------------------------------------------------------------------------

    def come_again(self) -> None:
        """Hang up and connect anew, by now in peace; dumps that there were do not count."""
        self._dumped_at = -1.0
        if self._connection is not None:
            self._connection.hang_up()

    def _wanted(self) -> set[int]:
        """Return the vBuckets that it is to be told of, as things are now."""
        if self.listed is None:
            states: tuple[int, ...] = (codec.ACTIVE,)
        else:
            states = (codec.ACTIVE,) if self.kind.dumps else (codec.ACTIVE, codec.REPLICA)
        numbers = self.copies if self.listed is None else self.listed
        return {n for n in numbers if self._truth.now(n).state in states}

    def _sure(self) -> set[int]:
        """Return those of them that it was to be told of ever since it connected."""
        good = (codec.ACTIVE,) if self.listed is None else (codec.ACTIVE, codec.REPLICA)
        return {
            number
            for number in self._wanted()
            if all(look.state in good for look in self._truth.since(number, self._step))
        }

    def followed(self) -> bool:
        """Tell whether its present connection has brought everything that it must.

        Then the newest item must ask for an answer, since nothing follows; after the next connect
        the end of a backfill is the newest message, which asks in any case.
        """
        connection = self._connection
        if connection is None:
            return False
        if self.kind.dumps:
            return True
        return connection.judge.idle_ok and not any(map(self.difference, self._sure()))

    def settled(self) -> bool:
        """Tell whether it holds everything, and the server has nothing more to say."""
        if self.kind.dumps:
            return self._dumped_at >= 0
        connection = self._connection
        if connection is None or not connection.quiet or any(map(self.difference, self._wanted())):
            return False
        return connection.judge.idle_ok and not self._unopened()

    def _unopened(self) -> set[int]:
        return self._wanted() - self._opened if self.kind.closed_only else set()

    def standing(self) -> str:
        """Tell what is missing, for a failure."""
        connection = self._connection
        if connection is None:
            return "it is not connected"
        wrong = {n: self.difference(n) for n in self._wanted()}
        return (
            f"{self.kind}: {wrong}; not opened: {self._unopened()}; "
            f"answered: {connection.quiet}, {connection.judge.idle_ok}, "
            f"{connection.judge.messages} messages"
        )

    def difference(self, number: int) -> str:
        """Return how what it holds differs from what the node holds; nothing if it does not."""
        copy, held = self.copies[number], self._truth.held.get(number, {})
        if copy.backfilling:
            return "a backfill never ends"
        since = self._since.get(number, 2**64)
        past = self.kind.skips_the_past and not copy.filled
        for key in copy.docs.keys() | held.keys():
            version, mine = held.get(key), copy.docs.get(key)
            if past and mine is None and (version is None or version.seqno <= since):
                continue  # older than what it asked for
            if mine != self._told(version):
                return f"{key!r} is {mine}, not {version}"
        return ""

    def _told(self, version: Version | None) -> Doc | None:
        if version is None or version.deleted:
            return None
        value = None if self.kind.asks(tap.KEYS_ONLY) else version.value
        return Doc(value, version.flags, version.expiry, version.cas)

    def judge(self) -> None:
        """Hold what it has to what is true."""
        for number in self._wanted():
            wrong = "" if self.kind.dumps else self.difference(number)
            if wrong:
                complain(f"{self.name}: vBucket {number}: {wrong}")

    def _judge_dump(self) -> None:
        """A dump is the state of every active vBucket; what changed meanwhile may be either."""
        self.counts["dumps"] += 1
        if self.calm:
            self._dumped_at = self._world.now
        numbers = self.copies if self.listed is None else self.listed
        for number in numbers:
            looks = self._truth.since(number, self._step)
            if any(look.state != codec.ACTIVE or look.log != looks[0].log for look in looks):
                continue
            before, now = self._at_connect[number], self._truth.held.get(number, {})
            docs = self.copies[number].docs
            for key in docs.keys() | before.keys():
                if before.get(key) != now.get(key):
                    continue
                if docs.get(key) != self._told(now.get(key)):
                    complain(
                        f"{self.name}: a dump of vBucket {number} holds {key!r} as "
                        f"{docs.get(key)}, not {now.get(key)}"
                    )

    def leave(self) -> None:
        self.done = True
        if self._connection is not None:
            self._connection.hang_up()
        if self._errand is not None:
            self._errand.leave()


# --- takers ---------------------------------------------------------------------------------------


_FLAGS = tap.SUPPORT_ACK | tap.CHECKPOINT | tap.BYTE_ORDER

#: It gives up after that.
_PATIENCE_S = 8.0


class TapTaker:
    """A simulated server of old times that takes one vBucket over by TAP.

    When the hand-over has ended it must hold what the source held at last, and the source's vBucket
    must be dead. If anything breaks off, nobody may have been told that it is active here.

    Source: TAP reference, section 6; row D56.
    """

    def __init__(
        self,
        world: World,
        node: Node,
        truth: NodeTruth,
        book: VersionBook,
        number: int,
        limits: Limits,
    ) -> None:
        self.over = False  # whether it has ended, somehow
        self.outcome = "broken off"  # ``taken``, ``broken off`` or ``refused``
        self._node = node
        self._truth = truth
        self._book = book
        self._number = number
        self._states: list[int] = []
        self._copy = TapCopy("the taker", number)
        random = world.random
        kind = TapKind(
            "taker",
            _FLAGS if random.random() < 0.5 else tap.SUPPORT_ACK,
            ack_delay_max_s=random.choice((0.001, 0.02)),
            nack=0.0,
        )
        self._nack = random.choice((0.0, 0.0, 0.05))
        self._world = world
        judge = ConversationJudge("the taker", kind, limits, {number}, takeover=True)
        self._connection = TapConnection(world, node, kind, judge, self._came, self._lost)
        if not self._connection.open:
            self.over = True
            return
        flags = kind.flags | tap.LIST | tap.TAKEOVER
        name = b"mv_%d_%x" % (number, random.getrandbits(32))  # nobody's position is known
        self._connection.put(tap.connect(name, flags, vbuckets=[number]))
        world.after(_PATIENCE_S, self._connection.hang_up)

    def _came(self, message: Message) -> bool:
        if message.opcode != tap.VBUCKET_SET and self._world.chance(self._nack):
            return False
        copy = self._copy
        if message.opcode == tap.VBUCKET_SET:
            self._told_state(message)
        elif tap.ACTIVE in self._states:
            complain(f"the taker is active; then comes {message}")
        elif message.opcode in (tap.MUTATION, tap.DELETE):
            if tap.PENDING not in self._states:
                complain(f"the taker is not pending yet; {message}")
            self._book.judge("the taker", message, values=True)
            copy.take(message)
        elif message.opcode == tap.START:
            copy.start(message.checkpoint, first=False)
        elif message.opcode == tap.END:
            copy.end(message.checkpoint)
        elif message.opcode == tap.OPAQUE and message.word == tap.INITIAL:
            copy.begin()
        elif message.opcode == tap.OPAQUE and message.word == tap.CLOSE_BACKFILL:
            copy.backfilled()
        return True

    def _told_state(self, message: Message) -> None:
        state = message.word
        if state not in (tap.PENDING, tap.ACTIVE):
            complain(f"the taker is told {message}")
        if state == tap.ACTIVE:
            self._hand_over(message)
        self._states.append(state)

    def _hand_over(self, message: Message) -> None:
        """From here on the taker is active: nobody else may be."""
        look = self._truth.now(self._number)
        if look.state == codec.ACTIVE:
            complain(f"the taker is made active by {message}, and so is {self._truth.name}: {look}")
        header, _ = self._node.store_judge.newest.vbuckets.get(self._number, (None, {}))
        if self._node.disk.sync and header is not None and int(header.state) == codec.ACTIVE:
            complain(f"the taker is made active by {message}; a crash makes the source so again")
        if self._copy.backfilling:
            complain(f"the taker is made active by {message}, within its backfill")

    def _lost(self) -> None:
        self.over = True
        if self._connection.refused is not None:
            self.outcome = "refused"
        elif tap.ACTIVE in self._states:
            self.outcome = "taken"

    def judge(self) -> None:
        """Hold what was taken to what the source has, which has lived on."""
        if self.outcome != "taken":
            return
        look = self._truth.now(self._number)
        if look.state != codec.DEAD:
            complain(f"the taker is active; {self._truth.name} is {look}")
        held = self._truth.held.get(self._number, {})
        true = {
            key: Doc(each.value, each.flags, each.expiry, each.cas)
            for key, each in held.items()
            if not each.deleted
        }
        mine = self._copy.docs
        for key in true.keys() | mine.keys():
            if mine.get(key) != true.get(key):
                complain(f"the taker holds {key!r} as {mine.get(key)}; there was {held.get(key)}")
