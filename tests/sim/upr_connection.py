"""A simulated UPR connection as its client sees it: handshake, replies in order, flow control.

It is the judge of its own conversation: every command has one reply, in the order of commands, with
its opaque and opcode. Only a HWT_REPORT may be answered later, when it is on disk. What the
producer sends by itself goes to `pushed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tests.sim import upr_codec as codec
from tests.sim.judges import complain
from tests.sim.link import FAST, Client, Link, LinkProfile
from tests.sim.upr_codec import Frame, FrameReader
from tests.sim.upr_judges import FlowJudge
from tests.sim.world import World

Settle = Callable[[Frame], None]


class Listener(Protocol):
    """What accepts connections."""

    def connect(self, client: Client, profile: LinkProfile, by_key: bool) -> Link | None:
        """Return a link, ``None`` while nobody listens."""


@dataclass(frozen=True, slots=True)
class Manners:
    """How a connection is opened and kept.

    Attributes:
        flags: of OPEN.
        controls: sent after it; all must be accepted.
        buffer_bytes: flow control; 0 = none.
        ack_share: bytes are acknowledged when they exceed this share of the buffer.
        ack_delay_max_s: and so much later at most.
        noop_s: interval of keep-alives, 0 = none are asked for.
        hello: whether it says HELLO first, as peers of today do.
        profile: of its link.
    """

    flags: int = codec.AS_PRODUCER
    controls: tuple[str, ...] = ()
    buffer_bytes: int = 0
    ack_share: float = 0.2
    ack_delay_max_s: float = 0.0
    noop_s: float = 0.0
    hello: bool = False
    profile: LinkProfile = FAST


class Connection:
    """See the module docstring.

    Attributes:
        open: whether there is a link.
        received: counted bytes and frames so far.
    """

    def __init__(
        self,
        world: World,
        node: Listener,
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
        """Whether there is a link."""
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
        """Take bytes from the link."""
        for frame in self._reader.feed(data):
            if frame.is_reply:
                self._settle(frame)
            elif frame.opcode == codec.NOOP:
                self.answer(codec.NOOP, frame.opaque)
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
        """The link is gone."""
        self._link = None
        self._under_way.clear()
        self._reports.clear()
        self._lost()
