"""Copy of the newest state of an index file into a new one: no garbage, one header, full nodes.

Source: systems reference c.6, row I22.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from uprmc.index.model import Reducer
from uprmc.index.tree.building import Builder
from uprmc.index.tree.cache import NodeCache
from uprmc.index.tree.disk import Disk
from uprmc.index.tree.file import IndexFile
from uprmc.index.tree.header import Header
from uprmc.index.tree.nodes import Pointer
from uprmc.index.tree.tree import Tree
from uprmc.index.tree.writing import NodeWriter

__all__ = ["compact"]

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
