"""What one document may put into a view, and the errors of maps that put more."""

from __future__ import annotations

from collections.abc import Sequence

from uprmc.config import IndexSettings
from uprmc.index.model import Emission

__all__ = ["Limits", "MapError"]


class MapError(ValueError):
    """A document has no rows in a view; the text says why, without naming either."""


class Limits:
    """The limits for one document in one view."""

    def __init__(self, settings: IndexSettings) -> None:
        self.key = settings.max_key_bytes
        self.value = settings.max_row_bytes
        self.rows = settings.max_document_rows
        self.document = settings.max_document_bytes

    def check_row(self, key: bytes, value: bytes) -> None:
        """Refuse a key or value that is too large, by `MapError`."""
        if len(key) > self.key:
            raise MapError(f"it emitted a key of {len(key)} bytes; the most are {self.key}")
        if len(value) > self.value:
            raise MapError(f"it emitted a value of {len(value)} bytes; the most are {self.value}")

    def check(self, rows: Sequence[Emission]) -> None:
        """Refuse rows that are too many or too large together, by `MapError`."""
        if len(rows) > self.rows:
            raise MapError(f"it emitted {len(rows)} rows; the most are {self.rows}")
        size = sum(len(row.key) + len(row.value) for row in rows)
        if size > self.document:
            raise MapError(f"its rows have {size} bytes; the most are {self.document}")
