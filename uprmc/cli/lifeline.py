"""How a process ends with the one that has started it: the other end of a pipe closes.

That happens however the other process ends, also by SIGKILL. The pipe is read in a thread of its
own, from before anything else is imported; so neither a long start nor a busy reactor delays it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

#: How long the process may take to end in order.
GRACE_S = 10.0

_EXIT_CODE = 1


class Lifeline:
    """Watches standard input.

    Attributes:
        stop: ends the process in order; it is called in the thread. ``None`` = there is nothing to
            be put in order so far.
    """

    def __init__(self, descriptor: int = 0, grace_s: float = GRACE_S) -> None:
        self.stop: Callable[[], None] | None = None
        self._descriptor, self._grace_s = descriptor, grace_s
        threading.Thread(target=self._watch, name="uprmc-lifeline", daemon=True).start()

    def _watch(self) -> None:
        while os.read(self._descriptor, 4_096):
            pass
        if self.stop is not None:
            self.stop()
            time.sleep(self._grace_s)
        os._exit(_EXIT_CODE)
