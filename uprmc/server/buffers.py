"""One account of what all connections hold: input that is not carried out, replies not taken.

A frame is carried out when it is complete, so a peer that holds back its last byte makes the node
keep the rest of it; one that does not read makes it keep replies. Each connection has its own
limits for both. This is the limit for all of them together. Above it the oldest is closed at once:
of those who receive or of those who send, whichever hold more.

Nobody is paused instead: a node full of frames that never end would then read nobody's frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from uprmc.server.log import Log, Throttle

_LOG_S = 10.0

_log = Log("buffers")


class Holder(Protocol):
    """What the account needs of a connection."""

    def shed(self) -> None:
        """Close now, and let go of everything."""


class Buffers:
    """The account of what all connections hold.

    Attributes:
        limit: bytes that may be held.
        received: bytes received and not carried out.
        unsent: bytes of replies that peers have not taken.
        shed: connections closed to stay within the limit.
    """

    def __init__(self, limit: int, monotonic: Callable[[], float]) -> None:
        self.limit = limit
        self.received = self.unsent = 0
        self.shed = 0
        # Bytes of each, in the order in which the frames began or the last reply was taken.
        self._receiving: dict[Holder, int] = {}
        self._sending: dict[Holder, int] = {}
        self._log_throttle = Throttle(_LOG_S, monotonic)

    @property
    def total(self) -> int:
        """Bytes held."""
        return self.received + self.unsent

    @property
    def receiving(self) -> int:
        """Connections that have sent a part of a frame."""
        return len(self._receiving)

    @property
    def sending(self) -> int:
        """Connections that have not taken all their replies."""
        return len(self._sending)

    def note(self, holder: Holder, received: int, unsent: int, *, began: bool, took: bool) -> None:
        """Learn what a connection holds now; closes the oldest while it is too much.

        Args:
            holder: the connection.
            received: bytes of input that it keeps.
            unsent: bytes of replies that it keeps.
            began: the input is another frame than at the last call.
            took: its peer has taken replies since the last call.
        """
        self.received += received - _put(self._receiving, holder, received, anew=began)
        self.unsent += unsent - _put(self._sending, holder, unsent, anew=took)
        while self.total > self.limit:
            self._shed_oldest()

    def forget(self, holder: Holder) -> None:
        """The connection is gone."""
        self.received -= self._receiving.pop(holder, 0)
        self.unsent -= self._sending.pop(holder, 0)

    def _shed_oldest(self) -> None:
        holders = self._receiving if self.received >= self.unsent else self._sending
        self.shed += 1
        held_back = self._log_throttle.passed()
        if held_back is not None:
            _log.warn("shed", held=self.total, limit=self.limit, unlogged=held_back)
        oldest = next(iter(holders))
        self.forget(oldest)
        oldest.shed()


def _put(holders: dict[Holder, int], holder: Holder, size: int, *, anew: bool) -> int:
    """Put down what a connection holds of one kind; return what it held."""
    before = holders.pop(holder, 0) if anew or not size else holders.get(holder, 0)
    if size:
        holders[holder] = size
    return before
