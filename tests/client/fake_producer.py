"""A producer that says what a test wants, frame by frame; the bytes are `tests.upr.peer`'s.

It has vBucket 0 and knows no extensions. `core_with` joins it to a consumer in one call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any

from tests.client.consumer_world import CrashingState
from tests.upr import peer
from tests.upr.peer import Frame, response
from uprmc.client.core import Options, UprCore
from uprmc.client.handler import Handler
from uprmc.client.state import MemoryState

PLACE = "fake:1"
SEQNOS, LOG_ANYWHERE, GET_META = 0x48, 0x96, 0xA0

Answer = Callable[[Frame], bytes]


def pairs(*log: tuple[int, int]) -> bytes:
    """A failover log as a value."""
    return b"".join(struct.pack(">QQ", *entry) for entry in log)


def accepted(asked: Frame, *log: tuple[int, int], then: bytes = b"") -> bytes:
    """The answer that begins a stream, and its first frames."""
    value = pairs(*(log or ((7, 0),)))
    return response(peer.STREAM_REQUEST, opaque=asked.opaque, value=value) + then


def rollback(asked: Frame, seqno: int) -> bytes:
    return response(
        peer.STREAM_REQUEST, peer.ROLLBACK, opaque=asked.opaque, value=struct.pack(">Q", seqno)
    )


class FakeProducer:
    """Answers requests; `on_stream` those for streams.

    Attributes:
        requests: every frame that came.
        log: what it says its failover log is.
    """

    def __init__(self, on_stream: Answer) -> None:
        self.requests: list[Frame] = []
        self.log: list[tuple[int, int]] = [(7, 0)]
        self.vbuckets: dict[int, int] = {0: 100}
        self._on_stream = on_stream
        self._rest = b""

    def take(self, data: bytes) -> bytes:
        """Return the answers to what the consumer sent."""
        frames, self._rest = peer.split(self._rest + data)
        self.requests += frames
        return b"".join(self._answer(each) for each in frames if not each.is_reply)

    def asked(self, opcode: int) -> list[Frame]:
        return [each for each in self.requests if each.opcode == opcode and not each.is_reply]

    def _answer(self, asked: Frame) -> bytes:
        opcode, opaque = asked.opcode, asked.opaque
        if opcode == peer.STREAM_REQUEST:
            return self._on_stream(asked)
        if opcode == SEQNOS:
            value = b"".join(struct.pack(">HQ", *each) for each in self.vbuckets.items())
            return response(opcode, opaque=opaque, value=value)
        if opcode in (peer.FAILOVER_LOG, LOG_ANYWHERE):
            return response(opcode, opaque=opaque, value=pairs(*self.log))
        if opcode in (peer.HELLO, peer.OPEN, peer.CLOSE_STREAM):
            return response(opcode, opaque=opaque)
        if opcode == peer.CONTROL:
            known = asked.key in (b"connection_buffer_size", b"enable_noop")
            return response(opcode, peer.OK if known else peer.INVALID, opaque=opaque)
        if opcode == peer.BUFFER_ACK:
            return b""
        if opcode in (peer.GET, GET_META):
            return response(opcode, peer.NOT_FOUND, opaque=opaque)
        return response(opcode, peer.UNKNOWN, opaque=opaque)


class Joined:
    """A consumer and a fake producer, joined.

    Attributes:
        core: the consumer.
        session: its connection.
    """

    def __init__(
        self,
        handler: Handler,
        producer: FakeProducer,
        state: MemoryState | None = None,
        **options: Any,
    ) -> None:
        self.state = state or CrashingState()
        self.producer = producer
        self.core = UprCore([PLACE], handler, self.state, Options(**options))
        self.now = 1000.0
        assert self.core.due(self.now) == [PLACE]
        self.session = drive(self.core.connected(PLACE, self.now))

    def settle(self) -> None:
        """Carry everything to and fro."""
        for _ in range(100):
            drive(self.core.turn(self.now))
            data = self.session.data_to_send()
            answer = self.producer.take(data)
            if answer:
                self.say(answer)
            if not data and not answer:
                drive(self.core.idle())
                return
        raise AssertionError("they never stop")

    def say(self, *frames: bytes) -> None:
        """Let the producer send frames."""
        drive(self.core.received(self.session, b"".join(frames), self.now))


def drive(task: Generator[Any, Any, Any]) -> Any:
    """Run rules to their end."""
    try:
        next(task)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("somebody waits")
