"""Complete messages from any split of the stream, without a socket.

`ByteBuffer` keeps what has arrived until it is enough; nothing is copied more than a few times,
however small the pieces are. `BinaryFramer` uses it and is for tools, tests and clients; the
server's hot loop reads its chunks in place and uses the buffer only for the rest.
"""

from __future__ import annotations

from collections import deque

from uprmc.errors import LocalProtocolError, RemoteProtocolError
from uprmc.protocol.header import Frame, decode_frame, unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, MAGIC_RESPONSE

#: Chunks that stay below this together are merged on arrival, so tiny ones do not pile up.
_MERGE_BYTES = 4096


class ByteBuffer:
    """Bytes that have arrived and are not used yet: a queue of chunks.

    Appending is cheap at any size; `take` copies each byte once.
    """

    __slots__ = ("_chunks", "_first_used", "_size")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._first_used = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, data: bytes) -> None:
        """Add what has just arrived."""
        if not data:
            return
        chunks = self._chunks
        if chunks and len(chunks[-1]) + len(data) <= _MERGE_BYTES:
            chunks[-1] += data
        else:
            chunks.append(data)
        self._size += len(data)

    def need(self, count: int) -> int:
        """Return how many bytes are missing before `count` can be taken; 0 when they are there."""
        return max(0, count - self._size)

    def peek(self, count: int) -> bytes:
        """Return the first `count` bytes and keep them.

        Raises:
            LocalProtocolError: there are fewer.
        """
        self._check(count)
        start = self._first_used
        if count and len(self._chunks[0]) < start + count:
            self._merge_front(count)
            start = 0
        return self._chunks[0][start : start + count] if count else b""

    def take(self, count: int) -> bytes:
        """Return the first `count` bytes and forget them.

        Raises:
            LocalProtocolError: there are fewer.
        """
        self._check(count)
        pieces = []
        missing = count
        while missing:
            piece = self._take_from_first(missing)
            missing -= len(piece)
            pieces.append(piece)
        self._size -= count
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _check(self, count: int) -> None:
        if not 0 <= count <= self._size:
            raise LocalProtocolError(f"{count} bytes are needed, {self._size} are available")

    def _take_from_first(self, limit: int) -> bytes:
        chunk, start = self._chunks[0], self._first_used
        if len(chunk) - start > limit:
            self._first_used = start + limit
            return chunk[start : start + limit]
        self._chunks.popleft()
        self._first_used = 0
        return chunk[start:] if start else chunk

    def _merge_front(self, count: int) -> None:
        """Make the first chunk hold at least `count` bytes from its start."""
        pieces = []
        merged = 0
        while merged < count:
            piece = self._take_from_first(self._size)
            merged += len(piece)
            pieces.append(piece)
        self._chunks.appendleft(b"".join(pieces))


class BinaryFramer:
    """Requests and responses of the binary protocol out of a stream of bytes."""

    __slots__ = ("_buffer", "_limit_bytes", "_wanted_bytes", "error")

    def __init__(self, limit_bytes: int) -> None:
        """Refuse frames whose header announces a body of more than `limit_bytes`."""
        self._buffer = ByteBuffer()
        self._limit_bytes = limit_bytes
        self._wanted_bytes = 0
        #: Why the stream cannot go on, or ``None``; `feed` raises it on the call after the one that
        #: returned the last good frames.
        self.error: RemoteProtocolError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes, cut anywhere, and return the frames that are complete with them.

        Raises:
            RemoteProtocolError: bad magic, lengths that contradict each other, or a body over the
                limit. Frames before the bad one are returned first; the framer is unusable
                afterwards.
        """
        self._buffer.append(data)
        frames: list[Frame] = []
        try:
            while (packet := self._next_packet()) is not None:
                frames.append(decode_frame(packet))
        except RemoteProtocolError as error:
            self.error = error
            if not frames:
                raise
        return frames

    def _next_packet(self) -> bytes | None:
        if self.error is not None:
            raise self.error
        buffer = self._buffer
        if not self._wanted_bytes:
            if buffer.need(HEADER_BYTES):
                return None
            self._wanted_bytes = self._packet_bytes(buffer.peek(HEADER_BYTES))
        if buffer.need(self._wanted_bytes):
            return None
        wanted, self._wanted_bytes = self._wanted_bytes, 0
        return buffer.take(wanted)

    def _packet_bytes(self, header: bytes) -> int:
        magic, opcode, key, extras, _, _, body, _, _ = unpack_request(header)
        if magic not in (MAGIC_REQUEST, MAGIC_RESPONSE):
            raise RemoteProtocolError(f"unknown magic {magic:#04x}")
        if key + extras > body:
            raise RemoteProtocolError(
                f"opcode {opcode:#x}: extras {extras} + key {key} exceed the body of {body} bytes"
            )
        if body > self._limit_bytes:
            raise RemoteProtocolError(
                f"opcode {opcode:#x}: a body of {body} bytes exceeds {self._limit_bytes}"
            )
        return int(HEADER_BYTES + body)
