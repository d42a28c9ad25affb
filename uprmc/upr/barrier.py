"""Barrier cookies: "tell me when I hold everything up to now".

A consumer sends a short text; it comes back once every vBucket with an open stream was streamed,
as whole snapshots, or had nothing to send, since the text came. So every write that was
acknowledged before the cookie was sent before the cookie returns. Cookies return in the order in
which they came.

Two rules say when a cookie is due. They share nothing but the queue:

`ByVector`
    remembers the high seqno that each vBucket had when the cookie came. Needs no order of vBuckets;
    for plain streams. The earliest moment that is right.
`ByCycle`
    remembers the place in the round of vBuckets (seed 000). Two numbers for each cookie; for rounds
    only. A cookie waits until the round has come back to its place, so it may return later than by
    vector, never earlier; at the same moment when every vBucket always has something to send.

The producer reports what it does, calls `reached` after `add` and after every report, and sends
what it gets. Nothing here knows a frame or a session.

Rows D16, D34 to D38.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from uprmc.errors import (
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    LocalProtocolError,
    TemporaryFailure,
    TooLarge,
)
from uprmc.model import SEQNO_MAX
from uprmc.protocol.upr_extensions import COOKIE_MAX_BYTES


class Barrier(NamedTuple):
    """One cookie."""

    cookie: bytes  # the consumer's text
    opaque: int  # of the request that brought it; its return carries the same
    frames: int = 0  # the caller's count of frames at that moment, for "frames since"


Goal = TypeVar("Goal")


class Barriers(ABC, Generic[Goal]):
    """The cookies of one connection that have not returned, oldest first.

    Args:
        limit: how many may be pending.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[Barrier, Goal]] = deque()
        self._due: list[Barrier] = []
        self._cookies: set[bytes] = set()

    def __len__(self) -> int:
        """Return how many cookies are pending, those included that are due but not yet taken."""
        return len(self._cookies)

    # --- the consumer ---------------------------------------------------------------------------

    def add(self, cookie: bytes, opaque: int, highs: Mapping[int, int], frames: int = 0) -> None:
        """Take a cookie.

        Args:
            cookie: 1 to 128 bytes, unlike every pending one.
            opaque: given back with it.
            highs: the high seqno of each vBucket with an open stream, as of now.
            frames: given back with it.

        Raises:
            InvalidArguments: the cookie is empty.
            TooLarge: it is too long.
            KeyNotFound: no stream is open.
            KeyExists: the same cookie is pending.
            TemporaryFailure: too many are pending.
        """
        self._check(cookie)
        self._waiting.append((Barrier(cookie, opaque, frames), self._goal(highs)))
        self._cookies.add(cookie)
        self._look()

    def reached(self) -> list[Barrier]:
        """Return the cookies that are due, in the order in which they came, and forget them."""
        due = self._due
        if due:
            self._due = []
            self._cookies.difference_update([barrier.cookie for barrier in due])
        return due

    def _check(self, cookie: bytes) -> None:
        if not cookie:
            raise InvalidArguments("a barrier cookie must not be empty")
        if len(cookie) > COOKIE_MAX_BYTES:
            raise TooLarge(f"a barrier cookie has at most {COOKIE_MAX_BYTES} bytes")
        if not self._streaming:
            raise KeyNotFound("no stream is open")
        if cookie in self._cookies:
            raise KeyExists("this barrier cookie is pending")
        if len(self._cookies) >= self._limit:
            raise TemporaryFailure(f"{self._limit} barrier cookies are pending")

    def _look(self) -> None:
        waiting = self._waiting
        while waiting and self._is_reached(waiting[0][1]):
            self._due.append(waiting.popleft()[0])

    # --- the producer ---------------------------------------------------------------------------

    @abstractmethod
    def opened(self, vbucket: int, seqno: int) -> None:
        """Report that a stream begins for a consumer that holds everything up to `seqno`."""

    @abstractmethod
    def begun(self, vbucket: int) -> None:
        """Report that a snapshot was taken and will be sent: later writes are not in it."""

    @abstractmethod
    def passed(self, vbucket: int, seqno: int) -> None:
        """Report that everything up to `seqno` was sent as whole snapshots.

        `seqno` is the snapshot's end. A vBucket that was looked at and had nothing to send may be
        reported with its high seqno, or not at all.
        """

    @abstractmethod
    def ended(self, vbucket: int) -> None:
        """Report that the stream ended: no cookie waits for it any more."""

    @abstractmethod
    def round_complete(self) -> None:
        """Report that the next round begins, announced or not: all were passed or skipped."""

    @abstractmethod
    def idle(self) -> None:
        """Report that *now* no stream has anything to send and none is in a snapshot.

        Not for later: a write may follow before the next cookie. A producer that learns of writes
        by a delayed notice must look at the high seqnos itself before it says so.
        """

    # --- the rule -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _streaming(self) -> bool:
        """Whether a stream is open."""

    @abstractmethod
    def _goal(self, highs: Mapping[int, int]) -> Goal:
        """Return what a cookie that comes now waits for."""

    @abstractmethod
    def _is_reached(self, goal: Goal) -> bool:
        """Tell whether the oldest cookie's goal is reached."""


class _Stream:
    """How far one stream has come."""

    __slots__ = ("awaited_seqno", "sent_seqno")

    def __init__(self, sent_seqno: int) -> None:
        #: The consumer holds everything up to here; all seqnos once the stream ended.
        self.sent_seqno = sent_seqno
        self.awaited_seqno = sent_seqno  # the highest that a cookie has waited for


class _Vector:
    """The streams a cookie waits for, beyond what older cookies wait for anyway."""

    __slots__ = ("seqnos", "streams")

    def __init__(self) -> None:
        self.streams: list[_Stream] = []  # those that were behind when it came
        self.seqnos = array("Q")  # the high seqno each vBucket had then, in the same order


class ByVector(Barriers[_Vector]):
    """Due when each stream has reached the high seqno that its vBucket had when the cookie came.

    Only the oldest cookie is looked at, and of its streams only the last one that is still behind:
    a stream that has come far enough never goes back. So all looking at a cookie together costs one
    pass over its vector, and a report costs nothing unless it is about that one stream. A cookie
    takes 16 bytes for each stream that was written to since the cookie before it.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._streams: dict[int, _Stream] = {}

    @property
    def _streaming(self) -> bool:
        return bool(self._streams)

    def opened(self, vbucket: int, seqno: int) -> None:
        self.ended(vbucket)
        self._streams[vbucket] = _Stream(seqno)

    def begun(self, vbucket: int) -> None:
        pass

    def passed(self, vbucket: int, seqno: int) -> None:
        stream = self._streams.get(vbucket)
        if stream is not None and seqno > stream.sent_seqno:
            self._advance(stream, seqno)

    def ended(self, vbucket: int) -> None:
        stream = self._streams.pop(vbucket, None)
        if stream is not None:
            self._advance(stream, SEQNO_MAX)

    def round_complete(self) -> None:
        pass

    def idle(self) -> None:
        pass

    def _advance(self, stream: _Stream, seqno: int) -> None:
        stream.sent_seqno = seqno
        if self._waiting and self._waiting[0][1].streams[-1] is stream:
            self._look()

    def _goal(self, highs: Mapping[int, int]) -> _Vector:
        vector = _Vector()
        for vbucket, stream in self._streams.items():
            high_seqno = highs[vbucket]
            if high_seqno > stream.awaited_seqno and self._is_behind(stream, high_seqno):
                stream.awaited_seqno = high_seqno
                vector.streams.append(stream)
                vector.seqnos.append(high_seqno)
        return vector

    def _is_reached(self, goal: _Vector) -> bool:
        streams, seqnos = goal.streams, goal.seqnos
        while streams and not self._is_behind(streams[-1], seqnos[-1]):
            streams.pop()
            seqnos.pop()
        return not streams

    @staticmethod
    def _is_behind(stream: _Stream, seqno: int) -> bool:
        return stream.sent_seqno < seqno


class RoundPlace(NamedTuple):
    """A place in the rounds: in round `cycle` everything up to `vbucket` has been passed."""

    cycle: int
    vbucket: int


_BEGINNING = -1


class _Return:
    """What a cookie waits for in rounds."""

    __slots__ = ("late", "place")

    def __init__(self, place: RoundPlace, late: Mapping[int, int]) -> None:
        self.place = place  # the round has to come back to here
        #: VBuckets whose turn does not count before they were sent up to this seqno.
        self.late = dict(late)


class ByCycle(Barriers[_Return]):
    """Due when the round has come back to the place where the cookie came.

    A snapshot that is being sent was taken before the cookie came, so it does not count: the cookie
    waits until that vBucket has been passed again, in the next round.

    A replica in mid-snapshot has its turn in silence, or takes its reading out of turn. It is
    **late**: cookies wait for it by seqno.

    vBuckets must be begun in rising order within a round.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._open: set[int] = set()
        self._done = RoundPlace(0, _BEGINNING)
        self._current: int | None = None
        self._late: Mapping[int, int] = {}

    @property
    def _streaming(self) -> bool:
        return bool(self._open)

    def opened(self, vbucket: int, seqno: int) -> None:
        self._open.add(vbucket)

    def begun(self, vbucket: int) -> None:
        if self._current is not None or vbucket <= self._done.vbucket:
            raise LocalProtocolError(f"vBucket {vbucket} is out of turn in the round")
        self._current = vbucket
        self._move(RoundPlace(self._done.cycle, vbucket - 1))

    def turn_of(self, vbucket: int) -> None:
        """Report that this vBucket's turn is next: in this round those before it are behind us."""
        if self._current is None and vbucket - 1 > self._done.vbucket:
            self._move(RoundPlace(self._done.cycle, vbucket - 1))

    def expect(self, late: Mapping[int, int]) -> None:
        """Name the late ones of the next cookie: up to where each has to be sent."""
        self._late = late

    def was_late(self, vbucket: int, seqno: int) -> None:
        """Report a turn that went by although everything up to `seqno` was not sent."""
        for _, goal in self._waiting:
            goal.late[vbucket] = seqno

    def passed(self, vbucket: int, seqno: int) -> None:
        for _, goal in self._waiting:
            wanted = goal.late.get(vbucket)
            if wanted is not None and wanted <= seqno:
                del goal.late[vbucket]
        if vbucket == self._current:
            self._current = None
            self._move(RoundPlace(self._done.cycle, vbucket))
        else:
            self._look()

    def ended(self, vbucket: int) -> None:
        self._open.discard(vbucket)
        self.passed(vbucket, SEQNO_MAX)
        if not self._open:
            self.idle()

    def round_complete(self) -> None:
        if self._current is not None:
            raise LocalProtocolError(f"the round ends inside vBucket {self._current}")
        self._move(RoundPlace(self._done.cycle + 1, _BEGINNING))

    def idle(self) -> None:
        self._due.extend(barrier for barrier, _ in self._waiting)
        self._waiting.clear()

    def _move(self, place: RoundPlace) -> None:
        self._done = place
        if self._waiting:
            self._look()

    def _goal(self, highs: Mapping[int, int]) -> _Return:
        here = self._done.vbucket if self._current is None else self._current
        return _Return(RoundPlace(self._done.cycle + 1, here), self._late)

    def _is_reached(self, goal: _Return) -> bool:
        return self._done >= goal.place and not goal.late
