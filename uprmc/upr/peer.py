"""What a session hands to the side of a UPR connection that it runs, and what it gets back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from uprmc.model import Item
from uprmc.protocol.header import ResponseFrame
from uprmc.upr.keepalive import Due


class UprRequest(NamedTuple):
    """One request of the other end."""

    opcode: int
    vbucket: int
    opaque: int
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    cas: int = 0
    datatype: int = 0


class Answer(NamedTuple):
    """What goes back when all went well."""

    extras: bytes = b""
    value: bytes = b""


class Peer(Protocol):
    """A producer or a consumer, as its session sees it.

    Attributes:
        name: the connection's; a newer one of that name disconnects it.
        closed: why the connection is to be closed, ``""`` while it is not.
    """

    name: bytes
    closed: str

    def handle(self, request: UprRequest) -> Answer | None:
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

    def tick(self, now: float, sent_bytes: int) -> Due:
        """Learn the monotonic time in seconds and what was sent so far; say what is due."""

    def release_views(self) -> None:
        """Give up what is held of the store."""

    def fills(self, number: int) -> bool:
        """Tell whether a vBucket gets its content here, or is to get it."""

    def ask_version(self, number: int, key: bytes, done: Callable[[Item | None], None]) -> bool:
        """Ask the other side for a key's newest version; says whether it can be asked."""

    def disconnect(self, why: str) -> None:
        """Ask the session to hang up."""

    def close(self) -> None:
        """Let go of everything: the connection is gone, or is to go; harmless twice."""
