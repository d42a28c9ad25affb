"""What a node has sent beside batches: the events between bytes and rules.

Events of streams name theirs, so whoever deals with them can tell a stream that is not wanted any
more.
"""

from __future__ import annotations

from typing import NamedTuple

from uprmc.protocol.header import Frame, ResponseFrame
from uprmc.remote.batch import Batch
from uprmc.remote.stream import StreamState


class StreamEnded(NamedTuple):
    """The stream is over; `reason` is an `EndReason` number."""

    stream: StreamState
    reason: int


class Accepted(NamedTuple):
    """The producer accepted the stream; `StreamState.log` has been set."""

    stream: StreamState
    answer: ResponseFrame


Event = Batch | StreamEnded | Accepted | Frame
