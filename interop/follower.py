"""A consumer that can undo: it keeps every change it was sent, so it can return to any boundary.

Written from ``docs/streams.md`` alone ("How to write a consumer", "Rollback"). It follows a node,
loses it, goes to another one, and does there what it is told; `expected_rollback` says beforehand
what it has to be told, from nothing but the failover log and its own place.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from interop import upr_wire as u
from interop.comparison import TEMPORARY_FAILURE, Holding, Version
from interop.server_process import Address
from interop.upr_wire import Frame, Mirror, UprWire
from interop.wire import frame

_ASK_AGAIN_S = 0.05


@dataclass
class _Past:
    changes: list[Frame] = field(default_factory=list)  # by rising seqno
    boundaries: list[int] = field(default_factory=lambda: [0])  # ends of whole snapshots
    snapshot: tuple[int, int] = (0, 0)  # that the last change lies in; from its first item on


def expected_rollback(
    place: tuple[int, int, int], uuid: int, log: Sequence[tuple[int, int]], high_seqno: int
) -> int | None:
    """What a stream request from (seqno, snapshot start, snapshot end) has to be answered.

    ``None``: accepted. The rule of ``docs/streams.md``, "How the server decides", without dropped
    deletions and flags.
    """
    seqno, start, end = place
    if seqno == 0:
        return None
    uppers = [high_seqno, *(since for _, since in log)]
    places = [number for number, (known, _) in enumerate(log) if known == uuid]
    if not places:
        return 0
    upper = uppers[places[0]]
    if seqno == start:
        end = seqno
    if end <= upper:
        return None
    return min(seqno if seqno == end else start, upper)


class Follower(Mirror):
    """Follows every vBucket of a node over one connection.

    Attributes:
        rollbacks: (vBucket, seqno) of each rollback that was asked for, in their order.
    """

    def __init__(self, name: str, vbuckets: Iterable[int]) -> None:
        super().__init__()
        self.name = name
        self.vbuckets = sorted(vbuckets)
        self.rollbacks: list[tuple[int, int]] = []
        self._past = {number: _Past() for number in self.vbuckets}
        self._asked: set[int] = set()
        self._wire: UprWire | None = None
        for number in self.vbuckets:
            self.copies[number] = u.Copy()

    def place(self, vbucket: int) -> tuple[int, int, int]:
        """(seqno, snapshot start, snapshot end), as a stream request names it."""
        return (self.copies[vbucket].seqno, *self._past[vbucket].snapshot)

    def uuid(self, vbucket: int) -> int:
        log = self.copies[vbucket].log
        return log[0][0] if log else 0

    def connect(self, address: Address) -> None:
        """Ask a node for everything after what is held, rolling back where it says so."""
        self.close()
        self._wire = UprWire(address, timeout_s=30)
        self._wire.open(self.name.encode(), u.PRODUCER | u.DELETE_TIMES)
        for number in self.vbuckets:
            self._ask(number)

    def close(self) -> None:
        if self._wire:
            self._wire.close()
            self._wire = None
        self._asked.clear()

    def follow(self, seqnos: dict[int, int]) -> None:
        """Read until everything up to these seqnos is held."""
        while self._asked or not self.has(seqnos):
            self.step()

    def step(self) -> None:
        """Take one frame."""
        assert self._wire
        packet = self._wire.frame()
        if not packet.is_reply:
            assert packet.opcode != u.STREAM_END, packet
            self.take(packet)
            return
        number = packet.opaque
        assert (packet.opcode, number in self._asked) == (u.STREAM_REQUEST, True), packet
        self._asked.remove(number)
        if packet.number == u.ROLLBACK:
            point = int.from_bytes(packet.value, "big")
            self.rollbacks.append((number, point))
            self._roll_back(number, point)
            self._ask(number)
        elif packet.number == TEMPORARY_FAILURE:
            time.sleep(_ASK_AGAIN_S)
            self._ask(number)
        else:
            self.begin(number, packet)

    def versions(self) -> Holding:
        """What it holds, in the words of `interop.comparison`."""
        return {
            (number, packet.key): Version.of(packet)
            for number, past in self._past.items()
            for packet in past.changes
        }

    def _ask(self, number: int) -> None:
        assert self._wire
        seqno, *snapshot = self.place(number)
        extras = struct.pack(">IIQQQQQ", 0, 0, seqno, u.NEVER, self.uuid(number), *snapshot)
        self._asked.add(number)
        self._wire.send(frame(u.STREAM_REQUEST, extras=extras, vbucket=number, opaque=number))

    def _roll_back(self, number: int, point: int) -> None:
        """Return to the newest boundary at or below a seqno."""
        past, copy = self._past[number], self.copies[number]
        past.boundaries = [each for each in past.boundaries if each <= point]
        seqno = past.boundaries[-1]
        past.changes = [each for each in past.changes if each.seqno <= seqno]
        copy.seqno = seqno
        copy.snapshot = past.snapshot = (seqno, seqno)
        copy.log = [entry for entry in copy.log if entry[1] <= seqno] if seqno else []
        copy.keys.clear()

    def _changed(self, copy: u.Copy, packet: Frame) -> None:
        super()._changed(copy, packet)
        past = self._past[packet.number]
        past.changes.append(packet)
        past.snapshot = copy.snapshot
        if packet.seqno == copy.snapshot[1]:
            past.boundaries.append(packet.seqno)
            past.snapshot = (packet.seqno, packet.seqno)
