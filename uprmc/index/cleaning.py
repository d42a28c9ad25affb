"""Rows of vBuckets that are no longer wanted are removed some at a time, between updates (row I16).

Source: systems reference c.7.
"""

from __future__ import annotations

from itertools import islice

from uprmc.index.edits import Edit
from uprmc.index.index_file import Trees

#: Rows that are removed at once: some ten milliseconds.
_ROWS = 5_000


def cleaning_edits(trees: Trees, vbuckets: int) -> list[Edit] | None:
    """Return edits, the id tree's first, that remove some rows of vBuckets.

    The id tree is cleaned last: what it has says which vBuckets have rows.

    Returns:
        ``None`` = nothing else is there, so that vBuckets can be dropped without reading.
    """
    every = (*trees.views, trees.ids)
    place = next((n for n, tree in enumerate(every) if tree.vbuckets & vbuckets), None)
    if place is None or not trees.vbuckets & ~vbuckets:
        return None
    rows = islice(every[place].rows(wanted=vbuckets), _ROWS)
    edits = [Edit((), ())] * len(every)
    edits[(place + 1) % len(every)] = Edit([row.key for row in rows], ())
    return edits
