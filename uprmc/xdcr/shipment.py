"""One vBucket of a link on its way to the target: what was sent, and what has arrived.

Sequence numbers have gaps, and batches are settled out of order when some of their items have to be
sent again. So positions are kept in the order of the stream, each with its batch: the vBucket has
arrived up to a position when that batch and all earlier ones are settled.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from uprmc.consume.stream import StreamState
from uprmc.engine.vbucket import VBucket
from uprmc.model import SnapshotRange
from uprmc.xdcr.checkpoint import Record
from uprmc.xdcr.reading import Start
from uprmc.xdcr.windows import Window


class Position(NamedTuple):
    """A place in the stream: the seqno, and the snapshot it is in; both bounds equal at its end."""

    seqno: int
    snapshot: SnapshotRange

    @property
    def is_whole(self) -> bool:
        """Whether it is the end of a snapshot."""
        return self.seqno == self.snapshot.end

    @property
    def whole(self) -> int:
        """The last seqno at which the snapshot, or the one before it, was complete."""
        return self.seqno if self.seqno == self.snapshot.end else self.snapshot.start


NOWHERE = Position(0, SnapshotRange(0, 0))


class Shipment:
    """See the module docstring.

    Attributes:
        vbucket: whose.
        place: the node of the target.
        stream: what is read.
        target_uuid: the target's newest history when it began; 0 = it tells none.
        target_seqno: the target's high seqno as of the last checkpoint.
        through: everything up to here has arrived.
        theirs: histories of the target, each with its last seqno: what was first accepted there
            is not sent back.
        tells_origins, tells_expirations: whether the target knows these.
        clean: whether the target misses no deletion; ``None`` = the first snapshot will tell.
        told: by source, the newest record that was passed on.
        purged: see `Record`.
        dead: nothing of it counts any more.
    """

    __slots__ = (
        "_under_way",
        "clean",
        "dead",
        "place",
        "purged",
        "stream",
        "target_seqno",
        "target_uuid",
        "tells_expirations",
        "tells_origins",
        "theirs",
        "through",
        "told",
        "vbucket",
    )

    def __init__(
        self,
        vbucket: VBucket,
        place: str,
        stream: StreamState,
        target: tuple[int, int],
        through: Position,
    ) -> None:
        self.vbucket = vbucket
        self.place = place
        self.stream = stream
        self.target_uuid, self.target_seqno = target
        self.through = through
        self.theirs: dict[int, int] = {}
        self.tells_origins = self.tells_expirations = False
        self.clean: bool | None = None
        self.told: dict[str, tuple[int, int]] = {}
        self.purged = 0
        self.dead = False
        self._under_way: deque[tuple[Window, Position]] = deque()

    def sent(self, window: Window, seqno: int, done: int | None) -> None:
        """Take note that items up to a seqno are in a batch.

        Args:
            window: the batch.
            seqno: of the last item.
            done: the end of the snapshot, if all of it was read.
        """
        if done is None:
            # What is before the marker's first seqno belongs to snapshots that are complete.
            position = Position(
                seqno, SnapshotRange(min(seqno, max(self.stream.start - 1, 0)), self.stream.high)
            )
        else:
            position = Position(done, SnapshotRange(done, done))
        under_way = self._under_way
        if under_way and under_way[-1][0] is window:
            under_way[-1] = (window, position)
        else:
            under_way.append((window, position))
            window.arrivals.append(self._arrived)

    def _arrived(self, _: Window) -> None:
        under_way = self._under_way
        while under_way and not under_way[0][0].open:
            self.through = under_way.popleft()[1]

    def record(self, position: Position, target_seqno: int, created: int) -> Record:
        """Return a checkpoint of a position that has arrived."""
        seqno, snapshot = position
        uuid = self.stream.history_of(seqno)
        return Record(
            uuid,
            seqno,
            snapshot.start,
            snapshot.end,
            self.target_uuid,
            target_seqno,
            created,
            int(self.clean or False),
            self.purged,
        )


def start_of(record: Record) -> Start:
    """Return where a stream begins that goes on at a record."""
    snapshot = SnapshotRange(record.snapshot_start, record.snapshot_end)
    return Start(record.uuid, record.seqno, snapshot)


def position_of(record: Record) -> Position:
    """Return the position of a record."""
    return Position(record.seqno, SnapshotRange(record.snapshot_start, record.snapshot_end))
