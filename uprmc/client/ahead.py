"""Keep-alives among bytes that cannot be dealt with yet, because a handler works.

A node hangs up on a client that leaves keep-alives unanswered for two intervals, and a handler may
take longer than that. So the owner of the socket reads on meanwhile, as far as the node may be
ahead, and keeps the bytes; here it is found out where frames begin among them.

Source: UPR reference 4.7.
"""

from __future__ import annotations

from uprmc.protocol.header import unpack_request
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST
from uprmc.remote.conversation import KEEP_ALIVES, keep_alive_answer

#: Of what flow control does not count there is little.
_SLACK_BYTES = 64 * 1024


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


class ReadAhead:
    """Answers keep-alives ahead of their turn, each once."""

    def __init__(self) -> None:
        self._ahead: Ahead | None = None
        self._answered = 0

    def room(self, buffer_bytes: int) -> int:
        """Return how many bytes may be read ahead; the node sends no more than that.

        Args:
            buffer_bytes: what flow control allows the node to send; 0 = any amount.
        """
        waiting = self._ahead.size if self._ahead is not None else 0
        return max(0, buffer_bytes + _SLACK_BYTES - waiting) if buffer_bytes else 0

    def hear(self, data: bytes, begun: bytes) -> bytes:
        """Return the answers to keep-alives in `data`, which comes behind all that was read ahead.

        Args:
            data: what was read now.
            begun: what the decoder has of a frame whose rest is yet to come.
        """
        if self._ahead is None:
            self._ahead = Ahead(begun)
        answers = self._ahead.take(data)
        self._answered += len(answers)
        return b"".join(answers)

    def was_answered(self) -> bool:
        """Tell whether the next keep-alive in the decoder's order was answered ahead."""
        if self._answered:
            self._answered -= 1
            return True
        return False

    def taken(self, size: int) -> None:
        """Take note that the decoder has dealt with so many bytes."""
        if self._ahead is not None:
            self._ahead.size -= size
            if self._ahead.size <= 0:
                self._ahead = None
