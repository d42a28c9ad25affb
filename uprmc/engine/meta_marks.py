"""MetaMarks that meta commands leave on documents: "stale", and "somebody is fetching a new one".

They are a hint among caches that recompute a document together, not data: in memory only, not
replicated, gone with the process, and bounded (the oldest mark goes first). Losing one costs a
client that recomputes although another does, or one that takes a stale value for fresh.

A mark belongs to one version. It is kept beside the version's CAS, so a document that is written
again, flushed, or deleted and made anew has none, and nobody has to tell the table.
"""

from __future__ import annotations

from uprmc.model import Item

#: The document was invalidated; its value may be served but should be replaced.
STALE = 1

#: One client has been told to recompute the document; the others are told to wait.
WON = 2


class MetaMarks:
    """Key -> marks of its present version.

    Args:
        limit: most marks kept.
    """

    __slots__ = ("_limit", "_marks")

    def __init__(self, limit: int = 65_536) -> None:
        self._limit = limit
        self._marks: dict[bytes, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def of(self, item: Item) -> int:
        """Return the marks of this version, `STALE` and `WON` added up, usually 0."""
        cas, marks = self._marks.get(item.key, (0, 0))
        if cas == item.cas:
            return marks
        if cas:
            del self._marks[item.key]
        return 0

    def put(self, item: Item, marks: int) -> None:
        """Give this version exactly these marks."""
        self._marks.pop(item.key, None)
        if not marks:
            return
        if len(self._marks) >= self._limit:
            del self._marks[next(iter(self._marks))]
        self._marks[item.key] = (item.cas, marks)

    def clear(self) -> None:
        """Forget every mark; worth doing at a flush, for the memory."""
        self._marks.clear()
