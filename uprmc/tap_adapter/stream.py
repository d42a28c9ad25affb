"""One vBucket on its way to a TAP client: where its stream stands on this connection.

What outlives the connection is the vBucket's `Cursor` (`names`); this is the rest. Nothing happens
here by itself: `openings` begins streams, `feed` moves them on, `producer` tells what was
acknowledged.
"""

from __future__ import annotations

from enum import Enum

from uprmc.model import SnapshotRange
from uprmc.protocol.upr import Marker
from uprmc.tap_adapter.names import Cursor
from uprmc.tap_adapter.window import Mark


class Phase(Enum):
    """What a stream does; the texts are those of statistics."""

    OPENING = "opening"
    STREAMING = "streaming"
    CORRECTING = "correcting"
    WAITING = "waiting"
    ENDED = "ended"


class TapStream:
    """The stream of one vBucket on one connection.

    Attributes:
        number: the vBucket's.
        cursor: what is kept of it.
        standing_seqno: the vBucket's high seqno when the client connected, or was told last to
            empty it.
        surveyed: whether `standing_seqno` is of the contents that are streamed.
        history: the one that was granted last.
        phase: see `Phase`.
        opaque: of the UPR stream, new for each opening.
        asked: whether an opening is unanswered.
        outdated: whether the answer to it is not wanted any more, and another is.
        granted: whether the UPR producer has ever granted it on this connection.
        dropped: whether the client does not want the vBucket any more.
        position: seqno of the newest item that was translated, or where the stream begins.
        snapshot: the snapshot that `position` lies in.
        whole: whether that snapshot is complete.
        announced: whether the UPR stream has announced a snapshot since it was opened.
        rejoins: whether the next snapshot continues the one before it, because items of it are
            sent anew.
        from_scratch: whether the client is to be told to empty its vBucket first.
        emptying: whether it was, or is to be, and has not acknowledged it.
        beginnings: how often the stream was begun.
        backfilling: whether the first snapshot from 0 has not been acknowledged whole.
        checkpoint_open: whether the client was told, on this connection, that one has begun.
        answer_due: whether the UPR producer waits for word that the snapshot was processed.
        reopened: whether the stream has ended by itself and nothing has come since.
        rolled_back: to where the UPR producer has sent it back, ``None`` = it has not.
        corrected_log: the failover log by which the client's items have been corrected.
        corrected_serial: number of the last correction, ``None`` when all are acknowledged.
        corrected_seqno: the highest seqno among the corrections.
        ending: id and beginning of the checkpoint whose end is about to leave.
        told_open: whether a client of closed checkpoints was told that it has them all.
        handing_over: whether the takeover is in its last phase; what is sent then is in `kept`
            until it is acknowledged, because there is nobody to ask for it again.
    """

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

    def __init__(self, number: int, cursor: Cursor, standing_seqno: int) -> None:
        """See the class."""
        self.number = number
        self.cursor = cursor
        self.standing_seqno = standing_seqno
        self.phase = Phase.OPENING
        self.opaque = self.history = 0
        self.surveyed = True
        self.asked = self.outdated = self.granted = self.dropped = False
        self.from_scratch = self.emptying = self.backfilling = False
        self.beginnings = 0
        self.checkpoint_open = self.answer_due = self.told_open = False
        self.ending: tuple[int, int] | None = None
        self.handing_over = False
        self.kept: list[bytes] = []
        self.return_to(Mark(cursor.acked, *cursor.snapshot))

    def return_to(self, mark: Mark) -> None:
        """Stand at an earlier place, or at the first one."""
        self.position = mark.seqno
        self.snapshot = SnapshotRange(mark.start, mark.end)
        self.rejoins = self.cursor.sent > mark.seqno or mark.seqno < mark.end
        self.whole = not self.rejoins
        self.announced = self.reopened = False
        self.rolled_back: int | None = None
        self.corrected_log = b""
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
