"""Whether readings of the store may begin.

A store can grow only while it is not being read. The code that grows it shuts the gate, asks all
readers to close their views, and opens the gate again when the store has grown. Without the gate
those readers would be back before the last reading in a worker thread is over, and the store might
never grow.
"""

from __future__ import annotations

from collections.abc import Callable


class ViewGate:
    """Open while readings of the store may begin.

    Attributes:
        is_shut: no reading may begin.
    """

    def __init__(self) -> None:
        self.is_shut = False
        self._waiting: dict[Callable[[], object], None] = {}

    def shut(self) -> None:
        """Let no reading begin from now on."""
        self.is_shut = True

    def open(self) -> None:
        """Let readings begin, and call those who wait."""
        self.is_shut = False
        waiting, self._waiting = self._waiting, {}
        for opened in waiting:
            opened()

    def when_open(self, opened: Callable[[], object]) -> None:
        """Call `opened` once when the shut gate opens, even if it is passed several times."""
        self._waiting[opened] = None
