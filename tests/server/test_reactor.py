"""The lean reactor does what Twisted's does, and notices when Twisted moves what it leans on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from twisted.internet.abstract import FileDescriptor
from twisted.internet.base import ReactorBase
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.selectreactor import SelectReactor

from uprmc.server.net.transport import EVENTS_MAX, LeanReactor, count_monotonic_time
from uprmc.server.work.turns import WakeList


class _Pipe(FileDescriptor):
    def __init__(self, reactor: LeanReactor, descriptor: int, fails: bool = False) -> None:
        super().__init__(reactor)
        self._descriptor = descriptor
        self._fails = fails
        self.reads: list[bytes] = []
        self.lost: object = None

    def fileno(self) -> int:
        return self._descriptor

    def doRead(self) -> None:  # noqa: N802
        if self._fails:
            raise RuntimeError("a bug in a protocol")
        self.reads.append(os.read(self._descriptor, 100))

    def connectionLost(self, reason: object) -> None:  # noqa: N802
        self.lost = reason
        super().connectionLost(reason)


def test_twisted_still_has_what_the_lean_reactor_leans_on() -> None:
    reactor = EPollReactor()
    try:
        assert isinstance(reactor._selectables, dict)
        assert callable(reactor._poller.poll)
        assert callable(reactor._doReadOrWrite)
        assert callable(reactor._disconnectSelectable)
        assert EPollReactor.doIteration is EPollReactor.doPoll
    finally:
        _close(reactor)


def test_readable_descriptors_are_read_in_the_turn_that_finds_them() -> None:
    reactor = LeanReactor()
    read_end, write_end = os.pipe()
    pipe = _Pipe(reactor, read_end)
    try:
        reactor.addReader(pipe)
        os.write(write_end, b"hello")
        reactor.doIteration(5)
        assert pipe.reads == [b"hello"]
    finally:
        _close(reactor)
        os.close(read_end)
        os.close(write_end)


def test_an_exception_ends_that_connection_and_nothing_else() -> None:
    reactor = LeanReactor()
    ends = [os.pipe(), os.pipe()]
    broken = _Pipe(reactor, ends[0][0], fails=True)
    sound = _Pipe(reactor, ends[1][0])
    try:
        for pipe, (_, write_end) in zip((broken, sound), ends, strict=True):
            reactor.addReader(pipe)
            os.write(write_end, b"x")
        reactor.doIteration(5)
        assert broken.lost is not None
        assert sound.lost is None
        assert sound.reads == [b"x"]
    finally:
        _close(reactor)
        for read_end, write_end in ends:
            os.close(read_end)
            os.close(write_end)


def test_a_turn_ends_although_more_is_to_be_read_and_nobody_is_forgotten() -> None:
    """Timers have their turn between, and who was served last comes behind those who wait."""
    reactor = LeanReactor()
    ends = [os.pipe() for _ in range(3 * EVENTS_MAX)]
    pipes = [_Pipe(reactor, read_end) for read_end, _ in ends]
    try:
        for pipe, (_, write_end) in zip(pipes, ends, strict=True):
            reactor.addReader(pipe)
            os.write(write_end, b"x" * 200)  # read 100 at a time, so it stays readable
        for turn in range(1, 7):
            reactor.doIteration(5)
            assert sum(len(pipe.reads) for pipe in pipes) == turn * EVENTS_MAX
            if turn == 3:
                assert all(len(pipe.reads) == 1 for pipe in pipes)
        assert all(len(pipe.reads) == 2 for pipe in pipes)
    finally:
        _close(reactor)
        for pair in ends:
            for end in pair:
                os.close(end)


def _close(reactor: EPollReactor) -> None:
    """Release what a reactor opens for itself without ever running it."""
    reactor.removeAll()
    for waker in list(reactor._internalReaders):
        waker.connectionLost(None)
    reactor._internalReaders.clear()
    reactor._poller.close()


def test_what_a_turn_wakes_is_served_at_its_end_and_once() -> None:
    reactor = LeanReactor()
    read_end, write_end = os.pipe()
    pipe = _Pipe(reactor, read_end)
    wakes = WakeList(reactor)
    served: list[list[bytes]] = []
    try:
        reactor.addReader(pipe)
        os.write(write_end, b"hello")
        wakes.add(lambda: served.append(list(pipe.reads)))
        reactor.doIteration(5)
        assert served == [[b"hello"]]
        assert reactor.getDelayedCalls() == []
        os.write(write_end, b"again")
        reactor.doIteration(5)
        assert served == [[b"hello"]]
    finally:
        _close(reactor)
        os.close(read_end)
        os.close(write_end)


def test_a_turn_does_not_wait_for_events_while_somebody_is_woken() -> None:
    reactor = LeanReactor()
    wakes = WakeList(reactor)
    served: list[int] = []
    try:
        wakes.add(lambda: (served.append(1), wakes.add(lambda: served.append(2))))
        reactor.doIteration(600)
        reactor.doIteration(600)
        assert served == [1, 2]
    finally:
        _close(reactor)


@pytest.mark.parametrize(
    "make", [LeanReactor, lambda: count_monotonic_time(SelectReactor())], ids=["epoll", "other"]
)
def test_timers_count_monotonic_time(make: Callable[[], ReactorBase]) -> None:
    reactor = make()
    try:
        before = time.monotonic()
        timer = reactor.callLater(10, lambda: None)
        assert before + 10 <= timer.getTime() <= time.monotonic() + 10
        assert 0 < reactor.timeout() <= 10
    finally:
        for waker in list(reactor._internalReaders):
            waker.connectionLost(None)


def test_a_closed_wake_list_is_asked_no_more() -> None:
    reactor = LeanReactor()
    wakes = WakeList(reactor)
    served: list[int] = []
    try:
        wakes.add(lambda: served.append(1))
        wakes.close()
        reactor.doIteration(0)
        assert served == []
    finally:
        _close(reactor)
