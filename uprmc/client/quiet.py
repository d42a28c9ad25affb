"""Building thousands of values at a time without Python's cyclic collector looking at each.

The collector runs when so many objects are new, whether or not there is anything to collect. The
changes of a batch are in no cycle and die with the batch; looking through them again and again
costs a third of all CPU. So it is told to wait for more while there is a batch. It stays on: what
handlers and other threads throw away meanwhile is collected, a little later.
"""

from __future__ import annotations

import gc

#: New objects that the collector waits for; a batch of the smallest changes has fewer.
PATIENCE = 50_000


class PatientCollector:
    """Between `hold` and `release` the collector waits longer; afterwards it is as it was.

    Several at a time do no harm. A program that changes the threshold meanwhile has the last word.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None

    @property
    def is_held(self) -> bool:
        """Whether it waits."""
        return self._before is not None

    def hold(self) -> None:
        """Have the collector wait; harmless if it does already."""
        young, *older = before = gc.get_threshold()
        if 0 < young < PATIENCE:
            self._before = before
            gc.set_threshold(PATIENCE, *older)

    def release(self) -> None:
        """Have it work as before; harmless if it does already."""
        before, self._before = self._before, None
        if before is not None and gc.get_threshold()[0] == PATIENCE:
            gc.set_threshold(*before)
