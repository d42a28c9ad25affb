"""Which rows of the ring's table hold which seqnos of which vBucket, and what a commit changes.

The index is in memory, so trimming reads nothing: a row goes when all of it is trimmed, and what is
left in another one below the vBucket's *floor* is passed over when it is read. Many small rows of
one vBucket are packed into one when the next comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        added: rows to write by id, with their vBuckets, seqnos and keys.
        next_id: above every row's, those in `added` included.
    """

    def __init__(
        self, rows: dict[int, list[Row]], next_id: int, read: Callable[[Row, int], Entries]
    ) -> None:
        self.gone: list[tuple[int]] = []
        self.added: dict[int, tuple[Row, int, Sequence[int], Sequence[bytes]]] = {}
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
                kept.append(self._add(vbucket, *zip(*rest, strict=True)))
        self._rows[vbucket] = kept

    def append(self, vbucket: int, seqnos: Sequence[int], keys: Sequence[bytes]) -> None:
        """Add a row, or put the entries into one with all small rows if there are too many."""
        rows = self._of(vbucket)
        small = self._small_ones(vbucket, rows) if len(rows) >= SMALL_ROWS_MAX else ()
        if small:
            entries = sorted([*small, *zip(seqnos, keys, strict=True)])
            seqnos, keys = zip(*entries, strict=True)
        rows.append(self._add(vbucket, seqnos, keys))

    def _of(self, vbucket: int) -> list[Row]:
        rows = self._rows.get(vbucket)
        if rows is None:
            rows = self._rows[vbucket] = list(self._index.get(vbucket, ()))
        return rows

    def _small_ones(self, vbucket: int, rows: list[Row]) -> Entries:
        """Take small rows out of `rows` when there are too many, and return their entries."""
        small = [row for row in rows if row.entries < SMALL_ENTRIES]
        if len(small) < SMALL_ROWS_MAX:
            return []
        rows[:] = [row for row in rows if row not in small]
        return [entry for row in small for entry in self._take(row, vbucket)]

    def _take(self, row: Row, vbucket: int) -> Entries:
        """Return a row's entries, and have it deleted."""
        if row.id in self.added:
            found: Entries = list(zip(*self.added[row.id][2:], strict=True))
        else:
            found = self._read(row, vbucket)
        self._drop(row)
        return found

    def _drop(self, row: Row) -> None:
        if self.added.pop(row.id, None) is None:
            self.gone.append((row.id,))

    def _add(self, vbucket: int, seqnos: Sequence[int], keys: Sequence[bytes]) -> Row:
        row = Row(self.next_id, seqnos[0], seqnos[-1], len(seqnos))
        self.next_id += 1
        self.added[row.id] = (row, vbucket, seqnos, keys)
        return row
