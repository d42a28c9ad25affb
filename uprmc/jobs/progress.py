"""How long work reports how far it is: plain values, given to a function on the driver.

The command line draws a bar or lines from them (`uprmc.cli.bulk`); otherwise
`unseen` takes them. Calls are cheap and may come often: the display decides how often to show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """How far one kind of work is."""

    what: str  # the work in one or two words: ``loading``, ``reading``, ``comparing``
    done: int  # units that are done (tasks, groups of vBuckets, batches)
    of: int | None = None  # how many units there are; ``None`` = the work has no end
    rows: int = 0  # rows of all units that are done
    # bytes of keys and values of these rows, or of the input, where that is known.
    size_bytes: int = 0


#: Gets a `Step` whenever there is one; is called on the driver, by one thread.
Progress = Callable[[Step], None]


def unseen(step: Step) -> None:
    """Ignore a step."""
