"""An index in memory for the HTTP side: nothing updates it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from tests.index.memory_tree import MemoryTree
from uprmc.index.design import Design
from uprmc.index.errors import IndexDamaged, QueryRefused, not_found
from uprmc.index.model import Stale, Token
from uprmc.metrics import Metric


class FakeSnapshot:
    """A state that counts its releases."""

    def __init__(self, group: FakeGroup, wanted: int | None) -> None:
        self._group, self.wanted = group, wanted
        self.released = 0

    @property
    def update_seq(self) -> Mapping[int, int]:
        return {0: 7, 1: 9}

    def tree(self, view_index: int) -> Any:
        return self._group.trees[view_index]

    def total_rows(self, view_index: int) -> int:
        return self._group.trees[view_index].count

    def release(self) -> None:
        self.released += 1
        assert self.released == 1


class FakeGroup:
    """One design; what it was asked is kept in `asked`."""

    def __init__(self, design: Design, trees: Sequence[MemoryTree] = ()) -> None:
        self.design = design
        self.trees = list(trees) or [MemoryTree([]) for _ in design.views]
        self.asked: list[Any] = []
        self.snapshots: list[FakeSnapshot] = []
        self.refusal: QueryRefused | None = None
        self.waiting: Deferred[None] | None = None
        self.active = {0: 1, 1: 1, 2: 1, 3: 1}
        self.pending: list[int] = []
        self.epoch = 0
        self.total = 4

    state = "ready"

    def rows(self) -> dict[str, int]:
        return {}

    def info(self) -> dict[str, Any]:
        return {"signature": self.design.signature, "state": "ready", "rows": {}}

    def placement(self) -> dict[str, Any]:
        return {
            "num_vbuckets": self.total,
            "epoch": self.epoch,
            "active": self.active,
            "pending": self.pending,
        }

    async def snapshot(
        self,
        stale: Stale,
        at: Sequence[Token],
        vbuckets: frozenset[int] | None,
        epoch: int | None,
        timeout_s: float,
    ) -> FakeSnapshot:
        self.asked.append((stale, list(at), vbuckets, epoch, timeout_s))
        if self.waiting is not None:
            await self.waiting
        if self.refusal is not None:
            raise self.refusal
        if vbuckets is not None and not vbuckets <= self.active.keys():
            lacking = sorted(vbuckets - self.active.keys())
            raise QueryRefused(503, "set_view_outdated", "not active here", vbuckets=lacking)
        chosen = self.active if vbuckets is None else vbuckets
        self.snapshots.append(FakeSnapshot(self, sum(1 << each for each in chosen)))
        return self.snapshots[-1]

    async def monitor(self, vbucket: int, seqno: int, vb_uuid: int, timeout_s: float) -> None:
        self.asked.append(("monitor", vbucket, seqno, vb_uuid, timeout_s))
        if self.refusal is not None:
            raise self.refusal

    def damaged(self, snapshot: FakeSnapshot, error: IndexDamaged) -> None:
        self.asked.append((snapshot, error))

    async def compact(self) -> None:
        self.asked.append("compact")

    async def set_states(self, **states: Any) -> None:
        self.asked.append(states)
        if self.refusal is not None:
            raise self.refusal


class FakeService:
    """Designs by name."""

    def __init__(self) -> None:
        self.groups: dict[str, FakeGroup] = {}
        self.undone: list[str] = []
        self.bodies: dict[bytes, bytes] = {}
        self.failure: Exception | None = None

    async def put(self, name: str, body: bytes) -> None:
        self.keep(name, body)

    def keep(self, name: str, body: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.groups[name] = FakeGroup(Design.parse(name, body))

    def get(self, name: str) -> Design:
        return self.group(name).design

    async def delete(self, name: str) -> None:
        self.group(name)
        del self.groups[name]

    async def undo(self, name: str) -> None:
        self.group(name)
        self.undone.append(name)

    def names(self) -> Iterable[str]:
        return self.groups.keys()

    def group(self, name: str, new: bool = False) -> FakeGroup:
        if name not in self.groups:
            raise not_found(f"there is no design {name!r}")
        return self.groups[name]

    def metrics(self) -> Iterable[Metric]:
        return [Metric("index_designs", "gauge", "Designs.", [({}, len(self.groups))])]

    def documents(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [self.bodies.get(key) for key in keys]
