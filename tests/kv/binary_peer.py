"""A peer of a binary session, and the bytes it should hear, written from the reference alone."""

from __future__ import annotations

import struct

from interop.wire import RESPONSE, Reply, counter, frame, split_replies, store
from tests.kv.harness import Rig, drained
from uprmc.kv.upr_session import ClientSession

__all__ = ["Peer", "Reply", "answer", "counter", "error", "frame", "get_hit", "store", "u32", "u64"]

#: Body of an error reply, memcached reference 2.2; the last four are the vBucket servers'.
TEXTS = {
    0x01: b"Not found",
    0x02: b"Data exists for key.",
    0x03: b"Too large.",
    0x04: b"Invalid arguments",
    0x05: b"Not stored.",
    0x06: b"Non-numeric server-side value for incr or decr",
    0x81: b"Unknown command",
    0x82: b"Out of memory",
    0x07: b"Not my vbucket",
    0x09: b"Locked",
    0x0E: b"Not locked",
    0x86: b"Temporary failure",
}

#: Quiet opcode -> loud one, reference 2.3.
LOUD = {
    0x09: 0x00,
    0x0D: 0x0C,
    0x11: 0x01,
    0x12: 0x02,
    0x13: 0x03,
    0x14: 0x04,
    0x15: 0x05,
    0x16: 0x06,
    0x17: 0x07,
    0x18: 0x08,
    0x19: 0x0E,
    0x1A: 0x0F,
    0x1E: 0x1D,
    0x24: 0x23,
}


def u32(number: int) -> bytes:
    return struct.pack(">I", number)


def u64(number: int) -> bytes:
    return struct.pack(">Q", number)


def answer(
    opcode: int,
    status: int = 0,
    *,
    extras: bytes = b"",
    key: bytes = b"",
    value: bytes = b"",
    opaque: int = 0,
    cas: int = 0,
    datatype: int = 0,
) -> bytes:
    """A reply's bytes."""
    return frame(
        *(opcode, key, value, extras),
        magic=RESPONSE,
        vbucket=status,
        opaque=opaque,
        cas=cas,
        datatype=datatype,
    )


def error(opcode: int, status: int, *, opaque: int = 0) -> bytes:
    """An error reply with the text that belongs to its status."""
    return answer(opcode, status, value=TEXTS[status], opaque=opaque)


def get_hit(
    opcode: int, value: bytes, cas: int, *, flags: int = 0, key: bytes = b"", opaque: int = 0
) -> bytes:
    """The reply that brings a document."""
    return answer(opcode, extras=u32(flags), key=key, value=value, cas=cas, opaque=opaque)


class Peer:
    """One binary conversation with a rig."""

    def __init__(self, rig: Rig, *, by_key: bool = True) -> None:
        self.rig = rig
        self.session = ClientSession(rig.services, rig.wake, by_key=by_key)

    def say(self, *frames: bytes) -> bytes:
        """Send frames in one piece and return every byte that comes back."""
        self.session.receive_data(b"".join(frames))
        return drained(self.session)

    def ask(self, *frames: bytes) -> list[Reply]:
        """Send frames and return the replies, taken apart."""
        replies, rest = split_replies(self.say(*frames))
        assert rest == b""
        return replies

    def put(self, key: bytes, value: bytes, *, flags: int = 0, expiration: int = 0) -> int:
        """Store a document; return its CAS."""
        (reply,) = self.ask(store(0x01, key, value, flags=flags, expiration=expiration))
        assert reply.status == 0
        return reply.cas

    def value(self, key: bytes) -> bytes | None:
        """Return what a get answers now."""
        (reply,) = self.ask(frame(0x00, key))
        assert reply.status in (0, 1)
        return None if reply.status else reply.value

    @property
    def closed(self) -> bool:
        return self.session.closing
