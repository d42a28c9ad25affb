"""Whether a reading lacks deletions of documents that the peer may hold.

A peer that began with nothing holds none that was deleted before the end of its first reading.
Without that, a slow one would be sent back to 0 for ever (ruling R5).
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.engine.reading import Reading


class MissingDeletions:
    """Judges the readings of one stream."""

    __slots__ = ("_built_seqno", "_ignored", "_merges", "_on_build")

    def __init__(self, *, ignored: bool) -> None:
        """Begin; with `ignored` the peer does not mind missing deletions."""
        self._ignored = ignored
        self._built_seqno = 0
        self._merges = False
        self._on_build: Callable[[int], None] | None = None

    def builds(self, floor: int, on_build: Callable[[int], None]) -> None:
        """Continue a build whose first snapshot ended at `floor`, 0 = there is none.

        `on_build` is called with the end of the first snapshot of a stream from zero.
        """
        self._built_seqno = floor
        self._on_build = on_build

    def merges(self, floor: int) -> None:
        """Miss no deletion above `floor`: the peer may hold other documents, even at seqno 0."""
        self._built_seqno = floor
        self._merges = True

    def close(self) -> None:
        """Call back no more."""
        self._on_build = None

    def concern(self, reading: Reading, last_seqno: int) -> bool:
        """Tell whether a peer at `last_seqno` may hold documents whose deletions were dropped."""
        if not last_seqno and not self._merges:
            self._built_seqno = reading.end_seqno
            if self._on_build is not None:
                self._on_build(reading.end_seqno)
            return False
        return max(last_seqno, self._built_seqno) < reading.purge_seqno and not self._ignored
