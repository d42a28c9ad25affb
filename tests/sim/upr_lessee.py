"""A simulated lessee: it takes a lease of some vBuckets and reads them again and again.

Whatever is written meanwhile, each reading of a lease must be the same bytes, and they must be what
was true when the lease was granted.

Source: design, decision 12; `docs/extensions.md`, leases.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tests.sim import upr_codec as codec
from tests.sim.judges import complain
from tests.sim.node import Node
from tests.sim.upr_codec import Frame, Position
from tests.sim.upr_connection import Connection, Manners
from tests.sim.upr_copy import Copy
from tests.sim.upr_judges import StreamJudge
from tests.sim.upr_truth import Truth
from tests.sim.world import World

_MANNERS = Manners(controls=("uprmc_leases",))
_PAUSE_S = 0.1
_LIFETIMES_S = (1, 2, 3)


@dataclass(slots=True)
class Lease:
    """A granted lease.

    Attributes:
        until: world time at which it certainly still lives.
        fate: what must be unchanged for that.
        high: per vBucket the uuid and seqno held.
        seen: per vBucket what the first complete reading of it was.
    """

    number: int
    until: float
    fate: tuple[int, ...]
    high: dict[int, tuple[int, int]]
    seen: dict[int, tuple[object, ...]] = field(default_factory=dict)


class Lessee:
    """See the module docstring.

    Attributes:
        readings: complete ones; `repeats` of them had an earlier one to be compared with.
    """

    def __init__(self, world: World, node: Node, truth: Truth, vbuckets: int) -> None:
        self.readings = self.repeats = 0
        self.done = False
        self._world = world
        self._node = node
        self._truth = truth
        self._vbuckets = vbuckets
        self._lease: Lease | None = None
        self._asking = False
        self._connection: Connection | None = None
        self._streams: dict[int, _Reading] = {}
        self._think()

    def _think(self) -> None:
        if self.done:
            return
        if self._connection is None:
            name = b"lessee"
            connection = Connection(
                self._world, self._node, name, _MANNERS, self._pushed, self._lost
            )
            self._connection = connection if connection.open else None
        elif not self._asking:
            self._live(self._connection)
        self._world.after(self._world.between(0, _PAUSE_S), self._think)

    def _live(self, connection: Connection) -> None:
        world, lease = self._world, self._lease
        if lease is None:
            self._acquire(connection)
        elif world.chance(0.05) and not self._streams:
            extras = struct.pack(">Q", lease.number)
            self._lease = None
            connection.send(codec.LEASE_RELEASE, lambda reply: None, extras=extras)
        else:
            number = world.random.choice(sorted(lease.high))
            if number not in self._streams:
                self._read(connection, lease, number)

    # --- the lease --------------------------------------------------------------------------------

    def _acquire(self, connection: Connection) -> None:
        random = self._world.random
        numbers = random.sample(range(self._vbuckets), random.randint(1, self._vbuckets))
        self._asking = True
        fate = self._fate()
        connection.send(
            codec.LEASE_ACQUIRE,
            lambda reply: self._acquired(reply, fate),
            extras=struct.pack(">I", random.choice(_LIFETIMES_S)),
            value=b"".join(number.to_bytes(2, "big") for number in numbers),
        )

    def _acquired(self, reply: Frame, fate: tuple[int, ...]) -> None:
        self._asking = False
        if reply.place in (codec.NOT_MY_VBUCKET, codec.TRY_AGAIN):
            return
        if reply.place != codec.OK:
            complain(f"a lease is refused: {reply}")
        number, lifetime_s = struct.unpack(">QI", reply.extras)
        if lifetime_s not in _LIFETIMES_S:
            complain(f"a lease lives for {lifetime_s} s")
        high = {vbucket: (uuid, seqno) for vbucket, uuid, seqno, _ in codec.leased(reply.value)}
        # The grant was on its way for a while, and the end is looked for now and then.
        self._lease = Lease(number, self._world.now + lifetime_s - 0.5, fate, high)

    def _fate(self) -> tuple[int, ...]:
        node = self._node
        return node.life, node.upr.leases.withdrawn, node.disk.reads_failed

    # --- readings ---------------------------------------------------------------------------------

    def _read(self, connection: Connection, lease: Lease, number: int) -> None:
        asked = Position(0, codec.NEVER, 0, 0, 0, lease=lease.number)
        reading = _Reading(lease, number, Copy(1))
        self._streams[number] = reading
        reading.opaque = connection.ask_stream(
            number, asked, lambda reply: self._asked(reading, reply)
        )

    def _asked(self, reading: _Reading, reply: Frame) -> None:
        number, lease = reading.vbucket, reading.lease
        uuid, _ = lease.high[number]
        if reply.place == codec.OK:
            reading.judge = StreamJudge(self._truth, number, uuid, reading.copy)
            return
        del self._streams[number]
        if reply.place == codec.NOT_FOUND:
            alive = self._world.now < lease.until and lease.fate == self._fate()
            if alive and self._lease is lease:
                complain(f"lease {lease} is gone early")
            self._forget(lease)
        else:
            complain(f"a reading of {lease} is refused: {reply}")

    def _forget(self, lease: Lease) -> None:
        if self._lease is lease:
            self._lease = None

    def _pushed(self, frame: Frame) -> None:
        reading = self._streams.get(frame.place)
        if reading is None or reading.judge is None or reading.opaque != frame.opaque:
            complain(f"a lessee gets {frame}")
        judge = reading.judge
        if frame.opcode == codec.SNAPSHOT_MARKER:
            start, end, kind = codec.marker(frame.extras)
            if end != reading.lease.high[reading.vbucket][1]:
                complain(f"{start}..{end} is announced for {reading.lease}")
            judge.announced(start, end, kind, acks=False)
        elif frame.opcode == codec.STREAM_END:
            self._ended(reading, codec.number32(frame.extras))
        else:
            self._item(reading, judge, frame)

    def _item(self, reading: _Reading, judge: StreamJudge, frame: Frame) -> None:
        version = codec.version(frame, timed=False)
        whole = judge.came(version)
        assert judge.marker is not None
        reading.copy.apply(version, judge.marker)
        reading.frames.append((frame.opcode, frame.cas, frame.extras, frame.key, frame.value))
        if whole:
            reading.copy.complete()
            judge.whole()

    def _ended(self, reading: _Reading, reason: int) -> None:
        lease, number = reading.lease, reading.vbucket
        del self._streams[number]
        if reason != codec.END_OK:
            alive = self._world.now < lease.until and lease.fate == self._fate()
            if alive and self._lease is lease:
                complain(f"a reading of {lease} ends with {reason}")
            self._forget(lease)
            return
        if reading.copy.last != lease.high[number][1]:
            complain(f"a reading of {lease} ends at {reading.copy.last}")
        frames = tuple(reading.frames)
        first = lease.seen.setdefault(number, frames)
        if first is not frames:
            self.repeats += 1
            if first != frames:
                complain(f"lease {lease} reads {frames}, and before {first}")
        self.readings += 1

    def _lost(self) -> None:
        self._connection = None
        self._asking = False
        self._streams.clear()

    def leave(self) -> None:
        """Go for good; its lease stays until its time is over."""
        self.done = True
        if self._connection is not None:
            self._connection.hang_up()


@dataclass(slots=True)
class _Reading:
    lease: Lease
    vbucket: int
    copy: Copy
    opaque: int = 0
    judge: StreamJudge | None = None
    frames: list[object] = field(default_factory=list)
