"""One flush under way: the vBuckets' shares of it, and who waits for the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from uprmc.engine.queue_cursors import Cursor
from uprmc.engine.table import Table
from uprmc.engine.vbucket import VBucket
from uprmc.engine.write_queue import WriteQueue
from uprmc.model import SnapshotRange, VBucketHeader
from uprmc.storage.interface import Batch, VBucketChange

Waiter = Callable[[bool], None]

#: A local document, ``None`` to delete it, or what makes it when its commit begins.
LocalDocument = bytes | None | Callable[[], bytes | None]

#: Most items taken from a queue before the room is checked again and others may run.
STEP_ITEMS = 64

#: A vBucket counts for this many items beside its own when steps are measured.
VBUCKET_AS_ITEMS = 8

#: Most items of one vBucket that are marked persisted, or freed, before others may run.
SETTLE_ITEMS = 256


class Begun(NamedTuple):
    """A vBucket whose header is in the flush, even if the vBucket changes in the meantime.

    Attributes:
        table: the table of its history when the flush was begun.
        header: what is stored if that history ends before its items are taken.
        reset: whether the store must delete what precedes that history.
    """

    vbucket: VBucket
    table: Table
    header: VBucketHeader
    reset: bool

    @classmethod
    def of(cls, vbucket: VBucket) -> Self:
        """Return a vBucket as it is now."""
        header = vbucket.header(vbucket.persisted_seqno, vbucket.persisted_snapshot)
        return cls(vbucket, vbucket.table, header, vbucket.reset_pending)


@dataclass(slots=True)
class Part:
    """One vBucket's share of a flush.

    Attributes:
        table: the table of the history that it belongs to.
        queue: where the records come from; ``None`` = only the header of an ended history.
        cursor: the view that they come from; ``None`` = all that was in the queue.
    """

    vbucket: VBucket
    table: Table
    queue: WriteQueue | None
    cursor: Cursor | None
    records: list[bytes]
    upto: int
    snapshot: SnapshotRange
    reset: bool
    header: bool


@dataclass(slots=True)
class Flush:
    """One flush under way: what to commit, and what to do afterwards."""

    waiters: deque[Waiter]
    removed: list[int] = field(default_factory=list)
    local: dict[bytes, LocalDocument] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    changes: list[VBucketChange] = field(default_factory=list)
    batch: Batch = field(default_factory=Batch)

    @property
    def item_count(self) -> int:
        """Number of items in the batch."""
        return sum(len(part.records) for part in self.parts)

    def tell(self, ok: bool) -> None:
        """Report the result to the waiters, each once. If one raises, call again for the others."""
        while self.waiters:
            self.waiters.popleft()(ok)

    def let_go(self) -> Iterator[None]:
        """Free what was written in steps: of tombstones and old versions it has the last."""
        for part in self.parts:
            while part.records:
                del part.records[-SETTLE_ITEMS:]
                yield
