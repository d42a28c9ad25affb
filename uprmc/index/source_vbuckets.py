"""Which vBuckets an index follows by itself: those of its source, unless `_set_states` decides.

Rows of a vBucket that becomes active are taken from the replica index, if there is one. Those of a
vBucket that its source has lost are kept for a while, since it may come back.

Source: systems reference c.7; acceptance rows I15 to I17.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from twisted.internet.defer import DeferredLock, ensureDeferred

from uprmc.index import moving
from uprmc.index.bitmaps import bitmap, numbers
from uprmc.index.index_file import States
from uprmc.index.source import Source
from uprmc.index.store import IndexStore
from uprmc.index.streams import unheard
from uprmc.index.vbucket_sets import follow_source

#: The rows of a vBucket that its source has lost are kept this long.
_LOST_S = 10.0


class Index(moving.Index, Protocol):
    """What is needed of an index; `following.Following` is one."""

    @property
    def writable(self) -> IndexStore | None:
        """What is indexed, ``None`` = it cannot be changed now."""


class SourceVBuckets:
    """Has one index follow what its source has.

    Args:
        reactor: whose.
        source: what nodes say they have.
        index: which follows it.
        replica: the index of replica vBuckets, ``None`` = there is none.
        replicas: it is that index.
    """

    def __init__(
        self, reactor: Any, source: Source, index: Index, replica: Index | None, *, replicas: bool
    ) -> None:
        self._reactor, self._source, self._index = reactor, source, index
        self._replica, self._replicas = replica, replicas
        self._taking = DeferredLock()
        self._lost: dict[int, float] = {}
        self._taken: tuple[IndexStore, int] | None = None
        self._timer: Any = None
        self._stopped = False

    def stop(self) -> None:
        """Take nothing more."""
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    async def take(self) -> None:
        """Follow what the source has now."""
        await self._taking.run(self._take)

    async def _take(self) -> None:
        store = self._index.writable
        if store is None or not self._source.is_known:
            return
        version = self._source.version
        if (store, version) == self._taken and not self._lost:
            return
        at_source, kept = bitmap(self._at_source), self._kept(store.view.states)
        first = store.is_building
        states = store.view.states
        if self._replica is not None and not states.managed:
            await moving.moved(self._replica, self._index, numbers(at_source & ~states.indexed))
        await self._index.change_states(
            lambda states: follow_source(states, at_source, kept, first=first)
        )
        self._taken = (store, version)

    async def take_over(self, vbuckets: int) -> None:
        """Take the rows of vBuckets that `_set_states` adds from the replica index, if it has them.

        Those that the source does not have active yet are left out: they are indexed from zero when
        it has.
        """
        await self._taking.run(self._take_over, vbuckets)

    async def _take_over(self, vbuckets: int) -> None:
        store = self._index.writable
        if self._replica is not None and store is not None:
            added = vbuckets & bitmap(self._source.active) & ~store.view.states.indexed
            await moving.moved(self._replica, self._index, numbers(added))

    @property
    def _at_source(self) -> frozenset[int]:
        return self._source.replicas if self._replicas else self._source.active

    def _kept(self, states: States) -> int:
        """Return the vBuckets that the source has lost so recently that their rows stay."""
        now, there = time.monotonic(), self._at_source
        missing = [vbucket for vbucket in numbers(states.indexed) if vbucket not in there]
        self._lost = {vbucket: self._lost.get(vbucket, now + _LOST_S) for vbucket in missing}
        left = [until for until in self._lost.values() if until > now]
        if left and (self._timer is None or not self._timer.active()) and not self._stopped:
            self._timer = self._reactor.callLater(min(left) - now + 0.01, self._look_at_lost)
        return bitmap(vbucket for vbucket, until in self._lost.items() if until > now)

    def _look_at_lost(self) -> None:
        ensureDeferred(self.take()).addErrback(unheard)
