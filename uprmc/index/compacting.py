"""Compaction of an index file: a copy made in a thread of its own, and what has changed meanwhile.

The copy begins at a header. Edits that the trees get meanwhile are remembered, up to a limit: with
more of them the updater waits for the copy. When the copy is there the edits are applied to it, and
it can take the file's place.

Rows I22, I23.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from uprmc.config import IndexSettings
from uprmc.index.errors import IndexDamaged
from uprmc.index.index_file import IndexTrees, OpenFile
from uprmc.index.tree import Header, IndexFile
from uprmc.index.tree.bulk import compact
from uprmc.index.versions import Edit

#: The copying thread rests this long after each slice, so that others get their turns.
_REST_S = 0.001

#: It is looked again how much of a file is of use when it has grown by this factor.
_GROWN = 1.1

_LOG = logging.getLogger("uprmc.index")


class _Abandoned(Exception):
    """The copy is of no use any more."""


class IndexCompaction:
    """See the module docstring. It begins at once; all methods are for the updater's thread.

    Args:
        file: what is copied.
        header: the state that is copied; it is the newest one.
        path: of the copy.
        limit_bytes: of edits that are remembered.
        done: called in the copying thread when it has ended.

    Attributes:
        header: as given.
        ratio: which part is copied, from 0 to 1.
        error: why there will be no copy, empty = nothing is wrong.
    """

    def __init__(
        self,
        file: OpenFile,
        header: Header,
        path: Path,
        limit_bytes: int,
        done: Callable[[], None],
    ) -> None:
        self.ratio, self.error = 0.0, ""
        self.header = header
        self._file, self._path = file, path
        self._limit_bytes, self._done = limit_bytes, done
        self._edits: list[tuple[Sequence[Edit], int]] = []
        self._bytes = 0
        self._abandoned = False
        self._damage: IndexDamaged | None = None
        self._copy: IndexFile | None = None
        self._thread = threading.Thread(target=self._run, name="uprmc-index-compaction")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._copy = compact(
                self._file.file,
                self._path,
                self._file.reducers,
                header=self.header,
                step=self._step,
            )
        except _Abandoned:
            pass
        except OSError as error:
            self.error = str(error)
        except IndexDamaged as error:
            self._damage, self.error = error, str(error)
        finally:
            self._done()

    def _step(self, ratio: float) -> None:
        if self._abandoned:
            raise _Abandoned
        self.ratio = ratio
        time.sleep(_REST_S)

    def note(self, edits: Sequence[Edit], dropped: int) -> None:
        """Remember what is done to the trees; waits for the copy when that is too much."""
        self._edits.append((edits, dropped))
        self._bytes += sum(
            sum(map(len, edit.removals)) + sum(len(row[0]) + len(row[2]) for row in edit.insertions)
            for edit in edits
        )
        if self._bytes > self._limit_bytes:
            self._thread.join()

    @property
    def has_ended(self) -> bool:
        """Whether the copy is there, or will never be."""
        return not self._thread.is_alive()

    def result(self) -> tuple[IndexFile, IndexTrees] | None:
        """Return the copy and its trees with all edits, ``None`` = there is no copy.

        Raises:
            Damaged: what was to be copied cannot be read.
        """
        self._thread.join()
        if self._damage is not None:
            raise self._damage
        if self._copy is None:
            return None
        try:
            trees = OpenFile(self._path, self._copy, self._file.reducers).trees(self._copy.header)
            for edits, dropped in self._edits:
                trees = trees.edited(edits, dropped)
            self._copy.flush()
            return self._copy, trees
        except (OSError, IndexDamaged) as error:
            self.error = str(error)
            self.abandon()
            return None

    def abandon(self) -> None:
        """Make an end of it, and remove the copy."""
        self._abandoned = True
        self._thread.join()
        if self._copy is not None:
            self._copy.close()
            self._path.unlink(missing_ok=True)


class Compactions:
    """When the file of an index is compacted: one compaction after the other.

    Attributes:
        current: what is under way.
        wanted: one is to begin when that is possible.
        done: how many files were replaced by their copies.
        failed: how many others, but for those that a rollback has ended.
        error: why the last one has failed, empty = it has not.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        self.current: IndexCompaction | None = None
        self.wanted = False
        self.done = self.failed = 0
        self.error = ""
        self._looked_at = self._live_bytes = 0

    @property
    def has_ended(self) -> bool:
        """Whether the copy of the present one is there, or will never be."""
        return self.current is not None and self.current.has_ended

    def want(self) -> None:
        """Have one begin as soon as no rollback is due, unless one is under way."""
        self.wanted = self.current is None

    def consider(self, size_bytes: int, trees: IndexTrees) -> None:
        """Look now and then how much of a file is of no use, and want one if it is too much."""
        if self.current is not None or size_bytes < self._looked_at * _GROWN:
            return
        self._looked_at = size_bytes
        self._live_bytes = trees.live_bytes()
        too_much = 1 - self._live_bytes / size_bytes >= self._settings.fragmentation
        if size_bytes >= self._settings.compact_min_bytes and too_much:
            self.wanted = True

    def begin(self, file: OpenFile, header: Header, path: Path, done: Callable[[], None]) -> None:
        """Begin one; see `IndexCompaction`."""
        self.wanted = False
        self.current = IndexCompaction(file, header, path, self._settings.queue_bytes, done)

    def note(self, edits: Sequence[Edit], dropped: int) -> None:
        """See `IndexCompaction.note`."""
        if self.current is not None:
            self.current.note(edits, dropped)

    def result(self) -> tuple[IndexFile, IndexTrees] | None:
        """End the present one; see `IndexCompaction.result`. Why there is no copy is said once."""
        current, self.current = self.current, None
        assert current is not None
        try:
            return current.result()
        finally:
            if current.error and current.error != self.error:
                _LOG.warning("an index file is not compacted: %s", current.error)
            self.failed += bool(current.error)
            self.error = current.error

    def abandon(self) -> None:
        """Make an end of the present one."""
        current, self.current = self.current, None
        if current is not None:
            current.abandon()

    def begin_over(self) -> None:
        """Have one that is under way begin again: the trees have gone back (row I23)."""
        self.wanted = self.wanted or self.current is not None
        self.abandon()

    def sizes(self, size_bytes: int) -> dict[str, int | float | bool | str]:
        """Return what ``_info`` shows of them, for a file of this size."""
        size_bytes = max(size_bytes, 1)
        live_bytes = min(self._live_bytes, size_bytes)
        return {
            "data_bytes": live_bytes,
            "fragmentation": round(1 - live_bytes / size_bytes, 4) if live_bytes else 0.0,
            "compactions": self.done,
            "compactions_failed": self.failed,
            "compaction_error": self.error,
            "compacting": self.current is not None,
        }
