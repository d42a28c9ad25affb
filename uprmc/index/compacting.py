"""A compaction under way: a copy made in a thread of its own, and what has changed since it began.

The copy begins at a header. Edits that the trees get meanwhile are remembered, up to a limit: with
more of them the updater waits for the copy. When the copy is there the edits are applied to it, and
it can take the file's place.

Source: systems reference c.6; acceptance rows I22, I23.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from uprmc.index.edits import Edit
from uprmc.index.errors import Damaged
from uprmc.index.index_file import OpenFile, Trees
from uprmc.index.tree import Header, IndexFile
from uprmc.index.tree.compaction import compact

#: The copying thread rests this long after each slice, so that others get their turns.
_REST_S = 0.001


class _Abandoned(Exception):
    """The copy is of no use any more."""


class Compaction:
    """See the module docstring. It begins at once; all methods are for the updater's thread.

    Args:
        file: what is copied.
        header: the state that is copied; it is the newest one.
        path: of the copy.
        limit_bytes: of edits that are remembered.
        done: called in the copying thread when it has ended.

    Attributes:
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
        self._file, self._header, self._path = file, header, path
        self._limit_bytes, self._done = limit_bytes, done
        self._edits: list[tuple[Sequence[Edit], int]] = []
        self._bytes = 0
        self._abandoned = False
        self._copy: IndexFile | None = None
        self._thread = threading.Thread(target=self._run, name="uprmc-index-compaction")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._copy = compact(
                self._file.file,
                self._path,
                self._file.reducers,
                header=self._header,
                step=self._step,
            )
        except _Abandoned:
            pass
        except (OSError, Damaged) as error:
            self.error = str(error)
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

    def result(self) -> tuple[IndexFile, Trees] | None:
        """Return the copy and its trees with all edits, ``None`` = there is no copy."""
        self._thread.join()
        if self._copy is None:
            return None
        try:
            trees = OpenFile(self._path, self._copy, self._file.reducers).trees(self._copy.header)
            for edits, dropped in self._edits:
                trees = trees.edited(edits, dropped)
            self._copy.flush()
            return self._copy, trees
        except (OSError, Damaged) as error:
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
