"""Keep-alives among bytes that cannot be dealt with yet, because a handler works.

A node hangs up on a client that leaves keep-alives unanswered for two intervals, and a handler may
take longer than that. So whoever owns the socket reads on meanwhile, as far as the node may be
ahead, and keeps the bytes; here it is found out where frames begin among them.

Source: UPR reference 4.7.
"""

from __future__ import annotations

from uprmc.consume.conversation import KEEP_ALIVES, keep_alive_answer
from uprmc.protocol.header import unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST


class Ahead:
    """Follows the frames of one connection through bytes that come in pieces.

    Attributes:
        size: of what came and was not dealt with yet.
    """

    def __init__(self, begun: bytes) -> None:
        """Begin behind `begun`, the first bytes of a frame whose rest is yet to come."""
        self.size = 0
        self._header = bytearray()
        self._skip_bytes = 0
        self._answers(begun)

    def take(self, data: bytes) -> list[bytes]:
        """Return the answers to keep-alives in what has come now."""
        self.size += len(data)
        return self._answers(data)

    def _answers(self, data: bytes) -> list[bytes]:
        found, position, header = [], 0, self._header
        while position < len(data):
            if self._skip_bytes:
                skipped = min(self._skip_bytes, len(data) - position)
                self._skip_bytes -= skipped
                position += skipped
                continue
            piece = data[position : position + HEADER_BYTES - len(header)]
            header += piece
            position += len(piece)
            if len(header) == HEADER_BYTES:
                magic, opcode, _, _, _, _, self._skip_bytes, opaque, _ = unpack_request(header)
                if magic == MAGIC_REQUEST and opcode in KEEP_ALIVES:
                    found.append(keep_alive_answer(opcode, opaque))
                header.clear()
        return found
