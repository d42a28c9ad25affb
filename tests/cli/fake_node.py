"""A peer that answers a consumer by a script, for what no real node does on demand."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

from interop.wire import HEADER, REQUEST, RESPONSE

HELLO, OPEN, STREAM_REQUEST, FAILOVER_LOG, STREAM_END = 0x1F, 0x50, 0x53, 0x54, 0x55
MARKER, DELETION, SNAPSHOT_END = 0x56, 0x58, 0xEC
LOG_ANYWHERE = 0x96
MUTATION, NOOP, BUFFER_ACK, CONTROL, ALL_SEQNOS = 0x57, 0x5C, 0x5D, 0x5E, 0x48

LOG = struct.pack(">QQ", 0xABC, 0)
TIMEOUT_S = 20


class Asked:
    """One frame from the consumer; `number` is its vBucket or status."""

    def __init__(self, header: bytes, body: bytes) -> None:
        self.magic, self.opcode, key, extras, _, self.number, _, self.opaque, _ = HEADER.unpack(
            header
        )
        self.extras, self.key, self.value = (
            body[:extras],
            body[extras : extras + key],
            body[extras + key :],
        )


class FakeNode:
    """It takes one connection; `answers` says what is sent for which opcode.

    Attributes:
        place: HOST:PORT.
        seen: what the consumer has sent, in order.
    """

    def __init__(self, **answers: Callable[[FakeNode, Asked], object]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen: list[Asked] = []
        self._answers = answers
        self._opaques: dict[int, int] = {}
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> FakeNode:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        self._peer, _ = self._listener.accept()
        self._peer.settimeout(TIMEOUT_S)
        with self._peer, contextlib.suppress(ConnectionError):  # it may hang up as it likes
            while header := self._exactly(HEADER.size):
                asked = Asked(header, self._exactly(struct.unpack_from(">I", header, 8)[0]))
                self.seen.append(asked)
                if asked.opcode == STREAM_REQUEST:
                    self._opaques[asked.number] = asked.opaque
                handler = self._answers.get(f"on_{asked.opcode:02x}", FakeNode._usual)
                if asked.magic == RESPONSE:
                    handler = self._answers["on_response"]
                if handler(self, asked) is CLOSE:
                    return

    def _exactly(self, count: int) -> bytes:
        """Return so many bytes, or nothing if the consumer has hung up."""
        data = b""
        while len(data) < count:
            piece = self._peer.recv(count - len(data))
            if not piece:
                return b""
            data += piece
        return data

    def more_to_read(self) -> bool:
        """Whether the consumer has sent more already."""
        return bool(select.select([self._peer], [], [], 0.05)[0])

    def _usual(self, asked: Asked) -> None:
        """Answer as a node with one vBucket, 0, at seqno 5."""
        logs = (FAILOVER_LOG, LOG_ANYWHERE, STREAM_REQUEST)
        values = {ALL_SEQNOS: struct.pack(">HQ", 0, 5), **dict.fromkeys(logs, LOG)}
        if asked.opcode != BUFFER_ACK:
            self.reply(asked, value=values.get(asked.opcode, b""))

    def reply(self, asked: Asked, status: int = 0, value: bytes = b"") -> None:
        self.send(RESPONSE, asked.opcode, status, value=value, opaque=asked.opaque)

    def send(
        self,
        magic: int,
        opcode: int,
        number: int = 0,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
        opaque: int = 0,
    ) -> None:
        body = extras + key + value
        header = HEADER.pack(magic, opcode, len(key), len(extras), 0, number, len(body), opaque, 0)
        self._peer.sendall(header + body)

    def tell(self, opcode: int, extras: bytes, number: int = 0, **body: bytes) -> None:
        """Send a frame of a vBucket's stream, which has the opaque of its request."""
        self.send(REQUEST, opcode, number, extras, opaque=self._opaques[number], **body)

    def marker(self, start: int, end: int) -> None:
        self.tell(MARKER, struct.pack(">QQI", start, end, 1))

    def mutation(self, seqno: int, value: bytes = b"v", nmeta: int = 0) -> None:
        extras = struct.pack(">QQIIIHB", seqno, 1, 0, 0, 0, nmeta, 0)
        self.tell(MUTATION, extras, key=b"k", value=value)

    def end(self, reason: int, number: int = 0) -> None:
        self.tell(STREAM_END, struct.pack(">I", reason), number)

    def raw(self, data: bytes) -> None:
        self._peer.sendall(data)


#: What a handler returns to hang up.
CLOSE = object()
