"""Guests of a node that are no consumers: a notifier, a lessee, and a target of takeovers."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.sim import codec
from tests.sim.codec import Frame, Position
from tests.sim.consumer import Connection, Manners
from tests.sim.judges import complain
from tests.sim.stream_judges import Copy, RequestJudge, StreamJudge
from tests.sim.truth import Log, Truth
from tests.sim.world import World

_LIFETIMES_S = (1, 2, 3)


class Guest:
    """Somebody with one connection at a time, who comes back when it is lost."""

    name: ClassVar[bytes]
    manners: ClassVar[Manners] = Manners()
    pause_s: ClassVar[float] = 0.1  # between two thoughts

    def __init__(self, world: World, node: Any, truth: Truth, vbuckets: int) -> None:
        self.done = False
        self._world = world
        self._node = node
        self._truth = truth
        self._vbuckets = vbuckets
        self._connection: Connection | None = None
        self._think()

    def _think(self) -> None:
        if self.done:
            return
        if self._connection is None:
            connection = Connection(
                self._world, self._node, self.name, self.manners, self._pushed, self._lost
            )
            self._connection = connection if connection.open else None
        else:
            self._live(self._connection)
        self._world.after(self._world.between(0, self.pause_s), self._think)

    def _live(self, connection: Connection) -> None:
        raise NotImplementedError

    def _pushed(self, frame: Frame) -> None:
        raise NotImplementedError

    def _lost(self) -> None:
        self._connection = None

    def leave(self) -> None:
        self.done = True
        if self._connection is not None:
            self._connection.hang_up()


class Notifier(Guest):
    """It waits for news of every vBucket and fetches nothing.

    Source: UPR reference 2.1 (flag 0x02) and 4.5.
    """

    name = b"notifier"
    manners = Manners(flags=codec.AS_NOTIFIER)

    def __init__(self, world: World, node: Any, truth: Truth, vbuckets: int) -> None:
        self.fired = 0
        self._requests = RequestJudge(truth)
        self._logs: dict[int, Log] = dict.fromkeys(range(vbuckets), ())
        self._seen = dict.fromkeys(range(vbuckets), 0)
        self._waiting: dict[int, tuple[int, Position, int]] = {}
        self._granted: set[int] = set()
        super().__init__(world, node, truth, vbuckets)

    def _live(self, connection: Connection) -> None:
        for number in self._logs:
            if number not in self._waiting and self._world.chance(0.3):
                self._ask(connection, number)

    def _ask(self, connection: Connection, number: int) -> None:
        log = [entry for entry in self._logs[number] if entry[1] <= self._seen[number]]
        start = self._seen[number]
        asked = Position(start, codec.NEVER, log[0][0] if log else 0, start, start)
        step = self._truth.step
        opaque = connection.ask_stream(number, asked, lambda reply: self._asked(number, reply))
        self._waiting[number] = (opaque, asked, step)

    def _asked(self, number: int, reply: Frame) -> None:
        _, asked, step = self._waiting[number]
        self._requests.answered(number, asked, step, reply.place, reply.value, notifier=True)
        if reply.place == codec.OK:
            self._granted.add(number)
            self._logs[number] = codec.failover_log(reply.value)
            return
        del self._waiting[number]
        if reply.place == codec.ROLLBACK:
            self._seen[number] = codec.read64(reply.value)

    def _pushed(self, frame: Frame) -> None:
        number = frame.place
        opaque, asked, step = self._waiting.pop(number, (0, None, 0))
        if frame.opcode != codec.STREAM_END or opaque != frame.opaque or asked is None:
            complain(f"a notifier gets {frame}")
        if number not in self._granted:
            complain(f"a notifier's stream ends before it is granted: {frame}")
        self._granted.discard(number)
        if codec.read32(frame.extras) == codec.END_OK:
            high = max(look.high for look in self._truth.since(number, step))
            if high <= asked.start:
                complain(f"a notifier is told of news after {asked.start}; there is {high}")
            self._seen[number] = self._truth.now(number).high
            self.fired += 1

    def _lost(self) -> None:
        super()._lost()
        self._waiting.clear()
        self._granted.clear()

    def settled(self) -> bool:
        """Tell whether it knows of everything."""
        for number in self._logs:
            look = self._truth.now(number)
            served = look.state in (codec.ACTIVE, codec.REPLICA)
            if served and (number not in self._granted or self._seen[number] < look.high):
                return False
        return True


@dataclass(slots=True)
class Lease:
    """A granted lease."""

    number: int
    until: float  # world time at which it certainly still lives
    fate: tuple[int, ...]  # what must be unchanged for that
    high: dict[int, tuple[int, int]]  # per vBucket the uuid and seqno held
    # per vBucket what the first complete reading of it was
    seen: dict[int, tuple[object, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Reading:
    lease: Lease
    vbucket: int
    copy: Copy
    opaque: int = 0
    judge: StreamJudge | None = None
    frames: list[object] = field(default_factory=list)


class Lessee(Guest):
    """It takes a lease of some vBuckets and reads them again and again.

    Whatever is written meanwhile, each reading of a lease must be the same bytes, and they must be
    what was true when the lease was granted. When it leaves, its lease stays until it ends.

    Source: design, decision 12; `docs/extensions.md`, leases.
    """

    name = b"lessee"
    manners = Manners(controls=("uprmc_leases",))

    def __init__(self, world: World, node: Any, truth: Truth, vbuckets: int) -> None:
        self.repeats = 0  # readings that had an earlier one to be compared with
        self._lease: Lease | None = None
        self._asking = False
        self._streams: dict[int, _Reading] = {}
        super().__init__(world, node, truth, vbuckets)

    def _live(self, connection: Connection) -> None:
        world, lease = self._world, self._lease
        if self._asking:
            return
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
            self._ended(reading, codec.read32(frame.extras))
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

    def _lost(self) -> None:
        super()._lost()
        self._asking = False
        self._streams.clear()


class Taker(Guest):
    """It takes a vBucket over, then gives it back.

    It answers every marker after the last item of its snapshot and every change of state. When the
    stream has ended it must hold all that was ever accepted, and the source must be dead. Then it
    makes the source active again, by command, as a manager would after the vBucket has wandered on.

    Source: UPR reference 4.4; row D52.
    """

    name = b"taker"
    pause_s = 0.3

    def __init__(self, world: World, node: Any, truth: Truth, vbuckets: int) -> None:
        self.taken = 0  # how often a takeover came to its end
        self._vbucket: int | None = None
        self._copy = Copy(1)
        self._judge: StreamJudge | None = None
        self._states: list[int] = []
        self._opaque = self._uuid = 0
        super().__init__(world, node, truth, vbuckets)

    def _live(self, connection: Connection) -> None:
        if self._vbucket is not None:
            return
        self._vbucket = self._world.random.randrange(self._vbuckets)
        self._copy, self._states = Copy(1), []
        asked = Position(0, codec.NEVER, 0, 0, 0, codec.TAKEOVER | codec.ACTIVE_ONLY)
        self._opaque = connection.ask_stream(self._vbucket, asked, self._asked)

    def _asked(self, reply: Frame) -> None:
        assert self._vbucket is not None
        if reply.place == codec.OK:
            self._uuid = codec.failover_log(reply.value)[0][0]
            self._judge = StreamJudge(self._truth, self._vbucket, self._uuid, self._copy)
        elif reply.place in (codec.NOT_MY_VBUCKET, codec.TRY_AGAIN):
            self._vbucket = None
        else:
            complain(f"a takeover is refused: {reply}")

    def _pushed(self, frame: Frame) -> None:
        judge, connection = self._judge, self._connection
        if judge is None or connection is None or frame.opaque != self._opaque:
            complain(f"a taker gets {frame}")
        if frame.opcode == codec.SNAPSHOT_MARKER:
            judge.announced(*codec.marker(frame.extras), acks=True)
        elif frame.opcode == codec.SET_STATE:
            self._told_state(connection, judge, frame)
        elif frame.opcode == codec.STREAM_END:
            self._ended(codec.read32(frame.extras))
        else:
            self._item(connection, judge, frame)

    def _item(self, connection: Connection, judge: StreamJudge, frame: Frame) -> None:
        version = codec.version(frame, timed=False)
        whole = judge.came(version)
        assert judge.marker is not None
        self._copy.apply(version, judge.marker)
        if whole:
            self._copy.complete()
            judge.whole()
            connection.answer(codec.SNAPSHOT_MARKER, frame.opaque)

    def _told_state(self, connection: Connection, judge: StreamJudge, frame: Frame) -> None:
        (state,) = struct.unpack(">B", frame.extras)
        self._states.append(state)
        in_order = self._states == [codec.PENDING, codec.ACTIVE][: len(self._states)]
        if judge.marker is not None or not in_order:
            complain(f"a taker is told {self._states} at {judge.marker}")
        connection.answer(codec.SET_STATE, frame.opaque)

    def _ended(self, reason: int) -> None:
        number, self._vbucket, self._judge = self._vbucket, None, None
        assert number is not None
        if reason != codec.END_OK:
            return
        if self._states != [codec.PENDING, codec.ACTIVE]:
            complain(f"a takeover ends with {self._states}")
        branch = self._truth.branch(number, self._uuid)
        if self._copy.last != branch.high:
            complain(f"a takeover of {number} ends at {self._copy.last} of {branch.high}")
        self.taken += 1
        if self._connection is not None:
            extras = struct.pack(">I", codec.ACTIVE)
            self._connection.send(
                codec.SET_VBUCKET, lambda reply: None, vbucket=number, extras=extras
            )

    def _lost(self) -> None:
        super()._lost()
        self._judge = self._vbucket = None
