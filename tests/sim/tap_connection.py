"""A simulated TAP connection as its client sees it: the connect, messages, answers.

It answers as its `TapKind` says: late, in piles, some not at all where a later one counts for them;
what the client cannot take for now is refused. Everything is told to the judge of the conversation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.sim import tap_codec as tap
from tests.sim.judges import complain
from tests.sim.link import FAST, Link
from tests.sim.tap_codec import Message, MessageReader
from tests.sim.tap_judges import ConversationJudge
from tests.sim.tap_kinds import TapKind
from tests.sim.tap_node import TapNode
from tests.sim.world import World

#: How often it may let answers pile up further before it gives them all.
_PILES = 3

#: What a client of that time puts into its answers.
_KEY = b"b95e1b0e-4376-43a6-8047-2be6efb86"

Take = Callable[[Message], bool]


class TapConnection:
    """See the module docstring.

    Attributes:
        open: whether there is a link.
        finished: whether the server hung up, and everything that it had said arrived.
        done: whether the server said then that it had sent all it was asked for.
        refused: status of the answer to the connect, if one came.
        quiet: whether nothing is unanswered that asked for an answer.
    """

    def __init__(
        self,
        world: World,
        node: TapNode,
        kind: TapKind,
        judge: ConversationJudge,
        take: Take,
        lost: Callable[[], None],
    ) -> None:
        self.finished = self.done = False
        self.refused: int | None = None
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
        """See the class."""
        return self._link is not None

    @property
    def quiet(self) -> bool:
        """See the class."""
        return not self._owed

    def put(self, data: bytes) -> None:
        """Send bytes."""
        if self._link is not None:
            self._link.send(data)

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take bytes from the link."""
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
        """The link is gone."""
        assert self._link is not None
        self.finished = self._link.in_order
        # Only whether the server believes it; whether it is true is for judges.
        self.done = self._node.said_done(self._link) and self.finished
        self._link = None
        self._owed.clear()
        self._lost()


class Errand:
    """One request on a connection of its own.

    Attributes:
        status: of the reply, ``None`` until there is one.
        over: whether there is a reply, or there will be none.
    """

    def __init__(self, node: TapNode, request: bytes) -> None:
        self.status: int | None = None
        self.over = False
        self._reader = MessageReader()
        self._link = node.connect(self, FAST, False)
        if self._link is None:
            self.over = True
        else:
            self._link.send(request)

    def receive(self, data: bytes) -> None:
        """Take the reply."""
        for reply in self._reader.feed(data):
            self.status = reply.place
            self.over = True

    def leave(self) -> None:
        """Hang up, when nothing more is wanted."""
        if self._link is not None:
            self._link.cut()

    def disconnected(self) -> None:
        """The link is gone."""
        self._link = None
        self.over = True
