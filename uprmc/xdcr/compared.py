"""What a reconciliation has found in one vBucket, however often it had to begin with it.

What was deleted at the target is not read there again, so it goes on counting. So does a deletion
whose answer was lost with the connection, if the document is not there the next time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from uprmc.engine.purge_rule import shown


@dataclass(slots=True)
class Compared:
    """What became of one vBucket.

    Attributes:
        vbucket: its number.
        documents: documents that the target has.
        deleted: of these, those that were deleted there, or would be.
        kept: those that this node does not have and that were first accepted elsewhere.
        changed: those that were changed or deleted at the target meanwhile, and so left alone.
        keys: the first keys of those that were deleted, or would be.
    """

    vbucket: int
    documents: int = 0
    deleted: int = 0
    kept: int = 0
    changed: int = 0
    keys: list[str] = field(default_factory=list)


class Tally:
    """The findings of a reconciliation in one vBucket.

    Attributes:
        row: what was found.
        unanswered: keys of deletions that the target was sent.
    """

    def __init__(self, number: int, listed_keys: int) -> None:
        self.row = Compared(number)
        self.unanswered: set[bytes] = set()
        self._listed_keys = listed_keys
        self._doubtful: set[bytes] = set()
        self._history = 0
        self._most = 0

    @property
    def has_deleted(self) -> bool:
        """Whether the target was sent deletions that it has carried out, perhaps or certainly."""
        return bool(self.row.deleted or self._doubtful)

    def begin(self, history: int, *, dry_run: bool) -> None:
        """Begin, perhaps again; a target with another history may have all its documents again.

        Args:
            history: uuid of the newest branch of the vBucket at the target.
            dry_run: nothing is deleted.
        """
        row = self.row
        if dry_run or history != self._history:
            self.row = Compared(row.vbucket)
            self._doubtful.clear()
        else:
            row.documents, row.kept, row.changed = row.deleted, 0, 0
        self._history = history

    def read(self, keys: Collection[bytes]) -> bool:
        """Count documents of the target; return whether there are more than ever before."""
        self._doubtful.difference_update(keys)
        self.row.documents += len(keys)
        more = self.row.documents > self._most
        self._most = max(self._most, self.row.documents)
        return more

    def deleted(self, key: bytes) -> None:
        """Count a document that was deleted, or would be."""
        self.row.deleted += 1
        if len(self.row.keys) < self._listed_keys:
            self.row.keys.append(shown(key) or "")

    def lose_answers(self) -> None:
        """Take note that the connection was lost."""
        self._doubtful |= self.unanswered
        self.unanswered.clear()

    def finish(self) -> Compared:
        """Count what is not there any more, and return what was found."""
        self.row.documents += len(self._doubtful)
        for key in sorted(self._doubtful):
            self.deleted(key)
        return self.row
