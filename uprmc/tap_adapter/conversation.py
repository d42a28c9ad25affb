"""What the parts of one TAP producer share: the client's wishes, its streams, both registries.

`openings` begins streams and mends what a branch of history has spoilt, `feed` moves them on,
and `producer` is what the session sees of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from uprmc.config import TapSettings
from uprmc.model import SnapshotRange
from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.tap import Connect, ConnectFlag, TapFlag, TapOpaque
from uprmc.protocol.upr import Marker
from uprmc.tap_adapter.names import TapCursor, TapName
from uprmc.tap_adapter.translate import TapForm, with_ack
from uprmc.tap_adapter.upstream import Upstream
from uprmc.tap_adapter.window import SEQUENCE_MAX, Mark, Settled, TapControl, TapWindow

if TYPE_CHECKING:
    from uprmc.tap_adapter.openings import Correction

# --- stream ---------------------------------------------------------------------------------------
# One vBucket on its way to a TAP client: where its stream stands on this connection.
#
# What outlives the connection is the vBucket's `TapCursor` (`names`); this is the rest. Nothing
# happens here by itself: `openings` begins streams, `feed` moves them on, `producer` tells what was
# acknowledged.


class Phase(Enum):
    """What a stream does; the texts are those of statistics."""

    OPENING = "opening"
    STREAMING = "streaming"
    CORRECTING = "correcting"
    WAITING = "waiting"
    ENDED = "ended"


class TapStream:
    """The stream of one vBucket on one connection."""

    __slots__ = (
        "announced",
        "answer_due",
        "asked",
        "backfilling",
        "beginnings",
        "checkpoint_open",
        "corrected_log",
        "corrected_seqno",
        "corrected_serial",
        "cursor",
        "dropped",
        "emptying",
        "ending",
        "from_scratch",
        "granted",
        "handing_over",
        "history",
        "kept",
        "number",
        "opaque",
        "outdated",
        "phase",
        "position",
        "rejoins",
        "reopened",
        "rolled_back",
        "snapshot",
        "standing_seqno",
        "surveyed",
        "told_open",
        "whole",
    )

    def __init__(self, number: int, cursor: TapCursor, standing_seqno: int) -> None:
        """See the class."""
        self.number = number  # the vBucket's
        self.cursor = cursor  # what is kept of it
        # The vBucket's high seqno when the client connected, or was last asked to empty it; and
        # whether that is of the contents that are streamed.
        self.standing_seqno = standing_seqno
        self.surveyed = True
        self.phase = Phase.OPENING
        self.opaque = 0  # of the UPR stream, new for each opening
        self.history = 0  # the one that was granted last
        self.asked = False  # an opening is unanswered
        self.outdated = False  # its answer is not wanted any more, and another is
        self.granted = False  # the UPR producer has granted it once on this connection
        self.dropped = False  # the client does not want the vBucket any more
        self.from_scratch = False  # the client must empty its vBucket first
        self.emptying = False  # it was asked to, or will be, and has not acknowledged that
        self.backfilling = False  # the first snapshot from 0 is not acknowledged whole
        self.beginnings = 0  # how often the stream was begun
        self.checkpoint_open = False  # the client knows, on this connection, that one has begun
        self.answer_due = False  # the producer waits for word that the snapshot was processed
        self.told_open = False  # a client of closed checkpoints knows that it has them all
        #: Id and beginning of the checkpoint whose end is about to leave.
        self.ending: tuple[int, int] | None = None
        # The takeover is in its last phase: what is sent is kept until it is acknowledged, because
        # the source does not answer any more.
        self.handing_over = False
        self.kept: list[bytes] = []
        self.return_to(Mark(cursor.acked, *cursor.snapshot))

    def return_to(self, mark: Mark) -> None:
        """Stand at an earlier place, or at the first one."""
        self.position = mark.seqno  # of the newest item that was translated, or where it begins
        self.snapshot = SnapshotRange(mark.start, mark.end)  # `position` lies in it
        #: The next snapshot continues the one before it: items of it are sent again.
        self.rejoins = self.cursor.sent > mark.seqno or mark.seqno < mark.end
        self.whole = not self.rejoins  # the snapshot is complete
        self.announced = False  # the UPR stream has announced one since it was opened
        self.reopened = False  # it has ended by itself, and nothing has come since
        self.rolled_back: int | None = None  # to where the UPR producer has sent it back
        self.corrected_log = b""  # by which the client's items have been corrected
        #: Number of the last correction, ``None`` when all are acknowledged; their highest seqno.
        self.corrected_serial: int | None = None
        self.corrected_seqno = 0

    def start_over(self) -> None:
        """Stand at the beginning; the client is to empty its vBucket."""
        self._begin_again()
        self.from_scratch = self.emptying = self.backfilling = True
        self.whole = not self.standing_seqno

    def start_empty(self) -> None:
        """Stand at the beginning; there is nothing here, nor at the client."""
        self._begin_again()
        self.from_scratch = self.emptying = self.backfilling = False
        self.standing_seqno = 0
        self.surveyed = self.whole = True

    def _begin_again(self) -> None:
        self.return_to(Mark(0, 0, 0))
        self.beginnings += 1
        self.checkpoint_open = self.answer_due = self.told_open = False
        self.ending = None

    @property
    def mark(self) -> Mark:
        """Where the client is when it has all that was sent."""
        seqno, (start, end) = self.position, self.snapshot
        return Mark(seqno, start, end) if seqno < end else Mark(seqno, seqno, seqno)

    def is_ended_by(self, marker: Marker) -> bool:
        """Tell whether a marker shows that the snapshot before it is complete."""
        return self.announced and not self.whole and marker.start_seqno > self.snapshot.end

    def announce(self, marker: Marker) -> bool:
        """Begin a snapshot; returns whether it is a new one, not more of the one before."""
        more = self.rejoins or (self.announced and not self.whole)
        start = min(self.snapshot.start, marker.start_seqno) if more else marker.start_seqno
        self.snapshot = SnapshotRange(min(start, self.position), marker.end_seqno)
        self.announced = True
        self.rejoins = False
        self.whole = marker.end_seqno <= self.position
        return not more

    def advance(self, seqno: int) -> None:
        """Note the newest item that was translated."""
        self.position = seqno
        self.cursor.sent = max(self.cursor.sent, seqno)
        self.whole = seqno >= self.snapshot.end
        self.reopened = self.told_open = False


# --- send queue -----------------------------------------------------------------------------------
# The order in which messages leave: `TapControl` messages first, items as gates and window allow.
#
# Job: number the messages, say which ask to be acknowledged, and keep the account (`TapWindow`). A
# client that acknowledges is asked at every so many messages and whenever nothing more follows. The
# newest message is therefore **kept back** until it is known whether something follows it; it
# leaves before anything else does, so that the order stays.


_CHECKPOINTS = frozenset({Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END})

#: Without acknowledgements no run is longer, so that the memory of its keys has a limit.
_RUN_MESSAGES = 4_096


class SendQueue:
    """The messages that wait to be sent to one client."""

    def __init__(self, window: TapWindow, interval: int, *, acks: bool) -> None:
        """See the class; `interval`: after how many messages the client is asked."""
        self.acks = acks  # whether the client acknowledges
        self.window = window  # what it has not acknowledged
        self.items = 0  # sent so far; other messages too in `messages`
        self.messages = 0
        self.acks_asked = 0  # messages that asked to be acknowledged
        #: Messages after which the client's place is another than before; most OPAQUE are not.
        self.binding = 0
        self._interval = interval
        self._queue: deque[TapControl] = deque()
        self._kept: list[bytes] = []
        self._kept_bytes = 0

    @property
    def queued(self) -> int:
        """How many `TapControl` messages have not left."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether everything was sent and taken."""
        return not self._queue and not self._kept and self.window.empty

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

    def post(self, control: TapControl) -> None:
        """Send it when its turn comes."""
        self._queue.append(control)

    def post_again(self, control: TapControl) -> None:
        """Send it before all others: it was refused."""
        self._queue.appendleft(control)

    def withdraw(self, vbucket: int) -> None:
        """Forget what has not left of a vBucket, because its stream begins again."""
        self._queue = deque(
            control
            for control in self._queue
            if control.vbucket != vbucket or not _is_of_stream(control)
        )

    def put_controls(self, out: list[bytes]) -> int:
        """Append those that may leave; returns their bytes."""
        size = 0
        while self._queue and self._may_leave(self._queue[0]):
            if self._kept:
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

    def _may_leave(self, control: TapControl) -> bool:
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
        """Take a run of items into account that ends `out`; returns the bytes that are kept back.

        Args:
            out: its pieces; `release` was called before they came.
            vbucket: the vBucket of the messages.
            count: messages.
            last_head: index of the last one's first piece.
            mark: the place at which the client is when it has them.
            ask: whether the last one is to be acknowledged in any case.
            before: as of `TapWindow.add_items`.
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
        self._kept = out[last_head:]
        self._kept_bytes = sum(map(len, self._kept))
        del out[last_head:]
        return self._kept_bytes

    def release(self, out: list[bytes], *, ask: bool) -> int:
        """Append what is kept back; returns its bytes."""
        if not self._kept:
            return 0
        if ask:
            self._kept[0] = with_ack(self._kept[0])
            self._asked()
        out += self._kept
        self._kept = []
        return self._kept_bytes

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


def _binds(control: TapControl) -> bool:
    return control.opcode != Opcode.TAP_OPAQUE or control.word == TapOpaque.INITIAL_VBUCKET_STREAM


def _is_of_stream(control: TapControl) -> bool:
    if control.opcode == Opcode.TAP_OPAQUE:
        return control.word in _OF_STREAM
    return control.opcode in _CHECKPOINTS


# --- conversation ---------------------------------------------------------------------------------


class TapConversation:
    """What the parts of one TAP producer share."""

    def __init__(
        self,
        connect: Connect,
        known: TapName,
        upstream: Upstream,
        settings: TapSettings,
        wake: Callable[[], None],
        unix_now: float,
    ) -> None:
        """See the class; `unix_now` tells whether the oldest entry wanted lies in the future."""
        flags = known.flags
        self.known = known  # what outlives the connection
        self.upstream = upstream  # where the streams come from
        self.settings = settings
        self.wake = wake  # to be called when there may be something to send by itself
        window = TapWindow(settings.ack_interval * settings.ack_window)
        acks = bool(flags & ConnectFlag.SUPPORT_ACK)
        self.send_queue = SendQueue(window, settings.ack_interval, acks=acks)
        self.form = TapForm(  # how items are wanted
            keys_only=bool(flags & ConnectFlag.REQUEST_KEYS_ONLY),
            network_byte_order=connect.has(ConnectFlag.FIX_FLAG_BYTEORDER),
        )
        #: The client gets what is there now and no more.
        self.dump = bool(flags & ConnectFlag.DUMP)
        #: The client is to become the active one.
        self.takeover = bool(flags & ConnectFlag.TAKEOVER_VBUCKETS)
        self.asks_checkpoints = bool(flags & ConnectFlag.CHECKPOINT)
        #: The client wants to know where snapshots begin and end.
        self.checkpoints = self.asks_checkpoints and not self.dump
        #: The client wants no backfill.
        self.from_now = connect.has(ConnectFlag.BACKFILL) and connect.oldest_entry_s > unix_now
        self.everything = connect.vbuckets is None  # it has named no vBuckets
        #: The last closed checkpoint of each vBucket, by the client's own word.
        self.last_closed = dict(connect.last_closed)
        #: Keys are noted, so that corrections are possible.
        self.keeps_keys = not self.dump and settings.rollback == "rewind"
        self.streams: dict[int, TapStream] = {}  # by vBucket
        self.by_opaque: dict[int, TapStream] = {}  # those that are open upstream
        self.corrections: dict[int, Correction] = {}  # those under way, by vBucket
        #: Histories that count when the client has taken the corrections, by vBucket.
        self.moving: dict[int, int] = {}
        self.closed = ""  # why to hang up, "" while not
        self.dirty = False  # the client's place has changed since it was saved
        self.urgent = False  # ... so that a crash would cost a whole backfill

    def fail(self, why: str) -> None:
        """Hang up; the first reason counts."""
        self.closed = self.closed or why


# --- checkpoints ----------------------------------------------------------------------------------
# Snapshots as checkpoints: CHECKPOINT_START and CHECKPOINT_END, and who wants only closed ones.
#
# Each snapshot after the backfill is a checkpoint, counted from 1 for a vBucket's history. It ends
# when the next one begins; for a client of closed checkpoints it ends as soon as it is whole, since
# such a client goes away then and comes back for the rest.
#
# Note: a new connection begins with the start of the open checkpoint, again, and never with its
# end. The far end of a pipe may be another process, which would not know what ends.


class Checkpoints:
    """The checkpoints of one connection."""

    def __init__(self, conversation: TapConversation) -> None:
        """See the class."""
        self._conversation = conversation
        self._moved: dict[TapStream, None] = {}

    def announce(self, stream: TapStream, *, is_new: bool) -> None:
        """Tell of a snapshot; `is_new`: it is not more of the one before."""
        if not self._conversation.checkpoints or stream.backfilling:
            return
        cursor = stream.cursor
        if stream.checkpoint_open:
            if not is_new:
                return
            self._follow(stream)
            return
        if not cursor.checkpoint_id or cursor.checkpoint_id in cursor.closed:
            cursor.open_checkpoint(cursor.checkpoint_id + 1, stream.position)
        stream.checkpoint_open = True
        self._conversation.send_queue.post(_start_of(stream))

    def _follow(self, stream: TapStream) -> None:
        """End the open one and begin the next.

        The ends of many vBuckets leave together, and so do the beginnings. Of one vBucket the
        beginning waits for the end, which may be refused and sent again.
        """
        cursor = stream.cursor
        checkpoint_id = cursor.checkpoint_id + 1
        if self._conversation.send_queue.acks:
            self._end(stream, acked=partial(self._start, stream, stream.beginnings, checkpoint_id))
            cursor.open_checkpoint(checkpoint_id, stream.position)
        else:
            self._end(stream)
            cursor.open_checkpoint(checkpoint_id, stream.position)
            self._conversation.send_queue.post(_start_of(stream))
        stream.checkpoint_open = True

    def _start(self, stream: TapStream, beginning: int, checkpoint_id: int) -> None:
        """Post the beginning that waited; not if the vBucket begins again, or is not wanted."""
        same = stream.beginnings == beginning and not stream.dropped
        if same and stream.cursor.checkpoint_id == checkpoint_id:
            self._conversation.send_queue.post(_start_of(stream))

    def _end(self, stream: TapStream, acked: Callable[[], None] | None = None) -> None:
        """Post the end of the open one; all of it is acknowledged when that leaves."""
        number, cursor = stream.number, stream.cursor
        left = partial(self._ended, stream, cursor.checkpoint_id, stream.position)
        stream.checkpoint_open = False
        stream.ending = cursor.checkpoint_id, cursor.checkpoint_after
        self._conversation.send_queue.post(
            TapControl(
                Opcode.TAP_CHECKPOINT_END, number, cursor.checkpoint_id, left=left, acked=acked
            )
        )

    def _ended(self, stream: TapStream, checkpoint_id: int, seqno: int) -> None:
        stream.ending = None
        self._conversation.known.closed(stream.number, checkpoint_id, seqno)

    # --- closed ones only -----------------------------------------------------------------------

    def moved(self, stream: TapStream) -> None:
        """Note that a stream has begun, got on, or was acknowledged."""
        if self._conversation.known.closed_only:
            self._moved[stream] = None

    def tell_complete(self) -> bool:
        """Tell a client of closed ones where it has them all; says whether there was need to."""
        ready = [stream for stream in self._moved if _has_everything(stream)]
        for stream in ready:
            del self._moved[stream]
        unaware = [stream for stream in ready if not stream.told_open]
        for stream in unaware:
            stream.told_open = True
            if stream.checkpoint_open:
                self._end(stream)
            self._conversation.send_queue.post(
                TapControl(Opcode.TAP_OPAQUE, stream.number, TapOpaque.OPEN_CHECKPOINT)
            )
        return bool(unaware)


def _start_of(stream: TapStream) -> TapControl:
    cursor = stream.cursor
    return TapControl(
        Opcode.TAP_CHECKPOINT_START,
        stream.number,
        cursor.checkpoint_id,
        deleted_rev=cursor.deleted_rev,
    )


def _has_everything(stream: TapStream) -> bool:
    at_rest = stream.phase is Phase.STREAMING and stream.whole and not stream.backfilling
    return at_rest and stream.position >= stream.standing_seqno


def take_back_end(conversation: TapConversation, stream: TapStream) -> None:
    """Let a checkpoint go on whose end has not left: some of it was refused, and is sent again."""
    if stream.ending is not None:
        conversation.send_queue.withdraw(stream.number)
        stream.cursor.open_checkpoint(*stream.ending)
        stream.ending = None
        stream.checkpoint_open = True
        stream.told_open = False
