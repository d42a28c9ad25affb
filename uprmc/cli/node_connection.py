"""A blocking connection to a running node, for verbs that ask it something."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import TracebackType

from uprmc.errors import ConfigError, UprmcError
from uprmc.protocol.framer import BinaryFramer
from uprmc.protocol.header import RequestFrame, ResponseFrame
from uprmc.protocol.opcodes import Opcode, Status

_TIMEOUT_S = 30.0
_FRAME_LIMIT_BYTES = 64 * 1024 * 1024
_READ_BYTES = 64 * 1024


class NodeError(UprmcError):
    """The node cannot be reached, or its answer makes no sense."""


class NodeConnection:
    """One conversation with a node's listener; use it in a ``with`` statement.

    Raises:
        ConfigError: the place is not HOST:PORT.
        NodeError: nobody answers there.
    """

    def __init__(self, place: str) -> None:
        host, colon, port = place.rpartition(":")
        if not colon or not port.isdecimal():
            raise ConfigError(f"--node {place!r}: say HOST:PORT, such as 127.0.0.1:11210")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S)
        except (OSError, OverflowError) as error:
            raise NodeError(f"no node answers at {place}: {error}; is it running?") from None
        self._place = place
        self._framer = BinaryFramer(_FRAME_LIMIT_BYTES)
        self._pending: list[ResponseFrame] = []

    def __enter__(self) -> NodeConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ask(self, request: RequestFrame) -> ResponseFrame:
        """Send a request and return the next response."""
        self._socket.sendall(request.encode())
        return self._receive()

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
            text = response.value.decode("utf-8", "replace")
            raise NodeError(f"statistics {group!r} refused: {text or hex(response.status)}")

    def _receive(self) -> ResponseFrame:
        while not self._pending:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise NodeError(f"the node at {self._place} does not answer: {error}") from None
            if not data:
                raise NodeError(f"the node at {self._place} closed the connection")
            frames = self._framer.feed(data)
            self._pending += [frame for frame in frames if isinstance(frame, ResponseFrame)]
        return self._pending.pop(0)
