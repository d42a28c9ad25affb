"""What the adapter stands on: one UPR producer, wherever it is.

In a node that is the node itself (`local`), in the stand-alone process a connection to another
server. The adapter is an ordinary UPR consumer of either; everything TAP lies on this side.

Answers come by callbacks, at once or later; never after `Upstream.close`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from uprmc.model import Item
from uprmc.protocol.upr import StreamRequest


class UpstreamVBucket(NamedTuple):
    """Where a vBucket stands upstream: its `VBucketState`, high seqno and newest history."""

    state: int
    high_seqno: int
    uuid: int


class Upstream(Protocol):
    """One UPR connection, for one TAP connection."""

    closed: str  # why nothing more will come, "" while it may

    @property
    def flushes(self) -> int:
        """How often all was emptied at once, as far as is known here."""

    def covers(self, numbers: Collection[int]) -> bool:
        """Tell whether these are all vBuckets that could be emptied at once."""

    def survey(
        self, numbers: Sequence[int] | None, done: Callable[[dict[int, UpstreamVBucket]], None]
    ) -> None:
        """Learn where those of the vBuckets stand that are there; ``None`` = all."""

    def open(
        self,
        number: int,
        opaque: int,
        request: StreamRequest,
        done: Callable[[int, bytes], None],
    ) -> None:
        """Ask for a stream whose frames carry `opaque`.

        `done` gets the answer: status and value (SUCCESS: the failover log, ROLLBACK: the seqno).
        No frame of the stream is pulled before it was called.
        """

    def close_stream(self, number: int) -> None:
        """End a stream; frames of it may still be pulled: see their opaque."""

    def pull(self, out: list[bytes], budget: int) -> int:
        """Append whole frames, about `budget` bytes at most, and return how many bytes.

        Each frame begins a piece, and its header and extras lie within that piece; key and value
        may be pieces of their own. 0 = nothing now; the wake-up is called when there is more.
        """

    def answer(self, opcode: int, opaque: int, status: int) -> None:
        """Answer a frame that asked for it: a marker, or a change of state."""

    def acknowledged(self, size: int) -> None:
        """Tell that this many bytes of what was pulled are done with (flow control)."""

    def fetch(
        self, number: int, keys: Sequence[bytes], done: Callable[[list[Item] | None], None]
    ) -> None:
        """Get the current version of each key, in order; values included.

        A document that is not there is a tombstone (`life` DELETED, seqno, CAS and revision as
        known or 0). ``None`` = it cannot be had here.
        """

    def tick(self, now: float) -> None:
        """Learn the monotonic time in seconds."""

    def close(self) -> None:
        """Let go of everything."""


#: Makes the upstream of one TAP connection: name, whether values are wanted, wake-up.
MakeUpstream = Callable[[bytes, bool, Callable[[], None]], Upstream]


class PositionKeeper(Protocol):
    """Where positions of registered clients outlive the process."""

    def load(self) -> dict[bytes, bytes]:
        """Return all documents by client name."""

    def save(self, name: bytes, document: bytes | None, done: Callable[[bool], None]) -> None:
        """Keep (``None``: drop) a client's document; `done` says whether it is on disk now.

        When it is, so is everything that was pulled from an upstream of the same node before.
        """
