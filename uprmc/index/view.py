"""What an index has published: what queries read while the updater goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from uprmc.index.index_file import Facts, OpenFile, States, Trees
from uprmc.index.tree import Position


class View(NamedTuple):
    """What is published: everything a query needs, of one moment.

    Attributes:
        file: which the trees are in, and who reads it.
        trees: the id tree and those of the views.
        positions: where each vBucket stands; none while the first build is not loaded.
        facts: what was learned of each.
        states: what is done with each.
        building: the trees are empty because the first build is not loaded yet.
        course: another object whenever any vBucket has gone back; as long as it is the same one,
            what was once in the trees still is.
    """

    file: OpenFile
    trees: Trees
    positions: Mapping[int, Position]
    facts: Mapping[int, Facts]
    states: States
    building: bool
    course: object
