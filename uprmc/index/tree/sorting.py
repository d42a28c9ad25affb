"""Rows sorted in bounded memory, with the help of a temporary file.

What does not fit is sorted and written as a run; at the end the runs are merged batch by batch:
all rows that are known to lie below what is still unread of any run are sorted at once, which
Python does fastest. Of rows with one key the one that was added last counts.

The temporary file has no name, so it is gone whatever ends the process.
"""

from __future__ import annotations

import marshal
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import eq, itemgetter
from pathlib import Path
from typing import IO

from uprmc.index.tree.disk import room
from uprmc.index.tree.nodes import Row

__all__ = ["Sorter", "keep_last"]

#: Rows that are written and read at once.
_CHUNK_ROWS = 512
#: Rows that are handed on at once where nothing had to be written.
_BATCH_ROWS = 8192
#: Later ones look for equal objects, which takes twice the time.
_MARSHAL_VERSION = 2
_key = itemgetter(0)

#: Leaves one row for each key, of rows in the order of (key, time); may look at what it removes.
Unique = Callable[[list[Row]], list[Row]]


def keep_last(rows: list[Row]) -> list[Row]:
    """Return the last row of each key."""
    keys = list(map(_key, rows))
    if not any(map(eq, keys, keys[1:])):
        return rows
    following = [*keys[1:], None]
    return [row for row, after in zip(rows, following, strict=True) if row[0] != after]


class Sorter:
    """Rows to be sorted by key.

    Args:
        directory: of the temporary file.
        unique: what leaves one row of each key.

    Attributes:
        rows: what was added since the last `spill`; add by `rows.append`.
    """

    def __init__(self, directory: Path, unique: Unique = keep_last) -> None:
        self.rows: list[Row] = []
        self._directory, self._unique = directory, unique
        self._file: IO[bytes] | None = None
        self._taken = 0
        self._runs: list[list[tuple[int, int]]] = []

    def _sorted(self) -> list[Row]:
        rows, self.rows = self.rows, []
        rows.sort(key=_key)
        return self._unique(rows)

    def spill(self) -> None:
        """Write what was added as a run.

        Raises:
            OSError: the disk is full, or the like.
        """
        rows = self._sorted()
        if not rows:
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
        run = []
        for start in range(0, len(rows), _CHUNK_ROWS):
            data = marshal.dumps(rows[start : start + _CHUNK_ROWS], _MARSHAL_VERSION)
            room().take(len(data), unnamed=True)
            self._taken += len(data)
            run.append((self._file.tell(), len(data)))
            self._file.write(data)
        self._runs.append(run)

    def batches(self) -> Iterator[list[Row]]:
        """Yield all rows in order, as lists; nothing may be added any more."""
        if not self._runs:
            rows = self._sorted()
            for start in range(0, len(rows), _BATCH_ROWS):
                yield rows[start : start + _BATCH_ROWS]
            return
        self.spill()
        heads = [_Run(self._read, chunks) for chunks in self._runs]
        while heads:
            yield self._batch(heads)
            heads = [head for head in heads if head.fill()]

    def _batch(self, heads: list[_Run]) -> list[Row]:
        """Return all rows up to the least last key of what was read of a run."""
        bound = min(head.rows[-1][0] for head in heads)
        rows: list[Row] = []
        for head in heads:
            rows += head.take(bound)
        rows.sort(key=_key)
        return self._unique(rows)

    def _read(self, chunk: tuple[int, int]) -> list[Row]:
        assert self._file is not None
        offset, size = chunk
        self._file.seek(offset)
        rows: list[Row] = marshal.loads(self._file.read(size))
        return rows

    def close(self) -> None:
        """Give back memory and disk."""
        self.rows, self._runs = [], []
        room().give_back(self._taken)
        self._taken = 0
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # a full disk does not take the rest, which is of no use now
                file.close()


class _Run:
    """A run that is read."""

    def __init__(
        self, read: Callable[[tuple[int, int]], list[Row]], chunks: list[tuple[int, int]]
    ) -> None:
        self._read, self._chunks = read, iter(chunks)
        self.rows: list[Row] = []
        self.fill()

    def fill(self) -> bool:
        """Read on if nothing is left; return whether there is something."""
        if not self.rows:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self.rows = self._read(chunk)
        return True

    def take(self, bound: bytes) -> list[Row]:
        """Return and forget the rows with keys up to `bound`."""
        cut = bisect_right(self.rows, bound, key=_key)
        taken, self.rows = self.rows[:cut], self.rows[cut:]
        return taken
