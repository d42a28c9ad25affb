"""Where the changes of each vBucket come from at present."""

from __future__ import annotations

from uprmc.client.node_session import NodeSession
from uprmc.client.nodes import DELAY_MAX_S, DELAY_MIN_S
from uprmc.client.position import Place
from uprmc.remote.retry import Backoff
from uprmc.remote.stream import StreamState


class Route:
    """Where the changes of one vBucket come from.

    Attributes:
        place: where we stand.
        session: the node that is asked, or streams.
        stream: the stream, once it is asked for.
        streaming: it was accepted.
        done: everything has come that was there.
        high_seqno: how far the node is, as it told last.
        level_at: when we were last level with it.
        items: changes that were handed over.
        log_term: the term of the node that the place's failover log is of, 0 = of an earlier life.
        off_at: since when there has been no stream, if there is none.
        lost_at: when the last stream ended, or was refused; 0 = there was none.
        refusal: why there is none, in words, ``""`` = nobody has refused it.
    """

    __slots__ = ("backoff", "done", "high_seqno", "items", "level_at", "log_term", "lost_at",
                 "off_at", "place", "refusal", "session", "stream", "streaming")  # fmt: skip

    def __init__(self, place: Place, now: float) -> None:
        self.place = place
        self.session: NodeSession | None = None
        self.stream: StreamState | None = None
        self.streaming = self.done = False
        self.backoff = Backoff(DELAY_MIN_S, DELAY_MAX_S)
        self.high_seqno = self.items = self.log_term = 0
        self.refusal = ""
        self.lost_at = 0.0
        self.level_at = self.off_at = now

    def opening(self, stream: StreamState) -> None:
        """A stream is about to be asked for."""
        self.stream = stream

    def off(self, now: float) -> None:
        """There is no stream any more."""
        if self.streaming:
            self.off_at = now
        self.lost_at = now
        if self.stream is not None:
            self.stream.dropped = True
        self.session, self.stream, self.streaming = None, None, False
