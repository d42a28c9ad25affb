"""Two nodes compared key by key, with all metadata, by what they stream.

What a node holds is read as any consumer would read it: every vBucket from seqno 0 to its high
seqno, deletions and expirations included, with the times of deletions. Nothing is left out: two
nodes are equal when they would send every consumer the same frames.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterable
from typing import NamedTuple

from interop import upr_wire as u
from interop.server_process import Address
from interop.upr_wire import Frame, Mirror, UprWire
from interop.wire import frame

HELLO = 0x1F
TEMPORARY_FAILURE = 0x86
_JSON, _XERROR = 0x0B, 0x07
_SHOWN = 12
_BUSY_S = 30.0
_ASK_AGAIN_S = 0.05

_names = itertools.count(1)


class Version(NamedTuple):
    """All that is known of a key's newest version. ``time`` is expiry, or when it was deleted."""

    kind: str
    seqno: int
    rev: int
    flags: int
    time: int
    cas: int
    datatype: int
    value: bytes

    @classmethod
    def of(cls, packet: Frame) -> Version:
        datatype = packet.packet[5]
        if packet.opcode == u.MUTATION:
            seqno, rev, flags, expiry, *_ = struct.unpack(">QQIIIHB", packet.extras)
            kind = "document"
        else:
            seqno, rev, expiry = struct.unpack_from(">QQI", packet.extras)
            flags, kind = 0, "deletion" if packet.opcode == u.DELETION else "expiration"
        return cls(kind, seqno, rev, flags, expiry, packet.cas, datatype, packet.value)

    @property
    def is_document(self) -> bool:
        return self.kind == "document"


Holding = dict[tuple[int, bytes], Version]


class _Whole(Mirror):
    """A mirror that remembers deletions too."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: Holding = {}

    def _changed(self, copy: u.Copy, packet: Frame) -> None:
        super()._changed(copy, packet)
        self.versions[packet.number, packet.key] = Version.of(packet)


def everything_of(address: Address, vbuckets: Iterable[int]) -> Holding:
    """Newest version of every key of these vBuckets, by (vBucket, key)."""
    whole, running = _Whole(), set(vbuckets)
    deadline = time.monotonic() + _BUSY_S
    with UprWire(address, timeout_s=60) as wire:
        features = struct.pack(">HH", _JSON, _XERROR)
        wire.command(frame(HELLO, b"interop-comparison", features))
        wire.open(b"comparison-%d" % next(_names), u.PRODUCER | u.DELETE_TIMES)
        wire.control(b"enable_expiry_opcode", b"true")
        for number in running:
            wire.request_stream(number, flags=u.LATEST, opaque=number)
        while running:
            packet = wire.frame()
            if packet.is_reply and packet.number == TEMPORARY_FAILURE:
                assert time.monotonic() < deadline, packet
                time.sleep(_ASK_AGAIN_S)  # it is busy, for instance with a rollback
                wire.request_stream(packet.opaque, flags=u.LATEST, opaque=packet.opaque)
            elif packet.is_reply:
                whole.begin(packet.opaque, packet)
            elif packet.opcode == u.STREAM_END:
                assert packet.reason == u.END_OK, packet
                running.remove(packet.number)
            else:
                whole.take(packet)
    return whole.versions


def differences(one: Holding, other: Holding) -> list[str]:
    """What is not the same, the first few; nothing when both are equal."""
    apart = [
        f"vBucket {name[0]}, {name[1]!r}:\n   {one.get(name)}\n   {other.get(name)}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
    if len(apart) > _SHOWN:
        apart[_SHOWN:] = [f"and {len(apart) - _SHOWN} more"]
    return apart


def expect_equal(one: Address, other: Address, vbuckets: Iterable[int]) -> Holding:
    """Require that two nodes hold the same; gives what that is."""
    numbers = sorted(vbuckets)
    held = everything_of(one, numbers)
    found = differences(held, everything_of(other, numbers))
    assert not found, "\n".join(found)
    return held
