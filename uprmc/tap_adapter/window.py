"""What a client was sent and has not acknowledged: TAP's window.

Kept are not messages but **stretches**: what one acknowledgement covers, with the place in each
vBucket's history that it takes the client to. `TapControl` messages (OPAQUE, VBUCKET_SET,
CHECKPOINT) are kept one by one, for they are sent again as they were.

Messages are counted without end, by serials; on the wire they carry 32 bits that skip 0.

Note: a client need not acknowledge what did not ask for it. So an acknowledgement in the middle of
a stretch counts up to the end of the stretch before. When there are very many stretches, new ones
are joined to the last, so a client that never answers costs precision, not memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.tap import (
    checkpoint_end,
    checkpoint_start,
    flush_message,
    opaque_message,
    state_message,
)

#: Numbers on the wire are 1 to this.
SEQUENCE_MAX = 2**32 - 1

#: More stretches than this are joined.
STRETCHES_MAX = 64


_GATE_CHECKPOINTS = frozenset({Opcode.TAP_OPAQUE, Opcode.TAP_FLUSH})


class Mark(NamedTuple):
    """A place in a vBucket's history: a seqno, and the snapshot that it lies in."""

    seqno: int
    start: int
    end: int


class TapControl(NamedTuple):
    """A message that is none of an item; it always asks to be acknowledged."""

    opcode: int  # OPAQUE, VBUCKET_SET, FLUSH, CHECKPOINT_START or CHECKPOINT_END
    vbucket: int  # 0 where it is of the connection
    word: int  # the `TapOpaque`, the state, or the checkpoint's id
    after_all: bool = False  # whether it waits until all before it are acknowledged
    deleted_rev: int = 0  # of CHECKPOINT_START
    left: Callable[[], None] | None = None  # called when it is put out
    acked: Callable[[], None] | None = None  # called when the client has taken it

    @property
    def gates(self) -> bool:
        """Whether no item may follow before it is acknowledged."""
        return self.opcode != Opcode.TAP_VBUCKET_SET

    @property
    def gates_checkpoints(self) -> bool:
        """Whether no checkpoint may begin or end before it is acknowledged."""
        return self.opcode in _GATE_CHECKPOINTS

    def message(self, sequence: int, flags: int) -> bytes:
        """Return it as it goes out."""
        if self.opcode == Opcode.TAP_OPAQUE:
            return opaque_message(self.word, self.vbucket, sequence, flags)
        if self.opcode == Opcode.TAP_VBUCKET_SET:
            return state_message(self.word, self.vbucket, sequence, flags)
        if self.opcode == Opcode.TAP_FLUSH:
            return flush_message(sequence, flags)
        if self.opcode == Opcode.TAP_CHECKPOINT_END:
            return checkpoint_end(self.word, self.vbucket, sequence, flags)
        return checkpoint_start(
            self.word, self.vbucket, sequence, flags, deleted_rev=self.deleted_rev
        )


class Settled(NamedTuple):
    """What an acknowledgement covers."""

    marks: dict[int, Mark]  # how far the client is now, by vBucket
    controls: list[TapControl]  # those it has taken
    size: int  # bytes of UPR that are done with


class TapRefused(NamedTuple):
    """What comes of a negative acknowledgement."""

    settled: Settled  # what lay before it, and the bytes of all that is sent again
    # Those whose items are to be sent again from the last place that was acknowledged.
    vbuckets: list[int]
    control: TapControl | None  # the message that was refused, where it was no item


class _Stretch:
    """Messages `first` to `last`."""

    __slots__ = ("before", "first", "last", "marks", "size")

    def __init__(self, first: int, before: int | None) -> None:
        self.first = first
        self.last = first - 1
        self.before = before  # seqno after which the items of its one vBucket come
        self.marks: dict[int, Mark] = {}
        self.size = 0


class TapWindow:
    """What one client has not acknowledged."""

    def __init__(self, limit: int, begin: int = 0) -> None:
        """See the class; `begin`: messages that count as sent before."""
        self.sent = self.acked = begin  # serials: of the newest message, and of the last dealt with
        self.limit = limit  # this many may be unacknowledged, and one more
        self._stretches: deque[_Stretch] = deque()
        self._controls: deque[tuple[int, TapControl]] = deque()
        self._holders: dict[int, int] = {}
        self._gates = 0
        self._gates_of_checkpoints = 0
        self._joins = False

    @property
    def sequence(self) -> int:
        """Number of the next message, as on the wire."""
        return self.sent % SEQUENCE_MAX + 1

    @property
    def room(self) -> int:
        """How many messages may follow."""
        return self.limit + 1 - (self.sent - self.acked)

    @property
    def empty(self) -> bool:
        """Whether the client has taken all that was sent."""
        return not self._stretches and not self._controls

    @property
    def gated(self) -> bool:
        """Whether a message is unacknowledged that no item may follow."""
        return bool(self._gates)

    @property
    def gates_checkpoints(self) -> bool:
        """Whether a message is unacknowledged that no end or start of a checkpoint may follow."""
        return bool(self._gates_of_checkpoints)

    @property
    def stretches(self) -> int:
        """How many are kept."""
        return len(self._stretches)

    def holds(self, vbucket: int) -> bool:
        """Tell whether items of a vBucket are unacknowledged."""
        return vbucket in self._holders

    # --- sending --------------------------------------------------------------------------------

    def add_items(self, vbucket: int, count: int, mark: Mark, before: int | None = None) -> None:
        """Note items of one vBucket.

        Args:
            vbucket: the vBucket of the messages.
            count: messages.
            mark: the place at which the client is when it has them.
            before: where it stood; they come by rising seqnos. ``None`` = they do not.
        """
        stretches = self._stretches
        if not stretches or not (self._joins or len(stretches) >= STRETCHES_MAX):
            stretches.append(_Stretch(self.sent + 1, before))
        self._joins = True
        self.sent += count
        stretch = stretches[-1]
        stretch.last = self.sent
        if vbucket not in stretch.marks:
            self._holders[vbucket] = self._holders.get(vbucket, 0) + 1
        if before is None or stretch.marks.keys() - {vbucket}:
            stretch.before = None
        stretch.marks[vbucket] = mark

    def end_stretch(self) -> None:
        """Note that the last message asks to be acknowledged."""
        self._joins = False

    def add_control(self, control: TapControl) -> None:
        """Note a message that is none of an item."""
        self.sent += 1
        self._joins = False
        self._controls.append((self.sent, control))
        self._gates += control.gates
        self._gates_of_checkpoints += control.gates_checkpoints

    def owe(self, size: int) -> int:
        """Take bytes of UPR into account; returns how many are done with at once."""
        if not self._stretches:
            return size
        self._stretches[-1].size += size
        return 0

    # --- answers --------------------------------------------------------------------------------

    def acknowledge(self, sequence: int) -> Settled | None:
        """Take an acknowledgement of all up to `sequence`; ``None`` = it is of nothing."""
        serial = self._serial_of(sequence)
        return None if serial is None else self._settle(serial)

    def acknowledge_all(self) -> Settled:
        """Take all as acknowledged by a client that acknowledges nothing."""
        return self._settle(self.sent)

    def refuse(self, sequence: int) -> TapRefused | None:
        """Take a negative acknowledgement of `sequence`; ``None`` = it is of nothing.

        What was sent after the refused item does not count any more, whatever the answers to it
        will be, because it is sent again; that is not so for `TapControl` messages.
        """
        serial = self._serial_of(sequence)
        if serial is None:
            return None
        settled = self._settle(serial - 1)
        self.acked = serial
        if self._controls and self._controls[0][0] == serial:
            return TapRefused(settled, [], self._pop_control())
        if not self._stretches or serial < self._stretches[0].first:
            return TapRefused(settled, [], None)
        settled.marks.update(_marks_up_to(self._stretches[0], serial))
        size = settled.size + sum(stretch.size for stretch in self._stretches)
        vbuckets = list(self._holders)
        self._stretches.clear()
        self._holders.clear()
        return TapRefused(settled._replace(size=size), vbuckets, None)

    def forget(self, vbucket: int) -> None:
        """Let acknowledgements of a vBucket's items move nothing: its stream has begun again."""
        if self._holders.pop(vbucket, 0):
            for stretch in self._stretches:
                stretch.marks.pop(vbucket, None)

    def _serial_of(self, sequence: int) -> int | None:
        ahead = (sequence - self.acked) % SEQUENCE_MAX
        serial = self.acked + ahead
        known = 0 < sequence <= SEQUENCE_MAX and ahead and serial <= self.sent
        return serial if known else None

    def _settle(self, serial: int) -> Settled:
        marks: dict[int, Mark] = {}
        controls: list[TapControl] = []
        size = 0
        stretches = self._stretches
        while stretches and stretches[0].last <= serial:
            stretch = stretches.popleft()
            marks.update(stretch.marks)
            size += stretch.size
            for vbucket in stretch.marks:
                self._release(vbucket)
        while self._controls and self._controls[0][0] <= serial:
            controls.append(self._pop_control())
        self.acked = max(self.acked, serial)
        return Settled(marks, controls, size)

    def _release(self, vbucket: int) -> None:
        left = self._holders[vbucket] - 1
        if left:
            self._holders[vbucket] = left
        else:
            del self._holders[vbucket]

    def _pop_control(self) -> TapControl:
        control = self._controls.popleft()[1]
        self._gates -= control.gates
        self._gates_of_checkpoints -= control.gates_checkpoints
        return control


def _marks_up_to(stretch: _Stretch, serial: int) -> dict[int, Mark]:
    """Say how far the client is that has taken what lies before `serial`, for certain.

    Each item's seqno is at least one above that of the item before it.
    """
    taken = serial - stretch.first
    if stretch.before is None or not taken:
        return {}
    return {
        vbucket: Mark(
            min(stretch.before + taken, seqno), min(stretch.before, start), max(seqno, end)
        )
        for vbucket, (seqno, start, end) in stretch.marks.items()
    }
