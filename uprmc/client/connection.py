"""A blocking connection to a running node: one request after the other, and pipelines of them."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Self

from uprmc.client.errors import ClientError
from uprmc.errors import ConfigError, RemoteProtocolError
from uprmc.protocol.framer import BinaryFramer
from uprmc.protocol.header import Frame, RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import FRAME_MAX_BYTES, STATUS_TEXT, Opcode, Status

_TIMEOUT_S = 30.0
_READ_BYTES = 64 * 1024
_PORT_MAX = 0xFFFF

#: So many requests are sent before their responses are read: more could fill both ends' buffers.
PIPELINE_MAX = 64


class NodeError(ClientError):
    """The node cannot be reached, or its answer makes no sense."""


class NodeConnection:
    """One conversation with a node's listener; use it in a ``with`` statement.

    Every method that talks raises `NodeError` when the node is gone or makes no sense.

    Attributes:
        place: HOST:PORT as it was given.

    Raises:
        ConfigError: the place is not HOST:PORT.
        NodeError: nobody answers there.
    """

    def __init__(self, place: str, timeout_s: float = _TIMEOUT_S) -> None:
        host, colon, port = place.rpartition(":")
        if not colon or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
            raise ConfigError(f"{place!r} is no node: say HOST:PORT, such as 127.0.0.1:11210")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        except (OSError, UnicodeError) as error:
            raise NodeError(f"no node answers at {place}: {error}; is it running?") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.place = place
        self._framer = BinaryFramer(FRAME_MAX_BYTES)
        self._pending: deque[ResponseFrame] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; doing so twice is no error."""
        self._socket.close()

    def ask(self, request: RequestFrame) -> ResponseFrame:
        """Send a request and return the next response."""
        self._send(request.encode())
        return self._receive()

    def ask_all(self, requests: Iterable[RequestFrame]) -> Iterator[ResponseFrame]:
        """Send requests without waiting for each, and yield their responses in order."""
        rest = iter(requests)
        while batch := list(islice(rest, PIPELINE_MAX)):
            self._send(b"".join(request.encode() for request in batch))
            for _ in batch:
                yield self._receive()

    def statistics(self, group: str) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of one group.

        Raises:
            NodeError: there is no such group, or the node will not say.
        """
        response = self.ask(RequestFrame(Opcode.STAT, key=group.encode()))
        while response.key:
            yield response.key.decode(), response.value.decode()
            response = self._receive()
        if response.status == Status.KEY_NOT_FOUND:
            raise NodeError(f"the node has no statistics group {group!r}")
        if response.status:
            raise NodeError(f"statistics {group!r} refused: {reason(response)}")

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise NodeError(f"the node at {self.place} is gone: {error}") from None

    def _receive(self) -> ResponseFrame:
        while not self._pending:
            self._pending += [frame for frame in self._read() if isinstance(frame, ResponseFrame)]
        return self._pending.popleft()

    def _read(self) -> list[Frame]:
        """Wait for data and return the frames that it completes, perhaps none."""
        try:
            return self._framer.feed(self.receive_some(_READ_BYTES))
        except RemoteProtocolError as error:
            raise NodeError(f"what answers at {self.place} is no node of ours: {error}") from None

    # --- for those who look after frames themselves ---------------------------------------------

    def fileno(self) -> int:
        """Return the socket's number, to wait for it with others."""
        return self._socket.fileno()

    def send_some(self, data: memoryview) -> int:
        """Send as much as there is room for; returns how many bytes that was."""
        try:
            return self._socket.send(data)
        except OSError as error:
            raise NodeError(f"the node at {self.place} is gone: {error}") from None

    def receive_some(self, limit_bytes: int) -> bytes:
        """Wait for data and return it."""
        try:
            data = self._socket.recv(limit_bytes)
        except OSError as error:
            raise NodeError(f"the node at {self.place} does not answer: {error}") from None
        if not data:
            raise NodeError(f"the node at {self.place} closed the connection")
        return data


def reason(response: ResponseFrame) -> str:
    """Return in words why a request was refused."""
    text = response.value.decode("utf-8", "replace")
    text = text or STATUS_TEXT.get(response.status, b"").decode()
    return text or f"status {response.status:#06x}"
