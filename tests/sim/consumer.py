"""A simulated UPR connection as its client sees it: handshake, replies in order, flow control.

It is the judge of its own conversation: every command has one reply, in the order of commands, with
its opaque and opcode. Only a HWT_REPORT may be answered later, when it is on disk. What the
producer sends by itself goes to `pushed`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from tests.sim import codec
from tests.sim.codec import Frame, FrameReader, Position
from tests.sim.judges import complain
from tests.sim.net import FAR_AWAY, FAST, SLOW_READER, LinkProfile
from tests.sim.node import Node
from tests.sim.stream_judges import Copy, FlowJudge, RequestJudge, RoundJudge, StreamJudge
from tests.sim.truth import Truth
from tests.sim.world import World

Settle = Callable[[Frame], None]


@dataclass(frozen=True, slots=True)
class Manners:
    """How a connection is opened and kept."""

    flags: int = codec.AS_PRODUCER  # of OPEN
    controls: tuple[str, ...] = ()  # sent after it; all must be accepted
    buffer_bytes: int = 0  # flow control; 0 = none
    ack_share: float = 0.2  # bytes are acknowledged when they exceed this share of the buffer
    ack_delay_max_s: float = 0.0  # and so much later at most
    noop_s: float = 0.0  # interval of keep-alives, 0 = none are asked for
    hello: bool = False  # whether it says HELLO first, as peers of today do
    profile: LinkProfile = FAST  # of its link


class Connection:
    """See the module docstring."""

    def __init__(
        self,
        world: World,
        node: Node,
        name: bytes,
        manners: Manners,
        pushed: Callable[[Frame], None],
        lost: Callable[[], None],
    ) -> None:
        self._world = world
        self._manners = manners
        self._pushed = pushed
        self._lost = lost
        self._reader = FrameReader()
        self._under_way: deque[tuple[int, int, Settle]] = deque()
        self._reports: dict[int, Settle] = {}
        self._opaque = world.random.randint(1, 1_000)
        self._flow = FlowJudge(manners.buffer_bytes)
        self._to_ack = 0
        self.frames = 0
        self.bytes = 0
        self._link = node.connect(self, manners.profile, False)
        if self._link is not None:
            self._shake_hands(name)

    @property
    def open(self) -> bool:
        return self._link is not None

    @property
    def waiting(self) -> int:
        """Number of commands that have no reply yet."""
        return len(self._under_way) + len(self._reports)

    def _shake_hands(self, name: bytes) -> None:
        manners = self._manners
        if manners.hello:
            self.send(codec.HELLO, self._accepted, key=b"sim", value=codec.FEATURES)
        self.send(codec.OPEN, self._accepted, key=name, flags=manners.flags)
        if manners.buffer_bytes:
            self.control("connection_buffer_size", str(manners.buffer_bytes), self._flow_is_on)
        if manners.noop_s:
            self.control("enable_noop", "true")
            self.control("set_noop_interval", str(manners.noop_s))
        for name_of_control in manners.controls:
            self.control(name_of_control, "true")

    def _flow_is_on(self, reply: Frame) -> None:
        self._accepted(reply)
        self._flow.on = True
        self._flow.unacked = 0

    def _accepted(self, reply: Frame) -> None:
        if reply.place != codec.OK:
            complain(f"{reply} refuses what must be accepted")

    # --- sending ----------------------------------------------------------------------------------

    def next_opaque(self) -> int:
        """Return a number that no command had on this connection."""
        self._opaque += 1
        return self._opaque

    def control(self, name: str, value: str, settle: Settle | None = None) -> None:
        """Send a CONTROL; it must be accepted."""
        opaque = self.next_opaque()
        self._expect(opaque, codec.CONTROL, settle or self._accepted)
        self._put(codec.control(name, value, opaque))

    def send(
        self,
        opcode: int,
        settle: Settle,
        *,
        vbucket: int = 0,
        key: bytes = b"",
        extras: bytes = b"",
        value: bytes = b"",
        flags: int | None = None,
    ) -> int:
        """Send a command; `settle` gets its reply. Returns its opaque."""
        opaque = self.next_opaque()
        self._expect(opaque, opcode, settle)
        if flags is not None:
            self._put(codec.open_connection(key, flags, opaque))
        else:
            self._put(
                codec.frame(
                    opcode, vbucket=vbucket, key=key, extras=extras, value=value, opaque=opaque
                )
            )
        return opaque

    def ask_stream(self, vbucket: int, position: codec.Position, settle: Settle) -> int:
        """Send a stream request. Returns its opaque."""
        opaque = self.next_opaque()
        self._expect(opaque, codec.STREAM_REQUEST, settle)
        self._put(codec.stream_request(vbucket, position, opaque))
        return opaque

    def report(self, vbucket: int, name: bytes, extras: bytes, settle: Settle) -> None:
        """Send a HWT_REPORT."""
        opaque = self.next_opaque()
        self._reports[opaque] = settle
        self._put(
            codec.frame(codec.HWT_REPORT, vbucket=vbucket, key=name, extras=extras, opaque=opaque)
        )

    def answer(self, opcode: int, opaque: int) -> None:
        """Answer a frame of the producer."""
        self._put(codec.reply(opcode, opaque))

    def _expect(self, opaque: int, opcode: int, settle: Settle) -> None:
        self._under_way.append((opaque, opcode, settle))

    def _put(self, data: bytes) -> None:
        if self._link is not None:
            self._link.send(data)

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            if frame.is_reply:
                self._settle(frame)
            elif frame.opcode == codec.UPR_NOOP:
                self.answer(codec.UPR_NOOP, frame.opaque)
            else:
                self._count(frame)
                self._pushed(frame)

    def _settle(self, frame: Frame) -> None:
        if frame.opcode == codec.HWT_REPORT and frame.opaque in self._reports:
            self._reports.pop(frame.opaque)(frame)
            return
        if not self._under_way:
            complain(f"a reply nobody asked for: {frame}")
        opaque, opcode, settle = self._under_way.popleft()
        if (opaque, opcode) != (frame.opaque, frame.opcode):
            complain(f"{opcode:#x} with opaque {opaque} was passed over; then came {frame}")
        settle(frame)

    def _count(self, frame: Frame) -> None:
        if frame.opcode not in codec.COUNTED:
            complain(f"a producer sends {frame}")
        self.frames += 1
        self.bytes += frame.size
        self._flow.came(frame.opcode, frame.size)
        self._to_ack += frame.size
        manners = self._manners
        if self._flow.on and self._to_ack > manners.ack_share * manners.buffer_bytes:
            size, self._to_ack = self._to_ack, 0
            delay_s = self._world.between(0, manners.ack_delay_max_s)
            self._world.after(delay_s, lambda: self._ack(size))

    def _ack(self, size: int) -> None:
        self._flow.acked(size)
        self._put(codec.buffer_ack(size))

    # --- the end ----------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End it from this side."""
        if self._link is not None:
            self._link.cut()

    def disconnected(self) -> None:
        self._link = None
        self._under_way.clear()
        self._reports.clear()
        self._lost()


# --- kinds ----------------------------------------------------------------------------------------
# What kinds of consumers there are: what they use, how slow, moody and forgetful they are.
#
# Source: the consumers of seed 000 (replicas, indexers, backup, others) and the eras of the UPR
# reference, section 0.


@dataclass(frozen=True, slots=True)
class Kind:
    """What a consumer is like."""

    name: str
    manners: Manners = field(default_factory=Manners)  # of its connections
    rounds: bool = False  # rounds, barriers, snapshot_ends, versions: which extensions it uses
    barriers: bool = False
    snapshot_ends: bool = False
    versions: bool = False
    keep: int = 1_000  # boundaries that it can fall back to
    think_max_s: float = 0.02  # pause between two thoughts
    moody: float = 0.0  # chance of each thought to close a stream, or to hang up
    # how long it stays away after hanging up; then it begins with what it has stored
    absent_s: float = 0.0
    whole_only: bool = False  # it forgets half snapshots when a stream ends
    # it uses what peers of today may ask for: ends of closed streams, expirations, newer statuses
    # and reasons
    modern: bool = False
    latest: bool = False  # it asks for streams to the present end, again and again


PLAIN = Kind("plain")
ROUNDS = Kind(
    "rounds",
    Manners(
        controls=("uprmc_rounds", "uprmc_barrier", "uprmc_snapshot_end"),
        profile=FAR_AWAY,
    ),
    rounds=True,
    barriers=True,
    snapshot_ends=True,
)
NARROW = Kind(
    "narrow",
    Manners(
        controls=("uprmc_rounds", "uprmc_barrier", "uprmc_snapshot_end"),
        buffer_bytes=150,
        ack_delay_max_s=0.02,
    ),
    rounds=True,
    barriers=True,
    snapshot_ends=True,
    moody=0.02,
)
SLOW = Kind(
    "slow",
    Manners(buffer_bytes=250, ack_delay_max_s=0.3, noop_s=0.5, profile=SLOW_READER),
    keep=5,
    whole_only=True,
)
MOODY = Kind(
    "moody",
    Manners(flags=codec.AS_PRODUCER | codec.DELETE_TIMES, controls=("uprmc_snapshot_end",)),
    snapshot_ends=True,
    moody=0.15,
)
RARE = Kind("rare", moody=0.3, absent_s=2.0)
VERSED = Kind(
    "versed",
    Manners(controls=("uprmc_versions", "uprmc_snapshots")),
    versions=True,
    moody=0.03,
)
BARRED = Kind(
    "barred",
    Manners(controls=("uprmc_barrier", "uprmc_snapshots"), buffer_bytes=1_000, profile=SLOW_READER),
    barriers=True,
    moody=0.02,
)
MODERN = Kind(
    "modern",
    Manners(
        flags=codec.AS_PRODUCER | codec.DELETE_TIMES,
        controls=(
            "send_stream_end_on_client_close_stream",
            "enable_expiry_opcode",
            "v7_dcp_status_codes",
        ),
        buffer_bytes=3_000,
        hello=True,
    ),
    moody=0.1,
    modern=True,
)
LATEST = Kind("latest", Manners(buffer_bytes=2_000, profile=FAR_AWAY), latest=True)

KINDS = (PLAIN, ROUNDS, NARROW, SLOW, MOODY, RARE, VERSED, BARRED, MODERN, LATEST)


# --- consumers ------------------------------------------------------------------------------------


_RETRY_S = 0.05


@dataclass(slots=True, eq=False)
class Stream:
    """One stream of a connection."""

    vbucket: int
    asked: Position
    step: int
    opaque: int = 0
    uuid: int = 0
    judge: StreamJudge | None = None  # ``None`` until it was granted
    closing: bool = False  # the consumer has asked to close it
    # end and items of a snapshot whose SNAPSHOT_END has not come yet
    owed: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class Barrier:
    """A cookie on its way: what must have come before it does."""

    cookie: bytes
    opaque: int
    due: list[tuple[Stream, int]]
    taken: bool = False


@dataclass(slots=True)
class Account:
    """What a consumer went through, for tests that want to know that something happened."""

    streams: int = 0
    rollbacks: int = 0
    from_zero: int = 0
    items: int = 0
    snapshots: int = 0
    announced_again: int = 0
    barriers: int = 0
    rounds: int = 0
    ends: dict[int, int] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Return all of it in one dict."""
        ends = {f"ended with {reason}": count for reason, count in self.ends.items()}
        return {**{name: count for name, count in asdict(self).items() if name != "ends"}, **ends}


class Consumer:
    """Simulated consumers: they follow every vBucket, keep a copy, fall back when told to.

    A consumer obeys the reference and nothing else; what it is told goes to the judges first. How
    it behaves otherwise (extensions, pace, memory, moods) is in its `Kind`.

    Source: UPR reference 2.4, 3.2, 3.4, 4; seed 000 for rounds and barriers.
    """

    #: Of all its stream requests.
    _flags = 0

    def __init__(
        self, world: World, node: Node, truth: Truth, vbuckets: int, kind: Kind, number: int
    ) -> None:
        self.kind = kind
        self.name = f"{kind.name}{number}"
        self.copies = {number: Copy(kind.keep) for number in range(vbuckets)}  # by vBucket
        self.streams: dict[int, Stream] = {}  # those asked for and open, by vBucket
        self.barriers: deque[Barrier] = deque()
        self.account = Account()
        # calm: it does nothing but follow; done: it has gone for good; asleep: it does not come
        # back for now
        self.calm = self.done = self.asleep = False
        self.barriers_max = 20  # so many cookies it has out by itself
        self._world = world
        self._node = node
        self._truth = truth
        self._requests = RequestJudge(truth)
        self._stored = {number: copy.stored() for number, copy in self.copies.items()}
        self._not_before: dict[int, float] = {}
        self.connection: Connection | None = None  # the present one, ``None`` while there is none
        self._rounds: RoundJudge | None = None
        self._back_at = 0.0
        self._forgetful = False
        self._cookies = 0
        self._closed_opaques: set[int] = set()
        self._owed_by_closed: set[int] = set()
        self._think_later()

    # --- a will of its own ------------------------------------------------------------------------

    def _think_later(self) -> None:
        self._world.after(self._world.between(0, self.kind.think_max_s), self._think)

    def _think(self) -> None:
        if self.done:
            return
        if self.connection is None:
            if not self.asleep and (self.calm or self._world.now >= self._back_at):
                self._connect()
        else:
            self._live(self.connection)
        self._think_later()

    def _connect(self) -> None:
        name = self.name.encode()
        manners = self.kind.manners
        connection = Connection(
            self._world, self._node, name, manners, self._pushed, self._disconnected
        )
        if connection.open:
            self.connection = connection
            self._rounds = RoundJudge() if self.kind.rounds else None

    def _live(self, connection: Connection) -> None:
        world = self._world
        if not self.calm and world.chance(self.kind.moody):
            if world.chance(0.3):
                self._hang_up(connection)
                return
            if self.streams:
                self.close(connection, world.random.choice(list(self.streams.values())))
        for number in self.copies:
            late = world.now < self._not_before.get(number, 0.0)
            if number not in self.streams and not late and world.chance(0.7):
                self._ask(connection, number)
        if self.kind.barriers and world.chance(0.2) and len(self.barriers) < self.barriers_max:
            self.add_barrier(connection)

    def _hang_up(self, connection: Connection) -> None:
        if self.kind.absent_s:
            self._back_at = self._world.now + self._world.between(0, self.kind.absent_s)
            self._forgetful = True
        connection.hang_up()

    def leave(self) -> None:
        self.done = True
        if self.connection is not None:
            self.connection.hang_up()

    def _disconnected(self) -> None:
        self.connection = self._rounds = None
        self.streams.clear()
        self.barriers.clear()
        self._closed_opaques.clear()
        self._owed_by_closed.clear()
        if self._forgetful:
            self._forgetful = False
            self.copies = {number: copy.stored() for number, copy in self._stored.items()}
        if self.kind.whole_only:
            for copy in self.copies.values():
                copy.to_boundary()

    # --- stream requests --------------------------------------------------------------------------

    def _ask(self, connection: Connection, number: int) -> None:
        flags = self._flags | (codec.LATEST if self.kind.latest and not self.calm else 0)
        asked = self.copies[number].position(codec.NEVER, flags, versions=self.kind.versions)
        stream = Stream(number, asked, self._truth.step)
        self.streams[number] = stream
        stream.opaque = connection.ask_stream(
            number, asked, lambda reply: self._asked(stream, reply)
        )

    def _asked(self, stream: Stream, reply: Frame) -> None:
        number, status = stream.vbucket, reply.place
        self._judge_answer(stream, status, reply.value)
        copy = self.copies[number]
        if status == codec.OK:
            copy.log = codec.failover_log(reply.value)
            stream.uuid = copy.log[0][0]
            stream.judge = StreamJudge(self._truth, number, stream.uuid, copy)
            self.account.streams += 1
            return
        del self.streams[number]
        if status == codec.ROLLBACK:
            self._fall_back(copy, codec.read64(reply.value))
        else:
            self._not_before[number] = self._world.now + self._world.between(0, _RETRY_S)

    def _judge_answer(self, stream: Stream, status: int, value: bytes) -> None:
        number, asked, step = stream.vbucket, stream.asked, stream.step
        self._requests.answered(number, asked, step, status, value, notifier=False)

    def _fall_back(self, copy: Copy, seqno: int) -> None:
        before = copy.last
        if seqno >= before:
            complain(f"{self.name} stands at {before} and is told to fall back to {seqno}")
        copy.roll_back(seqno)
        self.account.rollbacks += 1
        self.account.from_zero += copy.last == 0

    def close(self, connection: Connection, stream: Stream) -> None:
        """Ask for the end of a stream, if it was granted."""
        if stream.judge is None or stream.closing:
            return
        stream.closing = True
        connection.send(
            codec.CLOSE_STREAM, lambda reply: self._closed(stream, reply), vbucket=stream.vbucket
        )

    def _closed(self, stream: Stream, reply: Frame) -> None:
        if reply.place == codec.OK:
            if self.streams.get(stream.vbucket) is not stream:
                complain(f"{self.name}: a stream is closed that had ended")
            self._gone(stream)
            if stream.owed is not None:
                self._owed_by_closed.add(stream.opaque)
            if self.kind.modern:
                self._closed_opaques.add(stream.opaque)
        elif reply.place != (codec.STREAM_NOT_FOUND if self.kind.modern else codec.NOT_FOUND):
            complain(f"{self.name}: a stream is not closed: {reply}")

    def _gone(self, stream: Stream) -> None:
        del self.streams[stream.vbucket]
        if stream.owed is not None and not stream.closing:
            complain(f"{self.name}: {stream.vbucket} ends; its snapshot end {stream.owed} is owed")
        if self._rounds is not None:
            self._rounds.gone(stream.vbucket)
        if self.kind.whole_only:
            self.copies[stream.vbucket].to_boundary()

    # --- what comes by itself ---------------------------------------------------------------------

    def _pushed(self, frame: Frame) -> None:
        if frame.opcode == codec.ROUND_COMPLETE:
            self._round_complete(frame)
            return
        if frame.opcode == codec.BARRIER_REACHED:
            self._barrier_reached(frame)
            return
        if frame.opcode == codec.SNAPSHOTS and "uprmc_snapshots" in self.kind.manners.controls:
            for each in codec.apart(frame):
                self._pushed(each)
            return
        stream = self.streams.get(frame.place)
        if stream is None or stream.opaque != frame.opaque or stream.judge is None:
            self._nobodys(frame)
            return
        handler = _HANDLERS.get(frame.opcode)
        if handler is None:
            complain(f"{self.name}: {frame} was not asked for")
        if stream.owed is not None and frame.opcode != codec.SNAPSHOT_END:
            complain(f"{self.name}: {frame} comes, snapshot end {stream.owed} is owed")
        getattr(self, handler)(stream, stream.judge, frame)

    def _nobodys(self, frame: Frame) -> None:
        """Judge a frame that belongs to no stream: it may be the rest of a closed one."""
        if frame.opcode == codec.SNAPSHOT_END and frame.opaque in self._owed_by_closed:
            self._owed_by_closed.remove(frame.opaque)
            return
        told = frame.opcode == codec.STREAM_END and frame.opaque in self._closed_opaques
        if not told or codec.read32(frame.extras) != codec.END_CLOSED:
            complain(f"{self.name}: {frame} belongs to no stream")
        self._closed_opaques.remove(frame.opaque)

    def _marker(self, stream: Stream, judge: StreamJudge, frame: Frame) -> None:
        start, end, kind = codec.marker(frame.extras)
        if self._rounds is not None:
            self._rounds.came(stream.vbucket)
        self.account.announced_again += judge.marker is not None
        judge.announced(start, end, kind, acks=False)

    def _item(self, stream: Stream, judge: StreamJudge, frame: Frame) -> None:
        timed = bool(self.kind.manners.flags & codec.DELETE_TIMES)
        if frame.opcode == codec.EXPIRATION and not self.kind.modern:
            complain(f"{self.name}: {frame} was not asked for")
        version = codec.version(frame, timed=timed)
        if self._rounds is not None:
            self._rounds.came(stream.vbucket)
        whole = judge.came(version)
        copy = self.copies[stream.vbucket]
        assert judge.marker is not None
        copy.apply(version, judge.marker)
        self.account.items += 1
        if whole:
            self._whole(stream, judge, copy)

    def _whole(self, stream: Stream, judge: StreamJudge, copy: Copy) -> None:
        copy.complete()
        judge.whole()
        self.account.snapshots += 1
        self._world.note(f"{self.name} has vBucket {stream.vbucket} up to {copy.last}")
        if self.kind.snapshot_ends:
            stream.owed = (copy.last, judge.items)
        if self._rounds is not None:
            self._rounds.whole(stream.vbucket)
        if self.kind.absent_s and self._world.chance(0.3):
            self._stored[stream.vbucket] = copy.stored()

    def _end(self, stream: Stream, judge: StreamJudge, frame: Frame) -> None:
        reason = codec.read32(frame.extras)
        ends = self.account.ends
        ends[reason] = ends.get(reason, 0) + 1
        self._gone(stream)
        if reason == codec.END_OK:
            if not stream.asked.flags & codec.LATEST or judge.marker is not None:
                complain(f"{self.name}: {stream} ends before its end")
            self._not_before[stream.vbucket] = self._world.now + self._world.between(0, _RETRY_S)
        elif reason not in (codec.END_STATE, *self._newer_reasons):
            complain(f"{self.name}: {stream} ends with reason {reason}")

    @property
    def _newer_reasons(self) -> tuple[int, ...]:
        return (codec.END_BACKFILL, codec.END_ROLLBACK) if self.kind.modern else ()

    # --- rounds, snapshot ends, barriers ----------------------------------------------------------

    def _partition_start(self, stream: Stream, judge: StreamJudge, frame: Frame) -> None:
        if self._rounds is None:
            complain(f"{self.name}: {frame} was not asked for")
        first, last, cycle = struct.unpack(">QQI", frame.extras)
        self._rounds.began(stream.vbucket, cycle)
        if first != self.copies[stream.vbucket].last or last <= first:
            complain(f"{self.name}: a turn from {first} to {last}, {stream}")

    def _snapshot_end(self, stream: Stream, judge: StreamJudge, frame: Frame) -> None:
        told: tuple[int, int] = struct.unpack(">QI", frame.extras)  # type: ignore[assignment]
        if told != stream.owed:
            complain(f"{self.name}: snapshot end {told} comes, {stream.owed} should")
        stream.owed = None

    def _round_complete(self, frame: Frame) -> None:
        if self._rounds is None:
            complain(f"{self.name}: {frame} was not asked for")
        self._rounds.completed(*struct.unpack(">III", frame.extras), len(self.copies))
        self.account.rounds += 1

    def add_barrier(self, connection: Connection) -> None:
        """Send a cookie; what must come before it does is noted."""
        self._cookies += 1
        cookie = b"%s-%d" % (self.name.encode(), self._cookies)
        due = []
        for stream in self.streams.values():
            look = self._truth.now(stream.vbucket)
            if stream.judge is None or not look.log or look.log[0][0] != stream.uuid:
                continue
            if not look.partial:  # half a snapshot is not passed on
                due.append((stream, look.complete))
        barrier = Barrier(cookie, 0, due)
        self.barriers.append(barrier)
        barrier.opaque = connection.send(
            codec.BARRIER_ADD, lambda reply: self._barrier_added(barrier, reply), key=cookie
        )

    def _barrier_added(self, barrier: Barrier, reply: Frame) -> None:
        if reply.place == codec.OK:
            barrier.taken = True
            return
        if reply.place != codec.NOT_FOUND:
            complain(f"{self.name}: a barrier is refused: {reply}")
        self.barriers.remove(barrier)

    def _barrier_reached(self, frame: Frame) -> None:
        if not self.barriers or not self.barriers[0].taken:
            complain(f"{self.name}: {frame} comes, no barrier is out")
        barrier = self.barriers.popleft()
        if (barrier.cookie, barrier.opaque) != (frame.key, frame.opaque):
            complain(f"{self.name}: {frame} comes, {barrier.cookie!r} should")
        for stream, high in barrier.due:
            live = self.streams.get(stream.vbucket) is stream and not stream.closing
            copy = self.copies[stream.vbucket]
            if live and copy.boundaries[-1] < high:
                complain(
                    f"{self.name}: {barrier.cookie!r} is back, vBucket {stream.vbucket} "
                    f"stands at {copy.boundaries[-1]} of {high}"
                )
        self.account.barriers += 1

    # --- the end ----------------------------------------------------------------------------------

    def settled(self) -> bool:
        """Tell whether it holds everything, and no cookie is out."""
        return (
            not self.barriers and not self._closed_opaques and all(map(self._follows, self.copies))
        )

    def _follows(self, number: int) -> bool:
        look, copy = self._truth.now(number), self.copies[number]
        if look.state not in (codec.ACTIVE, codec.REPLICA):
            return True
        stream = self.streams.get(number)
        if stream is None or stream.judge is None or not copy.whole:
            return False
        return stream.uuid == look.log[0][0] and copy.last == look.high

    def judge(self) -> None:
        """Hold every copy to the truth, when everything has come to rest."""
        for number, copy in self.copies.items():
            look = self._truth.now(number)
            if look.state and not look.partial:
                StreamJudge(self._truth, number, look.log[0][0], copy)


_HANDLERS = {
    codec.SNAPSHOT_MARKER: "_marker",
    codec.MUTATION: "_item",
    codec.DELETION: "_item",
    codec.EXPIRATION: "_item",
    codec.STREAM_END: "_end",
    codec.PARTITION_START: "_partition_start",
    codec.SNAPSHOT_END: "_snapshot_end",
}
