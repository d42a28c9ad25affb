"""Keeping Python's cycle collector away from the data.

A node holds millions of items that are in no cycle; reference counting frees them. Left alone the
collector would walk all of them again and again, a tenth of a second for a million. So automatic
collection is off, and a few times a second the youngest objects are looked at and whatever lives is
moved out of the collector's sight (`gc.freeze` costs nothing).

Note: a cycle that survives one such look and becomes garbage later is never freed. So connections,
sessions and requests must not be in a cycle once they are done; ``tests/server`` checks that with
the collector off.
"""

from __future__ import annotations

import gc


def take_over() -> None:
    """Stop automatic collection; collect once what start-up left behind."""
    gc.disable()
    gc.collect()
    gc.freeze()


def tend() -> None:
    """Free young cycles, let everything else be. Call it often; costs what is new since."""
    gc.collect(0)
    gc.freeze()


def give_back() -> None:
    """Return to Python's own ways: the node has stopped."""
    gc.unfreeze()
    gc.enable()
