"""When a flush is due.

The flusher rests for a multiple of the time that it worked. A fast commit is repeated soon; a slow
one waits for more changes, because a document in a batch of 30,000 costs half of one in a batch of
10,000 and a tenth of one in a batch of 100. While replicas are being filled many batches may
gather: their source has everything, and writing would take time from receiving.
"""

from __future__ import annotations

from uprmc.config import FlushSettings
from uprmc.core.fronts import queued_in
from uprmc.engine.memory_account import MemoryAccount

#: Shortest time between two questions whether a flush is due.
_LEAST_LOOK_S = 0.001

#: This many batches may gather while replicas are far behind their source.
_FILLING_BATCHES = 32


class FlushPace:
    """Says how long the flusher may rest.

    Attributes:
        filling: connections that fill replicas which are far behind.
        batch_items: how many items the last commit had room for.
    """

    def __init__(self, settings: FlushSettings) -> None:
        self._settings = settings
        self._hurried = False
        self.filling = 0
        self.batch_items = settings.batch_items

    def configure(self, settings: FlushSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings

    def hurry(self) -> None:
        """End the rest, because a client has asked whether a change is on disk."""
        self._hurried = True

    def begun(self) -> None:
        """Rest again after the flush that begins now."""
        self._hurried = False

    def delay(self, account: MemoryAccount, age_s: float, last_flush_s: float) -> float:
        """Return the seconds after which to ask again whether a flush is due; 0 = it is due now.

        It is due at once when a batch is full or memory is short. `hurry` cuts the rest short.
        """
        settings = self._settings
        batch_items = self.batch_items * (_FILLING_BATCHES if self.filling else 1)
        if queued_in(account.dirty) >= batch_items or account.used > account.high_mark:
            return 0.0
        rest = 0.0 if self._hurried else settings.rest_factor * last_flush_s
        wait = min(max(rest, settings.min_delay_s), settings.max_delay_s)
        return min(max(wait - age_s, 0.0), max(settings.min_delay_s, _LEAST_LOOK_S))
