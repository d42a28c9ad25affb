"""One request as bytes, one answer as a value: for the few frames that are not worth a hot path."""

from __future__ import annotations

from typing import NamedTuple, Self

from uprmc.protocol.header import REQUEST_HEADER, RESPONSE_HEADER, RequestFrame
from uprmc.protocol.opcodes import HEADER_BYTES, MAGIC_REQUEST, status_text

#: What a node says in words is shown up to here.
_WORDS_MAX = 200


class Request(NamedTuple):
    """What is asked of a node. The opaque is whoever sends it's to choose."""

    opcode: int
    key: bytes = b""
    extras: bytes = b""
    value: bytes = b""
    vbucket: int = 0
    cas: int = 0
    datatype: int = 0

    @classmethod
    def of(cls, frame: RequestFrame) -> Self:
        """Return a request that somebody else has put together, without its opaque."""
        return cls(frame.opcode, frame.key, frame.extras, frame.value, frame.vbucket)

    def encode(self, opaque: int) -> bytes:
        """Return the frame."""
        opcode, key, extras, value, vbucket, cas, datatype = self
        length = len(key) + len(extras) + len(value)
        header = REQUEST_HEADER.pack(
            MAGIC_REQUEST, opcode, len(key), len(extras), datatype, vbucket, length, opaque, cas
        )
        return b"".join((header, extras, key, value))


class Answer(NamedTuple):
    """What a node answers."""

    opcode: int
    status: int
    key: bytes
    extras: bytes
    value: bytes
    opaque: int
    cas: int
    datatype: int

    @property
    def reason(self) -> str:
        """Why the request was refused, in words and with the status."""
        text = self.value.decode("utf-8", "replace") if len(self.value) <= _WORDS_MAX else ""
        if text and text.isprintable():
            return f"{text} ({self.status:04x})"
        return status_text(self.status)


def decoded_answer(frame: bytes) -> Answer:
    """Return the answer that a whole frame is. Its lengths were judged by whoever cut it out."""
    _, opcode, key_length, extras_length, datatype, status, _, opaque, cas = (
        RESPONSE_HEADER.unpack_from(frame)
    )
    key_at = HEADER_BYTES + extras_length
    value_at = key_at + key_length
    return Answer(
        opcode,
        status,
        frame[key_at:value_at],
        frame[HEADER_BYTES:key_at],
        frame[value_at:],
        opaque,
        cas,
        datatype,
    )
