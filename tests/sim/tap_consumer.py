"""Simulated TAP clients: they connect, keep what they are told, leave, and come back by name.

A client obeys the reference and nothing else; what it is told goes to the judges first. How it
behaves otherwise is in its `TapKind`. What it holds is never thrown away by itself: only an initial
stream empties it, so whoever lets it go on from a wrong place is found out when all is at rest.

Source: TAP reference, sections 3 to 7.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tests.sim import tap_codec as tap
from tests.sim.judges import complain
from tests.sim.replica_truth import NodeTruth
from tests.sim.tap_codec import Message
from tests.sim.tap_connection import Errand, TapConnection
from tests.sim.tap_copy import Doc, TapCopy
from tests.sim.tap_judges import ConversationJudge, Limits, VersionBook
from tests.sim.tap_kinds import TapKind
from tests.sim.tap_node import TapNode
from tests.sim.upr_codec import ACTIVE, REPLICA, Version
from tests.sim.world import World

#: So long a client stays away that has lost its connection, or has its dump.
_PAUSE_S = 0.2


class TapConsumer:
    """See the module docstring.

    Attributes:
        name: what it calls itself, whether or not it says so.
        copies: what it holds, by vBucket.
        counts: what it went through.
        calm: it neither leaves nor refuses any more.
        done: it is gone for good.
    """

    def __init__(
        self,
        world: World,
        node: TapNode,
        truth: NodeTruth,
        book: VersionBook,
        vbuckets: int,
        kind: TapKind,
        number: int,
        limits: Limits,
    ) -> None:
        self.kind = kind
        self.name = f"{kind.name}-{number}"
        self.counts: Counter[str] = Counter()
        self.calm = self.done = False
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
            states: tuple[int, ...] = (ACTIVE,)
        else:
            states = (ACTIVE,) if self.kind.dumps else (ACTIVE, REPLICA)
        numbers = self.copies if self.listed is None else self.listed
        return {n for n in numbers if self._truth.now(n).state in states}

    def _sure(self) -> set[int]:
        """Return those of them that it was to be told of ever since it connected."""
        good = (ACTIVE,) if self.listed is None else (ACTIVE, REPLICA)
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
            if any(look.state != ACTIVE or look.log != looks[0].log for look in looks):
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
        """Go for good."""
        self.done = True
        if self._connection is not None:
            self._connection.hang_up()
        if self._errand is not None:
            self._errand.leave()
