"""Which rows a replica is told: none that is ahead of what the replica itself holds.

A row says that a client needs no deletion up to its watermark. At a replica that holds less, the
row would speak of changes that may never come: if the replica is promoted they are lost, and their
seqnos are given to others, which the client needs. So a replica is told the newest value that was
reported when the row was not ahead yet. If none is remembered, the row is left out, and the
replica's table is incomplete: it must drop nothing.

Row X25.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from uprmc.engine.watermarks.rows import Kind, Row

#: This many earlier reports of each row are remembered.
EARLIER_REPORTS = 8

#: Kinds whose rows stay at the node: after a promotion, the new active node gets new rows.
_LOCAL = frozenset({Kind.REPLICA, Kind.REBALANCE})


class Shown(NamedTuple):
    """What a replica is told."""

    rows: tuple[Row, ...]  # by id, none of them ahead of the replica
    hidden: int  # number of rows that are left out because they are ahead


def is_told(row: Row) -> bool:
    """Tell whether a row is of a kind that replicas are told."""
    return row.kind not in _LOCAL


def newest_within(reports: Iterable[Row], reach: int) -> Row | None:
    """Return the first of some reports, newest first, that is not ahead of `reach`."""
    return next((row for row in reports if row.effective <= reach), None)


def shown_to(reports: Collection[Iterable[Row]], reach: int) -> Shown:
    """Return what a replica is told that holds everything up to `reach` on its disk.

    Args:
        reports: of each row, newest first, as the present history sees them.
        reach: the end of a complete snapshot.
    """
    found = [newest_within(row, reach) for row in reports]
    rows = tuple(row for row in found if row is not None)
    return Shown(rows, len(found) - len(rows))
