"""The items of one reading that are still to be sent: what is stored first, then what is queued."""

from __future__ import annotations

from collections.abc import Iterator

from uprmc.engine.reading import Reading
from uprmc.upr.produce.frames import ItemWriter, Written


class ReadingItems:
    """Passes the items of a reading above some seqno to a writer, portion by portion."""

    __slots__ = ("_queued", "_reading", "_stored")

    def __init__(self, reading: Reading, after: int) -> None:
        self._reading = reading
        self._stored: Iterator[bytes] | None = reading.records(after) if reading.from_disk else None
        self._queued: Iterator[bytes] | None = None

    @property
    def reads_disk(self) -> bool:
        """Whether there may be more in the store."""
        return self._stored is not None

    def write(self, writer: ItemWriter, out: list[bytes], limit: int, after: int) -> Written:
        """Put out the next items, those above seqno `after`, up to about `limit` bytes."""
        if self._stored is not None:
            written = writer.write(self._stored, out, limit, after, self._reading.newer)
            if not written.exhausted or written.items:
                return written
            self._stored = None
        if self._queued is None:
            self._queued = self._reading.queued(after)
        return writer.write(self._queued, out, limit, after)
