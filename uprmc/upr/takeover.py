"""A stream that hands its vBucket over: at its end the peer is active and this node is not.

Every marker asks for a reply, so that the source knows what the target holds. When the target holds
everything, it is asked to become pending; then writes stop here (the vBucket is dead), what was
written meanwhile follows, and the target is asked to become active. Nothing acknowledged is lost
and the failover log stays as it is. The target is asked only when the death is on disk here: after
a crash in between no node is active, rather than two.

Note: the stream of a busy vBucket would never catch up. So after a few snapshots no more are begun,
and what is written from then on follows when writes have stopped.

Row D52.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from uprmc.engine.flusher import Waiter
from uprmc.engine.vbucket import VBucket
from uprmc.model import VBucketState
from uprmc.protocol.header import encode_request
from uprmc.protocol.opcodes import EndReason, MarkerFlag, Opcode
from uprmc.protocol.upr import SET_VBUCKET_STATE_EXTRAS, StreamRequest
from uprmc.upr.frames import Form
from uprmc.upr.stream import ServedState, Stream

if TYPE_CHECKING:
    from uprmc.upr.feed import Feed

#: This many snapshots are sent before writes stop; each has what was written during the one before.
_SNAPSHOTS = 8


class TakeoverStream(Stream):
    """A stream that ends with the peer being active instead of this node."""

    __slots__ = ("_die", "_dying", "_snapshots", "_target", "_unanswered")

    def __init__(
        self,
        feed: Feed,
        vbucket: VBucket,
        opaque: int,
        request: StreamRequest,
        form: Form,
        die: Callable[[VBucket, Waiter], None],
    ) -> None:
        """See `Stream`; `die` stops writes to the vBucket and calls back when that is on disk."""
        super().__init__(feed, vbucket, opaque, request, form)
        self._die = die
        self._dying = False
        self._target = VBucketState.PENDING
        self._snapshots = 0
        self._unanswered = 0

    # --- what the peer answers ------------------------------------------------------------------

    def marker_answered(self) -> None:
        """A snapshot was processed to its end."""
        self._unanswered = max(0, self._unanswered - 1)
        self.tell_ready()

    def state_answered(self, accepted: bool) -> None:
        """The peer has changed its vBucket's state, or refused to."""
        if self.state is not ServedState.TAKEOVER_WAIT:
            return
        if not accepted:
            self.end(EndReason.STATE_CHANGED)
        elif self._target == VBucketState.ACTIVE:
            self.end(EndReason.OK)
        else:
            self._target = VBucketState.ACTIVE
            self.state = ServedState.TAKEOVER_SEND
            self.vbucket.unwatch(self)  # our own change of its state must not end us
            self._waiting = False
            self._dying = True
            self._die(self.vbucket, self._died)
            self.vbucket.watchers.append(self)
            self.tell_ready()

    def _died(self, on_disk: bool) -> None:
        if self._feed is None:
            return
        if on_disk:
            self._dying = False
            self.tell_ready()
        else:
            self._die(self.vbucket, self._died)

    # --- sending --------------------------------------------------------------------------------

    def fill(self, out: list[bytes], limit: int) -> int:
        """See `Stream.fill`; nothing is sent while the peer changes its state."""
        if self.state is ServedState.TAKEOVER_WAIT:
            return 0
        if self._has_sent_enough:
            return 0 if self._unanswered else self._hand_over(out)
        sent = super().fill(out, limit)
        if sent or self.reading is not None or self._unanswered or self.behind or self._dying:
            return sent
        if self._feed is None:
            return 0
        return self._hand_over(out)

    @property
    def _has_sent_enough(self) -> bool:
        return self._target is VBucketState.PENDING and self._snapshots >= _SNAPSHOTS

    def _complete_snapshot(self, feed: Feed) -> None:
        self._snapshots += 1
        super()._complete_snapshot(feed)

    def _hand_over(self, out: list[bytes]) -> int:
        self.state = ServedState.TAKEOVER_WAIT
        frame = encode_request(
            Opcode.UPR_SET_VBUCKET_STATE,
            extras=SET_VBUCKET_STATE_EXTRAS.pack(self._target),
            vbucket=self.vbucket.id,
            opaque=self.opaque,
        )
        sent = self.tell_facts(self.vbucket.purge_seqno, out)
        out.append(frame)
        self.frames += 1
        return sent + len(frame)

    def rest(self) -> None:
        """See `Stream.rest`."""
        if self.state is not ServedState.TAKEOVER_WAIT:
            self.state = ServedState.TAKEOVER_SEND
        super().rest()

    def news(self, limit: int) -> None:
        """See `Stream.news`; its states go by readings."""

    def release(self) -> None:
        """See `Stream.release`; the peer answers a snapshot once, however often it is announced."""
        if self.reading is not None and not self._marker_due:
            self._unanswered = max(0, self._unanswered - 1)
        super().release()

    def _marker_kind(self, *, from_disk: bool) -> int:
        self._unanswered += 1
        return super()._marker_kind(from_disk=from_disk) | MarkerFlag.ACK
