"""UPR frames as an upstream may hand them out, and TAP messages read by hand.

Neither uses the code under test, nor the codecs that it uses: numbers are packed and cut out here
as the references' tables give them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from hypothesis import strategies as st

from tests.codec.frames import HEADER

VBUCKET, OPAQUE = 0x0103, 0x77


class Frame(NamedTuple):
    """One UPR frame of an item; `metadata` follows the value of a mutation."""

    opcode: int
    key: bytes
    value: bytes
    cas: int
    seqno: int
    rev: int
    flags: int = 0
    expiry: int = 0
    nru: int = 0
    datatype: int = 0
    metadata: bytes = b""
    vbucket: int = VBUCKET
    opaque: int = OPAQUE

    def extras(self) -> bytes:
        numbers = struct.pack(">QQ", self.seqno, self.rev)
        if self.opcode == 0x57:
            tail = (self.flags, self.expiry, 0x1234, len(self.metadata), self.nru)
            return numbers + struct.pack(">IIIHB", *tail)
        return numbers + {
            0x58: bytes(2),
            0x158: struct.pack(">IB", 1_700_000_000, 0),
            0x59: struct.pack(">I", 1_700_000_000),
        }.get(self.opcode, bytes(2))

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """Return header and extras, key, and everything after it."""
        extras, rest = self.extras(), self.value + self.metadata
        header = HEADER.pack(
            0x80,
            self.opcode & 0xFF,
            len(self.key),
            len(extras),
            self.datatype,
            self.vbucket,
            len(extras) + len(self.key) + len(rest),
            self.opaque,
            self.cas,
        )
        return header + extras, self.key, rest

    def size(self) -> int:
        return sum(map(len, self.parts()))


#: The ways in which a frame's three parts may lie in pieces; empty ones may be pieces, too.
SPLITS = ("whole", "head, document", "head, key, value", "head and key, value")


def split(frame: Frame, way: str) -> list[bytes]:
    head, key, value = frame.parts()
    return {
        "whole": [head + key + value],
        "head, document": [head, key + value],
        "head, key, value": [head, key, value],
        "head and key, value": [head + key, value],
    }[way]


U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
KEYS = st.binary(min_size=1, max_size=12)
VALUES = st.binary(max_size=12)
DELETION, TIMED_DELETION, EXPIRATION, MUTATION = 0x58, 0x158, 0x59, 0x57


@st.composite
def mutations(draw: st.DrawFn) -> Frame:
    return Frame(
        MUTATION,
        draw(KEYS),
        draw(VALUES),
        draw(U64),
        draw(U64),
        draw(U64),
        draw(st.sampled_from((0, 1, 0x11223344, 0xDEADBEEF)) | U32),
        draw(U32),
        draw(U8),
        draw(st.sampled_from((0, 0, 1))),
        draw(st.just(b"") | st.binary(max_size=8)),
    )


@st.composite
def deletions(draw: st.DrawFn) -> Frame:
    opcode = draw(st.sampled_from((DELETION, TIMED_DELETION, EXPIRATION)))
    return Frame(opcode, draw(KEYS), b"", draw(U64), draw(U64), draw(U64))


#: Frames with the way each of them is cut into pieces.
CUT_FRAMES = st.lists(
    st.tuples(mutations() | deletions(), st.sampled_from(SPLITS)), min_size=1, max_size=12
)


class Message(NamedTuple):
    """One TAP message, read by hand."""

    opcode: int
    vbucket: int
    sequence: int
    cas: int
    flags: int
    ttl: int
    item_flags: bytes
    expiry: int
    rev: int
    nru: int
    key: bytes
    value: bytes


def read_messages(data: bytes) -> list[Message]:
    """Read mutations and deletions; what is left over or does not fit fails the test."""
    found = []
    while data:
        magic, opcode, key_bytes, extras_bytes, datatype, vbucket, body, sequence, cas = (
            HEADER.unpack_from(data)
        )
        assert (magic, datatype) == (0x80, 0)
        frame, data = data[24 : 24 + body], data[24 + body :]
        assert len(frame) == body
        section_bytes, flags, ttl = struct.unpack(">HHB", frame[:5])
        assert frame[5:8] == bytes(3)
        expected_extras, expected_section = {0x41: (16, 9), 0x42: (8, 8)}[opcode]
        assert (extras_bytes, section_bytes) == (expected_extras, expected_section)
        section = frame[extras_bytes:][:section_bytes]
        document = frame[extras_bytes + section_bytes :]
        assert len(document) >= key_bytes
        found.append(
            Message(
                opcode,
                vbucket,
                sequence,
                cas,
                flags,
                ttl,
                frame[8:12] if opcode == 0x41 else b"",
                int.from_bytes(frame[12:16], "big") if opcode == 0x41 else 0,
                int.from_bytes(section[:8], "big"),
                section[8] if opcode == 0x41 else 0,
                document[:key_bytes],
                document[key_bytes:],
            )
        )
    return found


def expected_message(frame: Frame, sequence: int, *, keys_only: bool, as_stored: bool) -> Message:
    """Return what a frame should become, by the reference's table."""
    if frame.opcode != MUTATION:
        numbers = (frame.vbucket, sequence, frame.cas, 0, 255, b"", 0, frame.rev, 0)
        return Message(0x42, *numbers, frame.key, b"")
    item_flags = frame.flags.to_bytes(4, "big" if as_stored else "little")
    return Message(
        0x41,
        frame.vbucket,
        sequence,
        frame.cas,
        2 * keys_only + 4 * as_stored,
        255,
        item_flags,
        frame.expiry,
        frame.rev,
        frame.nru,
        frame.key,
        b"" if keys_only else frame.value,
    )
