"""A node that is none: it answers a replica that dials it, and streams what a script says.

It grants everything a replica asks for before its streams, and answers what it does not know as a
server does. What it is asked is kept, so that a script can see what a replica says of itself.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

from interop import upr_wire as u
from interop import wire as w
from interop.server_process import Address
from interop.upr_wire import Frame
from interop.wire import HEADER, REQUEST, RESPONSE, frame

HELLO, SEQNO_ACKNOWLEDGED = 0x1F, 0x61
_SAID_NOTHING = (u.BUFFER_ACK, SEQNO_ACKNOWLEDGED)

#: What is sent behind the answer to a stream request, given its vBucket and opaque.
Script = Callable[[int, int], bytes]


class FakeSource:
    """Listens from the beginning. Leaving its ``with`` statement ends it.

    Attributes:
        address: where it is dialled.
        log: the failover log of every vBucket.
        high_seqno: of every vBucket.
        script: what each stream sends.
        asked: everything that was received, over all connections.
        accepted: how often it was dialled.
    """

    def __init__(self, script: Script, log: list[tuple[int, int]], high_seqno: int = 0) -> None:
        self.script = script
        self.log = log
        self.high_seqno = high_seqno
        self.asked: list[Frame] = []
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="fake source")]
        self._threads[0].start()

    def requests(self, opcode: int) -> list[Frame]:
        return [each for each in [*self.asked] if each.opcode == opcode and not each.is_reply]

    def hang_up(self) -> None:
        """Close every connection; new ones are taken."""
        for end in [*self._open]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> FakeSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                self.accepted += 1
                self._open.append(end)
                self._threads.append(threading.Thread(target=self._serve, args=(end,)))
                self._threads[-1].start()

    def _serve(self, end: socket.socket) -> None:
        with end, contextlib.suppress(OSError), end.makefile("rb") as stream:
            while len(header := stream.read(HEADER.size)) == HEADER.size:
                packet = Frame.of(header + stream.read(int.from_bytes(header[8:12], "big")))
                self.asked.append(packet)
                if packet.magic == REQUEST and packet.opcode not in _SAID_NOTHING:
                    end.sendall(self._answer(packet))
        self._open.remove(end)

    def _answer(self, asked: Frame) -> bytes:
        log = b"".join(struct.pack(">QQ", *entry) for entry in self.log)
        if asked.opcode == u.STREAM_REQUEST:
            return _reply(asked, log) + self.script(asked.number, asked.opaque)
        if asked.opcode == u.GET_FAILOVER_LOG:
            return _reply(asked, log)
        if asked.opcode == u.GET_ALL_VB_SEQNOS:
            return _reply(asked, struct.pack(">HQ", 0, self.high_seqno))
        if asked.opcode == HELLO:
            return _reply(asked, asked.value)
        if asked.opcode in (u.OPEN, u.CONTROL, u.UPR_NOOP, u.CLOSE_STREAM, w.NOOP):
            return _reply(asked)
        return _reply(asked, b"Unknown command", w.UNKNOWN)


def _reply(asked: Frame, value: bytes = b"", status: int = w.OK) -> bytes:
    return frame(asked.opcode, value=value, opaque=asked.opaque, vbucket=status, magic=RESPONSE)
