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
    """Use it in a ``with`` statement; afterwards the collector is as it was.

    Several at a time do no harm. A program that changes the threshold meanwhile has the last word.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        young, *older = before = gc.get_threshold()
        self._before = before if 0 < young < PATIENCE else None
        if self._before is not None:
            gc.set_threshold(PATIENCE, *older)

    def __exit__(self, *_: object) -> None:
        if self._before is not None and gc.get_threshold()[0] == PATIENCE:
            gc.set_threshold(*self._before)
