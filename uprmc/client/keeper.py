"""A second thread for the blocking client: it looks after sockets while a handler works.

The client's thread enters the keeper around everything that may call a handler. Inside, the sockets
are the keeper's; outside, they are the thread's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

#: The keeper looks so often in a keep-alive's interval: the node waits one for an answer.
_LOOKS = 4

_PERIOD_MIN_S = 0.01


class Keeper:
    """See the module docstring.

    Args:
        interval_s: of keep-alives.
        look: called in the second thread, now and then while a handler works.
    """

    def __init__(self, interval_s: float, look: Callable[[], None]) -> None:
        self._period_s = max(_PERIOD_MIN_S, interval_s / _LOOKS)
        self._look = look
        self._lock = threading.Lock()
        self._inside = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uprmc keeper", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._inside = True
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:  # a look that is under way ends first
            self._inside = False

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            with self._lock:
                if self._inside:
                    self._look()


@contextmanager
def running(interval_s: float, look: Callable[[], None]) -> Iterator[Keeper]:
    """Give a keeper that looks until the ``with`` statement ends."""
    keeper = Keeper(interval_s, look)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()
