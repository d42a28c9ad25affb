"""One compaction: what was asked for, what was found so far, and one look into the store for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from uprmc.engine.disposal import Record
from uprmc.engine.flush import Waiter
from uprmc.engine.flusher import Flusher
from uprmc.engine.purge_rule import Compacted, PurgeRule
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.model import SEQNO_MAX
from uprmc.storage.interface import StoreView


@dataclass(slots=True)
class Scan:
    """One look into the store.

    Attributes:
        limit: how far to look.
        most: how many tombstones to look for.
        after: the last seqno examined.
        found: tombstones to drop, by rising seqno.
        first_left: the lowest seqno of a tombstone that stays.
        oldest_left: when the oldest tombstone that stays was created.
        exhausted: everything up to the limit has been examined.
    """

    view: StoreView
    vbucket: int
    rule: PurgeRule
    limit: int
    most: int
    after: int
    found: list[Record] = field(default_factory=list)
    first_left: int = SEQNO_MAX
    oldest_left: int = SEQNO_MAX
    exhausted: bool = False


class Request(NamedTuple):
    """A compaction that is asked for.

    Attributes:
        number: the vBucket.
        rule: which tombstones are to be dropped.
        done: called at the end.
        after: records up to this seqno need not be examined.
    """

    number: int
    rule: PurgeRule
    done: Waiter
    after: int


class Compaction:
    """The compaction in progress. It watches its vBucket, whose seqnos repeat after a reset."""

    __slots__ = (
        "_flusher",
        "after",
        "done",
        "end",
        "exhausted",
        "found",
        "over",
        "result",
        "rule",
        "vbucket",
    )

    def __init__(self, vbucket: VBucket, request: Request, flusher: Flusher) -> None:
        self._flusher = flusher
        self.vbucket = vbucket
        self.rule = request.rule
        self.done = request.done
        self.after = request.after
        self.end = vbucket.high_seqno
        self.found: list[Record] = []
        self.result = Compacted(vbucket.id, vbucket.purge_seqno)
        self.exhausted = self.over = False

    def changed(self) -> None:
        """Continue: what is new is not on disk."""

    def interrupted(self, why: Interruption) -> None:
        """Drop nothing more: the seqnos that were found may now belong to other documents.

        Those who wait are called at the next step, not in the middle of the interruption.
        """
        self.over = True
        self._flusher.forget_drops(self.vbucket)
