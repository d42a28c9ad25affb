"""Marks that meta commands put on documents: "stale", and "a client is fetching a new value".

They are a hint among caches that recompute a document together, not data: in memory only, not
replicated, gone with the process, and bounded (the oldest mark goes first). If one is lost, two
clients may recompute a document, or a client may take a stale value for fresh.

A mark belongs to one version. It is stored with the version's CAS, so a document that is written
again, flushed, or deleted and created again has none, without any change of the table.
"""

from __future__ import annotations

from uprmc.model import Item

#: The document was invalidated; its value may be served but should be replaced.
STALE = 1

#: One client shall recompute the document; the others shall wait.
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
