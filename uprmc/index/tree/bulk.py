"""First build of an index: rows are sorted, then the trees are written bottom-up.

Documents may come more than once, the newest version last: then the rows of older versions are
left out.
"""

from __future__ import annotations

import marshal
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from operator import eq, itemgetter
from pathlib import Path
from typing import IO

from uprmc.index.model import Emission, Reducer
from uprmc.index.rows import id_value, rows_of, split_id_value
from uprmc.index.tree.disk import Disk, room
from uprmc.index.tree.file import Builder, IndexFile, NodeCache, NodeWriter
from uprmc.index.tree.nodes import Header, Pointer, Row
from uprmc.index.tree.tree import Tree

__all__ = ["BulkLoader", "Sorter", "compact", "keep_last"]

# --- sorting --------------------------------------------------------------------------------------
# Rows sorted in bounded memory, with the help of a temporary file.
#
# What does not fit is sorted and written as a run; at the end the runs are merged batch by batch:
# all rows that are known to lie below what is still unread of any run are sorted at once, which
# Python does fastest. Of rows with one key the one that was added last counts.
#
# The temporary file has no name, so it is gone whatever ends the process.


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
    """

    def __init__(self, directory: Path, unique: Unique = keep_last) -> None:
        self.rows: list[Row] = []  # what was added since the last `spill`; add by `rows.append`
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


# --- bulk -----------------------------------------------------------------------------------------


#: Documents that are taken between two looks at the memory that is used.
_SLICE_DOCUMENTS = 128
#: What a row costs in memory beside its bytes.
_ROW_COST = 220
#: Value of a row that stands for "removed" among rows to be sorted; real ones are longer.
_REMOVED = b""


class BulkLoader:
    """Collects what documents emitted and makes the trees of it.

    Args:
        file: where the trees are written.
        reducers: of each view.
        memory_bytes: for rows that wait to be sorted; more are sorted in temporary files.
        directory: of these; ``None`` = the file's.
    """

    def __init__(
        self,
        file: IndexFile,
        reducers: Sequence[Reducer | None],
        *,
        memory_bytes: int,
        directory: Path | None = None,
    ) -> None:
        directory = directory or file.path.parent
        self._file, self._reducers, self._limit = file, reducers, memory_bytes
        self._bytes = 0
        self._ids = Sorter(directory, self._newest)
        self._views = [Sorter(directory, self._last_rows) for _ in reducers]
        self._repeated = False  # a document came more than once: so may its rows

    def add(self, doc_key: bytes, vbucket: int, emitted: Sequence[Sequence[Emission]]) -> None:
        """Take a version of a document: see `add_many`, which costs less for each."""
        self.add_many([doc_key], [vbucket], [emitted])

    def add_many(
        self,
        doc_keys: Sequence[bytes],
        vbuckets: Sequence[int],
        emitted: Sequence[Sequence[Sequence[Emission]]],
    ) -> None:
        """Take versions of documents in the order in which they came.

        Args:
            doc_keys: their ids.
            vbuckets: where they are.
            emitted: by each for each view; a deleted one emits nothing.

        Raises:
            OSError: a temporary file cannot be written.
        """
        for start in range(0, len(doc_keys), _SLICE_DOCUMENTS):
            part = slice(start, start + _SLICE_DOCUMENTS)
            views = len(self._views)
            entries, rows = rows_of(doc_keys[part], vbuckets[part], emitted[part], views)
            self._take(self._ids, entries)
            for sorter, some in zip(self._views, rows, strict=True):
                self._take(sorter, some)
            if self._bytes > self._limit:
                self._spill()

    def _take(self, sorter: Sorter, rows: list[Row]) -> None:
        sorter.rows += rows
        self._bytes += sum([len(row[0]) + len(row[2]) for row in rows]) + _ROW_COST * len(rows)

    def _spill(self) -> None:
        self._ids.spill()  # before the views: it may remove rows there
        for sorter in self._views:
            sorter.spill()
        self._bytes = 0

    def _newest(self, rows: list[Row]) -> list[Row]:
        """Leave the newest version of each document; remove the rows of those before."""
        kept = keep_last(rows)
        if len(kept) != len(rows):
            self._repeated = True
            for _, versions in groupby(rows, itemgetter(0)):
                self._remove_older(list(versions))
        return kept

    def _last_rows(self, rows: list[Row]) -> list[Row]:
        return keep_last(rows) if self._repeated else rows

    def _remove_older(self, versions: list[Row]) -> None:
        vbucket = versions[-1][1]
        emitted = [split_id_value(value) for _, _, value in versions]
        for view, sorter in enumerate(self._views):
            old = {key for rows in emitted[:-1] for key in rows[view]}
            gone = old.difference(emitted[-1][view])
            sorter.rows += [(key, vbucket, _REMOVED) for key in gone]

    def finish(self, step: Callable[[int], None] | None = None) -> tuple[Pointer | None, ...]:
        """Write the trees; return the roots of the id tree and of each view's.

        Args:
            step: called with the number of rows after each batch; what it raises ends the build.

        Raises:
            OSError: as for `add`.
        """
        try:
            roots = [self._tree(_with_rows(self._ids.batches(), len(self._views)), None, step)]
            self._ids.close()
            for sorter, reducer in zip(self._views, self._reducers, strict=True):
                batches = sorter.batches()
                if self._repeated:  # known by now: all ids were compared
                    batches = _not_removed(batches)
                roots.append(self._tree(batches, reducer, step))
                sorter.close()
            return tuple(roots)
        finally:
            self.discard()

    def _tree(
        self,
        batches: Iterator[list[Row]],
        reducer: Reducer | None,
        step: Callable[[int], None] | None,
    ) -> Pointer | None:
        builder = Builder(NodeWriter(self._file, reducer))
        for rows in batches:
            builder.add(rows)
            if step is not None:
                step(len(rows))
        return builder.finish()

    def discard(self) -> None:
        """Give back memory and temporary files; may be called at any time."""
        for sorter in (self._ids, *self._views):
            sorter.close()


def _with_rows(batches: Iterator[list[Row]], views: int) -> Iterator[list[Row]]:
    """Leave out documents that emitted nothing."""
    empty = len(id_value([()] * views))
    for rows in batches:
        yield [row for row in rows if len(row[2]) > empty]


def _not_removed(batches: Iterator[list[Row]]) -> Iterator[list[Row]]:
    for rows in batches:
        yield [row for row in rows if row[2]]


# --- compaction -----------------------------------------------------------------------------------
# Copy of the newest state of an index file into a new one: no garbage, one header, full nodes.
#
# Row I22.


Step = Callable[[float], None]
#: Leaves that are copied between two calls of `step`: some milliseconds.
_SLICE_LEAVES = 64


def compact(
    file: IndexFile,
    path: Path,
    reducers: Sequence[Reducer | None],
    *,
    header: Header | None = None,
    step: Step | None = None,
    disk: Disk | None = None,
    cache: NodeCache | None = None,
) -> IndexFile:
    """Return a new file at `path` with what a header of `file` has, and that header only, on disk.

    It may run in a thread of its own while `file` grows. Whatever ends it early removes the new
    file; what is left at `path` by a crash is overwritten.

    Args:
        file: to be copied.
        path: of the new file.
        reducers: of each view.
        header: the state to copy; ``None`` = the newest.
        step: called every few milliseconds with the part that is done, from 0 to 1; what it raises
            ends the copy.
        disk, cache: of the new file, as for `IndexFile.create`.

    Raises:
        Damaged: the file cannot be read; `RolledBack`: it was cut off meanwhile.
        OSError: the system refuses.
    """
    header = header or file.header or Header()
    if disk is None:
        path.unlink(missing_ok=True)
    copy = IndexFile.create(path, disk=disk, cache=cache)
    try:
        progress = _Progress(sum(header.row_counts), step)
        of_trees = [None, *reducers]
        roots = [
            _copied(Tree(file, root, cached=False), NodeWriter(copy, reducer), progress)
            for root, reducer in zip(header.roots, of_trees[: len(header.roots)], strict=True)
        ]
        copy.write_header(replace(header, roots=tuple(roots)))
        return copy
    except BaseException:
        copy.close()
        if disk is None:
            path.unlink(missing_ok=True)
        raise


def _copied(tree: Tree, writer: NodeWriter, progress: _Progress) -> Pointer | None:
    builder = Builder(writer)
    for rows in tree.batches():
        builder.add(rows)
        progress.add(len(rows))
    return builder.finish()


class _Progress:
    """Counts rows, and tells from time to time."""

    def __init__(self, total: int, step: Step | None) -> None:
        self._total, self._step = total, step
        self._done = self._leaves = 0

    def add(self, rows: int) -> None:
        self._done += rows
        self._leaves += 1
        if self._step is not None and self._leaves % _SLICE_LEAVES == 0:
            self._step(self._done / self._total)
