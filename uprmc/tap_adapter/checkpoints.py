"""Snapshots as checkpoints: CHECKPOINT_START and CHECKPOINT_END, and who wants only closed ones.

Each snapshot after the backfill is a checkpoint, counted from 1 for a vBucket's history. It ends
when the next one begins; for a client of closed checkpoints it ends as soon as it is whole, since
such a client goes away then and comes back for the rest.

Note: a new connection begins with the start of the open checkpoint, again, and never with its end.
The far end of a pipe may be another process, which would not know what ends.

Source: TAP reference 3, 6 and 10.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from uprmc.protocol.opcodes import Opcode
from uprmc.protocol.tap import TapOpaque
from uprmc.tap_adapter.conversation import Conversation
from uprmc.tap_adapter.stream import Phase, TapStream
from uprmc.tap_adapter.window import Control


class Checkpoints:
    """The checkpoints of one connection."""

    def __init__(self, conversation: Conversation) -> None:
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
        """Post the beginning that waited; not if the vBucket begins anew, or is not wanted."""
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
            Control(Opcode.TAP_CHECKPOINT_END, number, cursor.checkpoint_id, left=left, acked=acked)
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
        told = False
        for stream in ready:
            if stream.told_open:
                continue
            stream.told_open = told = True
            if stream.checkpoint_open:
                self._end(stream)
            self._conversation.send_queue.post(
                Control(Opcode.TAP_OPAQUE, stream.number, TapOpaque.OPEN_CHECKPOINT)
            )
        return told


def _start_of(stream: TapStream) -> Control:
    cursor = stream.cursor
    return Control(
        Opcode.TAP_CHECKPOINT_START,
        stream.number,
        cursor.checkpoint_id,
        deleted_rev=cursor.deleted_rev,
    )


def _has_everything(stream: TapStream) -> bool:
    at_rest = stream.phase is Phase.STREAMING and stream.whole and not stream.backfilling
    return at_rest and stream.position >= stream.standing_seqno


def take_back_end(conversation: Conversation, stream: TapStream) -> None:
    """Let a checkpoint go on whose end has not left: some of it was refused, and is sent again."""
    if stream.ending is not None:
        conversation.send_queue.withdraw(stream.number)
        stream.cursor.open_checkpoint(*stream.ending)
        stream.ending = None
        stream.checkpoint_open = True
        stream.told_open = False
