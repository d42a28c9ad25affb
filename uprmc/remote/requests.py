"""What an answer's status means for whoever asks."""

from __future__ import annotations

from enum import Enum, auto

from uprmc.protocol.opcodes import Status


class Verdict(Enum):
    """What follows from a status."""

    DONE = auto()
    AGAIN = auto()  # the node has no time now: ask it again soon
    ELSEWHERE = auto()  # another node has the vBucket: find out which
    LATER = auto()  # time makes it good, perhaps much: who must get it there asks again
    NEVER = auto()  # asking again does not change it


_VERDICTS: dict[int, Verdict] = {
    Status.SUCCESS: Verdict.DONE,
    Status.BUSY: Verdict.AGAIN,
    Status.TEMPORARY_FAILURE: Verdict.AGAIN,
    Status.NOT_MY_VBUCKET: Verdict.ELSEWHERE,
    Status.LOCKED: Verdict.LATER,
    Status.OUT_OF_MEMORY: Verdict.LATER,
}


def _with(*verdicts: Verdict) -> frozenset[int]:
    return frozenset(status for status, each in _VERDICTS.items() if each in verdicts)


#: Statuses that those repeat who must get it to this node: time makes them good.
IN_TIME = _with(Verdict.AGAIN, Verdict.LATER)

#: Statuses that time or another node makes good.
REPEATED = _with(Verdict.AGAIN, Verdict.LATER, Verdict.ELSEWHERE)


def verdict(status: int) -> Verdict:
    """Return what follows from a status, a `Status` number or one without a name."""
    return _VERDICTS.get(status, Verdict.NEVER)
