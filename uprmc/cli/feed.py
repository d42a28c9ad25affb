"""Streams of many vBuckets on one connection that blocks, without a state: what `tail` shows.

The rules of a connection are `client.node_session`'s: handshake, keep-alives, acknowledgements.
What to do about a rollback or the end of a stream is the affair of whoever reads the events.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from uprmc.client.connection import NodeConnection, NodeError, reason
from uprmc.client.events import Accepted, Event
from uprmc.client.node_session import Ask, NodeSession, Task
from uprmc.client.position import Asked
from uprmc.model import SnapshotRange, VBucketState
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.management import VBUCKET_SEQNO, VBUCKET_SEQNOS_EXTRAS
from uprmc.protocol.opcodes import Opcode, StreamFlag

#: The node may be so far ahead of our acknowledgements.
BUFFER_BYTES = 4 * 1024 * 1024

#: The node sends a keep-alive after so long without a frame.
NOOP_INTERVAL_S = 120.0

_READ_BYTES = 256 * 1024


class Start(NamedTuple):
    """Where a stream is to begin: after `seqno` of the history `vb_uuid`, 0 = whichever."""

    vbucket: int
    seqno: int
    vb_uuid: int


class Feed:
    """See the module docstring.

    Attributes:
        place: HOST:PORT of the node.
        tells_snapshot_ends: whether the node knows how.

    Raises:
        ClientError: the node refuses to open a stream connection, is gone, or makes no sense.
    """

    def __init__(self, connection: NodeConnection, *, values: bool) -> None:
        self.place = connection.place
        self._connection = connection
        self._session = NodeSession(
            connection.place,
            f"uprmc-tail:{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}",
            wants_values=values,
            buffer_bytes=BUFFER_BYTES,
            noop_interval_s=NOOP_INTERVAL_S,
        )
        self._run(self._session.handshake())
        self.tells_snapshot_ends = "uprmc_snapshot_end" in self._session.granted

    # --- where to begin -------------------------------------------------------------------------

    def high_seqnos(self, state: VBucketState | None) -> dict[int, int]:
        """Return how far each vBucket is that is in this state; ``None`` = in any but dead."""
        extras = VBUCKET_SEQNOS_EXTRAS.pack(state or 0)
        (answer,) = self._ask([RequestFrame(Opcode.GET_ALL_VB_SEQNOS, extras=extras)])
        self._granted(answer, "asking for seqnos")
        try:
            return dict(VBUCKET_SEQNO.iter_unpack(answer.value))
        except struct.error:
            raise NodeError(f"the node at {self.place} sent a torn list of seqnos") from None

    def newest_histories(self, vbuckets: Iterable[int]) -> dict[int, int]:
        """Return the newest vb_uuid of each vBucket."""
        numbers = list(vbuckets)
        frames = [RequestFrame(Opcode.UPR_GET_FAILOVER_LOG, vbucket=number) for number in numbers]
        found = {}
        for number, answer in zip(numbers, self._ask(frames), strict=True):
            self._granted(answer, f"asking for the failover log of vBucket {number}")
            found[number] = self._session.decoder.log(answer, number)[0].uuid
        return found

    def _granted(self, answer: ResponseFrame, doing: str) -> None:
        if answer.status:
            raise NodeError(f"{doing} at {self.place} was refused: {reason(answer)}")

    def _ask(self, frames: Sequence[RequestFrame]) -> list[ResponseFrame]:
        found: list[ResponseFrame] = self._run(_asking(frames)) if frames else []
        return found

    def _run(self, task: Task) -> Any:
        """Run a task to its end and return its result; no stream was asked for yet."""
        answers: Any = None
        while True:
            try:
                ask = task.send(answers)
            except StopIteration as ended:
                return ended.value
            self._session.ask(ask)
            while None in ask.answers:
                self._receive()
            answers = ask.answers

    # --- streams --------------------------------------------------------------------------------

    def stream(self, starts: Iterable[Start], *, until_now: bool = False) -> list[int]:
        """Ask for streams and return their opaques; `events` tells what becomes of them."""
        flags = StreamFlag.LATEST if until_now else 0
        asked = [
            self._session.stream_request(
                vbucket, Asked(seqno, SnapshotRange(seqno, seqno), uuid, ()), flags
            )
            for vbucket, seqno, uuid in starts
        ]
        self._session.ask(Ask([frame for _, frame in asked]))
        return [inlet.opaque for inlet, _ in asked]

    def events(self, wait: Callable[[], None]) -> list[Event]:
        """Return what has come, perhaps nothing; answers to stream requests are in it.

        Args:
            wait: called before; returns when there is something to read. By calling this again the
                user says that it has dealt with the events of the last call.
        """
        self._session.dealt_with()
        return self._receive(wait)

    def fileno(self) -> int:
        """Return the socket's file descriptor, for waiting."""
        return self._connection.fileno()

    def check_silence(self) -> None:
        """Raise `ConnectionLost` if the node has vanished."""
        self._session.tick(time.monotonic())
        if self._session.error is not None:
            raise self._session.error

    def _receive(self, wait: Callable[[], None] | None = None) -> list[Event]:
        data = memoryview(self._session.data_to_send())
        while data:
            data = data[self._connection.send_some(data) :]
        if wait is not None:
            wait()
        received = self._connection.receive_some(_READ_BYTES)
        events = self._session.receive(received, time.monotonic())
        for event in events:
            answer = event.answer if isinstance(event, Accepted) else event
            if isinstance(answer, ResponseFrame):
                self._session.answered(answer)
        return events


def _asking(frames: Sequence[RequestFrame]) -> Task:
    return (yield Ask(frames))
