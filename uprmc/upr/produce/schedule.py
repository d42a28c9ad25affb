"""Whose turn it is among the streams of one connection.

`RoundRobin` lets every stream that has something send a portion, one after the other, so that a hot
vBucket cannot starve the others. `Rounds` is the order of the first specification: vBuckets by
number, one whole snapshot each, and word of every completed round (ruling R4).

Source: seed 000, "loop over the partitions"; rows D27, D29 to D31, I09.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from sortedcontainers import SortedDict

from uprmc.upr.produce.stream import Stream


class Schedule(Protocol):
    """What a connection asks; streams come in by `ready` and stay until `next` finds them idle."""

    def ready(self, stream: Stream) -> None:
        """Learn that `stream` has something to send; harmless when that is known."""

    def gone(self, stream: Stream) -> None:
        """Forget `stream`."""

    def next(self) -> Stream | None:
        """Return the stream whose turn it is."""

    def had_turn(self, stream: Stream, *, sent: bool, complete: bool, idle: bool) -> None:
        """Learn what it did.

        Args:
            stream: whose turn it was.
            sent: it sent something.
            complete: it came to the end of a snapshot.
            idle: it has nothing more to send now.
        """


class RoundRobin:
    """Gives every stream that has something to send its turn.

    Attributes:
        turns: streams that have something to send, in the order in which they have their turns.
    """

    def __init__(self) -> None:
        self.turns: deque[Stream] = deque()

    def ready(self, stream: Stream) -> None:
        """See `Schedule`."""
        if not stream.queued:
            stream.queued = True
            self.turns.append(stream)

    def gone(self, stream: Stream) -> None:
        """See `Schedule`. O(streams that have something to send)."""
        if stream.queued:
            stream.queued = False
            self.turns.remove(stream)

    def next(self) -> Stream | None:
        """See `Schedule`."""
        return self.turns[0] if self.turns else None

    def had_turn(self, stream: Stream, *, sent: bool, complete: bool, idle: bool) -> None:
        """See `Schedule`."""
        if not stream.queued:
            return  # its turn was its end
        if idle:
            self.turns.popleft().queued = False
        else:
            self.turns.rotate(-1)


class Round(NamedTuple):
    """One completed round.

    Attributes:
        cycle: its number, from 0.
        visited: vBuckets that sent a snapshot, or began to.
    """

    cycle: int
    visited: frozenset[int]


class Rounds:
    """Serves vBuckets in ascending order, each with one complete snapshot.

    Attributes:
        cycle: number of the round under way; rounds in which nobody sends anything do not count.
        position: vBucket whose turn it is or was last in this round, -1 before the first.
        visited: vBuckets that have sent a snapshot in this round, or began to.
    """

    def __init__(self) -> None:
        self.cycle = 0
        self.position = -1
        self.visited: set[int] = set()
        self._ready: SortedDict = SortedDict()
        self._current: Stream | None = None

    @property
    def upcoming(self) -> int:
        """The lowest vBucket that can still be served in this round."""
        return self.position + (self._current is None)

    def ready(self, stream: Stream) -> None:
        """See `Schedule`."""
        if not stream.queued:
            stream.queued = True
            self._ready[stream.vbucket.id] = stream

    def gone(self, stream: Stream) -> None:
        """See `Schedule`."""
        if stream.queued:
            stream.queued = False
            del self._ready[stream.vbucket.id]
        if self._current is stream:
            self._current = None

    def next(self) -> Stream | None:
        """Return whose turn it is in this round; ``None`` = the round has come to its end."""
        if self._current is None:
            place = self._ready.bisect_right(self.position)
            if place < len(self._ready):
                self.position, self._current = self._ready.peekitem(place)
        return self._current

    def had_turn(self, stream: Stream, *, sent: bool, complete: bool, idle: bool) -> None:
        """See `Schedule`."""
        if complete or stream.announced:
            self.visited.add(stream.vbucket.id)
        if self._current is not stream:
            return  # its turn was its end
        if complete or idle:
            self._current = None
        if idle:
            stream.queued = False
            del self._ready[stream.vbucket.id]

    def finish(self) -> Round | None:
        """Begin the next round; return the one that ended, ``None`` if nobody had a turn in it."""
        if self.position < 0:
            return None
        ended = Round(self.cycle, frozenset(self.visited))
        self.cycle += bool(ended.visited)
        self.position = -1
        self.visited.clear()
        return ended
