"""Waiting in the reactor: until something has changed, and until a time at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred


class Signal:
    """Wakes all who wait for the next change."""

    def __init__(self) -> None:
        self._waiting: list[Deferred[None]] = []

    def fire(self) -> None:
        """Something has changed."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.called:
                each.callback(None)

    async def wait(self, reactor: Any, limit_s: float) -> None:
        """Return after the next change, or when the time is over."""
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        timer = reactor.callLater(max(limit_s, 0.0), self._over, waiting)
        try:
            await waiting
        finally:
            if timer.active():
                timer.cancel()

    def _over(self, waiting: Deferred[None]) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        if not waiting.called:
            waiting.callback(None)


async def pause(
    reactor: Any, signal: Signal, pause_s: float, is_over: Callable[[], object]
) -> None:
    """Return after this time, or when a change has come after which it is over."""
    until = time.monotonic() + pause_s
    while not is_over() and (left_s := until - time.monotonic()) > 0:
        await signal.wait(reactor, left_s)


class Deadline:
    """A time on the monotonic clock."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 = none."""
        return max(0.0, self._at - time.monotonic())

    async def until(
        self,
        reactor: Any,
        signal: Signal,
        true: Callable[[], object],
        over: Callable[[], Exception],
    ) -> None:
        """Return when it is true; raise what `over` returns when the time is over before."""
        while not true():
            if not self.left_s:
                raise over()
            await signal.wait(reactor, self.left_s)
