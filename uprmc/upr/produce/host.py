"""What a stream needs of its connection, and the states in which it can be."""

from __future__ import annotations

from enum import Enum
from typing import Protocol, TypeVar

from uprmc.engine.reading import Reading
from uprmc.protocol.opcodes import EndReason

StreamT = TypeVar("StreamT", contravariant=True)


class StreamState(Enum):
    """Where a stream stands; the texts are those of statistics."""

    PENDING = "pending"
    BACKFILLING = "backfilling"
    IN_MEMORY = "in-memory"
    TAKEOVER_SEND = "takeover-send"
    TAKEOVER_WAIT = "takeover-wait"
    DEAD = "dead"


class Host(Protocol[StreamT]):
    """The connection of a stream."""

    def ready(self, stream: StreamT) -> None:
        """Learn that `stream` has something to send, or may have."""

    def open_reading(self, stream: StreamT) -> Reading | None:
        """Take a reading for `stream`; ``None`` = not now, it is called `ready` when it may."""

    def close_reading(self, stream: StreamT, reading: Reading) -> None:
        """Close the reading of `stream`."""

    def may_read_on(self, stream: StreamT) -> bool:
        """Tell whether `stream` may read the disk now; if not it is called `ready` when it may."""

    def snapshot_begins(self, stream: StreamT, end_seqno: int, out: list[bytes]) -> int:
        """Put out what precedes a snapshot's first marker; returns its bytes."""

    def snapshot_complete(self, stream: StreamT, items: int, out: list[bytes]) -> int:
        """Put out what follows a snapshot's last item; returns its bytes."""

    def ended(self, stream: StreamT, reason: EndReason) -> None:
        """Forget `stream` and tell the peer."""
