"""Rows that have expired lately, so that a client which comes back can be told why.

Row X19.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.engine.watermarks.rows import Row

#: At most this many rows are remembered, of all vBuckets.
_ROWS_MAX = 16_384


class Former(NamedTuple):
    """What an expired row had reported, and when it expired (Unix time); 0 = there was none."""

    watermark: int = 0
    expired_at: int = 0


class ExpiredRows:
    """The newest of them, until the node stops."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, bytes], Former] = {}

    def note(self, vbucket: int, row: Row, now: int) -> None:
        """Remember a row that is being removed."""
        self._rows.pop((vbucket, row.id), None)
        while len(self._rows) >= _ROWS_MAX:
            del self._rows[next(iter(self._rows))]
        expired_at = min(now, row.reported_at + row.lifetime_s) if row.lifetime_s else now
        self._rows[vbucket, row.id] = Former(row.watermark, expired_at)

    def find(self, vbucket: int, name: bytes) -> Former:
        """Return what is remembered of a client's row."""
        return self._rows.get((vbucket, name), Former())

    def forget(self, vbucket: int, name: bytes) -> None:
        """Forget a client that is registered again."""
        self._rows.pop((vbucket, name), None)
