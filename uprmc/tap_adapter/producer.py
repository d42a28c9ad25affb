"""One TAP connection fed by UPR streams: what a session sees of it.

Job: begin the streams at TAP_CONNECT, pass answers and the time on. Streams begin in `openings`,
messages come from `feed`, `send_queue` decides when they leave, `window` remembers what is
unacknowledged, and `batch` holds what may not leave to a registered client before it is saved.

Note: no message says that a dump or a takeover has ended. The connection is closed when everything
is acknowledged, and clients take the end of the connection for success.

Source: TAP reference 3, 5, 6, 7 and 10.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.config import TapSettings
from uprmc.model import VBucketState
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.tap import Connect, TapOpaque
from uprmc.tap_adapter.batch import SavedBatch
from uprmc.tap_adapter.conversation import Conversation
from uprmc.tap_adapter.feed import Feed
from uprmc.tap_adapter.names import TapName
from uprmc.tap_adapter.stream import Phase
from uprmc.tap_adapter.tap_statistics import TapCounts, TapStatistics, statistics_of
from uprmc.tap_adapter.upstream import Standing, Upstream
from uprmc.tap_adapter.window import Control, Refused

_NOOP = encode_request(Opcode.NOOP)
_TEMPORARY = frozenset({Status.BUSY, Status.TEMPORARY_FAILURE})

#: This long after an answer "temporary failure" a producer is asked for a stream again.
_ASK_AGAIN_S = 1.0


class TapProducer:
    """One TAP connection that is fed by UPR streams.

    Attributes:
        done: whether a dump or a takeover has ended in good order; `closed` is set then, too.
        refused: whether the client has answered with an error that is not temporary.
        created_at: monotonic time.
    """

    def __init__(
        self,
        connect: Connect,
        known: TapName,
        upstream: Upstream,
        settings: TapSettings,
        wake: Callable[[], None],
        now: float,
        unix_now: float,
    ) -> None:
        """Begin; the streams' positions are taken now.

        Args:
            connect: the client's TAP_CONNECT.
            known: what is known of its name.
            upstream: where streams come from.
            settings: limits and intervals.
            wake: called when there may be something to send by itself.
            now: monotonic time in seconds.
            unix_now: Unix time in seconds.
        """
        self.done = False
        self.refused = False
        self.created_at = now
        self._wake = wake
        self._busy = True
        self._now = now
        self._sent_at = now
        self._full_since: float | None = None
        self._asleep_until: float | None = None
        self._resumed_at = now
        self._noop_due = False
        self._surveyed = False
        self._nacks = self._noops = self._strange_answers = self._sent_bytes = 0
        self._conversation = Conversation(
            connect, known, upstream, settings, self._stirred, unix_now
        )
        self._feed = Feed(self._conversation)
        self._batch: SavedBatch | None = None
        if known.registered:
            self._batch = SavedBatch(self._conversation, self._feed, now, self._stirred)
        self._greet()
        listed = connect.vbuckets is not None
        upstream.survey(connect.vbuckets, self._begin if listed else self._begin_active)
        self._busy = False

    def _greet(self) -> None:
        conversation = self._conversation
        if conversation.send_queue.acks:
            conversation.send_queue.post(Control(Opcode.TAP_OPAQUE, 0, TapOpaque.ENABLE_AUTO_NACK))
        if conversation.asks_checkpoints:
            conversation.send_queue.post(
                Control(Opcode.TAP_OPAQUE, 0, TapOpaque.ENABLE_CHECKPOINT_SYNC)
            )

    def _begin(self, standings: dict[int, Standing]) -> None:
        if self.closed:
            return
        for number, standing in standings.items():
            self._feed.openings.begin(number, standing)
        self._surveyed = True
        self._stirred()

    def _begin_active(self, standings: dict[int, Standing]) -> None:
        self._begin(
            {number: at for number, at in standings.items() if at.state == VBucketState.ACTIVE}
        )

    def _stirred(self) -> None:
        """Something may have to be sent; within a call of the session it looks by itself."""
        if not self._busy:
            self._wake()

    # --- state ----------------------------------------------------------------------------------

    @property
    def closed(self) -> str:
        """Why to hang up after what was sent, ``""`` while not."""
        return self._conversation.closed

    @property
    def finished(self) -> bool:
        """Whether nobody is to go on from here under this name."""
        return self.done or self.refused

    @property
    def ends_unasked(self) -> bool:
        """Whether it comes to its end without a word of the client."""
        return self._conversation.dump and not self._conversation.send_queue.acks

    def statistics(self) -> TapStatistics:
        """Return what statistics show of it."""
        counts = TapCounts(self._nacks, self._noops, self._strange_answers, self._sent_bytes)
        asleep = self._asleep_until is not None
        return statistics_of(self._conversation, counts, paused=asleep)

    # --- sending --------------------------------------------------------------------------------

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append messages, about `budget` bytes at most; returns their bytes.

        0 = there is nothing to send now; the wake-up is called when that changes.
        """
        if self.closed:
            return 0
        self._busy = True
        size = 0
        if self._asleep_until is None:
            size = (self._batch or self._feed).fill(out, budget)
            self._look_for_end()
        if self._noop_due and not size:
            out.append(_NOOP)
            size = len(_NOOP)
            self._noops += 1
        self._noop_due = False
        if size:
            self._sent_at = self._now
            self._sent_bytes += size
        self._busy = False
        return size

    def _look_for_end(self) -> None:
        """Hang up when a dump or a takeover is complete; end of file is what tells the client."""
        conversation = self._conversation
        streams = conversation.streams.values()
        if not self._surveyed or not conversation.send_queue.idle:
            return
        if self._batch is not None and self._batch.waits:
            return
        if self._feed.holds_frames or not (
            conversation.dump or (conversation.takeover and streams)
        ):
            return
        if all(stream.phase is Phase.ENDED for stream in streams):
            self.done = not conversation.closed
            conversation.fail("complete")

    # --- what the client answers ----------------------------------------------------------------

    def answered(self, opcode: int, opaque: int, status: int) -> None:
        """Take an answer; one to nothing that was asked is counted and ignored.

        Args:
            opcode: of the answer; it says nothing, and is not always right.
            opaque: the sequence number that is acknowledged, and all before it.
            status: 0, BUSY or TEMPORARY_FAILURE; any other ends the connection and its name.
        """
        if opcode == Opcode.NOOP or self.closed:
            return
        if not self._conversation.send_queue.acks:
            self._strange_answers += 1
            return
        if not status:
            self._acknowledged(opaque)
        elif status in _TEMPORARY:
            self._nacked(opaque)
        else:
            self.refused = True
            self._conversation.fail(
                f"the client answers message {opaque} with status {status:#04x}"
            )
        self._stirred()

    def _acknowledged(self, sequence: int) -> None:
        settled = self._conversation.send_queue.window.acknowledge(sequence)
        if settled is None:
            self._strange_answers += 1
            return
        self._full_since = None
        self._feed.settled(settled)

    def _nacked(self, sequence: int) -> None:
        refused = self._conversation.send_queue.window.refuse(sequence)
        if refused is None:
            self._strange_answers += 1
            return
        self._nacks += 1
        self._full_since = None
        self._feed.settled(refused.settled, refused.vbuckets)
        if self._send_again(refused):
            self._asleep_until = self._now + self._conversation.settings.backoff_s

    def _send_again(self, refused: Refused) -> bool:
        """Have what was refused sent anew; says whether there is to be a pause before."""
        conversation = self._conversation
        if refused.control is not None:
            conversation.send_queue.post_again(refused.control)
            stream = conversation.streams.get(refused.control.vbucket)
            return stream is None or not stream.handing_over
        pause = False
        for number in refused.vbuckets:
            stream = conversation.streams.get(number)
            if stream is not None and not self._feed.send_again(stream):
                pause = True
        return pause

    # --- time and others ------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Learn the monotonic time in seconds: pauses end, patience does, and keep-alives."""
        self._now = now
        if self.closed:
            return
        self._conversation.upstream.tick(now)
        if self._conversation.upstream.closed:  # who is gated or asleep learns it by no pull
            self._conversation.fail(self._conversation.upstream.closed)
            self._stirred()
            return
        if self._asleep_until is None:
            if self._feed.openings.waits and now - self._resumed_at >= _ASK_AGAIN_S:
                self._resume()
        elif now >= self._asleep_until:
            self._asleep_until = None
            self._resume()
        self._look_at_patience(now)
        if self._batch is not None:
            self._batch.tick(now)
        if now - self._sent_at >= self._conversation.settings.noop_interval_s:
            self._noop_due = True
            self._sent_at = now
            self._stirred()

    def _resume(self) -> None:
        self._resumed_at = self._now
        self._feed.openings.resume()
        self._stirred()

    def _look_at_patience(self, now: float) -> None:
        if not self._conversation.send_queue.is_full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since >= self._conversation.settings.ack_grace_s:
            self._conversation.fail("the client acknowledges nothing")
            self._stirred()

    def change_filter(self, wanted: dict[int, int]) -> None:
        """Send other vBuckets from now on.

        Args:
            wanted: vBucket -> id of its last closed checkpoint, 0 = as it is known here.
        """
        conversation = self._conversation
        for number in [number for number in conversation.streams if number not in wanted]:
            self._feed.openings.drop(conversation.streams[number])
        conversation.send_queue.post(
            Control(Opcode.TAP_OPAQUE, 0, TapOpaque.COMPLETE_VB_FILTER_CHANGE)
        )
        new = [number for number in wanted if number not in conversation.streams]
        conversation.last_closed = wanted
        if new:
            self._surveyed = False
            conversation.upstream.survey(new, self._begin_new)
        self._stirred()

    def _begin_new(self, standings: dict[int, Standing]) -> None:
        streams = self._conversation.streams
        self._begin({number: at for number, at in standings.items() if number not in streams})

    def reset(self) -> None:
        """Have the client empty all its vBuckets, and give it everything."""
        if not self._conversation.dump and not self._conversation.takeover:
            for stream in list(self._conversation.streams.values()):
                self._feed.openings.start_over(stream)
            self._stirred()

    def disconnect(self, why: str) -> None:
        """Hang up: another connection has the name, or it was deregistered."""
        self._conversation.fail(why)
        self._stirred()

    def close(self) -> None:
        """The connection is gone: let go of everything."""
        self._conversation.fail("the connection is gone")
        self._conversation.upstream.close()
