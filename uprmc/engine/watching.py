"""Who follows a vBucket, and what they are told.

Streams, compaction and commands that wait put themselves on `watchers`, to learn that the vBucket
as it was is over, and on `waiting`, to learn once of the next change.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Interruption(Enum):
    """Why whoever follows a vBucket cannot go on."""

    STATE_CHANGED = "state changed"
    RESET = "reset"
    ROLLED_BACK = "rolled back"


class Watcher(Protocol):
    """Somebody who follows a vBucket: a stream."""

    def changed(self) -> None:
        """Learn of the first change since it was put on `VBucket.waiting`; must be cheap."""

    def interrupted(self, why: Interruption) -> None:
        """Learn that this vBucket, as it was, is over; it is no longer watched after this."""
