"""From frames of UPR to messages of TAP, as far as the client lets them.

One pull of the upstream is taken apart at a time. Runs of items go through `translate`, markers to
`Checkpoints`; the rest is rare. What cannot be dealt with yet (no item leaves while a checkpoint's
end is unacknowledged) stays in the pull until it can: that is the backpressure, and the only data
that is kept.

Note: a feed remembers nothing about single items. What must be sent again is streamed again from
the last position that was acknowledged. Only the last phase of a takeover keeps its frames, because
its source does not answer any more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from functools import partial

from uprmc.errors import RemoteProtocolError
from uprmc.model import SnapshotRange, VBucketState
from uprmc.protocol.header import RequestFrame, unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, EndReason, MarkerFlag, Opcode, Status
from uprmc.protocol.tap import TapOpaque
from uprmc.protocol.upr import SET_VBUCKET_STATE_EXTRAS, STREAM_END_EXTRAS, decode_marker
from uprmc.tap_adapter.conversation import Checkpoints, Phase, TapConversation, TapStream
from uprmc.tap_adapter.cursor import TapCursor
from uprmc.tap_adapter.openings import Openings
from uprmc.tap_adapter.translate import take_frame, translate_run
from uprmc.tap_adapter.window import Settled, TapControl

_ITEMS = frozenset(map(int, (Opcode.UPR_MUTATION, Opcode.UPR_DELETION, Opcode.UPR_EXPIRATION)))
_ASKS_ANSWER = int(MarkerFlag.ACK)

#: A pull is no larger, whatever the budget, so that little is kept for a client that stops.
PULL_BYTES = 128 * 1024

#: What is sent in the last phase of takeovers and not acknowledged; more is not pulled.
KEPT_BYTES = 1024 * 1024


class TapFeed:
    """Turns frames of UPR into messages for one client."""

    def __init__(self, conversation: TapConversation) -> None:
        """See the class."""
        self._conversation = conversation
        self._openings = Openings(conversation, self.settle)
        self._pieces: list[bytes] = []
        self._place = 0
        self._beginnings_end = 0
        self._pulled_bytes = 0
        self._kept_bytes = 0
        self._checkpoints = Checkpoints(conversation)
        # What has left to a registered client, the producer knows, who keeps batches.
        self._settles_at_once = not (conversation.send_queue.acks or conversation.known.registered)

    @property
    def openings(self) -> Openings:
        """Where its streams come from."""
        return self._openings

    @property
    def holds_frames(self) -> bool:
        """Whether a pull is not dealt with to its end."""
        return self._place < len(self._pieces)

    # --- sending --------------------------------------------------------------------------------

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append messages, about `budget` bytes at most; returns their bytes.

        0 = nothing may leave, or there is nothing: the last message asks to be acknowledged then.
        """
        conversation, send_queue = self._conversation, self._conversation.send_queue
        sent = 0
        while not conversation.closed:
            sent += send_queue.put_controls(out)
            if self._settles_at_once:
                self.settle_unasked()
                if send_queue.queued:
                    continue
            if not send_queue.accepts_items:
                # A gate is for items: snapshots of other vBuckets may begin with those that wait.
                if self._place < self._beginnings_end and self._taken(out) is not None:
                    continue
                break
            if sent >= budget:
                return sent
            step = self._step(out, budget - sent)
            if step is None:
                break
            sent += step
        return sent + send_queue.release(out, ask=True)

    def _step(self, out: list[bytes], budget: int) -> int | None:
        """Move on a little; ``None`` = nothing can be done now."""
        for correction in self._conversation.corrections.values():
            if correction.is_ready:
                return correction.put_one(out)
        if not self.holds_frames:
            if self._kept_bytes > KEPT_BYTES:
                return None
            if not self._pull(budget):
                return 0 if self._checkpoints.tell_complete() else None
        return self._taken(out)

    def _taken(self, out: list[bytes]) -> int | None:
        before = len(out)
        try:
            return self._take(out)
        except (RemoteProtocolError, struct.error) as error:
            del out[before:]
            self._conversation.fail(f"the UPR producer: {error}")
            return None

    def _pull(self, budget: int) -> bool:
        conversation = self._conversation
        self._place = 0
        self._pulled_bytes = conversation.upstream.pull(self._pieces, min(budget, PULL_BYTES))
        if not self._pieces and conversation.upstream.closed:
            conversation.fail(conversation.upstream.closed)
        if conversation.checkpoints and conversation.send_queue.acks and not conversation.takeover:
            self._pieces, self._beginnings_end = beginnings_first(self._pieces)
        return bool(self._pieces)

    def _take(self, out: list[bytes]) -> int | None:
        """Deal with one run or frame; ``None`` = it has to wait."""
        pieces, place = self._pieces, self._place
        _, opcode, _, _, _, vbucket, _, opaque, _ = unpack_request(pieces[place])
        stream = self._conversation.by_opaque.get(opaque)
        sent = 0
        if stream is not None and opcode in _ITEMS and stream.number == vbucket:
            sent = self._run(stream, out)
        else:
            request, after = take_frame(pieces, place)
            handler = _HANDLERS.get(opcode) if stream is not None else None
            if handler is not None and stream is not None and not handler(self, stream, request):
                return None
            self._place = after
        if not self.holds_frames:
            self._end_pull()
        return sent

    def _end_pull(self) -> None:
        size, self._pulled_bytes = self._pulled_bytes, 0
        self._pieces.clear()
        self._place = self._beginnings_end = 0
        done = self._conversation.send_queue.window.owe(size)
        if done:
            self._conversation.upstream.acknowledged(done)

    def _run(self, stream: TapStream, out: list[bytes]) -> int:
        conversation, send_queue = self._conversation, self._conversation.send_queue
        sent = send_queue.release(out, ask=False)
        keys: list[bytes] | None = [] if conversation.keeps_keys else None
        pieces, place, before = self._pieces, self._place, stream.position
        sequence, most = send_queue.window.sequence, send_queue.most()
        run = translate_run(pieces, place, out, sequence, most, conversation.form, keys)
        if not run.items or run.last_seqno <= before:
            raise RemoteProtocolError(f"seqno {run.last_seqno} follows {before}")
        self._place = run.place
        stream.advance(run.last_seqno)
        stream.cursor.deleted_rev = max(stream.cursor.deleted_rev, run.deleted_rev)
        if keys is not None:
            conversation.known.ring.add(stream.number, before, run.last_seqno, keys)
        if stream.handing_over and send_queue.acks:
            stream.kept += pieces[place : run.place]
            self._kept_bytes += run.taken
        self._checkpoints.moved(stream)
        waits = conversation.checkpoints or stream.backfilling or stream.answer_due
        kept_back = send_queue.placed(
            out,
            stream.number,
            run.items,
            run.last_head,
            stream.mark,
            ask=stream.whole and waits,
            before=before,
        )
        return sent + run.size - kept_back

    # --- other frames: they say whether they are dealt with -------------------------------------

    def _marker(self, stream: TapStream, request: RequestFrame) -> bool:
        marker = decode_marker(request.extras, request.value)
        if stream.is_ended_by(marker):
            stream.whole = True
        if stream.whole:
            self.settle(stream)
            if stream.backfilling or stream.answer_due:
                return False
        is_new = stream.announce(marker)
        stream.answer_due = bool(marker.kind & _ASKS_ANSWER)
        self._checkpoints.announce(stream, is_new=is_new)
        return True

    def _stream_end(self, stream: TapStream, request: RequestFrame) -> bool:
        (reason,) = STREAM_END_EXTRAS.unpack(request.extras)
        conversation = self._conversation
        if reason == EndReason.OK and (conversation.dump or conversation.takeover):
            conversation.by_opaque.pop(stream.opaque, None)
            stream.phase = Phase.ENDED
            stream.whole = True
            self.settle(stream)
        else:
            self._openings.ended(stream)
        return True

    def _flush(self, stream: TapStream, request: RequestFrame) -> bool:
        """TAP's own FLUSH would empty the whole bucket."""
        for command in (TapOpaque.INITIAL_VBUCKET_STREAM, TapOpaque.CLOSE_BACKFILL):
            self._conversation.send_queue.post(
                TapControl(Opcode.TAP_OPAQUE, stream.number, command)
            )
        return True

    def _set_state(self, stream: TapStream, request: RequestFrame) -> bool:
        """The two steps of a takeover; the client was asked to become pending at the beginning."""
        conversation = self._conversation
        (state,) = SET_VBUCKET_STATE_EXTRAS.unpack(request.extras)
        if not conversation.takeover:
            return True
        if conversation.send_queue.acks and not conversation.send_queue.window.empty:
            return False
        if state == VBucketState.ACTIVE:
            taken = partial(self._state_taken, stream)
            conversation.send_queue.post(
                TapControl(
                    Opcode.TAP_VBUCKET_SET, stream.number, state, after_all=True, acked=taken
                )
            )
        else:
            stream.handing_over = True
            self._state_taken(stream)
        return True

    def _backfill_ended(self, cursor: TapCursor) -> None:
        cursor.backfilled = True
        self._conversation.urgent = True

    def _state_taken(self, stream: TapStream) -> None:
        self._conversation.upstream.answer(
            Opcode.UPR_SET_VBUCKET_STATE, stream.opaque, Status.SUCCESS
        )

    # --- what waits for acknowledgements --------------------------------------------------------

    def settle(self, stream: TapStream) -> None:
        """Do what waits until the client has a whole snapshot, if it has."""
        conversation = self._conversation
        self._checkpoints.moved(stream)
        if conversation.send_queue.window.holds(stream.number):
            return
        if stream.kept:
            self._kept_bytes -= sum(map(len, stream.kept))
            stream.kept = []
        if not stream.whole or stream.phase not in (Phase.STREAMING, Phase.ENDED):
            return
        if stream.backfilling and not stream.emptying:
            stream.backfilling = False
            # Not before it is acknowledged: a client that has left without it would never hear of
            # the end.
            taken = partial(self._backfill_ended, stream.cursor)
            conversation.send_queue.post(
                TapControl(Opcode.TAP_OPAQUE, stream.number, TapOpaque.CLOSE_BACKFILL, acked=taken)
            )
        if stream.answer_due:
            stream.answer_due = False
            conversation.upstream.answer(Opcode.UPR_SNAPSHOT_MARKER, stream.opaque, Status.SUCCESS)

    def settled(self, settled: Settled, sent_again: Container[int] = ()) -> None:
        """Learn what the client has taken; `sent_again`: vBuckets of which it refuses more."""
        conversation = self._conversation
        conversation.dirty = True
        if settled.size:
            conversation.upstream.acknowledged(settled.size)
        for number, (seqno, start, end) in settled.marks.items():
            stream = conversation.streams.get(number)
            if stream is not None:
                stream.cursor.acked = seqno
                stream.cursor.snapshot = SnapshotRange(start, end)
                if number not in sent_again:
                    self.settle(stream)
        for control in settled.controls:
            if control.acked is not None:
                control.acked()
        self._openings.settle_moves(sent_again)

    def settle_unasked(self) -> None:
        """Take what has left as taken by a client that does not acknowledge."""
        settled = self._conversation.send_queue.settle_unasked()
        if settled is not None:
            self.settled(settled)

    # --- sending again --------------------------------------------------------------------------

    def send_again(self, stream: TapStream) -> bool:
        """Go back to what is acknowledged; says whether that can be done at once.

        A source in the last phase of a takeover does not serve any more: its frames are taken again
        from where they are kept. All others are asked again, later.
        """
        if not stream.handing_over:
            self._openings.rewind(stream)
            return False
        self._pieces[: self._place] = stream.kept
        self._place = 0
        self._kept_bytes -= sum(map(len, stream.kept))
        stream.kept = []
        stream.position = stream.cursor.acked
        stream.whole = False
        return True


def beginnings_first(pieces: list[bytes]) -> tuple[list[bytes], int]:
    """Put those snapshot markers first that are their stream's first frame of a pull.

    A client of checkpoints is asked about each before an item follows; so it is asked about all of
    them at once, which else would cost as many round trips as there are vBuckets.

    Returns:
        The pieces, and where the first other frame begins.
    """
    seen: set[int] = set()
    markers: list[bytes] = []
    others: list[bytes] = []
    place = 0
    while place < len(pieces):
        _, opcode, _, _, _, _, body_length, opaque, _ = unpack_request(pieces[place])
        begin, left = place, HEADER_BYTES + body_length
        while place < len(pieces) and (left > 0 or not pieces[place]):  # a value may be empty
            left -= len(pieces[place])
            place += 1
        first = opcode == Opcode.UPR_SNAPSHOT_MARKER and opaque not in seen
        seen.add(opaque)
        (markers if first else others).extend(pieces[begin:place])
    return markers + others, len(markers)


_HANDLERS: dict[int, Callable[[TapFeed, TapStream, RequestFrame], bool]] = {
    Opcode.UPR_SNAPSHOT_MARKER: TapFeed._marker,
    Opcode.UPR_STREAM_END: TapFeed._stream_end,
    Opcode.UPR_FLUSH: TapFeed._flush,
    Opcode.UPR_SET_VBUCKET_STATE: TapFeed._set_state,
}
