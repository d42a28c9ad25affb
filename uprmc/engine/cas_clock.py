"""CAS values: a hybrid of the wall clock and a counter.

A CAS is the wall clock in nanoseconds with its low 16 bits cleared, or one more than the highest
known CAS, whichever is greater. So it dates a version to within 65 microseconds, never decreases
when the clock is set back, and is above every version received from another node.

Note: after an unclean start, and where a vBucket becomes active, the node cannot know which CAS
values were given out and lost. If one of them were given out again, a compare-and-set meant for the
lost version could overwrite another one. So the next values **jump** far ahead of the clock and of
every known CAS, by more than any lag of a disk or a replica. The exact distance is random, because
a jump may be lost too and then be repeated. A node that is already hours ahead counts by ones and
jumps less: a node that crashes in a loop must not run away from its peers, which refuse a CAS that
is a day ahead (`AHEAD_MAX_S`).

Note: a wall clock that is wrong for a while must not move the counter for good, because peers would
refuse all later versions. So the clock is not believed when it leaps ahead of the time that has
passed (`Timeline`). What was given out is never taken back: time catches up with it.
"""

from __future__ import annotations

from math import inf

_NANOS = 1_000_000_000

#: How far a peer's CAS may be ahead of Unix time in nanoseconds, which is what present servers use.
#: It travels to everything that we replicate to, so a wrong clock would take all others along.
AHEAD_MAX_S = 24 * 3_600

#: A wall clock that moves on by so much more than time has passed has leapt, and is believed again
#: when that has lasted for `_BELIEVED_S`: it may have been wrong before, or the machine has slept.
_LEAP_S, _BELIEVED_S = 12 * 3_600.0, 3_600.0

#: Bits that the clock leaves to the counter.
_COUNTED = 0xFFFF

#: A jump: 2**32 microseconds, 72 minutes.
JUMP = 2**32 * 1_000

#: A jump of a node that is ahead of the clock by more than `_FAR`. It covers this many changes that
#: were lost at once.
_SHORT_JUMP = 2**32
_FAR = 12 * 3_600 * _NANOS

#: The random part is less than this: four seconds.
_CHANCE = 2**32 - 1

#: A CAS from elsewhere that is further from the clock than this is counted: a clock drifts, or the
#: version is old.
DRIFT_S = 5

#: After a CAS received from another node, the next own CAS is this much higher, up to twice as
#: much: neither the node that gave it out nor another node that received it may continue with the
#: same value. It is an eighth of a millisecond, so that two nodes that receive from each other all
#: the time do not run away from the clock.
_STEP = 2**17


def reading(now_s: float) -> int:
    """Return the wall clock time as a CAS."""
    return int(now_s * _NANOS) & ~_COUNTED


class Timeline:
    """The wall clock, as far as it is believed."""

    __slots__ = ("_began", "_leapt_at", "_passed", "instead", "until")

    def __init__(self) -> None:
        self.until = inf  # a later time is not believed now
        self.instead = self._began = self._passed = 0.0  # the time to be used then
        self._leapt_at: float | None = None

    def look(self, now_s: float, monotonic: float) -> None:
        """Compare the clocks; a few times a second is often enough.

        Args:
            now_s: Unix time.
            monotonic: seconds that only grow.
        """
        passed = monotonic - self._passed
        expected = self._began + passed
        leaps = self.until < inf and now_s > expected + _LEAP_S
        if not leaps:
            self._leapt_at = None
        elif self._leapt_at is None:
            self._leapt_at = monotonic
        lasts = leaps and monotonic - (self._leapt_at or 0.0) >= _BELIEVED_S
        if (
            self.until == inf
            or lasts
            or (not leaps and (passed >= _BELIEVED_S or now_s < expected))
        ):
            self._began, self._passed, expected, self._leapt_at = now_s, monotonic, now_s, None
        self.instead, self.until = expected, expected + _LEAP_S


def step(chance: int) -> int:
    """Return the distance that this run of a node keeps above CAS values received from others."""
    return _STEP + chance % _STEP


def beyond(known: int, now_s: float, name: int) -> int:
    """Return a CAS above every value that may have been given out and lost.

    Args:
        known: the highest known CAS.
        now_s: Unix time.
        name: the current history; it distinguishes nodes that do this at the same time.
    """
    clock = reading(now_s)
    chance = (name ^ int(now_s * _NANOS)) & _CHANCE
    if known > clock + _FAR:
        return known + _SHORT_JUMP + chance
    return max(known, clock) + JUMP + chance
