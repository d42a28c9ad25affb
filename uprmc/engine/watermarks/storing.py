"""When the rows of watermark tables are written to disk.

A new row is on disk before it counts as registered; a report may be lost in a crash, which only
keeps tombstones for longer. So what has only risen is written `RAISED_WRITTEN_S` later, and at the
latest in the commit that drops tombstones of the vBucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from uprmc.engine.flusher import Flusher, Waiter
from uprmc.engine.watermarks import document
from uprmc.engine.watermarks.table import WatermarkTable
from uprmc.ports import Clock

#: Watermarks that have only risen are written this often, in seconds.
RAISED_WRITTEN_S = 5.0

#: At most this many rows are handed to a commit at a time.
_ROWS_WRITTEN_AT_ONCE = 1_000


class StoredRows:
    """Has the rows of all vBuckets written, and knows which new ones are not on disk.

    Attributes:
        lacking: rows that may not be on disk: (vBucket, id) -> the number of their registration.
    """

    def __init__(
        self, flusher: Flusher, clock: Clock, tables: Mapping[int, WatermarkTable]
    ) -> None:
        self._flusher = flusher
        self._clock = clock
        self._tables = tables
        self._raised: set[int] = set()
        self._raised_since = 0.0
        self._due: list[int] = []
        self.lacking: dict[tuple[int, bytes], int] = {}
        self._registrations = 0

    def write(self, number: int) -> None:
        """Have a vBucket's rows written with the next commit."""
        self._raised.discard(number)
        name = document.name_of(number)
        self._flusher.keep_local(name, partial(self._document, number))

    def _document(self, number: int) -> bytes | None:
        table = self._tables.get(number)
        if table is None:
            return None
        return document.encode(table.stored(), incomplete=table.incomplete)

    # --- watermarks that have only risen --------------------------------------------------------

    def write_later(self, numbers: Sequence[int]) -> None:
        """Have rows written after a while: their watermarks have only risen."""
        if numbers and not self._raised:
            self._raised_since = self._clock.monotonic()
        self._raised.update(numbers)

    def write_before_drop(self, number: int) -> None:
        """Have rows written with the commit that drops tombstones: none may be behind them."""
        if number in self._raised:
            self.write(number)

    def write_all(self) -> None:
        """Have all rows that wait written with the next commit."""
        for number in sorted(self._raised):
            self.write(number)

    def write_due(self) -> None:
        """Have rows that have waited for long enough written, some at a time."""
        now = self._clock.monotonic()
        if self._raised and now - self._raised_since >= RAISED_WRITTEN_S:
            self._due, self._raised_since = sorted(self._raised, reverse=True), now
        rows = 0
        while self._due and rows < _ROWS_WRITTEN_AT_ONCE:
            number = self._due.pop()
            if number in self._raised:
                rows += len(self._tables.get(number, ()))
                self.write(number)

    # --- new rows -------------------------------------------------------------------------------

    def registered(self, number: int, name: bytes) -> None:
        """Take note of a new row, which is not on disk."""
        self._registrations += 1
        self.lacking.pop((number, name), None)  # the order is that of registrations
        self.lacking[number, name] = self._registrations

    def when_registered(self, done: Waiter) -> None:
        """Call `done` when all rows of this moment are on disk, ``False`` if that failed."""
        upto = self._registrations

        def written(ok: bool) -> None:
            if ok:
                self._note_stored(upto)
            done(ok)

        self._flusher.when_durable(written, patient=False)

    def _note_stored(self, upto: int) -> None:
        while self.lacking:
            row, registration = next(iter(self.lacking.items()))
            if registration > upto:
                return
            del self.lacking[row]
