"""The order in which messages leave: `Control` messages first, items as gates and window allow.

Job: number the messages, say which ask to be acknowledged, and keep the account (`Window`). A
client that acknowledges is asked at every so many messages and whenever nothing more follows. The
newest message is therefore **held back** until it is known whether something follows it; it leaves
before anything else does, so that the order stays.

Source: TAP reference 5.
"""

from __future__ import annotations

from collections import deque

from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.tap import TapFlag, TapOpaque
from uprmc.tap_adapter.item_messages import with_ack
from uprmc.tap_adapter.window import SEQUENCE_MAX, Control, Mark, Settled, Window

_CHECKPOINTS = frozenset({Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END})

#: Without acknowledgements no run is longer, so that the memory of its keys has a limit.
_RUN_MESSAGES = 4_096


class SendQueue:
    """The messages that wait to be sent to one client.

    Attributes:
        acks: whether the client acknowledges.
        window: what it has not acknowledged.
        items: sent so far; other messages too in `messages`.
        acks_asked: messages that asked to be acknowledged.
        binding: messages after which the client's place is another than before; most OPAQUE are
            not.
    """

    def __init__(self, window: Window, interval: int, *, acks: bool) -> None:
        """See the class; `interval`: after how many messages the client is asked."""
        self.acks = acks
        self.window = window
        self.items = 0
        self.messages = 0
        self.acks_asked = 0
        self.binding = 0
        self._interval = interval
        self._queue: deque[Control] = deque()
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def queued(self) -> int:
        """How many `Control` messages have not left."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether everything was sent and taken."""
        return not self._queue and not self._held and self.window.empty

    @property
    def accepts_items(self) -> bool:
        """Whether an item may leave now."""
        if self._queue:
            return False
        return not self.acks or (not self.window.gated and self.window.room > 0)

    @property
    def is_full(self) -> bool:
        """Whether the client must acknowledge before it gets more."""
        return self.acks and self.window.room <= 0

    def most(self) -> int:
        """Return how long the next run may be: it ends where the client is to be asked."""
        sequence = self.window.sequence
        to_wrap = SEQUENCE_MAX + 1 - sequence
        if not self.acks:
            return min(to_wrap, _RUN_MESSAGES)
        to_interval = self._interval - (sequence - 1) % self._interval
        return min(to_wrap, to_interval, self.window.room)

    # --- Control messages -----------------------------------------------------------------------

    def post(self, control: Control) -> None:
        """Send it when its turn comes."""
        self._queue.append(control)

    def post_again(self, control: Control) -> None:
        """Send it before all others: it was refused."""
        self._queue.appendleft(control)

    def withdraw(self, vbucket: int) -> None:
        """Forget what has not left of a vBucket, because its stream begins anew."""
        self._queue = deque(
            control
            for control in self._queue
            if control.vbucket != vbucket or not _is_of_stream(control)
        )

    def put_controls(self, out: list[bytes]) -> int:
        """Append those that may leave; returns their bytes."""
        size = 0
        while self._queue and self._may_leave(self._queue[0]):
            if self._held:
                size += self.release(out, ask=False)
                continue
            control = self._queue.popleft()
            message = control.message(self.window.sequence, TapFlag.ACK if self.acks else 0)
            self.window.add_control(control)
            if control.left is not None:
                control.left()
            self.messages += 1
            self.binding += _binds(control)
            self.acks_asked += self.acks
            out.append(message)
            size += len(message)
        return size

    def _may_leave(self, control: Control) -> bool:
        if not self.acks:
            return True
        if control.after_all:
            return self.window.empty
        if control.opcode in _CHECKPOINTS:  # items of other vBuckets do not matter
            window = self.window
            closed = window.gates_checkpoints or window.holds(control.vbucket)
            return not closed and window.room > 0
        return True

    # --- items ----------------------------------------------------------------------------------

    def placed(
        self,
        out: list[bytes],
        vbucket: int,
        count: int,
        last_head: int,
        mark: Mark,
        *,
        ask: bool,
        before: int | None = None,
    ) -> int:
        """Take a run of items into account that ends `out`; returns the bytes that are held back.

        Args:
            out: its pieces; `release` was called before they came.
            vbucket: the vBucket of the messages.
            count: messages.
            last_head: index of the last one's first piece.
            mark: the place at which the client is when it has them.
            ask: whether the last one is to be acknowledged in any case.
            before: as of `Window.add_items`.
        """
        window = self.window
        window.add_items(vbucket, count, mark, before)
        self.items += count
        self.messages += count
        self.binding += count
        if not self.acks:
            return 0
        if ask or (window.sent - 1) % SEQUENCE_MAX % self._interval == self._interval - 1:
            out[last_head] = with_ack(out[last_head])
            self._asked()
            return 0
        self._held = out[last_head:]
        self._held_bytes = sum(map(len, self._held))
        del out[last_head:]
        return self._held_bytes

    def release(self, out: list[bytes], *, ask: bool) -> int:
        """Append what is held back; returns its bytes."""
        if not self._held:
            return 0
        if ask:
            self._held[0] = with_ack(self._held[0])
            self._asked()
        out += self._held
        self._held = []
        return self._held_bytes

    def _asked(self) -> None:
        self.window.end_stretch()
        self.acks_asked += 1

    def settle_unasked(self) -> Settled | None:
        """Take what was put out as acknowledged where the client acknowledges nothing."""
        if self.acks or self.window.empty:
            return None
        return self.window.acknowledge_all()


#: OPAQUE commands that belong to the stream of one vBucket.
_OF_STREAM = frozenset(
    {TapOpaque.INITIAL_VBUCKET_STREAM, TapOpaque.OPEN_CHECKPOINT, TapOpaque.CLOSE_BACKFILL}
)


def _binds(control: Control) -> bool:
    return control.opcode != Opcode.TAP_OPAQUE or control.word == TapOpaque.INITIAL_VBUCKET_STREAM


def _is_of_stream(control: Control) -> bool:
    if control.opcode == Opcode.TAP_OPAQUE:
        return control.word in _OF_STREAM
    return control.opcode in _CHECKPOINTS
