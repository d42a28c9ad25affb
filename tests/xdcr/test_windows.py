"""Batches under way: what answers settle, and in which order positions arrive."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from uprmc.config import XdcrSettings
from uprmc.protocol.header import decode_frame
from uprmc.protocol.opcodes import Opcode
from uprmc.xdcr.frames import set_frame
from uprmc.xdcr.windows import LinkWindow, Windows


class Node:
    """The other end: looks at requests in order, refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.stored: list[int] = []

    def take(self, frames: list[bytes]) -> None:
        self.waiting += frames
        frames.clear()


class WindowsMachine(RuleBasedStateMachine):
    """Items are stored once their batch is settled, whatever is refused for now and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.windows = Windows(self._settled, XdcrSettings())
        self.node = Node()
        self.out: list[bytes] = []
        self.now = 0.0
        self.items: dict[int, list[int]] = {}  # by batch
        self.open: dict[int, LinkWindow] = {}
        self.lost: set[int] = set()
        self.settled = 0

    def _settled(self, window: LinkWindow) -> None:
        expected = self.items.pop(id(window))
        del self.open[id(window)]
        done = set(self.node.stored) | self.lost
        assert set(expected) <= done
        assert window.written == len(set(expected) - self.lost)
        self.settled += 1

    def _add(self, *, looked_up: bool) -> None:
        windows = self.windows
        window = windows.current
        opaque = windows.opaque
        frame = set_frame(0, opaque, b"kv", 1, (0, 0, 1, 1), 0)
        if not looked_up:
            self.out.append(frame)
        windows.add(window, frame, looked_up=looked_up)
        self.items.setdefault(id(window), []).append(opaque)
        self.open[id(window)] = window
        if looked_up:
            self.node.waiting.append(b"look up %d" % opaque)

    @precondition(lambda self: self.windows.has_room)
    @rule(count=st.integers(1, 3), looked_up=st.booleans())
    def fill(self, count: int, looked_up: bool) -> None:
        self.node.take(self.out)
        for _ in range(count):
            self._add(looked_up=looked_up)
        self.node.take(self.out)

    @rule()
    def close(self) -> None:
        self.windows.close(self.out)
        self.node.take(self.out)

    @precondition(lambda self: self.node.waiting)
    @rule(what=st.sampled_from(["store", "later", "refuse"]))
    def answer(self, what: str) -> None:
        data = self.node.waiting.pop(0)
        if data.startswith(b"look up"):
            item = self.windows.find(int(data.split()[2]))
            assert item is not None
            if what == "store":
                self.windows.send_after_look_up(item, self.out)
            elif what == "later":
                self.windows.send_again(item, self.now, counted=True)
            else:
                self.lost.add(int(data.split()[2]))
                self.windows.look_up_lost(item)
            self.node.take(self.out)
            return
        frame = decode_frame(data)
        if frame.opcode == Opcode.NOOP:
            assert self.windows.fence_answered(frame.opaque)
        elif what == "store":
            self.node.stored.append(frame.opaque)
        else:
            item = self.windows.find(frame.opaque)
            assert item is not None
            if what == "later":
                self.windows.send_again(item, self.now)
            else:
                self.windows.refused(item)
                self.lost.add(frame.opaque)

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.windows.retry(self.out, self.now)
        self.node.take(self.out)

    @invariant()
    def what_is_open_is_under_way(self) -> None:
        assert bool(self.windows) >= bool(self.open)

    def teardown(self) -> None:
        self.close()
        for _ in range(10_000):
            if not self.node.waiting and not self.windows:
                break
            if self.node.waiting:
                self.answer("store")
            else:
                self.wait(2.0)
        assert not self.windows
        assert not self.items


TestWindows = WindowsMachine.TestCase
TestWindows.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
