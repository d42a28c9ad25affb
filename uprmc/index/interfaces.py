"""What the HTTP side expects of the side that keeps indexes up to date.

`group.Group` and `service.Service` are these; tests have small ones of their own. What is not said
to block is called in the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from uprmc.index.design import Design
from uprmc.index.errors import Damaged
from uprmc.index.model import Lost, Stale, Token
from uprmc.index.query import Tree
from uprmc.metrics import Metric


class Snapshot(Protocol):
    """A state of an index that does not change, until it is released."""

    @property
    def wanted(self) -> int | None:
        """Bitmap of the vBuckets whose rows count; ``None`` = all that are in the trees."""

    @property
    def update_seq(self) -> Mapping[int, int]:
        """The seqno of each vBucket that it stands for."""

    def tree(self, view_index: int) -> Tree:
        """Return the tree of a view; to be read in any thread."""

    def total_rows(self, view_index: int) -> int:
        """Return how many rows a view has."""

    def release(self) -> None:
        """Let the file go."""


class Group(Protocol):
    """One design with its index."""

    @property
    def design(self) -> Design:
        """Its definition."""

    @property
    def state(self) -> str:
        """``building`` or ``ready``."""

    def rows(self) -> dict[str, int]:
        """Return how many rows each view has."""

    def info(self) -> dict[str, Any]:
        """Return what ``_info`` shows; any thread may call it."""

    def placement(self) -> dict[str, Any]:
        """Return ``{"num_vbuckets", "epoch", "active": {vb: term}, "pending": [vb]}``.

        Pending vBuckets are on their way here; terms tell which of two nodes is active.
        """

    async def snapshot(
        self,
        stale: Stale,
        at: Sequence[Token],
        vbuckets: frozenset[int] | None,
        epoch: int | None,
        timeout_s: float,
    ) -> Snapshot:
        """Return a state that is as fresh as wanted; raise `Refused`."""

    async def monitor(self, vbucket: int, seqno: int, vb_uuid: int, timeout_s: float) -> None:
        """Return when a version is indexed; raise `Refused`."""

    def damaged(self, snapshot: Any, error: Damaged) -> None:
        """What a snapshot reads is damaged."""

    async def compact(self) -> None:
        """Begin to compact the file."""

    async def set_states(
        self,
        *,
        active: frozenset[int] | None,
        passive: frozenset[int] | None,
        cleanup: frozenset[int] | None,
        pause: frozenset[int] | None,
        epoch: int | None,
    ) -> None:
        """Take over the states of vBuckets; ``None`` = not named. Raise `Refused`."""


class Service(Protocol):
    """All designs. Each call about one raises `Refused`."""

    async def put(self, name: str, body: bytes) -> object:
        """Keep a definition and build its index."""

    def get(self, name: str) -> Design:
        """Return the definition that was put last."""

    async def delete(self, name: str) -> None:
        """Forget a definition with its index."""

    async def undo(self, name: str) -> object:
        """Bring the definition before the last change back."""

    def names(self) -> Iterable[str]:
        """Return the names of all designs."""

    def group(self, name: str, new: bool = False) -> Group:
        """Return a design's index; `new` = that which is being built for a changed definition."""

    def metrics(self) -> Iterable[Metric]:
        """Return the numbers of ``/metrics``; any thread may call it."""

    def documents(self, keys: Sequence[bytes]) -> Sequence[bytes | Lost | None]:
        """Return documents as they are now, as JSON; blocks."""
