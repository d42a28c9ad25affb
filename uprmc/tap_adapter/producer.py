"""One TAP connection fed by UPR streams: what a session sees of it.

Job: begin the streams at TAP_CONNECT, pass answers and the time on. Streams begin in `openings`,
messages come from `feed`, the send queue decides when they leave, `window` remembers what is
unacknowledged, and a `SavedBatch` holds what may not leave to a registered client before it is
saved.

Note: no message says that a dump or a takeover has ended. The connection is closed when everything
is acknowledged, and clients take the end of the connection for success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from uprmc.config import TapSettings
from uprmc.model import VBucketState
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import Opcode, Status
from uprmc.protocol.tap import Connect, ConnectFlag, TapOpaque
from uprmc.tap_adapter.conversation import Phase, TapConversation
from uprmc.tap_adapter.feed import PULL_BYTES, TapFeed
from uprmc.tap_adapter.names import Names, TapName
from uprmc.tap_adapter.upstream import Upstream, UpstreamVBucket
from uprmc.tap_adapter.window import TapControl, TapRefused

# --- tap statistics -------------------------------------------------------------------------------
# What ``stats tap`` shows of one producer, by the names that ep-engine gave and tools read.


class TapStatistics(NamedTuple):
    """Numbers of one producer."""

    flags: int  # `ConnectFlag` bits in force
    registered: bool  # whether the client's place is kept
    vbuckets: tuple[int, ...]  # those that it gets
    messages: int  # sent, items of it in `items`
    items: int
    unacked: int  # messages that are not acknowledged
    sent_sequence: int  # number of the newest message
    acked_sequence: int  # up to this all is acknowledged
    acks_asked: int  # messages that asked to be acknowledged
    window_full: bool  # whether it must acknowledge before it gets more
    paused: bool  # whether it rests after a negative acknowledgement
    backfills: int  # vBuckets whose backfill is not acknowledged whole
    backfill_remaining: int  # seqnos between where these are and where they stood at TAP_CONNECT
    corrections: int  # vBuckets whose items are being corrected
    nacks: int  # negative acknowledgements
    noops: int  # keep-alives sent
    strange_answers: int  # those to nothing that was asked
    sent_bytes: int  # of messages

    def rows(self) -> list[tuple[str, str]]:
        """Return name and text of each, without the prefix ``eq_tapq:NAME:``."""
        flags = ConnectFlag(self.flags)
        names = ",".join(str(flag.name).lower() for flag in flags) or "none"
        return [
            ("type", "producer"),
            ("flags", f"{self.flags} ({names})"),
            ("supports_ack", _yes(bool(flags & ConnectFlag.SUPPORT_ACK))),
            ("reserved", _yes(self.registered)),
            ("vb_filters", str(len(self.vbuckets))),
            ("vb_filter", "{ " + ",".join(map(str, self.vbuckets)) + " }"),
            ("rec_fetched", str(self.messages)),
            ("queue_drain", str(self.items)),
            ("queue_backoff", str(self.nacks)),
            ("queue_backfillremaining", str(self.backfill_remaining)),
            ("total_backlog_size", str(self.backfill_remaining)),
            ("qlen", str(self.backfill_remaining)),
            ("backfill_completed", _yes(not self.backfills)),
            ("pending_backfill", _yes(bool(self.backfills))),
            ("ack_seqno", str(self.sent_sequence)),
            ("recv_ack_seqno", str(self.acked_sequence)),
            ("seqno_ack_requested", str(self.acks_asked)),
            ("ack_log_size", str(self.unacked)),
            ("ack_window_full", _yes(self.window_full)),
            ("num_tap_nack", str(self.nacks)),
            ("total_noops", str(self.noops)),
            ("paused", "1" if self.paused else "0"),
            ("suspended", _yes(self.paused)),
            ("idle", _yes(not self.unacked and not self.backfills)),
            ("total_bytes_sent", str(self.sent_bytes)),
            ("strange_answers", str(self.strange_answers)),
            ("corrections", str(self.corrections)),
        ]


def _yes(value: bool) -> str:
    return "true" if value else "false"


# --- batch ----------------------------------------------------------------------------------------
# The messages of a registered client that wait until its place is saved.
#
# A batch is made, the client's place as it will be with the batch is saved, the batch leaves. So a
# crash can forget nothing that the client may hold. What is acknowledged later is saved now and
# then, only so that less is sent again after a restart.


#: After this long a place that could not be saved is tried again, and one that has moved is saved.
SAVE_INTERVAL_S = 1.0


class SavedBatch:
    """Messages that wait until their client's place is saved."""

    def __init__(
        self, conversation: TapConversation, feed: TapFeed, now: float, stirred: Callable[[], None]
    ) -> None:
        """Begin without a batch.

        Args:
            conversation: the client's.
            feed: what makes batches.
            now: monotonic time in seconds.
            stirred: called when a save has ended.
        """
        self._conversation = conversation
        self._feed = feed
        self._stirred = stirred
        self._now = now
        self._saved_at = now
        self._again_at: float | None = None
        self._pieces: list[bytes] = []
        self._is_safe = False
        self._is_known = False  # whether a crash would leave any place of it

    @property
    def waits(self) -> bool:
        """Whether there is one that has not left."""
        return bool(self._pieces)

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append one that is saved, or make one and have it saved; returns the bytes appended."""
        if not self._pieces:
            send_queue = self._conversation.send_queue
            binding = send_queue.binding
            self._feed.fill(self._pieces, min(budget, PULL_BYTES))
            if not self._pieces:
                if self._conversation.urgent:
                    self._save_place()
                return 0
            if send_queue.binding == binding and self._is_known:
                self._is_safe = True  # a client that forgets these is no worse off
            else:
                self._save()
        if not self._is_safe:
            return 0
        pieces, self._pieces = self._pieces, []
        self._is_safe = False
        out += pieces
        self._feed.settle_unasked()
        return sum(map(len, pieces))

    def tick(self, now: float) -> None:
        """Learn the monotonic time in seconds."""
        self._now = now
        if self._again_at is not None:
            if now >= self._again_at:
                self._save()
            return
        moved = (self._conversation.dirty or not self._is_known) and not self._pieces
        if moved and now - self._saved_at >= SAVE_INTERVAL_S:
            self._save_place()

    def _save_place(self) -> None:
        self._saved_at = self._now
        self._conversation.dirty = self._conversation.urgent = False
        self._conversation.known.save(self._place_saved)

    def _save(self) -> None:
        self._again_at = None
        self._conversation.dirty = self._conversation.urgent = False
        self._conversation.known.save(self._batch_saved)

    def _batch_saved(self, kept: bool) -> None:
        if kept:
            self._is_safe = self._is_known = True
        else:
            self._again_at = self._now + SAVE_INTERVAL_S
        self._stirred()

    def _place_saved(self, kept: bool) -> None:
        self._is_known |= kept
        self._conversation.dirty |= not kept


# --- producer -------------------------------------------------------------------------------------


_NOOP = encode_request(Opcode.NOOP)
_TEMPORARY = frozenset({Status.BUSY, Status.TEMPORARY_FAILURE})

#: This long after an answer "temporary failure" a producer is asked for a stream again.
_ASK_AGAIN_S = 1.0


class TapProducer:
    """One TAP connection that is fed by UPR streams."""

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
        #: Whether a dump or a takeover has ended in good order; `closed` is set then, too.
        self.done = False
        self.refused = False  # whether the client has answered with an error that is not temporary
        self.created_at = now  # monotonic time
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
        self._conversation = TapConversation(
            connect, known, upstream, settings, self._stirred, unix_now
        )
        self._feed = TapFeed(self._conversation)
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
            conversation.send_queue.post(
                TapControl(Opcode.TAP_OPAQUE, 0, TapOpaque.ENABLE_AUTO_NACK)
            )
        if conversation.asks_checkpoints:
            conversation.send_queue.post(
                TapControl(Opcode.TAP_OPAQUE, 0, TapOpaque.ENABLE_CHECKPOINT_SYNC)
            )

    def _begin(self, standings: dict[int, UpstreamVBucket]) -> None:
        if self.closed:
            return
        for number, standing in standings.items():
            self._feed.openings.begin(number, standing)
        self._surveyed = True
        self._stirred()

    def _begin_active(self, standings: dict[int, UpstreamVBucket]) -> None:
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
        """Whether the name has no place to go on from."""
        return self.done or self.refused

    @property
    def ends_unasked(self) -> bool:
        """Whether it comes to its end without a word of the client."""
        return self._conversation.dump and not self._conversation.send_queue.acks

    def statistics(self) -> TapStatistics:
        """Return what statistics show of it."""
        conversation = self._conversation
        send_queue, streams = conversation.send_queue, conversation.streams
        window = send_queue.window
        return TapStatistics(
            flags=conversation.known.flags,
            registered=conversation.known.registered,
            vbuckets=tuple(sorted(streams)),
            messages=send_queue.messages,
            items=send_queue.items,
            unacked=window.sent - window.acked,
            sent_sequence=window.sent,
            acked_sequence=window.acked,
            acks_asked=send_queue.acks_asked,
            window_full=send_queue.is_full,
            paused=self._asleep_until is not None,
            backfills=sum(stream.backfilling for stream in streams.values()),
            backfill_remaining=sum(
                max(0, stream.standing_seqno - stream.position)
                for stream in streams.values()
                if stream.phase is not Phase.ENDED
            ),
            corrections=len(conversation.corrections),
            nacks=self._nacks,
            noops=self._noops,
            strange_answers=self._strange_answers,
            sent_bytes=self._sent_bytes,
        )

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

    def _send_again(self, refused: TapRefused) -> bool:
        """Have what was refused sent again; says whether there is to be a pause before."""
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
            TapControl(Opcode.TAP_OPAQUE, 0, TapOpaque.COMPLETE_VB_FILTER_CHANGE)
        )
        new = [number for number in wanted if number not in conversation.streams]
        conversation.last_closed = wanted
        if new:
            self._surveyed = False
            conversation.upstream.survey(new, self._begin_new)
        self._stirred()

    def _begin_new(self, standings: dict[int, UpstreamVBucket]) -> None:
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


# --- client rows ----------------------------------------------------------------------------------
# What an adapter tells of its clients, under the names that tools of TAP's time read.


#: One statistic: name and text.
Row = tuple[str, str]


def prefix_of(name: bytes) -> str:
    """Return what stands before each of a connection's statistics."""
    return f"eq_tapq:{text_of(name)}:"


def text_of(name: bytes) -> str:
    """Return a name as text; bytes that are none are escaped."""
    return name.decode("utf-8", "backslashreplace")


def client_rows(known: TapName, unix_minus_monotonic_s: float) -> list[Row]:
    """Return one client's statistics, without prefix.

    Args:
        known: the client.
        unix_minus_monotonic_s: turns monotonic times into Unix times.
    """
    producer = known.producer
    rows = [("reconnects", str(known.reconnects))]
    if not isinstance(producer, TapProducer):
        away = [("type", "producer"), ("connected", "false"), ("pending_disconnect", "false")]
        return [*away, ("reserved", _yes(known.registered)), *rows]
    return [
        ("created", str(int(known.created_at + unix_minus_monotonic_s))),
        ("connected", _yes(not producer.closed)),
        ("pending_disconnect", _yes(bool(producer.closed))),
        *rows,
        *producer.statistics().rows(),
    ]


def all_clients(names: Names, unix_minus_monotonic_s: float) -> Iterator[Row]:
    """Yield the statistics of every client, with prefixes; connected ones first."""
    for known in names:
        prefix = prefix_of(known.name)
        for name, text in client_rows(known, unix_minus_monotonic_s):
            yield prefix + name, text
