"""A raw TAP peer for scripts: frames of both directions, made and taken apart by hand.

`TapWire` is one connection that asks for a stream or pushes into a node; `TapFrame` is what comes
on it. Written from the description of TAP and from what real peers were seen to send; independent
of `uprmc`'s own codec, as `interop.wire` is. Lengths are always those that the frame itself tells.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from interop import wire as w
from interop.server_process import Address
from interop.wire import HEADER, REQUEST, RESPONSE, Wire, frame

CONNECT, MUTATION, DELETE, FLUSH, OPAQUE, VBUCKET_SET = range(0x40, 0x46)
CHECKPOINT_START, CHECKPOINT_END = 0x46, 0x47
NOOP = w.NOOP
LAST_CLOSED_CHECKPOINT, DEREGISTER, RESET_CHAIN = 0x97, 0x9E, 0x9F
CREATE_CHECKPOINT, CHANGE_FILTER = 0xAA, 0xB0

BACKFILL, DUMP, LIST, TAKEOVER, SUPPORT_ACK, KEYS_ONLY = 1, 2, 4, 8, 0x10, 0x20
CHECKPOINT, REGISTERED, FIX_FLAGS = 0x40, 0x80, 0x100

ACK, NO_VALUE, NETWORK_ORDER = 1, 2, 4

AUTO_NACK, INITIAL, SYNC, OPEN_CHECKPOINT, FILTER_CHANGED = range(5)
CLOSE_STREAM, CLOSE_BACKFILL = 7, 8

BUSY, TEMPORARY, NOT_SUPPORTED = 0x85, 0x86, 0x83

#: "Oldest entry" of clients that want no backfill.
NO_BACKFILL = 2**64 - 1

_COMMON = struct.Struct(">HHB3x")
_ITEM = struct.Struct(">II")


class TapFrame(NamedTuple):
    """One frame; ``number`` is a request's vBucket or a response's status."""

    magic: int
    opcode: int
    number: int
    opaque: int
    cas: int
    extras: bytes
    rest: bytes
    key_length: int
    packet: bytes

    @classmethod
    def of(cls, packet: bytes) -> TapFrame:
        magic, opcode, keys, extras, _, number, _, opaque, cas = HEADER.unpack_from(packet)
        body = HEADER.size + extras
        parts = packet[HEADER.size : body], packet[body:]
        return cls(magic, opcode, number, opaque, cas, *parts, keys, packet)

    @property
    def is_reply(self) -> bool:
        return self.magic == RESPONSE

    @property
    def specific(self) -> bytes:
        """The engine-specific section, as long as the extras say."""
        return self.rest[: int.from_bytes(self.extras[:2], "big")]

    @property
    def flags(self) -> int:
        """Of the message; a no-op has none."""
        return int.from_bytes(self.extras[2:4], "big")

    @property
    def wants_ack(self) -> bool:
        return not self.is_reply and bool(self.flags & ACK)

    @property
    def ttl(self) -> int:
        return self.extras[4]

    @property
    def key(self) -> bytes:
        start = len(self.specific)
        return self.rest[start : start + self.key_length]

    @property
    def value(self) -> bytes:
        return self.rest[len(self.specific) + self.key_length :]

    @property
    def item(self) -> tuple[int, int]:
        """Flags, as they stand on the wire, and expiration."""
        flags, expiration = _ITEM.unpack(self.extras[_COMMON.size :])
        return flags, expiration

    @property
    def rev(self) -> int | None:
        """Revision of an item, if it was told."""
        return int.from_bytes(self.specific[:8], "big") if len(self.specific) >= 8 else None

    @property
    def code(self) -> int:
        """Which OPAQUE, or which state."""
        assert self.opcode in (OPAQUE, VBUCKET_SET), self
        assert len(self.specific) == 4, self
        return int.from_bytes(self.specific, "big")

    @property
    def checkpoint(self) -> int:
        assert self.opcode in (CHECKPOINT_START, CHECKPOINT_END), self
        assert len(self.value) == 8, self
        return int.from_bytes(self.value, "big")

    def is_opaque(self, code: int) -> bool:
        return self.opcode == OPAQUE and self.code == code


# --- requests of a client -------------------------------------------------------------------------


def connect(
    name: bytes = b"",
    flags: int = 0,
    *,
    oldest: int = 0,
    vbuckets: Sequence[int] = (),
    closed: Iterable[tuple[int, int]] | None = None,
    closed_only: bool | None = None,
    opaque: int = 0,
) -> bytes:
    """A TAP_CONNECT. What is ``None`` is left out, as real clients do."""
    data = b""
    if flags & BACKFILL:
        data += struct.pack(">Q", oldest)
    if flags & LIST:
        data += struct.pack(f">H{len(vbuckets)}H", len(vbuckets), *vbuckets)
    if flags & CHECKPOINT and closed is not None:
        data += filter_of(closed)
    if flags & REGISTERED and closed_only is not None:
        data += bytes([closed_only])
    return frame(CONNECT, name, data, struct.pack(">I", flags), opaque=opaque)


def filter_of(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Count and pairs of vBucket and last closed checkpoint."""
    packed = [struct.pack(">HQ", *pair) for pair in pairs]
    return struct.pack(">H", len(packed)) + b"".join(packed)


def answer(message: TapFrame, status: int = w.OK, key: bytes = b"", value: bytes = b"") -> bytes:
    """The ACK, or with a status the nack, of a message."""
    return frame(message.opcode, key, value, vbucket=status, opaque=message.opaque, magic=RESPONSE)


# --- messages of a producer -----------------------------------------------------------------------


def message(
    opcode: int,
    vbucket: int = 0,
    opaque: int = 0,
    *,
    specific: bytes = b"",
    flags: int = 0,
    ttl: int = 255,
    item: tuple[int, int] | None = None,
    key: bytes = b"",
    value: bytes = b"",
    cas: int = 0,
    specific_length: int | None = None,
) -> bytes:
    """Any message; the length of the engine-specific section can be forged."""
    size = len(specific) if specific_length is None else specific_length
    extras = _COMMON.pack(size, flags, ttl) + (_ITEM.pack(*item) if item is not None else b"")
    return frame(
        opcode,
        specific + key,
        value,
        extras,
        cas=cas,
        opaque=opaque,
        vbucket=vbucket,
        key_length=len(key),
    )


def mutation(
    vbucket: int,
    opaque: int,
    key: bytes,
    value: bytes,
    *,
    rev: int | None = 1,
    nru: int | None = 2,
    item_flags: int = 0,
    expiration: int = 0,
    cas: int = 0,
    flags: int = NETWORK_ORDER,
    ttl: int = 255,
) -> bytes:
    specific = b"" if rev is None else struct.pack(">Q", rev)
    if rev is not None and nru is not None:
        specific += bytes([nru])
    return message(
        MUTATION,
        vbucket,
        opaque,
        specific=specific,
        flags=flags,
        ttl=ttl,
        item=(item_flags, expiration),
        key=key,
        value=value,
        cas=cas,
    )


def deletion(
    vbucket: int, opaque: int, key: bytes, *, rev: int | None = 1, cas: int = 0, flags: int = 0
) -> bytes:
    specific = b"" if rev is None else struct.pack(">Q", rev)
    return message(DELETE, vbucket, opaque, specific=specific, flags=flags, key=key, cas=cas)


def opaque_message(code: int, vbucket: int, opaque: int, flags: int = ACK) -> bytes:
    return message(OPAQUE, vbucket, opaque, specific=struct.pack(">I", code), flags=flags)


def vbucket_set(state: int, vbucket: int, opaque: int, flags: int = ACK) -> bytes:
    return message(VBUCKET_SET, vbucket, opaque, specific=struct.pack(">I", state), flags=flags)


def checkpoint(
    opcode: int, number: int, vbucket: int, opaque: int, flags: int = ACK, *, deleted_rev: int = 0
) -> bytes:
    """CHECKPOINT_START or CHECKPOINT_END; only the start has a section."""
    start = opcode == CHECKPOINT_START
    return message(
        opcode,
        vbucket,
        opaque,
        specific=struct.pack(">Q", deleted_rev) if start else b"",
        flags=flags,
        item=(0, 0),
        key=b"checkpoint_start" if start else b"checkpoint_end",
        value=struct.pack(">Q", number),
    )


# --- connections ----------------------------------------------------------------------------------


class TapWire(Wire):
    """One connection that carries TAP in either direction."""

    def __init__(self, address: Address, timeout_s: float = 20.0) -> None:
        super().__init__(address, timeout_s)

    @property
    def held(self) -> bytes:
        """What was received and not read."""
        return bytes(self._held)

    def frame(self) -> TapFrame:
        """The next frame, request or reply."""
        header = self.read(HEADER.size)
        assert header[0] in (REQUEST, RESPONSE), header
        return TapFrame.of(header + self.read(int.from_bytes(header[8:12], "big")))

    def call(self, request: bytes) -> TapFrame:
        """Send a request or a message; give its answer, which must be the next frame."""
        self.send(request)
        asked, got = TapFrame.of(request), self.frame()
        assert got.is_reply, f"asked {asked}, got {got}"
        assert (got.opcode, got.opaque) == (asked.opcode, asked.opaque), got
        return got

    def push(self, *messages: bytes) -> list[TapFrame]:
        """Send messages and a no-op; give what was answered before the no-op's answer."""
        self.send(*messages, frame(w.NOOP, opaque=0xDEADBEEF))
        found = []
        while (got := self.frame()).opcode != w.NOOP:
            found.append(got)
        return found
