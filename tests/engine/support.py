"""A node's rules, driven by hand: manual clock, counted identifiers, the memory store.

`Node` is the bucket with its store, as `server` would put them together, but nothing happens unless
a test says so: no timer, no thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uprmc.config import EngineSettings, FlushSettings, MemorySettings, PurgeSettings, Settings
from uprmc.engine.bucket import Bucket
from uprmc.engine.flusher import Flush
from uprmc.engine.vbucket import Interruption, VBucket
from uprmc.engine.warmup import Warmup
from uprmc.errors import StoreError
from uprmc.model import Item, VBucketHeader
from uprmc.storage.interface import CLEAN_MARK, CommitBatch
from uprmc.storage.memory import MemoryStore

#: What a manual clock starts at.
BEGINNING = 1_700_000_000.0

#: Expiry times are never looked at before this one.
NEVER = 0


class ManualClock:
    """A clock that moves when it is told to."""

    def __init__(self, now: float = BEGINNING) -> None:
        self._now = now
        self._passed = 0.0

    def now(self) -> float:
        """Return Unix time in seconds."""
        return self._now

    def monotonic(self) -> float:
        """Return how many seconds have gone by."""
        return self._passed

    def advance(self, seconds: float) -> None:
        """Let time go by."""
        self._passed += seconds
        self._now += seconds

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or (negative) back; no time goes by."""
        self._now += seconds


class CountingEntropy:
    """Identifiers 1, 2, 3, ..."""

    def __init__(self) -> None:
        self.given = 0

    def uuid48(self) -> int:
        """Return the next number."""
        self.given += 1
        return self.given


class Watching:
    """Follows a vBucket and writes down what it hears."""

    def __init__(self, vbucket: VBucket) -> None:
        self.told: list[str] = []
        vbucket.watchers.append(self)
        vbucket.waiting.append(self)

    def changed(self) -> None:
        """Note a change."""
        self.told.append("changed")

    def interrupted(self, why: Interruption) -> None:
        """Note why it ended."""
        self.told.append(why.value)


class FaultyStore(MemoryStore):
    """The memory store on a device that refuses when it is told to.

    Attributes:
        refusal: raised by every commit while it is not ``None``.
        commits: batches that were written, oldest first.
    """

    def __init__(self, *, sync: bool = True) -> None:
        super().__init__(sync=sync)
        self.refusal: StoreError | None = None
        self.commits: list[CommitBatch] = []

    def commit(self, batch: CommitBatch) -> None:
        """Write `batch` atomically, or refuse."""
        if self.refusal is not None:
            raise self.refusal
        super().commit(batch)
        self.commits.append(batch)


def settings_of(
    vbuckets: int = 1,
    *,
    engine: dict[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
    flush: dict[str, Any] | None = None,
    purge: dict[str, Any] | None = None,
) -> Settings:
    """Return settings whose values need not be within the operator's ranges."""
    return Settings(
        engine=replace(EngineSettings(), vbuckets=vbuckets, **(engine or {})),
        memory=replace(MemorySettings(), **(memory or {})),
        flush=replace(FlushSettings(), **(flush or {})),
        purge=replace(PurgeSettings(), **(purge or {})),
    )


class Node:
    """One warmed-up bucket.

    Attributes:
        warmup: the finished warm-up.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        store: MemoryStore | None = None,
        clock: ManualClock | None = None,
        entropy: CountingEntropy | None = None,
    ) -> None:
        self.settings = settings or settings_of()
        self.store = store or FaultyStore()
        self.clock = clock or ManualClock()
        self.entropy = entropy or CountingEntropy()
        self.bucket = Bucket(self.settings, self.store, self.clock, self.entropy)
        self.warmup = Warmup(self.bucket)
        for _ in self.warmup.steps():
            pass

    @property
    def vbucket(self) -> VBucket:
        """vBucket 0."""
        return self.bucket.vbuckets[0]

    def set(self, key: bytes, value: bytes = b"value", expiry: int = NEVER) -> Item:
        """Store a document in vBucket 0."""
        return self.vbucket.store(key, value, 0, expiry)

    def begin(self) -> Flush:
        """Begin a flush; there must be something to write."""
        flush = self.bucket.flusher.begin()
        assert flush is not None
        return flush

    def flush(self) -> None:
        """Write everything that is dirty."""
        flusher = self.bucket.flusher
        while flush := flusher.begin():
            flusher.commit(flush)
            flusher.finish(flush)
        assert flusher.queued == 0, "accepted, not written, and nobody knows"

    def fail_flush(self, error: StoreError) -> None:
        """Have one flush refused by the store."""
        flush = self.begin()
        self.bucket.flusher.failed(flush, error)

    def fetch(self, *keys: bytes, vbucket: int = 0) -> bool:
        """Bring values back; return what the fetcher told."""
        told: list[bool] = []
        self.bucket.fetcher.want([(vbucket, key) for key in keys], told.append)
        fetch = self.bucket.fetcher.begin()
        assert fetch is not None
        self.bucket.fetcher.commit(fetch)
        self.bucket.fetcher.finish(fetch)
        (answer,) = told
        return answer

    def eject(self, *keys: bytes) -> None:
        """Leave the values of these (clean) documents of vBucket 0 to the disk."""
        for key in keys:
            self.vbucket.eject(key)

    def stop(self) -> None:
        """Stop in order: everything is written, then the clean mark."""
        self.bucket.shut_traffic_out()
        self.flush()
        self.store.commit(CommitBatch(local={CLEAN_MARK: b"1"}))

    def restarted(self) -> Node:
        """Return the node that starts from what is in the store now; this one is no more."""
        return Node(
            self.settings, store=self.store.reopened(), clock=self.clock, entropy=self.entropy
        )

    def header(self, vbucket: int = 0) -> VBucketHeader:
        """Return the stored header."""
        view = self.store.view()
        header = view.header(vbucket)
        view.close()
        assert header is not None
        return header

    def stored(self, vbucket: int = 0) -> dict[bytes, Item]:
        """Return the stored records, tombstones included, in by-seq order."""
        view = self.store.view()
        found = {item.key: item for item in view.changes_after(vbucket, 0)}
        view.close()
        return found

    def check(self) -> None:
        """Verify every invariant, the memory account included."""
        for vbucket in self.bucket.vbuckets.values():
            vbucket.check()
        counted = sum(vbucket.table.memory_bytes() for vbucket in self.bucket.vbuckets.values())
        assert self.bucket.account.used == counted
        dirty = [vbucket.id for vbucket in self.bucket.account.dirty]
        assert len(set(dirty)) == len(dirty), "a vBucket is on the flusher's list twice"
        flagged = {vbucket.id for vbucket in self.bucket.vbuckets.values() if vbucket.dirty}
        assert set(dirty) == flagged
