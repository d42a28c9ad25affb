"""A peer that answers a consumer by a script, for what no real node does on demand."""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Iterable

from tests.codec.frames import Frame, frame, reply
from tests.codec.node import TIMEOUT_S, HangUp, ScriptedNode

HELLO, OPEN, STREAM_REQUEST, FAILOVER_LOG, STREAM_END = 0x1F, 0x50, 0x53, 0x54, 0x55
MARKER, DELETION, SNAPSHOT_END = 0x56, 0x58, 0xEC
LOG_ANYWHERE = 0x96
MUTATION, NOOP, BUFFER_ACK, CONTROL, ALL_SEQNOS = 0x57, 0x5C, 0x5D, 0x5E, 0x48

LOG = struct.pack(">QQ", 0xABC, 0)


class FakeNode(ScriptedNode):
    """`answers` says what is done for which opcode; the consumer hangs up before it ends."""

    def __init__(self, **answers: Callable[[FakeNode, Frame], object]) -> None:
        self._answers = answers
        self._opaques: dict[int, int] = {}
        super().__init__()

    def stop(self) -> None:
        for thread in self._threads[1:]:
            thread.join(TIMEOUT_S)
        super().stop()

    def answers(self, asked: Frame) -> Iterable[bytes]:
        if asked.opcode == STREAM_REQUEST:
            self._opaques[asked.number] = asked.opaque
        handler = self._answers.get(f"on_{asked.opcode:02x}", FakeNode._usual)
        if asked.is_reply:
            handler = self._answers["on_response"]
        if handler(self, asked) is CLOSE:
            raise HangUp
        return ()

    def more_to_read(self) -> bool:
        """Whether the consumer has sent more already."""
        return bool(select.select([self.lines[-1]], [], [], 0.05)[0])

    def _usual(self, asked: Frame) -> None:
        """Answer as a node with one vBucket, 0, at seqno 5."""
        logs = (FAILOVER_LOG, LOG_ANYWHERE, STREAM_REQUEST)
        values = {ALL_SEQNOS: struct.pack(">HQ", 0, 5), **dict.fromkeys(logs, LOG)}
        if asked.opcode != BUFFER_ACK:
            self.reply(asked, value=values.get(asked.opcode, b""))

    def reply(self, asked: Frame, status: int = 0, value: bytes = b"") -> None:
        self.raw(reply(asked, status, value=value))

    def send(self, magic: int, opcode: int, number: int = 0, **body: bytes) -> None:
        self.raw(frame(opcode, magic=magic, vbucket=number, **body))

    def tell(self, opcode: int, extras: bytes, number: int = 0, **body: bytes) -> None:
        """Send a frame of a vBucket's stream, which has the opaque of its request."""
        opaque = self._opaques[number]
        self.raw(frame(opcode, extras=extras, vbucket=number, opaque=opaque, **body))

    def marker(self, start: int, end: int) -> None:
        self.tell(MARKER, struct.pack(">QQI", start, end, 1))

    def mutation(self, seqno: int, value: bytes = b"v", nmeta: int = 0) -> None:
        extras = struct.pack(">QQIIIHB", seqno, 1, 0, 0, 0, nmeta, 0)
        self.tell(MUTATION, extras, key=b"k", value=value)

    def end(self, reason: int, number: int = 0) -> None:
        self.tell(STREAM_END, struct.pack(">I", reason), number)

    def raw(self, data: bytes) -> None:
        self.lines[-1].sendall(data)


#: What a handler returns to hang up.
CLOSE = object()
