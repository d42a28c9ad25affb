"""What a session hands to the side of a UPR connection that it runs, and what it gets back.

Here is also what tells when a peer has vanished; UPR reference 4.7.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from uprmc.model import Item
from uprmc.protocol.header import RequestFrame, ResponseFrame


class Answer(NamedTuple):
    """What goes back when all went well."""

    extras: bytes = b""
    value: bytes = b""


class Negotiated(NamedTuple):
    """What HELLO has granted a connection."""

    greeted: bool = False  # it has said HELLO, which peers of 2014 rarely did
    datatypes: int = 0  # datatype bits that it understands; others are not sent to it
    lock_errors: bool = False  # locked keys get their own status, not temporary failure
    terms: bool = False  # failover logs and seqnos come with terms
    origins: bool = False  # GET_VERSION and streams say where a version was first accepted


class Due(Enum):
    """What a tick of the clock asks for."""

    NOTHING = 0
    PROBE = 1
    HANG_UP = 2


class Peer(Protocol):
    """A producer or a consumer, as its session sees it."""

    name: bytes  # the connection's; a newer one of that name disconnects it

    def handle(self, request: RequestFrame) -> Answer | None:
        """Carry out a request; returns the answer, ``None`` if it has none now.

        Raises:
            OutOfPlace: this side gets no such frame; hang up.
            CommandError, RemoteProtocolError: refused; the connection goes on.
        """

    def answered(self, reply: ResponseFrame) -> None:
        """Take a response to a frame of ours; strange ones are ignored.

        Raises:
            RemoteProtocolError: it makes no sense; hang up.
        """

    def fill(self, out: list[bytes], budget: int) -> int:
        """Append frames to `out`, about `budget` bytes at most; return how many bytes."""

    @property
    def drained(self) -> bool:
        """Whether the last `fill` has left nothing; the session is woken before there is more."""

    def tick(self, now: float, sent_bytes: int) -> Due:
        """Learn the monotonic time in seconds and what was sent so far; say what is due."""

    def release_views(self) -> None:
        """Give up what is kept of the store."""

    def fills(self, number: int) -> bool:
        """Tell whether a vBucket gets its content here, or is to get it."""

    def ask_version(self, number: int, key: bytes, done: Callable[[Item | None], None]) -> bool:
        """Ask the other side for a key's newest version; says whether it can be asked."""

    def disconnect(self, why: str) -> None:
        """Ask the session to hang up, and close."""

    def close(self) -> None:
        """Let go of everything: the connection is gone, or is to go; harmless twice."""


class KeepAlive:
    """After an interval without a frame a probe goes out; unanswered for another one, we hang up.

    Times are monotonic seconds.
    """

    def __init__(self, interval_s: float) -> None:
        self.enabled = False  # the peer has asked for it
        self.interval_s = interval_s
        self.waiting = False  # for an answer
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
