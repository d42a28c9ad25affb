"""Keep-alives of a connection: when to send one, when to give the peer up.

Source: UPR reference 4.7.
"""

from __future__ import annotations

from enum import Enum


class Due(Enum):
    """What a tick of the clock asks for."""

    NOTHING = 0
    PROBE = 1
    HANG_UP = 2


class KeepAlive:
    """After an interval without a frame a probe goes out; unanswered for another one, we hang up.

    Times are monotonic seconds.

    Attributes:
        enabled: whether the peer has asked for it.
        interval_s: see above.
        waiting: whether an answer is awaited.
    """

    def __init__(self, interval_s: float) -> None:
        self.enabled = False
        self.interval_s = interval_s
        self.waiting = False
        self._quiet_since: float | None = None
        self._sent_before = 0

    def enable(self, enabled: bool) -> None:
        """Begin or stop; a peer that was not probed yet owes no answer."""
        if enabled is not self.enabled:
            self.enabled, self.waiting, self._quiet_since = enabled, False, None

    def tick(self, now: float, sent_bytes: int) -> Due:
        """Say what is due.

        Args:
            now: the time.
            sent_bytes: what has been sent on the connection so far; a rise is a sign of life of
                ours.
        """
        if not self.enabled:
            return Due.NOTHING
        if self._quiet_since is None or (sent_bytes != self._sent_before and not self.waiting):
            self._quiet_since = now
            self._sent_before = sent_bytes
        if now - self._quiet_since < self.interval_s:
            return Due.NOTHING
        if self.waiting:
            return Due.HANG_UP
        self.waiting = True
        self._quiet_since = now
        return Due.PROBE

    def answered(self) -> None:
        """The peer lives."""
        self.waiting = False
