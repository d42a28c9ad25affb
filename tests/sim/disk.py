"""A disk that outlives the process on it, with the faults that a disk may have.

It stands around `MemoryStore`, whose commits are all or nothing, and injects only faults that a
correct engine must survive: a commit that fails and has changed nothing, a full device, a full map
until `grow`, a crash at any time. What it cannot do, because the store contract excludes it: lose
half a commit, or change what was synced.

Every commit is told to the judge of the store, which keeps its own books.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.sim.judges import StoreJudge, complain
from tests.sim.world import World
from uprmc.errors import StoreError, StoreFull, StoreMapFull
from uprmc.model import Item, VBucketHeader
from uprmc.storage.interface import CommitBatch, Damaged, StoreUsage, Trees
from uprmc.storage.memory import MemoryStore, MemoryView


class Disk:
    """See the module docstring."""

    def __init__(self, world: World, judge: StoreJudge, *, sync: bool = True) -> None:
        self.sync = sync  # whether every commit is forced to the device
        self.full = False  # commits get `StoreFull`
        self.broken = False  # commits get `StoreError`
        self.unreadable = False  # reading values fails
        self.weak_views = False  # whether long readings fail then, too
        self.reads_failed = 0  # how often one did
        self.map_full = False  # commits get `StoreMapFull` until `grow` worked
        # when the first one got that; ``None`` when none waits for more room
        self.waits_since: float | None = None
        self.judge = judge
        self._world = world
        self._medium = MemoryStore(sync=sync)
        judge.keeps_every_commit = sync

    def open(self) -> DiskStore:
        """Return the store for one life of the process."""
        return DiskStore(self, self._medium)

    def process_ends(self) -> None:
        """Keep every commit: the kernel has it."""
        self.waits_since = None
        self._medium = self._medium.reopened()
        self._judge_reopened(power_lost=False)

    def power_fails(self) -> None:
        """Keep what is on the device."""
        self.waits_since = None
        self._medium = self._medium.crash()
        self._judge_reopened(power_lost=True)

    def write_back(self) -> None:
        """Force everything to the device, as the kernel does when it has nothing else to do."""
        self._medium.sync()
        self.judge.synced()

    def view(self) -> MemoryView:
        """Return a reading for judges."""
        return self._medium.view()

    def write(self, batch: CommitBatch) -> None:
        """Commit without asking for faults."""
        self.judge.begins(batch)
        try:
            self._medium.commit(batch)
        except StoreError as error:
            complain(f"the engine commits what no store may take: {error}")
        self.judge.committed(batch)

    @property
    def open_views(self) -> int:
        """Number of readings that nobody has closed."""
        return len(self._medium._views)

    @property
    def works(self) -> bool:
        """Whether a commit would be taken."""
        return not (self.full or self.broken or self.map_full)

    def mend(self) -> None:
        """Let it work."""
        self.full = self.broken = self.unreadable = self.map_full = False

    def refuse(self) -> None:
        """Raise the fault that is on."""
        since, self.waits_since = self.waits_since, None
        if self.full:
            raise StoreFull("the disk is full")
        if self.broken:
            raise StoreError("the disk is broken")
        if self.map_full:
            self.waits_since = self._world.now if since is None else since
            raise StoreMapFull("the map is full")

    def _judge_reopened(self, *, power_lost: bool) -> None:
        view = self._medium.view()
        self.judge.reopened(view, self._medium.local, power_lost=power_lost)
        view.close()


class DiskView:
    """A reading that cannot read values of documents while the disk is unreadable."""

    def __init__(self, view: MemoryView, disk: Disk) -> None:
        self._view = view
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def get(self, vbucket: int, key: bytes) -> Item | None:
        """Return the stored version of `key`."""
        if self._disk.unreadable:
            raise StoreError("the disk cannot be read")
        return self._view.get(vbucket, key)


class WeakView(DiskView):
    """A reading that breaks off while the disk is unreadable."""

    def header(self, vbucket: int) -> VBucketHeader | None:
        self._check()
        return self._view.header(vbucket)

    def changes_after(self, vbucket: int, seqno: int) -> Iterator[Item]:
        """Yield records until it breaks."""
        for item in self._view.changes_after(vbucket, seqno):
            self._check()
            yield item

    def records_after(self, vbucket: int, seqno: int) -> Iterator[bytes]:
        """Yield records as they are stored until it breaks."""
        for record in self._view.records_after(vbucket, seqno):
            self._check()
            yield record

    def portions_after(
        self, vbucket: int, seqno: int, damaged: list[Damaged] | None = None
    ) -> Iterator[list[bytes]]:
        """Yield records one by one until it breaks."""
        for record in self.records_after(vbucket, seqno):
            yield [record]

    def _check(self) -> None:
        if self._disk.unreadable:
            self._disk.reads_failed += 1
            raise StoreError("the disk cannot be read")


class DiskStore:
    """The `Store` of one life of the process; dead with it."""

    def __init__(self, disk: Disk, medium: MemoryStore) -> None:
        self._disk = disk
        self._medium = medium

    def commit(self, batch: CommitBatch) -> None:
        """Commit, or have the fault that is on."""
        assert not self._medium.closed, "a dead process writes"
        self._disk.refuse()
        self._disk.write(batch)

    def grow(self) -> bool:
        """Make room, if nobody reads."""
        grown = self._medium.grow()
        if grown:
            self._disk.map_full = False
        return grown

    def view(self) -> DiskView:
        """Open a reading of the newest commit."""
        view = self._medium.view()
        return (WeakView if self._disk.weak_views else DiskView)(view, self._disk)

    def local(self, name: bytes) -> bytes | None:
        return self._medium.local(name)

    def check_owner(self) -> None:
        """Do nothing: it has one owner."""

    def take_damaged(self) -> list[Damaged]:
        """Return nothing: this disk does not decay."""
        return []

    def healed(self, record: Damaged) -> None:
        """Ignore it."""

    def usage(self) -> StoreUsage:
        return self._medium.usage()

    def trees(self) -> Trees:
        """Return what commits copy pages of: nothing."""
        return self._medium.trees()

    def sync(self) -> None:
        """Force everything to the device."""
        assert not self._medium.closed, "a dead process syncs"
        self._disk.write_back()

    def close(self) -> None:
        """Close; the disk stays."""
