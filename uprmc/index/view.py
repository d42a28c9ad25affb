"""What an index has published: what queries read while the updater goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from uprmc.index.index_file import Facts, IndexTrees, OpenFile
from uprmc.index.tree import IndexPosition, Tree
from uprmc.index.vbucket_sets import States


class PublishedView(NamedTuple):
    """What is published: everything a query needs, of one moment."""

    file: OpenFile  # which the trees are in, and who reads it
    trees: IndexTrees  # the id tree and those of the views
    # where each vBucket stands; none while the first build is not loaded.
    positions: Mapping[int, IndexPosition]
    facts: Mapping[int, Facts]  # what was learned of each
    states: States  # what is done with each
    building: bool  # the trees are empty because the first build is not loaded yet
    # another object whenever any vBucket has gone back; as long as it is the same one, what was
    # once in the trees still is.
    course: object


# --- snapshot -------------------------------------------------------------------------------------


class Snapshot:
    """A state of an index that one request reads, for as long as its answer takes. Any thread may
    read its trees.

    Args:
        view: what was published.
        active: bitmap of the vBuckets whose rows count.

    Attributes:
        file: which the trees are in.
        wanted: the same, ``None`` = all rows that are in the trees count.
        building: nothing is in the trees yet.
    """

    def __init__(self, view: PublishedView, active: int) -> None:
        self._view, self.file = view, view.file
        self.building = view.building
        self._active = active
        self.wanted: int | None = active if view.trees.vbuckets & ~active else None
        self._released = False

    def tree(self, view_index: int) -> Tree:
        """Return the tree of a view."""
        return self._view.trees.views[view_index]

    def total_rows(self, view_index: int) -> int:
        """Return how many rows a view has, those that do not count included."""
        return self.tree(view_index).count

    @property
    def update_seq(self) -> Mapping[int, int]:
        """The seqno of each vBucket that it stands for."""
        positions = self._view.positions
        return {vb: at.seqno for vb, at in sorted(positions.items()) if self._active >> vb & 1}

    def release(self) -> None:
        """Let the file go; twice is no error."""
        if not self._released:
            self._released = True
            self._view.file.readers.leave()


def taken(view: PublishedView, active: int) -> Snapshot | None:
    """Return a snapshot of what is published, ``None`` = its file was closed: look again."""
    return Snapshot(view, active) if view.file.readers.enter() else None
