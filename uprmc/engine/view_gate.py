"""Whether readings of the store may begin.

A store grows only while nobody reads it. Whoever grows it shuts the gate, has everybody let go, and
opens it again when the store has grown: without it those who were sent away would be back before
the last reading that a worker has under way is over, and the store might never grow.
"""

from __future__ import annotations

from collections.abc import Callable


class ViewGate:
    """See the module docstring.

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
        """Let readings begin, and tell those who wait."""
        self.is_shut = False
        waiting, self._waiting = self._waiting, {}
        for opened in waiting:
            opened()

    def when_open(self, opened: Callable[[], object]) -> None:
        """Call `opened` once when the gate, which is shut, opens; once however often it is said."""
        self._waiting[opened] = None
