"""The readers of a file: it is closed when it is out of use and the last of them is done.

Readers stream answers for as long as their clients take, while a compaction may have put another
file in this one's place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Readers:
    """See the module docstring.

    Args:
        close: called once, when the file is retired and has no reader.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._lock = threading.Lock()
        self._count = 0
        self._retired = self._closed = False

    def enter(self) -> bool:
        """Begin to read; ``False`` = it is closed."""
        with self._lock:
            if not self._closed:
                self._count += 1
            return not self._closed

    def leave(self) -> None:
        """Read no more."""
        with self._lock:
            self._count -= 1
        self._look()

    def retire(self) -> None:
        """Close the file as soon as it has no reader."""
        self._retired = True
        self._look()

    def _look(self) -> None:
        with self._lock:
            ends = self._retired and not self._count and not self._closed
            self._closed = self._closed or ends
        if ends:
            self._close()
