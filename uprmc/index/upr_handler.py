"""The UPR side of an index: what the client library calls, handed on to the updater's thread.

The handler takes whole batches and lets them queue up to a limit; above it the library waits, and
with it the node. The state's positions are those of the index file's header. They are saved with
the trees, so what the library commits here is only what it learned: failover logs, purge seqnos and
terms. What nodes are told as durable is what the newest synced header has (rows I26, I28).

A rollback is the store's affair. If it cuts its file to an older header, all vBuckets fall back, so
the run ends with `WentBack` and the next one begins at that header's positions (rows I19, I20).

Source: systems reference c.4, c.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from twisted.internet.defer import Deferred

from uprmc.client.handler import Handler
from uprmc.client.state import RingChunk, Saved
from uprmc.model import FailoverLog
from uprmc.remote.batch import Batch


class WentBack(Exception):
    """The index has fallen back to an older header; its streams begin again from there."""


class Updates(Protocol):
    """Whom the library's calls go to; each call takes effect after all calls before it."""

    def take(self, batch: Batch) -> Deferred[None] | None:
        """Apply changes; wait for what is returned before the next ones."""

    def learn(self, saved: Mapping[int, Saved]) -> None:
        """Keep logs, purge seqnos and terms."""

    def roll_back(self, vbucket: int, seqno: int) -> Deferred[bool] | bool:
        """Return to `seqno`; ``False`` = only 0 is possible; fails with `WentBack`."""

    def forget(self, vbuckets: Iterable[int]) -> None:
        """Keep nothing of what was learned of vBuckets that begin at zero."""

    def positions(self) -> dict[int, Saved]:
        """Where the trees stand."""

    def durable_of(self, vbucket: int) -> Saved | None:
        """Where the newest synced header stands."""


class IndexHandler(Handler):
    """See the module docstring."""

    native_rollback = True
    returns_anywhere = True

    def __init__(self, updates: Updates) -> None:
        self._updates = updates

    def changes(self, batch: Batch) -> Deferred[None] | None:
        """Queue a batch."""
        return self._updates.take(batch)

    def rollback(self, vbucket: int, seqno: int) -> Deferred[bool] | bool:
        """See `Handler.rollback`."""
        return self._updates.roll_back(vbucket, seqno)


class IndexState:
    """A `StateStore` that keeps no ring: positions are in the index file.

    Attributes:
        shared: positions inside of a snapshot are saved with the trees.
    """

    shared = True

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._learned: dict[int, tuple[FailoverLog, int, int]] = {}
        self.durable_of = updates.durable_of

    def load(self) -> dict[int, Saved]:
        """See `StateStore.load`."""
        return self._updates.positions()

    def commit(
        self,
        saved: Mapping[int, Saved],
        ring: Iterable[RingChunk],
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        """See `StateStore.commit`: where the trees stand is told by what they were given."""
        news = {}
        for vbucket, each in saved.items():
            facts = (each.log, each.purge_seqno, each.term)
            if self._learned.get(vbucket) != facts:
                self._learned[vbucket], news[vbucket] = facts, each
        if news:
            self._updates.learn(news)

    def abandon(self) -> None:
        """Nothing is to be undone: positions are those of what was applied."""

    def ring_after(self, vbucket: int, seqno: int) -> list[tuple[int, bytes]]:
        """See `StateStore.ring_after`."""
        return []

    def ring_size(self, vbucket: int) -> int:
        """See `StateStore.ring_size`."""
        return 0

    def forget(self, vbuckets: Iterable[int]) -> None:
        """See `StateStore.forget`."""
        gone = list(vbuckets)
        for vbucket in gone:
            self._learned.pop(vbucket, None)
        self._updates.forget(gone)

    def close(self) -> None:
        """See `StateStore.close`: the file is the updater's."""
