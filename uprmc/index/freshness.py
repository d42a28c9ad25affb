"""`stale=false`: one run for all that wait.

Who asks while a run is under way waits for the next one: it may have begun before what was written.
A run asks the source what it has, then waits for a barrier over the index's streams, then for the
trees. It is repeated as long as anyone waits, since a stream that ends breaks a barrier.

Source: systems reference c.8; acceptance rows D16, I02.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred

from uprmc.client.errors import ClientError
from uprmc.index.following import Following
from uprmc.index.source import Source
from uprmc.index.streams import Level
from uprmc.index.updater import Stopped

_PAUSE_S = 0.05


class Freshness:
    """See the module docstring.

    Attributes:
        runs: how many have been made.
    """

    def __init__(self, reactor: Any, following: Following, source: Source) -> None:
        self.runs = 0
        self._reactor, self._following, self._source = reactor, following, source
        self._waiting: list[Deferred[Level | None]] = []
        self._running: list[Deferred[Level | None]] = []
        self._busy = False
        following.at_end.append(self._give_up)

    async def wait(self, limit_s: float) -> Level | None:
        """Return when everything that was acknowledged before is indexed, and of which vBuckets.

        ``None`` = it is too late, or the index has ended.
        """
        done: Deferred[Level | None] = Deferred()
        self._waiting.append(done)
        timer = self._reactor.callLater(limit_s, self._over, done)
        if not self._busy:
            self._busy = True
            ensureDeferred(self._run())
        try:
            return await done
        finally:
            if timer.active():
                timer.cancel()

    def _over(self, done: Deferred[Level | None]) -> None:
        for waiting in (self._waiting, self._running):
            if done in waiting:
                waiting.remove(done)
        done.callback(None)

    async def _run(self) -> None:
        try:
            while self._waiting or self._running:
                if self._following.has_ended:
                    self._give_up()
                    return
                if not self._running:
                    self._running, self._waiting = self._waiting, []
                self.runs += 1
                level = await self._once()
                if level is not None:
                    found, self._running = self._running, []
                    for done in found:
                        done.callback(level)
        finally:
            self._busy = False

    def _give_up(self) -> None:
        found = self._running + self._waiting
        self._running, self._waiting = [], []
        for done in found:
            done.callback(None)

    async def _once(self) -> Level | None:
        await self._source.refresh()
        try:
            return await self._following.level()
        except (ClientError, Stopped):
            await self._following.progress.wait(self._reactor, _PAUSE_S)
            return None
