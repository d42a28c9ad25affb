"""A node that is none: it answers a replica that dials it, and streams what a script says.

It grants everything a replica asks for before its streams, and answers what it does not know as a
server does. What it is asked is kept, so that a script can see what a replica says of itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from interop import upr_wire as u
from interop import wire as w
from interop.server_process import Address
from tests.codec.frames import Frame, reply
from tests.codec.node import ScriptedNode

HELLO, SEQNO_ACKNOWLEDGED = 0x1F, 0x61
_SAID_NOTHING = (u.BUFFER_ACK, SEQNO_ACKNOWLEDGED)

#: What is sent behind the answer to a stream request, given its vBucket and opaque.
Script = Callable[[int, int], bytes]


class FakeSource(ScriptedNode):
    """Listens from the beginning. Leaving its ``with`` statement ends it.

    Attributes:
        address: where it is dialled.
        log: the failover log of every vBucket.
        high_seqno: of every vBucket.
        script: what each stream sends.
    """

    def __init__(self, script: Script, log: list[tuple[int, int]], high_seqno: int = 0) -> None:
        self.script = script
        self.log = log
        self.high_seqno = high_seqno
        super().__init__()
        host, port = self.place.split(":")
        self.address = Address(host, int(port))

    def answers(self, asked: Frame) -> Iterable[bytes]:
        if asked.is_reply or asked.opcode in _SAID_NOTHING:
            return ()
        return [self._answer(asked)]

    def _answer(self, asked: Frame) -> bytes:
        log = b"".join(struct.pack(">QQ", *entry) for entry in self.log)
        if asked.opcode == u.STREAM_REQUEST:
            return reply(asked, value=log) + self.script(asked.number, asked.opaque)
        if asked.opcode == u.GET_FAILOVER_LOG:
            return reply(asked, value=log)
        if asked.opcode == u.GET_ALL_VB_SEQNOS:
            return reply(asked, value=struct.pack(">HQ", 0, self.high_seqno))
        if asked.opcode == HELLO:
            return reply(asked)  # grants nothing, so its answers have their plain layouts
        if asked.opcode in (u.OPEN, u.CONTROL, u.UPR_NOOP, u.CLOSE_STREAM, w.NOOP):
            return reply(asked)
        return reply(asked, w.UNKNOWN, value=b"Unknown command")
