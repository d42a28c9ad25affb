"""What a program does with the client library, and what of it survives the program's death.

A mirror keeps the documents it is told of. When they are on its disk depends on its kind: at once,
at the end of each snapshot, whenever it is asked to (`durable`), or at the end of each snapshot
with every earlier one still at hand (it rolls back by itself). `StateDisk` is the disk of the
library's own state. Every write of either is a point at which the program may die.

Source: systems reference g; rows D13, D44 to D49.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.sim.judges import complain
from tests.sim.upr_codec import Version
from uprmc.client.handler import Handler
from uprmc.client.state import MemoryState

Docs = dict[int, dict[bytes, tuple[object, ...]]]

#: Kinds of mirrors.
AT_ONCE, AT_ENDS, WHEN_ASKED, NATIVE = "at once", "at ends", "when asked", "native"
KINDS = (AT_ONCE, AT_ENDS, WHEN_ASKED, NATIVE)


class ProgramDied(Exception):
    """The program was killed."""


class Points:
    """Counts write points; lets the program die at one of them.

    Attributes:
        count: so many there were in this life.
        dies: asked at each point.
    """

    def __init__(self) -> None:
        self.count = 0
        self.dies: Callable[[], bool] = lambda: False

    def point(self) -> None:
        """Here something is about to be written, or was just written."""
        self.count += 1
        if self.dies():
            raise ProgramDied


def told(change: Any) -> tuple[object, ...]:
    """Return what is kept of a document."""
    return (change.value, change.rev, change.cas, change.flags, change.expiry)


def of_version(version: Version) -> tuple[object, ...]:
    """Return the same of a version that is true."""
    return (version.value, version.rev, version.cas, version.flags, version.expiry)


class Disk:
    """What a mirror has written down.

    Attributes:
        docs: by vBucket and key.
        ends: by vBucket, the documents at each end of a snapshot; of a native mirror.
    """

    def __init__(self) -> None:
        self.docs: Docs = {}
        self.ends: dict[int, dict[int, dict[bytes, tuple[object, ...]]]] = {}


class StateDisk(MemoryState):
    """The library's state, with a judge of what is written into it.

    Attributes:
        ring: by vBucket, what was ever written into it and not cut: (seqno, key).
    """

    def __init__(self, points: Points, judge: Callable[[int, Any], None]) -> None:
        super().__init__()
        self.ring: dict[int, set[tuple[int, bytes]]] = {}
        self._points = points
        self._judge = judge

    def commit(
        self,
        saved: Mapping[int, Any],
        ring: Sequence[Any],
        trims: Mapping[int, int],
        cuts: Mapping[int, int],
    ) -> None:
        """See `StateStore.commit`."""
        self._points.point()
        for vbucket, one in saved.items():
            self._judge(vbucket, one)
        for vbucket, seqno in cuts.items():
            kept = {entry for entry in self.ring.get(vbucket, ()) if entry[0] <= seqno}
            self.ring[vbucket] = kept
        for chunk in ring:
            self.ring.setdefault(chunk.vbucket, set()).update(chunk.entries)
        super().commit(saved, ring, trims, cuts)
        self._points.point()

    def forget(self, vbuckets: Iterable[int]) -> None:
        """See `StateStore.forget`."""
        numbers = list(vbuckets)
        self._points.point()
        for number in numbers:
            self.ring.pop(number, None)
        super().forget(numbers)
        self._points.point()


class Mirror(Handler):
    """See the module docstring; one life of the program.

    Attributes:
        docs: as the program sees them.
        undone, back: how often a key was undone, a vBucket was rolled back.
        owed: by vBucket, keys that are to be undone before anything else happens there.
    """

    def __init__(self, kind: str, disk: Disk, state: StateDisk, points: Points) -> None:
        self.kind = kind
        self.native_rollback = kind == NATIVE
        self.docs: Docs = {number: dict(docs) for number, docs in disk.docs.items()}
        self.undone = self.back = 0
        self._disk = disk
        self._state = state
        self._points = points
        self._target: dict[int, int] = {}
        self.on_change: Callable[[Any], None] = lambda change: None
        if kind == WHEN_ASKED:
            self.durable = self._write_all

    # --- the program's disk -----------------------------------------------------------------------

    def _write(self, number: int) -> None:
        self._points.point()
        self._disk.docs[number] = dict(self.docs.get(number, {}))
        self._points.point()

    def _write_all(self) -> None:
        for number in self.docs:
            self._write(number)

    # --- what it is told --------------------------------------------------------------------------

    def mutation(self, change: Any) -> None:
        """See `Handler`."""
        self._take(change)
        self.docs.setdefault(change.vbucket, {})[change.key] = told(change)
        if self.kind == AT_ONCE:
            self._write(change.vbucket)

    def deletion(self, change: Any) -> None:
        """See `Handler`."""
        self._take(change)
        self.docs.setdefault(change.vbucket, {}).pop(change.key, None)
        if self.kind == AT_ONCE:
            self._write(change.vbucket)

    def _take(self, change: Any) -> None:
        self._target.pop(change.vbucket, None)
        self.on_change(change)
        known = self._state.ring_after(change.vbucket, change.seqno - 1)
        if not self.native_rollback and (change.seqno, change.key) not in known:
            complain(f"{change} is handed over, and is not in the ring: {known[:3]}")

    def snapshot_end(self, vbucket: int, end: int) -> None:
        """See `Handler`."""
        if self.kind == NATIVE:
            self._disk.ends.setdefault(vbucket, {})[end] = dict(self.docs.get(vbucket, {}))
        if self.kind in (AT_ENDS, NATIVE):
            self._write(vbucket)

    def rollback(self, vbucket: int, seqno: int) -> bool:
        """See `Handler`."""
        self._points.point()
        self._target[vbucket] = seqno
        if not seqno:
            self.back += bool(self.docs.get(vbucket))
            self.docs[vbucket] = {}
            self._disk.ends.pop(vbucket, None)
            self._write(vbucket)
            return self.kind == NATIVE
        if self.kind != NATIVE:
            self.back += 1
            return False
        ends = self._disk.ends.get(vbucket, {})
        if seqno not in ends:
            return False
        self.back += any(end > seqno for end in ends)
        self.docs[vbucket] = dict(ends[seqno])
        self._disk.ends[vbucket] = {end: docs for end, docs in ends.items() if end <= seqno}
        self._write(vbucket)
        return True

    def undo(self, vbucket: int, key: bytes, document: Any) -> None:
        """See `Handler`."""
        self._points.point()
        above = self._target.get(vbucket)
        received = self._state.ring.get(vbucket, set())
        if above is not None and not any(s > above and k == key for s, k in received):
            complain(f"vBucket {vbucket}: {key!r} is undone above {above}, which never came")
        self.undone += 1
        if document is None:
            self.docs.setdefault(vbucket, {}).pop(key, None)
        else:
            self.docs.setdefault(vbucket, {})[key] = told(document)
        self._write(vbucket)
