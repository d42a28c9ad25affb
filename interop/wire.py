"""A raw memcached peer for scripts: hand-made bytes out, exact bytes in.

Written from the protocol's description and deliberately independent of `uprmc`'s own codec, so
that a mistake there is not repeated here. Everything is bounded by the socket's timeout.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from interop.server_process import Address
from tests.codec.frames import HEADER as HEADER
from tests.codec.frames import REQUEST as REQUEST
from tests.codec.frames import RESPONSE as RESPONSE
from tests.codec.frames import frame as frame

GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ, NOOP, VERSION = range(12)
GETK, GETKQ, APPEND, PREPEND, STAT, SETQ, ADDQ, REPLACEQ, DELETEQ, INCRQ, DECRQ = range(0x0C, 0x17)
QUITQ, FLUSHQ, APPENDQ, PREPENDQ = range(0x17, 0x1B)
TOUCH, GAT, GATQ = 0x1C, 0x1D, 0x1E
GATK, GATKQ = 0x23, 0x24
OBSERVE = 0x92

OK, NOT_FOUND, EXISTS, TOO_LARGE, INVALID, NOT_STORED, BAD_DELTA = range(7)
UNKNOWN = 0x81


class ClosedError(Exception):
    """The server closed the connection where a reply was expected."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One binary reply, its body split where the header says."""

    opcode: int
    status: int
    opaque: int
    cas: int
    extras: bytes
    key: bytes
    value: bytes


def store(
    opcode: int,
    key: bytes,
    value: bytes,
    *,
    flags: int = 0,
    expiration: int = 0,
    cas: int = 0,
    opaque: int = 0,
    vbucket: int = 0,
) -> bytes:
    """A set, add or replace."""
    extras = struct.pack(">II", flags, expiration)
    return frame(opcode, key, value, extras, cas=cas, opaque=opaque, vbucket=vbucket)


def counter(
    opcode: int, key: bytes, delta: int, initial: int = 0, expiration: int = 0, *, cas: int = 0
) -> bytes:
    """An increment or decrement."""
    return frame(opcode, key, extras=struct.pack(">QQI", delta, initial, expiration), cas=cas)


def vbucket_of(key: bytes, vbuckets: int = 1_024) -> int:
    """The vBucket a key belongs to, as the existing smart clients compute it."""
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % vbuckets


def first_reply(data: bytes | bytearray, start: int = 0) -> tuple[Reply, int] | None:
    """The binary reply at ``start`` and where it ends, or ``None`` while it is not whole."""
    if len(data) - start < HEADER.size:
        return None
    magic, opcode, key_length, extras_length, _, status, body_length, opaque, cas = (
        HEADER.unpack_from(data, start)
    )
    if magic != RESPONSE:
        raise AssertionError(f"a reply starts with {data[start : start + 24]!r}")
    end = start + HEADER.size + body_length
    if len(data) < end:
        return None
    body = memoryview(data)[start + HEADER.size : end]
    extras, key = body[:extras_length], body[extras_length : extras_length + key_length]
    value = body[extras_length + key_length :]
    return Reply(opcode, status, opaque, cas, bytes(extras), bytes(key), bytes(value)), end


def split_replies(data: bytes) -> tuple[list[Reply], bytes]:
    """Cut whole binary replies off the front of ``data``; gives them and the rest."""
    replies: list[Reply] = []
    start = 0
    while found := first_reply(data, start):
        reply, start = found
        replies.append(reply)
    return replies, data[start:]


class Wire:
    """One connection. ``with Wire(address) as peer: peer.send(...)``."""

    def __init__(self, address: Address, timeout_s: float = 10.0) -> None:
        self.socket = address.connect(timeout_s)
        self._held = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        """Send all pieces as one write."""
        self.socket.sendall(b"".join(pieces))

    def _more(self) -> None:
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            raise AssertionError(f"nothing more came; unread so far: {self._held!r}") from None
        except ConnectionResetError:
            data = b""
        if not data:
            raise ClosedError(f"closed; unread so far: {self._held!r}")
        self._held += data

    def read(self, count: int) -> bytes:
        """Exactly ``count`` bytes."""
        while len(self._held) < count:
            self._more()
        data = bytes(self._held[:count])
        del self._held[:count]
        return data

    def line(self) -> bytes:
        """One line, its end included."""
        while b"\n" not in self._held:
            self._more()
        end = self._held.index(b"\n") + 1
        return self.read(end)

    def expect(self, wanted: bytes) -> None:
        """Read as many bytes as ``wanted`` has and require that they are equal."""
        got = b""
        try:
            while got != wanted and wanted.startswith(got):
                got += self.read(1)
        except (ClosedError, AssertionError) as error:
            raise AssertionError(f"wanted {wanted!r}, got {got!r}, then: {error}") from None
        if got != wanted:
            got += self._held
            raise AssertionError(f"wanted {wanted!r}, got {got!r}")

    def talk(self, request: bytes, wanted: bytes) -> None:
        """Send a text request and require exactly this answer, with nothing after it."""
        self.send(request)
        self.expect(wanted)
        self.expect_silence()

    def expect_silence(self) -> None:
        """Require that nothing unread is there, shown by the answer to a harmless command.

        For text conversations: ``version`` goes round, so anything sent before it would show.
        """
        self.send(b"version\r\n")
        line = self.line()
        assert line.startswith(b"VERSION "), f"unexpected {line + self._held!r}"
        assert not self._held, f"unexpected {self._held!r}"

    def expect_closed(self) -> None:
        """Require that the server closes without sending anything more."""
        with contextlib.suppress(ClosedError):
            self._more()
        assert not self._held, f"sent {self._held!r} where it should have closed"

    def read_until_closed(self) -> bytes:
        """Everything up to the end of the connection."""
        try:
            while True:
                self._more()
        except ClosedError:
            return self.read(len(self._held))

    # binary

    def reply(self) -> Reply:
        """One binary reply."""
        while not (found := first_reply(self._held)):
            self._more()
        reply, end = found
        del self._held[:end]
        return reply

    def ask(self, request: bytes) -> Reply:
        """Send one binary request and read one reply; their opcodes must agree."""
        self.send(request)
        reply = self.reply()
        assert reply.opcode == request[1], f"asked {request[1]:#04x}, answered {reply}"
        return reply

    def replies_until_noop(self, *requests: bytes) -> list[Reply]:
        """Send requests and a no-op in one write; gives the replies before the no-op's."""
        self.send(*requests, frame(NOOP, opaque=0xDEADBEEF))
        found: list[Reply] = []
        while True:
            reply = self.reply()
            if reply.opcode == NOOP:
                assert reply.opaque == 0xDEADBEEF
                assert not self._held, f"unexpected {self._held!r}"
                return found
            found.append(reply)

    def statistics(self, group: bytes = b"") -> dict[bytes, bytes]:
        """All packets of a binary ``stat``."""
        self.send(frame(STAT, group))
        found: dict[bytes, bytes] = {}
        while True:
            reply = self.reply()
            assert reply.status == OK, reply
            if not reply.key:
                return found
            found[reply.key] = reply.value


def join_lines(lines: Iterable[bytes]) -> bytes:
    """Lines with their ends: ``join_lines([b"STORED", b"END"])``."""
    return b"".join(line + b"\r\n" for line in lines)
