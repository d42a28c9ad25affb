"""TAP as its peers see it, written a second time on purpose.

Nothing here comes from `uprmc`: a mistake in the adapter's own codec must not cancel itself out.
A reader that meets a length, a reserved byte or a key that the reference does not name complains.

Source: TAP reference, sections 2 to 5, 8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.codec.frames import HEADER, REQUEST, RESPONSE, frame
from tests.sim.codec import Packets

CONNECT, MUTATION, DELETE, FLUSH, OPAQUE, VBUCKET_SET, START, END = range(0x40, 0x48)
NOOP, DEREGISTER = 0x0A, 0x9E
SET_VBUCKET = 0x3D

OK, INVALID, NOT_MY_VBUCKET, NOT_SUPPORTED = 0x00, 0x04, 0x07, 0x83
BUSY, TRY_AGAIN = 0x85, 0x86

#: Flags of CONNECT.
BACKFILL, DUMP, LIST, TAKEOVER, SUPPORT_ACK, KEYS_ONLY, CHECKPOINT, REGISTERED, BYTE_ORDER = (
    1 << bit for bit in range(9)
)

#: Flags of a message.
ACK, NO_VALUE, NETWORK_ORDER = 0x01, 0x02, 0x04

#: Commands of OPAQUE.
AUTO_NACK, INITIAL, CHECKPOINT_SYNC, OPEN_CHECKPOINT, FILTER_CHANGED = range(5)
CLOSE_BACKFILL = 8

ACTIVE, REPLICA, PENDING, DEAD = 1, 2, 3, 4

#: What a client says that wants no backfill.
FUTURE = 2**64 - 1

#: Hops of a fresh message.
TTL = 255

_COMMON = struct.Struct(">HHB3s")
_ITEM = struct.Struct(">II")

#: (opcode) -> (extras, engine-specific, key or ``None`` = any, value or ``None`` = any)
_SHAPES: dict[int, tuple[int, int, bytes | None, int | None]] = {
    MUTATION: (16, 9, None, None),
    DELETE: (8, 8, None, 0),
    FLUSH: (8, 0, b"", 0),
    OPAQUE: (8, 4, b"", 0),
    VBUCKET_SET: (8, 4, b"", 0),
    START: (16, 8, b"checkpoint_start", 8),
    END: (16, 0, b"checkpoint_end", 8),
}


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a producer, or a reply; `place` is the vBucket, or the status of a reply."""

    is_reply: bool
    opcode: int
    place: int
    sequence: int  # the header's opaque
    cas: int
    flags: int = 0
    item_flags: int = 0
    expiry: int = 0
    specific: bytes = b""  # the engine-specific section
    key: bytes = b""
    value: bytes = b""

    @property
    def wants_answer(self) -> bool:
        """Whether its flags ask for one."""
        return bool(self.flags & ACK)

    @property
    def word(self) -> int:
        """The command of an OPAQUE, the state of a VBUCKET_SET."""
        return int.from_bytes(self.specific, "big")

    @property
    def checkpoint(self) -> int:
        """The id in START and END."""
        return int.from_bytes(self.value, "big")

    @property
    def rev(self) -> int:
        """The revision of an item."""
        return int.from_bytes(self.specific[:8], "big")

    @property
    def true_flags(self) -> int:
        """The item's flags as the client set them: without the flag their bytes are swapped."""
        return self.item_flags if self.flags & NETWORK_ORDER else swapped(self.item_flags)


def swapped(flags: int) -> int:
    """Return a 32-bit number whose bytes stand in the other order."""
    return int.from_bytes(flags.to_bytes(4, "big"), "little")


class MessageReader(Packets):
    """Messages out of bytes that arrive anyhow."""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete now."""
        return [
            _message(HEADER.unpack_from(packet), packet[HEADER.size :])
            for packet in self.whole(data)
        ]


def _message(head: tuple[int, ...], body: bytes) -> Message:
    magic, opcode, key_length, extras, datatype, place, _, opaque, cas = head
    assert magic in (REQUEST, RESPONSE), f"a frame begins with {magic:#04x}"
    assert datatype == 0, f"datatype {datatype} in a TAP conversation"
    if magic == RESPONSE:
        middle = extras + key_length
        return Message(
            True, opcode, place, opaque, cas, key=body[extras:middle], value=body[middle:]
        )
    if opcode == NOOP:
        assert (opaque, body) == (0, b""), "a NOOP has neither a number nor a body"
        return Message(False, opcode, place, opaque, cas)
    return _taken_apart(opcode, key_length, extras, place, opaque, cas, body)


def _taken_apart(
    opcode: int, key_length: int, extras: int, place: int, opaque: int, cas: int, body: bytes
) -> Message:
    assert opcode in _SHAPES, f"a producer sends {opcode:#04x}"
    extras_due, specific_due, key_due, value_due = _SHAPES[opcode]
    assert extras == extras_due, f"{opcode:#04x} with {extras} bytes of extras"
    specific_length, flags, ttl, reserved = _COMMON.unpack_from(body)
    assert specific_length == specific_due, f"{opcode:#04x} with a section of {specific_length}"
    assert (ttl, reserved) == (TTL, b"\0\0\0"), f"{opcode:#04x} has ttl {ttl}, {reserved!r}"
    item_flags, expiry = _ITEM.unpack_from(body, 8) if extras == 16 else (0, 0)
    first = extras + specific_length
    key, value = body[first : first + key_length], body[first + key_length :]
    assert len(key) == key_length, f"{opcode:#04x}: key and section are longer than the body"
    assert key_due is None or key == key_due, f"{opcode:#04x} with the key {key!r}"
    assert value_due is None or len(value) == value_due, f"{opcode:#04x} with {value!r}"
    specific = body[extras:first]
    return Message(
        False, opcode, place, opaque, cas, flags, item_flags, expiry, specific, key, value
    )


# --- what a client sends --------------------------------------------------------------------------


def connect(
    name: bytes,
    flags: int,
    *,
    age: int = 0,
    vbuckets: Iterable[int] = (),
    closed: Mapping[int, int] | None = None,
    closed_only: bool | None = None,
) -> bytes:
    """Return a CONNECT; `closed` and `closed_only` are left out when they are ``None``."""
    data = age.to_bytes(8, "big") if flags & BACKFILL else b""
    if flags & LIST:
        numbers = list(vbuckets)
        data += struct.pack(f">H{len(numbers)}H", len(numbers), *numbers)
    if flags & CHECKPOINT and closed is not None:
        data += len(closed).to_bytes(2, "big")
        data += b"".join(struct.pack(">HQ", *pair) for pair in closed.items())
    if flags & REGISTERED and closed_only is not None:
        data += bytes([closed_only])
    return frame(CONNECT, extras=flags.to_bytes(4, "big"), key=name, value=data)


def answer(opcode: int, sequence: int, status: int = OK, key: bytes = b"") -> bytes:
    """Return the answer to a message; some clients put a key into it."""
    return frame(opcode, vbucket=status, opaque=sequence, key=key, magic=RESPONSE)


# --- what a master sends --------------------------------------------------------------------------


def pushed(
    opcode: int,
    sequence: int,
    *,
    vbucket: int = 0,
    specific: bytes = b"",
    flags: int = 0,
    key: bytes = b"",
    value: bytes = b"",
    cas: int = 0,
    item: tuple[int, int] | None = None,
) -> bytes:
    """Return a message; `item`: item flags and expiry, where the extras have them."""
    extras = _COMMON.pack(len(specific), flags, TTL, b"\0\0\0")
    if item is not None:
        extras += _ITEM.pack(*item)
    return frame(
        opcode,
        extras=extras,
        section=specific,
        key=key,
        value=value,
        vbucket=vbucket,
        opaque=sequence,
        cas=cas,
    )


def number32(number: int) -> bytes:
    """Return the section of OPAQUE and VBUCKET_SET."""
    return number.to_bytes(4, "big")


def number64(number: int) -> bytes:
    """Return a revision, or a checkpoint's id."""
    return number.to_bytes(8, "big")
