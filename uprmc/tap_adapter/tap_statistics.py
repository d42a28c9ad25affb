"""What ``stats tap`` shows of one producer, by the names that ep-engine gave and tools read."""

from __future__ import annotations

from typing import NamedTuple

from uprmc.protocol.tap import ConnectFlag
from uprmc.tap_adapter.conversation import Conversation
from uprmc.tap_adapter.stream import Phase


class TapCounts(NamedTuple):
    """What a producer counts by itself.

    Attributes:
        nacks: negative acknowledgements.
        noops: keep-alives sent.
        strange_answers: those to nothing that was asked.
        sent_bytes: of messages.
    """

    nacks: int = 0
    noops: int = 0
    strange_answers: int = 0
    sent_bytes: int = 0


class TapStatistics(NamedTuple):
    """Numbers of one producer.

    Attributes:
        flags: `ConnectFlag` bits in force.
        registered: whether the client's place is kept.
        vbuckets: those that it gets.
        messages: sent, items of it in `items`.
        unacked: messages that are not acknowledged.
        sent_sequence: number of the newest message.
        acked_sequence: up to this all is acknowledged.
        acks_asked: messages that asked to be acknowledged.
        window_full: whether it must acknowledge before it gets more.
        paused: whether it rests after a negative acknowledgement.
        backfills: vBuckets whose backfill is not acknowledged whole.
        backfill_remaining: seqnos between where these are and where they stood at TAP_CONNECT.
        corrections: vBuckets whose items are being corrected.
        counts: see `TapCounts`.
    """

    flags: int
    registered: bool
    vbuckets: tuple[int, ...]
    messages: int
    items: int
    unacked: int
    sent_sequence: int
    acked_sequence: int
    acks_asked: int
    window_full: bool
    paused: bool
    backfills: int
    backfill_remaining: int
    corrections: int
    counts: TapCounts

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
            ("queue_backoff", str(self.counts.nacks)),
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
            ("num_tap_nack", str(self.counts.nacks)),
            ("total_noops", str(self.counts.noops)),
            ("paused", "1" if self.paused else "0"),
            ("suspended", _yes(self.paused)),
            ("idle", _yes(not self.unacked and not self.backfills)),
            ("total_bytes_sent", str(self.counts.sent_bytes)),
            ("strange_answers", str(self.counts.strange_answers)),
            ("corrections", str(self.corrections)),
        ]


def _yes(value: bool) -> str:
    return "true" if value else "false"


def statistics_of(conversation: Conversation, counts: TapCounts, *, paused: bool) -> TapStatistics:
    """Return the numbers of a producer."""
    send_queue = conversation.send_queue
    window = send_queue.window
    streams = conversation.streams
    backfills = [stream for stream in streams.values() if stream.backfilling]
    remaining = sum(
        max(0, stream.standing_seqno - stream.position)
        for stream in streams.values()
        if stream.phase is not Phase.ENDED
    )
    return TapStatistics(
        conversation.known.flags,
        conversation.known.registered,
        tuple(sorted(streams)),
        send_queue.messages,
        send_queue.items,
        window.sent - window.acked,
        window.sent,
        window.acked,
        send_queue.acks_asked,
        send_queue.is_full,
        paused,
        len(backfills),
        remaining,
        len(conversation.corrections),
        counts,
    )
