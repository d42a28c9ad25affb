"""A simulated server of old times that takes one vBucket over by TAP.

When the hand-over has ended it must hold what the source held at last, and the source's vBucket
must be dead. If anything breaks off, nobody may have been told that it is active here.

Source: TAP reference, section 6; row D56.
"""

from __future__ import annotations

from tests.sim import tap_codec as tap
from tests.sim.judges import complain
from tests.sim.replica_truth import NodeTruth
from tests.sim.tap_codec import Message
from tests.sim.tap_connection import TapConnection
from tests.sim.tap_copy import Doc, TapCopy
from tests.sim.tap_judges import ConversationJudge, Limits, VersionBook
from tests.sim.tap_kinds import TapKind
from tests.sim.tap_node import TapNode
from tests.sim.upr_codec import ACTIVE, DEAD
from tests.sim.world import World

_FLAGS = tap.SUPPORT_ACK | tap.CHECKPOINT | tap.BYTE_ORDER

#: It gives up after that.
_PATIENCE_S = 8.0


class TapTaker:
    """See the module docstring.

    Attributes:
        over: whether it has ended, somehow.
        outcome: ``taken``, ``broken off`` or ``refused``.
    """

    def __init__(
        self,
        world: World,
        node: TapNode,
        truth: NodeTruth,
        book: VersionBook,
        number: int,
        limits: Limits,
    ) -> None:
        self.over = False
        self.outcome = "broken off"
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
        if look.state == ACTIVE:
            complain(f"the taker is made active by {message}, and so is {self._truth.name}: {look}")
        header, _ = self._node.store_judge.newest.vbuckets.get(self._number, (None, {}))
        if self._node.disk.sync and header is not None and int(header.state) == ACTIVE:
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
        if look.state != DEAD:
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
