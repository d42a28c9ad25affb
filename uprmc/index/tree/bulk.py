"""First build of an index: rows are sorted, then the trees are written bottom-up.

Documents may come more than once, the newest version last: then the rows of older versions are
left out. Source: systems reference c.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from uprmc.index.model import Emission, Reducer
from uprmc.index.rows import id_value, rows_of, split_id_value
from uprmc.index.tree.building import Builder
from uprmc.index.tree.file import IndexFile
from uprmc.index.tree.nodes import Pointer, Row
from uprmc.index.tree.sorting import Sorter, keep_last
from uprmc.index.tree.writing import NodeWriter

__all__ = ["BulkLoader"]

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
