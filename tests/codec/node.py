"""A node that is none: it listens, and answers what it is asked as a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from tests.codec.frames import HEADER, Frame

TIMEOUT_S = 20


class HangUp(Exception):
    """Raised by `ScriptedNode.answers`: the connection is to end."""


class ScriptedNode:
    """Listens from the beginning; leaving its ``with`` statement ends it.

    Attributes:
        place: HOST:PORT.
        seen: every frame that came, over all connections.
        connections: how many were accepted.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen: list[Frame] = []
        self.connections = 0
        self.lines: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def answers(self, asked: Frame) -> Iterable[bytes]:
        """What is sent for a frame, piece by piece; every test's own."""
        raise NotImplementedError

    def requests(self, opcode: int) -> list[Frame]:
        """What was asked with this opcode."""
        return [each for each in [*self.seen] if each.opcode == opcode and not each.is_reply]

    def hang_up(self) -> None:
        """End every connection; new ones are accepted."""
        for line in [*self.lines]:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self.lines.clear()

    def stop(self) -> None:
        """Listen no more, and hang up."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(TIMEOUT_S)
        self.hang_up()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # --- the threads ----------------------------------------------------------------------------

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=self.place, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                line.settimeout(TIMEOUT_S)
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.lines.append(line)
                self.connections += 1
                self._start(self._serve, line)

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            try:
                while header := _exactly(line, HEADER.size):
                    length = int.from_bytes(header[8:12], "big")
                    asked = Frame.of(header + _exactly(line, length))
                    self.seen.append(asked)
                    for piece in self.answers(asked):
                        line.sendall(piece)
            except HangUp:
                line.shutdown(socket.SHUT_WR)
                while line.recv(1 << 16):
                    pass  # a reset could take answers with it


def _exactly(line: socket.socket, count: int) -> bytes:
    """Read so many bytes and not one more, or nothing if the other end has hung up."""
    data = b""
    while len(data) < count:
        piece = line.recv(count - len(data))
        if not piece:
            return b""
        data += piece
    return data
