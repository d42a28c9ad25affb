"""CAS values: a hybrid of the wall clock and a counter.

A CAS is the wall clock in nanoseconds with its low 16 bits cleared, or one more than the highest
CAS known, whichever is greater. So it dates a version to 65 microseconds, never falls when the
clock is set back, and is above every version that was taken from elsewhere.

What surprises: after an unclean start, and where a vBucket becomes active, nobody knows which CAS
values were given out and lost. One of them given out again would let a compare-and-set that was
meant for the lost version overwrite another. So the next ones **jump** far ahead of the clock and
of all that is known, by more than any lag of a disk or a replica; how far beyond that, chance says,
because a jump may be lost as well, and come again. Whoever is hours ahead already counts by ones
and jumps less: a node that crashes in a loop must not run away from its peers, which refuse what
is a day ahead (`with_meta.CAS_AHEAD_MAX_S`).

Source: contracts of the systems to come, section 3.
"""

from __future__ import annotations

_NANOS = 1_000_000_000

#: Bits that the clock leaves to the counter.
_COUNTED = 0xFFFF

#: A jump: 2**32 microseconds, 72 minutes.
JUMP = 2**32 * 1_000

#: A jump of those who are ahead of the clock by more than `_FAR`: as many changes as fit into it
#: are not lost at once.
_SHORT_JUMP = 2**32
_FAR = 12 * 3_600 * _NANOS

#: Chance adds less than this: four seconds.
_CHANCE = 2**32 - 1

#: A CAS taken from elsewhere is followed by one so far above, or less than twice as far: neither
#: who gave it out nor another node that took it may go on with the same next one. An eighth of a
#: millisecond, so that two nodes that take from each other all the time do not run away from the
#: clock.
_STEP = 2**17


def reading(now_s: float) -> int:
    """Return what the wall clock says as a CAS."""
    return int(now_s * _NANOS) & ~_COUNTED


def step(chance: int) -> int:
    """Return by how much a life of a node stays above what it takes from elsewhere."""
    return _STEP + chance % _STEP


def beyond(known: int, now_s: float, name: int) -> int:
    """Return a CAS above all that may have been given out and lost.

    Args:
        known: the highest that is known.
        now_s: Unix time.
        name: of the history that goes on; it tells nodes apart that do this at the same time.
    """
    clock = reading(now_s)
    chance = (name ^ int(now_s * _NANOS)) & _CHANCE
    if known > clock + _FAR:
        return known + _SHORT_JUMP + chance
    return max(known, clock) + JUMP + chance
