"""The messages of a registered client that wait until its place is saved.

A batch is made, the client's place as it will be with the batch is saved, the batch leaves. So a
crash can forget nothing that the client may hold. What is acknowledged later is saved now and then,
only so that less is sent again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable

from uprmc.tap_adapter.conversation import Conversation
from uprmc.tap_adapter.feed import PULL_BYTES, Feed

#: After this long a place that could not be saved is tried again, and one that has moved is saved.
SAVE_INTERVAL_S = 1.0


class SavedBatch:
    """Messages that wait until their client's place is saved."""

    def __init__(
        self, conversation: Conversation, feed: Feed, now: float, stirred: Callable[[], None]
    ) -> None:
        """Begin without a batch.

        Args:
            conversation: the client's.
            feed: what makes batches.
            now: monotonic time in seconds.
            stirred: called when a save has ended.
        """
        self._conversation = conversation
        self._feed = feed
        self._stirred = stirred
        self._now = now
        self._saved_at = now
        self._again_at: float | None = None
        self._pieces: list[bytes] = []
        self._is_safe = False
        self._is_known = False  # whether a crash would leave any place of it

    @property
    def waits(self) -> bool:
        """Whether there is one that has not left."""
        return bool(self._pieces)

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append one that is saved, or make one and have it saved; returns the bytes appended."""
        if not self._pieces:
            send_queue = self._conversation.send_queue
            binding = send_queue.binding
            self._feed.fill(self._pieces, min(budget, PULL_BYTES))
            if not self._pieces:
                if self._conversation.urgent:
                    self._save_place()
                return 0
            if send_queue.binding == binding and self._is_known:
                self._is_safe = True  # a client that forgets these is no worse off
            else:
                self._save()
        if not self._is_safe:
            return 0
        pieces, self._pieces = self._pieces, []
        self._is_safe = False
        out += pieces
        self._feed.settle_unasked()
        return sum(map(len, pieces))

    def tick(self, now: float) -> None:
        """Learn the monotonic time in seconds."""
        self._now = now
        if self._again_at is not None:
            if now >= self._again_at:
                self._save()
            return
        moved = (self._conversation.dirty or not self._is_known) and not self._pieces
        if moved and now - self._saved_at >= SAVE_INTERVAL_S:
            self._save_place()

    def _save_place(self) -> None:
        self._saved_at = self._now
        self._conversation.dirty = self._conversation.urgent = False
        self._conversation.known.save(self._place_saved)

    def _save(self) -> None:
        self._again_at = None
        self._conversation.dirty = self._conversation.urgent = False
        self._conversation.known.save(self._batch_saved)

    def _batch_saved(self, kept: bool) -> None:
        if kept:
            self._is_safe = self._is_known = True
        else:
            self._again_at = self._now + SAVE_INTERVAL_S
        self._stirred()

    def _place_saved(self, kept: bool) -> None:
        self._is_known |= kept
        self._conversation.dirty |= not kept
