"""Watchers of a vBucket, and the calls that they get.

Streams, compaction and waiting commands add themselves to `watchers`, to learn that the vBucket in
its present form has ended, and to `waiting`, to learn once of the next change.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Interruption(Enum):
    """Why a watcher of a vBucket cannot continue."""

    STATE_CHANGED = "state changed"
    RESET = "reset"
    ROLLED_BACK = "rolled back"


class Watcher(Protocol):
    """Something that watches a vBucket, such as a stream."""

    def changed(self) -> None:
        """Take note of the first change since it was added to `VBucket.waiting`; must be cheap."""

    def interrupted(self, why: Interruption) -> None:
        """Take note that the vBucket in its present form has ended; it is no longer watched."""
