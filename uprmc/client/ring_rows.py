"""Which rows of the ring's table hold which seqnos of which vBucket, and what a commit changes.

The index is in memory, so trimming reads nothing: a row goes when all of it is trimmed, and what is
left in another one below the vBucket's *floor* is passed over when it is read. Many small rows of
one vBucket are packed into one when the next comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

#: Rows with fewer entries are small; this many of one vBucket become one.
SMALL_ENTRIES = 1024
SMALL_ROWS_MAX = 64

Entries = Sequence[tuple[int, bytes]]


class Row(NamedTuple):
    """One row of the ring, without its keys."""

    id: int
    first: int
    last: int
    entries: int


class RowChanges:
    """What a commit does to the rows; the index is as before until it is `applied`.

    Args:
        rows: the index, by vBucket.
        next_id: above every row's.
        read: returns the entries of a row of a vBucket.

    Attributes:
        gone: ids of rows to delete.
        added: rows to write by id, with their vBuckets and entries.
        next_id: above every row's, those in `added` included.
    """

    def __init__(
        self, rows: dict[int, list[Row]], next_id: int, read: Callable[[Row, int], Entries]
    ) -> None:
        self.gone: list[tuple[int]] = []
        self.added: dict[int, tuple[Row, int, Entries]] = {}
        self.next_id = next_id
        self._index = rows
        self._read = read
        self._rows: dict[int, list[Row]] = {}

    def applied(self) -> None:
        """Take the changes over into the index: they are committed."""
        self._index.update(self._rows)

    def forget(self, vbucket: int) -> None:
        """Delete all rows of a vBucket."""
        for row in self._of(vbucket):
            self._drop(row)
        self._rows[vbucket] = []

    def drop_below(self, vbucket: int, floor: int) -> None:
        """Delete rows that lie at or below the floor."""
        rows = self._of(vbucket)
        for row in [row for row in rows if row.last <= floor]:
            self._drop(row)
            rows.remove(row)

    def limit(self, vbucket: int, above: int, up_to: int) -> None:
        """Keep what is above one seqno and not above the other; rows in between are rewritten."""
        kept = []
        for row in self._of(vbucket):
            if above < row.first and row.last <= up_to:
                kept.append(row)
                continue
            rest = [entry for entry in self._take(row, vbucket) if above < entry[0] <= up_to]
            if rest:
                kept.append(self._add(vbucket, rest))
        self._rows[vbucket] = kept

    def append(self, vbucket: int, entries: Entries) -> None:
        """Add a row, or put the entries into one with all small rows if there are too many."""
        rows = self._of(vbucket)
        if len(rows) >= SMALL_ROWS_MAX:
            entries = sorted([*self._small_ones(vbucket, rows), *entries])
        rows.append(self._add(vbucket, entries))

    def _of(self, vbucket: int) -> list[Row]:
        rows = self._rows.get(vbucket)
        if rows is None:
            rows = self._rows[vbucket] = list(self._index.get(vbucket, ()))
        return rows

    def _small_ones(self, vbucket: int, rows: list[Row]) -> Iterable[tuple[int, bytes]]:
        """Take small rows out of `rows` when there are too many, and return their entries."""
        small = [row for row in rows if row.entries < SMALL_ENTRIES]
        if len(small) < SMALL_ROWS_MAX:
            return []
        rows[:] = [row for row in rows if row not in small]
        return [entry for row in small for entry in self._take(row, vbucket)]

    def _take(self, row: Row, vbucket: int) -> Entries:
        """Return a row's entries, and have it deleted."""
        entries = self.added[row.id][2] if row.id in self.added else self._read(row, vbucket)
        self._drop(row)
        return entries

    def _drop(self, row: Row) -> None:
        if self.added.pop(row.id, None) is None:
            self.gone.append((row.id,))

    def _add(self, vbucket: int, entries: Entries) -> Row:
        row = Row(self.next_id, entries[0][0], entries[-1][0], len(entries))
        self.next_id += 1
        self.added[row.id] = (row, vbucket, entries)
        return row
